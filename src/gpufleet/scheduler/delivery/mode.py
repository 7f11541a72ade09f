"""Choose how pods get their GPUs, and keep the DeviceClass and the templates of mode `dra`.

The DeviceClass tells the webhook, if its setting is `auto`, that the scheduler has chosen `dra`. A cluster that once
delivers by ResourceClaims stays with it, also while its drivers are upgraded and publish nothing; to go back, set
`extender`.
"""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from gpufleet.errors import GpufleetError
from gpufleet.kubernetes import (
    DEVICE_CLASSES,
    RESOURCE_CLAIM_TEMPLATES,
    CacheChange,
    KubeClient,
    Reflector,
)
from gpufleet.kubernetes.annotations import SHARE
from gpufleet.kubernetes.client import patch
from gpufleet.kubernetes.client.errors import AlreadyExists, ObjectNotFound
from gpufleet.kubernetes.crds.gpu_claim import GpuClaim
from gpufleet.kubernetes.leases import LABELS
from gpufleet.kubernetes.objects import Pod
from gpufleet.kubernetes.resource_claims import (
    DEVICE_CLASS,
    GPU_DRIVERS,
    ResourceClaimTemplate,
    is_delivered_by_claim,
    template_name,
    template_of_claim,
)
from gpufleet.runtime.logs import RepeatedWarnings, get_logger
from gpufleet.scheduler.metrics import SchedulerMetrics
from gpufleet.scheduler.state import Ledger
from gpufleet.scheduler.state.indexes import Key

_log = get_logger("scheduler")

REASON = "gpu.scheduling/delivery-reason"
"""On the DeviceClass: why this mode was chosen."""

Kind = tuple[int, int | None]
"""The number of GPUs, and for Shared claims the part of each in thousandths."""

PERIOD = 5.0
BATCH_WINDOW = 0.05


@dataclass(frozen=True)
class Mode:
    """`dra` or `extender`, and why."""

    name: str
    why: str


def choose(setting: str, served: bool, drivers: set[str], chosen_before: bool) -> Mode:
    """Return the mode for a setting, whether ResourceClaims are served, and the drivers that publish devices."""
    gpu_drivers = ", ".join(sorted(drivers & GPU_DRIVERS))
    if setting != "auto":
        return Mode(setting, f"scheduler.delivery is {setting}")
    if not served:
        return Mode("extender", "the API server has no ResourceClaims (resource.k8s.io/v1), or denies them")
    if gpu_drivers:
        return Mode("dra", f"{gpu_drivers} publishes ResourceSlices")
    if chosen_before:
        return Mode("dra", f"DeviceClass {DEVICE_CLASS} exists")
    return Mode("extender", "no driver of GPUs publishes ResourceSlices")


