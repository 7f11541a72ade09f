"""A table that renders only the lines on the screen, so that thousands of rows cost as little as forty."""

from collections.abc import Callable, Sequence
from typing import Any

from rich.segment import Segment
from rich.style import Style
from textual.binding import Binding
from textual.geometry import Region, Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip

from gpufleet.terminal.columns import Column

_HEADER = Style(bold=True, reverse=True)
_CURSOR = Style(reverse=True)
_COLORS = {
    "faulty": Style(color="red"),
    "unhealthy": Style(color="red"),
    "cordoned": Style(color="yellow"),
    "draining": Style(color="yellow"),
    "free": Style(color="green"),
    "idle": Style(color="green"),
}
_GAP = 2
_SAMPLE = 200
"""Rows that the widths of the columns are computed from, besides those on the screen."""


class RowsView(ScrollView, can_focus=True):
    """Rows in columns, with a header, a cursor, an order, a filter and a search."""

    BINDINGS = [  # noqa: RUF012  (textual reads it as a class variable)
        Binding("up,k", "move(-1)", show=False),
        Binding("down,j", "move(1)", show=False),
        Binding("pageup", "page(-1)", show=False),
        Binding("pagedown", "page(1)", show=False),
        Binding("home,g", "edge(0)", show=False),
        Binding("end,G", "edge(1)", show=False),
        Binding("enter", "select", show=False),
    ]

    class Selected(Message):
        """The user chose a row."""

        def __init__(self, row: Any) -> None:
            super().__init__()
            self.row = row

    def __init__(self) -> None:
        super().__init__()
        self.columns: Sequence[Column] = ()
        self.rows: list[Any] = []
        """The rows that are shown, in order."""
        self.order = ""
        self.filter = ""
        self.cursor = 0
        self._all: list[Any] = []
        self._key: Callable[[Any], str] = str
        self._widths: list[int] = []

    def show(self, columns: Sequence[Column], rows: list[Any], key: Callable[[Any], str], order: str) -> None:
        """Show other rows; the cursor stays on the same one if the columns are the same."""
        current = self._key(self.rows[self.cursor]) if columns is self.columns and self.rows else None
        self.columns, self._all, self._key, self.order = columns, rows, key, order
        self._arrange(current)

    def set_order(self, order: str) -> None:
        """Sort by a column; with a minus in descending order."""
        self.order = order
        self._arrange(None)

    def set_filter(self, text: str) -> None:
        """Show only rows with `text` in any cell, in any case."""
        self.filter = text
        self._arrange(None)

    def find(self, text: str) -> bool:
        """Move the cursor to the next row with `text`; return whether there is one."""
        for step in range(1, len(self.rows) + 1):
            place = (self.cursor + step) % len(self.rows)
            if self._has(self.rows[place], text.casefold()):
                self._move_to(place)
                return True
        return False

    def _has(self, row: Any, text: str) -> bool:
        return any(text in column.cell(row).casefold() for column in self.columns)

    def _arrange(self, current: str | None) -> None:
        text = self.filter.casefold()
        rows = [row for row in self._all if self._has(row, text)] if text else list(self._all)
        name = self.order.lstrip("-")
        column = next((each for each in self.columns if each.header == name), None)
        if column is not None:
            value = column.value
            known = [row for row in rows if value(row) is not None]
            unknown = [row for row in rows if value(row) is None]
            rows = sorted(known, key=value, reverse=self.order.startswith("-")) + unknown
        self.rows = rows
        place = (
            next((n for n, row in enumerate(rows) if self._key(row) == current), None) if current else None
        )
        self.cursor = min(self.cursor if place is None else place, max(0, len(rows) - 1))
        self._measure()
        self.virtual_size = Size(self.size.width, len(rows) + 1)
        self.refresh()

    def _measure(self) -> None:
        first = int(self.scroll_offset.y)
        sample = self.rows[:_SAMPLE] + self.rows[first : first + self.size.height]
        self._widths = [
            max([len(column.header) + 1, *(len(column.cell(row)) for row in sample)])
            for column in self.columns
        ]

    def render_line(self, y: int) -> Strip:
        """Render one line of the screen; the first is the header."""
        width = self.size.width
        if y == 0:
            headers = [self._header(column) for column in self.columns]
            return Strip([Segment(self._joined(headers)[:width].ljust(width), _HEADER)], width)
        place = y - 1 + int(self.scroll_offset.y)
        if place >= len(self.rows):
            return Strip.blank(width)
        cells = [column.cell(self.rows[place]) for column in self.columns]
        style = self._style(cells)
        if place == self.cursor:
            style = style + _CURSOR
        return Strip([Segment(self._joined(cells)[:width].ljust(width), style)], width)

    def _header(self, column: Column) -> str:
        if column.header != self.order.lstrip("-"):
            return column.header
        return column.header + ("▾" if self.order.startswith("-") else "▴")

    def _joined(self, cells: Sequence[str]) -> str:
        return (" " * _GAP).join(cell.ljust(size) for cell, size in zip(cells, self._widths, strict=True))

    def _style(self, cells: Sequence[str]) -> Style:
        for column, cell in zip(self.columns, cells, strict=True):
            if column.header == "STATUS":
                return _COLORS.get(cell.partition(",")[0], Style())
        return Style()

    def _move_to(self, place: int) -> None:
        self.cursor = min(max(place, 0), max(0, len(self.rows) - 1))
        top, visible = int(self.scroll_offset.y), max(1, self.size.height - 1)
        if self.cursor < top:
            self.scroll_to(y=self.cursor, animate=False)
        elif self.cursor >= top + visible:
            self.scroll_to(y=self.cursor - visible + 1, animate=False)
        self.refresh(Region(0, 0, self.size.width, self.size.height))

    def action_move(self, step: int) -> None:
        """Move the cursor by a row."""
        self._move_to(self.cursor + step)

    def action_page(self, step: int) -> None:
        """Move the cursor by a page."""
        self._move_to(self.cursor + step * max(1, self.size.height - 1))

    def action_edge(self, last: int) -> None:
        """Move the cursor to the first or the last row."""
        self._move_to(len(self.rows) - 1 if last else 0)

    def action_select(self) -> None:
        """Report the row at the cursor."""
        if self.rows:
            self.post_message(self.Selected(self.rows[self.cursor]))
