# SPDX-License-Identifier: Apache-2.0
"""
Chooses the layers that select, from a calibration's measurements, by the papers' criteria; as engine/choose.c does.

The first candidate of a choice is always chosen. The layers before it attend densely. A layer after a chosen layer,
up to the next chosen one, attends to what that layer selected. Of equals the lower layer or head is taken.
"""
from collections.abc import Sequence
from dataclasses import dataclass

import numpy
import numpy.typing

Array = numpy.typing.NDArray[numpy.float64]


@dataclass(frozen=True)
class Choice:
    """
    A choice among layers.

    layers: the candidates, ascending; only full layers (without a sliding window)
    n: number of layers to choose
    """

    layers: tuple[int, ...]
    n: int

    def sets(self) -> int:
        """About how many sets a search evaluates: each layer is exchanged twice for all others."""
        return 1 + 2 * (self.n - 1) * (len(self.layers) - self.n)


def by_shift(choice: Choice, shift: Array) -> list[int]:
    """
    DELTA: layers with large shifts, "well distributed across the network depth". The candidates after the first are
    divided into n - 1 parts of equal size (the earlier parts have one more if the division leaves a remainder), and
    each part gives the layer with its largest shift.

    shift: of each layer of the model
    """
    chosen, rest = [choice.layers[0]], list(choice.layers[1:])
    for parts_left in range(choice.n - 1, 0, -1):
        size = -(-len(rest) // parts_left)
        chosen.append(max(rest[:size], key=lambda layer: (shift[layer], -layer)))
        rest = rest[size:]
    return chosen


def anchors(choice: Choice, worth: Array) -> list[int]:
    """
    Kascade's Algorithm 1: the layers that maximise the sum over all candidates b of worth[a][b], where a is the
    chosen layer that b follows or is.

    worth: [layers of the model][the same]
    """
    layers = choice.layers
    end = len(layers)
    # with m layers chosen: the sum over the candidates before j
    best = [0.0 if j == 0 else -numpy.inf for j in range(end + 1)]
    last = [[0] * (end + 1) for _ in range(choice.n + 1)]
    for m in range(1, choice.n + 1):
        before, best = best, [-numpy.inf] * (end + 1)
        for i in range(end):
            total = before[i]
            for j in range(i + 1, end + 1):
                total += worth[layers[i]][layers[j - 1]]
                if total > best[j]:
                    best[j], last[m][j] = total, i
    chosen: list[int] = []
    j = end
    for m in range(choice.n, 0, -1):
        j = last[m][j]
        chosen.insert(0, layers[j])
    return chosen


def source(chosen: Sequence[int], layer: int) -> int:
    """Returns the chosen layer that `layer` follows or is; the first chosen layer if `layer` comes before it."""
    return max((c for c in chosen if c <= layer), default=chosen[0])


def head_map(similarity: Array, n_ranks: int = 1) -> list[int]:
    """
    For each head of a layer, returns the head of its anchor layer whose selection suits it best.

    similarity: [heads][anchor's heads]
    n_ranks: heads are split over this number of tensor-parallel ranks, and a head maps to a head of the same rank
    """
    each = len(similarity) // n_ranks
    first = [h // each * each for h in range(len(similarity))]
    return [f + int(row[f : f + each].argmax()) for f, row in zip(first, similarity, strict=True)]
