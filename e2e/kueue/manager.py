"""Run Kueue's manager as its chart installs it, for Jobs and plain pods.

The chart's objects are applied without its Deployment: the manager is a process of this machine with the token of its
service account. It makes its own certificates, as in a cluster; `_mount_certificate` does what a kubelet does with the
Secret. The API server reaches its webhooks through the network of the cluster.

    with Kueue(cluster, programs.find(print)) as kueue:
        kueue.quota("team-a", {"gpu.scheduling/gpu": 4})
        kueue.queue(namespace, "team-a")
"""

import base64
import json
import os
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import yaml

from e2e.cluster import Cluster, RequestFailed
from e2e.cluster.cluster import free_ports
from e2e.cluster.network import Backend
from e2e.cluster.rest import is_healthy
from e2e.kueue.programs import Programs

Json = dict[str, Any]
API = "/apis/kueue.x-k8s.io/v1beta2"
NAMESPACE = "kueue-system"
QUEUE_NAME = "kueue.x-k8s.io/queue-name"
PRIORITY = "kueue.x-k8s.io/priority-class"
FLAVOR = "any-node"
_LEFT_OUT = {"Deployment", "APIService"}
"""An APIService without a server behind it would block the deletion of every namespace."""


class Kueue:
    """A context manager that installs Kueue and removes it with its CRDs."""

    def __init__(self, cluster: Cluster, programs: Programs) -> None:
        self.cluster = cluster
        self._programs = programs
        self._directory = cluster.directory / "kueue"
        self._certificates = self._directory / "certificates"
        self._health, self._metrics, self._webhook = free_ports(3)

    # What an administrator writes

    def quota(self, name: str, amounts: Mapping[str, int], **spec: Any) -> None:
        """Create a ClusterQueue with these amounts of resources."""
        resources = [{"name": key, "nominalQuota": str(value)} for key, value in amounts.items()]
        group = {"coveredResources": list(amounts), "flavors": [{"name": FLAVOR, "resources": resources}]}
        spec = {"namespaceSelector": {}, "resourceGroups": [group], **spec}
        self.cluster.api.create(f"{API}/clusterqueues", _object("ClusterQueue", name, spec=spec))

    def queue(self, namespace: str, name: str) -> None:
        """Create a LocalQueue of that name, for the ClusterQueue of the same name."""
        body = _object("LocalQueue", name, spec={"clusterQueue": name})
        self.cluster.api.create(f"{API}/namespaces/{namespace}/localqueues", body)

    def priority(self, name: str, value: int) -> None:
        """Create a WorkloadPriorityClass."""
        body = _object("WorkloadPriorityClass", name, value=value)
        self.cluster.api.create(f"{API}/workloadpriorityclasses", body)

    def delete(self, plural: str, name: str) -> None:
        """Delete an object of the whole cluster."""
        self.cluster.api.delete(f"{API}/{plural}/{name}")

    # What can be observed

    def workload(self, namespace: str, owner: str) -> Json:
        """Return the Workload of a Job or pod, or an empty object."""
        items = self.cluster.api.get(f"{API}/namespaces/{namespace}/workloads")["items"]
        owners = {each["name"]: item for item in items for each in item["metadata"]["ownerReferences"]}
        found: Json = owners.get(owner, {})
        return found

    def condition(self, namespace: str, owner: str, kind: str) -> Json:
        """Return a condition of the Workload of a Job or pod, or an empty object."""
        conditions = self.workload(namespace, owner).get("status", {}).get("conditions", ())
        return next((each for each in conditions if each["type"] == kind), {})

    def is_admitted(self, namespace: str, owner: str) -> bool:
        """Return whether the Workload of a Job or pod is admitted."""
        return self.condition(namespace, owner, "Admitted").get("status") == "True"

    # Start and stop

    def start(self) -> None:
        """Install the chart's objects, start the manager and create a flavor."""
        shutil.rmtree(self._certificates, ignore_errors=True)  # of an earlier manager
        self._certificates.mkdir(parents=True)
        self.cluster.create_namespace(NAMESPACE)
        self._apply()
        account = self.cluster.service_account(NAMESPACE, "kueue-controller-manager")
        config = self._directory / "config.json"
        config.write_text(json.dumps(self._configuration()))
        self.manager = self.cluster.process(
            "kueue",
            [
                str(self._programs.manager),
                f"--config={config}",
                f"--kubeconfig={account.kubeconfig}",
                "--feature-gates=VisibilityOnDemand=false",
                "--zap-log-level=2",
            ],
            os.environ,
            self._is_ready,
        )
        service = self.cluster.api.get(f"/api/v1/namespaces/{NAMESPACE}/services/kueue-webhook-service")
        backend = Backend(self._webhook, self._is_ready)
        self.cluster.network.route(f"{service['spec']['clusterIP']}:443", [backend])
        self.manager.start(120)
        self._create_flavor()

    def stop(self) -> None:
        """Delete all queues and jobs in them while the manager can release them, then everything else."""
        if hasattr(self, "manager") and self.manager.running:
            for kinds in (
                "workloads,localqueues",
                "clusterqueues",
                "resourceflavors,workloadpriorityclasses",
            ):
                self.cluster.kubectl(
                    "delete", kinds, "--all", "--all-namespaces", "--timeout=240s", timeout=300
                )
        objects = self._objects()
        last = [each for each in objects if each["kind"] not in _WEBHOOKS]
        for some in ([each for each in objects if each["kind"] in _WEBHOOKS], last):
            self.cluster.kubectl(
                *("delete", "--ignore-not-found", "--timeout=60s", "-f", "-"),
                stdin=_text(some),
                timeout=120,
            )
        if hasattr(self, "manager"):
            self.manager.kill()
        self.cluster.api.delete(f"/api/v1/namespaces/{NAMESPACE}")

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _objects(self) -> list[Json]:
        text = self.cluster.helm("template", "kueue", str(self._programs.chart), namespace=NAMESPACE)
        found = [each for each in yaml.load_all(text, Loader=yaml.CSafeLoader) if each]
        return [each for each in found if each["kind"] not in _LEFT_OUT]

    def _apply(self) -> None:
        command = ("apply", "--server-side", "-f", "-")
        self.cluster.kubectl(*command, stdin=_text(self._objects()), timeout=120)

    def _configuration(self) -> Json:
        return {
            "apiVersion": "config.kueue.x-k8s.io/v1beta2",
            "kind": "Configuration",
            "namespace": NAMESPACE,
            "health": {"healthProbeBindAddress": f"127.0.0.1:{self._health}"},
            "metrics": {"bindAddress": f"127.0.0.1:{self._metrics}"},
            "webhook": {"host": "127.0.0.1", "port": self._webhook, "certDir": str(self._certificates)},
            "leaderElection": {"leaderElect": False},
            "integrations": {"frameworks": ["batch/job", "pod"]},
        }

    def _is_ready(self) -> bool:
        self._mount_certificate()
        return is_healthy(f"http://127.0.0.1:{self._health}/readyz")

    def _mount_certificate(self) -> None:
        """Write the Secret with the certificate to files, as a kubelet does."""
        if (self._certificates / "tls.crt").exists():
            return
        path = f"/api/v1/namespaces/{NAMESPACE}/secrets/kueue-webhook-server-cert"
        for name, value in (self.cluster.api.get(path).get("data") or {}).items():
            _replace(self._certificates / name, base64.b64decode(value))

    def _create_flavor(self) -> None:
        """Create the ResourceFlavor as soon as the webhook for it answers."""
        deadline = time.monotonic() + 30
        while True:
            try:
                self.cluster.api.create(f"{API}/resourceflavors", _object("ResourceFlavor", FLAVOR))
                return
            except RequestFailed as failure:
                if failure.status < 500 or time.monotonic() > deadline:
                    raise
            time.sleep(0.2)


_WEBHOOKS = {"MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"}


def _object(kind: str, name: str, **fields: Any) -> Json:
    return {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": kind, "metadata": {"name": name}, **fields}


def _replace(path: Path, content: bytes) -> None:
    partial = path.with_suffix(".partial")
    partial.write_bytes(content)
    partial.rename(path)


def _text(objects: list[Json]) -> str:
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": objects})
