#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""For bench/field.sh: converts a CSV of sparsekv-eval to rows of one CSV of all policies.

usage: field.py SET LIST BUDGET MODEL EVAL.csv      (without arguments: prints the head of the CSV)

SET is the name of the rows' set, LIST the list of bench/policies.txt that was run, BUDGET its budget, and MODEL the
checkpoint folder. $PROFILE is the file of calibrated layers, as for bench/specs.sh.
"""
import csv
import json
import os
import sys

import policies
import reads

HEAD = ["set", "policy", "budget", "spec", "share of K and V read in a step", "share of answer lines wrong"]
HEAD += ["KL divergence from dense attention", "attended", "kept"]


def main():
    out = csv.writer(sys.stdout, lineterminator="\n")
    if len(sys.argv) == 1:
        return out.writerow(HEAD)
    called, listed, budget, model, path = sys.argv[1:]
    with open(model + "/config.json") as f:
        config = json.load(f)
    name_of, folder = policies.specs(listed, budget), os.path.dirname(os.environ["PROFILE"])
    for spec, row in reads.rows(path).items():
        dense, compared, attended = spec == "full", "kl" in row, row["attended_share"]
        wrong = "" if compared else f"{1 - float(row['line']):.4f}"
        figures = [wrong, row["kl"] if compared and not dense else ""]
        out.writerow(
            [called, name_of[spec], 1 if dense else budget, spec.replace(folder + "/", "")]
            + [f"{reads.share(spec, float(attended), config):.5f}", *figures, attended, row["kept_share"]]
        )


if __name__ == "__main__":
    main()
