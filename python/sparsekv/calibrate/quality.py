# SPDX-License-Identifier: Apache-2.0
"""
Quality against bytes: the loss of policies with a profile, and how much of K and V they read for it.

Bytes are those of the tokens attended to, and of the data read for selection (as bench/reads.py counts): page bounds,
sketches, and the keys that an anchor layer scores. Compressed tokens (kivi, palu, deltakv) count as uncompressed.
"""
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy

from .._native import ffi, lib
from ..client import Client
from ..errors import check_engine
from ..model import Model
from ..text import c_text
from .loss import Judged, Loss

POLICIES = ("delta", "kascade", "omnikv", "quest", "sketch", "streaming")
BUDGETS = (0.0625, 0.125, 0.25)
LABEL = "quality against bytes"


@dataclass(frozen=True)
class Spec:
    """
    A policy to be measured.

    name: as given by the user
    reads: its result depends on the prefill
    values: of its parameters
    """

    name: str
    budget: float
    text: str
    reads: bool
    values: dict[str, str]


@dataclass(frozen=True)
class Point:
    """
    The result of a policy at one budget.

    loss: in nats
    share: bytes of K and V read in decode steps, relative to dense ones
    bytes: read for a decoded token, over all layers
    memory: pages relative to dense sequences
    """

    name: str
    budget: float
    loss: float
    share: float
    bytes: float
    memory: float

    def as_json(self) -> dict[str, Any]:
        return {
            "policy": self.name, "budget": self.budget, "loss": self.loss, "read_share": self.share, "read_bytes": self.bytes,
            "memory_share": self.memory,
        }  # fmt: skip


def values_of(spec: str) -> dict[str, str]:
    """Returns the parameters in a spec, and the policy's name as "policy"."""
    name, _, rest = spec.partition("?")
    return {"policy": name} | dict(each.partition("=")[::2] for each in rest.split("&") if each)


def specs(client: Client, model: Model, policies: Sequence[str], budgets: Sequence[float], profile: str = "") -> list[Spec]:
    """
    Returns each policy at each budget. The profile is added if the policy takes one and its spec names neither a
    profile nor layers.

    profile: its absolute path; "": none
    Raises Error with the reason why a policy was refused.
    """
    found = []
    for name in policies:
        given = values_of(name)
        with client.open(model, name) as session:
            values, reads = values_of(session.policy), session.policy_depends_on_prefill
        more = [f"profile={profile}"] if profile and "profile" in values and not given.keys() & {"profile", "layers"} else []
        varies = "budget" in values and "budget" not in given
        for budget in budgets if varies else (0.0,):
            extra = "&".join([*more, *([f"budget={budget:g}"] if varies else [])])
            text = f"{name}{'&' if '?' in name else '?'}{extra}" if extra else name
            found.append(Spec(name, budget, text, reads, values))
    return found


def n_rows(found: Sequence[Spec], loss_rows: int, tokens: int) -> float:
    """Rows to be read and decoded for these policies, with loss_rows decoded rows and `tokens` tokens in all texts."""
    return sum(tokens if spec.reads else loss_rows for spec in found)


def read_share(spec: Spec, attended: float, model: Model, anchors: int) -> float:
    """
    Returns the share of K and V that is read: what is attended to, and what is read for selection.

    anchors: number of layers that select for kascade, the first of which is dense
    """
    values, dim = spec.values, model.head_dim
    sparse = 1 - int(values.get("dense", 0)) / model.n_layers
    if values["policy"] in ("quest", "raas"):
        return attended + sparse * 2 / 32  # two keys for the 16 keys and values of a page
    if values["policy"] == "sketch":
        return attended + sparse * (int(values["bits"]) * dim / 8 + 2) / (model.page_bytes / 16 / model.n_kv_heads)
    if values["policy"] == "kascade" and not values["variant"].endswith("dense-anchors") and values["scores"] == "keys":
        # share attended to in a layer that is not dense
        selected = (attended * model.n_layers - 1) / (model.n_layers - 1)
        return attended + (anchors - 1) / model.n_layers * (1 - selected) / 2
    return attended


def point(spec: Spec, judged: Judged, model: Model, anchors: int) -> Point:
    token = model.page_bytes // 16  # bytes of a token's K and V in one layer
    share = read_share(spec, judged.share, model, anchors)
    return Point(spec.name, spec.budget, judged.loss, share, share * judged.dense_tokens * token, judged.memory)


def judge(found: Sequence[Spec], loss: Loss, model: Model, anchors: int, points: list[Point]) -> None:
    """Adds a point for each policy to `points`. If the work raises an exception, `points` has the results so far."""
    at_once = [spec for spec in found if not spec.reads]
    for spec, judged in zip(at_once, loss.of([spec.text for spec in at_once], LABEL)):
        points.append(point(spec, judged, model, anchors))
    for spec in found:
        if spec.reads:
            points.append(point(spec, loss.of_reading(spec.text, LABEL), model, anchors))


def draw(points: Sequence[Point], path: str) -> None:
    """Draws a line for each policy, over its budgets. Raises OSError."""
    megabytes = [p.bytes / 1e6 for p in points]
    names, xs = list(dict.fromkeys(p.name for p in points)), sorted(set(megabytes))
    value = numpy.full((len(names), len(xs)), numpy.nan)
    for p, x in zip(points, megabytes):
        value[names.index(p.name), xs.index(x)] = p.loss if p.loss > 0 else numpy.nan  # the axis is logarithmic
    texts = [[ffi.new("char[]", text.encode()) for text in each] for each in (names, [f"{x:.6g}" for x in xs])]
    arrays = [ffi.new("const char *[]", each) for each in texts]
    labels = [ffi.new("char[]", text) for text in (
        b"Quality against bytes", b"K and V read for a decoded token, MB", b"Kullback-Leibler divergence from dense predictions, nats"
    )]  # fmt: skip
    number, figures = ffi.new("double[]", xs), ffi.from_buffer("double[]", value)
    chart = ffi.new("struct chart *", {
        "title": labels[0], "log": True, "n_x": len(xs), "n_series": len(names), "n_panels": 1, "series": arrays[0], "x": arrays[1],
        "number": number, "x_label": labels[1], "panel": [{"label": labels[2], "value": figures}],
    })  # fmt: skip
    error = ffi.new("struct eng_error *")
    check_engine(lib.chart_draw(chart, c_text("path", path), error), error)


def table(points: Sequence[Point]) -> str:
    lines = ["policy                    budget    loss    read  kB a token  memory"]
    for p in points:
        lines.append(f"{p.name:24}  {p.budget or '-':>6}  {p.loss:6.4f}  {p.share:6.1%}  {p.bytes / 1e3:10.0f}  {p.memory:6.1%}")
    return "\n".join(lines)
