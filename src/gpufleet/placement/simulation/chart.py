"""Draw a replay as a line chart in SVG: requested against allocated GPUs.

Written by hand: one small figure does not justify a plotting library as a dependency.
"""

from collections.abc import Mapping, Sequence
from xml.sax.saxutils import escape

_WIDTH, _HEIGHT = 720, 420
_LEFT, _RIGHT, _TOP, _BOTTOM = 60, 150, 40, 50
_COLOURS = ("#1b6ac9", "#d1495b", "#2e933c", "#b8860b", "#6a4c93")


def chart(curves: Mapping[str, Sequence[tuple[float, float]]], title: str) -> str:
    """Return the SVG of named curves of (percent of capacity requested, percent allocated)."""
    widest = max((x for curve in curves.values() for x, _ in curve), default=100.0)
    most = max(100.0, widest)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" font-family="sans-serif" font-size="12">',
        f"<title>{escape(title)}</title>",
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="white"/>',
        f'<text x="{_LEFT}" y="24" font-size="15">{escape(title)}</text>',
        *_grid(most),
    ]
    for number, (name, curve) in enumerate(curves.items()):
        colour = _COLOURS[number % len(_COLOURS)]
        points = " ".join(f"{_x(x, most):.1f},{_y(y):.1f}" for x, y in [(0.0, 0.0), *curve])
        last = curve[-1][1] if curve else 0.0
        y = _TOP + 14 + 20 * number
        right = _WIDTH - _RIGHT + 12
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.8"/>')
        parts.append(f'<rect x="{right}" y="{y - 9}" width="10" height="10" fill="{colour}"/>')
        parts.append(f'<text x="{right + 16}" y="{y}">{escape(name)} {last:.1f}%</text>')
    return "\n".join([*parts, "</svg>", ""])


def _grid(most: float) -> list[str]:
    right, bottom = _WIDTH - _RIGHT, _HEIGHT - _BOTTOM
    lines = []
    for percent in range(0, 101, 20):
        y = _y(percent)
        lines.append(f'<line x1="{_LEFT}" y1="{y:.1f}" x2="{right}" y2="{y:.1f}" stroke="#ddd"/>')
        lines.append(f'<text x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{percent}</text>')
    for percent in range(0, int(most) + 1, 20):
        x = _x(percent, most)
        lines.append(f'<text x="{x:.1f}" y="{bottom + 18}" text-anchor="middle">{percent}</text>')
    middle = (_LEFT + right) / 2
    lines.append(
        f'<text x="{middle}" y="{_HEIGHT - 12}" text-anchor="middle">GPUs requested, % of capacity</text>'
    )
    lines.append(
        f'<text transform="translate(16 {bottom / 2 + 30:.0f}) rotate(-90)" text-anchor="middle">GPUs allocated, %</text>'
    )
    return lines


def _x(value: float, most: float) -> float:
    return _LEFT + (_WIDTH - _LEFT - _RIGHT) * value / most


def _y(value: float) -> float:
    return _HEIGHT - _BOTTOM - (_HEIGHT - _TOP - _BOTTOM) * value / 100.0
