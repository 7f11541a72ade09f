"""What GPU usage is broken down by, what it costs, and how long it is kept."""

from dataclasses import dataclass

from gpufleet.runtime.settings.field import setting
from gpufleet.runtime.settings.prices import Price


@dataclass(frozen=True)
class AccountingSettings:
    """What GPU usage is broken down by, what it costs, and how long it is kept."""

    label_keys: tuple[str, ...] = setting((), "Labels of pods and workloads to break statistics down by.")
    annotation_keys: tuple[str, ...] = setting(
        (),
        "Annotations to break statistics and reports down by; others that gpufleet does not read are not kept.",
    )
    excluded_namespaces: tuple[str, ...] = setting(
        (), "Namespaces that count for the cluster but get no statistics of their own."
    )
    prices: tuple[Price, ...] = setting((), "Price of one GPU for one hour, by GPU model, source and date.")
    currency: str = setting(
        "", "Unit of prices and costs, such as EUR; shown with every cost. None: costs have no unit."
    )
    snapshot_period: float = setting(
        300.0, "Time between snapshots; must divide an hour.", unit="s", minimum=10, maximum=3600
    )
    snapshot_retention: float = setting(30 * 86400.0, "How long snapshots are kept.", unit="s", minimum=7200)
    workload_retention: float = setting(
        400 * 86400.0, "How long hourly statistics of workloads are kept.", unit="s", minimum=86400
    )
    hour_retention: float = setting(
        1100 * 86400.0,
        "How long hourly statistics of clusters, namespaces and labels, and daily reports are kept.",
        unit="s",
        minimum=86400,
    )
    holding_retention: float = setting(
        100 * 86400.0,
        "How long allocation periods are kept; older hours can't be computed again.",
        unit="s",
        minimum=86400,
    )
    ended_retention: float = setting(
        400 * 86400.0, "How long ended workloads are kept.", unit="s", minimum=86400
    )


@dataclass(frozen=True)
class ReportSettings:
    """Usage reports that are sent by the webhook and mail of `[alerts]`."""

    schedule: str = setting(
        "never",
        "How often reports are sent: about the last day, the last week (on Mondays) or the last month (on the first).",
        choices=["never", "daily", "weekly", "monthly"],
    )
    hour: int = setting(6, "Hour of the day in UTC at which they are sent.", minimum=0, maximum=23)
    group_by: str = setting(
        "namespace",
        "What they are grouped by: namespace, workload, label:KEY or annotation:KEY.",
    )
    dashboard: str = setting(
        "", "Address of the dashboard for the link in reports, such as https://gpufleet.example.com."
    )
