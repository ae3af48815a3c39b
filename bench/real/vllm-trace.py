#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Plays one trace of requests against stock vLLM, with its prefix cache, and against vLLM with its KV cache in sparsekvd.

usage: vllm-trace.py MODEL [--rate R]... [--policy SPEC]... [--requests N] [--longest N] [--pool-bytes N] [--seed N]
                     [--load-format FORMAT] [--vocabulary N] [--parked-path FOLDER]

Requests arrive as a Poisson process of R a second. Half of them open a dialogue, with a log-normal number of random tokens
(median 8,192, from 1,024 to --longest); the others are the next turn of one: all tokens before, and 32 to 1,024 more.
A turn is sent when it arrives and the answer before it is complete. Answers have 64 to 2,048 tokens (log-normal, median
256). Both engines play the same trace. Ours names each dialogue's sequence, so that it outlives the request. When the
pool is full, such sequences are dropped, or with --parked-path parked in that folder.

The table has, for each rate, tokens of answers a second, and the median and the 99th percentile of milliseconds to the
first token (TTFT) and for each further one (TPOT). $SPARSEKV_TEST_DEVICE=cuda:0 measures vLLM's CUDA build;
--load-format dummy needs a model's configuration and tokenizer only.
"""
import argparse
import asyncio
import json
import math
import os
import random
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp

import sparsekv

os.environ.setdefault("SKV_SEED", "1")
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "python/tests/vllm"))
from server import ON_CUDA, Server  # noqa: E402


@dataclass
class Dialogue:
    """tokens: of all turns so far, with the answers; turn: taken while one is answered"""

    name: str
    tokens: list[int] = field(default_factory=list)
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)


def trace(a, rate):
    """Returns a list of (seconds, number of the dialogue, its new tokens, length of the answer)."""
    rng = random.Random(a.seed)
    at, n_dialogues, lengths, requests = 0.0, 0, {}, []
    for _ in range(a.requests):
        at += rng.expovariate(rate)
        n_answer = min(2048, max(64, round(rng.lognormvariate(math.log(256), 1))))
        n_new, number = rng.randrange(32, 1025), rng.randrange(n_dialogues) if n_dialogues else 0
        if n_dialogues == 0 or rng.random() < 0.5 or lengths[number] + n_new + n_answer > a.longest:
            number, n_dialogues = n_dialogues, n_dialogues + 1
            n_new = min(a.longest - n_answer, max(1024, round(rng.lognormvariate(math.log(8192), 1))))
        lengths[number] = lengths.get(number, 0) + n_new + n_answer
        requests.append((at, number, [rng.randrange(3, a.vocabulary) for _ in range(n_new)], n_answer))
    return requests


async def ask(session, server, dialogue, tokens, n_answer, policy):
    """Sends a turn. Returns its times: to the first token, and for each further one."""
    async with dialogue.turn:
        dialogue.tokens += tokens
        body = {"model": "m", "prompt": dialogue.tokens, "max_tokens": n_answer, "temperature": 0, "ignore_eos": True, "stream": True, "return_token_ids": True}
        if policy is not None:
            body["kv_transfer_params"] = {"sparsekv": {"policy": policy, "name": dialogue.name}}
        begun, times, ids = time.perf_counter(), [], []
        async with session.post(f"http://127.0.0.1:{server.port}/v1/completions", json=body) as answer:
            if answer.status != 200:
                sys.exit(f"vllm-trace.py: {answer.status}: {(await answer.text())[:500]}")
            async for line in answer.content:
                if line.startswith(b"data: {"):
                    ids += json.loads(line[6:])["choices"][0].get("token_ids") or []
                    times.append(time.perf_counter())
        if len(ids) != n_answer:
            sys.exit(f"vllm-trace.py: an answer has {len(ids)} tokens, expected {n_answer}: see {server.log}")
        dialogue.tokens += ids
        return times[0] - begun, (times[-1] - times[0]) / (n_answer - 1)


async def play(a, server, rate, policy, label):
    requests = trace(a, rate)
    dialogues = [Dialogue(f"{label}-{i}") for i in range(1 + max(number for _, number, _, _ in requests))]
    begun = time.perf_counter()

    async def turn(session, at, number, tokens, n_answer):
        await asyncio.sleep(max(0.0, begun + at - time.perf_counter()))
        return await ask(session, server, dialogues[number], tokens, n_answer, policy)

    limits = aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(timeout=limits, connector=aiohttp.TCPConnector(limit=0, force_close=True), read_bufsize=1 << 20) as session:
        times = await asyncio.gather(*(turn(session, *request) for request in requests))
    return sum(n for *_, n in requests) / (time.perf_counter() - begun), sorted(t[0] for t in times), sorted(t[1] for t in times)


def measure_engine(a, ours):
    """Starts an engine and plays all traces. Returns {(policy, rate): figures}."""
    args = ["--max-model-len", str(a.longest + 16), "--max-num-batched-tokens", "8192", "--max-num-seqs", "64", "--load-format", a.load_format]
    args += [] if ours is not None else ["--kv-cache-memory-bytes", str(a.pool_bytes)]
    pools = [1 << 30, f"--cuda-pool-bytes={a.pool_bytes}"] if ON_CUDA else [a.pool_bytes]
    pools += [f"--parked-path={a.parked_path}"] if a.parked_path else []
    found = {}
    with tempfile.TemporaryDirectory(prefix="vllm-trace-") as folder, sparsekv.private(*pools) as client:
        with Server(Path(a.model), Path(folder, "server.log"), *args, ours=ours, daemon=client.socket) as server:
            for policy in [None] if ours is None else a.policy:
                for rate in a.rate:
                    found[policy, rate] = asyncio.run(play(a, server, rate, policy, f"{policy}-{rate}".partition("?")[0]))
                    print(row(policy, rate, found[policy, rate]), file=sys.stderr, flush=True)
    return found


def row(policy, rate, figures):
    speed, first, each = figures
    times = [1e3 * x[min(len(x) - 1, round(part * len(x)))] for x in (first, each) for part in (0.5, 0.99)]
    return f"| {rate:g} | {f'`{policy}`' if policy else 'stock vLLM'} | {speed:,.0f} | " + " | ".join(f"{t:,.1f}" for t in times) + " |"


def main():
    p = argparse.ArgumentParser()
    p.add_argument("model")
    p.add_argument("--rate", type=float, action="append")
    p.add_argument("--policy", action="append")
    p.add_argument("--requests", type=int, default=400)
    p.add_argument("--longest", type=int, default=65536)
    p.add_argument("--pool-bytes", type=int, default=32 << 30)
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--load-format", default="auto")
    p.add_argument("--vocabulary", type=int, default=32000)
    p.add_argument("--parked-path")
    a = p.parse_args()
    a.rate, a.policy = a.rate or [1.0, 2.0, 4.0], a.policy or ["full", "sketch"]
    found = {**measure_engine(a, None), **measure_engine(a, {"policy": a.policy[0]})}
    print("| requests a second | | tokens/s | TTFT ms, median | 99th | TPOT ms, median | 99th |\n|---|---|---|---|---|---|---|")
    for rate in a.rate:
        for policy in [None, *a.policy]:
            print(row(policy, rate, found[policy, rate]))


if __name__ == "__main__":
    main()
