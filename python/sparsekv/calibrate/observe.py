# SPDX-License-Identifier: Apache-2.0
"""
Runs texts through a model and measures the attention of its layers.

The attention implementation NAME gets the queries, keys and values of each layer, with rotary positions; it measures
them and attends as usual. Hooks on the decoder's layers observe the residual stream. A text is read in one call of
the model without a cache, so an interruption loses the current text.
"""
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy
import torch
from transformers import AttentionInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

from ..transformers.shapes import attention_modules
from .correction import Correction
from .measure import Array, Measure
from .progress import Progress
from .texts import Text
from .weights import Attention, attend

NAME = "sparsekv-calibrate"

Tap = Callable[[int, torch.Tensor, torch.Tensor, torch.Tensor, Attention], None]
_tap: Tap | None = None  # of the text that is being read


def attention(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """
    query [1, n_heads, n, head_dim], key and value [1, n_kv_heads, n, head_dim]; returns [1, n, n_heads, head_dim].
    """
    how = Attention(scaling or query.shape[-1] ** -0.5, softcap or 0.0, sliding_window or 0, s_aux)
    if _tap is not None:
        _tap(module.layer_idx, query[0], key[0], value[0], how)
    if how.softcap or how.sinks is not None:  # sdpa supports neither
        return attend(query[0], key[0], value[0], how)[None], None
    return sdpa_attention_forward(module, query, key, value, attention_mask, scaling=scaling, **kwargs)


AttentionInterface.register(NAME, attention)
AttentionMaskInterface.register(NAME, sdpa_mask)


class Change:
    """
    Measures how much attention changes the residual stream: for each layer 1 - the cosine before and after, summed
    over rows.

    "Before" is the input of the decoder layer. "After" is the input of the norm after attention. Exceptions: if that
    norm is applied to attention's output itself (Gemma, OLMo 2), "after" is "before" plus the norm's output. If there
    is no such norm, or if it gets the same input as attention (parallel layers), "after" is "before" plus attention's
    output.
    """

    def __init__(self, model: PreTrainedModel, rows: torch.Tensor):
        modules = attention_modules(model)
        self.sums = numpy.zeros(len(modules))
        self._rows = rows
        self._before: torch.Tensor | None = None
        self._out: torch.Tensor | None = None
        self._handles: list[Any] = []
        names = {module: name for name, module in model.named_modules()}
        for layer, module in modules.items():
            parent = model.get_submodule(names[module].rpartition(".")[0])
            norm = getattr(parent, "post_attention_layernorm", None)
            self._handles += [
                parent.register_forward_pre_hook(self._enters, with_kwargs=True),
                module.register_forward_hook(self._attended(layer, norm is None)),
            ]
            if norm is not None:
                self._handles.append(norm.register_forward_hook(self._normed(layer)))

    def _enters(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._before = args[0] if args else kwargs["hidden_states"]

    def _attended(self, layer: int, last: bool) -> Callable[..., None]:
        def hook(module: Any, args: Any, output: Any) -> None:
            self._out = output[0] if isinstance(output, tuple) else output
            if last and self._before is not None:
                self._add(layer, self._before + self._out)

        return hook

    def _normed(self, layer: int) -> Callable[..., None]:
        def hook(module: Any, args: Any, output: torch.Tensor) -> None:
            assert self._before is not None and self._out is not None
            if args[0] is self._out:
                self._add(layer, self._before + output)
            else:
                self._add(layer, self._before + self._out if args[0] is self._before else args[0])

        return hook

    def _add(self, layer: int, after: torch.Tensor) -> None:
        assert self._before is not None
        x, y = self._before[0, self._rows].double(), after[0, self._rows].double()
        self.sums[layer] += float((1 - (x * y).sum(1) / ((x * x).sum(1) * (y * y).sum(1)).sqrt()).sum())

    def end(self) -> None:
        for handle in self._handles:
            handle.remove()


@contextmanager
def tapped(model: PreTrainedModel, tap: Tap) -> Iterator[None]:
    """Within the block, the model's attention calls `tap` first."""
    global _tap
    before = model.config._attn_implementation
    model.set_attn_implementation(NAME)
    _tap = tap
    try:
        yield
    finally:
        _tap = None
        model.set_attn_implementation(before)


class Observer:
    """
    Reads texts, one at a time.

    full: the model's layers without a sliding window; `measure` numbers them from 0
    """

    def __init__(
        self, model: PreTrainedModel, full: tuple[int, ...], measure: Measure, correction: Correction, progress: Progress
    ) -> None:
        self.model, self.full, self.measure, self.correction = model, full, measure, correction
        self.n_layers = len(attention_modules(model))
        self.n_tokens = 0
        self._progress = progress
        self._change = numpy.zeros(self.n_layers)

    @property
    def weight(self) -> Array:
        """
        For each layer, 1 - the cosine of the residual stream before and after its attention, averaged over rows
        (Kascade).
        """
        return self._change / self.measure.n_rows

    @torch.inference_mode()
    def read(self, text: Text) -> None:
        """Reads and measures one text. Raises Interrupted; the text then does not count."""
        device = self.model.device
        ids = torch.tensor([text.ids], device=device)
        rows = torch.tensor(text.measured(), device=device)
        measured, sums = self.measure.begin(rows), self.correction.begin()
        pairs = self.correction.pairs(len(text.ids), text.rows)

        def tap(layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, how: Attention) -> None:
            if layer in self.full:
                self.measure.add(measured, query, key, how)
                self.correction.add(sums, pairs, layer, query, key, value, how)
            self._progress.add(len(text.ids) / self.n_layers, "reading texts")

        change = Change(self.model, rows)
        try:
            with tapped(self.model, tap):
                self.model(input_ids=ids, use_cache=False, logits_to_keep=1)
        finally:
            change.end()
        self.measure.end(measured)
        self.correction.end(sums)
        self._change += change.sums
        self.n_tokens += len(text.ids)
