"""API calls of the scheduler whose errors are ambiguous."""

import pytest
from tests.kubernetes.faulty_server import FaultyServer, answer

from gpufleet.kubernetes.client.errors import Conflict
from gpufleet.scheduler.kubernetes_api import KubernetesApi


async def test_a_pod_with_many_concurrent_writers_does_not_count_as_deleted() -> None:
    server = FaultyServer()
    async with server.serving(), server.client() as client:
        api = KubernetesApi(client, "default", "test")
        pod = (await server.put("one-pod"))["metadata"]
        server.faults["PATCH"].extend([answer(409, "Conflict")] * 3)
        with pytest.raises(Conflict):
            await api.nudge("default", "one-pod", pod["uid"], "value")
        assert await api.nudge("default", "one-pod", "uid-of-an-earlier-one", "value") is None
        await server.remove("one-pod")
        assert await api.nudge("default", "one-pod", pod["uid"], "value") is None
