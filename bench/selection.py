#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Selection rules of the field next to sketch's, on a public model: a simulation that shares nothing with the daemon.

sparsekvd does not implement three of them: moments, twilight and vattention. The others are here for comparison:

  oracle     the best tokens by the true weights; for a kv head, by the largest weight of its group
  sketch     the same by quantized keys (kernels/select.h), with exact denominators
  quest      the best pages of a q head by bounds of q.k
  moments    the best pages of a q head by q.mu + 1/2 (sigma q.v)^2: the logarithm of a page's mean weight to second
             order, for the direction v in which its keys differ most
  twilight   Twilight: from the quarter of the pages that are best by quest's bounds, the fewest tokens of a q head
             whose weights, by keys in 4 bits, have a share p of the sum
  vattention vAttention: 16 first and 32 last tokens, the best ones by sketches, and a uniform sample of the rest of
             the same size, in which each token also counts for those that were not drawn

Prompts are read densely. The rows of the answer are one teacher-forced pass; each row attends as the rule says, in
every layer; the rules by pages (quest, moments, twilight) start at the third layer. It prints the KL divergence of
the next token from dense attention, the agreement of the most probable token, the share of tokens attended to, and
the share of K and V read: by a kv head, for all its q heads, with the data read for selection.

  tests/tokenizer/tokenize is of the build directory: make tests/tokenizer/tokenize
  bench/real/model.py MODEL; bench/real/texts.py TEXTS.jsonl 3000 96
  python3 bench/selection.py MODEL TEXTS.jsonl BUILD [RULE[:SHARE[:BITS]] ...]

