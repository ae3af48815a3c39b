# SPDX-License-Identifier: Apache-2.0
"""
The backend's classes, which vLLM's attention layers call. They pass rows to the connector's worker half, which runs
the step. If there is no worker half (profiling, warm-up, capture of CUDA graphs), attention returns zeros.
"""
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from vllm.v1.attention.backend import (
    AttentionBackend,
    AttentionCGSupport,
    AttentionImpl,
    AttentionMetadata,
    AttentionMetadataBuilder,
    AttentionType,
    CommonAttentionMetadata,
    MultipleOf,
)
from vllm.v1.kv_cache_interface import AttentionSpec, FullAttentionSpec, KVCacheSpec

from .worker import worker_half

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.config.cache import CacheDType


@dataclass
class SparseKVMetadata(AttentionMetadata):
    """
    A batch.

    query_start: [requests + 1]: number of rows before each request
    slots: [rows]: vLLM's slot of each row
    """

    query_start: list[int]
    slots: torch.Tensor


class SparseKVBackend(AttentionBackend):
    """--attention-backend CUSTOM. K and V are in sparsekvd's pages; vLLM's blocks are placeholders."""

    supported_dtypes: ClassVar[list[torch.dtype]] = [torch.float16, torch.bfloat16]
    supported_kv_cache_dtypes: ClassVar[list["CacheDType"]] = ["auto", "float16", "bfloat16"]
    forward_includes_kv_cache_update = True

    @staticmethod
    def get_name() -> str:
        return "CUSTOM"

    @staticmethod
    def get_impl_cls() -> type["SparseKVImpl"]:
        return SparseKVImpl

    @staticmethod
    def get_builder_cls() -> type["SparseKVMetadataBuilder"]:
        return SparseKVMetadataBuilder

    @staticmethod
    def get_supported_kernel_block_sizes(kv_cache_spec: object = None) -> list[int | MultipleOf]:
        return [MultipleOf(16)]

    @classmethod
    def get_supported_head_sizes(cls) -> list[int]:
        return list(range(16, 257, 16))

    @classmethod
    def customize_spec(cls, spec: AttentionSpec) -> AttentionSpec:
        """
        4 bytes a token. A layer with a sliding window is like any other to vLLM: all of its K and V are kept, and the
        library applies the window.
        """
        if not isinstance(spec, FullAttentionSpec):
            spec = FullAttentionSpec(
                block_size=spec.block_size,
                num_kv_heads=spec.num_kv_heads,
                head_size=spec.head_size,
                head_size_v=spec.head_size_v,
                dtype=spec.dtype,
            )
        return replace(spec, num_head_slots=1, state_content_bytes=4, sliding_window=None)

    @classmethod
    def supports_attn_type(cls, attn_type: str) -> bool:
        return attn_type == AttentionType.DECODER

    @classmethod
    def supports_sink(cls) -> bool:
        return True

    @classmethod
    def supports_sliding_window(cls) -> bool:
        return True

    @classmethod
    def supports_batch_invariance(cls) -> bool:
        return True  # a sequence's result depends neither on the batch nor on chunks nor on threads


class SparseKVCPUBackend(SparseKVBackend):
    """Replaces CPU_ATTN, because vLLM expects a backend with that name. Pages in host memory may be fp32, too."""

    supported_dtypes: ClassVar[list[torch.dtype]] = [torch.float32, torch.float16, torch.bfloat16]

    @staticmethod
    def get_name() -> str:
        return "CPU_ATTN"


class SparseKVMetadataBuilder(AttentionMetadataBuilder[SparseKVMetadata]):
    """Assigns rows to requests."""

    @classmethod
    def get_cudagraph_support(cls, vllm_config: "VllmConfig", kv_cache_spec: KVCacheSpec) -> AttentionCGSupport:
        """Steps in which each request decodes one row are replayed as a whole (graphs.py)."""
        alone = vllm_config.speculative_config is None and vllm_config.parallel_config.data_parallel_size == 1
        whole = alone and vllm_config.use_v2_model_runner and vllm_config.device_config.device_type == "cuda"
        return AttentionCGSupport.UNIFORM_SINGLE_TOKEN_DECODE if whole else AttentionCGSupport.NEVER

    def __init__(self, kv_cache_spec: AttentionSpec, layer_names: list[str], vllm_config: "VllmConfig", device: torch.device):
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)

    def build(self, common_prefix_len: int, common_attn_metadata: CommonAttentionMetadata, fast_build: bool = False) -> SparseKVMetadata:
        common = common_attn_metadata
        if common.causal is not True:
            raise NotImplementedError("sparsekv.vllm: the model asks for attention that is not causal")
        return SparseKVMetadata(common.query_start_loc_cpu.tolist(), common.slot_mapping)


class SparseKVImpl(AttentionImpl[SparseKVMetadata]):
    """One layer. model.py passes its attributes to the library."""

    def __init__(
        self,
        num_heads: int,
        head_size: int,
        scale: float,
        num_kv_heads: int | None = None,
        alibi_slopes: list[float] | None = None,
        sliding_window: int | None = None,
        kv_cache_dtype: str = "auto",
        logits_soft_cap: float | None = None,
        attn_type: str = AttentionType.DECODER,
        kv_sharing_target_layer_name: str | None = None,
        sinks: torch.Tensor | None = None,
    ) -> None:
        if alibi_slopes is not None:
            raise NotImplementedError("sparsekv.vllm: the model has ALiBi slopes, expected RoPE or no positions")
        if attn_type != AttentionType.DECODER:
            raise NotImplementedError(f"sparsekv.vllm: attention of type {attn_type}, expected {AttentionType.DECODER.value}")
        self.num_heads = num_heads
        self.head_size = head_size
        self.scale = float(scale)
        self.num_kv_heads = num_kv_heads or num_heads
        self.sliding_window = sliding_window
        self.kv_cache_dtype = kv_cache_dtype
        self.logits_soft_cap = logits_soft_cap
        self.kv_sharing_target_layer_name = kv_sharing_target_layer_name
        self.sinks = sinks

    def forward(
        self,
        layer: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        kv_cache: torch.Tensor,
        attn_metadata: SparseKVMetadata | None,
        output: torch.Tensor,
        output_scale: torch.Tensor | None = None,
        output_block_scale: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """query, output: [rows, num_heads, head_size]; key, value: [rows, num_kv_heads, head_size]. Rows may be padded."""
        if output_scale is not None or output_block_scale is not None:
            raise NotImplementedError("sparsekv.vllm: quantized attention output")
        worker = worker_half()
        if worker is None or not worker.attend(layer.layer_name, attn_metadata, query, key, value, output):
            output.zero_()
        return output
