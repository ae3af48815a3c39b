#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""One Markdown table from two CSV files of sparsekv-eval: tasks, and texts with --compare.

usage: summary.py TASKS.csv|- TEXTS.csv...

A policy's bytes are the share of K and V that a decode step reads, what it reads to choose included: what it attends
to, and page bounds (two keys for the 16 keys and values of a page) or sketches (their bits, and a scale of 16 bits for 64
elements) where it goes by them.
"""
import csv
import sys



def rows(path):
    if path == "-":
        return {}
    with open(path, newline="") as f:
        return {r["policy"]: r for r in csv.DictReader(f) if r["task"] == "all" and r["size"] == "all"}


def bytes_read(policy, row):
    name, _, options = policy.partition("?")
    bits = int(dict(o.split("=", 1) for o in options.split("&") if o).get("bits", 2))
    chosen_by = {"quest": 2 / 32, "sketch": (bits + 0.25) / 32}
    return float(row["attended_share"]) + chosen_by.get(name.split(":")[0], 0)


def main():
    tasks, texts = rows(sys.argv[1]), [rows(p) for p in sys.argv[2:]]
    head = ["policy", "bytes"]
    head += ["tasks"] if tasks else []
    head += [f"{x}, text {i + 1}" if len(texts) > 1 else x for i in range(len(texts)) for x in ("KL", "agree", "ΔNLL")]
    print("| " + " | ".join(head) + " |\n|" + "---|" * len(head))
    for policy, row in (texts[0] if texts else tasks).items():
        cells = [f"`{policy}`", f"{bytes_read(policy, row):.3f}"]
        if tasks:
            t = tasks.get(policy)
            cells.append(f"{round(float(t['exact']) * int(t['n']))} of {t['n']}" if t else "")
        for text in texts:
            t = text[policy]
            cells += [f"{float(t['kl']):.4f}", f"{float(t['agree']):.3f}", f"{float(t['dnll']):+.3f}"]
        print("| " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
