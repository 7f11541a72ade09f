"""Estimates of start times in the server: what survives a restart, and units of a namespace with a GpuQueue."""

import json
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import pytest
from msgspec import convert
from tests.scheduler.simulation import Simulation, Unit
from tests.simulation.test_ledger_replay import period

from gpufleet.errors import StoreUnavailable
from gpufleet.estimates.calibration import FEWEST
from gpufleet.estimates.fleet_state import WaitingUnit
from gpufleet.estimates.run_times import Job
from gpufleet.estimates.starts import StartEstimates
from gpufleet.kubernetes.crds.gpu_queue import GpuQueue
from gpufleet.model.periods import AllocationPeriod
from gpufleet.scheduler.state import Ledger
from gpufleet.server import start_times
from gpufleet.server.start_times import StartTimes, learn
from gpufleet.store import Store

HOUR = 3600


@pytest.fixture(autouse=True)
def always_refreshed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Estimate again with every question."""
    monkeypatch.setattr(start_times, "REFRESH_S", -1.0)
    monkeypatch.setattr(start_times, "TOO_OLD_S", -1.0)
    monkeypatch.setattr(start_times, "REST", 0)


@pytest.fixture
async def store(store: Store) -> AsyncIterator[Store]:
    """The store of the leader, which saves the calibration."""
    async with store.leadership("accounting"):
        yield store


def serving(simulation: Simulation, store: Store, *queues: GpuQueue) -> StartTimes:
    """The estimates of a server that has just started."""

    async def ledger() -> Ledger:
        return simulation.scheduler.ledger

    async def periods(start: float, end: float, limit: int) -> list[AllocationPeriod]:
        return []

    return StartTimes("prod", ledger, periods, store.start_calibrations, lambda: queues)


def end_first(simulation: Simulation) -> None:
    """End what runs, and let the next units start."""
    for uid in list(simulation.ends):
        simulation._end(uid)
    simulation.plan()


async def stored(store: Store) -> list[Any]:
    text = await store.start_calibrations.load("prod")
    assert text is not None
    found: list[Any] = json.loads(text)["made"]
    return found


async def test_a_server_that_restarts_goes_on_with_the_errors_of_its_estimates(store: Store) -> None:
    simulation = Simulation({"a": FEWEST})
    simulation.arrive(Unit(0, FEWEST, HOUR, declared=HOUR))
    for _ in range(FEWEST + 2):
        simulation.arrive(Unit(0, 1, HOUR, declared=HOUR))
    simulation.plan()
    first = serving(simulation, store)
    assert len(await first.queue()) == FEWEST + 2
    end_first(simulation)
    assert len(await first.queue()) == 2
    known = first._estimates.calibration
    assert known.quantiles(0.0) != type(known)().quantiles(0.0), "the errors of the starts count"

    second = serving(simulation, store)
    await second.queue()
    restored = second._estimates.calibration
    assert restored.quantiles(0.0) == known.quantiles(0.0)
    assert restored.encode() == known.encode()


async def test_a_unit_that_starts_while_no_server_runs_is_compared_with_its_estimate(store: Store) -> None:
    simulation = Simulation({"a": 1})
    for _ in range(3):
        simulation.arrive(Unit(0, 1, HOUR, declared=HOUR))
    simulation.plan()
    await serving(simulation, store).queue()
    assert [made["error"] for _, made in await stored(store)] == [None, None]
    end_first(simulation)
    await serving(simulation, store).queue()
    errors = [made["error"] for _, made in await stored(store)]
    assert (errors[0] is None, errors[1] is None) == (False, True)


async def test_a_calibration_of_another_version_is_ignored(store: Store) -> None:
    await store.start_calibrations.save("prod", b'{"something": "else"}')
    simulation = Simulation({"a": 1})
    for _ in range(2):
        simulation.arrive(Unit(0, 1, HOUR, declared=HOUR))
    simulation.plan()
    assert len(await serving(simulation, store).queue()) == 1
    assert len(await stored(store)) == 1


def gpu_queue(name: str, spec: dict[str, Any], **status: Any) -> GpuQueue:
    body = {"metadata": {"name": name}, "spec": spec, "status": {"namespaces": [name], **status}}
    return convert(body, GpuQueue)


async def test_namespaces_of_kueue_come_first_and_have_no_limit(store: Store) -> None:
    simulation = Simulation({"a": 4})
    for namespace in ("owner", "owner", "free", "limited"):
        simulation.arrive(Unit(0, 4, HOUR, declared=HOUR, namespace=namespace))
    simulation.plan()
    times = serving(
        simulation,
        store,
        gpu_queue("owner", {"guaranteed": {"gpus": 4}}),
        gpu_queue(
            "limited", {"limit": {"gpus": 2}}, namespaces=["limited", "free"], kueueNamespaces=["limited"]
        ),
    )
    order = [namespace for namespace, *_ in await times.queue()]
    assert order[0] == "limited"
    unit = WaitingUnit("", Job(gpus=4.0), 4000)
    assert await times.refusal(unit, "limited") == ""
    assert await times.refusal(unit, "free") == "a higher limit of queue limited, 2 GPUs now"
    found = await times.hypothetical(unit, "limited")
    assert (found.position, found.expected is None) == (2, False)


async def test_a_hard_budget_that_has_ended_its_units_is_used_up_before_100_percent(store: Store) -> None:
    simulation = Simulation({"a": 4})
    times = serving(
        simulation,
        store,
        gpu_queue(
            "poor",
            {"budget": {"gpuHours": 10, "hard": True}},
            budget={"percent": 98, "used": 9.8},
            conditions=[{"type": "WithinBudget", "status": "False"}],
        ),
    )
    assert await times.refusal(WaitingUnit("", Job(), 1000), "poor") == "the next budget of queue poor"


async def test_a_hypothetical_unit_has_the_place_of_its_namespace(store: Store) -> None:
    simulation = Simulation({"a": 4})
    simulation.arrive(Unit(0, 4, HOUR, declared=HOUR, namespace="greedy"))
    for _ in range(5):
        simulation.arrive(Unit(0, 4, HOUR, declared=HOUR, namespace="greedy"))
    simulation.plan()
    used_up = {"period": "Month", "percent": 100, "used": 10.0}
    times = serving(
        simulation,
        store,
        gpu_queue("greedy", {}, used=4, share=1.0),
        gpu_queue("owner", {"guaranteed": {"gpus": 4}}),
        gpu_queue("small", {"limit": {"gpus": 2}}),
        gpu_queue("poor", {"budget": {"gpuHours": 10, "hard": True}}, budget=used_up),
    )
    unit = WaitingUnit("", Job(gpus=4.0), 4000)

    anywhere, greedy, owner = [
        await times.hypothetical(unit, namespace) for namespace in ("", "greedy", "owner")
    ]
    assert (anywhere.position, greedy.position, owner.position) == (6, 6, 1)
    assert owner.expected is not None
    assert greedy.expected is not None
    assert owner.expected < 60 < greedy.expected, "it reclaims its guarantee at once"
    other = await times.hypothetical(unit, "somewhere")
    assert other.position == 1, (
        "a namespace without a queue belongs to the default one, which has used nothing"
    )

    small = await times.hypothetical(unit, "small")
    assert (small.expected, small.waits_for) == (None, "a higher limit of queue small, 2 GPUs now")
    poor = await times.hypothetical(unit, "poor")
    assert (poor.expected, poor.waits_for) == (None, "the next budget of queue poor")
    assert await times.refusal(unit, "owner") == ""
    impossible = await times.hypothetical(WaitingUnit("", Job(gpus=8.0), 8000), "owner")
    assert (impossible.expected, impossible.waits_for) == (
        None,
        "a node with 8 GPUs; there is none, not counting GPUs that are faulty, cordoned, split by MIG or held by pods without a claim",
    )


async def test_a_unit_that_has_arrived_since_the_last_simulation_gets_its_estimate_at_once(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(start_times, "REFRESH_S", 1000.0)
    monkeypatch.setattr(start_times, "NEW_UNIT_S", -1.0)
    simulation = Simulation({"a": 1})
    simulation.arrive(Unit(0, 1, HOUR, declared=HOUR))
    times = serving(simulation, store)
    assert await times.queue() == []
    simulation.arrive(Unit(0, 1, HOUR, declared=HOUR))
    by_claim, by_pod = await times.of_claim("ns", "u00001"), await times.of_pod("ns", "u00001-0")
    assert by_claim is not None
    assert by_pod is not None
    assert by_claim.position == by_pod.position == 1
    assert await times.of_pod("ns", "u00000-0") is None, "it runs"


async def test_without_the_store_a_unit_has_no_estimate(store: Store) -> None:
    simulation = Simulation({"a": 1})

    async def ledger() -> Ledger:
        return simulation.scheduler.ledger

    async def periods(start: float, end: float, limit: int) -> list[AllocationPeriod]:
        raise StoreUnavailable("down")

    times = StartTimes("prod", ledger, periods, store.start_calibrations)
    assert await times.of_claim("ns", "u00000") is None


def test_the_run_time_of_a_gang_is_learned_once_for_all_of_its_gpus() -> None:
    estimates = StartEstimates()
    learn(
        estimates,
        [
            period("gang.0", 8, 100.0, 400.0, 900.0, 0.0),
            period("gang.1", 8, 101.0, 401.0, 910.0, 0.0),
            period("runs.0", 8, 100.0, 400.0, 0.0, 0.0),
            period("earlier.0", 8, 100.0, 400.0, 450.0, 0.0),
        ],
        500.0,
        1000.0,
    )
    times = estimates.run_times
    assert times.count == 1
    found = times.sample([Job("train", "ml", 16.0)], [0.0], 50, np.random.default_rng(1))
    assert np.median(found) == pytest.approx(510.0, rel=0.1)
