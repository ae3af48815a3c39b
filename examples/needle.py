#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""
A needle at 7,000 tokens under four policies.

    python3 examples/needle.py MODEL TEXT [--tokens N]

A number is hidden in the middle of TEXT and asked at its end. The prompt is read once; each policy goes on from there as a
fork, attends to an eighth of the tokens, and answers or does not. Of SmolLM2-135M-Instruct and models/prose.txt, in a minute and a half on two cores:

    7014 tokens
    policy                        attended  answer
    full                             1.000  48317.
    sketch?budget=0.125              0.125  48317.
    quest?budget=0.125               0.183  the
    streaming?budget=0.125           0.125  the
"""
import argparse

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import sparsekv
from sparsekv.transformers import SparseCache

POLICIES = ["full", "sketch?budget=0.125", "quest?budget=0.125", "streaming?budget=0.125"]


def main():
    p = argparse.ArgumentParser()
    p.add_argument("model")
    p.add_argument("text")
    p.add_argument("--tokens", type=int, default=7000)
    a = p.parse_args()
    tokenizer = AutoTokenizer.from_pretrained(a.model)
    model = AutoModelForCausalLM.from_pretrained(a.model, attn_implementation="sparsekv")
    with open(a.text, encoding="utf-8") as f:
        words = f.read(6 * a.tokens).split(" ")
    words.insert(len(words) // 2, "The magic number of the harbour is 48317.")
    text = tokenizer.decode(tokenizer(" ".join(words)).input_ids[: a.tokens])
    prompt = f"{text}\n\nThe magic number of the harbour, as said above, is"
    ids = tokenizer(prompt, return_tensors="pt").input_ids
    with sparsekv.private() as client, SparseCache("full", client=client) as cache, torch.no_grad():
        model(ids[:, :-1], past_key_values=cache, logits_to_keep=1)
        print(f"{ids.shape[1]} tokens\n{'policy':28} {'attended':>9}  answer")
        for policy in POLICIES:
            with cache.fork(policy) as fork:
                out = model.generate(ids, past_key_values=fork, max_new_tokens=8, do_sample=False, pad_token_id=0)
                answer = tokenizer.decode(out[0, ids.shape[1] :]).split("\n")[0]
                print(f"{policy:28} {fork.attended_share():9.3f} {answer}", flush=True)


if __name__ == "__main__":
    main()
