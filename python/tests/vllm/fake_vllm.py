# SPDX-License-Identifier: Apache-2.0
"""
The parts of vLLM's modules that sparsekv.vllm's halves and backend import, for machines with a device but without
vLLM: base classes without behaviour. It must be imported first; it does nothing if vLLM is installed.
"""
import importlib.util
import sys
import types
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class AttentionType(str, Enum):
    DECODER = "decoder"


class AttentionCGSupport(Enum):
    NEVER = 0
    UNIFORM_SINGLE_TOKEN_DECODE = 1


@dataclass(frozen=True)
class MultipleOf:
    base: int


class AttentionMetadataBuilder(Generic[T]):
    def __init__(self, kv_cache_spec: Any, layer_names: list[str], vllm_config: Any, device: Any):
        pass


class AttentionImpl(Generic[T]):
    pass


@dataclass
class KVConnectorStats:
    data: dict[str, Any] = field(default_factory=dict)


class Base:
    pass


MODULES: dict[str, dict[str, Any]] = {
    "vllm": {},
    "vllm.config": {"get_layers_from_vllm_config": lambda config, kind: config.layers},
    "vllm.distributed": {},
    "vllm.distributed.kv_transfer": {"get_kv_transfer_group": lambda: None, "has_kv_transfer_group": lambda: False},
    "vllm.distributed.kv_transfer.kv_connector": {},
    "vllm.distributed.kv_transfer.kv_connector.v1": {},
    "vllm.distributed.kv_transfer.kv_connector.v1.base": {"KVConnectorMetadata": Base, "KVConnectorWorkerMetadata": Base},
    "vllm.distributed.kv_transfer.kv_connector.v1.metrics": {"KVConnectorStats": KVConnectorStats, "KVConnectorPromMetrics": Base},
    "vllm.v1": {},
    "vllm.v1.metrics": {},
    "vllm.v1.metrics.utils": {"create_metric_per_engine": None},
    "vllm.v1.kv_cache_interface": {"AttentionSpec": Base, "FullAttentionSpec": Base, "KVCacheSpec": Base},
    "vllm.v1.attention": {},
    "vllm.v1.attention.backend": {
        "AttentionBackend": Base,
        "AttentionCGSupport": AttentionCGSupport,
        "AttentionImpl": AttentionImpl,
        "AttentionLayer": Base,
        "AttentionMetadata": Base,
        "AttentionMetadataBuilder": AttentionMetadataBuilder,
        "AttentionType": AttentionType,
        "CommonAttentionMetadata": Base,
        "MultipleOf": MultipleOf,
    },
    "vllm.model_executor": {},
    "vllm.model_executor.layers": {},
    "vllm.model_executor.layers.attention": {"Attention": Base},
    "vllm.model_executor.models": {},
    "vllm.model_executor.models.utils": {"extract_layer_index": lambda name: int(name.rpartition(".")[2])},
}

found = importlib.util.find_spec("vllm")
if found is None or found.origin is None:  # at most this folder was found
    for name, members in MODULES.items():
        module = types.ModuleType(name)
        module.__dict__.update(members)
        sys.modules[name] = module
