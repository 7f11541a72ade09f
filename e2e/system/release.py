"""A chart of this project on the cluster: installed, upgraded and removed by the real helm, as users do."""

import json
from pathlib import Path
from typing import Any

import yaml

from e2e.cluster import Cluster

CHARTS = Path(__file__).parents[2] / "charts"
CRDS = CHARTS / "gpu-scheduler" / "crds"
_KINDS = (
    "deployments,daemonsets,statefulsets,services,configmaps,secrets,serviceaccounts,roles,rolebindings,"
    "networkpolicies,poddisruptionbudgets"
)
_WIDE_KINDS = (
    "clusterroles,clusterrolebindings,mutatingwebhookconfigurations,validatingwebhookconfigurations,"
    "priorityclasses"
)


class Release:
    """One release; its name is the chart's, as in the documents."""

    def __init__(self, cluster: Cluster, chart: str, namespace: str) -> None:
        self.cluster, self.name, self.namespace = cluster, chart, namespace

    def install(self, values: dict[str, Any] | None = None, chart: Path | None = None) -> str:
        """`helm install`; what it printed."""
        return self._apply("install", values, chart)

    def upgrade(self, values: dict[str, Any] | None = None, chart: Path | None = None) -> str:
        """`helm upgrade`; what it printed."""
        return self._apply("upgrade", values, chart)

    def uninstall(self) -> str:
        """`helm uninstall`; what it printed."""
        return self.cluster.helm("uninstall", self.name, namespace=self.namespace)

    def objects(self) -> list[dict[str, Any]]:
        """What helm applied."""
        text = self.cluster.helm("get", "manifest", self.name, namespace=self.namespace)
        return [each for each in yaml.load_all(text, Loader=yaml.CSafeLoader) if each]

    def tests(self) -> list[dict[str, Any]]:
        """The pods that `helm test` would run."""
        text = self.cluster.helm("get", "hooks", self.name, namespace=self.namespace)
        found = [each for each in yaml.load_all(text, Loader=yaml.CSafeLoader) if each]
        return [each for each in found if each["metadata"]["annotations"]["helm.sh/hook"] == "test"]

    def remaining_objects(self) -> list[str]:
        """Objects with the release's label that are there, such as `service/gpufleet`."""
        words = ["-l", f"app.kubernetes.io/instance={self.name}", "-o", "name"]
        found = self.cluster.kubectl("get", _KINDS, *words, namespace=self.namespace)
        return (found + self.cluster.kubectl("get", _WIDE_KINDS, *words)).split()

    def _apply(self, verb: str, values: dict[str, Any] | None, chart: Path | None) -> str:
        words = [verb, self.name, str(chart or CHARTS / self.name), "--values", "-"]
        return self.cluster.helm(
            *words, namespace=self.namespace, stdin=json.dumps(values or {}), timeout=120
        )


def remove_definitions(cluster: Cluster) -> None:
    """Delete the CRDs, which helm leaves, and with them every claim and report."""
    cluster.kubectl("delete", "--ignore-not-found", "--timeout=60s", "-f", str(CRDS), timeout=90)
