"""GpuQueue: the share of the cluster's GPUs that a group of namespaces gets.

Administrators write the spec; the scheduler enforces it and writes the status. The scheduler's own form of the
spec, with which it computes, is `gpufleet.queueing.shares.quota.Quota`.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, ClassVar, Literal

from msgspec import Meta, field

from gpufleet.kubernetes.crds.schema import Rule
from gpufleet.kubernetes.objects import EMPTY, Fields, KubeObject

DEFAULT_QUEUE = "default"
"""The queue of namespaces that no GpuQueue names; a GpuQueue of this name configures it."""

Period = Literal["Day", "Week", "Month"]

_SET = {"x-kubernetes-list-type": "set"}

GpuNumber = Annotated[int, Meta(ge=0, lt=10_000_001)]


class ModelGuarantee(Fields, frozen=True):
    """GPUs of one model."""

    model: Annotated[
        str,
        Meta(
            description="GPU model in any spelling, such as H100 or NVIDIA-A100-SXM4-80GB. A short name stands for all of "
            "its forms.",
            min_length=1,
            max_length=100,
        ),
    ]
    gpus: Annotated[GpuNumber, Meta(description="Number of GPUs of this model.")]


class Guarantee(Fields, frozen=True):
    """GPUs that the queue gets whenever it needs them."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "!has(self.models) || self.models.map(each, each.gpus).sum() <= self.gpus",
            lambda guarantee: sum(each["gpus"] for each in guarantee.get("models", ())) <= guarantee["gpus"],
            "the GPUs of models are part of gpus and must not exceed it",
            "models",
        ),
    )

    gpus: Annotated[GpuNumber, Meta(description="Number of GPUs in all.")]
    models: Annotated[
        tuple[ModelGuarantee, ...],
        Meta(
            description="The part of gpus that must be of certain models; the rest may be of any.",
            max_length=32,
            extra_json_schema={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["model"]},
        ),
    ] = ()


class QueueLimit(Fields, frozen=True):
    """GPUs that the queue never exceeds."""

    gpus: Annotated[GpuNumber, Meta(description="Number of GPUs in all.")]


class Budget(Fields, frozen=True):
    """What the queue may use in a period, as accounting counts it."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "has(self.gpuHours) != has(self.cost)",
            lambda budget: ("gpuHours" in budget) != ("cost" in budget),
            "a budget is either in gpuHours or in cost",
            "gpuHours",
        ),
        Rule(
            "(!has(self.gpuHours) || self.gpuHours > 0.0) && (!has(self.cost) || self.cost > 0.0)",
            lambda budget: budget.get("gpuHours", 1) > 0 and budget.get("cost", 1) > 0,
            "a budget must be more than 0",
            "gpuHours",
        ),
    )

    gpu_hours: Annotated[float | None, Meta(description="GPU-hours per period.")] = None
    cost: Annotated[float | None, Meta(description="Cost per period, at the prices of accounting.")] = None
    period: Annotated[
        Period,
        Meta(description="Day, Week (from Monday) or Month, in UTC. The budget is renewed when it begins."),
    ] = "Month"
    hard: Annotated[
        bool,
        Meta(
            description="Whether running pods end when the budget is used up. Otherwise they run on, and new ones get "
            "only GPUs that no other queue waits for."
        ),
    ] = False


class NamespaceRequirement(Fields, frozen=True):
    """A requirement on a label of a namespace."""

    key: Annotated[str, Meta(description="Key of the label.", min_length=1, max_length=317)]
    operator: Annotated[
        Literal["In", "NotIn", "Exists", "DoesNotExist"],
        Meta(description="How the value of the label is compared with values."),
    ]
    values: Annotated[
        tuple[str, ...],
        Meta(description="Values, for In and NotIn.", max_length=100, extra_json_schema=_SET),
    ] = ()


class NamespaceSelector(Fields, frozen=True):
    """Selects namespaces by their labels; all requirements must be met."""

    match_labels: Annotated[Mapping[str, str], Meta(description="Labels that a namespace must have.")] = EMPTY
    match_expressions: Annotated[
        tuple[NamespaceRequirement, ...], Meta(description="Requirements on labels.", max_length=32)
    ] = ()


class QueueSpec(Fields, frozen=True):
    """The namespaces of the queue and what they get."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "!(has(self.namespaces) && has(self.namespaceSelector))",
            lambda spec: not ("namespaces" in spec and "namespaceSelector" in spec),
            "a queue has either namespaces or a namespaceSelector",
            "namespaceSelector",
        ),
        Rule(
            "!has(self.limit) || !has(self.guaranteed) || self.guaranteed.gpus <= self.limit.gpus",
            lambda spec: (
                "limit" not in spec
                or "guaranteed" not in spec
                or spec["guaranteed"]["gpus"] <= spec["limit"]["gpus"]
            ),
            "the guarantee must not exceed the limit",
            "limit",
        ),
    )

    namespaces: Annotated[
        tuple[Annotated[str, Meta(min_length=1, max_length=63)], ...],
        Meta(
            description="Names of the queue's namespaces. A namespace in several queues belongs to the oldest of them.",
            max_length=1000,
            extra_json_schema=_SET,
        ),
    ] = ()
    namespace_selector: Annotated[
        NamespaceSelector | None, Meta(description="Selects the queue's namespaces by their labels.")
    ] = None
    guaranteed: Annotated[
        Guarantee | None,
        Meta(
            description="GPUs that the queue gets whenever it needs them. While it does not, others may borrow them."
        ),
    ] = None
    limit: Annotated[QueueLimit | None, Meta(description="GPUs that the queue never exceeds.")] = None
    weight: Annotated[
        int,
        Meta(
            ge=1,
            le=10_000,
            description="The queue's part of the GPUs beyond the guarantees, relative to the weights of other queues.",
        ),
    ] = 1
    parent: Annotated[
        str,
        Meta(
            description="GpuQueue of the department that this queue belongs to. A department has no parent.",
            max_length=253,
        ),
    ] = ""
    budget: Annotated[Budget | None, Meta(description="What the queue may use in a period.")] = None


