"""Repair hooks and tests: Jobs made from the templates of the chart.

A template is the manifest of a Job. The controller sets its name, namespace, labels and node, tolerates all taints, and
adds the variables `GPUFLEET_NODE` and `GPUFLEET_GPUS` (UUIDs, comma-separated) to every container. A Job runs once: its
name belongs to one step, and a Pod that fails is not repeated.
"""

import copy
from hashlib import sha1
from pathlib import Path
from typing import Any

import yaml

from gpufleet.errors import SettingsError
from gpufleet.kubernetes.annotations import REPAIR_LABEL
from gpufleet.kubernetes.objects import Job
from gpufleet.repair.views import JOB_ABSENT, JOB_ACTIVE, JOB_FAILED, JOB_SUCCEEDED

HOOKS = ("prove", "reset", "reload-driver", "reboot", "vendor")
_KEPT = 86400
"""Seconds for which a finished Job and its log are kept."""


def load_templates(folder: Path | None) -> dict[str, dict[str, Any]]:
    """Return the templates by hook; those without a file are left out."""
    found: dict[str, dict[str, Any]] = {}
    for hook in HOOKS if folder is not None else ():
        file = Path(folder or ".") / f"{hook}.yaml"
        if not file.exists():
            continue
        try:
            template = yaml.safe_load(file.read_text())
        except (OSError, yaml.YAMLError) as error:
            raise SettingsError(f"the Job template {file} can't be read: {error}") from error
        if not isinstance(template, dict) or template.get("kind") != "Job":
            raise SettingsError(f"the Job template {file} is not a Job")
        found[hook] = template
    return found


def node_hash(node: str) -> str:
    """Return a label value for the node, whose name may be too long for one."""
    return sha1(node.encode()).hexdigest()[:16]  # noqa: S324


def render(
    template: dict[str, Any], name: str, namespace: str, node: str, gpus: tuple[str, ...]
) -> dict[str, Any]:
    """Return the manifest of the Job for one step."""
    job = copy.deepcopy(template)
    label = {REPAIR_LABEL: node_hash(node)}
    meta = job.setdefault("metadata", {})
    meta.update(name=name, namespace=namespace)
    meta["labels"] = {**meta.get("labels", {}), **label}
    meta["annotations"] = {**meta.get("annotations", {}), "gpu.scheduling/node": node}
    spec = job.setdefault("spec", {})
    spec.update(backoffLimit=0, completions=1, parallelism=1)
    spec.setdefault("ttlSecondsAfterFinished", _KEPT)
    pod = spec.setdefault("template", {})
    pod_meta = pod.setdefault("metadata", {})
    pod_meta["labels"] = {**pod_meta.get("labels", {}), **label}
    pod_spec = pod.setdefault("spec", {})
    # Not through a scheduler: the node is tainted, and no other will do.
    pod_spec.update(nodeName=node, restartPolicy="Never", tolerations=[{"operator": "Exists"}])
    variables = [
        {"name": "GPUFLEET_NODE", "value": node},
        {"name": "GPUFLEET_GPUS", "value": ",".join(gpus)},
    ]
    for container in pod_spec.get("containers", ()):
        container["env"] = [*container.get("env", ()), *variables]
    return job


def state_of(job: Job | None) -> str:
    """Return whether the Job is absent, active, succeeded or failed."""
    if job is None:
        return JOB_ABSENT
    ended = {each.type for each in job.status.conditions if each.status == "True"}
    if "Complete" in ended:
        return JOB_SUCCEEDED
    return JOB_FAILED if "Failed" in ended else JOB_ACTIVE
