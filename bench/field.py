#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""For bench/field.sh: converts a CSV of sparsekv-eval to rows of one CSV of all policies.

usage: field.py SET LIST BUDGET MODEL EVAL.csv      (without arguments: prints the head of the CSV)

SET is the name of the rows' set, LIST the file of policies that were run (such as bench/equal.txt), BUDGET their
budget, and MODEL the checkpoint folder.
"""
import csv
import json
import os
import sys

import reads

HEAD = ["set", "policy", "budget", "spec", "share of K and V read in a step", "share of answer lines right"]
HEAD += ["KL divergence from dense attention", "attended", "kept"]


def names(path, budget):
    """Returns the name of each spec of a list; specs are expanded as equal.sh does."""
    folder, found = os.path.dirname(os.path.abspath(path)), {}
    with open(path) as f:
        for line in f:
            if line.strip() and not line.startswith("#"):
                name, part, spec = line.split()
                found[spec.replace("@", f"{budget * float(part):g}").replace("%", folder)] = name
    return found


def main():
    out = csv.writer(sys.stdout, lineterminator="\n")
    if len(sys.argv) == 1:
        return out.writerow(HEAD)
    called, listed, budget, model, path = sys.argv[1:]
    with open(model + "/config.json") as f:
        config = json.load(f)
    name_of = names(listed, float(budget))
    for spec, row in reads.rows(path).items():
        dense, compared, attended = spec == "full", "kl" in row, row["attended_share"]
        figures = ["" if compared else row["line"], row["kl"] if compared and not dense else ""]
        out.writerow(
            [called, name_of[spec], 1 if dense else budget, spec.replace(os.path.dirname(os.path.abspath(listed)) + "/", "")]
            + [f"{reads.share(spec, float(attended), config):.5f}", *figures, attended, row["kept_share"]]
        )


if __name__ == "__main__":
    main()
