"""GpuQueues of the teams of a simulated fleet, sized by its number of GPUs.

The demo's scheduler computes their statuses. The simulation binds its own pods, so these follow no guarantee; pods of
users do.
"""

import random

from gpufleet.demo.objects.identities import Json, timestamp
from gpufleet.demo.simulation.hardware import BUILT, new_uid

_SCIENCE = "science"


def gpu_queues(gpus: int) -> list[Json]:
    """Return a department with three queues, and three queues of their own."""

    def guaranteed(percent: int) -> Json:
        return {"gpus": max(1, gpus * percent // 100)}

    return [
        _queue(_SCIENCE, [], weight=4),
        _queue("nlp", ["nlp-research"], weight=2, parent=_SCIENCE, guaranteed=guaranteed(15)),
        _queue("vision", ["vision"], weight=2, parent=_SCIENCE, guaranteed=guaranteed(15)),
        _queue("speech", ["speech"], parent=_SCIENCE, guaranteed=guaranteed(8)),
        _queue(
            "recsys",
            ["recsys-prod"],
            weight=2,
            guaranteed=guaranteed(10),
            budget={"cost": 180.0 * gpus, "period": "Month"},
        ),
        _queue("robotics", ["robotics"], budget={"gpuHours": 12.0 * gpus, "period": "Week"}),
        _queue("platform", ["ml-platform"], limit={"gpus": max(8, gpus * 30 // 100)}),
    ]


def _queue(name: str, namespaces: list[str], **spec: object) -> Json:
    uid = new_uid(random.Random(f"{name}/queue"))  # noqa: S311  (a simulation, no secret)
    return {
        "apiVersion": "gpu.scheduling/v1",
        "kind": "GpuQueue",
        "metadata": {"name": name, "uid": uid, "creationTimestamp": timestamp(BUILT)},
        "spec": {"namespaces": namespaces, **spec},
    }
