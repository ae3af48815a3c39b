#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares stock vLLM and vLLM with its KV cache in sparsekvd by `vllm bench serve`, as one table.

usage: vllm-serve.py MODEL [--rounds N] [--input N]... [--concurrency N]... [--policy SPEC]... [--output N] [--requests N]
                     [--pool-bytes N] [--dtype TYPE] [--load-format FORMAT]

Each round starts the stock engine, measures it and ends it, then does the same with ours, measuring with each policy
in turn; every other round begins with ours. Prompts are random tokens, with another seed in each measurement but the
same for both engines; prefix caches are off in both. --requests is the least number of requests of a measurement; the
concurrency, if larger, replaces it. The table has medians over the rounds: output tokens a second, milliseconds to
the first token (TTFT) and for each further one (TPOT); these are medians over the requests of a measurement. Needs
vLLM and the package sparsekv (./setup check-python makes an environment with them). $SPARSEKV_TEST_DEVICE=cuda:0 measures
vLLM's CUDA build; --load-format dummy needs a model's configuration and tokenizer only.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import sparsekv

os.environ.setdefault("SKV_SEED", "1")
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "python/tests/vllm"))
from server import ON_CUDA, Server  # noqa: E402

FIGURES = {"output_throughput": "tokens/s", "median_ttft_ms": "TTFT ms", "median_tpot_ms": "TPOT ms"}


def measure(a, server, seed, n_input, concurrency, policy, folder):
    """Runs `vllm bench serve` and returns its figures by name. policy: None for the stock engine."""
    n = max(a.requests, concurrency)
    command = [sys.executable, "-m", "vllm.entrypoints.cli.main", "bench", "serve", "--backend", "openai", "--base-url"]
    command += [f"http://127.0.0.1:{server.port}", "--model", "m", "--tokenizer", a.model, "--dataset-name", "random", "--ignore-eos"]
    command += ["--random-input-len", str(n_input), "--random-output-len", str(a.output), "--seed", str(seed), "--disable-tqdm"]
    command += ["--num-prompts", str(n), "--max-concurrency", str(concurrency), "--temperature", "0"]
    command += ["--save-result", "--result-dir", folder, "--result-filename", "result.json"]
    if policy is not None:
        command += ["--extra-body", json.dumps({"kv_transfer_params": {"sparsekv": {"policy": policy}}})]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"vllm-serve.py: vllm bench serve failed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    result = json.loads(Path(folder, "result.json").read_text(encoding="utf-8"))
    if result["completed"] != n:
        sys.exit(f"vllm-serve.py: {result['completed']} requests were answered, expected {n}: see {server.log}")
    return {name: result[name] for name in FIGURES}


def measure_engine(a, ours, number, folder, found):
    """Starts an engine and measures it; adds the figures to `found` by (policy, input, concurrency)."""
    longest = max(a.input) + a.output + 16
    chunk = 8192 if ON_CUDA else 2048
    args = ["--max-model-len", str(longest), "--max-num-batched-tokens", str(chunk), "--no-enable-prefix-caching", "--load-format", a.load_format]
    args += ["--dtype", a.dtype, "--max-num-seqs", str(max(16, *a.concurrency))]
    if ours is None:
        args += ["--kv-cache-memory-bytes", str(a.pool_bytes)]
    pools = [1 << 30, f"--cuda-pool-bytes={a.pool_bytes}"] if ON_CUDA else [a.pool_bytes]
    with sparsekv.private(*pools) as client, Server(Path(a.model), Path(folder, "server.log"), *args, ours=ours, daemon=client.socket) as server:
        for n_input in a.input:
            for concurrency in a.concurrency:
                seed = 100 * n_input + 10 * concurrency + 1000003 * number
                for i, policy in enumerate([None] if ours is None else a.policy):
                    measured = measure(a, server, seed + i, n_input, concurrency, policy, folder)
                    found.setdefault((policy, n_input, concurrency), []).append(measured)
                    print(f"# {policy or 'stock'}, {n_input} tokens, {concurrency} at once: {measured}", file=sys.stderr, flush=True)


def table(a, found):
    print("| | prompt | at once | " + " | ".join(f"{unit} | of stock" for unit in FIGURES.values()) + " |\n|" + "---|" * (3 + 2 * len(FIGURES)))
    for n_input in a.input:
        for concurrency in a.concurrency:
            stock = {name: statistics.median(x[name] for x in found[None, n_input, concurrency]) for name in FIGURES}
            for policy in [None, *a.policy]:
                row = [f"`{policy}`" if policy else "stock vLLM", f"{n_input:,}", str(concurrency)]
                for name in FIGURES:
                    median = statistics.median(x[name] for x in found[policy, n_input, concurrency])
                    row += [f"{median:.3g}" if median < 1000 else f"{median:,.0f}", f"{median / stock[name]:.2f}"]
                print("| " + " | ".join(row) + " |")


def main():
    p = argparse.ArgumentParser()
    p.add_argument("model")
    p.add_argument("--rounds", type=int, default=2)
    p.add_argument("--input", type=int, action="append")
    p.add_argument("--concurrency", type=int, action="append")
    p.add_argument("--policy", action="append")
    p.add_argument("--output", type=int, default=64)
    p.add_argument("--requests", type=int, default=2)
    p.add_argument("--pool-bytes", type=int, default=4 << 30)
    p.add_argument("--dtype", default="bfloat16" if ON_CUDA else "float32")
    p.add_argument("--load-format", default="auto")
    a = p.parse_args()
    a.input, a.concurrency, a.policy = a.input or [512, 4096], a.concurrency or [1, 8], a.policy or ["full", "sketch"]
    found = {}
    with tempfile.TemporaryDirectory(prefix="vllm-serve-") as folder:
        for number in range(a.rounds):
            engines = [None, {"policy": a.policy[0], "forks": False}]
            for ours in engines if number % 2 == 0 else engines[::-1]:
                measure_engine(a, ours, number, folder, found)
    table(a, found)


if __name__ == "__main__":
    main()
