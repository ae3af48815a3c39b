# SPDX-License-Identifier: Apache-2.0
"""The table bench/policies.txt, for programs in Python."""
import os
import subprocess

HERE = os.path.dirname(os.path.abspath(__file__))


def specs(listed, budget):
    """Returns the specs of a list at a budget, and the name of each; variables as for bench/specs.sh."""
    command = [os.path.join(HERE, "specs.sh"), listed, str(budget)]
    lines = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True).stdout.splitlines()
    return {spec: name for name, spec in (line.split() for line in lines)}


def reads(spec):
    """Returns what a step under the spec reads beside the K and V that it attends to; "-": nothing."""
    with open(os.path.join(HERE, "policies.txt"), encoding="utf-8") as f:
        rows = [line.split() for line in f if not line.startswith("#")]
    of = {row[3].partition("?")[0]: row[1] for row in rows}  # by the policy and its variant
    return of.get(spec.partition("?")[0], "-")
