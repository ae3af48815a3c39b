# SPDX-License-Identifier: Apache-2.0
"""What sparsekv-eval wrote as CSV, and the share of K and V that a decode step reads under a policy.

The share is of bytes, pages of 16 bits an element, and what is read to choose is included:

    attended to      as sparsekv-eval has it: of all layers, a dense one counts as 1. Layers that select while they attend
                     densely read nothing more
    quest, raas      page bounds, in layers that are not dense: two keys for the 16 keys and values of a page
    sketch           sketches, in layers that are not dense: their bits, and a scale of 16 bits for a token and kv head
    kascade          all keys, in anchors that attend to their own selection

Where q heads of a group select each for itself (quest, tidal) the share is that of one head: what they read together lies
between that and the group's size times that. Compressed tokens (deltakv, kivi, palu) count as if they were not, and slot
metadata of layers with evicted tokens not at all.
"""
import csv
import json


def rows(path, task="all"):
    """Of each policy the row over all sizes, of one task or of all."""
    found = {}
    with open(path, newline="") as f:
        for r in csv.DictReader(f):
            if r["task"] == task and (r["size"] == "all" or r["policy"] not in found):  # of a single size there is no sum
                found[r["policy"]] = r
    return found


def anchors(options):
    """How many anchors kascade has, of which the first is dense."""
    if "layers" in options:
        return len(options["layers"].split(","))
    if "profile" in options:
        with open(options["profile"]) as f:
            return len(json.load(f)["chosen"]["anchors"])
    return 5


def share(spec, attended, model):
    """Of K and V, by the policy's spec, the share attended to, and the model's config.json."""
    name, _, rest = spec.partition("?")
    name, _, variant = name.partition(":")
    options = dict(o.split("=", 1) for o in rest.split("&") if o)
    layers = model["num_hidden_layers"]
    dim = model.get("head_dim") or model["hidden_size"] // model["num_attention_heads"]
    sparse = 1 - int(options.get("dense", 2 if name == "quest" else 0)) / layers
    if name in ("quest", "raas"):
        return attended + sparse * 2 / 32
    if name == "sketch":
        return attended + sparse * (int(options.get("bits", 2)) * dim / 8 + 2) / (4 * dim)
    if name == "kascade" and not variant.endswith("dense-anchors"):
        selected = (attended * layers - 1) / (layers - 1)  # of a layer that is not dense
        return attended + (anchors(options) - 1) / layers * (1 - selected) / 2
    return attended
