# SPDX-License-Identifier: Apache-2.0
"""
What rows of a prompt miss that attend to sinks and a window alone, and how alike that is in neighbouring rows: the figures of
engine/delta-error.c, by which one knows whether prefill=streaming+delta helps.

Rows are in windows of gamma, whose first row is dense. With d the difference of a row's dense and sparse output and d0 that of
its window's first row, the correction makes d - d0 of d.
"""
from dataclasses import dataclass

import numpy
import numpy.typing
import torch

from .choose import Array
from .weights import BLOCK, Attention, Visible, mix, weights

Positions = numpy.typing.NDArray[numpy.int64]


@dataclass(frozen=True)
class Pairs:
    """rows[i] is compared with first[i], the first row of its window: positions, ascending."""

    rows: Positions
    first: Positions


@dataclass
class Sums:
    """Sums over rows and heads, of each layer: squares of dense outputs, of d, of d - d0; cosines of d and d0; of how many."""

    dense: Array
    whole: Array
    left: Array
    cosine: Array
    n: Array


class Correction:
    """sinks, window, gamma: as in prefill=streaming+delta; tokens, gamma a power of two. Layers are all of the model."""

    def __init__(self, n_layers: int, sinks: int, window: int, gamma: int):
        self.n_layers, self.sinks, self.window, self.gamma = n_layers, sinks, window, gamma
        self._sums = self.begin()

    def begin(self) -> Sums:
        """Sums of a text, for add()."""
        return Sums(*(numpy.zeros(self.n_layers) for _ in range(5)))

    def pairs(self, n: int, rows: int) -> Pairs:
        """Up to `rows` rows (0: all) of a text of n tokens, evenly spread over the windows whose first row misses something."""
        begin = -(-(self.sinks + self.window) // self.gamma)
        windows = n // self.gamma - begin if self.sinks + self.window < n else 0
        found: dict[int, int] = {}
        if windows > 0 and (not rows or rows > windows * (self.gamma - 1)):
            found = {p: p - p % self.gamma for p in range(begin * self.gamma, (begin + windows) * self.gamma) if p % self.gamma}
        elif windows > 0:
            for i in range(rows):
                first = (begin + i * windows // rows) * self.gamma
                # distances come evenly, too, by the golden ratio
                found[first + 1 + (((i * 2654435769) & 0xFFFFFFFF) * (self.gamma - 1) >> 32)] = first
        at = sorted(found)
        return Pairs(numpy.array(at, numpy.int64), numpy.array([found[p] for p in at], numpy.int64))

    def add(
        self, sums: Sums, pairs: Pairs, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, how: Attention
    ) -> None:
        """A layer of a text: query [n_heads, n, head_dim], key and value [n_kv_heads, n, head_dim], positions in q and k."""
        for at in range(0, len(pairs.rows), BLOCK):
            firsts, which = numpy.unique(pairs.first[at : at + BLOCK], return_inverse=True)
            _, d0 = self._outputs(firsts, query, key, value, how)
            dense, d = self._outputs(pairs.rows[at : at + BLOCK], query, key, value, how)
            d0 = d0[:, torch.tensor(which, device=query.device)]
            own, start, both = (d * d).sum(2), (d0 * d0).sum(2), (d * d0).sum(2)
            some = (own > 0) & (start > 0)
            sums.dense[layer] += float((dense * dense).sum())
            sums.whole[layer] += float(own.sum())
            sums.left[layer] += float((start - 2 * both + own).sum())
            sums.cosine[layer] += float((both[some] / (start[some] * own[some]).sqrt()).sum())
            sums.n[layer] += own.numel()

    def _outputs(
        self, at: Positions, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, how: Attention
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Dense outputs of the rows at these positions, and these less the sparse ones: [n_heads, rows, head_dim] float64."""
        rows = torch.tensor(at, device=query.device)
        visible = Visible(self.sinks, self.window)
        own = query[:, rows]
        dense, sparse = (mix(weights(own, key, rows, how, v), value).double() for v in (None, visible))
        return dense, dense - sparse

    def end(self, sums: Sums) -> None:
        """All layers of the text have come."""
        for name in Sums.__dataclass_fields__:
            getattr(self._sums, name)[:] += getattr(sums, name)

    # ---- what came out: of each layer, NaN where no row was compared ----

    def _ratio(self, part: Array, whole: Array) -> Array:
        return numpy.divide(part, whole, out=numpy.full(self.n_layers, numpy.nan), where=whole > 0)

    @property
    def any(self) -> bool:
        """Are there rows that missed something? Else the rest says nothing."""
        return bool((self._sums.dense > 0).any())

    @property
    def cosine(self) -> Array:
        """Of d and d0, mean over rows and heads."""
        return self._ratio(self._sums.cosine, self._sums.n)

    @property
    def missed(self) -> Array:
        """Squares of d in parts of those of the dense outputs."""
        return self._ratio(self._sums.whole, self._sums.dense)

    @property
    def left(self) -> Array:
        """Squares of d - d0 in parts of those of d: below 1 the correction helps. 0 where nothing is missed."""
        left = self._ratio(self._sums.left, self._sums.whole)
        return numpy.where((self._sums.dense > 0) & (self._sums.whole == 0), 0.0, left)

    @property
    def all_left(self) -> float:
        """The same of all layers together, each in parts of its outputs."""
        whole = numpy.nansum(self.missed)
        return float(numpy.nansum(self._ratio(self._sums.left, self._sums.dense)) / whole) if whole > 0 else 0.0
