# SPDX-License-Identifier: Apache-2.0
"""
Hooks into transformers: the attention function, the masks, and the call of a model.

A model's call with a SparseCache is one step of the client library. The step begins before the model's layers run; it
is committed after the last layer, or aborted if one raises an exception (cache.py). So PreTrainedModel.__call__ is
replaced: calls with a SparseCache are passed to it; other calls are unchanged.
"""
import functools
import threading
from collections.abc import Callable
from typing import Any

import torch
from transformers import AttentionInterface, PreTrainedModel
from transformers.generation.utils import GenerationMixin
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

from .cache import SparseCache
from .masks import check_mask
from .shapes import FAMILIES, Unsupported

NAME = "sparsekv"


class Current(threading.local):
    """The cache whose step is open in this thread."""

    cache: SparseCache | None = None


current = Current()


class Ungraded(torch.autograd.Function):
    """
    Attention over pages, which has no gradients. A backward pass raises an exception instead of silently omitting
    gradients.
    """

    @staticmethod
    def forward(ctx: Any, out: torch.Tensor, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        return out.view_as(out)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        raise RuntimeError("a call with a SparseCache has no gradients: expected no backward pass, or a call without past_key_values")


ungraded: Callable[..., torch.Tensor] = getattr(Ungraded, "apply")


@torch.library.custom_op("sparsekv::attend", mutates_args=())
def attend(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, layer: int) -> torch.Tensor:
    """attention() as an opaque operator for torch.compile."""
    if current.cache is None:
        raise ValueError(f"attn_implementation={NAME}, compiled, was called without a SparseCache: expected SparseCache(compile=True), "
                         "which compiles by itself")
    return current.cache.attend(layer, query, key, value)


@attend.register_fake
def _(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, layer: int) -> torch.Tensor:
    batch, heads, n, dim = query.shape
    return query.new_empty((batch, n, heads, dim))


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
    query [batch, n_heads, n, head_dim], key and value [batch, n_kv_heads, n, head_dim], only the new rows; returns
    [batch, n, n_heads, head_dim].
    """
    if torch.compiler.is_compiling():
        return attend(query, key, value, module.layer_idx), None
    if current.cache is not None and current.cache.has_layer(module):
        current.cache.check_layer(module, scaling, sliding_window, softcap)
        if attention_mask is not None:
            raise ValueError(f"layer {module.layer_idx}: {type(module).__name__} attends with a mask of its own: a SparseCache knows causal attention, "
                             "windows and padding alone")
        out = current.cache.attend(module.layer_idx, query, key, value)
        return ungraded(out, query, key, value) if torch.is_grad_enabled() and query.requires_grad else out, None
    if softcap or s_aux is not None:
        raise ValueError(f"attn_implementation={NAME} without a SparseCache attends as sdpa, which has no softcap and no sinks: "
                         "expected past_key_values=SparseCache(...), or attn_implementation=eager")
    return sdpa_attention_forward(module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **kwargs)


def mask(*args: Any, **kwargs: Any) -> torch.Tensor | None:
    """
    With a SparseCache the decoder needs no mask: padding has no rows, and the library knows each layer's window.
    Checks that the mask that the model asks for is equivalent.
    """
    if torch.compiler.is_compiling():
        return None
    if current.cache is None or not current.cache.is_decoder(kwargs.get("config")):
        return sdpa_mask(*args, **kwargs)
    check_mask(current.cache.windows(), **kwargs)
    return None


def cache_of(kwargs: dict[str, Any]) -> SparseCache | None:
    cache = kwargs.get("past_key_values")
    return cache if isinstance(cache, SparseCache) else None


def wrap_call(original: Any) -> Any:
    @functools.wraps(original)
    def __call__(self: PreTrainedModel, *args: Any, **kwargs: Any) -> Any:
        cache = cache_of(kwargs)
        if cache is None or current.cache is not None:
            return original(self, *args, **kwargs)

        def forward(*args: Any, compiled: Any = None, **kwargs: Any) -> Any:
            current.cache = cache
            try:
                return compiled(*args, **kwargs) if compiled else original(self, *args, **kwargs)
            finally:
                current.cache = None

        return cache.call(self, forward, args, kwargs)

    return __call__


def wrap_generate(original: Any) -> Any:
    @functools.wraps(original)
    def generate(self: Any, inputs: torch.Tensor | None = None, *args: Any, **kwargs: Any) -> Any:
        cache = cache_of(kwargs)
        if cache is None:
            return original(self, inputs, *args, **kwargs)
        cache.bind(self)
        cache.expect(inputs if inputs is not None else kwargs.get("input_ids"), kwargs.get("attention_mask"))
        cache.generates = True
        try:
            return original(self, inputs, *args, **kwargs)
        finally:
            cache.generates = False

    return generate


def wrap_loading(original: Any) -> Any:
    """
    Wraps from_pretrained() and from_config(): families with their own attention search for the implementation in
    their own table.
    """

    @functools.wraps(original)
    def load(cls: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return original(cls, *args, **kwargs)
        except KeyError as e:
            if e.args != (NAME,):
                raise
            raise Unsupported(
                f"{cls.__name__} has attention of its own, which does not go through transformers' AttentionInterface: expected a family as {FAMILIES}"
            ) from None

    return classmethod(load)


def install() -> None:
    """Registers the attention implementation and its masks."""
    AttentionInterface.register(NAME, attention)
    AttentionMaskInterface.register(NAME, mask)
    for name in ("from_pretrained", "_from_config"):
        setattr(PreTrainedModel, name, wrap_loading(getattr(PreTrainedModel, name).__func__))
    setattr(PreTrainedModel, "__call__", wrap_call(PreTrainedModel.__call__))
    setattr(GenerationMixin, "generate", wrap_generate(GenerationMixin.generate))
