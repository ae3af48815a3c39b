# SPDX-License-Identifier: Apache-2.0
"""The results of a calibration: written as the file that policies read (profile=FILE), and formatted as a table."""
import json
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy

from ..client import version
from ..model import Model
from . import choose
from .choose import Array, Choice
from .loss import Loss
from .observe import Observer
from .quality import Point, table
from .search import Found, Set, climb

# Kinds of selecting layers, each for different policies, and the policy that each kind is searched with.
KINDS = {"delta": "delta?", "anchors": "kascade:dense-anchors?", "filters": "omnikv?more=0&"}
TITLES = {"delta": "delta layers:", "anchors": "kascade anchors:", "filters": "filter layers:"}
LABELS = {"delta": "searching delta's layers", "anchors": "searching kascade's anchors", "filters": "searching filter layers"}


def number(x: float) -> float | None:
    """Formats a number for a profile: six digits; None if it is not finite."""
    return float(f"{x:.6g}") if math.isfinite(x) else None


def numbers(x: Iterable[float]) -> list[float | None]:
    return [number(float(each)) for each in x]


@dataclass
class Profile:
    """
    A calibration's results.

    source: names of the texts' files
    texts: number of texts to read
    choices: by kind
    dense: first layers that stay dense
    partial: the calibration was interrupted
    papers: layers chosen by the papers' criteria
    found: sets that the search of each kind has evaluated, in order
    done: kinds whose search is complete
    points: quality against bytes
    """

    model: Model
    observed: Observer
    source: str
    fnv1a: int
    texts: int
    choices: Mapping[str, Choice]
    dense: int
    budget: float = 0.125
    partial: bool = False
    n_ranks: int = 1  # number of ranks that the head map is for
    papers: dict[str, list[int]] = field(default_factory=dict)
    loss_rows: int = 0  # 0: no search was done
    found: dict[str, Found] = field(default_factory=dict)
    done: list[str] = field(default_factory=list)
    points: list[Point] = field(default_factory=list)

    # ---- figures of all layers of the model; NaN for those with a sliding window, which are not measured ----

    def _of_all(self, x: Array) -> Array:
        whole = numpy.full((self.model.n_layers,) * x.ndim, numpy.nan)
        whole[numpy.ix_(*[self.observed.full] * x.ndim)] = x
        return whole

    @property
    def shift(self) -> Array:
        return self._of_all(self.observed.measure.shift)

    @property
    def similarity(self) -> Array:
        """[a][b]; NaN where a > b."""
        return self._of_all(self.observed.measure.best_heads())

    # ---- choosing ----

    def choose(self) -> None:
        """Chooses layers by the papers' criteria, from the measurements."""
        similarity = self.similarity
        self.papers = {
            "delta": choose.by_shift(self.choices["delta"], self.shift),
            "anchors": choose.anchors(self.choices["anchors"], similarity * self.observed.weight),
            "filters": choose.anchors(self.choices["filters"], similarity),
        }

    @property
    def chosen(self) -> dict[str, list[int]]:
        """The layers that policies get: the best set of a search, or else the papers' choice."""
        return {kind: list(self.found[kind].best) if self._judged(kind) else layers for kind, layers in self.papers.items()}

    def _judged(self, kind: str) -> int:
        return self.found[kind].judged if kind in self.found else 0

    def search_sets(self) -> int:
        """About how many sets search() evaluates."""
        return sum(choice.sets() for choice in self.choices.values())

    def search(self, loss: Loss) -> None:
        """
        Searches from there for layers with a smaller loss, each kind under its own policy. After Interrupted the best
        sets so far remain.
        """
        self.loss_rows = loss.rows
        progress = loss.progress
        for kind, policy in KINDS.items():
            end = progress.done + self.choices[kind].sets() * loss.rows
            dense = "" if kind == "anchors" else f"dense={self.dense}&"
            prefix = f"{policy}{dense}budget={self.budget:g}&layers="

            def judge(sets: Sequence[Set]) -> list[float]:
                return [each.loss for each in loss.of([prefix + ",".join(map(str, s)) for s in sets], LABELS[kind])]

            found = self.found[kind] = Found()
            papers = tuple(self.papers[kind])
            found.add([papers, *self._guess(kind)], judge)
            climb(self.choices[kind], judge, found.best, found)
            progress.show(end, LABELS[kind])
            self.done.append(kind)

    def _guess(self, kind: str) -> list[Set]:
        """
        The layers that policies use without a profile (sparsekv/policy-select.h), if the search can begin with them.
        """
        layers, n = self.choices[kind].layers, self.model.n_layers
        after = [next((x for x in layers if x >= (fifths * n + 2) // 5), layers[0]) for fifths in (2, 3)]
        guess = (layers[0], *after)
        return [guess] if self.choices[kind].n == 3 and layers[0] < guess[1] < guess[2] else []

    # ---- the file ----

    def _head_map(self, anchors: Sequence[int]) -> list[list[int]]:
        """For each layer, maps its kv heads to the best ones of its anchor; to themselves if that is unknown."""
        measure, place = self.observed.measure, {layer: i for i, layer in enumerate(self.observed.full)}
        rows = []
        for layer in range(self.model.n_layers):
            anchor = choose.source(anchors, layer)
            known = layer in place and anchor <= layer
            rows.append(
                choose.head_map(measure.similarity[place[anchor], place[layer]], self.n_ranks) if known else list(range(self.model.n_kv_heads))
            )
        return rows

    def _sets(self, layers: Mapping[str, list[int]]) -> dict[str, Any]:
        return {**layers, "head_map": self._head_map(layers["anchors"])}

    def _correction(self) -> dict[str, Any]:
        """The error of corrected sparse prefill, with and without the correction."""
        c = self.observed.correction
        found: dict[str, Any] = {"sinks": c.sinks, "window": c.window, "gamma": c.gamma}
        if c.any:
            found |= {"cosine": numbers(c.cosine), "missed": numbers(c.missed), "left": numbers(c.left)}
            found |= {"all_left": number(c.all_left), "helps": c.all_left < 1}
        return found

    def _search(self) -> dict[str, Any]:
        """The results of the search."""
        found: dict[str, Any] = {"budget": self.budget, "rows": self.loss_rows}
        for kind, f in self.found.items():
            if f.judged:
                papers = f.loss[tuple(self.papers[kind])]
                found[kind] = {"sets": f.judged, "loss": number(f.loss[f.best]), "papers_loss": number(papers)}
        return found

    def rests_on(self) -> str:
        """Describes the basis of a partial profile for the user."""
        measure = self.observed.measure
        text = f"{measure.n_texts} of {self.texts} texts, {measure.n_rows} rows"
        if self.loss_rows:
            how = {k: "searched" if k in self.done else "searched in part" if self._judged(k) else "not searched" for k in KINDS}
            text += "; " + ", ".join(f"{kind} {said}" for kind, said in how.items())
        return text

    def as_json(self) -> dict[str, Any]:
        model, measure = self.model, self.observed.measure
        root: dict[str, Any] = {
            "sparsekv_profile": 1,
            "made": {
                "version": version(), "from": self.source, "fnv1a": f"{self.fnv1a:08x}", "texts": measure.n_texts,
                "tokens": self.observed.n_tokens, "rows": measure.n_rows, "top": measure.top,
            },
            "model": {
                "name": model.name, "layers": model.n_layers, "heads": model.n_heads, "kv_heads": model.n_kv_heads,
                "head_dim": model.head_dim,
            },
            "measured": {
                "shift": numbers(self.shift), "weight": numbers(self.observed.weight),
                "similarity": [numbers(row) for row in self.similarity], "correction": self._correction(),
            },
            "chosen": self._sets(self.chosen),
        }  # fmt: skip
        if self.partial:
            root["partial"] = {
                "interrupted": self.rests_on(), "texts": measure.n_texts, "of_texts": self.texts, "rows": measure.n_rows,
                "searched": self.done,
            }  # fmt: skip
        if self.loss_rows:
            root["papers"], root["search"] = self._sets(self.papers), self._search()
        if self.points:
            root["quality"] = [point.as_json() for point in self.points]
        return root

    def write(self, path: Path) -> None:
        """Writes PATH.part and renames it to PATH when it is complete. Raises OSError."""
        part = path.with_name(path.name + ".part")
        try:
            with open(part, "w", encoding="utf-8") as f:
                json.dump(self.as_json(), f, indent=1)
                f.write("\n")
                f.flush()
                os.fsync(f.fileno())
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)

    # ---- the table ----

    def _correction_text(self) -> list[str]:
        c = self.observed.correction
        lines = [f"prompts that see {c.sinks} sinks and a window of {c.window}, corrected in windows of {c.gamma} rows:"]
        if not c.any:
            return [*lines, "no text is longer than these: nothing is missed"]
        lines.append("layer  cosine  missed    left")
        for layer in self.observed.full:
            lines.append(f"{layer:5}  {c.cosine[layer]:6.3f}  {c.missed[layer]:6.4f}  {c.left[layer]:6.3f}")
        verdict = "helps" if c.all_left < 1 else "does harm"
        better = int((c.left < 1).sum())
        lines.append(
            f"the correction {verdict}: with it there is {c.all_left:.2f} times what is missed, less than 1 in {better} of "
            f"{len(self.observed.full)} layers"
        )
        return lines

    def text(self) -> str:
        lines = ["layer   shift  weight  similarity of the layer before"]
        shift, weight, similarity = self.shift, self.observed.weight, self.similarity
        before = None
        for layer in range(self.model.n_layers):
            alike = 1.0 if before is None else similarity[before, layer]
            lines.append(f"{layer:5}  {shift[layer]:6.3f}  {weight[layer]:6.3f}  {alike:6.3f}")
            before = layer if layer in self.observed.full else before
        lines.append("")
        for kind, layers in self.papers.items():
            loss = f"  loss {self.found[kind].loss[tuple(layers)]:.4f}" if self._judged(kind) else ""
            lines.append(f"{TITLES[kind]:18} {','.join(map(str, layers))}{loss}")
        lines += ["", *self._correction_text()]
        if self.loss_rows:
            lines += ["", f"by loss, {self.loss_rows} tokens, a budget of {self.budget:g}:"]
        for kind, f in self.found.items():
            if f.judged:
                best = ",".join(map(str, f.best))
                lines.append(f"{TITLES[kind]:18} {best}  loss {f.loss[f.best]:.4f}, {f.judged} sets tried")
        if self.points:
            lines += ["", table(self.points)]
        return "\n".join(lines)
