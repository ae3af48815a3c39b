# SPDX-License-Identifier: Apache-2.0
"""Draws the charts of a profile."""
from collections.abc import Sequence
from pathlib import Path

from . import chart
from .chart import Panel
from .choose import Array
from .profile import Profile
from .quality import Point


def over_layers(label: str, value: Array) -> Panel:
    return Panel(label, {"": [(float(layer), float(x)) for layer, x in enumerate(value)]})


def shift(profile: Profile) -> str:
    value = profile.shift
    value[profile.observed.full[0]] = float("nan")  # there is no previous layer
    panel = over_layers("1 - cosine of all heads' weights", value)
    return chart.lines("Attention shift from the layer before", "layer", [panel], whole=True)


def similarity(profile: Profile) -> str:
    return chart.matrix("Similarity: mass of a layer on the best tokens of another", "selects", "uses", profile.similarity)


def alike(profile: Profile) -> str:
    c = profile.observed.correction
    panels = [over_layers("cosine", c.cosine), over_layers("left by the correction", c.left)]
    return chart.lines("What a sparse prompt misses, beside the first row of a window", "layer", panels, whole=True)


def quality(points: Sequence[Point]) -> str:
    """A line for each policy, over its budgets."""
    series: dict[str, list[tuple[float, float]]] = {p.name: [] for p in points}
    for p in sorted(points, key=lambda p: p.bytes):
        series[p.name].append((p.bytes / 1e6, p.loss))
    panel = Panel("Kullback-Leibler divergence from dense predictions, nats", series, log=True)
    return chart.lines("Quality against bytes", "K and V read for a decoded token, MB", [panel])


def write(profile: Profile, prefix: str) -> None:
    """Writes PREFIX-shift.svg and the other charts; that of quality only if it was measured. Raises OSError."""
    charts = {"shift": shift(profile), "similarity": similarity(profile), "alike": alike(profile)}
    if profile.points:
        charts["quality"] = quality(profile.points)
    for name, drawn in charts.items():
        Path(f"{prefix}-{name}.svg").write_text(drawn, encoding="utf-8")
