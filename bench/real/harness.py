#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs RULER's tasks as lm-evaluation-harness makes and scores them, on a model under several policies.

usage: harness.py MODEL [--tasks A,B] [--length N] [--limit N] [--batch N] [--policy SPEC]... [--device DEVICE]

Each batch of prompts is read once, densely; each policy continues with a fork, so the policies differ only in decode.
The table has the harness's score, and the share of tokens attended to in decode steps. Tasks whose texts the harness
generates need no network: niah_single_1, niah_multikey_2, niah_multikey_3, ruler_vt, ruler_cwe.
Needs lm_eval 0.4.13 with wonderwords and nltk besides the package sparsekv.
"""
import argparse
import hashlib
import os
import sys

import torch
from lm_eval import simple_evaluate
from lm_eval.models.huggingface import HFLM
from transformers import AutoModelForCausalLM, AutoTokenizer

import sparsekv
from sparsekv.transformers import SparseCache

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
import policies  # noqa: E402


class Forks(HFLM):
    """The harness's model; each prompt is read once for all policies."""

    def __init__(self, model, tokenizer, client, batch):
        super().__init__(pretrained=model, tokenizer=tokenizer, batch_size=batch)
        self.client, self.policy, self.read, self.shares = client, "full", {}, []

    @torch.no_grad()
    def prompt_of(self, ids, mask):
        key = hashlib.sha1(ids.numpy().tobytes()).digest()
        if key not in self.read:
            cache = SparseCache("full", client=self.client, kv_dtype="float16")
            position = (mask.cumsum(1) - 1).clamp(min=0)
            for at in range(0, ids.shape[1] - 1, 512):
                part = slice(at, min(at + 512, ids.shape[1] - 1))
                self.model(ids[:, part], attention_mask=mask[:, : part.stop], position_ids=position[:, part],
                           past_key_values=cache, logits_to_keep=1)  # fmt: skip
            self.read[key] = cache
        return self.read[key]

    def _model_generate(self, context, max_length, stop, **kwargs):
        with self.prompt_of(context.cpu(), kwargs["attention_mask"].cpu()).fork(self.policy) as cache:
            out = super()._model_generate(context, max_length, stop, past_key_values=cache, **kwargs)
            self.shares.append(cache.attended_share())
        return out


def score_of(results, length):
    """Returns the harness's score at this length for each task."""
    return {task: next(v for k, v in x.items() if k.startswith(f"{length},")) for task, x in results["results"].items() if len(x) > 1}


def main():
    p = argparse.ArgumentParser()
    p.add_argument("model")
    p.add_argument("--tasks", default="niah_single_1,niah_multikey_2,ruler_vt")
    p.add_argument("--length", type=int, default=4096)
    p.add_argument("--limit", type=int, default=10)
    p.add_argument("--batch", type=int, default=10)
    p.add_argument("--policy", action="append", default=[])
    p.add_argument("--device", default="cpu")
    a = p.parse_args()
    listed = ["full", *(a.policy or policies.specs("harness", 0.125))]
    tokenizer = AutoTokenizer.from_pretrained(a.model)
    model = AutoModelForCausalLM.from_pretrained(a.model, attn_implementation="sparsekv", dtype=torch.float32).to(a.device)
    tasks = a.tasks.split(",")
    print(f"{'':34}" + "".join(f"{task:>18}" for task in tasks) + f"{'attended':>10}", flush=True)
    with sparsekv.private() as client:
        lm = Forks(model, tokenizer, client, a.batch)
        for lm.policy in listed:
            lm.shares.clear()
            results = simple_evaluate(lm, tasks=tasks, limit=a.limit, bootstrap_iters=0, verbosity="ERROR",
                                      metadata={"pretrained": a.model, "max_seq_lengths": [a.length]})  # fmt: skip
            score = score_of(results, a.length)
            share = sum(lm.shares) / len(lm.shares)
            print(f"{lm.policy:34}" + "".join(f"{score.get(task, float('nan')):18.3f}" for task in tasks) + f"{share:10.3f}", flush=True)


if __name__ == "__main__":
    main()
