#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Fetch real texts that no calibration has seen, from Debian packages, and cut cases for sparsekv-eval out of them.

usage: texts.py CASES.jsonl TOKENS ROWS [TEXTS-FOLDER]

A case is about TOKENS of a text as the prompt and the ROWS that follow as the answer, counted as SmolLM2 does: with
`sparsekv-eval --compare` each token of it compares a policy's next-token distribution with dense attention's.
The packages are fetched with apt-get download and unpacked with dpkg-deb: nothing is installed, no root is needed.
"""
import glob
import gzip
import json
import os
import subprocess
import sys
import tempfile

# package; file in it (a pattern); start, after tables of contents and headers; characters of a token
TEXTS = [
    ("vim-runtime", "usr/share/vim/vim*/doc/usr_41.txt", 5000, 3.37),
    ("vim-runtime", "usr/share/vim/vim*/doc/pattern.txt", 3000, 3.15),
    ("vim-runtime", "usr/share/vim/vim*/autoload/netrw.vim", 60000, 2.55),
    ("perl-doc", "usr/share/perl/5*/pod/perlretut.pod", 2000, 3.31),
    ("perl-doc", "usr/share/perl/5*/pod/perlfaq4.pod", 1000, 3.0),
    ("perl-doc", "usr/share/perl/5*/pod/perlglossary.pod", 20000, 3.56),
    ("jargon-text", "usr/share/doc/jargon-text/jargon.txt.gz", 200000, 4.1),
    ("developers-reference", "usr/share/developers-reference/developers-reference.txt.gz", 30000, 4.02),
    ("debian-policy", "usr/share/doc/debian-policy/policy.txt.gz", 60000, 4.23),
]


def fetch(folder):
    """Downloads the packages and unpacks them in `folder`."""
    packages = sorted({package for package, *_ in TEXTS})
    with tempfile.TemporaryDirectory() as work:
        subprocess.run(["apt-get", "download", "-q", *packages], cwd=work, check=True, stdout=sys.stderr)
        for deb in glob.glob(work + "/*.deb"):
            subprocess.run(["dpkg-deb", "-x", deb, folder], check=True)


def read(folder, pattern):
    (path,) = glob.glob(f"{folder}/{pattern}")
    with (gzip.open if path.endswith(".gz") else open)(path, "rb") as f:
        return os.path.basename(path).removesuffix(".gz"), f.read().decode("utf-8", "replace")


def main():
    if len(sys.argv) not in (4, 5):
        sys.exit(__doc__)
    out, tokens, rows = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    folder = sys.argv[4] if len(sys.argv) > 4 else cache + "/sparsekv/texts"
    if not os.path.exists(folder):
        os.makedirs(folder)
        fetch(folder)
    with open(out, "w") as f:
        for _, pattern, begin, rate in TEXTS:
            name, text = read(folder, pattern)
            n_prompt, n_answer = int(tokens * rate), int(rows * rate)
            begin = text.index("\n", begin) + 1
            cut = text.index(" ", begin + n_prompt)  # tokens begin with their space
            if cut + n_answer > len(text):
                sys.exit(f"{name}: {len(text)} characters, {cut + n_answer} expected")
            case = {"id": name, "task": "text", "size": tokens, "eos": False}
            case |= {"prompt": text[begin:cut], "answer": text[cut : cut + n_answer]}
            f.write(json.dumps(case) + "\n")


if __name__ == "__main__":
    main()
