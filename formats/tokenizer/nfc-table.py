#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""
Writes nfc-table.c: nfc-table.py >nfc-table.c

From Python's own table of Unicode, but for characters that the package `tokenizers` leaves as they are: its table is that of
Unicode 9, and the same ids are what a model was trained with.
"""
import unicodedata as u

from tokenizers import normalizers

nfc = normalizers.NFC().normalize_str

classes, decompositions, compositions = [], [], []
for c in range(0x110000):
    if 0xd800 <= c < 0xe000:
        continue
    k = u.combining(chr(c))
    # beside a mark of another class, is it put into its order?
    texts = (f"x{chr(c)}\u0334", f"x\u0345{chr(c)}")  # classes 1 and 240
    if k > 1 and nfc(texts[0]) == texts[0] and (k >= 240 or nfc(texts[1]) == texts[1]):
        k = 0
    if k and classes and classes[-1][1:] == [c - 1, k]:
        classes[-1][1] = c
    elif k:
        classes.append([c, c, k])
    d = u.decomposition(chr(c))
    if d and d[0] != "<" and normalizers.NFD().normalize_str(chr(c)) != chr(c):
        parts = [int(x, 16) for x in d.split()]
        decompositions.append((c, parts[0], parts[1] if len(parts) > 1 else 0))
        if len(parts) > 1 and u.normalize("NFC", chr(c)) == chr(c):
            compositions.append((*parts, c))
compositions.sort()


def table(kind, name, rows):
    print(f"\nconst struct {kind} {name}[] = {{")
    line = ""
    for row in rows:
        entry = "{" + ",".join(f"{x:#x}" for x in row) + "},"
        if len(line) + len(entry) > 132:
            print("\t" + line)
            line = ""
        line += entry
    print(f"\t{line}\n}};\nconst uint32_t {name}_n = sizeof({name}) / sizeof(*{name});")


print("""/* SPDX-License-Identifier: Apache-2.0 */
/* formats/tokenizer/nfc-table.c - tables of Unicode 9 for normalization form C, written by nfc-table.py. */
#include "formats/tokenizer/nfc.h\"""")
table("skv_nfc_class", "skv_nfc_classes", classes)
table("skv_nfc_decomposition", "skv_nfc_decompositions", decompositions)
table("skv_nfc_composition", "skv_nfc_compositions", compositions)
