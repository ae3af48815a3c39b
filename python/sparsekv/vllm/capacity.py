# SPDX-License-Identifier: Apache-2.0
"""
Sets the number of vLLM's blocks to what the daemon's pool can hold. A block is a placeholder of 4 bytes a token and
layer, so vLLM's own computation from its memory would give far too many blocks.
"""
import json
import logging
import subprocess
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import sparsekv

from .admission import try_policy
from .model import shape_of
from .params import EngineParams, engine_params

if TYPE_CHECKING:
    from vllm.config import VllmConfig

log = logging.getLogger("vllm.sparsekv")


def pages(socket: str | None, model: sparsekv.Model, policy: str, n_tokens: int, chunk: int) -> tuple[int, int]:
    """Returns the pages that a session could get now, and those that a sequence of n_tokens needs under the policy."""
    with sparsekv.Client(socket) as client, client.open(model, policy) as session:
        return session.room().pages, session.need(n_tokens, chunk)


def pages_of_device(*args: Any) -> tuple[int, int]:
    """The same in a separate process, so that the engine's process does not create a context on the device."""
    socket, model, *rest = args
    text = json.dumps([socket, asdict(model), *rest])
    got = subprocess.run([sys.executable, "-m", "sparsekv.vllm.capacity"], input=text, capture_output=True, text=True, check=False)
    if got.returncode != 0:
        raise RuntimeError(f"sparsekv.vllm: the pool cannot be asked for its room: {got.stderr.strip().splitlines()[-1:]}")
    room, need = json.loads(got.stdout)
    return room, need


def limit(vllm_config: "VllmConfig") -> None:
    """
    Sets num_gpu_blocks_override unless it is given. Raises ValueError if a request of max_model_len tokens could
    never fit.
    """
    cache, model = vllm_config.cache_config, vllm_config.model_config
    assert vllm_config.kv_transfer_config is not None
    params = engine_params(vllm_config.kv_transfer_config.kv_connector_extra_config)
    kind = vllm_config.device_config.device_type
    shape = shape_of(vllm_config, params, "cuda:0" if kind == "cuda" else "cpu")
    for policy in (params.policy, *(params.capture_policies or ())):
        try_policy(vllm_config, policy)
    ask = pages_of_device if kind == "cuda" else pages
    room, need = ask(params.socket, shape, params.policy, model.max_model_len, vllm_config.scheduler_config.max_num_batched_tokens)
    blocks = blocks_of(room, need, vllm_config, shape, params)
    log.info("sparsekv: the pool has room for %d pages; a request of %d tokens takes %d: %d blocks of %d tokens", room, model.max_model_len, need, blocks, cache.block_size)
    if (blocks - 1) * cache.block_size < model.max_model_len:
        raise ValueError(
            f"sparsekv: --max-model-len is {model.max_model_len}, expected at most {(blocks - 1) * cache.block_size} under policy {params.policy}: the pool has "
            f"room for {room} pages (sparsekvctl status)" + (f", max_tokens is {params.max_tokens}" if params.max_tokens is not None else "")
        )
    if cache.num_gpu_blocks_override is None:
        cache.num_gpu_blocks_override = blocks
    elif cache.num_gpu_blocks_override > blocks:
        raise ValueError(f"--num-gpu-blocks-override is {cache.num_gpu_blocks_override}, expected at most {blocks}: the pool has room for {room} pages")


def blocks_of(room: int, need: int, vllm_config: "VllmConfig", shape: sparsekv.Model, params: EngineParams) -> int:
    """
    Returns the number of blocks, including vLLM's null block. Some pages, at most an eighth, are reserved for forks,
    which copy their last page.
    """
    block_size, max_len = vllm_config.cache_config.block_size, vllm_config.model_config.max_model_len
    copies = shape.n_layers * vllm_config.scheduler_config.max_num_seqs if params.forks else 0
    of_request = -(-max_len // block_size)
    of_block = max(1, -(-need // of_request))
    blocks = (room - min(copies, room // 8)) // of_block
    if params.max_tokens is not None:
        blocks = min(blocks, params.max_tokens // block_size)
    return blocks + 1


def check(vllm_config: "VllmConfig", kv_cache_config: Any) -> None:
    """Raises ValueError if vLLM computed the number of blocks itself, or made them of another size."""
    override, tokens = vllm_config.cache_config.num_gpu_blocks_override, vllm_config.cache_config.block_size
    made = {group.kv_cache_spec.block_size for group in kv_cache_config.kv_cache_groups}
    if made != {tokens}:
        raise ValueError(f"sparsekv.vllm: vLLM's worker has blocks of {sorted(made)} tokens, its engine of {tokens}: expected --block-size {max(made)}")
    if override is None or kv_cache_config.num_blocks > override:
        raise ValueError(
            f"sparsekv.vllm: vLLM has {kv_cache_config.num_blocks} blocks by its own memory, expected the pool's number: "
            "unset VLLM_KV_CACHE_LAYOUT, or give --num-gpu-blocks-override"
        )


def main() -> None:
    socket, model, *rest = json.load(sys.stdin)
    model["rope"] = sparsekv.Rope(**model["rope"])
    print(json.dumps(pages(socket, sparsekv.Model(**model), *rest)))


if __name__ == "__main__":
    main()
