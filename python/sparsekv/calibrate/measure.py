# SPDX-License-Identifier: Apache-2.0
"""
Collects a calibration's statistics of a model's attention weights: the figures of engine/measure.c.

Rows of a text are processed layer by layer, as the model runs. Stored are the queries and keys of the previous layer,
and the best tokens of each row in all layers. Weights are computed in blocks of rows, so memory does not grow with
the square of the text's length.

Layers here are the full ones (without a sliding window), numbered from 0: policies choose among these.
"""
from dataclasses import dataclass, field

import numpy
import numpy.typing
import torch

from .weights import Attention, blocks, weights

Array = numpy.typing.NDArray[numpy.float64]


@dataclass
class Rows:
    """
    The rows of one text, after some of its layers.

    least: [a][b][kv head of b][kv head of a]
    """

    at: torch.Tensor  # positions of the rows
    shift: Array
    least: Array
    # of the previous layer: queries of the rows; keys
    before: tuple[torch.Tensor, torch.Tensor, Attention] | None = None
    top: list[list[torch.Tensor]] = field(default_factory=list)  # [layer][block of rows] [n_kv_heads, rows, top]


class Measure:
    """
    Accumulated statistics.

    shift: for each layer 1 - the cosine of the weights of all its heads and those of the previous layer, averaged
        over rows (DELTA); 0 for the first layer
    similarity: for layers a <= b, [a][b][kv head of b][kv head of a]: the weight of b's kv head on the `top` best
        tokens of a's, relative to its weight on its own `top` best tokens; minimum over a text's rows, averaged over
        texts (Kascade)
    """

    def __init__(self, n_layers: int, n_kv_heads: int, top: int):
        self.n_layers, self.n_kv_heads, self.top = n_layers, n_kv_heads, top
        self.n_rows = self.n_texts = 0
        self._shift = numpy.zeros(n_layers)
        self.similarity = numpy.zeros((n_layers, n_layers, n_kv_heads, n_kv_heads))

    @property
    def shift(self) -> Array:
        return self._shift / self.n_rows

    def best_heads(self) -> Array:
        """
        Returns the similarity of whole layers [a][b]: the best head of a for each head of b, averaged over the heads
        of b. NaN where a > b.
        """
        whole = self.similarity.max(3).mean(2)
        whole[numpy.tril_indices(self.n_layers, -1)] = numpy.nan
        return whole

    def begin(self, rows: torch.Tensor) -> Rows:
        """Begins a text; rows at these positions are measured."""
        return Rows(rows, numpy.zeros(self.n_layers), numpy.full(self.similarity.shape, numpy.inf))

    def add(self, text: Rows, query: torch.Tensor, key: torch.Tensor, how: Attention) -> None:
        """
        Adds the text's next layer: query [n_heads, n, head_dim], key [n_kv_heads, n, head_dim]. Both include rotary
        positions.
        """
        layer = len(text.top)
        own = query[:, text.at].clone()
        text.top.append([])
        for number, block in enumerate(blocks(torch.arange(len(text.at), device=text.at.device))):
            rows = text.at[block]
            weight = weights(own[:, block], key, rows, how)
            if text.before is not None:
                queries, keys, how_before = text.before
                text.shift[layer] += shift_of(weights(queries[:, block], keys, rows, how_before), weight)
            self._compare(text, layer, number, weight)
        text.before = (own, key.clone(), how)

    def _compare(self, text: Rows, layer: int, block: int, weight: torch.Tensor) -> None:
        """
        Compares a block's weights [n_heads, rows, n] of this layer with the best tokens of each layer so far,
        including its own.
        """
        heads = self.n_kv_heads
        reduced = weight.view(heads, -1, *weight.shape[1:]).sum(1)
        mass, best = reduced.topk(min(self.top, reduced.shape[2]), dim=2)
        text.top[layer].append(best)
        mass = mass.double().sum(2)
        for a in range(layer + 1):
            index = text.top[a][block]
            each = reduced[:, None].expand(-1, heads, -1, -1).gather(3, index[None].expand(heads, -1, -1, -1))
            part = (each.double().sum(3) / mass[:, None]).amin(2).cpu().numpy()
            text.least[a, layer] = numpy.minimum(text.least[a, layer], part)

    def end(self, text: Rows) -> None:
        """Ends a text after all its layers were added."""
        self.n_rows += len(text.at)
        self.n_texts += 1
        self._shift += text.shift
        seen = numpy.triu_indices(self.n_layers)
        self.similarity[seen] += (text.least[seen] - self.similarity[seen]) / self.n_texts


def shift_of(before: torch.Tensor, weight: torch.Tensor) -> float:
    """Returns 1 - the cosine of two layers' weights, [n_heads, rows, n] each, summed over rows."""
    pairs = ((before, weight), (before, before), (weight, weight))
    both, one, other = ((x * y).sum((0, 2), dtype=torch.float64) for x, y in pairs)
    return float((1 - both / (one * other).sqrt()).sum())
