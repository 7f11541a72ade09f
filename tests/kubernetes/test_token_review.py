"""Token reviews on an API server that may forbid them."""

import pytest

from gpufleet.errors import KubernetesUnavailable
from gpufleet.kubernetes.token_review import TokenReviews

from .faulty_server import FaultyServer, status


@pytest.mark.parametrize("code", [401, 403, 404])
async def test_a_server_without_the_right_to_review_tokens_does_not_blame_the_caller(code: int) -> None:
    server = FaultyServer()
    server.refuse = lambda request: status(code, "system:serviceaccount:gpufleet:server cannot create")
    async with server.serving(), server.client() as client:
        with pytest.raises(KubernetesUnavailable) as refusal:
            await TokenReviews(client).review("a token")
    assert "serviceaccount" not in str(refusal.value)
