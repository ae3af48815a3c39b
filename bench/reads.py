# SPDX-License-Identifier: Apache-2.0
"""Reads CSV files of sparsekv-eval, and computes the share of K and V that a decode step reads under a policy.

It is a share of bytes, for pages of 16 bits an element, and includes the data read for selection. On top of the tokens
attended to, as sparsekv-eval reports them (over all layers, dense layers count as 1; layers that select while they
attend densely read nothing more), bench/policies.txt says what a step reads:

    bounds:N     page bounds, in layers that are not dense (the first N are, if the spec does not say): two keys for the
                 16 keys and values of a page
    sketches     sketches, in layers that are not dense: their bits, and a scale of 16 bits a token and kv head
    graded       the same, and values of 2 bits with two numbers of 16 bits for 32 elements
    keys         all keys, in layers that attend to their own selection, of which the first is dense

If each q head of a group selects for itself, the share is that of one head: all heads of the group together read
between this share and this share times the group's size. Compressed tokens count as uncompressed; slot metadata of
layers with evicted tokens does not count.
"""
import csv
import json

import policies


def rows(path, task="all"):
    """For each policy, returns the row over all sizes, for one task or for all."""
    found = {}
    with open(path, newline="") as f:
        for r in csv.DictReader(f):
            # with a single size there is no row of all sizes
            if r["task"] == task and (r["size"] == "all" or r["policy"] not in found):
                found[r["policy"]] = r
    return found


def selecting(options):
    """Returns the number of layers that attend to their own selection, and of the dense one before them."""
    if "layers" in options:
        return len(options["layers"].split(","))
    if "profile" in options:
        with open(options["profile"]) as f:
            return len(json.load(f)["chosen"]["anchors"])
    return 5


def share(spec, attended, model):
    """Returns the share of K and V, from the policy's spec, the share attended to, and the model's config.json."""
    kind, _, dense = policies.reads(spec).partition(":")
    options = dict(o.split("=", 1) for o in spec.partition("?")[2].split("&") if o)
    layers = model["num_hidden_layers"]
    dim = model.get("head_dim") or model["hidden_size"] // model["num_attention_heads"]
    sparse = 1 - int(options.get("dense", dense or 0)) / layers
    if kind == "bounds":
        return attended + sparse * 2 / 32
    if kind == "sketches":
        return attended + sparse * (int(options.get("bits", 2)) * dim / 8 + 2) / (4 * dim)
    if kind == "graded":
        return attended + sparse * (2 * dim / 4 + 2 + dim / 8) / (4 * dim)
    if kind == "keys":
        selected = (attended * layers - 1) / (layers - 1)  # share attended to in a layer that is not dense
        return attended + (selecting(options) - 1) / layers * (1 - selected) / 2
    return attended
