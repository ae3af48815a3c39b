# SPDX-License-Identifier: Apache-2.0
"""
Draws SVG charts in the style of the C tools (engine/chart.c): lines over numbers, in panels one below the other, and
matrices.
The colours are those of Okabe and Ito, which colour-blind people can tell apart.
"""
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

from .choose import Array

# In pixels. Text is monospaced, so its width is known without font metrics.
MARGIN, FONT, LINE, CELL = 24, 13, 20, 24
CHAR_WIDTH = FONT * 0.602
PLOT_WIDTH, PLOT_HEIGHT, LEFT = 620, 300, MARGIN + 80
MARKS = 24  # most points of a line that are marked
INK, FAINT, GRID = "#222222", "#6b6b6b", "#e2e2e2"
COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#000000", "#999999")


@dataclass(frozen=True)
class Panel:
    """
    A panel of a chart.

    label: of the y axis
    series: points (x, y) by name, ascending by x; y is NaN: no value
    log: logarithmic y axis
    """

    label: str
    series: Mapping[str, Sequence[tuple[float, float]]]
    log: bool = False

    def points(self) -> list[tuple[float, float]]:
        """The points that are drawn."""
        return [p for each in self.series.values() for p in each if self.drawn(p)]

    def drawn(self, point: tuple[float, float]) -> bool:
        return math.isfinite(point[1]) and (not self.log or point[1] > 0)


@dataclass(frozen=True)
class Axis:
    """
    Maps values to pixels: `low` is at `at`, `high` at `at` + `length`. If `log`, low and high are base-10 logarithms.
    """

    low: float
    high: float
    at: float
    length: float
    log: bool = False

    def pixel(self, x: float) -> float:
        return self.at + self.length * ((math.log10(x) if self.log else x) - self.low) / (self.high - self.low)

    def ticks(self, about: int, whole: bool = False) -> list[float]:
        """
        Returns round numbers between the ends, or all whole numbers if they fit. On a logarithmic axis: powers of 10,
        and 2 and 5 times these if there are few.
        """
        if whole and (self.high - self.low) * 2.5 * CHAR_WIDTH < self.length:
            return [float(i) for i in range(math.ceil(self.low), math.floor(self.high) + 1)]
        if self.log:
            factors = (1, 2, 5) if self.high - self.low < 3 else (1,)
            every = [f * 10.0**e for e in range(math.floor(self.low), math.ceil(self.high) + 1) for f in factors]
            return [x for x in every if self.low - 1e-9 <= math.log10(x) <= self.high + 1e-9]
        step = step_of(self.high - self.low, about)
        first = math.ceil(self.low / step - 1e-9)
        return [i * step for i in range(first, math.floor(self.high / step + 1e-9) + 1)]


def step_of(span: float, ticks: int) -> float:
    """Returns 1, 2 or 5 times a power of 10 that divides `span` into about `ticks` steps."""
    rough = span / ticks
    power: float = 10.0 ** math.floor(math.log10(rough))
    return power * next(f for f in (1, 2, 5, 10) if rough / power <= f + 1e-9)


# ---- elements ----


def text(x: float, y: float, anchor: str, colour: str, said: str, style: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{colour}"{style}>{escape(said)}</text>'


def line(x1: float, y1: float, x2: float, y2: float, colour: str) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}" stroke-width="1"/>'


def fill(series: int) -> str:
    """Attributes of a mark: filled with the series' colour, or outlined from the ninth series on."""
    colour = COLOURS[series % len(COLOURS)]
    return f'fill="{colour}"' if series < len(COLOURS) else f'fill="#ffffff" stroke="{colour}"'


def svg(width: float, height: float, parts: Sequence[str]) -> str:
    size = f'width="{width:.0f}" height="{height:.0f}"'
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} viewBox="0 0 {width:.0f} {height:.0f}" '
        f"font-family=\"ui-monospace, 'DejaVu Sans Mono', Menlo, Consolas, monospace\" font-size=\"{FONT}\">"
    )
    return "\n".join([head, f'<rect {size} fill="#ffffff"/>', *parts, "</svg>", ""])


def title_of(title: str) -> str:
    return text(MARGIN, MARGIN + 16, "start", INK, title, ' font-size="15" font-weight="bold"')


def title_width(title: str) -> float:
    return 2 * MARGIN + len(title) * CHAR_WIDTH * 15 / FONT


# ---- lines ----


def y_axis(panel: Panel, bottom: float) -> Axis:
    values = [y for _, y in panel.points()] or [1.0]
    if panel.log:
        low, high = math.log10(min(values)) - 0.05, math.log10(max(values)) + 0.05
        return Axis(low, high, bottom, -PLOT_HEIGHT, True)
    most = max(*values, 1e-9)
    step = step_of(most, 6)
    return Axis(0.0, math.ceil(most / step - 1e-9) * step, bottom, -PLOT_HEIGHT)


