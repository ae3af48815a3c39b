#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""
A chat that survives kill -9.

    sparsekvd is running (systemctl start sparsekvd), or --socket names one's socket
    chat.py MODEL NAME [--policy SPEC] [--socket PATH]

Type a line, read the answer. Kill the program at any point, start it again with the same NAME: the dialogue so far is
there, an answer that was cut off goes on at the token where it stopped, and nothing is read again.
"""
import argparse
import sys

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, TextStreamer

import sparsekv
from sparsekv.transformers import SparseCache

END = "<|im_end|>"


def answer(model, tokenizer, cache, ids):
    streamer = TextStreamer(tokenizer, skip_prompt=True, skip_special_tokens=True)
    out = model.generate(torch.tensor([ids]), past_key_values=cache, max_new_tokens=256, do_sample=False, streamer=streamer)
    return out[0].tolist()


def main():
    p = argparse.ArgumentParser()
    p.add_argument("model")
    p.add_argument("name")
    p.add_argument("--policy", default="sketch")
    p.add_argument("--socket")
    a = p.parse_args()
    tokenizer = AutoTokenizer.from_pretrained(a.model)
    model = AutoModelForCausalLM.from_pretrained(a.model, attn_implementation="sparsekv")
    cache = SparseCache(a.policy, name=a.name, client=sparsekv.Client(a.socket), model=model)
    ids = cache.tokens() if cache.seqs else []
    if ids:
        print(f"[{a.name}: {len(ids)} tokens are here]\n{tokenizer.decode(ids, skip_special_tokens=True)}", flush=True)
    ended = not ids or ids[-1] == tokenizer.convert_tokens_to_ids(END)
    if not ended:
        ids = answer(model, tokenizer, cache, ids)
    while line := sys.stdin.readline():
        turn = f"\n<|im_start|>user\n{line.strip()}{END}\n<|im_start|>assistant\n"
        ids = answer(model, tokenizer, cache, ids + tokenizer(turn.lstrip() if not ids else turn).input_ids)


if __name__ == "__main__":
    main()
