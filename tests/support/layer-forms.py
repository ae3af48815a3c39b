#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""
layer-forms.py > layer-forms.h - what attention of other models' layers gives: by transformers' own eager attention of
Gemma 2 (softcap, scale, every other layer with a window), gpt-oss (sinks, the same), Mistral (windows), over rows that
the test makes by the same rule. Needs torch and transformers; building and testing need the header alone.
"""
import importlib
import types

import torch
from transformers import masking_utils

TOKENS, HEADS, KV_HEADS, DIM, ROWS = 48, 4, 2, 64, (11, 47)

# name, scale, softcap, windows of the layers, sinks
FORMS = (
    ("gemma2", 24**-0.5, 5.0, (12, 0), False),
    ("gpt_oss", DIM**-0.5, 0.0, (16, 0), True),
    ("mistral", DIM**-0.5, 0.0, (20, 20), False),
)


def number(*parts):
    """A number in [-1, 1): forms_number() of test-layer-forms.c."""
    x = 0x9E3779B9
    for part in parts:
        x = ((x ^ part) * 2654435761) & 0xFFFFFFFF
        x ^= x >> 15
        x = (x * 2246822519) & 0xFFFFFFFF
        x ^= x >> 13
    return (x >> 8) / 2**23 - 1


def rows(form, layer, what, heads):
    size = 4 if what == 0 else 1
    return torch.tensor([[[size * number(form, layer, what, t, h, d) for d in range(DIM)] for t in range(TOKENS)]
                         for h in range(heads)])[None]


def attend(form, layer):
    name, scale, softcap, windows, sinks = FORMS[form]
    model = importlib.import_module(f"transformers.models.{name}.modeling_{name}")
    rule = masking_utils.causal_mask_function
    if windows[layer]:
        rule = masking_utils.sliding_window_causal_mask_function(windows[layer])
    mask = masking_utils.eager_mask(1, TOKENS, TOKENS, mask_function=rule)
    module = types.SimpleNamespace(num_key_value_groups=HEADS // KV_HEADS, head_dim=DIM, training=False)
    module.sinks = torch.tensor([3 * number(form, layer, 3, h) for h in range(HEADS)])
    more = {"softcap": softcap} if softcap else {}
    out, _ = model.eager_attention_forward(module, rows(form, layer, 0, HEADS), rows(form, layer, 1, KV_HEADS),
                                           rows(form, layer, 2, KV_HEADS), mask, scaling=scale, **more)
    return out[0]


def main():
    print("/* SPDX-License-Identifier: Apache-2.0 */")
    print("/* Made by tests/support/layer-forms.py: do not edit. */")
    print(f"#define FORMS_TOKENS {TOKENS}u\n#define FORMS_HEADS {HEADS}u\n#define FORMS_KV_HEADS {KV_HEADS}u")
    print(f"#define FORMS_DIM {DIM}u\n")
    print(f"static const uint32_t forms_rows[{len(ROWS)}] = {{{', '.join(map(str, ROWS))}}};\n")
    print("static const struct form {\n\tconst char *name;\n\tfloat scale, softcap;\n\tuint32_t window[2];\n\tbool sinks;")
    print(f"\tfloat out[2][{len(ROWS)}][{HEADS * DIM}]; /* of each layer, these rows */\n}} forms[] = {{")
    for form, (name, scale, softcap, windows, sinks) in enumerate(FORMS):
        print(f"\t{{\"{name}\", {scale:.9g}f, {softcap}f, {{{windows[0]}, {windows[1]}}}, {str(sinks).lower()}, {{")
        for layer in range(2):
            out = attend(form, layer)
            print("\t\t{")
            for row in ROWS:
                values = [f"{x:.8g}" for x in out[row].flatten().tolist()]
                print("\t\t\t{")
                for i in range(0, len(values), 8):
                    print("\t\t\t\t" + ", ".join(values[i:i + 8]) + ",")
                print("\t\t\t},")
            print("\t\t},")
        print("\t}},")
    print("};")


if __name__ == "__main__":
    main()
