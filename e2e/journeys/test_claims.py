"""Test every kind of claim through webhook, kube-scheduler, extender and leases to the container's environment."""

from typing import Any

import pytest

from e2e.cluster import CommandFailed
from e2e.system import Observations, System, Users


def on(node: str) -> dict[str, Any]:
    """Return the part of a claim that selects a node."""
    return {"selector": {"matchLabels": {"kubernetes.io/hostname": node}}}


def test_claims_of_each_policy_are_bound_and_containers_get_their_gpus(
    system: System, users: Users, observations: Observations
) -> None:
    def run(name: str, claim: str) -> str:
        users.pod(name, claim)
        [allocated] = users.running(name)
        visible = users.visible_devices(name)
        assert visible == users.visible_devices(name, "fetch"), "init containers get the same GPUs"
        observations.add(f"pod {name} with the claim {claim}", f"{allocated}, CUDA_VISIBLE_DEVICES={visible}")
        if claim != "slice":
            assert visible == users.uuids(allocated)
        return allocated

    users.claim("contiguous", 3, spec=on("node-a"))
    assert run("contiguous", "contiguous") == "node-a:0,1,2"
    users.claim("spread", 2, policy="spread", spec=on("node-b"))
    assert run("spread", "spread") == "node-b:0,2", "one GPU of each island"
    users.claim("preferred", 2, policy="preferIds", preferIds=[5, 7], spec=on("node-a"))
    assert run("preferred", "preferred") == "node-a:5,7"
    users.claim("half", exclusivity="Shared", share=0.5, spec=on("node-b"))
    assert run("half-0", "half") == run("half-1", "half"), "two halves share one GPU"
    users.claim("slice", exclusivity="MIG", migProfile="1g.10gb", spec=on("node-m"))
    first, second = run("slice-0", "slice"), run("slice-1", "slice")
    assert first == second == "node-m:0"
    assert users.visible_devices("slice-0") != users.visible_devices("slice-1"), (
        "each pod has its own instance"
    )
    assert users.visible_devices("slice-0").startswith("MIG-")
    users.claim("linked", 2, spec={"topology": {"mode": "Required", "minBandwidthGBps": 200}})
    assert run("linked", "linked") == "node-a:3,4", "only NVSwitch has the bandwidth"
    system.cluster.wait_for("the claim's status", lambda: users.status("linked").get("phase") == "Bound")
    observations.add("kubectl get gclaim linked", f"Bound on {users.status('linked')['allocated']}")
    held = len(system.leases())
    observations.add("leases", held)
    assert held == 3 + 2 + 2 + 1 + 1 + 2


def test_an_invalid_claim_is_refused_with_a_reason(users: Users, observations: Observations) -> None:
    with pytest.raises(CommandFailed) as refusal:
        users.claim("bad", 2, policy="spread", spec={"topology": {"mode": "Required"}})
    assert "they exclude each other" in refusal.value.stderr
    observations.add(
        "a claim that spreads over islands and requires one island", "refused: they exclude each other"
    )
