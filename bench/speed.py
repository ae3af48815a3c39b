#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Speed at equal quality: makes a Markdown table from the output of bench/field.sh and bench/speed.sh.

usage: speed.py FIELD.csv SPEED.csv

For each policy and set, it finds the smallest measured budget at which the policy reaches the required quality, as at
all larger budgets. The table has that budget, the share of K and V that is read, and the speedup of decode attention
over full.
"""
import csv
import sys

# a set, its figure, the largest value that is good enough
ASKED = [
    ("reference", "share of answer lines wrong", 0.07),
    ("smollm2-3k", "KL divergence from dense attention", 0.05),
    ("smollm2-7k", "KL divergence from dense attention", 0.05),
]


def read(path):
    with open(path, newline="") as f:
        return list(csv.DictReader(f))


def best(rows, figure, asked):
    """Returns the row of the smallest budget from which on all budgets are good enough; None: not even the largest
    is."""
    found = None
    for r in sorted(rows, key=lambda r: -float(r["budget"])):
        if float(r[figure]) > asked:
            break
        found = r
    return found


def main():
    field, speed = read(sys.argv[1]), {(r["name"], r["budget"]): r for r in read(sys.argv[2])}
    sets = [a for a in ASKED if any(r["set"] == a[0] for r in field)]
    print("| policy |" + "".join(f" {s}, ≤ {x}: budget | read | speed-up |" for s, _, x in sets))
    print("|" + "---|" * (1 + 3 * len(sets)))
    for policy in dict.fromkeys(r["policy"] for r in field if r["policy"] != "full"):
        cells = []
        for name, figure, asked in sets:
            r = best([r for r in field if r["set"] == name and r["policy"] == policy], figure, asked)
            timed = r and speed.get((policy, r["budget"]))
            cells += [f"{100 * float(r['budget']):g} %", f"{float(r['share of K and V read in a step']):.3f}"] if r else ["-", "-"]
            cells.append(f"{1 / float(timed['of_full']):.2f}" if timed else "-")
        print(f"| `{policy}` | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
