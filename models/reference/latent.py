# SPDX-License-Identifier: Apache-2.0
"""KV cache compression for sim.py: which tokens are compressed, what is read in their place, and their bytes.

A spec is what sparsekv-policy(7) says: deltakv?bits=4&ref_bits=8, kivi?bits=2, palu. Of a sequence of n tokens
[first, C(n)) are compressed, in blocks, behind the `residual` last ones. `file` names a codec in the folder given.
"""
import sys

import torch
import torch.nn.functional as F
from safetensors import safe_open

PAGE, LOW_BLOCK, LOW_GROUP = 16, 32, 32
DEFAULTS = {
    "deltakv": dict(budget="0.25", layers="2,7,12", file="deltakv", bits="16", ref_bits="16", full_bits="16",
                    scale_block="64", residual="128", block="32", stride="10", refs="4"),
    "kivi": dict(bits="4", residual="128", block="32"),
    "palu": dict(file="palu", bits="16", scale_block="64", residual="128", block="32"),
}


def quantised(x, bits, dim):
    """x read back from codes of so many bits with a scale and a least (bf16) over `dim`."""
    if bits == 16:
        return x.bfloat16().float()
    least, most = x.amin(dim, keepdim=True), x.amax(dim, keepdim=True)
    scale = ((most - least) / (2 ** bits - 1)).bfloat16().float()
    least = least.bfloat16().float()
    codes = torch.where(scale > 0, ((x - least) / scale).round(), 0).clamp(0, 2 ** bits - 1)
    return codes * scale + least


def grouped(x, bits, group):
    return quantised(x.unflatten(-1, (-1, group)), bits, -1).flatten(-2)


class Latent:
    def __init__(self, text, folder, shape, device):
        name, _, rest = text.partition("?")
        self.name, options = name, dict(DEFAULTS[name])
        for pair in filter(None, rest.split("&")):
            key, _, value = pair.partition("=")
            if key not in options:
                sys.exit(f"sim.py: {text}: no {key}")
            options[key] = value
        number = lambda key, default=0: int(options.get(key, default))
        self.n_layers, self.kv_heads, self.dim = shape
        self.bits, self.scale_block = number("bits"), number("scale_block")
        self.residual, self.block = number("residual"), number("block")
        self.ref_bits, self.full_bits = number("ref_bits", 16), number("full_bits", 16)
        self.stride, self.refs = number("stride"), number("refs")
        self.budget = float(options.get("budget", 1))
        self.filters = {int(layer) for layer in options.get("layers", "").split(",") if layer}
        self.first = PAGE if name == "deltakv" else 0
        self.weights, self.width = {}, 0
        if "file" in options and self.bits:
            with safe_open(folder / f"{options['file']}.safetensors", "pt", device=str(device)) as file:
                if int(file.metadata()["stride"]) == 0 and self.stride:
                    sys.exit(f"sim.py: {text}: a compressor without references needs stride=0&refs=0")
                self.weights = {key: file.get_tensor(key).float() for key in file.keys()}
                self.width = int(file.metadata()["width"])

    def kind(self, layer):
        """delta: codes of a compressor; low: K and V in few bits; None: rows"""
        if self.name == "kivi":
            return "low"
        if self.name == "palu" or (layer >= 2 and layer not in self.filters):
            return "delta"
        return "low" if self.full_bits < 16 else None

    def coded(self, kind, n):
        """C(n); n a number or a tensor"""
        first, block = (0, max(self.block, LOW_BLOCK)) if kind == "low" else (self.first, self.block)
        blocks = (n - first - self.residual) // block
        return (first + blocks * block) * (blocks > 0)

    def packed(self, layer, rows, columns):
        """[row, column]: is the column's token packed for the row's?"""
        kind = self.kind(layer)
        return kind and (columns >= (0 if kind == "low" else self.first)) & (columns < self.coded(kind, rows)[:, None])

    def read(self, layer, k, v, rope):
        """K after RoPE and V, [head, token, dim], as they are read of packed tokens, from K before RoPE and V."""
        if self.kind(layer) == "low":
            bits = self.bits if self.name == "kivi" else self.full_bits
            k, n = rope(k), k.shape[1]
            blocks = F.pad(k, (0, 0, 0, -n % LOW_BLOCK)).unflatten(1, (-1, LOW_BLOCK))
            return quantised(blocks, bits, 2).flatten(1, 2)[:, :n], grouped(v, bits, LOW_GROUP)
        x = torch.cat((k, v)).transpose(0, 1).flatten(1)
        rebuilt = self.rebuilt(layer, x).unflatten(1, (-1, self.dim)).transpose(0, 1)
        return rope(rebuilt[:self.kv_heads]), rebuilt[self.kv_heads:]

    def rebuilt(self, layer, x):
        b, token = torch.zeros_like(x), torch.arange(len(x), device=x.device)
        if self.stride:
            at = token[(token < self.first) | ((token - self.first) % self.stride == 0)]
            references = x[at] if self.ref_bits == 16 else grouped(x[at], self.ref_bits, 64)
            score = 2 * x @ references.T - references.square().sum(-1)
            near = score.masked_fill(at > token[:, None], -1e30).topk(min(self.refs, len(at)), -1).indices
            b = references[near].mean(1)
        w = lambda part: self.weights.get(f"layers.{layer}.{part}")
        if self.bits:
            hidden = lambda y: y if w("gate") is None else F.silu(y @ w("gate").T) * (y @ w("up").T)
            z = (hidden(x) - hidden(b)) @ w("down").T
            z = grouped(z, self.bits, self.scale_block)
            y = b + (z if w("open") is None else F.silu(z @ w("open").T)) @ w("out").T
        else:
            y = b
        if self.stride:
            y[at] = references
        return y

    def pages(self, layer, n):
        """How many pages of K and V, codes and references a sequence of n tokens has in a layer."""
        kind, d = self.kind(layer), 2 * self.kv_heads * self.dim
        coded, page = kind and self.coded(kind, n), PAGE * d * 2
        up = lambda a, b: -(-a // b)
        if not coded:
            return up(n, PAGE)
        kept = up(n, PAGE) - coded // PAGE
        if kind == "low":
            bits = self.bits if self.name == "kivi" else self.full_bits
            codes = 2 * LOW_BLOCK * self.dim * bits // 8
            record = codes + 4 * self.dim + 4 * LOW_BLOCK * self.dim // LOW_GROUP
            return kept + up(coded // LOW_BLOCK * self.kv_heads, page // record)
        tokens = coded - self.first
        references = up(tokens, self.stride) if self.stride else 0
        scales = 4 * self.width // self.scale_block if 0 < self.bits < 16 else 0
        record = max(16, up(2 * self.refs + scales + self.width * self.bits // 8, 16) * 16)
        pages = kept + self.first // PAGE + up(tokens - references, page // record)
        if self.stride:
            record = 2 * d if self.ref_bits == 16 else 4 * d // 64 + d * self.ref_bits // 8
            pages += up(self.first + references, page // record)
        return pages

    def kept(self, n):
        """Share of the memory that n tokens take as rows."""
        return sum(self.pages(layer, n) for layer in range(self.n_layers)) / (-(-n // PAGE) * self.n_layers)

    def of_more(self, n):
        """The same of as many tokens more."""
        raw = lambda m: -(-m // PAGE)
        return (self.kept(2 * n) * raw(2 * n) - self.kept(n) * raw(n)) / (raw(2 * n) - raw(n))
