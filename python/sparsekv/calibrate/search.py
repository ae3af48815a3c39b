# SPDX-License-Identifier: Apache-2.0
"""
Which layers select, by trying sets of them: the search of engine/search.c.

A judge says what each of some sets loses. The search takes one layer of the best set that it knows after the other, and asks
for all sets with another one in its place, until no such set is better, whichever layer is exchanged. There may be better
ones further away.
"""
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from .choose import Choice

Set = tuple[int, ...]  # of layers, ascending
Judge = Callable[[Sequence[Set]], list[float]]


@dataclass
class Found:
    """Every set that was judged, in that order; the best so far where a search ends early."""

    loss: dict[Set, float] = field(default_factory=dict)

    @property
    def best(self) -> Set:
        """Of equals the earlier judged."""
        return min(self.loss, key=lambda s: self.loss[s])

    @property
    def judged(self) -> int:
        return len(self.loss)

    def add(self, sets: Sequence[Set], judge: Judge) -> None:
        new = [s for s in sets if s not in self.loss]
        if new:
            self.loss.update(zip(new, judge(new)))


def neighbours(choice: Choice, layers: Set, place: int) -> list[Set]:
    """All sets with the layer at this place, behind the first and counted round and round, exchanged for another one."""
    others = [layer for layer in layers if layer != layers[place % (choice.n - 1) + 1]]
    return [tuple(sorted([*others, layer])) for layer in choice.layers[1:] if layer not in layers]


def climb(choice: Choice, judge: Judge, start: Set, found: Found) -> None:
    """Search from this set of choice.n layers on. What the judge raises is raised; `found` has then what was judged."""
    found.add([start], judge)
    in_vain = place = 0
    while in_vain + 1 < choice.n:
        before = found.best
        found.add(neighbours(choice, before, place), judge)
        in_vain = in_vain + 1 if found.best == before else 0
        place += 1
