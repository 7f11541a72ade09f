"""The gangs of a cluster: which pods are their members, and how many they need."""

from collections.abc import Mapping

from gpufleet.kubernetes.annotations import CLAIM
from gpufleet.kubernetes.crds.gpu_claim import GpuClaim
from gpufleet.kubernetes.objects import NativePodGroup, Pod, PodGroup, PodGroupSpec
from gpufleet.scheduler.state.gang_identity import (
    NATIVE,
    Gang,
    GangRequirements,
    gang_of,
    group_label,
    requirements,
)
from gpufleet.scheduler.state.indexes import Key, by_age, discard


class GangIndex:
    """Finds gangs by pod and pods by gang; claims, pods and pods by claim belong to the ledger."""

    def __init__(
        self,
        claims: Mapping[Key, GpuClaim],
        pods: Mapping[str, Pod],
        by_claim: Mapping[Key, set[str]],
    ) -> None:
        self._claims = claims
        self._pods = pods
        self._by_claim = by_claim
        self.groups: dict[Key, PodGroup] = {}
        self.native_groups: dict[Key, PodGroup] = {}
        """Native PodGroups, as PodGroups."""
        self._gang_refs: dict[Key, str] = {}
        self._claims_of: dict[Key, set[str]] = {}
        self._by_group: dict[Key, set[str]] = {}

    # -- changes ---------------------------------------------------------------------------

    def put_claim(self, claim: GpuClaim) -> None:
        """Index a claim by its `gangRef`."""
        key = (claim.metadata.namespace, claim.metadata.name)
        self.drop_claim(key)
        if claim.spec.gang_ref:
            self._gang_refs[key] = claim.spec.gang_ref
            self._claims_of.setdefault((key[0], claim.spec.gang_ref), set()).add(key[1])

    def drop_claim(self, key: Key) -> None:
        """Remove a claim."""
        if (name := self._gang_refs.pop(key, "")) != "":
            discard(self._claims_of, (key[0], name), key[1])

    def put_pod(self, pod: Pod) -> None:
        """Index a pod by the PodGroup that it names itself."""
        if name := group_label(pod):
            self._by_group.setdefault((pod.metadata.namespace, name), set()).add(pod.metadata.uid)

    def drop_pod(self, pod: Pod) -> None:
        """Remove a pod."""
        discard(self._by_group, (pod.metadata.namespace, group_label(pod)), pod.metadata.uid)

    def put_group(self, group: PodGroup) -> None:
        """Store a PodGroup."""
        self.groups[group.metadata.namespace, group.metadata.name] = group

    def put_native_group(self, group: NativePodGroup) -> None:
        """Store a native PodGroup; one without a gang policy needs one member."""
        gang = group.spec.scheduling_policy.gang
        size = PodGroupSpec(gang.min_count if gang is not None else 1)
        self.native_groups[group.metadata.namespace, group.metadata.name] = PodGroup(group.metadata, size)

    def drop_group(self, key: Key) -> None:
        """Remove a PodGroup."""
        self.groups.pop(key, None)

    def drop_native_group(self, key: Key) -> None:
        """Remove a native PodGroup."""
        self.native_groups.pop(key, None)

    # -- queries ---------------------------------------------------------------------------

    def of(self, pod: Pod) -> Gang | None:
        """Return the gang of a pod, if any."""
        claim = self._claims.get((pod.metadata.namespace, pod.metadata.annotations.get(CLAIM, "")))
        return gang_of(pod, claim, self.groups)

    def named(self, key: Key) -> set[Gang]:
        """Return the gangs whose members name them so."""
        return {gang for pod in self._naming(key) if (gang := self.of(pod)) is not None}

    def pods(self, gang: Gang) -> list[Pod]:
        """Return all known pods of the gang, finished and terminating ones too, oldest first."""
        pods = [pod for pod in self._naming((gang.namespace, gang.name)) if self.of(pod) == gang]
        return sorted(pods, key=by_age)

    def members(self, gang: Gang) -> list[Pod]:
        """Return the running and pending pods of the gang, oldest first."""
        return [
            pod for pod in self.pods(gang) if not pod.finished and pod.metadata.deletion_timestamp is None
        ]

    def requirements(self, gang: Gang) -> GangRequirements | None:
        """Return the size of a gang; None if nothing defines it."""
        pods, key = self.pods(gang), (gang.namespace, gang.name)
        names = {(gang.namespace, pod.metadata.annotations.get(CLAIM, "")) for pod in pods}
        claims = [self._claims[name] for name in sorted(names) if name in self._claims]
        group = self.native_groups.get(key) if gang.scope == NATIVE else None
        if not gang.scope:
            group = self.groups.get(key)
        return requirements(group, pods, claims)

    def _naming(self, key: Key) -> list[Pod]:
        uids = set(self._by_group.get(key, ()))
        for claim in self._claims_of.get(key, ()):
            uids |= self._by_claim.get((key[0], claim), set())
        return [self._pods[uid] for uid in uids]
