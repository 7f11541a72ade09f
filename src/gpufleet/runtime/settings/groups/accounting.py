"""What is read from training jobs, and how the use of GPUs is accounted for."""

from dataclasses import dataclass

from gpufleet.runtime.settings.field import setting


@dataclass(frozen=True)
class TrainingSettings:
    """How the logs of training jobs are read."""

    patterns: tuple[str, ...] = setting(
        (),
        "Further lines to read numbers from: regular expressions whose named groups are metrics, "
        "such as `^update (?P<step>\\d+) xent=(?P<loss>[\\d.]+)`.",
    )


@dataclass(frozen=True)
class AccountingSettings:
    """What the use of GPUs is broken down by, what it costs, and how long it is kept."""

    label_keys: tuple[str, ...] = setting((), "Labels of pods and workloads that statistics are kept by.")
    annotation_keys: tuple[str, ...] = setting((), "Annotations that statistics are kept by.")
    excluded_namespaces: tuple[str, ...] = setting(
        (), "Namespaces that count in the cluster and have no statistics of their own."
    )
    missing_value: str = setting("(none)", "Value of a label for those who don't have it.")
    prices: dict[str, float] = setting({}, "Price of one GPU for one hour, by GPU model.")
    snapshot_period: float = setting(
        300.0, "Time between snapshots; a whole part of an hour.", unit="s", minimum=10, maximum=3600
    )
    snapshot_retention: float = setting(30 * 86400.0, "How long snapshots are kept.", unit="s", minimum=7200)
    workload_retention: float = setting(
        400 * 86400.0, "How long the hours of workloads are kept.", unit="s", minimum=86400
    )
    hour_retention: float = setting(
        1100 * 86400.0,
        "How long the hours of clusters, namespaces and labels, and the days of reports are kept.",
        unit="s",
        minimum=86400,
    )
    holding_retention: float = setting(
        100 * 86400.0,
        "How long is known who held which GPU when; older hours can't be computed again.",
        unit="s",
        minimum=86400,
    )
    ended_retention: float = setting(
        400 * 86400.0, "How long workloads are kept that are over.", unit="s", minimum=86400
    )
