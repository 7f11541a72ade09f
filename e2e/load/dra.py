"""The load test in mode `dra`: the same pods with ResourceClaims allocated by kube-scheduler, and by gpufleet.

In both runs all pods and their ResourceClaims exist before any scheduler starts. In the second run gpufleet's scheduler
and kube-scheduler start at the same time, so that kube-scheduler first tries many pods in vain, as in a busy cluster.
"""

import sys
import threading
from typing import Any

import yaml

from e2e.cluster.cluster import free_ports
from e2e.cluster.rest import is_healthy
from e2e.load.measures import seconds_by_phase
from e2e.load.run import CHART, CLAIMS, GPUS, PODS, TIMEOUT, Load, Outcome
from e2e.node.resource_claims import API, DRIVER, resource_slice
from gpufleet.kubernetes import KubeClient
from gpufleet.kubernetes.annotations import CLAIM
from gpufleet.kubernetes.resource_claims import DEVICE_CLASS, POD_CLAIM, template_name
from gpufleet.scheduler.delivery.mode import template

RESOURCE_CLAIMS = f"{API}/namespaces/default/resourceclaims"
TEMPLATES = f"{API}/namespaces/default/resourceclaimtemplates"
PLAIN_CLASS = "gpus"
Json = dict[str, Any]


class DraLoad(Load):
    """Creates nodes with ResourceSlices, and pods with ResourceClaims."""

    def prepare(self) -> None:
        """Create the nodes, their slices, and both classes and their templates."""
        super().prepare()
        for name, expression in ((PLAIN_CLASS, f"device.driver == '{DRIVER}'"), (DEVICE_CLASS, "false")):
            spec = {"selectors": [{"cel": {"expression": expression}}]}
            self.cluster.api.create(f"{API}/deviceclasses", {"metadata": {"name": name}, "spec": spec})
        plain: Any = template("plain", self.gpus)
        plain["spec"]["spec"]["devices"]["requests"][0]["exactly"]["deviceClassName"] = PLAIN_CLASS
        del plain["metadata"]["labels"]
        for each in (plain, template(template_name(self.gpus), self.gpus), template(template_name(16), 16)):
            self.cluster.api.create(TEMPLATES, each)

    def by_kube_scheduler(self) -> Outcome:
        """Measure kube-scheduler with pods whose ResourceClaims it allocates itself."""
        outcome = Outcome("kube-scheduler allocates")
        self._create_pods(self.pods, "plain", "plain", None)
        self._wait_for_claims(self.pods)
        components = {"kube-scheduler": self.cluster.scheduler}
        since = self.cluster.audit_size()
        self._measure(outcome, since, components, lambda: self._start_scheduler({}))
        outcome.double_allocated = self._count_double_allocated()
        self._clear()
        self.cluster.wait_for("no claims", lambda: not self._claims(), timeout=TIMEOUT, period=0.5)
        return outcome

    def by_gpufleet(self) -> Outcome:
        """Measure plain kube-scheduler with pods whose ResourceClaims gpufleet allocates."""
        outcome = Outcome("gpufleet allocates")
        self._create_pods(self.pods, "claims", template_name(self.gpus), self.gpus)
        self._create_pods(self.unfit, "unfit", template_name(2 * GPUS), 2 * GPUS)
        self._wait_for_claims(self.pods + self.unfit)
        [port] = free_ports(1)
        command = [sys.executable, "-m", "gpufleet", "scheduler", "--port", str(port), "--delivery", "dra"]
        account = self._account(self._rendered())
        environment = {**self.cluster.commands.environment(), "KUBECONFIG": str(account)}
        ready = f"http://127.0.0.1:{port}/readyz"
        allocator = self.cluster.process(
            "gpufleet scheduler", command, environment, lambda: is_healthy(ready)
        )

        def start() -> None:
            starting = threading.Thread(target=allocator.start)
            starting.start()
            self._start_scheduler({})
            starting.join()

        components = {"kube-scheduler": self.cluster.scheduler, "gpufleet scheduler": allocator}
        try:
            self._measure(outcome, self.cluster.audit_size(), components, start)
            outcome.phases = seconds_by_phase(f"http://127.0.0.1:{port}/metrics")
            self._wait_for_statuses(outcome)
            outcome.double_allocated = self._count_double_allocated()
        finally:
            allocator.stop()
        return outcome

    def _rendered(self) -> list[Json]:
        text = self.cluster.helm("template", "gpu-scheduler", str(CHART), "--set", "delivery=dra")
        return [each for each in yaml.safe_load_all(text) if each]

    def _create_pods(self, number: int, name: str, template: str, count: int | None) -> None:
        """Create pods as the webhook leaves them; with `count`, each has a GpuClaim."""

        async def one(client: KubeClient, at: int) -> None:
            pod = f"{name}-{at}"
            if count is not None:
                meta = {"name": pod}
                body = {"apiVersion": "gpu.scheduling/v1", "kind": "GpuClaim", "metadata": meta}
                await client.write_json("POST", CLAIMS, {**body, "spec": {"devices": {"count": count}}})
            await client.write_json("POST", PODS, _pod(pod, template, pod if count is not None else ""))

        self._do(lambda client: self._each(range(number), lambda at: one(client, at)))

    def _wait_for_claims(self, number: int) -> None:
        self.cluster.wait_for(
            "ResourceClaims", lambda: len(self._claims()) >= number, timeout=TIMEOUT, period=1.0
        )

    def _claims(self) -> list[Json]:
        found: list[Json] = self.cluster.api.get(RESOURCE_CLAIMS)["items"]
        return found

    def _count_double_allocated(self) -> int:
        """Count the devices in the allocations of more than one claim."""
        seen: dict[tuple[str, str], int] = {}
        for claim in self._claims():
            allocation = claim.get("status", {}).get("allocation", {})
            for result in allocation.get("devices", {}).get("results", ()):
                device = (result["pool"], result["device"])
                seen[device] = seen.get(device, 0) + 1
        return sum(number > 1 for number in seen.values())

    async def _add_node(self, client: KubeClient, at: int) -> None:
        await super()._add_node(client, at)
        body = resource_slice(f"node-{at}", {gpu: f"GPU-{gpu}" for gpu in range(GPUS)})
        await client.write_json("POST", f"{API}/resourceslices", body)


def _pod(name: str, template: str, claim: str) -> Json:
    resources = {"requests": {"cpu": "1"}, "claims": [{"name": POD_CLAIM}]}
    return {
        "metadata": {"name": name, "annotations": {CLAIM: claim} if claim else {}},
        "spec": {
            "terminationGracePeriodSeconds": 0,
            "resourceClaims": [{"name": POD_CLAIM, "resourceClaimTemplateName": template}],
            "containers": [{"name": "main", "image": "trainer", "resources": resources}],
        },
    }