def draw_series(panel: Panel, points: Sequence[tuple[float, float]], x: Axis, y: Axis, series: int) -> list[str]:
    at = [(x.pixel(px), y.pixel(py)) for px, py in filter(panel.drawn, points)]
    if not at:
        return []
    path = " L".join(f"{px:.1f} {py:.1f}" for px, py in at)
    dash = "" if series < len(COLOURS) else ' stroke-dasharray="6 4"'
    parts = [f'<path d="M{path}" fill="none" stroke="{COLOURS[series % len(COLOURS)]}" stroke-width="2"{dash}/>']
    if len(at) <= MARKS:
        parts += [f'<circle cx="{px:.1f}" cy="{py:.1f}" r="4" {fill(series)}/>' for px, py in at]
    return parts


def draw_panel(panel: Panel, x: Axis, x_label: str, whole: bool, top: float) -> list[str]:
    bottom = top + PLOT_HEIGHT
    y = y_axis(panel, bottom)
    parts = [text(LEFT, top - 8, "start", INK, panel.label)]
    for tick in y.ticks(6):
        at = y.pixel(tick)
        parts += [line(LEFT, at, LEFT + PLOT_WIDTH, at, GRID), text(LEFT - 8, at + 4, "end", FAINT, f"{tick:.6g}")]
    for tick in x.ticks(8, whole):
        at = x.pixel(tick)
        parts += [line(at, bottom, at, bottom + 5, INK), text(at, bottom + 18, "middle", FAINT, f"{tick:.6g}")]
    parts.append(line(LEFT, bottom, LEFT + PLOT_WIDTH, bottom, INK))
    for number, points in enumerate(panel.series.values()):
        parts += draw_series(panel, points, x, y, number)
    return [*parts, text(LEFT + PLOT_WIDTH / 2, bottom + 36, "middle", INK, x_label)]


def legend(names: Sequence[str], width: float, y: float) -> tuple[list[str], float]:
    """
    Draws the series' names beside their colours, in as many lines as needed, and returns where they end. A single
    series without a name has no legend.
    """
    parts: list[str] = []
    x = float(MARGIN)
    if list(names) == [""]:
        return parts, y
    for number, name in enumerate(names):
        wide = len(name) * CHAR_WIDTH + 40
        if x > MARGIN and x + wide > width - MARGIN:
            x, y = float(MARGIN), y + LINE
        parts.append(f'<rect x="{x:.1f}" y="{y:.1f}" width="14" height="14" {fill(number)}/>')
        parts.append(text(x + 20, y + 12, "start", INK, name))
        x += wide
    return parts, y + LINE + 6


def lines(title: str, x_label: str, panels: Sequence[Panel], whole: bool = False) -> str:
    """Draws panels over the same x axis, which begins at 0. whole: x values are whole numbers."""
    width = max(LEFT + PLOT_WIDTH + 2 * MARGIN, title_width(title))
    xs = [x for panel in panels for x, _ in panel.points()] or [0.0]
    x = Axis(0.0, max(*xs, 1e-9), LEFT + 20, PLOT_WIDTH - 40)
    named, y = legend(list(panels[0].series), width, MARGIN + 32)
    parts = [title_of(title), *named]
    for panel in panels:
        parts += draw_panel(panel, x, x_label, whole, y + 20)
        y += PLOT_HEIGHT + 72
    return svg(width, y, parts)


# ---- matrices ----


def matrix(title: str, row_label: str, column_label: str, value: Array) -> str:
    """
    Draws a matrix of shares from 0 (white) to 1 (dark) as squares. Rows go down, columns to the right, both numbered
    from 0. NaN: no value.
    """
    top, side = MARGIN + 66, len(value) * CELL
    parts = [title_of(title), text(LEFT - 30, top - 8, "end", INK, row_label)]
    parts.append(text(LEFT + side / 2, top - 26, "middle", INK, column_label))
    for i, row in enumerate(value):
        parts.append(text(LEFT - 8, top + i * CELL + CELL / 2 + 4, "end", FAINT, str(i)))
        parts.append(text(LEFT + i * CELL + CELL / 2, top - 8, "middle", FAINT, str(i)))
        for j, x in enumerate(row):
            if math.isfinite(x):
                parts += draw_cell(LEFT + j * CELL, top + i * CELL, min(max(float(x), 0.0), 1.0))
    return svg(max(LEFT + side + MARGIN, title_width(title)), top + side + MARGIN, parts)


def draw_cell(x: float, y: float, share: float) -> list[str]:
    """Colours go from white to the first series' colour."""
    colour = f"rgb({255 * (1 - share):.0f},{255 - share * (255 - 0x72):.0f},{255 - share * (255 - 0xB2):.0f})"
    ink = "#ffffff" if share > 0.6 else INK
    return [
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{CELL}" height="{CELL}" fill="{colour}"/>',
        text(x + CELL / 2, y + CELL / 2 + 4, "middle", ink, f"{100 * share:.0f}", ' font-size="10"'),
    ]
