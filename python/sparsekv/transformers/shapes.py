# SPDX-License-Identifier: Apache-2.0
"""
Reads the shape of a transformers model's KV cache from its attention modules, or says why the model is not supported.
"""
from dataclasses import replace
from typing import Any

import torch
from transformers import PreTrainedModel

from ..model import DTYPES, Layer, Model
from ..rope import rope_of
from .identity import Unhashable, identity_of

MAX_HEAD_DIM = 256
MAX_TOKENS = 1 << 24


# The layer_types of a configuration whose state is K and V.
ATTENTION = ("full_attention", "sliding_attention", "chunked_attention")
FAMILIES = "Llama, Qwen2, Qwen3, Mistral, Gemma 2 and 3, Phi-3, gpt-oss, Granite and SmolLM3"


class Unsupported(ValueError):
    """The model cannot run with SparseCache; the text says why."""


def attention_modules(model: PreTrainedModel) -> dict[int, Any]:
    """Returns the decoder's attention modules by layer."""
    found: dict[int, Any] = {}
    for module in model.modules():
        layer: Any = getattr(module, "layer_idx", None)
        if layer is not None and hasattr(module, "scaling") and hasattr(module, "head_dim"):
            found.setdefault(layer, module)
    return found


def sliding_window(module: Any) -> int:
    """The layer's sliding window in tokens; 0: none."""
    if hasattr(module, "sliding_window"):
        return module.sliding_window or 0
    kinds = getattr(module.config, "layer_types", None)
    if kinds and kinds[module.layer_idx] != "sliding_attention":
        return 0
    return getattr(module.config, "sliding_window", None) or 0


def layer_of(module: Any, scale: float) -> Layer:
    sinks = getattr(module, "sinks", None)
    return Layer(
        window=sliding_window(module),
        scale=0.0 if module.scaling == scale else float(module.scaling),
        softcap=float(getattr(module, "attn_logit_softcapping", None) or 0.0),
        sinks=None if sinks is None else tuple(sinks.detach().float().cpu().tolist()),
    )


def other_mixers(model: PreTrainedModel, config: Any) -> list[str]:
    """Kinds of layers with another state than K and V: Mamba, linear attention, convolutions."""
    kinds = {kind for kind in getattr(config, "layer_types", None) or () if kind not in ATTENTION}
    return sorted(kinds) or (["recurrent"] if getattr(model, "_is_stateful", False) else [])


def refuse(model: PreTrainedModel, modules: dict[int, Any]) -> None:
    """Raises Unsupported if pages cannot hold the model's cache."""
    config = model.config.get_text_config(decoder=True)
    name = type(model).__name__
    if model.config.is_encoder_decoder:
        raise Unsupported(f"{name} is an encoder-decoder: cross-attention's K and V are not a sequence's")
    if getattr(config, "kv_lora_rank", None):
        raise Unsupported(f"{name} has multi-head latent attention (MLA): its cache is one latent row a token, not K and V")
    if getattr(config, "num_kv_shared_layers", 0):
        raise Unsupported(f"{name} has layers that share K and V of others, which transformers keeps outside of the cache")
    if getattr(config, "attention_chunk_size", None):
        raise Unsupported(f"{name} has chunked attention: expected full or sliding-window layers")
    if others := other_mixers(model, config):
        raise Unsupported(
            f"{name} is a hybrid or recurrent model: layers ({', '.join(others)}) keep a state between tokens that is not K and V, as Mamba and linear "
            "attention do; a SparseCache holds models with attention alone"
        )
    if sorted(modules) != list(range(config.num_hidden_layers)):
        raise Unsupported(
            f"{name} has attention in {len(modules)} of {config.num_hidden_layers} layers that goes through transformers' "
            f"AttentionInterface: expected all (a layer with layer_idx, head_dim and scaling), as the families {FAMILIES} have"
        )


def rows_dtype(model: PreTrainedModel, module: Any) -> str:
    """
    The dtype of the layer's q, k and v. Quantized weights have other dtypes; their layers compute in the dtype of the
    hidden states, which is that of the embeddings.
    """
    weights = [getattr(getattr(module, "o_proj", None), "weight", None), getattr(model.get_input_embeddings(), "weight", None)]
    names = [str(w.dtype).rpartition(".")[2] for w in weights if w is not None] + [str(model.dtype).rpartition(".")[2]]
    return next((name for name in names if name in DTYPES), names[-1])


def device_of(model: PreTrainedModel, modules: dict[int, Any]) -> torch.device:
    """
    The device on which the layers attend. Offloaded weights are on it only while they are used; accelerate's hook
    names the device. Raises Unsupported.
    """
    found: set[torch.device] = set()
    for module in modules.values():
        held = [t.device for part in (module.parameters(), module.buffers()) for t in part if not t.is_meta]
        hooks = [getattr(part, "_hf_hook", None) for part in module.modules()]
        said = [torch.device(d) for hook in hooks if (d := getattr(hook, "execution_device", None)) is not None]
        if not said and not held:
            raise Unsupported(f"{type(model).__name__}: the weights of layer {module.layer_idx} are not in memory (device meta): expected a model that is loaded")
        found.add((said or held)[0])
    if len(found) > 1:
        raise Unsupported(
            f"{type(model).__name__}: its layers are on several devices ({', '.join(sorted(map(str, found)))}), expected one: the pages of a SparseCache are on one"
        )
    return found.pop()


def model_of(model: PreTrainedModel, max_tokens: int = 0, kv_dtype: str = "", name: str = "") -> Model:
    """
    Returns the shape of the model's KV cache. Raises Unsupported.

    max_tokens: of the longest sequence; 0: the model's max_position_embeddings
    kv_dtype: of the pages; "": the model's
    name: sequences belong to it; "": the model's identity (identity.py)
    """
    modules = attention_modules(model)
    refuse(model, modules)
    config = model.config.get_text_config(decoder=True)
    first = modules[0]
    heads = config.num_attention_heads
    kv_heads = getattr(config, "num_key_value_heads", None) or heads
    shapes = {(m.head_dim, getattr(m, "num_key_value_groups", heads // kv_heads)) for m in modules.values()}
    if len(shapes) > 1:
        raise Unsupported(f"{type(model).__name__} has layers of different shapes (head_dim, group): {sorted(shapes)}, expected one")
    if first.head_dim % 16 or first.head_dim > MAX_HEAD_DIM:
        raise Unsupported(f"head_dim is {first.head_dim}, expected a multiple of 16, at most {MAX_HEAD_DIM}")
    layers = tuple(layer_of(modules[i], first.scaling) for i in range(config.num_hidden_layers))
    dtype, device = rows_dtype(model, first), device_of(model, modules)
    longest = max_tokens or getattr(config, "max_position_embeddings", None) or 131072
    shape = Model(
        name=name or "model",
        n_layers=config.num_hidden_layers,
        n_heads=heads,
        n_kv_heads=kv_heads,
        head_dim=first.head_dim,
        max_tokens=min(longest, MAX_TOKENS),
        kv_dtype=kv_dtype or dtype,
        io_dtype=dtype,
        device="cpu" if device.type == "cpu" else f"cuda:{device.index or 0}",
        scale=float(first.scaling),
        layers=layers if any(layer != Layer() for layer in layers) else (),
        rope=rope_of(config, first.head_dim),
    )
    if name:
        return shape
    try:
        return replace(shape, name=identity_of(model, shape))
    except Unhashable as e:
        raise Unsupported(str(e)) from None
