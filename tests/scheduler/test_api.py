"""The scheduler's calls where the server's answer can mean two things."""

import pytest
from tests.kubernetes.faulty_server import FaultyServer, answer

from gpufleet.kubernetes.client.errors import Conflict
from gpufleet.scheduler.kubernetes_api import KubernetesApi


async def test_a_pod_that_many_write_at_once_is_not_taken_for_gone() -> None:
    server = FaultyServer()
    async with server.serving(), server.client() as client:
        api = KubernetesApi(client, "default", "test")
        pod = (await server.put("one-pod"))["metadata"]
        server.faults["PATCH"].extend([answer(409, "Conflict")] * 3)
        with pytest.raises(Conflict):
            await api.nudge("default", "one-pod", pod["uid"], "nudge_value")
        assert await api.nudge("default", "one-pod", "uid-of-an-earlier-one", "nudge_value") is None
        await server.remove("one-pod")
        assert await api.nudge("default", "one-pod", pod["uid"], "nudge_value") is None
