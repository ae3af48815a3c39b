#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""
The tokenizer against the package `tokenizers`, which `pip install tokenizers` brings.

  against-package.py train FOLDER               the small tokenizers of four families, with their own rules, from this tree's texts
  against-package.py golden FOLDER              golden.jsonl: fuzzed texts and their ids, for test-tokenizer
  against-package.py compare TOKENIZE CHARACTERS FILE...
                                           fuzzed texts through the program tests/tokenizer/tokenize and the package; 0
                                           differences expected, of ids and of decoded text
  against-package.py points TOKENIZE FILE...    each code point by itself, beside letters, digits and spaces
"""
import json
import os
import random
import subprocess
import sys
import unicodedata

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

FAMILIES = ("gpt2", "llama3", "qwen", "smollm")
HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.join(HERE, "..", "..")

LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
          r"|\s+(?!\S)|\s+")
QWEN = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")

# ---- the families ------------------------------------------------------------------------------


def byte_level(regex):
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=regex)


def split(pattern):
    return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated"), byte_level(False)])


def family(name):
    t = Tokenizer(models.BPE(ignore_merges=name == "llama3"))
    t.decoder = decoders.ByteLevel()
    if name == "gpt2":
        t.pre_tokenizer = byte_level(True)
        t.post_processor = processors.ByteLevel(trim_offsets=False)
    elif name == "llama3":
        t.pre_tokenizer = split(LLAMA3)
    elif name == "qwen":
        t.normalizer = normalizers.NFC()
        t.pre_tokenizer = split(QWEN)
        t.post_processor = processors.ByteLevel(trim_offsets=False)
    else:
        t.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), byte_level(True)])
    return t


def texts_to_learn():
    for folder, names in (("", ("README.md", "HACKING.md")), ("doc", ("design.md", "policies.md", "operate.md")),
                          ("engine", ("generate.c", "forward.c")), ("man", ("sparsekvd.8", "sparsekv-policy.7"))):
        for name in names:
            with open(os.path.join(ROOT, folder, name), encoding="utf-8") as f:
                yield f.read()
    r = random.Random(7)
    for _ in range(400):
        yield fuzz(r)


def train(folder):
    for name in FAMILIES:
        t = family(name)
        special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
        if name == "llama3":
            special = ["<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"]
        t.train_from_iterator(texts_to_learn(), trainers.BpeTrainer(
            vocab_size=1500, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False,
            special_tokens=special if name == "smollm" else []))
        if name != "smollm":  # behind the vocabulary, where these families have them
            t.add_special_tokens(special)
        t.add_tokens([AddedToken("<think>", normalized=False), AddedToken("word", single_word=True),
                      AddedToken("<mask>", lstrip=True), AddedToken("<tail>", rstrip=True, normalized=False),
                      AddedToken("e\u0301t\u00e9", normalized=True), AddedToken("<think>more", normalized=False)])
        if name == "llama3":
            t.post_processor = processors.Sequence([
                processors.ByteLevel(trim_offsets=True),
                processors.TemplateProcessing(single="<|begin_of_text|> $A",
                                              special_tokens=[("<|begin_of_text|>", t.token_to_id("<|begin_of_text|>"))])])
        t.save(os.path.join(folder, name + ".json"), pretty=False)


# ---- texts -------------------------------------------------------------------------------------

PIECES = [
    "Hello", "world", "the", "don't", "I'LL", "we'Ve", "he'S", "'re", "'\u017f", "'", "''", "naïve", "Straße", "x86_64", "foo(bar)",
    "e\u0301t\u00e9", "\u00e9t\u00e9", "e\u0301", "a\u0323\u0302", "a\u0302\u0323", "\u1100\u1161\u11a8", "\uac00\u11a8", "가각힣", "日本語", "汉字",
    "かな", "ไทย", "हिन्दी", "عربى", "עברית", "Ελληνικά", "кириллица", "\u0130I\u0131i", "ﬁ", "Å\u212b\u2126", "½", "²³", "Ⅳ", "٣٤", "१२",
    "👩‍👩‍👧‍👦", "🏳️‍🌈", "👍🏽", "🇩🇪", "☃", "\u200d", "\u200b", "\ufeff", "\u00ad", "\u180e", "\u0085", "\u00a0", "\u2028", "\u2029", "\u3000",
    "\u1680", "\x0b", "\x0c", "\x1c", "\x1f", "\0", "\x7f", "\ufffd", "\ufffe", "\U0010ffff", "\U0001d400", "\ue000",
    "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|begin_of_text|>", "<|eot_id|>", "<think>", "<think>mor", "<think>more",
    "word", "words", "sword", "<mask>", "<tail>", "<|im_", "<<", "|>", "<",
    ".", ",", "...", "?!", "--", "->", "/*", "*/", "#", "==", "{}", "\\n", "\"", "“”", "—", "…", "_", "$1,234.56",
]
SPACES = [" ", " ", " ", "  ", "   ", " " * 7, "\t", "\t\t", "\n", "\n\n", "\r\n", "\r", "\n ", " \n", "\r\n\r\n\t", ""]


def point(r):
    plane = r.choice((0x80, 0x800, 0x10000, 0x20000, 0x110000))
    while True:
        c = r.randrange(plane)
        # later characters than the libraries' are not compared: Python's table says which there are
        if not 0xd800 <= c < 0xe000 and unicodedata.category(chr(c)) != "Cn":
            return chr(c)


def fuzz(r):
    out = []
    for _ in range(r.choice((1, 3, 10, 30, 60))):
        kind = r.randrange(12)
        if kind < 5:
            out.append(r.choice(PIECES))
        elif kind < 7:
            out.append("".join(point(r) for _ in range(r.randrange(1, 6))))
        elif kind == 7:
            out.append(str(r.randrange(10 ** r.randrange(1, 25))))
        elif kind == 8:
            out.append(r.choice("abcdeé漢 \n-!5") * r.randrange(1, 40))
        elif kind == 9:
            out.append("".join(r.choice("etaoinshrdlu'ETAOIN") for _ in range(r.randrange(1, 30))))
        elif kind == 10:
            out.append("".join(chr(r.choice((0x61, 0x65, 0x300, 0x301, 0x323, 0x345, 0x1100, 0x1161, 0x11a7, 0x11a8, 0x3099, 0x304b,
                                             0x1e0a, 0x95c, 0x93c))) for _ in range(r.randrange(1, 8))))
        else:
            out.append("".join(r.choice(PIECES) for _ in range(r.randrange(1, 4))))
        out.append(r.choice(SPACES))
    if r.randrange(200) == 0:
        out.append("".join(r.choice("etaoinshrdlu") for _ in range(20000)))
    return "".join(out)


def golden(folder):
    r = random.Random(19)
    tokenizers = {name: Tokenizer.from_file(os.path.join(folder, name + ".json")) for name in FAMILIES}
    with open(os.path.join(folder, "golden.jsonl"), "w", encoding="ascii") as f:
        n = 0
        while n < 6000:
            text = fuzz(r)
            if len(text) > 250:
                continue
            n += len(text)
            row = {"text": text}
            for name, t in tokenizers.items():
                ids = t.encode(text).ids
                row[name] = {"ids": ids, "decoded": t.decode(ids)}
                if row[name]["decoded"] == text:
                    del row[name]["decoded"]
            f.write(json.dumps(row, separators=(",", ":")) + "\n")


# ---- comparison --------------------------------------------------------------------------------


def ours(program, path, texts, how):
    data = b"".join(b"%d\n%s" % (len(b), b) for b in (text.encode() for text in texts))
    out = subprocess.run([program, path, how], input=data, stdout=subprocess.PIPE, check=True).stdout
    return out.decode().split("\n")[:-1]


def check(program, path, texts):
    t = Tokenizer.from_file(path)
    differences = []
    t.encode_special_tokens = False
    for text, line, whole in zip(texts, ours(program, path, texts, "decode"), ours(program, path, texts, "template")):
        ids = t.encode(text, add_special_tokens=False).ids
        expected = " ".join(map(str, ids)) + "\t" + t.decode(ids).encode().hex()
        if line != expected or whole != " ".join(map(str, t.encode(text).ids)):
            differences.append((text, line, expected))
    t.encode_special_tokens = True
    for text, line in zip(texts, ours(program, path, texts, "plain")):
        expected = " ".join(map(str, t.encode(text, add_special_tokens=False).ids))
        if line != expected:
            differences.append((text, line, expected))
    return differences


def compare(program, characters, paths, seed):
    r = random.Random(seed)
    texts, n = [], 0
    while n < characters:
        texts.append(fuzz(r))
        n += len(texts[-1])
    bad = 0
    for path in paths:
        differences = check(program, path, texts)
        bad += len(differences)
        print(f"{path}: {len(texts)} texts, {n} characters, seed {seed}: {len(differences)} differences")
        for text, is_, expected in differences[:3]:
            print(f"  {text!r:.300}\n    is       {is_:.300}\n    expected {expected:.300}")
    return bad


def points(program, paths):
    all_points = [c for c in range(0x110000) if not 0xd800 <= c < 0xe000]
    bad = 0
    for path in paths:
        wrong = []
        for at in range(0, len(all_points), 50000):
            part = all_points[at:at + 50000]
            texts = ["{0} a{0}b 1{0}2 {0}{0} e{0}\u0301 '{0}!{0}word".format(chr(c)) for c in part]
            t = Tokenizer.from_file(path)
            for c, text, line in zip(part, texts, ours(program, path, texts, "")):
                if line != " ".join(map(str, t.encode(text, add_special_tokens=False).ids)):
                    wrong.append(c)
        known = [c for c in wrong if unicodedata.category(chr(c)) != "Cn"]
        bad += len(known)
        print(f"{path}: {len(all_points)} code points: {len(known)} differences, and {len(wrong) - len(known)} of characters that "
              f"Unicode {unicodedata.unidata_version} does not have", [hex(c) for c in known[:20]])
    return bad


def main(arguments):
    seed = int(os.environ.get("SKV_SEED", "1"))
    if len(arguments) == 2 and arguments[0] == "train":
        return train(arguments[1])
    if len(arguments) == 2 and arguments[0] == "golden":
        return golden(arguments[1])
    if len(arguments) > 3 and arguments[0] == "compare":
        return compare(arguments[1], int(arguments[2]), arguments[3:], seed) > 0
    if len(arguments) > 2 and arguments[0] == "points":
        return points(arguments[1], arguments[2:]) > 0
    sys.exit(__doc__)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
