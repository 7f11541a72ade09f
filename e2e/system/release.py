"""Install, upgrade and remove a chart of this project with the real helm."""

import contextlib
import json
import time
from pathlib import Path
from typing import Any

import yaml

from e2e.cluster import Cluster
from e2e.cluster.errors import CommandFailed

CHARTS = Path(__file__).parents[2] / "charts"
CRDS = CHARTS / "gpu-scheduler" / "crds"
_KINDS = (
    "deployments,daemonsets,statefulsets,services,configmaps,secrets,serviceaccounts,roles,rolebindings,"
    "networkpolicies,poddisruptionbudgets"
)
_CLUSTER_KINDS = (
    "clusterroles,clusterrolebindings,mutatingwebhookconfigurations,validatingwebhookconfigurations,"
    "validatingadmissionpolicies,validatingadmissionpolicybindings,priorityclasses"
)


class Release:
    """One release, named after its chart as in the documentation."""

    def __init__(self, cluster: Cluster, chart: str, namespace: str) -> None:
        self.cluster, self.name, self.namespace = cluster, chart, namespace

    def install(self, values: dict[str, Any] | None = None, chart: Path | None = None) -> str:
        """Run `helm install` and return its output."""
        return self._apply("install", values, chart)

    def upgrade(self, values: dict[str, Any] | None = None, chart: Path | None = None) -> str:
        """Run `helm upgrade` and return its output."""
        return self._apply("upgrade", values, chart)

    def uninstall(self) -> str:
        """Run `helm uninstall` and return its output."""
        return self.cluster.helm("uninstall", self.name, namespace=self.namespace)

    def objects(self) -> list[dict[str, Any]]:
        """Return the objects that helm applied."""
        text = self.cluster.helm("get", "manifest", self.name, namespace=self.namespace)
        return [each for each in yaml.load_all(text, Loader=yaml.CSafeLoader) if each]

    def tests(self) -> list[dict[str, Any]]:
        """Return the pods that `helm test` would run."""
        text = self.cluster.helm("get", "hooks", self.name, namespace=self.namespace)
        found = [each for each in yaml.load_all(text, Loader=yaml.CSafeLoader) if each]
        return [each for each in found if each["metadata"]["annotations"]["helm.sh/hook"] == "test"]

    def remaining_objects(self) -> list[str]:
        """Return the existing objects with the release's label, such as `service/gpufleet`."""
        selection = ["-l", f"app.kubernetes.io/instance={self.name}", "-o", "name"]
        found = self.cluster.kubectl("get", _KINDS, *selection, namespace=self.namespace)
        return (found + self.cluster.kubectl("get", _CLUSTER_KINDS, *selection)).split()

    def _apply(self, verb: str, values: dict[str, Any] | None, chart: Path | None) -> str:
        arguments = [verb, self.name, str(chart or CHARTS / self.name), "--values", "-"]
        return self.cluster.helm(
            *arguments, namespace=self.namespace, stdin=json.dumps(values or {}), timeout=120
        )


def delete_crds(cluster: Cluster) -> None:
    """Delete the CRDs, which helm keeps, and with them every claim and GpuNodeStatus.

    The API server can lose a retry of its finalizer and would then wait for its next resync, minutes later:
    changing an annotation of a CRD makes it try again.
    """
    cluster.kubectl("delete", "--ignore-not-found", "--wait=false", "-f", str(CRDS))

    def deleted() -> bool:
        remaining = cluster.kubectl("get", "crds", "--ignore-not-found", "-o", "name").split()
        ours = [each for each in remaining if each.endswith(".gpu.scheduling")]
        for each in ours:
            annotation = f"e2e/deleting={time.monotonic()}"
            with contextlib.suppress(CommandFailed):  # it is gone meanwhile
                cluster.kubectl("annotate", "--overwrite", each, annotation)
        return not ours

    cluster.wait_for("the deletion of the CRDs", deleted, timeout=120, period=2)
