"""Keep DRA pods away from faulty GPUs of a vendor's driver, with DeviceTaintRules (resource.k8s.io).

ResourceSlices belong to the driver that publishes them, so a device of another driver is tainted with a rule that names
it. (The agent taints the devices of its own driver in its slices.) From policy `cordon` on, every published device of a
GPU that a repair is about has a rule, until the node is returned. A rule has a name that only its device has, and is
ours by its label: no other rule is changed. What is wanted follows from the GpuRepairs, so a process may be killed
between any two calls. Where the API server does not serve the kind, nothing is done.
"""

from collections.abc import Callable, Iterable
from hashlib import sha1
from typing import Any

from gpufleet.errors import KubernetesUnavailable
from gpufleet.kubernetes import GPU_REPAIRS, CacheChange, KubeClient
from gpufleet.kubernetes.claimed_gpus import DeviceName, find_gpu
from gpufleet.kubernetes.client.errors import AlreadyExists, Conflict, KubernetesRefused, ObjectNotFound
from gpufleet.kubernetes.crds.gpu_repair import GpuRepair
from gpufleet.kubernetes.objects import KubeObject
from gpufleet.repair.cluster_state import ClusterState
from gpufleet.repair.node_marks import TAINT
from gpufleet.repair.views import MANAGED_BY
from gpufleet.runtime.logs import RepeatedWarnings, get_logger

Audit = Callable[[str, str, str], None]
"""Takes an action, its target and the reason."""
_NODE = "gpu.scheduling/node"
_log = get_logger("repair")


class DeviceTaints:
    """Creates and deletes our rules."""

    def __init__(self, client: KubeClient, state: ClusterState, audit: Audit) -> None:
        self._client = client
        self._state = state
        self._audit = audit
        self._created: set[str] = set()
        """Names of rules that the watch may not show yet."""
        self._deleted: set[str] = set()
        """Uids of rules that the watch may still show."""
        self._warnings = RepeatedWarnings(_log, client.timing.monotonic)
        state.taint_rules.subscribe(self._on_rules)

    async def reconcile(self) -> None:
        """Compare the rules with what is wanted once."""
        if not self._state.taint_rules.state.synced:
            return
        wanted = self._wanted()
        out_of_service = {each.metadata.name for each in self._state.open_repairs()}
        rules = {rule.metadata.name: rule for rule in self._state.taint_rules.cache}
        for name, (repair, device) in wanted.items():
            if name not in rules and name not in self._created:
                await self._create(name, repair, device)
        for rule in rules.values():
            # A driver that restarts may have no slices for a while: the rule stays as long as the repair.
            if node_of(rule) not in out_of_service and rule.metadata.uid not in self._deleted:
                await self._delete(rule)

    def _wanted(self) -> dict[str, tuple[GpuRepair, DeviceName]]:
        """Return the devices to taint by the names of their rules."""
        found = {}
        for repair in self._state.open_repairs():
            node = repair.metadata.name
            report = self._state.reports.cache.get(node)
            gpus = report.status.devices if report else ()
            for published in self._state.published.on_node(node):
                match = find_gpu(published, gpus)
                if match is not None and match.gpu in repair.status.gpus:
                    found[rule_name(published.name)] = (repair, published.name)
        return found

    async def _create(self, name: str, repair: GpuRepair, device: DeviceName) -> None:
        rules = self._state.taint_rules.resource
        manifest = {"apiVersion": rules.api_version, "kind": rules.kind, **rule_for(name, repair, device)}
        try:
            await self._client.write_json("POST", rules.path(), manifest)
        except AlreadyExists:
            pass  # created before this process started, or not seen yet
        except (KubernetesUnavailable, KubernetesRefused) as error:
            self._warnings.warn(name, "device_not_tainted", device="/".join(device), error=str(error))
            return
        else:
            _log.info("device_tainted", node=repair.metadata.name, device="/".join(device), rule=name)
            self._audit("taint device", f"devicetaintrules/{name}", "/".join(device))
        self._created.add(name)

    async def _delete(self, rule: KubeObject) -> None:
        name, uid = rule.metadata.name, rule.metadata.uid
        try:
            await self._client.delete(self._state.taint_rules.resource, name, uid=uid)
        except (ObjectNotFound, Conflict):
            pass
        except (KubernetesUnavailable, KubernetesRefused) as error:
            self._warnings.warn(name, "device_taint_not_removed", rule=name, error=str(error))
            return
        else:
            _log.info("device_taint_removed", node=node_of(rule), rule=name)
            self._audit("remove taint of device", f"devicetaintrules/{name}", node_of(rule))
        self._deleted.add(uid)

    def _on_rules(self, changes: Iterable[CacheChange[KubeObject]]) -> None:
        for change in changes:
            self._created.discard(change.object.metadata.name)
            if change.after is None:
                self._deleted.discard(change.object.metadata.uid)


def rule_name(device: DeviceName) -> str:
    """Return the name of the rule of a device, which no other device has."""
    return f"gpufleet-{sha1('/'.join(device).encode()).hexdigest()[:20]}"  # noqa: S324


def node_of(rule: KubeObject) -> str:
    """Return the node of the device that one of our rules taints."""
    return rule.metadata.annotations.get(_NODE, "")


def rule_for(name: str, repair: GpuRepair, device: DeviceName) -> dict[str, Any]:
    """Return the rule that taints one device; it is garbage-collected with the GpuRepair."""
    meta = repair.metadata
    owner = {
        "apiVersion": GPU_REPAIRS.api_version,
        "kind": GPU_REPAIRS.kind,
        "name": meta.name,
        "uid": meta.uid,
    }
    return {
        "metadata": {
            "name": name,
            "labels": dict([MANAGED_BY]),
            "annotations": {_NODE: meta.name},
            "ownerReferences": [owner],
        },
        "spec": {
            "deviceSelector": {"driver": device.driver, "pool": device.pool, "device": device.device},
            "taint": {"key": TAINT.key, "value": TAINT.value, "effect": TAINT.effect},
        },
    }
