# SPDX-License-Identifier: Apache-2.0
"""
vLLM on sparsekvd: an attention backend and a connector, out of tree, for vLLM 0.32 on CPU and CUDA.

    sparsekvd &                                              # $SPARSEKV_SOCKET, where it is not the system's
    vllm serve MODEL --kv-transfer-config '{"kv_connector": "SparseKVConnector", "kv_role": "kv_both",
        "kv_connector_extra_config": {"policy": "full"}}'    # on CUDA also: --attention-backend CUSTOM
    curl .../v1/completions -d '{..., "kv_transfer_params": {"sparsekv": {"policy": "delta?budget=0.25", "name": "chat-17"}}}'

vLLM keeps its scheduler, its block tables and its sampling. Its own KV cache shrinks to 4 bytes a token and layer. K
and V are in the daemon's pages, and the number of vLLM's blocks depends on the pool. Installing the package changes
nothing for engines without this connector.

The connector has two halves in two processes: scheduler.py decides which sequences exist and which rows a step has;
worker.py holds the sequences and runs the steps. plan.py has the messages between them. backend.py has the classes
that vLLM's layers call. graphs.py replays decode steps as CUDA graphs, and sampling.py passes on what vLLM sampled.
"""
import logging

CONNECTOR = "SparseKVConnector"
BACKEND = "sparsekv.vllm.backend.SparseKVBackend"
TESTED = "0.32"

log = logging.getLogger("vllm.sparsekv")


def register() -> None:
    """
    The entry point of vllm.general_plugins, which vLLM runs in each of its processes. Registers the connector, the
    backend as CUSTOM, and one for CPU_ATTN that is ours or vLLM's, depending on the engine's connector (cpu.py).
    """
    import vllm
    from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
    from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend

    from .admission import install

    if not vllm.__version__.startswith(TESTED):
        log.warning("sparsekv.vllm is written for vLLM %s, this is %s: what its connectors and backends are given may differ", TESTED, vllm.__version__)
    if CONNECTOR in KVConnectorFactory._registry:
        return
    KVConnectorFactory.register_connector(CONNECTOR, "sparsekv.vllm.connector", CONNECTOR)
    register_backend(AttentionBackendEnum.CUSTOM, BACKEND)
    register_backend(AttentionBackendEnum.CPU_ATTN, "sparsekv.vllm.cpu.ChosenBackend")
    install()
