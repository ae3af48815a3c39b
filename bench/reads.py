# SPDX-License-Identifier: Apache-2.0
"""Reads CSV files of sparsekv-eval, and computes the share of K and V that a decode step reads under a policy.

It is a share of bytes, for pages of 16 bits an element, and includes the data read for selection:

    attended to      as sparsekv-eval reports it: over all layers, dense layers count as 1. Layers that select while
                     they attend densely read nothing more
    quest, raas      page bounds, in layers that are not dense: two keys for the 16 keys and values of a page
    sketch           sketches, in layers that are not dense: their bits, and a scale of 16 bits a token and kv head
    kascade          all keys, in anchors that attend to their own selection

If each q head of a group selects for itself (quest, tidal), the share is that of one head: all heads of the group
together read between this share and this share times the group's size. Compressed tokens (deltakv, kivi, palu) count
as uncompressed; slot metadata of layers with evicted tokens does not count.
"""
import csv
import json


def rows(path, task="all"):
    """For each policy, returns the row over all sizes, for one task or for all."""
    found = {}
    with open(path, newline="") as f:
        for r in csv.DictReader(f):
            # with a single size there is no row of all sizes
            if r["task"] == task and (r["size"] == "all" or r["policy"] not in found):
                found[r["policy"]] = r
    return found


def anchors(options):
    """Returns the number of kascade's anchors, the first of which is dense."""
    if "layers" in options:
        return len(options["layers"].split(","))
    if "profile" in options:
        with open(options["profile"]) as f:
            return len(json.load(f)["chosen"]["anchors"])
    return 5


def share(spec, attended, model):
    """Returns the share of K and V, from the policy's spec, the share attended to, and the model's config.json."""
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
        selected = (attended * layers - 1) / (layers - 1)  # share attended to in a layer that is not dense
        return attended + (anchors(options) - 1) / layers * (1 - selected) / 2
    return attended
