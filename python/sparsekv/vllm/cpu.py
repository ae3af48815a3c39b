# SPDX-License-Identifier: Apache-2.0
"""
The backend for CPU_ATTN. vLLM's CPU platform always uses that one, regardless of --attention-backend, so it is
overridden: `ChosenBackend` is ours in an engine with our connector, and vLLM's own in any other engine.
"""
from typing import Any


def __getattr__(name: str) -> Any:
    if name != "ChosenBackend":
        raise AttributeError(name)
    from vllm.config import get_current_vllm_config_or_none

    from . import CONNECTOR

    config = get_current_vllm_config_or_none()
    transfer = config.kv_transfer_config if config is not None else None
    if transfer is not None and transfer.has_connector(CONNECTOR):
        from .backend import SparseKVCPUBackend

        return SparseKVCPUBackend
    from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend

    return CPUAttentionBackend
