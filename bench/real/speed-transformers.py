#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares the speed of transformers with SparseCache and of sdpa with DynamicCache, in one run.

usage: speed-transformers.py MODEL TEXT [--tokens N] [--new N] [--rounds N] [--policy SPEC[+compile]]... [--dtype TYPE] [--device DEVICE]

Each round reads a prompt of N tokens of TEXT and decodes --new more, with sdpa and with each policy (the order
rotates from round to round). The table has medians: seconds of the prompt, milliseconds a decoded token, and both
relative to sdpa's. +compile: with SparseCache(compile=True). Needs the package sparsekv (./setup check-python makes
an environment with it).
"""
import argparse
import os
import statistics
import sys
import time

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, DynamicCache

import sparsekv
from sparsekv.transformers import SparseCache

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
import policies  # noqa: E402


def now(device):
    if device != "cpu":
        torch.cuda.synchronize()
    return time.perf_counter()


@torch.no_grad()
def measure(model, ids, new, cache):
    """Returns the seconds of the prompt, and the median seconds of a decoded token."""
    device = str(model.device)
    start = now(device)
    token = model(ids, past_key_values=cache, logits_to_keep=1).logits[:, -1:].argmax(-1)
    prompt, steps = now(device) - start, []
    for _ in range(new):
        start = now(device)
        token = model(token, past_key_values=cache, logits_to_keep=1).logits[:, -1:].argmax(-1)
        steps.append(now(device) - start)
    return prompt, statistics.median(steps)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("model")
    p.add_argument("text")
    p.add_argument("--tokens", type=int, default=8000)
    p.add_argument("--new", type=int, default=32)
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--policy", action="append", default=[])
    p.add_argument("--dtype", default="float32")
    p.add_argument("--device", default="cpu")
    a = p.parse_args()
    listed = a.policy or list(policies.specs("transformers", 0.125))
    models = {
        name: AutoModelForCausalLM.from_pretrained(a.model, attn_implementation=name, dtype=getattr(torch, a.dtype)).to(a.device)
        for name in ("sdpa", "sparsekv")
    }
    with open(a.text, encoding="utf-8") as f:
        ids = AutoTokenizer.from_pretrained(a.model)(f.read(), return_tensors="pt").input_ids[:, : a.tokens].to(a.device)
    if ids.shape[1] < a.tokens:
        raise SystemExit(f"{a.text} has {ids.shape[1]} tokens, expected {a.tokens}")
    times = {name: ([], []) for name in ["sdpa", *listed]}
    with sparsekv.private() as client:
        for i in range(a.rounds):
            names = list(times)[i % len(times) :] + list(times)[: i % len(times)]
            for name in names:
                model = models["sdpa" if name == "sdpa" else "sparsekv"]
                spec, _, how = name.partition("+")
                cache = DynamicCache() if name == "sdpa" else SparseCache(spec, client=client, compile=how == "compile")
                for to, seconds in zip(times[name], measure(model, ids, a.new, cache)):
                    to.append(seconds)
                del cache
    base = [statistics.median(x) for x in times["sdpa"]]
    print(f"{a.tokens} tokens, {a.dtype}, {a.device}, {torch.get_num_threads()} threads, torch {torch.__version__}")
    print(f"{'':28} prompt s  of sdpa   token ms  of sdpa  times faster")
    for name, (prompt, step) in times.items():
        x, y = statistics.median(prompt), statistics.median(step)
        print(f"{name:28} {x:8.2f} {x / base[0]:8.2f} {y * 1e3:10.1f} {y / base[1]:8.2f} {base[1] / y:13.2f}")


if __name__ == "__main__":
    main()