Needs only numpy, and 1 GiB of memory for 3,000 tokens.
"""
import argparse
import json
import math
import subprocess

import numpy as np

PAGE, RECENT, FLOOR, SINKS = 16, 32, 128, 16
NEVER = np.float32(-1e30)
STEP = {2: 1.0, 3: 0.586, 4: 0.335}  # quantization step of a code, relative to the root mean square


class Model:
    """A Llama model with its weights in fp32."""

    def __init__(self, path):
        raw = np.memmap(f"{path}/model.safetensors", dtype=np.uint8, mode="r")
        size = int.from_bytes(raw[:8].tobytes(), "little")
        self.weights, data = {}, raw[8 + size:]
        for name, about in json.loads(raw[8:8 + size].tobytes()).items():
            if name != "__metadata__":
                begin, end = about["data_offsets"]
                flat = np.frombuffer(data[begin:end].tobytes(), dtype=np.uint16 if about["dtype"] == "BF16" else np.float32)
                if about["dtype"] == "BF16":
                    flat = (flat.astype(np.uint32) << 16).view(np.float32)
                self.weights[name] = flat.reshape(about["shape"])
        c = json.load(open(f"{path}/config.json"))
        self.layers, self.heads, self.kv = c["num_hidden_layers"], c["num_attention_heads"], c["num_key_value_heads"]
        self.group, self.eps = self.heads // self.kv, c["rms_norm_eps"]
        self.dim = c.get("head_dim") or c["hidden_size"] // self.heads
        self.inverse = 1 / c["rope_theta"] ** (np.arange(0, self.dim, 2) / self.dim)

    def weight(self, layer, name):
        return self.weights[f"model.layers.{layer}.{name}.weight"]

    def norm(self, x, weight):
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + self.eps) * weight

    def rope(self, x, positions):
        angle = (positions[:, None] * np.tile(self.inverse, 2)[None]).astype(np.float32)
        half = self.dim // 2
        return x * np.cos(angle) + np.concatenate((-x[..., half:], x[..., :half]), -1) * np.sin(angle)

    def qkv(self, x, layer, positions):
        h = self.norm(x, self.weight(layer, "input_layernorm"))
        split = lambda name, n: (h @ self.weight(layer, f"self_attn.{name}").T).reshape(len(x), n, self.dim).transpose(1, 0, 2)
        return (self.rope(split("q_proj", self.heads), positions), self.rope(split("k_proj", self.kv), positions),
                split("v_proj", self.kv))

    def finish(self, x, out, layer):
        x = x + out.transpose(1, 0, 2).reshape(len(x), -1) @ self.weight(layer, "self_attn.o_proj").T
        h = self.norm(x, self.weight(layer, "post_attention_layernorm"))
        gate = h @ self.weight(layer, "mlp.gate_proj").T
        return x + (gate / (1 + np.exp(-gate)) * (h @ self.weight(layer, "mlp.up_proj").T)) @ self.weight(layer, "mlp.down_proj").T

    def embed(self, ids):
        return self.weights["model.embed_tokens.weight"][ids]

    def log_probs(self, x):
        head = self.weights.get("lm_head.weight", self.weights["model.embed_tokens.weight"])
        y = self.norm(x, self.weights["model.norm.weight"]) @ head.T
        y -= y.max(-1, keepdims=True)
        return y - np.log(np.exp(y).sum(-1, keepdims=True))

    def read(self, ids):
        """Reads a prompt densely; returns K and V of each layer."""
        x, positions, kept = self.embed(ids), np.arange(len(ids)), []
        for layer in range(self.layers):
            q, k, v = self.qkv(x, layer, positions)
            kept.append((k, v))
            out = np.empty_like(q)
            for begin in range(0, len(ids), 512):
                rows = slice(begin, min(begin + 512, len(ids)))
                for h in range(self.heads):
                    s = q[h, rows] @ k[h // self.group, :rows.stop].T / math.sqrt(self.dim)
                    s[np.arange(rows.stop)[None] > positions[rows][:, None]] = NEVER
                    out[h, rows] = softmax(s) @ v[h // self.group, :rows.stop]
            x = self.finish(x, out, layer)
        return kept


def softmax(s):
    w = np.exp(s - s.max(-1, keepdims=True))
    return w / w.sum(-1, keepdims=True)


def hadamard(n):
    h = np.ones((1, 1), np.float32)
    while len(h) < n:
        h = np.block([[h, h], [h, -h]])
    return h / math.sqrt(n)


def sketches_of(k, bits):
    """Quantizes keys [head][token][dim] to sketches of `bits` bits, and returns them dequantized."""
    dim = k.shape[-1]
    rotate = hadamard(dim) * np.sign(np.random.default_rng(7).standard_normal(dim)).astype(np.float32)
    mean = k[:, :PAGE].mean(1, keepdims=True)
    x = (k - mean) @ rotate.T
    if bits == 1:
        code = np.where(x < 0, -0.5, 0.5)
    else:
        step = STEP[bits] * np.sqrt((x * x).mean(-1, keepdims=True)) + 1e-20
        code = np.clip(np.floor(x / step), -2 ** (bits - 1), 2 ** (bits - 1) - 1) + 0.5
    scale = (x * code).sum(-1, keepdims=True) / (code * code).sum(-1, keepdims=True)
    return (code * scale).astype(np.float32) @ rotate + mean


def best(score, allowed, count):
    """Masks the `count` best allowed tokens of each row: score [.., row, n], count [row]."""
    s = np.where(allowed, score, -np.inf).astype(np.float32)
    at = np.clip(count, 1, s.shape[-1]).astype(int) - 1
    most = at.max() + 1
    top = np.sort(np.partition(s, s.shape[-1] - most, -1)[..., -most:], -1)
    least = np.take_along_axis(top, np.broadcast_to((most - 1 - at)[:, None], s.shape[:-1] + (1,)), -1)
    return (s >= least) & allowed & (count > 0)[:, None]


class Rows:
    """The rows of an answer in one layer, for the rules. All masks are [kv head or q head][row][token]."""

    def __init__(self, m, q, k, first):
        n = k.shape[1]
        self.m, self.q, self.k, self.n = m, q, k, n
        self.at = np.arange(first, n)
        self.causal = np.arange(n)[None] <= self.at[:, None]
        self.pages = (n + PAGE - 1) // PAGE
        self.page_there = np.arange(self.pages)[None] <= (self.at // PAGE)[:, None]
        self.page_last = np.arange(self.pages)[None] == (self.at // PAGE)[:, None]
        self.recent = self.causal & (np.arange(n)[None] > self.at[:, None] - RECENT)

    def scores(self, k):
        s = self.q @ np.repeat(k, self.m.group, 0).transpose(0, 2, 1) / math.sqrt(self.m.dim)
        return np.where(self.causal, s, NEVER)

    def any_of_group(self, mask):
        return mask.reshape(self.m.kv, self.m.group, len(self.at), -1).any(1)

    def tokens(self, share):
        return np.maximum(np.ceil(share * (self.at + 1)), FLOOR)

    def paged(self, x, fill):
        pad = -self.n % PAGE
        return np.pad(x, ((0, 0), (0, pad), (0, 0)), constant_values=fill).reshape(self.m.kv, self.pages, PAGE, -1)

    def bounds(self):
        low, high = self.paged(self.k, 1e4).min(2), self.paged(self.k, -1e4).max(2)
        spread = lambda x: np.repeat(x, self.m.group, 0).transpose(0, 2, 1)
        return np.maximum(self.q, 0) @ spread(high) + np.minimum(self.q, 0) @ spread(low)

    def moments(self):
        k, there = self.paged(self.k, 0), self.paged(np.ones_like(self.k[..., :1]), 0)
        n = there.sum(2)
        mean = k.sum(2) / n
        _, sigma, v = np.linalg.svd((k - mean[:, :, None]) * there / np.sqrt(n)[..., None], full_matrices=False)
        spread = lambda x: np.repeat(x, self.m.group, 0).transpose(0, 2, 1) / math.sqrt(self.m.dim)
        return self.q @ spread(mean) + (self.q @ spread(v[:, :, 0] * sigma[:, :, :1])) ** 2 / 2

    def of_pages(self, score, share):
        """Mask of a kv head's tokens: those of the best pages of each q head, and of the last page."""
        count = np.maximum(np.ceil(share * (self.at // PAGE + 1)), FLOOR // PAGE) - 1
        chosen = self.any_of_group(best(score, self.page_there & ~self.page_last, count)) | self.page_last
        return np.repeat(chosen, PAGE, -1)[..., :self.n] & self.causal

    def of_tokens(self, scores, share):
        weight = softmax(scores).reshape(self.m.kv, self.m.group, len(self.at), -1).max(1)
        return best(weight, self.causal & ~self.recent, self.tokens(share) - RECENT) | self.recent


# A rule returns (mask of a kv head's tokens, their multiplicities or None, share of K and V read for selection).

def oracle(r, share, bits):
    return r.of_tokens(r.scores(r.k), share), None, 0.5


def sketch(r, share, bits):
    return r.of_tokens(r.scores(sketches_of(r.k, bits)), share), None, bits / 32 + 1 / (2 * r.m.dim)


def quest(r, share, bits):
    return r.of_pages(r.bounds(), share), None, 1 / PAGE


def moments(r, share, bits):
    return r.of_pages(r.moments(), share), None, 1 / PAGE


def twilight(r, share, bits):
    base = r.of_pages(r.bounds(), 0.25)
    s = np.where(np.repeat(base, r.m.group, 0), r.scores(sketches_of(r.k, 4)), NEVER)
    w = softmax(s)
    order = np.argsort(-w, -1)
    sums = np.cumsum(np.take_along_axis(w, order, -1), -1)
    chosen = np.zeros_like(w, bool)
    np.put_along_axis(chosen, order, sums - np.take_along_axis(w, order, -1) < share, -1)
    read = (base & r.causal).sum() / r.causal.sum() / r.m.kv
    return r.any_of_group(chosen) & r.causal, None, 1 / PAGE + read * (4 / 32 + 1 / (2 * r.m.dim))


def vattention(r, share, bits):
    first = np.arange(r.n)[None] < SINKS
    sure = r.of_tokens(r.scores(sketches_of(r.k, bits)), share / 2) | (first & r.causal)
    rest = r.causal & ~sure
    draws = np.ceil(share / 2 * (r.at + 1))
    drawn = best(np.random.default_rng(r.n).random(rest.shape), rest, draws)
    each = rest.sum(-1, keepdims=True) / np.maximum(drawn.sum(-1, keepdims=True), 1)
    return sure | drawn, np.where(drawn, each, 1), bits / 32 + 1 / (2 * r.m.dim)


RULES = {f.__name__: f for f in (oracle, sketch, quest, moments, twilight, vattention)}
DENSE = {"quest": 2, "moments": 2, "twilight": 2}  # first layers, as in Quest


def answer(m, kept, ids, first, rule, share, bits):
    """Returns the log probabilities of the rows from `first` on, the share attended to, and the share read."""
    x, positions, attended, read = m.embed(ids[first:]), np.arange(first, len(ids)), 0, 0
    for layer in range(m.layers):
        q, k, v = m.qkv(x, layer, positions)
        k, v = np.concatenate((kept[layer][0], k), 1), np.concatenate((kept[layer][1], v), 1)
        r = Rows(m, q, k, first)
        s, mine, more = r.scores(k), 1, 0
        if rule and layer >= DENSE.get(rule, 0):
            mask, times, more = RULES[rule](r, share, bits)
            mine = (mask & r.causal).sum() / m.kv / r.causal.sum()
            s = np.where(np.repeat(mask, m.group, 0), s if times is None else s + np.log(np.repeat(times, m.group, 0)), NEVER)
        attended, read = attended + mine / m.layers, read + (mine + more) / m.layers
        x = m.finish(x, softmax(s) @ np.repeat(v, m.group, 0), layer)
    return m.log_probs(x), attended, read


def tokens_of(model, build, text):
    said = subprocess.run([f"{build}/tests/tokenizer/tokenize", f"{model}/tokenizer.json", "plain"], check=True,
                          input=f"{len(text.encode())}\n{text}".encode(), capture_output=True)
    return np.array([int(x) for x in said.stdout.split()])


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("model")
    p.add_argument("texts")
    p.add_argument("build")
    p.add_argument("rules", nargs="*")
    p.add_argument("--limit", type=int, default=1000, help="texts")
    p.add_argument("--rows", type=int, default=96)
    args = p.parse_intermixed_args()
    m = Model(args.model)
    specs = [(r.split(":") + ["0.0625"])[:2] + [int((r.split(":") + ["", "2"])[2]) if r.count(":") > 1 else 2] for r in args.rules]
    figures = {i: [] for i in range(len(specs))}
    for line in open(args.texts).read().splitlines()[:args.limit]:
        case = json.loads(line)
        ids = tokens_of(args.model, args.build, case["prompt"] + case["answer"])
        first = len(ids) - args.rows
        kept = m.read(ids[:first])
        dense, _, _ = answer(m, kept, ids, first, None, 0, 0)
        for i, (rule, share, bits) in enumerate(specs):
            y, attended, read = answer(m, kept, ids, first, rule, float(share), bits)
            figures[i].append(((np.exp(dense) * (dense - y)).sum(-1).mean(), (dense.argmax(-1) == y.argmax(-1)).mean(),
                               attended, read))
        print(f"# {case['id']}: {len(ids)} tokens", flush=True)
    print("| rule | share | bits | KL | agree | attended | K and V read |\n|---|---|---|---|---|---|---|")
    for i, (rule, share, bits) in enumerate(specs):
        kl, agree, attended, read = np.mean(figures[i], 0)
        print(f"| {rule} | {share} | {bits if rule in ('sketch', 'vattention') else ''} | {kl:.4f} | {agree:.3f} | {attended:.3f} | {read:.3f} |")


if __name__ == "__main__":
    main()
