"""The PromQL that a dialect is asked with.

Values are always aggregated by the few labels that tell GPUs apart: a pod that shares a GPU
makes a series of its own, and full label sets make answers several times larger. DCGM's
blanks (9.2e18 and up), NaN and +Inf are dropped on the far side already, so that a blank
never hides the value of a second metric.
"""

from collections.abc import Collection, Iterable, Sequence

from gpufleet.exporters.detection import DetectedExporter
from gpufleet.exporters.known_exporters import FaultMetric, Metric
from gpufleet.exporters.prometheus.promql import by, either, names_selector, one_of, without
from gpufleet.model.reading import Quantity

_PRESENCE = (Quantity.UTILIZATION, Quantity.MEMORY_USED, Quantity.TEMPERATURE)
_JOB_LABELS = ("hpc_job", "job_id")
_POD_LABELS = ("namespace", "pod", "container")


def presence_metrics(dialect: DetectedExporter) -> list[str]:
    """Metrics of which every GPU has at least one."""
    if dialect.vocabulary.info:
        return [dialect.full(dialect.vocabulary.info)]
    chosen = [quantity for quantity in _PRESENCE if quantity in dialect.quantities]
    return [
        dialect.full(metric.name)
        for quantity in chosen or list(dialect.quantities)
        for metric in dialect.quantities[quantity]
    ]


def presence_query(dialect: DetectedExporter, labels: Iterable[str]) -> str:
    """Every GPU by these labels; the value is the time of its newest sample."""
    return by("max", labels, either(f"timestamp({name})" for name in presence_metrics(dialect)))


def value_queries(dialect: DetectedExporter, metrics: Sequence[Metric], keys: tuple[str, ...]) -> list[str]:
    """One query per metric of a quantity; a later one answers only for GPUs that the earlier lack."""
    plain = [_aggregated(dialect, metric, keys, "", 120.0) for metric in metrics]
    return [without(query, keys, plain[:place]) for place, query in enumerate(plain)]


def range_queries(
    dialect: DetectedExporter,
    metrics: Sequence[Metric],
    node_labels: tuple[str, ...],
    nodes: Collection[str] | None,
    step: float,
    later: int = 0,
) -> tuple[list[str], tuple[str, ...]]:
    """As `value_queries`, for some nodes (None: all) and with the labels that name a GPU; and those labels.

    Each time stands for the one `later` milliseconds after it.
    """
    vocabulary = dialect.vocabulary
    keys = (*node_labels, *(vocabulary.uuid if vocabulary.info else vocabulary.index), *vocabulary.partition)
    chosen = _node_matchers(node_labels, nodes)
    plain = [
        either(_aggregated(dialect, metric, keys, matcher, max(120.0, 2 * step), later) for matcher in chosen)
        for metric in metrics
    ]
    queries = [without(query, keys, plain[:place]) for place, query in enumerate(plain)]
    if not vocabulary.info:
        return queries, keys
    return [_with_index(dialect, query, later) for query in queries], (*keys, *vocabulary.index)


def holder_query(dialect: DetectedExporter, keys: tuple[str, ...]) -> str:
    """Who uses each GPU: pods and jobs.

    Where the scrape adds its target's own `pod`, a series of an idle GPU carries the exporter's
    pod, which `up` of that target carries as well: such series name no holder.
    """
    if dialect.vocabulary.name not in ("gpufleet", "dcgm", "amd"):
        return ""
    any_of = f"__name__=~{one_of(presence_metrics(dialect))}"

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


def fault_query(dialect: DetectedExporter, metric: FaultMetric, keys: tuple[str, ...]) -> str:
    """The GPUs that a metric says something is wrong with."""
    labels = [*keys, *([metric.code_label] if metric.code_label else []), "severity"]
    condition = "== 0" if metric.zero_is_bad else "> 0"
    operator = "min" if metric.zero_is_bad else "max"
    return by(operator, labels, names_selector(dialect.matching(metric.name))) + " " + condition


def process_query(dialect: DetectedExporter, field: str, keys: tuple[str, ...]) -> str:
    """One field of the processes; the labels `keys` tell processes and their GPUs apart."""
    return by("max", keys, dialect.processes[field])


def _aggregated(
    dialect: DetectedExporter,
    metric: Metric,
    keys: Iterable[str],
    matcher: str,
    window: float,
    later: int = 0,
) -> str:
    series = dialect.full(metric.name) + (f"{{{matcher}}}" if matcher else "")
    if metric.counter:
        return by("sum", keys, f"rate({series}[{window:.0f}s]{_offset(later)})")
    return by("max", keys, f"{series}{_offset(later)} < 9.2e18")


def _offset(later: int) -> str:
    return f" offset -{later}ms" if later else ""


def _node_matchers(labels: Iterable[str], nodes: Collection[str] | None) -> list[str]:
    if nodes is None:
        return [""]
    host = one_of(nodes)
    address = one_of(nodes, before=r"\[?", after=r"\]?(:[0-9]+)?")
    return [f"{label}=~{address if label.endswith('instance') else host}" for label in labels]


def _with_index(dialect: DetectedExporter, query: str, later: int) -> str:
    vocabulary = dialect.vocabulary
    on, more = ", ".join(vocabulary.uuid), ", ".join(vocabulary.index)
    info = by("group", (*vocabulary.uuid, *vocabulary.index), dialect.full(vocabulary.info) + _offset(later))
    return f"({query}) * on ({on}) group_left ({more}) ({info})"