class QueueCondition(Fields, frozen=True):
    """A condition of the queue."""

    type: Annotated[
        str,
        Meta(
            description="Valid, NamespacesAssigned, QuotaApplies, UseCurrent or WithinBudget. True is the normal state."
        ),
    ]
    status: Annotated[Literal["True", "False", "Unknown"], Meta(description="True, False or Unknown.")]
    reason: Annotated[str, Meta(description="The reason in one word.")] = ""
    message: Annotated[str, Meta(description="The reason in a sentence.")] = ""
    last_transition_time: Annotated[datetime | None, Meta(description="Time of the last change.")] = None


class ModelUse(Fields, frozen=True):
    """GPUs of one model that the queue has now."""

    model: Annotated[str, Meta(description="GPU model.")]
    gpus: Annotated[float, Meta(description="Number of GPUs; parts of a GPU count as such.")]


class BudgetStatus(Fields, frozen=True):
    """How much of the budget is used."""

    used: Annotated[float, Meta(description="GPU-hours or cost since the period began.")] = 0.0
    total: Annotated[float, Meta(description="GPU-hours or cost per period.")] = 0.0
    percent: Annotated[int, Meta(description="Used part of the budget in percent.")] = 0
    renewed_at: Annotated[datetime | None, Meta(description="When the next period begins.")] = None


class QueueStatus(Fields, frozen=True):
    """The current use, written by the scheduler."""

    namespaces: Annotated[
        tuple[str, ...],
        Meta(description="Namespaces that belong to the queue.", extra_json_schema=_SET),
    ] = ()
    kueue_namespaces: Annotated[
        tuple[str, ...],
        Meta(
            description="Those of them in which Kueue's quotas apply, and those of the queue do not.",
            extra_json_schema=_SET,
        ),
    ] = ()
    used: Annotated[float, Meta(description="GPUs that pods of the queue have now.")] = 0.0
    guaranteed: Annotated[float, Meta(description="GPUs in use that are inside the queue's guarantee.")] = 0.0
    borrowed: Annotated[
        float, Meta(description="GPUs in use beyond the guarantee. Their owners may get them back.")
    ] = 0.0
    pending: Annotated[float, Meta(description="GPUs that waiting pods of the queue request.")] = 0.0
    share: Annotated[
        float, Meta(description="The queue's part of the recent use of all queues, from 0 to 1.")
    ] = 0.0
    half_life_seconds: Annotated[
        int | None,
        Meta(description="Seconds after which use counts half in the share (a setting of the scheduler)."),
    ] = None
    models: Annotated[
        tuple[ModelUse, ...],
        Meta(
            description="GPUs in use by model.",
            extra_json_schema={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["model"]},
        ),
    ] = ()
    budget: Annotated[BudgetStatus | None, Meta(description="How much of the budget is used.")] = None
    accounted_until: Annotated[
        datetime | None,
        Meta(
            description="Until when the use comes from the server's accounting; from then on the scheduler counts."
        ),
    ] = None
    conditions: Annotated[
        tuple[QueueCondition, ...],
        Meta(
            description="Conditions; True is the normal state.",
            extra_json_schema={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]},
        ),
    ] = ()


class GpuQueue(KubeObject, frozen=True, kw_only=True):
    """The share of the cluster's GPUs that a group of namespaces gets."""

    spec: Annotated[QueueSpec, Meta(description="The namespaces of the queue and what they get.")] = field(
        default_factory=QueueSpec
    )
    status: Annotated[QueueStatus, Meta(description="The current use, written by the scheduler.")] = field(
        default_factory=QueueStatus
    )
