"""What is kept of the annotations that users write."""

from gpufleet.kubernetes.annotations import ALLOCATED, CLAIM, LAST_APPLIED, kept_annotations
from gpufleet.kubernetes.cache import Cache
from gpufleet.kubernetes.cache_budget import CacheBudget
from gpufleet.kubernetes.crds.gpu_claim import ClaimDevices, ClaimSpec, GpuClaim
from gpufleet.kubernetes.objects import ObjectMeta, Owner, Pod


def test_only_known_and_configured_annotations_are_kept() -> None:
    found = {CLAIM: "c", "cost-center": "7", "other": "x", LAST_APPLIED: "secret"}
    assert kept_annotations(found, {"cost-center"}) == {CLAIM: "c", "cost-center": "7"}


def test_the_manifest_of_kubectl_apply_is_never_kept() -> None:
    assert kept_annotations({LAST_APPLIED: "secret"}, {LAST_APPLIED}) == {}


def test_values_are_cut_at_256_bytes_between_two_characters() -> None:
    kept = kept_annotations({"user": "a" + "é" * 300}, {"user"})
    assert kept == {"user": "a" + "é" * 127}


def test_the_gpus_of_a_pod_are_not_cut() -> None:
    uuids = ",".join(f"MIG-{number:036}" for number in range(56))
    assert kept_annotations({ALLOCATED: uuids}) == {ALLOCATED: uuids}


def test_caches_count_only_what_they_keep_of_pods_and_owners() -> None:
    budget = CacheBudget(1 << 20)
    for kind in (Pod, Owner):
        cache = Cache[Pod | Owner](budget, {"team"})
        meta = ObjectMeta(name="p", namespace="a", annotations={"team": "nlp", "large": "x" * 240_000})
        cache.put([kind(meta)])
        (kept,) = cache
        assert kept.metadata.annotations == {"team": "nlp"}
    assert budget.used < 3000


def test_objects_that_are_written_back_keep_all_their_annotations() -> None:
    claim = GpuClaim(
        metadata=ObjectMeta(name="c", namespace="a", annotations={"mine": "x"}),
        spec=ClaimSpec(devices=ClaimDevices(count=1)),
    )
    cache = Cache[GpuClaim](CacheBudget(1 << 20))
    cache.put([claim])
    (kept,) = cache
    assert kept.metadata.annotations == {"mine": "x"}


def test_a_namespace_that_uses_up_its_share_keeps_no_other_out() -> None:
    budget = CacheBudget(100_000, 0.5)
    cache = Cache[Pod](budget)
    labels = {"large": "x" * 9_000}

    def pod(name: str, namespace: str, version: str = "1", uid: str = "u", **labels: str) -> Pod:
        return Pod(
            ObjectMeta(name=name, namespace=namespace, uid=uid, resource_version=version, labels=labels)
        )

    crowd = [pod(f"p{number}", "a", **labels) for number in range(9)]
    assert len(cache.put([pod("small", "a"), *crowd, pod("other", "b", **labels)])) == 6
    assert cache.left_out == {"a"}
    assert cache.get("other", "b") is not None
    assert budget.used < budget.max_bytes
    assert cache.put([pod("small", "a", "2", **labels)]) == [], "the version known before stays"
    (deleted,) = cache.put([pod("small", "a", "3", "v", **labels)])
    assert deleted.after is None
    cache.remove(cache.keys())
    assert budget.used == 0
    assert budget.admits("a", 50_000)
