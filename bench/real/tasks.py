#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes tasks in natural language for public models, as a task file for sparsekv-eval.

usage: tasks.py OUT.jsonl [--seed N] [--each N] [--sizes TOKENS,...] [--tasks A,B] [--per-token N] [TEXT...]

All tasks are completions, which small models can do: the answer is in the prompt, far before its end.
    magic    "The magic number of Oslo is 48213." hidden in prose, and asked at its end
    needles  six such sentences; two are asked, one after the other
    lookup   a list of names and codes, one of which is asked again
    code     the last line prints a constant defined far above
    cite     a sentence of the prose is begun again, and must be continued word for word
TEXTs are the prose (default: the project's own documentation). A prompt has about as many tokens as its size says, if
a token of the prose has --per-token characters (default 3.2; 4.5 for novels). The same seed makes the same file.
Answers have no end-of-text token.
"""
import argparse
import glob
import json
import os
import random
import re

CITIES = """Oslo Lisbon Nairobi Lima Quito Dakar Hanoi Seoul Kyoto Turin Porto Ghent Basel Malmo Tampere Cork Leeds Bergen
Riga Vilnius Tallinn Zagreb Split Sofia Varna Ankara Izmir Haifa Amman Muscat Doha Lagos Accra Tunis Rabat Havana Bogota
Cusco Santos Osaka Perth Hobart Darwin Suva Apia Nome Boise Tulsa Akron""".split()
PLACES = "North South East West Harbour Station Market Bridge Gate Park Hill Square".split()
CHARACTERS = {"lookup": 2.3, "code": 2.8}  # average characters of a token


def prose(paths):
    """Returns the sentences of the texts, in order."""
    text = "\n".join(open(p, encoding="utf-8", errors="replace").read() for p in paths)
    text = re.sub(r"(?s:```.*?```)|^[|#].*$", "", text, flags=re.M)  # code, tables, headings
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text)  # links
    text = re.sub(r"[*_`]|<[^>]*>", "", text)
    return [s for s in re.split(r"(?<=[.!?])\s+", re.sub(r"\s+", " ", text)) if 40 < len(s) < 300]


def filler(rng, sentences, characters):
    """Returns prose of at least this length, from a random position on, as a list of sentences."""
    at, n, out = rng.randrange(len(sentences)), 0, []
    while n < characters:
        out.append(sentences[at % len(sentences)])
        n += len(out[-1]) + 1
        at += 1
    return out


def hide(rng, body, facts):
    """Inserts facts among the sentences, but not in the last fifth, where a window would contain them."""
    for fact in facts:
        body.insert(rng.randrange(1, max(2, len(body) * 4 // 5)), fact)
    return " ".join(body)


def number(rng):
    return str(rng.randrange(10000, 100000))


def fact(city, n):
    return f"The magic number of {city} is {n}."


def magic(rng, sentences, characters):
    city, n = rng.choice(CITIES), number(rng)
    body = hide(rng, filler(rng, sentences, characters), [fact(city, n)])
    return f"{body}\n\nThe magic number of {city} is", f" {n}."


def needles(rng, sentences, characters):
    pairs = [(city, number(rng)) for city in rng.sample(CITIES, 6)]
    body = hide(rng, filler(rng, sentences, characters), [fact(*p) for p in pairs])
    (a, x), (b, y) = rng.sample(pairs, 2)
    return f"{body}\n\nThe magic number of {a} is {x}. The magic number of {b} is", f" {y}."


def code_of(rng):
    return rng.choice("BCDFGHKLMNPRSTVX") + rng.choice("BCDFGHKLMNPRSTVX") + str(rng.randrange(100, 1000))


def lookup(rng, sentences, characters):
    names = sorted({f"{a} {b}" for a in CITIES for b in PLACES})
    rng.shuffle(names)
    lines, n = [], 0
    for name in names:
        lines.append(f"{name} -> {code_of(rng)}")
        n += len(lines[-1]) + 1
        if n > characters:
            break
    name, code = rng.choice(lines[: len(lines) * 4 // 5]).split(" -> ")
    return "\n".join(["Stops and their codes:"] + lines + ["", f"{name} ->"]), f" {code}\n"


def code(rng, sentences, characters):
    words = "retry queue cache page block token frame packet buffer cursor window batch".split()
    defs = [f"{rng.choice(words).upper()}_{rng.choice(words).upper()}_{rng.randrange(100)}" for _ in range(6)]
    values = {d: number(rng) for d in dict.fromkeys(defs)}
    lines, n = [f"{d} = {v}" for d, v in values.items()], 0
    while n < characters:
        name, arg, other = (rng.choice(words) for _ in range(3))
        body = f"""
def {name}_{arg}_{rng.randrange(1000)}({arg}, limit={rng.randrange(100)}):
    # {rng.choice(sentences)[:70]}
    for i in range(limit):
        if {arg}[i] > {rng.randrange(1000)}:
            {arg}[i] -= {rng.randrange(100)}
    return {arg}, "{other}\""""
        lines.append(body)
        n += len(body) + 1
    asked = rng.choice(list(values))
    return "\n".join(lines + [f"\nprint({asked})  # {asked} ="]), f" {values[asked]}\n"


def cite(rng, sentences, characters):
    body = filler(rng, sentences, characters)
    quoted = rng.choice([s for s in body[: len(body) * 3 // 5] if len(s.split()) > 14] or body)
    words = quoted.split()
    prompt = f"{' '.join(body)}\n\nTo repeat what was said above, word for word: \"{' '.join(words[:6])}"
    return prompt, " " + " ".join(words[6:14])


TASKS = {f.__name__: f for f in (magic, needles, lookup, code, cite)}


def main():
    p = argparse.ArgumentParser()
    p.add_argument("out")
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--each", type=int, default=8)
    p.add_argument("--sizes", default="2000,4000")
    p.add_argument("--tasks", default=",".join(TASKS))
    p.add_argument("--per-token", type=float, default=3.2)
    p.add_argument("texts", nargs="*")
    a = p.parse_intermixed_args()
    top = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
    own = sorted(glob.glob(f"{top}/*.md") + glob.glob(f"{top}/doc/*.md") + [f"{top}/bench/RESULTS.md"])
    sentences = prose(a.texts or own)
    with open(a.out, "w", encoding="utf-8") as f:
        for task in a.tasks.split(","):
            for size in map(int, a.sizes.split(",")):
                for i in range(a.each):
                    rng = random.Random(f"{a.seed} {task} {size} {i}")
                    characters = int(size * CHARACTERS.get(task, a.per_token))
                    prompt, answer = TASKS[task](rng, sentences, characters)
                    case = {"id": f"{task}-{size}-{i}", "task": task, "size": size, "eos": False}
                    case |= {"prompt": prompt, "answer": answer}
                    f.write(json.dumps(case, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
