# SPDX-License-Identifier: Apache-2.0
"""Converts vLLM's description of a model to sparsekv's."""
import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import sparsekv
from sparsekv.rope import rope_of

from .identity import model_identity
from .params import EngineParams

if TYPE_CHECKING:
    from vllm.config import VllmConfig


def refuse(vllm_config: "VllmConfig") -> None:
    """Raises ValueError if the engine's configuration is not supported."""
    parallel, cache, model = vllm_config.parallel_config, vllm_config.cache_config, vllm_config.model_config
    for what in ("tensor_parallel_size", "pipeline_parallel_size", "decode_context_parallel_size", "prefill_context_parallel_size"):
        if getattr(parallel, what, 1) != 1:
            raise ValueError(f"sparsekv.vllm: {what} is {getattr(parallel, what)}, expected 1")
    if parallel.use_ubatching:
        raise ValueError("sparsekv.vllm: expected no --enable-dbo and no --ubatch-size: a step has one batch")
    if vllm_config.scheduler_config.async_scheduling and not vllm_config.use_v2_model_runner:
        raise ValueError(
            "sparsekv.vllm: expected --no-async-scheduling with Model Runner V1: sequences record their token ids, which an "
            "asynchronous scheduler does not know when it plans a step"
        )
    if vllm_config.scheduler_config.async_scheduling and vllm_config.speculative_config is not None:
        raise ValueError("sparsekv.vllm: expected --no-async-scheduling with drafts: how many of them count must be known when the next step is planned")
    if str(cache.cache_dtype) not in ("auto", str(model.dtype).rpartition(".")[2]):
        raise ValueError(f"sparsekv.vllm: --kv-cache-dtype is {cache.cache_dtype}, expected auto: kv_connector_extra_config's kv_dtype, \"fp8\" for one, is the type of K and V here")
    if model.use_mla:
        raise ValueError("sparsekv.vllm: the model has multi-head latent attention (MLA), expected K and V heads")
    spec = vllm_config.speculative_config
    if spec is not None and spec.num_speculative_tokens >= sparsekv.STEP_ROWS:
        raise ValueError(f"sparsekv.vllm: num_speculative_tokens is {spec.num_speculative_tokens}, expected at most {sparsekv.STEP_ROWS - 1}")
    if spec is not None and spec.method not in ("ngram", "ngram_gpu", "suffix"):
        raise ValueError(f"sparsekv.vllm: the speculative method is {spec.method}, expected ngram or suffix: a draft model's layers have no sequences here")


def shape_of(vllm_config: "VllmConfig", params: EngineParams, device: str = "cpu", **more: Any) -> sparsekv.Model:
    """The model's shape according to its configuration, which determines its pages."""
    model, parallel = vllm_config.model_config, vllm_config.parallel_config
    spec = vllm_config.speculative_config
    dtype = str(model.dtype).rpartition(".")[2]
    path = os.path.abspath(str(model.model))
    values: dict[str, Any] = {
        "name": params.model_name or "model",
        "n_layers": model.get_num_layers(parallel),
        "n_heads": model.get_num_attention_heads(parallel),
        "n_kv_heads": model.get_num_kv_heads(parallel),
        "head_dim": model.get_head_size(),
        "max_tokens": model.max_model_len + (spec.num_speculative_tokens if spec is not None else 0),
        "kv_dtype": params.kv_dtype or dtype,
        "io_dtype": dtype,
        "device": device,
        "rope": rope_of(model.hf_text_config, model.get_head_size()),
        "files": path if os.path.isdir(path) and len(path) < 256 else "",
    }
    shape = sparsekv.Model(**{**values, **more})
    return shape if params.model_name else replace(shape, name=model_identity(vllm_config, shape))


def attention_layers(vllm_config: "VllmConfig") -> dict[str, Any]:
    """Returns the model's attention layers by name, in the order in which a forward pass calls them."""
    from vllm.config import get_layers_from_vllm_config
    from vllm.model_executor.layers.attention import Attention
    from vllm.model_executor.models.utils import extract_layer_index

    layers = get_layers_from_vllm_config(vllm_config, Attention)
    return dict(sorted(layers.items(), key=lambda named: extract_layer_index(named[0])))


def model_of(vllm_config: "VllmConfig", params: EngineParams, device: str) -> tuple[sparsekv.Model, dict[str, int]]:
    """Returns the model with properties of its layers, which must exist, and the number of each layer by its name."""
    layers = attention_layers(vllm_config)
    number = {name: i for i, name in enumerate(layers)}
    scale = next(iter(layers.values())).impl.scale
    of_layers = []
    for name, layer in layers.items():
        impl = layer.impl
        sinks = None if impl.sinks is None else [float(x) for x in impl.sinks.float().cpu()]
        shares = impl.kv_sharing_target_layer_name
        if shares is not None and shares not in number:
            raise ValueError(f"sparsekv.vllm: layer {name} shares K and V of {shares}, which is no attention layer")
        of_layers.append(
            sparsekv.Layer(
                window=impl.sliding_window or 0,
                shares_kv=0 if shares is None else 1 + number[shares],
                scale=0.0 if impl.scale == scale else impl.scale,
                softcap=impl.logits_soft_cap or 0.0,
                sinks=sinks,
            )
        )
    first = next(iter(layers.values()))
    plain = all(x == sparsekv.Layer() for x in of_layers)
    model = shape_of(
        vllm_config,
        params,
        device,
        n_layers=len(layers),
        n_heads=first.num_heads,
        n_kv_heads=first.num_kv_heads,
        head_dim=first.head_size,
        scale=scale,
        layers=() if plain else of_layers,
    )
    return model, number
