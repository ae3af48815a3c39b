# SPDX-License-Identifier: Apache-2.0
"""
The results of a calibration: struct eng_profile (engine/profile.h), whose functions choose layers, search, and make the
file that policies read (profile=FILE), the table and the charts.
"""
import errno
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy

from .._native import ffi, lib
from ..errors import check_engine
from ..model import Model
from ..text import c_text
from . import quality
from .loss import Loss
from .measure import Array
from .observe import Observer

# Kinds of selecting layers, each for different policies.
KINDS = {"delta": lib.ENG_DELTA, "anchors": lib.ENG_ANCHORS, "filters": lib.ENG_FILTERS}


def text_of(allocated: Any) -> str:
    """Returns a text that the engine has allocated, and frees it."""
    if allocated == ffi.NULL:
        raise MemoryError
    text = ffi.string(allocated).decode()
    lib.free(allocated)
    return text


class Judge:
    """Computes losses for a search. `raised`: the exception that ended it."""

    def __init__(self, loss: Loss):
        self.loss, self.label = loss, ""
        self.raised: BaseException | None = None


def losses(handle: Any, specs: Any, n: int, label: Any, ret: Any, error: Any) -> int:
    """The eng_losses of a Judge."""
    judge: Judge = ffi.from_handle(handle)
    judge.label = ffi.string(label).decode()
    try:
        ret[0:n] = [each.loss for each in judge.loss.of([ffi.string(specs[i]).decode() for i in range(n)], judge.label)]
    except BaseException as e:
        judge.raised = e
        return -errno.EINTR
    return 0


ffi.def_extern("sparsekv_losses")(losses)


class Profile:
    """
    A calibration's results.

    source: names of the texts' files
    texts: number of texts to read
    counts: number of layers to choose, by kind
    dense: first layers that stay dense
    partial: the calibration was interrupted
    points: quality against bytes
    """

    def __init__(
        self, model: Model, observed: Observer, source: str, fnv1a: int, texts: int, counts: Mapping[str, int], dense: int,
        budget: float = 0.125, partial: bool = False, n_ranks: int = 1,
    ) -> None:  # fmt: skip
        self.points: list[quality.Point] = []
        self._error = ffi.new("struct eng_error *")
        c = self._c = ffi.new("struct eng_profile *")
        measure, n, n_full = observed.measure, model.n_layers, len(observed.full)
        c_model, kept = model.to_c()
        c_source = ffi.new("char[]", source.encode(errors="replace"))
        matrices = (self._of_all(measure.best_heads(), observed.full, n), numpy.ascontiguousarray(measure.similarity))
        similarity, heads = (ffi.from_buffer("double[]", matrix) for matrix in matrices)
        self._kept = [c_model, kept, c_source, similarity, heads]
        c.model, c.source, c.similarity, c.heads = c_model, c_source, similarity, heads
        c.source_hash, c.texts, c.partial, c.dense, c.budget, c.n_ranks = fnv1a, texts, partial, dense, budget, n_ranks
        c.tokens, c.texts_measured, c.rows, c.top = observed.n_tokens, measure.n_texts, measure.n_rows, measure.top
        c.n_full, c.full[0:n_full] = n_full, observed.full
        c.shift[0:n], c.weight[0:n] = self._of_all(measure.shift, observed.full, n), observed.weight
        self._set_correction(observed, n)
        for name, kind in KINDS.items():
            first = 0 if name == "anchors" else sum(layer < dense for layer in observed.full)
            c.choice[kind] = {"n_layers": n_full, "first": first, "n": counts[name]}
        check_engine(lib.eng_profile_choose(c, self._error), self._error)

    @staticmethod
    def _of_all(x: Array, full: tuple[int, ...], n: int) -> Array:
        """Figures of all layers of the model; NaN for those with a sliding window, which are not measured."""
        whole = numpy.full((n,) * x.ndim, numpy.nan)
        whole[numpy.ix_(*[full] * x.ndim)] = x
        return whole

    def _set_correction(self, observed: Observer, n: int) -> None:
        c, to = observed.correction, self._c.correction
        to.sinks, to.window, to.gamma, to.any, to.all_left = c.sinks, c.window, c.gamma, c.any, c.all_left
        to.cosine[0:n], to.missed[0:n], to.left[0:n] = c.cosine, c.missed, c.left

    @property
    def partial(self) -> bool:
        return bool(self._c.partial)

    @partial.setter
    def partial(self, is_partial: bool) -> None:
        self._c.partial = is_partial

    def _sets(self, kind: int) -> int:
        return lib.eng_search_sets(ffi.addressof(self._c.choice, kind))

    def search_sets(self) -> int:
        """About how many sets search() evaluates."""
        return sum(map(self._sets, KINDS.values()))

    def search(self, loss: Loss) -> None:
        """
        Searches from there for layers with a smaller loss, each kind under its own policy. After Interrupted the best
        sets so far remain.
        """
        judge, self._c.loss_rows = Judge(loss), loss.rows
        handle = ffi.new_handle(judge)
        for kind in KINDS.values():
            end = loss.progress.done + self._sets(kind) * loss.rows
            result = lib.eng_profile_search(self._c, kind, lib.sparsekv_losses, handle, self._error)
            if judge.raised is not None:
                raise judge.raised
            check_engine(result, self._error)
            loss.progress.show(end, judge.label)

    def rests_on(self) -> str:
        """Describes the basis of a partial profile for the user."""
        text = ffi.new("char[]", 256)
        lib.eng_profile_partial(self._c, text, 256)
        return ffi.string(text).decode()

    def as_json(self) -> dict[str, Any]:
        root: dict[str, Any] = json.loads(text_of(lib.eng_profile_json(self._c)))
        return root | ({"quality": [point.as_json() for point in self.points]} if self.points else {})

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

    def text(self) -> str:
        table = text_of(lib.eng_profile_text(self._c)).rstrip("\n")
        return f"{table}\n\n{quality.table(self.points)}" if self.points else table

    def draw(self, prefix: str) -> None:
        """Draws PREFIX-shift.svg and the other charts; that of quality only if it was measured. Raises OSError."""
        check_engine(lib.eng_profile_draw(self._c, c_text("prefix", prefix), self._error), self._error)
        if self.points:
            quality.draw(self.points, f"{prefix}-quality.svg")
