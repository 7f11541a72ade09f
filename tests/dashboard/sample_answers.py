"""Fixed answers of the accounting, queue and repair APIs, for pictures of the pages that show them."""

import math
import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import msgspec
from playwright.sync_api import Page, Route

from gpufleet.accounting.report import Report, period_of, report
from gpufleet.accounting.report_series import report_series, step_of
from gpufleet.model.hours import GPU_HOUR, KILOWATT_HOUR
from gpufleet.model.statistics import UsageAmount, UsageSum, UsageTotals
from gpufleet.server.routes.accounting import aggregation, forecast
from gpufleet.server.routes.accounting.report import WasteRow
from gpufleet.server.routes.platform.auth import Me
from gpufleet.server.routes.scheduling import claims, fault_costs, faults, fit, queues, waiting

NOW = datetime(2026, 3, 18, 10, 30, tzinfo=UTC)
TEAMS = {"research": 90, "vision": 60, "platform": 34, "speech": 25, "agents": 12}
_SEVERITIES: tuple[faults.SeverityName, ...] = ("Unhealthy", "Degraded", "Warning")
_CAPACITY = 256
_PRICE = 3.5
_KILOWATT = 0.6


def answer_with_samples(page: Page) -> None:
    """Answer the requests of a page with samples, and let its clock stand still."""
    page.clock.set_fixed_time(NOW)
    for path, data in _answers().items():
        _answer(page, path, data)
    page.route(re.compile(r"/api/v1/gpu-aggregation/report\?"), _answer_report)


def _answer(page: Page, path: str, data: object) -> None:
    body = msgspec.json.encode({"data": data})
    page.route(
        re.compile(rf"/{path}(\?|$)"),
        lambda route: route.fulfill(content_type="application/json", body=body),
    )


def _answer_report(route: Route) -> None:
    found = re.search(r"period=([\d-]+)\.\.([\d-]+)", route.request.url)
    assert found, route.request.url
    made = sample_report(f"{found[1]}..{found[2]}")
    route.fulfill(content_type="application/json", body=msgspec.json.encode({"data": made}))


