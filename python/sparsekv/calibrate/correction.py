# SPDX-License-Identifier: Apache-2.0
"""
Measures the error of prompt rows that attend only to sinks and a window, and how similar it is in neighbouring rows:
the figures of engine/sparse-error.c, which show whether prefill=streaming+delta helps.

Rows are grouped into windows of gamma rows, whose first row is dense. With d the difference between a row's dense and
sparse output, and d0 that of its window's first row, the correction reduces the error from d to d - d0.
"""
from dataclasses import dataclass

import numpy
import numpy.typing
import torch

from .measure import Array
from .weights import BLOCK, Attention, Visible, mix, weights

Positions = numpy.typing.NDArray[numpy.int64]


@dataclass(frozen=True)
class Pairs:
    """rows[i] is compared with first[i], the first row of its window. Both are positions, ascending."""

    rows: Positions
    first: Positions


@dataclass
class Sums:
    """
    Sums over rows and heads, for each layer.

    dense, whole, left: squares of dense outputs, of d, and of d - d0
    cosine: of d and d0
    n: number of summands
    """

    dense: Array
    whole: Array
    left: Array
    cosine: Array
    n: Array


class Correction:
    """
    Accumulates errors for all layers of a model.

    sinks, window, gamma: as in prefill=streaming+delta: tokens; gamma is a power of two
    """

    def __init__(self, n_layers: int, sinks: int, window: int, gamma: int):
        self.n_layers, self.sinks, self.window, self.gamma = n_layers, sinks, window, gamma
        self._sums = self.begin()

    def begin(self) -> Sums:
        """Returns the sums of a new text, for add()."""
        return Sums(*(numpy.zeros(self.n_layers) for _ in range(5)))

    def pairs(self, n: int, rows: int) -> Pairs:
        """
        Chooses up to `rows` rows (0: all) of a text of n tokens, spread evenly over the windows whose first row
        misses tokens.
        """
        begin = -(-(self.sinks + self.window) // self.gamma)
        windows = n // self.gamma - begin if self.sinks + self.window < n else 0
        found: dict[int, int] = {}
        if windows > 0 and (not rows or rows > windows * (self.gamma - 1)):
            found = {p: p - p % self.gamma for p in range(begin * self.gamma, (begin + windows) * self.gamma) if p % self.gamma}
        elif windows > 0:
            for i in range(rows):
                first = (begin + i * windows // rows) * self.gamma
                # the golden ratio spreads the positions within windows evenly, too
                found[first + 1 + (((i * 2654435769) & 0xFFFFFFFF) * (self.gamma - 1) >> 32)] = first
        at = sorted(found)
        return Pairs(numpy.array(at, numpy.int64), numpy.array([found[p] for p in at], numpy.int64))

    def add(
        self, sums: Sums, pairs: Pairs, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, how: Attention
    ) -> None:
        """
        Adds a layer of a text: query [n_heads, n, head_dim], key and value [n_kv_heads, n, head_dim]. q and k include
        rotary positions.
        """
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
        """
        Returns the dense outputs of the rows at these positions, and dense minus sparse outputs: [n_heads, rows,
        head_dim] float64.
        """
        rows = torch.tensor(at, device=query.device)
        visible = Visible(self.sinks, self.window)
        own = query[:, rows]
        dense, sparse = (mix(weights(own, key, rows, how, v), value).double() for v in (None, visible))
        return dense, dense - sparse

    def end(self, sums: Sums) -> None:
        """Ends a text after all its layers were added."""
        for name in Sums.__dataclass_fields__:
            getattr(self._sums, name)[:] += getattr(sums, name)

    # ---- results for each layer; NaN if no row was compared ----

    def _ratio(self, part: Array, whole: Array) -> Array:
        return numpy.divide(part, whole, out=numpy.full(self.n_layers, numpy.nan), where=whole > 0)

    @property
    def any(self) -> bool:
        """Whether any row was compared. If not, the other results have no meaning."""
        return bool((self._sums.dense > 0).any())

    @property
    def cosine(self) -> Array:
        """Cosine of d and d0, averaged over rows and heads."""
        return self._ratio(self._sums.cosine, self._sums.n)

    @property
    def missed(self) -> Array:
        """Squares of d relative to those of the dense outputs."""
        return self._ratio(self._sums.whole, self._sums.dense)

    @property
    def left(self) -> Array:
        """Squares of d - d0 relative to those of d: below 1 the correction helps. 0 if d is 0."""
        left = self._ratio(self._sums.left, self._sums.whole)
        return numpy.where((self._sums.dense > 0) & (self._sums.whole == 0), 0.0, left)

    @property
    def all_left(self) -> float:
        """The same for all layers together, each relative to its outputs."""
        whole = numpy.nansum(self.missed)
        return float(numpy.nansum(self._ratio(self._sums.left, self._sums.dense)) / whole) if whole > 0 else 0.0
