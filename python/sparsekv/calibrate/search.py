# SPDX-License-Identifier: Apache-2.0
"""
Searches for layers that select, by trying sets of layers: the search of engine/search.c.

A judge computes the loss of sets. The search takes one layer after the other of the best set so far, and evaluates
all sets with another layer in its place, until no exchange of any layer is better. The result is a local optimum.
"""
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from .choose import Choice

Set = tuple[int, ...]  # of layers, ascending
Judge = Callable[[Sequence[Set]], list[float]]


@dataclass
class Found:
    """All sets that were evaluated, in order; valid also if the search ends early."""

    loss: dict[Set, float] = field(default_factory=dict)

    @property
    def best(self) -> Set:
        """The best set; of equals the one evaluated first."""
        return min(self.loss, key=lambda s: self.loss[s])

    @property
    def judged(self) -> int:
        return len(self.loss)

    def add(self, sets: Sequence[Set], judge: Judge) -> None:
        new = [s for s in sets if s not in self.loss]
        if new:
            self.loss.update(zip(new, judge(new)))


def neighbours(choice: Choice, layers: Set, place: int) -> list[Set]:
    """
    Returns all sets in which the layer at this place is exchanged for another one. Places count the layers after the
    first and wrap around.
    """
    others = [layer for layer in layers if layer != layers[place % (choice.n - 1) + 1]]
    return [tuple(sorted([*others, layer])) for layer in choice.layers[1:] if layer not in layers]


def climb(choice: Choice, judge: Judge, start: Set, found: Found) -> None:
    """
    Searches from a set of choice.n layers on. If the judge raises an exception, `found` has the sets evaluated so
    far.
    """
    found.add([start], judge)
    in_vain = place = 0
    while in_vain + 1 < choice.n:
        before = found.best
        found.add(neighbours(choice, before, place), judge)
        in_vain = in_vain + 1 if found.best == before else 0
        place += 1
