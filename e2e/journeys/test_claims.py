"""Every kind of claim, through webhook, kube-scheduler, extender and lease, down to what the container sees."""

from typing import Any

import pytest

from e2e.cluster import CommandFailed
from e2e.system import Observations, System, Users


def on(node: str) -> dict[str, Any]:
    """The part of a claim that asks for a node."""
    return {"selector": {"matchLabels": {"kubernetes.io/hostname": node}}}


def test_claims_of_each_policy_are_bound_and_their_containers_see_their_gpus(
    system: System, users: Users, observations: Observations
) -> None:
    def run(name: str, claim: str) -> str:
        users.pod(name, claim)
        [allocated] = users.running(name)
        seen = users.visible_devices(name)
        assert seen == users.visible_devices(name, "fetch"), "init containers see the same"
        observations.add(f"pod {name} with the claim {claim}", f"{allocated}, CUDA_VISIBLE_DEVICES={seen}")
        if claim != "slice":
            assert seen == allocated.partition(":")[2]
        return allocated

    users.claim("contiguous", 3, spec=on("node-a"))
    assert run("contiguous", "contiguous") == "node-a:0,1,2"
    users.claim("spread", 2, policy="spread", spec=on("node-b"))
    assert run("spread", "spread") == "node-b:0,2", "one GPU of each island"
    users.claim("wanted", 2, policy="preferIds", preferIds=[5, 7], spec=on("node-a"))
    assert run("wanted", "wanted") == "node-a:5,7"
    users.claim("half", exclusivity="Shared", share=0.5, spec=on("node-b"))
    assert run("half-0", "half") == run("half-1", "half"), "two halves share one GPU"
    users.claim("slice", exclusivity="MIG", migProfile="1g.10gb", spec=on("node-m"))
    first, second = run("slice-0", "slice"), run("slice-1", "slice")
    assert first == second == "node-m:0"
    assert users.visible_devices("slice-0") != users.visible_devices("slice-1"), "an instance each"
    assert users.visible_devices("slice-0").startswith("MIG-")
    users.claim("linked", 2, spec={"topology": {"mode": "Required", "minBandwidthGBps": 200}})
    assert run("linked", "linked") == "node-a:3,4", "NVSwitch has the bandwidth, the islands of V100 have not"
    system.cluster.wait_for("the claim's status", lambda: users.status("linked").get("phase") == "Bound")
    observations.add("kubectl get gclaim linked", f"Bound on {users.status('linked')['allocated']}")
    held = len(system.leases())
    observations.add("leases", held)
    assert held == 3 + 2 + 2 + 1 + 1 + 2


def test_a_claim_that_is_wrong_is_refused_with_a_reason(users: Users, observations: Observations) -> None:
    with pytest.raises(CommandFailed) as refusal:
        users.claim("bad", 2, policy="spread", spec={"topology": {"mode": "Required"}})
    assert "they exclude each other" in refusal.value.stderr
    observations.add("a claim that spreads over islands and asks for one", "refused: they exclude each other")
