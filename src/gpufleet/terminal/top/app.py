"""The application: keys, the refresh, and the lines above and below the table."""

import asyncio
import time
from collections import deque
from typing import Any

from textual.app import App, ComposeResult
from textual.binding import Binding
from textual.widgets import Input, Static

from gpufleet.client import AsyncClient, types
from gpufleet.client.errors import ApiError
from gpufleet.errors import GpufleetError
from gpufleet.terminal.columns import Column, number, percent, short_model
from gpufleet.terminal.top.history import sparkline
from gpufleet.terminal.top.rows_view import RowsView
from gpufleet.terminal.top.views import MapGpu, View, make_views

INTERVAL = 5.0
HELP = "1-5 view  Enter node  s/S sort  r reverse  f filter  / search  n next  p pause  q quit"
_TREND = 20


class Top(App[None]):
    """The fleet, refreshed every few seconds; keys as in top, less and k9s."""

    CSS = """
    Screen { layout: vertical; background: ansi_default; }
    #summary { height: 2; }
    #tabs { height: 1; }
    #status { height: 1; text-style: dim; }
    RowsView { height: 1fr; background: ansi_default; scrollbar-size-vertical: 1; }
    Input { height: 1; border: none; padding: 0; display: none; }
    Input.open { display: block; }
    """
    ENABLE_COMMAND_PALETTE = False
    BINDINGS = [  # noqa: RUF012  (textual reads it as a class variable)
        *(Binding(str(number), f"view({number - 1})", show=False) for number in range(1, 6)),
        Binding("tab", "next_view", show=False, priority=True),
        Binding("s", "sort(1)", show=False),
        Binding("S", "sort(-1)", show=False),
        Binding("r", "reverse", show=False),
        Binding("f", "ask('filter')", show=False),
        Binding("slash", "ask('search')", show=False),
        Binding("n", "find_next", show=False),
        Binding("p", "pause", show=False),
        Binding("question_mark,h", "toggle_help", show=False),
        Binding("escape", "leave", show=False, priority=True),
        Binding("q", "quit", show=False),
    ]

    def __init__(self, client: AsyncClient, interval: float = INTERVAL) -> None:
        super().__init__(ansi_color=True)
        self.views = make_views()
        self.current = 0
        self.orders = [view.sort for view in self.views]
        self.node = ""
        """The node whose GPUs are shown instead of a view."""
        self.table = RowsView()
        self._input = Input(compact=True)
        self._lines = {name: Static(id=name, markup=False) for name in ("summary", "tabs", "status")}
        self._client = client
        self._interval = interval
        self._asking = ""
        self._search = ""
        self._paused = False
        self._overview: types.ClusterOverview | None = None
        self._utilization: deque[float | None] = deque(maxlen=_TREND)
        self._allocation: deque[float | None] = deque(maxlen=_TREND)
        self._problem = ""
        self._updated = 0.0
        self._help = False
        self._wake = asyncio.Event()

    def compose(self) -> ComposeResult:
        """Lay out the screen."""
        yield self._lines["summary"]
        yield self._lines["tabs"]
        yield self.table
        yield self._input
        yield self._lines["status"]

    def on_mount(self) -> None:
        """Start to refresh."""
        self.animation_level = "none"
        self.table.focus()
        self._show_lines()
        self.run_worker(self._refresh_forever(), exclusive=True)

    @property
    def view(self) -> View:
        """The view that is shown."""
        return self.views[self.current]

    async def _refresh_forever(self) -> None:
        while True:
            self._wake.clear()
            if not self._paused:
                await self._refresh()
            try:
                await asyncio.wait_for(self._wake.wait(), self._interval)
            except TimeoutError:
                continue

    async def _refresh(self) -> None:
        view, node = self.view, self.node
        try:
            self._overview = await self._client.overview()
            rows = await node_gpus(self._client, node) if node else await view.rows(self._client)
        except GpufleetError as error:
            if isinstance(error, ApiError) and node and error.status == 404:
                self.node = ""
            self._problem = str(error)
            self._show_lines()
            return
        self._problem, self._updated = "", time.time()
        self._utilization.append(self._overview.utilization)
        self._allocation.append(self._overview.allocation_rate)
        if (view, node) == (self.view, self.node):  # the user may have changed it meanwhile
            columns = NODE_COLUMNS if node else view.columns
            key = _gpu_key if node else view.key
            order = "GPU" if node else self.orders[self.current]
            self.table.show(columns, rows, key, order)
        self._show_lines()

    def _show_lines(self) -> None:
        self._put("summary", summary(self._overview, self._allocation, self._utilization))
        names = [f"{place + 1} {view.title}" for place, view in enumerate(self.views)]
        shown = [
            f"[{name}]" if n == self.current and not self.node else f" {name} "
            for n, name in enumerate(names)
        ]
        self._put("tabs", " ".join(shown) + (f"  [{self.node}]" if self.node else ""))
        table = self.table
        parts = [
            self._problem
            or (time.strftime("%H:%M:%S", time.localtime(self._updated)) if self._updated else "…")
        ]
        parts.append(f"{len(table.rows):,} rows")
        parts += [f"filter: {table.filter}"] if table.filter else []
        parts += ["paused"] if self._paused else []
        self._put("status", HELP if self._help else "  ".join([*parts, "? keys"]))

    def _put(self, name: str, text: str) -> None:
        """Set a line, if it changes: an equal update would still draw it again."""
        line = self._lines[name]
        if str(line.content) != text:
            line.update(text)

    def action_view(self, place: int) -> None:
        """Show another view."""
        self.current, self.node = place, ""
        table = self.table
        table.show(self.view.columns, [], self.view.key, self.orders[place])
        table.action_edge(0)
        self._show_lines()
        self._wake.set()

    def action_next_view(self) -> None:
        """Show the next view."""
        self.action_view((self.current + 1) % len(self.views))

    def action_sort(self, step: int) -> None:
        """Sort by the next or the previous column."""
        if self.node:
            return
        headers = [column.header for column in self.view.columns if column.header != "TREND"]
        order = self.orders[self.current]
        place = (headers.index(order.lstrip("-")) + step) % len(headers)
        self._order(headers[place])

    def action_reverse(self) -> None:
        """Reverse the order."""
        order = self.orders[self.current]
        self._order(order[1:] if order.startswith("-") else f"-{order}")

    def _order(self, order: str) -> None:
        self.orders[self.current] = order
        self.table.set_order(order)
        self._show_lines()

    def action_ask(self, what: str) -> None:
        """Open the input for a filter or a search."""
        self._asking = what
        line = self._input
        line.placeholder = f"{what}: text in any column, Enter to apply"
        line.value = self.table.filter if what == "filter" else self._search
        line.add_class("open")
        line.focus()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Apply the filter or search for the text."""
        table = self.table
        if self._asking == "filter":
            table.set_filter(event.value.strip())
        else:
            self._search = event.value.strip()
            self.action_find_next()
        self._close_input()

    def _close_input(self) -> None:
        self._input.remove_class("open")
        self._asking = ""
        self.table.focus()
        self._show_lines()

    def action_find_next(self) -> None:
        """Move to the next row with the text of the search."""
        if self._search and not self.table.find(self._search):
            self._put("status", f"not found: {self._search}")

    def action_pause(self) -> None:
        """Stop or continue to refresh."""
        self._paused = not self._paused
        self._show_lines()
        self._wake.set()

    def action_toggle_help(self) -> None:
        """Show or hide the keys."""
        self._help = not self._help
        self._show_lines()

    def action_leave(self) -> None:
        """Close the input, else the node, else drop the filter."""
        table = self.table
        if self._asking:
            self._close_input()
        elif self.node:
            self.action_view(self.current)
        elif table.filter:
            table.set_filter("")
            self._show_lines()

    def on_rows_view_selected(self, event: RowsView.Selected) -> None:
        """Show the GPUs of the node of a row, or why a workload waits."""
        row = event.row
        if isinstance(row, types.WorkloadRow):
            self.notify(row.waiting_reason, title=row.name, timeout=20, markup=False)
        node = row.name if isinstance(row, types.NodeRow) else row.node if isinstance(row, MapGpu) else ""
        if node:
            self.node = node
            self.table.show(NODE_COLUMNS, [], _gpu_key, "GPU")
            self._show_lines()
            self._wake.set()


def summary(
    overview: types.ClusterOverview | None,
    allocation: "deque[float | None]",
    utilization: "deque[float | None]",
) -> str:
    """Return the two lines above the table."""
    if overview is None:
        return "…"
    nodes = (
        f"{overview.total_nodes} nodes: {overview.busy_nodes} busy, {overview.partially_idle_nodes} partial, "
        f"{overview.fully_idle_nodes} idle, {overview.faulty_nodes} faulty"
    )
    held = "?" if overview.allocated_gpus is None else f"{overview.allocated_gpus:,}"
    rate = "-" if overview.utilization is None else percent(overview.utilization)
    gpus = f"{held} of {overview.total_gpus:,} GPUs held {sparkline(allocation)}  utilization {rate} "
    return f"{nodes}\n{gpus}{sparkline(utilization)}"


async def node_gpus(client: AsyncClient, node: str) -> list[types.NodeGpu]:
    """Return the GPUs of a node."""
    return (await client.node(node)).gpus


def _gpu_key(gpu: Any) -> str:
    return str(gpu.index)


def _holders(gpu: types.NodeGpu) -> list[str]:
    return [f"{each.pod_namespace}/{each.pod_name}" if each.pod_name else "hidden" for each in gpu.holders]


NODE_COLUMNS = (
    Column("GPU", lambda gpu: gpu.index),
    Column("MODEL", lambda gpu: gpu.model, text=short_model),
    Column("HEALTH", lambda gpu: gpu.health),
    Column("UTIL", lambda gpu: gpu.utilization, text=percent),
    Column("MEM", lambda gpu: gpu.memory_used, text=lambda gib: f"{gib:.0f}Gi"),
    Column("TEMP", lambda gpu: gpu.temperature, text=number),
    Column("POWER", lambda gpu: gpu.power, text=lambda watt: f"{watt:.0f}W"),
    Column("HELD-BY", _holders),
    Column("PROBLEM", lambda gpu: gpu.health_reason),
)
