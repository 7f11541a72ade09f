"""Print the outcomes of scenarios side by side."""

from collections.abc import Sequence

from gpufleet.simulation.outcome import Outcome, summary
from gpufleet.simulation.unit import size_order


def table(outcomes: Sequence[Outcome]) -> str:
    """Return the figures of each scenario, and its waits by queue and by size, as text."""
    lines = [
        f"{'SCENARIO':<24} {'NODES':>6} {'ALLOCATION_%':>12} {'FRAGMENTED_%':>12} {'WAIT_MEAN':>9} {'MEDIAN':>9} {'P95':>9} "
        f"{'WAITING':>7} {'PREEMPTED':>9} {'FAILED':>6} {'COST':>12}"
    ]
    for outcome in outcomes:
        report = outcome.report()
        waits = report["wait_seconds"]
        lines.append(
            f"{outcome.scenario:<24} {outcome.nodes:>6} {outcome.allocation_percent:>12.2f} "
            f"{outcome.fragmentation_percent:>12.2f} {duration(waits['mean']):>9} {duration(waits['median']):>9} "
            f"{duration(waits['p95']):>9} {report['unstarted']:>7} {outcome.preemptions:>9} {outcome.failures:>6} "
            f"{outcome.cost:>12,.0f}"
        )
    for part, title in ((0, "QUEUE"), (1, "SIZE")):
        lines += ["", *_waits(outcomes, part, title)]
    return "\n".join(lines)


def duration(seconds: float) -> str:
    """Return a time span for readers: 42s, 2m10s, 12m, 3h20m, 2d4h."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 600 and whole % 60:
        return f"{whole // 60}m{whole % 60:02}s"
    if whole < 3600:
        return f"{whole // 60}m"
    if whole < 86400:
        return f"{whole // 3600}h{whole % 3600 // 60:02}m"
    return f"{whole // 86400}d{whole % 86400 // 3600}h"


def _waits(outcomes: Sequence[Outcome], part: int, title: str) -> list[str]:
    names = {key[part] for outcome in outcomes for key in outcome.waits}
    ordered = sorted(names, key=size_order) if part else sorted(names)
    head = " ".join(f"{name[:17]:>17}" for name in ordered)
    lines = [f"{'MEDIAN / P95 BY ' + title:<24} {head}"]
    for outcome in outcomes:
        cells = []
        for name in ordered:
            found = summary([w for key, waits in outcome.waits.items() if key[part] == name for w in waits])
            text = f"{duration(found['median'])} / {duration(found['p95'])}" if found["units"] else "-"
            cells.append(f"{text:>17}")
        lines.append(f"{outcome.scenario:<24} {' '.join(cells)}")
    return lines
