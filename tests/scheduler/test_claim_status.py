"""The status of claims, from the ledger."""

import msgspec

from gpufleet.kubernetes.crds.gpu_claim import GpuClaim
from gpufleet.scheduler.claim_status import status_of
from gpufleet.scheduler.state import Ledger


def claim(**devices: object) -> GpuClaim:
    body = {"metadata": {"name": "c", "namespace": "ml", "uid": "u"}, "spec": {"devices": devices}}
    return msgspec.convert(body, GpuClaim)


def test_a_claim_from_before_the_rules_of_the_crd_is_failed_with_the_reason() -> None:
    status = status_of(Ledger(), lambda pod: "", claim(count=100_000))
    assert status["phase"] == "Failed"
    assert status["message"].startswith("The claim is invalid, no pod can use it: ")
    assert "count" in status["message"]


def test_a_valid_claim_without_pods_is_pending() -> None:
    assert status_of(Ledger(), lambda pod: "", claim(count=1))["phase"] == "Pending"
