# SPDX-License-Identifier: Apache-2.0
"""
Runs requests through vLLM's engine on CPU in this process, with K and V in a private daemon, and checks that they
leave nothing behind.

usage: many_requests.py N

The model has random weights. Eight requests run at once, with short prompts and answers of a few tokens, under six
policies. Some have names that are used again, some begin like others. Every fifth is aborted while it waits, reads or
decodes. Prints, before the requests and after each quarter, descriptors and memory of this process and the daemon,
and the pool's free pages; fails unless they stay as they were after the second quarter.
"""
import gc
import json
import os
import random
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
os.environ.setdefault("SKV_SEED", "1")
os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"

from processes import control, daemon_of, flat, of  # noqa: E402
from vllm import EngineArgs, LLMEngine, SamplingParams  # noqa: E402
from vllm.config import KVTransferConfig  # noqa: E402
from vllm.distributed.kv_transfer import get_kv_transfer_group  # noqa: E402

import sparsekv  # noqa: E402

POLICIES = ["full", "sketch?budget=16", "quest?budget=2", "streaming?budget=16", "h2o?budget=16", "kivi?bits=4&residual=16"]
NAMES = [f"talk-{i}" for i in range(12)]
CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 128, "intermediate_size": 128, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 512, "max_position_embeddings": 256, "rms_norm_eps": 1e-5,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e4}, "torch_dtype": "float32", "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip


def engine_of(folder: str, socket: str) -> LLMEngine:
    Path(folder, "config.json").write_text(json.dumps(CONFIG), encoding="utf-8")
    transfer = KVTransferConfig(kv_connector="SparseKVConnector", kv_role="kv_both", kv_connector_extra_config={"socket": socket, "fork_tokens": 16})
    args = EngineArgs(model=folder, skip_tokenizer_init=True, load_format="dummy", dtype="float32", enforce_eager=True, max_model_len=128, max_num_seqs=8)
    args.max_num_batched_tokens, args.kv_cache_memory_bytes, args.kv_transfer_config, args.block_size = 64, 1 << 24, transfer, 16
    return LLMEngine.from_engine_args(args)


class Load:
    """Running requests, each with the number of steps after which it is aborted, or None."""

    def __init__(self, engine: LLMEngine, rng: random.Random):
        self.engine, self.rng = engine, rng
        self.running: dict[str, int | None] = {}
        self.counts = {"answered": 0, "aborted": 0, "failed": 0}
        self.heads = [[rng.randrange(3, 500) for _ in range(40)] for _ in range(4)]

    def ask(self, i: int) -> None:
        ours: dict[str, str] = {"policy": POLICIES[i % len(POLICIES)]}
        if i % 4 == 1:
            ours["name"] = NAMES[i % len(NAMES)]
        tokens = [*self.rng.choice(self.heads)[: self.rng.randrange(41)], *(self.rng.randrange(3, 500) for _ in range(self.rng.randrange(1, 30)))]
        params = SamplingParams(max_tokens=self.rng.randrange(1, 8), temperature=0, ignore_eos=True, detokenize=False, extra_args={"sparsekv": ours})
        self.engine.add_request(str(i), {"prompt_token_ids": tokens}, params)
        self.running[str(i)] = self.rng.randrange(4) if i % 5 == 2 else None

    def step(self) -> None:
        for request, left in list(self.running.items()):
            if left == 0:
                self.engine.abort_request([request])
                del self.running[request]
                self.counts["aborted"] += 1
            elif left is not None:
                self.running[request] = left - 1
        for output in self.engine.step():
            if output.finished and self.running.pop(output.request_id, 0) != 0:
                self.counts["failed" if output.outputs[0].finish_reason == "error" else "answered"] += 1


def settle(load: Load, client: sparsekv.PrivateClient) -> int:
    """Finishes running requests, drops what is kept for later requests, and returns the pool's free pages."""
    while load.running:
        load.step()
    load.engine.reset_prefix_cache(reset_connector=True)
    load.engine.add_request("last", {"prompt_token_ids": [3]}, SamplingParams(max_tokens=1, detokenize=False, extra_args={"sparsekv": {"fork": False}}))
    while load.engine.has_unfinished_requests():
        load.engine.step()
    for name in NAMES:
        control(client, "seq", "drop", name)
    gc.collect()
    return get_kv_transfer_group().worker.session.room().pages


def main() -> None:
    n, rng, figures = int(sys.argv[1]), random.Random(os.environ["SKV_SEED"]), []
    with sparsekv.private(64 << 20, "--segment-bytes=1M") as client, tempfile.TemporaryDirectory() as folder:
        load, daemon = Load(engine_of(folder, client.socket), rng), daemon_of(client)
        for i in range(n + 1):
            if i % (n // 4) == 0:
                pages = settle(load, client)
                figures.append((*of(os.getpid()), *of(daemon), pages))
                print("after %5d: here %d descriptors, %.1f MiB; daemon %d, %.1f MiB; room for %d pages" % (i, *figures[-1]), load.counts, flush=True)
            load.ask(i)
            while len(load.running) >= 8:
                load.step()
        flat(figures)


if __name__ == "__main__":
    main()
