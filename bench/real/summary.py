#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes one Markdown table from CSV files of sparsekv-eval: tasks, and texts with --compare.

usage: summary.py MODEL TASKS.csv|- TEXTS.csv...

A policy's bytes are the share of K and V that a decode step reads, including the data read for selection. For tasks,
the table has the number of exact answers, over all kinds and for the kind "magic number".
"""
import json
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
import reads  # noqa: E402


def answered(row):
    return f"{round(float(row['exact']) * int(row['n']))} of {row['n']}" if row else ""


def main():
    with open(sys.argv[1] + "/config.json") as f:
        model = json.load(f)
    kinds = {} if sys.argv[2] == "-" else {"tasks": reads.rows(sys.argv[2]), "magic": reads.rows(sys.argv[2], "magic")}
    texts = [reads.rows(p) for p in sys.argv[3:]]
    head = ["policy", "bytes", *kinds]
    head += [f"{x}, text {i + 1}" if len(texts) > 1 else x for i in range(len(texts)) for x in ("KL", "agree", "ΔNLL")]
    print("| " + " | ".join(head) + " |\n|" + "---|" * len(head))
    for policy, row in (texts[0] if texts else kinds["tasks"]).items():
        cells = [f"`{policy}`", f"{reads.share(policy, float(row['attended_share']), model):.3f}"]
        cells += [answered(tasks.get(policy)) for tasks in kinds.values()]
        for text in texts:
            t = text[policy]
            cells += [f"{float(t['kl']):.4f}", f"{float(t['agree']):.3f}", f"{float(t['dnll']):+.3f}"]
        print("| " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