class Delivery:
    """Applies the mode while leading; `run` it."""

    def __init__(
        self,
        client: KubeClient,
        ledger: Ledger,
        setting: str,
        templates: Reflector[ResourceClaimTemplate],
        metrics: SchedulerMetrics,
    ) -> None:
        self._client = client
        self._ledger = ledger
        self._setting = setting
        self._templates = templates
        self._metrics = metrics
        self._warnings = RepeatedWarnings(_log, client.timing.monotonic)
        self.served = False
        """Whether the server has ResourceClaims."""
        self.mode: Mode | None = None
        self._early: dict[Key, str] = {}
        """Templates that pods name because their GpuClaim did not exist when they were created, with the claim."""
        self._changed = asyncio.Event()

    def on_claims(self, changes: Sequence[CacheChange[GpuClaim]]) -> None:
        """Check the templates after claims have appeared, changed their GPUs, or gone."""
        for change in changes:
            before, after = change.before, change.after
            if before is None or after is None or _kind(before) != _kind(after):
                self._changed.set()

    def on_pods(self, changes: Sequence[CacheChange[Pod]]) -> None:
        """Note the templates of pods that were created before their claim."""
        for change in changes:
            pod = change.object
            for each in pod.spec.resource_claims if is_delivered_by_claim(pod) else ():
                name = each.resource_claim_template_name
                if not name.startswith(_EARLY):
                    continue
                if change.after is None or pod.spec.node_name:
                    self._early.pop((pod.metadata.namespace, name), None)
                else:
                    self._early[pod.metadata.namespace, name] = name.removeprefix(_EARLY)
                self._changed.set()

    async def run(self) -> None:
        """Keep class and templates until cancelled."""
        self.mode = None
        while True:
            try:
                await self.step()
                self._warnings.clear("")
            except GpufleetError as error:
                self._warnings.warn("", "delivery_not_prepared", error=str(error))
            with suppress(TimeoutError):
                async with asyncio.timeout(PERIOD):
                    await self._changed.wait()
            await asyncio.sleep(BATCH_WINDOW)
            self._changed.clear()

    async def step(self) -> None:
        """Choose the mode, and create or delete what it needs."""
        drivers = self._ledger.resource_claims.published.drivers()
        before = self.mode is not None and self.mode.name == "dra"
        if self._setting == "auto" and self.served and self.mode is None:
            before = await self._class_exists()
        mode = choose(self._setting, self.served, drivers, before)
        if self.mode is None or mode.name != self.mode.name:
            _log.info("delivery_chosen", mode=mode.name, why=mode.why)
            self._metrics.set_delivery(mode.name)
            if self.served:
                await self._apply_class(mode)
            self.mode = mode
        if self.served and mode.name == "dra":
            await self._keep_templates()

    async def _class_exists(self) -> bool:
        try:
            await self._client.get(DEVICE_CLASSES, DEVICE_CLASS)
        except ObjectNotFound:
            return False
        return True

    async def _apply_class(self, mode: Mode) -> None:
        if mode.name == "dra":
            meta = {"labels": dict(LABELS), "annotations": {REASON: mode.why}}
            spec = {"selectors": [{"cel": {"expression": "false"}}]}
            await self._client.patch(
                DEVICE_CLASSES, DEVICE_CLASS, patch.apply({"metadata": meta, "spec": spec})
            )
        elif self._setting == "extender":
            with suppress(ObjectNotFound):
                await self._client.delete(DEVICE_CLASSES, DEVICE_CLASS)

    async def _keep_templates(self) -> None:
        needed = self._needed()
        known = {(each.metadata.namespace, each.metadata.name) for each in self._templates.cache}
        for key in needed.keys() - known:
            await self._create(key, needed[key])
        for namespace, name in known - needed.keys():
            with suppress(ObjectNotFound):
                await self._client.delete(RESOURCE_CLAIM_TEMPLATES, name, namespace)

    def _needed(self) -> dict[Key, Kind]:
        """Return what each template is for: one for each number of GPUs and share that claims of a namespace have."""
        needed = {
            (namespace, template_name(*_kind(claim))): _kind(claim)
            for (namespace, _), claim in self._ledger.claims.items()
        }
        for (namespace, name), of in self._early.items():
            if (claim := self._ledger.claims.get((namespace, of))) is not None:
                needed[namespace, name] = _kind(claim)
        return needed

    async def _create(self, key: Key, kind: Kind) -> None:
        namespace, name = key
        with suppress(AlreadyExists, ObjectNotFound):  # the namespace may be gone
            await self._client.write_json(
                "POST", RESOURCE_CLAIM_TEMPLATES.path(namespace), template(name, *kind)
            )


def _kind(claim: GpuClaim) -> Kind:
    return claim.spec.devices.count, claim.spec.devices.shared_milli


def template(name: str, count: int, shared_milli: int | None = None) -> Mapping[str, Any]:
    """Return a template for `count` GPUs, or for this part of each, in thousandths."""
    request = {"name": "gpus", "exactly": {"deviceClassName": DEVICE_CLASS, "count": count}}
    meta: dict[str, Any] = {"labels": dict(LABELS)}
    if shared_milli is not None:
        meta["annotations"] = {SHARE: str(shared_milli)}
    return {
        "apiVersion": RESOURCE_CLAIM_TEMPLATES.api_version,
        "kind": RESOURCE_CLAIM_TEMPLATES.kind,
        "metadata": {"name": name, "labels": dict(LABELS)},
        "spec": {"metadata": meta, "spec": {"devices": {"requests": [request]}}},
    }


_EARLY = template_of_claim("")
