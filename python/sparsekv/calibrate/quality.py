# SPDX-License-Identifier: Apache-2.0
"""
Quality against bytes: what policies with a profile lose, and how much of K and V they read for that.

Bytes are those of the tokens attended to, and what is read to choose them (as bench/reads.py counts): page bounds, sketches, and
the keys that an anchor scores. Compressed tokens (kivi, palu, deltakv) count as if they were not.
"""
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..client import Client
from ..model import Model
from .loss import Judged, Loss

POLICIES = ("delta", "kascade", "omnikv", "quest", "sketch", "streaming")
BUDGETS = (0.0625, 0.125, 0.25)
LABEL = "quality against bytes"


@dataclass(frozen=True)
class Spec:
    """A policy as it is judged. name: as it was asked for; reads: it reads prompts in its own way; values: of its parameters."""

    name: str
    budget: float
    text: str
    reads: bool
    values: dict[str, str]


@dataclass(frozen=True)
class Point:
    """
    What a policy did at one budget. loss: nats; share: of the bytes of K and V that dense decode steps read; bytes: those of a
    decoded token, over all layers; memory: pages in parts of those of dense sequences.
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
    """The parameters in a spec, and the policy's name as "policy"."""
    name, _, rest = spec.partition("?")
    return {"policy": name} | dict(each.partition("=")[::2] for each in rest.split("&") if each)


def specs(client: Client, model: Model, policies: Sequence[str], budgets: Sequence[float], profile: str = "") -> list[Spec]:
    """
    Each policy at each budget, with the profile where it takes one and names neither that nor layers. profile: its absolute
    path; "": none so far. Raises Error: the policy's reason to refuse it.
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
    """Rows that are read and decoded to judge them: of texts with so many decoded rows, and so many tokens in all."""
    return sum(tokens if spec.reads else loss_rows for spec in found)


def read_share(spec: Spec, attended: float, model: Model, anchors: int) -> float:
    """
    Of K and V, what is attended to and what is read to choose it. anchors: how many layers select for kascade, the first of them
    densely.
    """
    values, dim = spec.values, model.head_dim
    sparse = 1 - int(values.get("dense", 0)) / model.n_layers
    if values["policy"] in ("quest", "raas"):
        return attended + sparse * 2 / 32  # two keys for the 16 keys and values of a page
    if values["policy"] == "sketch":
        return attended + sparse * (int(values["bits"]) * dim / 8 + 2) / (model.page_bytes / 16 / model.n_kv_heads)
    if values["policy"] == "kascade" and not values["variant"].endswith("dense-anchors") and values["scores"] == "keys":
        selected = (attended * model.n_layers - 1) / (model.n_layers - 1)  # of a layer that is not dense
        return attended + (anchors - 1) / model.n_layers * (1 - selected) / 2
    return attended


def point(spec: Spec, judged: Judged, model: Model, anchors: int) -> Point:
    token = model.page_bytes // 16  # bytes of a layer's K and V
    share = read_share(spec, judged.share, model, anchors)
    return Point(spec.name, spec.budget, judged.loss, share, share * judged.dense_tokens * token, judged.memory)


def judge(found: Sequence[Spec], loss: Loss, model: Model, anchors: int, points: list[Point]) -> None:
    """Add a point for each policy to `points`. What the work raises is raised; the points are then those known by then."""
    at_once = [spec for spec in found if not spec.reads]
    for spec, judged in zip(at_once, loss.of([spec.text for spec in at_once], LABEL)):
        points.append(point(spec, judged, model, anchors))
    for spec in found:
        if spec.reads:
            points.append(point(spec, loss.of_reading(spec.text, LABEL), model, anchors))


def table(points: Sequence[Point]) -> str:
    lines = ["policy                    budget    loss    read  kB a token  memory"]
    for p in points:
        lines.append(f"{p.name:24}  {p.budget or '-':>6}  {p.loss:6.4f}  {p.share:6.1%}  {p.bytes / 1e3:10.0f}  {p.memory:6.1%}")
    return "\n".join(lines)
