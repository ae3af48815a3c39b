#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""
Policies on a text of one's own: a plot of what they lose against what they attend to. Needs matplotlib.

    python3 examples/plot.py MODEL TEXT OUTPUT.svg [--tokens N] [--rows N] [--policy NAME]...

The text's first tokens are read once. Then each policy, at shares of 3 to 50 % of the tokens, decodes the rows that follow
as a fork, and is compared with dense attention: the Kullback-Leibler divergence of the next token, mean over the rows.
Of SmolLM2-135M-Instruct and models/prose.txt it printed, in a minute on two cores:

    sketch       attended 0.043  KL 0.0464
    sketch       attended 0.063  KL 0.0248
    sketch       attended 0.125  KL 0.0091
    sketch       attended 0.250  KL 0.0034
    sketch       attended 0.500  KL 0.0008
    quest        attended 0.104  KL 0.3661
    quest        attended 0.124  KL 0.2796
    quest        attended 0.184  KL 0.1241
    quest        attended 0.299  KL 0.0302
    quest        attended 0.534  KL 0.0014
    streaming    attended 0.043  KL 0.4806
    streaming    attended 0.063  KL 0.3500
    streaming    attended 0.125  KL 0.1108
    streaming    attended 0.250  KL 0.0493
    streaming    attended 0.500  KL 0.0098
"""
import argparse

import matplotlib
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import sparsekv
from sparsekv.transformers import SparseCache

matplotlib.use("svg")
from matplotlib import pyplot  # noqa: E402

SHARES = [0.03125, 0.0625, 0.125, 0.25, 0.5]


@torch.no_grad()
def predictions(model, cache, rows):
    """Log-probabilities [row, vocabulary] of decoding the rows one after the other."""
    logits = [model(rows[:, i : i + 1], past_key_values=cache).logits[0, -1] for i in range(rows.shape[1])]
    return torch.stack(logits).float().log_softmax(-1)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("model")
    p.add_argument("text")
    p.add_argument("output")
    p.add_argument("--tokens", type=int, default=3000)
    p.add_argument("--rows", type=int, default=24)
    p.add_argument("--policy", action="append", default=[])
    a = p.parse_args()
    tokenizer = AutoTokenizer.from_pretrained(a.model)
    model = AutoModelForCausalLM.from_pretrained(a.model, attn_implementation="sparsekv")
    with open(a.text, encoding="utf-8") as f:
        ids = tokenizer(f.read(8 * a.tokens), return_tensors="pt").input_ids[:, : a.tokens]
    prompt, rows = ids[:, : -a.rows], ids[:, -a.rows :]
    with sparsekv.private() as client, SparseCache("full", client=client) as cache:
        with torch.no_grad():
            model(prompt, past_key_values=cache, logits_to_keep=1)
        with cache.fork() as fork:
            dense = predictions(model, fork, rows)
        for policy in a.policy or ["sketch", "quest", "streaming"]:
            points = []
            for share in SHARES:
                with cache.fork(f"{policy}?budget={share}") as fork:
                    lost = (dense.exp() * (dense - predictions(model, fork, rows))).sum(-1).mean()
                    points.append((fork.attended_share(), float(lost)))
                    print(f"{policy:12} attended {points[-1][0]:.3f}  KL {points[-1][1]:.4f}", flush=True)
            pyplot.plot(*zip(*points), marker="o", label=policy)
    pyplot.xscale("log")
    pyplot.yscale("log")
    pyplot.xlabel("share of tokens attended to in decode")
    pyplot.ylabel("KL divergence from dense, nats")
    pyplot.legend()
    pyplot.savefig(a.output)


if __name__ == "__main__":
    main()
