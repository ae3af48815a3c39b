#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What the ways to read a prompt do to the reference model's answers: a simulation that shares nothing with the daemon.

Each case is one teacher-forced pass in fp32: the prompt's rows - all but its last token's, which decodes the answer's
first - attend as a method says, the answer's rows densely. A method whose tiles select what they attend to does so by the
rows that come first, as sparsekvd does (policy.h, struct skv_prefill), or, marked "ahead", as its paper has it: by all
queries of the tile, or the prompt's last ones. Sizes are scaled to prompts of some thousand bytes. `seen` is the share of
the causal pairs that the prompt's rows attend to, all layers counted.

Then, of dense passes: how alike are the differences dense - streaming of a window's rows to that of its first row (Delta
Attention, Figure 6b), which the correction stands on. `left` is the share of their squares that is left when the first
row's is taken off: below 1 the correction helps that layer.

  python3 bench/prefill.py --device cuda
  python3 bench/prefill.py --sizes 2048 --limit 1 dense streaming streaming+delta

Needs PyTorch alone.
"""
import argparse
import collections
import json
import math
import pathlib
import sys
import time

import torch
import torch.nn.functional as F

MODEL = pathlib.Path(__file__).resolve().parent.parent / "models/reference"
BOS, EOS = 256, 257
LAYERS, HEADS, KV_HEADS, DIM = 16, 8, 2, 64
GROUP = HEADS // KV_HEADS
THETA, EPS, NEVER = 500000.0, 1e-5, -1e30
ROWS = 2048  # rows whose scores are in memory at a time; a multiple of every tile


def load(device):
    """Loads the weights in fp32. A safetensors file is a length, JSON, and bytes."""
    raw = (MODEL / "model.safetensors").read_bytes()
    size = int.from_bytes(raw[:8], "little")
    data, weights = raw[8 + size:], {}
    for name, about in json.loads(raw[8:8 + size]).items():
        if name != "__metadata__":
            assert about["dtype"] == "BF16", f"{name}: BF16 expected"
            begin, end = about["data_offsets"]
            flat = torch.frombuffer(bytearray(data[begin:end]), dtype=torch.bfloat16)
            weights[name] = flat.view(about["shape"]).float().to(device)
    return weights


def rms(x, weight):
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + EPS) * weight


def rope(x):
    n = x.shape[-2]
    frequency = 1.0 / THETA ** (torch.arange(0, DIM, 2, device=x.device).float() / DIM)
    angle = torch.arange(n, device=x.device).float()[:, None] * frequency
    angle = torch.cat((angle, angle), -1)
    turned = torch.cat((-x[..., DIM // 2:], x[..., :DIM // 2]), -1)
    return x * angle.cos() + turned * angle.sin()


def best(score, k):
    """Returns a mask of the k largest of each row, of equals the lower index; NEVER is never chosen. k: a number, or
    one for each row."""
    order = torch.sort(score, dim=-1, descending=True, stable=True).indices
    rank = torch.empty_like(order).scatter_(-1, order, torch.arange(score.shape[-1], device=score.device).expand_as(order))
    return (rank < k) & (score > NEVER)


class Layer:
    """q, k, v of a prompt's rows in one layer, each [HEADS][n][DIM], and helpers for masks and attention."""

    def __init__(self, number, q, k, v, state):
        self.number, self.q, self.k, self.v, self.state = number, q, k, v, state
        self.n, self.device = q.shape[1], q.device
        self.at = torch.arange(self.n, device=self.device)

    def scores(self, rows, stop):
        """Scaled, causal scores of rows (indices) over columns [0, stop)."""
        s = self.q[:, rows] @ self.k[:, :stop].transpose(1, 2) / math.sqrt(DIM)
        return s.masked_fill_(self.at[:stop] > rows[:, None], NEVER)

    def dense(self, rows):
        return F.scaled_dot_product_attention(self.q[None, :, rows], self.k[None], self.v[None],
                                              attn_mask=self.at <= rows[:, None])[0]

    def all_dense(self):
        return F.scaled_dot_product_attention(self.q[None], self.k[None], self.v[None], is_causal=True)[0]

    def blocks(self):
        for a in range(0, self.n, ROWS):
            yield self.at[a:a + ROWS], min(a + ROWS, self.n)

    def tiles(self, tile):
        """The first rows of all tiles."""
        return self.at[::tile]

    def of_tiles(self, x, tile, rows):
        """Expands [..., tiles, columns] to rows."""
        return x[..., rows // tile, :]


# ---- methods: a layer → its mask of (rows, columns [0, stop)), or None: dense ------------------------------------


def dense(o):
    return lambda layer: None


def streaming(o):
    def method(layer):
        def mask(rows, stop):
            col = layer.at[:stop]
            return (col < o.sinks) | (col > rows[:, None] - o.window)
        return mask
    return method


def descend(score, chunk):
    """Returns the score of each chunk's representative token. Repeatedly compares the first tokens of a chunk's two
    halves and continues in the half with the higher score, down to one token."""
    x = score.unflatten(-1, (-1, chunk))
    at, width = torch.zeros(*x.shape[:-1], 1, dtype=torch.long, device=x.device), chunk
    while width > 1:
        width //= 2
        at = torch.where(x.gather(-1, at + width) > x.gather(-1, at), at + width, at)
    return x.gather(-1, at)[..., 0]


KEEP = (64, 4096), (32, 1024), (8, 256)  # tokens of a chunk; tokens retained in such chunks


def hip(o, ahead=False):
    """HiP: tiles of 64 rows; selects chunks of 64, 32 and 8 tokens between sinks and window by the tile's first
    query."""
    def method(layer):
        if layer.number < 3:
            return None
        if ahead:
            score = torch.full((HEADS, len(layer.tiles(64)), layer.n), NEVER, device=layer.device)
            for rows, stop in layer.blocks():
                s = layer.scores(rows, stop)
                s = F.pad(s, (0, 0, 0, -len(rows) % 64), value=NEVER).unflatten(1, (-1, 64)).amax(2)
                score[:, rows[0] // 64:rows[0] // 64 + s.shape[1], :stop] = s
        else:
            score = layer.scores(layer.tiles(64), layer.n)
        score = F.pad(score, (0, -layer.n % 64), value=NEVER)
        col = torch.arange(score.shape[-1], device=layer.device)
        chosen = (col >= 64) & (col < layer.tiles(64)[:, None] - 128)
        chosen = chosen.expand_as(score)
        for chunk, keep in KEEP:
            # A chunk is selected completely or not at all.
            of = descend(score, chunk).masked_fill(~chosen[..., ::chunk], NEVER)
            chosen = best(of, keep // chunk).repeat_interleave(chunk, -1)

        def mask(rows, stop):
            c = layer.at[:stop]
            near = (c < 64) | (c >= (rows - rows % 64 - 128)[:, None])
            return near | layer.of_tiles(chosen[..., :stop], 64, rows)
        return mask
    return method


VERTICAL, SLASH, FORCED, SEGMENT = 64, 256, 30, 2048


def lines(layer, first):
    """The heaviest columns and distances of 64 rows from `first` on, as masks [HEADS][n]."""
    rows = layer.at[first:first + 64]
    stop = first + len(rows)
    weight = layer.scores(rows, stop).softmax(-1)
    far = (rows[:, None] - layer.at[:stop]).clamp(min=0).expand_as(weight)
    picked = []
    for sums, keep in ((weight.sum(1), VERTICAL),
                       (torch.zeros(HEADS, stop, device=layer.device).scatter_add_(1, far.flatten(1), weight.flatten(1)),
                        SLASH)):
        sums[:, :FORCED] = math.inf
        picked.append(F.pad(best(sums, keep), (0, layer.n - stop)))
    return picked


def touched(layer, slash, tiles):
    """Blocks of 64 tokens that contain a chosen distance for the tiles' rows: [HEADS][tiles][n]."""
    count = (layer.n + 63) // 64
    # index: number of blocks before the tile's own
    back = torch.zeros(HEADS, count + 1, dtype=torch.int, device=layer.device)
    for blocks in layer.at // 64, (layer.at + 63) // 64:  # for the tile's last row, and for its first
        back.scatter_add_(1, blocks.expand_as(slash), slash.int())
    far = (tiles // 64)[:, None] - torch.arange(count, device=layer.device)
    return ((back > 0)[:, far.clamp(min=0)] & (far >= 0)).repeat_interleave(64, -1)[..., :layer.n]


def minference(o, ahead=False):
    """MInference: verticals and slashes by the first 64 rows of each segment, or (`ahead`) by the prompt's last 64."""
    def method(layer):
        tiles = layer.tiles(64)
        seen = torch.empty(HEADS, len(tiles), layer.n, dtype=torch.bool, device=layer.device)
        for first in [0] if ahead else range(0, layer.n, SEGMENT):
            vertical, slash = lines(layer, max(0, layer.n - 64) if ahead else first)
            part = slice(None) if ahead else slice(first // 64, (first + SEGMENT) // 64)
            seen[:, part] = touched(layer, slash, tiles[part]) | vertical[:, None]

        def mask(rows, stop):
            chosen = layer.of_tiles(seen[..., :stop], 64, rows)
            return chosen if ahead else chosen | (rows % SEGMENT < 64)[:, None]
        return mask
    return method


ANCHORS, TILE = (0, 1, 2, 7, 12), 128 // GROUP


def kascade(o, ahead=False, first_dense=True):
    """Kascade: tiles of 128 rows, counting the group; the best tenth, at least 128, of the tokens before the tile."""
    def method(layer):
        tiles = layer.tiles(TILE)
        if layer.number in ANCHORS:
            before = layer.at < tiles[:, None]
            if ahead:
                weight = torch.zeros(HEADS, len(tiles), layer.n, device=layer.device)
                for rows, stop in layer.blocks():
                    w = layer.scores(rows, stop).softmax(-1)
                    w = F.pad(w, (0, 0, 0, -len(rows) % TILE)).unflatten(1, (-1, TILE)).sum(2)
                    weight[:, rows[0] // TILE:rows[0] // TILE + w.shape[1], :stop] = w
            else:
                weight = layer.scores(tiles, layer.n).masked_fill(~before, NEVER).softmax(-1)
            weight = weight.unflatten(0, (KV_HEADS, GROUP)).sum(1).masked_fill(~before, NEVER)
            layer.state["best"] = best(weight, ((tiles + 9) // 10).clamp(min=128)[:, None]).repeat_interleave(GROUP, 0)
        if layer.number == 0 and first_dense:
            return None
        chosen = layer.state["best"]

        def mask(rows, stop):
            return (layer.at[:stop] >= (rows - rows % TILE)[:, None]) | layer.of_tiles(chosen[..., :stop], TILE, rows)
        return mask
    return method


class Method:
    def __init__(self, text, see, delta=False, recompute=False, gamma=64, tail=None, sinks=16, window=128, **more):
        self.text, self.delta, self.gamma = text, delta, gamma if delta or recompute else 0
        self.tail = tail or max(128, gamma)
        self.sinks, self.window = sinks, window
        self.see = see(self, **more)


METHODS = [
    Method("dense", dense),
    Method("streaming", streaming),
    Method("streaming+recompute", streaming, recompute=True),
    Method("streaming+delta", streaming, delta=True),
    Method("streaming+delta gamma=16", streaming, delta=True, gamma=16),
    Method("streaming+recompute tail=64", streaming, recompute=True, tail=64),
    Method("streaming+delta tail=64", streaming, delta=True, tail=64),
    Method("streaming+delta gamma=16 tail=16", streaming, delta=True, gamma=16, tail=16),
    Method("streaming 4+32", streaming, sinks=4, window=32),
    Method("streaming+recompute 4+32", streaming, recompute=True, sinks=4, window=32),
    Method("streaming+delta 4+32", streaming, delta=True, sinks=4, window=32),
    Method("hip", hip),
    Method("hip+delta", hip, delta=True),
    Method("hip ahead", hip, ahead=True),
    Method("minference", minference),
    Method("minference ahead", minference, ahead=True),
    Method("kascade", kascade),
    Method("kascade ahead", kascade, ahead=True),
    Method("kascade, layer 0 sparse", kascade, first_dense=False),
]


# ---- a pass ------------------------------------------------------------------------------------------------------


def sparse_rows(layer, mask):
    """Attention of all rows through the mask, and the number of pairs, averaged over heads."""
    out, pairs = torch.empty_like(layer.q), 0.0
    for rows, stop in layer.blocks():
        seen = mask(rows, stop) & (layer.at[:stop] <= rows[:, None])
        pairs += seen.sum().item() / (seen.shape[0] if seen.dim() == 3 else 1)
        s = layer.q[:, rows] @ layer.k[:, :stop].transpose(1, 2)
        s = s.mul_(1 / math.sqrt(DIM)).masked_fill_(~seen, NEVER).softmax(-1)
        out[:, rows] = s @ layer.v[:, :stop]
    return out, pairs


def attend(layer, method):
    """The layer's outputs under a method, and the number of pairs."""
    mask = method.see(layer)
    if mask is None:
        return layer.all_dense(), layer.n * (layer.n + 1) / 2
    out, pairs = sparse_rows(layer, mask)
    if not method.gamma:
        return out, pairs
    gamma, n = method.gamma, layer.n
    tail = max(0, n - (n % gamma + method.tail))
    speak, rest = layer.at[:tail:gamma], layer.at[tail:]
    exact = layer.dense(torch.cat((speak, rest)))
    if method.delta:
        out[:, :tail] += (exact[:, :len(speak)] - out[:, speak]).repeat_interleave(gamma, 1)[:, :tail]
    out[:, speak], out[:, tail:] = exact[:, :len(speak)], exact[:, len(speak):]
    return out, pairs + (speak + 1).sum().item() + (rest + 1).sum().item()


def run(weights, tokens, first, read):
    """Rows [0, first) attend as read(layer) computes, the others densely. Returns which predictions of the other rows
    are right."""
    device, n = weights["model.norm.weight"].device, len(tokens) - 1
    ids = torch.tensor(tokens, device=device)
    x, state = weights["model.embed_tokens.weight"][ids[:-1]], {}
    for number in range(LAYERS):
        w = lambda part: weights[f"model.layers.{number}.{part}.weight"]
        h = rms(x, w("input_layernorm"))
        heads = lambda part, count: (h @ w(f"self_attn.{part}_proj").T).view(n, count, DIM).transpose(0, 1)
        q, k, v = rope(heads("q", HEADS)), rope(heads("k", KV_HEADS)), heads("v", KV_HEADS)
        k, v = k.repeat_interleave(GROUP, 0), v.repeat_interleave(GROUP, 0)
        out = torch.empty_like(q)
        out[:, :first] = read(Layer(number, q[:, :first], k[:, :first], v[:, :first], state))
        if first < n:
            whole = Layer(number, q, k, v, state)
            out[:, first:] = whole.dense(whole.at[first:])
        x = x + out.transpose(0, 1).reshape(n, HEADS * DIM) @ w("self_attn.o_proj").T
        h = rms(x, w("post_attention_layernorm"))
        x = x + (F.silu(h @ w("mlp.gate_proj").T) * (h @ w("mlp.up_proj").T)) @ w("mlp.down_proj").T
    logits = rms(x[first:], weights["model.norm.weight"]) @ weights["model.embed_tokens.weight"].T
    return (logits.argmax(-1) == ids[first + 1:]).tolist()


def score(answer, right):
    """Returns exact, line and token scores; a line ends with a newline or with EOS."""
    lines_, good = [], True
    for token, ok in zip(answer, right):
        good = good and ok
        if token in (10, EOS):
            lines_.append(good)
            good = True
    return all(right), sum(lines_) / len(lines_), sum(right) / len(right)


def evaluate(weights, cases, method):
    sums, by_task = [0.0] * 4, collections.defaultdict(list)
    for case in cases:
        pairs = []

        def read(layer):
            out, seen = attend(layer, method)
            pairs.append(seen / (layer.n * (layer.n + 1) / 2))
            return out
        right = run(weights, case["tokens"], case["first"], read)
        got = (*score(case["tokens"][case["first"] + 1:], right), sum(pairs) / len(pairs))
        sums = [a + b for a, b in zip(sums, got)]
        by_task[case["task"]].append(got[1])
    return [s / len(cases) for s in sums], {t: sum(x) / len(x) for t, x in sorted(by_task.items())}


# ---- similarity of differences -----------------------------------------------------------------------------------


def alike(weights, cases, gamma, sinks=16, window=128):
    """For each layer: the mean cosine to the window's first row, also by distance, and the share of squares left."""
    far = [d for d in (1, 2, 4, 8, 16, 32, gamma - 1) if d < gamma]
    sums = torch.zeros(LAYERS, 5 + len(far), dtype=torch.float64)
    method = Method("", streaming, sinks=sinks, window=window)

    def read(layer):
        exact = layer.all_dense()
        first = -(-(sinks + window) // gamma) * gamma  # earlier rows miss nothing
        last = layer.n - layer.n % gamma
        if first < last:
            miss = (exact - sparse_rows(layer, method.see(layer))[0])[:, first:last].unflatten(1, (-1, gamma)).double()
            speak, others = miss[:, :, :1], miss[:, :, 1:]
            cos = F.cosine_similarity(speak.expand_as(others), others, dim=-1, eps=1e-30)
            sums[layer.number] += torch.cat((torch.stack((
                cos.sum(), (others - speak).pow(2).sum(), others.pow(2).sum(),
                exact[:, first:last].double().pow(2).sum() * (gamma - 1) / gamma,
                torch.tensor(float(cos.numel()), device=cos.device))),
                cos[:, :, [d - 1 for d in far]].sum((0, 1)) * (gamma - 1))).cpu()
        return exact

    for case in cases:
        run(weights, case["tokens"][:case["first"] + 1], case["first"], read)
    print(f"\ndifferences dense - streaming, {sinks} sinks, window {window}, gamma {gamma}")
    print("layer  cosine   left  missed  " + "  ".join(f"cos@{d:<3d}" for d in far))
    for number, s in [*enumerate(sums), ("all", sums.sum(0))]:
        mean = s / s[4]
        print(f"{number!s:>5s}  {mean[0]:6.3f} {s[1] / s[2]:6.3f}  {s[2] / s[3]:6.3f}  " +
              "  ".join(f"{m:7.3f}" for m in mean[5:].tolist()), flush=True)


def main():
    args = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    args.add_argument("methods", nargs="*", metavar="METHOD", help="all of them, unless some are named")
    args.add_argument("--device", default="cpu")
    args.add_argument("--tasks", default=MODEL / "tasks-dev.jsonl", type=pathlib.Path)
    args.add_argument("--sizes", default="2048,4096,8192", help="of cases (%(default)s)")
    args.add_argument("--without", default="recur", help="tasks to leave out (%(default)s)")
    args.add_argument("--limit", type=int, help="the first N cases of each task and size")
    args.add_argument("--gammas", default="64,16", help="of the differences that are compared (%(default)s)")
    a = args.parse_args()

    names = [m.text for m in METHODS]
    for text in a.methods:
        if text not in names:
            sys.exit(f"prefill.py: {text}: one of these expected: {'; '.join(names)}")
    sizes, taken, cases = {int(s) for s in a.sizes.split(",")}, collections.Counter(), []
    for case in map(json.loads, a.tasks.open()):
        kind = case["task"], case["size"]
        taken[kind] += 1
        if case["size"] in sizes and case["task"] not in a.without.split(",") and taken[kind] <= (a.limit or taken[kind]):
            prompt = case["prompt"].encode()
            case["tokens"], case["first"] = [BOS, *prompt, *case["answer"].encode(), EOS], len(prompt)
            cases.append(case)
    weights = load(a.device)
    begun = time.time()
    with torch.no_grad():
        print(f"{'method':34s} {'n':>4s} {'exact':>6s} {'line':>6s} {'token':>6s} {'seen':>6s}  line by task")
        for method in METHODS:
            if not a.methods or method.text in a.methods:
                (exact, line, token, seen), tasks = evaluate(weights, cases, method)
                print(f"{method.text:34s} {len(cases):4d} {exact:6.3f} {line:6.3f} {token:6.3f} {seen:6.3f}  " +
                      "  ".join(f"{t} {x:.3f}" for t, x in tasks.items()), flush=True)
        for gamma in map(int, a.gammas.split(",")) if a.gammas else ():
            alike(weights, cases, gamma)
    print(f"\n{time.time() - begun:.0f} s", file=sys.stderr)


if __name__ == "__main__":
    main()