def sample_report(period: str, teams: Mapping[str, int] = TEAMS) -> Report:
    """Return a report whose teams use their GPUs in daily waves."""
    days = period_of(period)
    hours = range(days.first, min(days.after, int(NOW.timestamp()) // 3600))
    use = {team: {hour: _amount(team, gpus, hour) for hour in hours} for team, gpus in teams.items()}
    groups = [_sum(team, list(amounts.values())) for team, amounts in use.items()]
    groups.sort(key=lambda group: -group.allocated)
    whole = {hour: _added([amounts[hour] for amounts in use.values()]) for hour in hours}
    every = _added(list(whole.values()))
    totals = UsageTotals(
        hours=len(hours),
        capacity=len(hours) * _CAPACITY * GPU_HOUR,
        allocated=every.allocated,
        idle=every.allocated // 12,
        utilization=68.4,
        cost=every.cost,
        energy=every.energy,
    )
    made = report("prod", days, "namespace", totals, groups, currency="USD")
    held = {("", "", team, ""): amounts for team, amounts in use.items()}
    lines = report_series(step_of(days.after - days.first), whole, groups[:7], held)
    return msgspec.structs.replace(made, series=lines)


def _amount(team: str, gpus: int, hour: int) -> UsageAmount:
    used = gpus * (0.8 + 0.2 * math.sin(hour * math.pi / 12 + len(team)))
    energy = int(used * _KILOWATT * KILOWATT_HOUR)
    return UsageAmount(int(used * GPU_HOUR), Decimal(f"{used * _PRICE:.4f}"), energy)


def _added(amounts: list[UsageAmount]) -> UsageAmount:
    return UsageAmount(
        sum(each.allocated for each in amounts),
        sum((each.cost for each in amounts), Decimal(0)),
        sum(each.energy or 0 for each in amounts),
    )


def _sum(team: str, amounts: list[UsageAmount]) -> UsageSum:
    whole = _added(amounts)
    idle = whole.allocated // (8 + len(team))
    return UsageSum(
        name=team,
        allocated=whole.allocated,
        idle=idle,
        cost=whole.cost,
        energy=whole.energy,
        utilization=50.0 + 4 * len(team),
    )


def _answers() -> dict[str, object]:
    """Return the data by path, as a regular expression."""
    findings = [_finding(number) for number in range(6)]
    pending = [_claim(number) for number in range(5)]
    leases = [_lease(number) for number in range(20)]
    return {
        "auth/me": Me(None, None, None, None, "none"),
        "api/forecast": forecast.Forecast([_forecast("")] + [_forecast(team) for team in TEAMS]),
        "api/v1/gpu-aggregation/waste": aggregation.page_of([_waste(at) for at in range(6)], 6, 1, 10),
        "api/queues": queues.QueueList([_queue(at, team) for at, team in enumerate(TEAMS)], len(TEAMS)),
        "api/queue": waiting.QueuePage([_unit(number) for number in range(9)]),
        "api/queue/fit": fit.FitAnswer(
            False, 0, "0/24 nodes fit: 24 have fewer than 8 free GPUs", [], 0,
            {"have fewer than 8 free GPUs": 24}, ["wait until pod research/llama-pretrain-0 ends"], _estimate(3),
        ),
        "api/claims": claims.ClaimPage(pending, len(pending)),
        "api/leases": claims.LeasePage(leases, 120),
        "api/findings": faults.FindingPage(findings, len(findings)),
        "api/repairs": faults.RepairPage([_repair(number) for number in range(5)], 5, 24, 2, 1),
        "api/repairs/costs": _costs(),
    }  # fmt: skip


def _ago(hours: float) -> datetime:
    return NOW - timedelta(hours=hours)


def _forecast(team: str) -> forecast.GroupForecast:
    gpus = TEAMS.get(team, sum(TEAMS.values()))
    first = NOW.replace(minute=0)
    points = []
    for hour in range(14 * 24):
        expected = gpus * (0.85 + 0.15 * math.sin(hour * math.pi / 12))
        spread = 0.1 * gpus * (1 + hour / 200)
        points.append(
            forecast.ForecastPoint(
                first + timedelta(hours=hour), expected, max(expected - spread, 0.0), expected + spread
            )
        )
    return forecast.GroupForecast(team, points, None if team else _CAPACITY, None, None, None, None)


def _waste(number: int) -> WasteRow:
    hours = 120.0 / (number + 1)
    return WasteRow(
        namespace=list(TEAMS)[number % len(TEAMS)],
        workload_name=f"notebook-{number}",
        workload_type="StatefulSet",
        owner_uid=f"wl-{number:05d}",
        idle_gpu_hours=hours,
        allocated_gpu_hours=1.1 * hours,
        idle_share=90.9,
        avg_utilization=1.2,
        energy_kwh=0.1 * hours,
        idle_cost=_PRICE * hours,
        currency="USD",
    )


def _queue(number: int, team: str) -> queues.QueueRow:
    gpus = TEAMS[team]
    budget = queues.QueueBudget("cost", "Month", False, 100_000.0, 1000.0 * gpus, gpus, None)
    late = queues.QueueCondition("Ready", "False", "OverBudget", "90% of the budget is used")
    return queues.QueueRow(
        name=team,
        parent="",
        namespaces=[team, f"{team}-dev"],
        weight=1 + number % 2,
        guaranteed=16 * (4 - number) if number < 4 else 0,
        guaranteed_models={},
        limit=128 if number == 0 else None,
        used=float(gpus),
        used_guaranteed=float(min(gpus, 16)),
        borrowed=float(max(gpus - 64, 0)),
        pending=float(8 * number),
        share=gpus / sum(TEAMS.values()),
        models={},
        budget=budget if number < 3 else None,
        accounted_until=None,
        conditions=[late] if number == 0 else [],
        created_at=_ago(900),
    )


def _estimate(position: int) -> waiting.StartEstimate:
    hours = 0.7 * position
    times = (NOW + timedelta(hours=part * hours) for part in (1.0, 0.4, 1.9))
    return waiting.StartEstimate(position, "8 free GPUs of one node", *times)


def _unit(number: int) -> waiting.QueuedUnit:
    team = list(TEAMS)[number % len(TEAMS)]
    return waiting.QueuedUnit(team, f"{team}/train-{number}", [f"train-{number}"], 8.0, _estimate(number + 1))


def _claim(number: int) -> claims.ClaimRow:
    return claims.ClaimRow(
        namespace=list(TEAMS)[number],
        name=f"train-{number}",
        uid=f"claim-{number}",
        count=8,
        policy="Pack",
        exclusivity="Exclusive",
        gang=f"gang-{number}" if number < 3 else "",
        gang_size=4 if number < 3 else None,
        phase="Pending",
        node_name="",
        gpu_ids=[],
        allocated="",
        message="Pending: 0/24 nodes fit: 24 have fewer than 8 free GPUs",
        allocations=[],
        created_at=_ago(number + 1),
    )


def _lease(number: int) -> claims.LeaseRow:
    node, team = f"gpu-a{number // 8:05d}", list(TEAMS)[number % len(TEAMS)]
    holder = claims.LeaseHolder(f"pod-{number}", team, f"train-{number}-0", f"train-{number}", 1.0, [])
    return claims.LeaseRow(f"gpu-{node}-{number % 8}", node, number % 8, number == 3, [holder], _ago(number))


def _finding(number: int) -> faults.FindingRow:
    severity = _SEVERITIES[number % 3]
    message = {
        "Unhealthy": "XID 79: GPU has fallen off the bus",
        "Degraded": "PCIe link runs at x8 instead of x16",
        "Warning": "3 correctable ECC errors in an hour",
    }[severity]
    return faults.FindingRow(
        node=f"gpu-b{number:05d}",
        gpu=number,
        signal="xid-79",
        severity=severity,
        scope="gpu",
        message=message,
        action="drain",
        since=_ago(2 * number + 1),
        advice="Restart the node; replace the GPU if it happens again",
    )


def _repair(number: int) -> faults.RepairRow:
    phase = ("Draining", "Manual", "Testing", "Healthy", "Healthy")[number]
    earlier = [
        faults.EpisodeRow("xid-79", "GPU has fallen off the bus", 8, "NVIDIA H200", _ago(start), _ago(start - 30), [])
        for start in (140 + 60 * number, 400 + 50 * number)
    ]  # fmt: skip
    return faults.RepairRow(
        node=f"gpu-b{number:05d}",
        phase=phase,
        since=_ago(number + 1),
        message="" if phase == "Healthy" else "waits for 2 pods to end",
        cause="" if phase == "Healthy" else "xid-79",
        gpus=[] if phase == "Healthy" else [number],
        action="restart",
        attempts=1,
        passes=0,
        opened=None if phase == "Healthy" else _ago(20 + number),
        acknowledged_by="",
        silenced_until=None,
        steps=["10:02 tainted", "10:05 pods evicted"],
        history=earlier,
    )


def _costs() -> fault_costs.Costs:
    costliest = [
        fault_costs.CostlyFault(f"gpu-b{at:05d}", "NVIDIA H200", "xid-79", 8, _ago(200 + 60 * at), _ago(150), 240.0 - 40 * at)
        for at in range(5)
    ]  # fmt: skip
    return fault_costs.Costs(
        start=int(_ago(720).timestamp()),
        end=int(NOW.timestamp()),
        faults=13,
        open_faults=3,
        lost_gpu_hours=930.5,
        mean_hours_between_failures=1329.2,
        mean_hours_to_repair=6.5,
        by_cause={"xid-79": 620.0, "ecc": 210.5, "pcie": 100.0},
        by_node={f"gpu-b{at:05d}": 300.0 - 50 * at for at in range(5)},
        by_model={"NVIDIA H200": 800.5, "AMD Instinct MI300X": 130.0},
        costliest=costliest,
    )
