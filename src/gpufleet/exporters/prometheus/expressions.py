"""Build the PromQL expressions for one exporter.

Values are aggregated by the few labels that distinguish GPUs: each pod that shares a GPU adds a series,
and full label sets make responses several times larger. DCGM's "not supported" values (9.2e18 and up),
NaN and +Inf are dropped by the query, so that they never hide the value of a second metric.
"""

from collections.abc import Collection, Iterable, Sequence
from typing import Literal

from gpufleet.exporters.detection import DetectedExporter
from gpufleet.exporters.known_exporters import FaultMetric, Metric
from gpufleet.exporters.prometheus.promql import by, either, names_selector, one_of, without
from gpufleet.model.reading import Quantity

_PRESENCE = (Quantity.UTILIZATION, Quantity.MEMORY_USED, Quantity.TEMPERATURE)
Over = Literal["", "min", "max"]
_JOB_LABELS = ("hpc_job", "job_id")
_POD_LABELS = ("namespace", "pod", "container")


def presence_metrics(exporter: DetectedExporter) -> list[str]:
    """Return metrics of which every GPU has at least one."""
    if exporter.definition.info:
        return [exporter.full_name(exporter.definition.info)]
    chosen = [quantity for quantity in _PRESENCE if quantity in exporter.quantities]
    return [
        exporter.full_name(metric.name)
        for quantity in chosen or list(exporter.quantities)
        for metric in exporter.quantities[quantity]
    ]


def presence_query(exporter: DetectedExporter, labels: Iterable[str]) -> str:
    """Return a query for every GPU by these labels; the value is the time of its newest sample."""
    return by("max", labels, either(f"timestamp({name})" for name in presence_metrics(exporter)))


def value_queries(exporter: DetectedExporter, metrics: Sequence[Metric], keys: tuple[str, ...]) -> list[str]:
    """Return one query per metric of a quantity; a later one covers only GPUs that earlier ones lack."""
    plain = [_aggregated(exporter, metric, keys, "", 120.0) for metric in metrics]
    return [without(query, keys, plain[:number]) for number, query in enumerate(plain)]


def range_queries(
    exporter: DetectedExporter,
    metrics: Sequence[Metric],
    node_labels: tuple[str, ...],
    nodes: Collection[str] | None,
    step: float,
    later: int = 0,
    over: Over = "",
) -> tuple[list[str], tuple[str, ...]]:
    """Return queries like `value_queries` for some nodes (None: all), and the labels that identify a GPU.

    Values are those of `later` milliseconds after the evaluation time, or the extremes `over` the step
    before it. A metric that is a counter has no extremes, only its rate.
    """
    definition = exporter.definition
    keys = (*node_labels, *(definition.uuid if definition.info else definition.index), *definition.partition)
    chosen = _node_matchers(node_labels, nodes)
    plain = [
        either(
            _extreme(exporter, metric, keys, matcher, step, later, over)
            if over and not metric.counter
            else _aggregated(exporter, metric, keys, matcher, max(120.0, 2 * step), later)
            for matcher in chosen
        )
        for metric in metrics
    ]
    queries = [without(query, keys, plain[:number]) for number, query in enumerate(plain)]
    if not definition.info:
        return queries, keys
    return [_with_index(exporter, query, later) for query in queries], (*keys, *definition.index)


def holder_query(exporter: DetectedExporter, keys: tuple[str, ...]) -> str:
    """Return a query for the pods and jobs that use each GPU.

    If the scrape adds the `pod` of its target, series of idle GPUs have the exporter's own pod. `up` of
    that target has it, too, so such series are excluded.
    """
    if exporter.definition.name not in ("gpufleet", "dcgm", "amd"):
        return ""
    any_of = f"__name__=~{one_of(presence_metrics(exporter))}"

    def series(*matchers: str) -> str:
        return "{" + ",".join([any_of, *matchers]) + "}"

    exported = tuple(f"exported_{name}" for name in _POD_LABELS)
    uids = ("pod_uid", "exported_pod_uid")
    users = ("job_user", "exported_job_user")
    jobs = [f"{prefix}{name}" for name in _JOB_LABELS for prefix in ("", "exported_")]
    plain = series('pod!=""', 'exported_pod=""') + " unless on (job, instance, namespace, pod) up"
    return either(
        [
            by("group", (*keys, *exported, "namespace", "container", *uids), series('exported_pod!=""')),
            by("group", (*keys, *_POD_LABELS, *uids), plain),
            *(by("group", (*keys, job, *users), series(f'{job}!=""')) for job in jobs),
        ]
    )


def fault_query(exporter: DetectedExporter, metric: FaultMetric, keys: tuple[str, ...]) -> str:
    """Return a query for the GPUs for which a metric reports a fault."""
    labels = [*keys, *([metric.code_label] if metric.code_label else []), "severity"]
    condition = "== 0" if metric.zero_is_bad else "> 0"
    operator = "min" if metric.zero_is_bad else "max"
    return by(operator, labels, names_selector(exporter.matching(metric.name))) + " " + condition


def _aggregated(
    exporter: DetectedExporter,
    metric: Metric,
    keys: Iterable[str],
    matcher: str,
    window: float,
    later: int = 0,
) -> str:
    series = exporter.full_name(metric.name) + (f"{{{matcher}}}" if matcher else "")
    if metric.counter:
        return by("sum", keys, f"rate({series}[{window:.0f}s]{_offset(later)})")
    return by("max", keys, f"{series}{_offset(later)} < 9.2e18")


def _extreme(
    exporter: DetectedExporter,
    metric: Metric,
    keys: Iterable[str],
    matcher: str,
    step: float,
    later: int,
    over: Over,
) -> str:
    series = exporter.full_name(metric.name) + (f"{{{matcher}}}" if matcher else "")
    span = f"[{round(step * 1000)}ms]{_offset(later)}"
    return by(over, keys, f"{over}_over_time({series}{span}) < 9.2e18")


def _offset(later: int) -> str:
    return f" offset -{later}ms" if later else ""


def _node_matchers(labels: Iterable[str], nodes: Collection[str] | None) -> list[str]:
    if nodes is None:
        return [""]
    host = one_of(nodes)
    address = one_of(nodes, before=r"\[?", after=r"\]?(:[0-9]+)?")
    return [f"{label}=~{address if label.endswith('instance') else host}" for label in labels]


def _with_index(exporter: DetectedExporter, query: str, later: int) -> str:
    definition = exporter.definition
    on, more = ", ".join(definition.uuid), ", ".join(definition.index)
    info = by(
        "group", (*definition.uuid, *definition.index), exporter.full_name(definition.info) + _offset(later)
    )
    return f"({query}) * on ({on}) group_left ({more}) ({info})"
