"""gpufleet top, driven with keys in a terminal without a screen."""

import re
from typing import Any, cast

import pytest
from tests.waiting import wait_until
from textual.pilot import Pilot
from textual.widgets import Input, Static

from gpufleet.cli import main
from gpufleet.client import AsyncClient, types
from gpufleet.client.call import Call
from gpufleet.client.errors import ServerUnreachable
from gpufleet.terminal.top.app import Top
from gpufleet.terminal.top.history import History, sparkline
from gpufleet.terminal.top.rows_view import RowsView

NODES = 50
GPUS = 8


class Fleet:
    """What a server would return for 50 nodes with 8 GPUs each."""

    def __init__(self) -> None:
        self.down = False
        self.calls: list[str] = []

    async def overview(self) -> types.ClusterOverview:
        self.calls.append("overview")
        if self.down:
            raise ServerUnreachable("no answer from http://fleet: Connection refused")
        return types.ClusterOverview(
            total_nodes=NODES,
            healthy_nodes=NODES,
            faulty_nodes=0,
            fully_idle_nodes=0,
            partially_idle_nodes=NODES,
            busy_nodes=0,
            allocation_rate=0.5,
            utilization=0.25,
            storage_stat=cast(Any, None),
            rdma_cluster_stat=cast(Any, None),
            total_gpus=NODES * GPUS,
            allocated_gpus=NODES * GPUS // 2,
            schedulable_gpus=NODES * GPUS,
            schedulable_allocated_gpus=NODES * GPUS // 2,
            measured_gpus=NODES * GPUS,
            idle_gpus=0,
        )

    async def gpu_map(self, *, quantity: str) -> types.GpuMap:
        self.calls.append(quantity)
        gpus = NODES * GPUS
        return types.GpuMap(
            quantity=quantity,
            unit="%",
            taken_at=0.0,
            nodes=[f"n-{node:02}" for node in range(NODES)],
            counts=[GPUS] * NODES,
            models=["NVIDIA_H100_80GB_HBM3", "AMD_Instinct_MI300X_OAM"],
            model_of=[0] * (NODES - 1) + [1],
            indexes=list(range(GPUS)) * NODES,
            values=[gpu * 100 // gpus for gpu in range(gpus)],
            marks="hf" * (gpus // 2),
            islands="0" * gpus,
        )

    async def nodes(self) -> Any:
        self.calls.append("nodes")
        for node in range(NODES):
            yield types.NodeRow(
                name=f"n-{node:02}",
                source="k8s",
                state="partial",
                ready=True,
                cordoned=False,
                fault="",
                gpu_total=8,
                gpu_allocated=node % 8,
                gpu_model="NVIDIA_H100_80GB_HBM3",
                utilization=node / NODES,
            )

    async def node(self, name: str) -> types.NodeDetail:
        self.calls.append(name)
        gpu = types.NodeGpu(
            index=0, uuid="u", model="NVIDIA_H100", vendor="nvidia", island="", bandwidth_gbps=0
        )
        return cast(types.NodeDetail, type("Detail", (), {"gpus": [gpu]}))

    async def consumers(self) -> Any:
        stat = types.ConsumerStat(gpu_request=8, gpu_utilization=0.5)
        yield types.Consumer(
            kind="Job", name="train", namespace="ml", uid="1", stat=stat, pods=None, source="k8s"
        )

    async def workloads(self, *, status: str) -> Any:
        assert status == "Pending"
        yield types.WorkloadRow(
            kind="Job",
            name="waits",
            namespace="ml",
            uid="2",
            gpu_allocated=0,
            gpu_allocation={},
            status="Pending",
            status_color="yellow",
            start_at=0,
            end_at=0,
            source="k8s",
            claims=["waits"],
        )

    async def get(self, call: Call[types.QueuePage]) -> types.QueuePage:
        assert call.path == "/api/queue"
        estimate = types.StartEstimate(
            position=1,
            waits_for="8 free GPUs",
            expected_start="2126-11-01T00:00:00Z",
            earliest_start=None,
            latest_start=None,
        )
        return types.QueuePage(
            data=[types.QueuedUnit(namespace="ml", name="waits", claims=["waits"], gpus=8, estimate=estimate)]
        )


@pytest.fixture
def fleet() -> Fleet:
    return Fleet()


def app_of(fleet: Fleet, interval: float = 60.0) -> Top:
    return Top(cast(AsyncClient, fleet), interval)


def names(app: Top) -> list[str]:
    table = app.query_one(RowsView)
    return [table.columns[0].cell(row) for row in table.rows]


def line(app: Top, selector: str) -> str:
    return str(app.query_one(selector, Static).content)


async def shown(pilot: Pilot[None], count: int) -> None:
    """Wait until the table has `count` rows."""
    app = cast(Top, pilot.app)
    await wait_until(lambda: len(app.query_one(RowsView).rows) == count)


@pytest.mark.parametrize(("key", "rows"), [("1", 2), ("2", NODES), ("3", NODES * GPUS), ("4", 1), ("5", 1)])
async def test_every_view_has_its_rows_in_80_columns(fleet: Fleet, key: str, rows: int) -> None:
    app = app_of(fleet)
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press(key)
        await shown(pilot, rows)
        assert f"[{key} " in line(app, "#tabs")
        assert line(app, "#summary").startswith("50 nodes: 0 busy, 50 partial")
        assert "200 of 400 GPUs held" in line(app, "#summary")
        table = app.query_one(RowsView)
        assert all(table.render_line(y).cell_length == table.size.width for y in range(table.size.height))


async def test_the_queue_shows_when_a_workload_is_expected_to_start(fleet: Fleet) -> None:
    app = app_of(fleet)
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("5")
        await shown(pilot, 1)
        table = app.query_one(RowsView)
        [column] = [each for each in table.columns if each.header == "STARTS-IN"]
        assert re.fullmatch(r"~\d+y.*", column.cell(table.rows[0]))


async def test_rows_are_sorted_reversed_and_filtered(fleet: Fleet) -> None:
    app = app_of(fleet)
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("2")
        await shown(pilot, NODES)
        assert names(app) == sorted(names(app))
        await pilot.press("r")
        assert names(app) == sorted(names(app), reverse=True)
        await pilot.press("s", "s", "s", "s")
        assert app.orders[1] == "HELD"
        values = [row.gpu_allocated for row in app.query_one(RowsView).rows]
        assert values == sorted(values)
        await pilot.press("f", "n", "-", "0", "enter")
        assert len(names(app)) == 10
        assert "filter: n-0" in line(app, "#status")
        await pilot.press("escape")
        assert len(names(app)) == NODES


async def test_a_search_moves_the_cursor_and_scrolls_to_it(fleet: Fleet) -> None:
    app = app_of(fleet)
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("2")
        await shown(pilot, NODES)
        await pilot.press("slash", *"n-4", "enter")
        table = app.query_one(RowsView)
        assert names(app)[table.cursor] == "n-40"
        await pilot.press("n")
        assert names(app)[table.cursor] == "n-41"
        await pilot.pause()
        assert table.scroll_offset.y <= 41 < table.scroll_offset.y + table.size.height
        await pilot.press("slash", *"zzz", "enter", "n")
        assert names(app)[table.cursor] == "n-41"


async def test_enter_shows_the_gpus_of_a_node_and_escape_leaves(fleet: Fleet) -> None:
    app = app_of(fleet)
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("2")
        await shown(pilot, NODES)
        await pilot.press("down", "enter")
        await shown(pilot, 1)
        assert "[n-01]" in line(app, "#tabs")
        assert "n-01" in fleet.calls
        await pilot.press("escape")
        await shown(pilot, NODES)


async def test_a_lost_server_is_reported_and_the_rows_stay(fleet: Fleet) -> None:
    app = app_of(fleet, interval=0.1)
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("2")
        await shown(pilot, NODES)
        fleet.down = True
        await wait_until(lambda: "no answer from http://fleet" in line(app, "#status"))
        assert len(names(app)) == NODES
        fleet.down = False
        await wait_until(lambda: "no answer" not in line(app, "#status"))


async def test_pause_stops_the_refresh(fleet: Fleet) -> None:
    app = app_of(fleet, interval=0.1)
    async with app.run_test(size=(80, 24)) as pilot:
        await shown(pilot, 2)
        await pilot.press("p")
        assert "paused" in line(app, "#status")
        await pilot.pause(0.2)
        calls = len(fleet.calls)
        await pilot.pause(0.4)
        assert len(fleet.calls) == calls
        await pilot.press("p")
        await wait_until(lambda: len(fleet.calls) > calls)


async def test_the_cursor_stays_on_its_row_when_the_order_changes(fleet: Fleet) -> None:
    app = app_of(fleet, interval=0.1)
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("2")
        await shown(pilot, NODES)
        await pilot.press("down", "down")
        seen = len(fleet.calls)
        await wait_until(lambda: len(fleet.calls) > seen + 4)
        assert names(app)[app.query_one(RowsView).cursor] == "n-02"


async def test_keys_typed_into_the_filter_choose_no_view(fleet: Fleet) -> None:
    app = app_of(fleet)
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("f", "3", "q")
        assert (app.current, app.query_one(Input).value) == (0, "3q")
        await pilot.press("escape", "3")
        assert app.current == 2


def test_a_trend_has_the_last_values() -> None:
    history = History(3)
    for value in (0.0, 0.25, None, 1.0):
        history.record([("a", value)])
    assert history.trend("a") == "▃ █"
    history.record([("b", 0.5)])
    assert history.trend("a") == ""
    assert sparkline([0.0, 0.5, 1.0, 7.0]) == "▁▅██"


def test_top_needs_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["top"]) == 1
    assert "top needs a terminal; use `gpufleet get` in scripts" in capsys.readouterr().err
