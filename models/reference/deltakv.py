# SPDX-License-Identifier: Apache-2.0
"""Train a codec of the reference model's K and V (DeltaKV):

  python3 deltakv.py TRAIN.txt.xz [--variant light|standard|noref|pca|palu] [--seconds N] [OUT-DIR]

x of a token in a layer is K before RoPE and V, of both kv heads. A compressed token is stored as z = E(x) - E(b) and read
as Dec(z) + b, where b is the mean of the nearest references at or before it: the first 16 tokens, and every 10th from
there. The model is frozen. Two passes go over the same tokens: the first, as the model is, gives every token's x. In
the second the tokens are cut into chunks, and a chunk reads what lies more than WINDOW tokens before it as it would be
decompressed from its x of the first pass: each chunk is an answer that continues from a compressed context, and recent tokens are
uncompressed as in a decode. Loss: next token, and the decompressed x's error relative to its variance, summed over the layers.

TRAIN.txt.xz is train.py's. OUT-DIR (default ./out) gets deltakv.safetensors (deltakv-standard, deltakv-noref,
deltakv-pca, palu) and a log of the same name; also if it is interrupted. --seconds counts from the start of the
program. `pca` and `palu` are computed, not trained. Needs torch, numpy, safetensors and, but for trials, a GPU.
"""
import argparse
import lzma
import pathlib
import signal
import time

import torch
import torch.nn as nn
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch.nn.attention.bias import causal_lower_right

import train
from model import CFG, Model, turn

HERE = pathlib.Path(__file__).resolve().parent
LAYERS, GROUPS, DIM = CFG["num_hidden_layers"], CFG["num_key_value_heads"], CFG["head_dim"]
HALF = GROUPS * DIM              # of x: K, then V
WIDE, WIDTH, PALU_WIDTH = 384, 64, 128
FIRST, STRIDE, N_REFS = 16, 10, 4  # tokens that are never compressed; every so many is a reference; references of a token
BITS, SCALE_BLOCK = 4, 64              # codes as the end of the training rounds them
CHUNK, WINDOW = 256, 32
LEARNING_RATE = 1e-3
ERROR_WEIGHT = 0.3, 0.03         # of the decompressed x's error at the beginning, where it steadies, and at the end
ROUND_FROM = 0.7                 # of the time
MIX = [("text", .1), ("kv", .22), ("niah", .2), ("vt", .1), ("dag", .2), ("recur", .18)]
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


# The frozen model

def load_model():
    net, state = Model(), load_file(HERE / "model.safetensors")
    ours = {name: mine for name, mine in net.named_parameters()}
    for name, theirs in state.items():
        short = name.removeprefix("model.").replace("embed_tokens", "emb").replace("self_attn.", "").replace("mlp.", "")
        short = short.replace("_proj", "").replace("input_layernorm", "n1").replace("post_attention_layernorm", "n2")
        ours.pop(short).data.copy_(theirs)
    assert not ours, f"not in the file: {list(ours)}"
    return net.to(DEVICE).eval().requires_grad_(False)


def angles(T):
    frequency = 1.0 / CFG["rope_theta"] ** (torch.arange(0, DIM, 2, device=DEVICE).float() / DIM)
    angle = torch.arange(T, device=DEVICE).float()[:, None] * frequency[None]
    angle = torch.cat((angle, angle), -1)
    return angle.cos(), angle.sin()


def heads(y):
    return y.unflatten(-1, (-1, DIM)).transpose(1, 2)


def rows(x, cos, sin):
    """x [..., T, 2 * HALF] → K after RoPE and V, [..., head, T, DIM]"""
    k, v = (part.unflatten(-1, (-1, DIM)).transpose(-3, -2) for part in x.split(HALF, -1))
    return turn(k, cos, sin).to(v.dtype), v


def attend(q, k, v):
    """The queries are those of the last keys' tokens."""
    r = q.shape[1] // k.shape[1]
    k, v = (y[:, :, None].expand(-1, -1, r, -1, -1).flatten(1, 2) for y in (k, v))
    mask = causal_lower_right(q.shape[2], k.shape[2])
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(1, 2).flatten(2)


def finish(layer, x, attended):
    x = x + layer.o(attended)
    h = layer.n2(x)
    return x + layer.down(F.silu(layer.gate(h)) * layer.up(h))


def project(layer, x, cos, sin):
    h = layer.n1(x)
    q = turn(heads(layer.q(h)), cos, sin)
    kv = torch.cat((layer.k(h), layer.v(h)), -1)
    return q.to(kv.dtype), kv


@torch.no_grad()
def first_pass(net, tokens):
    """What enters each layer, each layer's x, and the logits."""
    cos, sin = angles(tokens.shape[1])
    x, entering, kvs = net.emb(tokens), [], []
    for layer in net.layers:
        entering.append(x)
        q, kv = project(layer, x, cos, sin)
        x = finish(layer, x, attend(q, *rows(kv, cos, sin)))
        kvs.append(kv)
    return entering, torch.stack(kvs), F.linear(net.norm(x), net.emb.weight)


def second_pass(net, entering, kvs, compressed, decompressed):
    """The logits if each chunk of tokens reads the compressed layers' older tokens decompressed."""
    begin, T = min(compressed), kvs.shape[2]
    cos, sin = angles(T)
    x = entering[begin]
    for index in range(begin, LAYERS):
        layer = net.layers[index]
        q, own = project(layer, x, cos, sin)
        old, raw, own = (rows(kv, cos, sin) for kv in (decompressed.get(index, kvs[index]), kvs[index], own))
        own, attended = [y.split(CHUNK, 2) for y in own], []
        for i, at in enumerate(range(0, T, CHUNK)):
            recent = max(0, at - WINDOW)
            k, v = (torch.cat((old[half][:, :, :recent], raw[half][:, :, recent:at], own[half][i]), 2)
                    for half in (0, 1))
            attended.append(attend(q[:, :, at:at + CHUNK], k, v))
        x = finish(layer, x, torch.cat(attended, 1))
    return F.linear(net.norm(x), net.emb.weight)


# References

def exact(T, stride):
    """The tokens that are kept as they are."""
    at = torch.arange(FIRST, device=DEVICE)
    return torch.cat((at, torch.arange(FIRST, T, stride, device=DEVICE))) if stride else at


def packable(T, stride):
    """Mask of the others."""
    return torch.ones(T, dtype=torch.bool, device=DEVICE).index_fill(0, exact(T, stride), False)


@torch.no_grad()
def base(x, stride):
    """x [..., T, d] → b, the mean of the nearest references at or before each token."""
    if not stride:
        return torch.zeros_like(x)
    at = exact(x.shape[-2], stride)
    centres = x[..., at, :].float()
    with torch.autocast(DEVICE, enabled=False):
        score = 2 * x.float() @ centres.transpose(-1, -2) - centres.square().sum(-1)[..., None, :]
    later = at[None] > torch.arange(x.shape[-2], device=DEVICE)[:, None]
    near = score.masked_fill_(later, -1e30).topk(N_REFS, -1).indices
    index = near.flatten(-2)[..., None].expand(*near.shape[:-2], -1, x.shape[-1])
    return centres.gather(-2, index).unflatten(-2, (-1, N_REFS)).mean(-2).to(x.dtype)


# The compressor

def rounded(z, bits, block=SCALE_BLOCK):
    """Codes of so many bits with a scale and a least per scale block, read back; the gradient goes straight through."""
    with torch.no_grad():
        parts = z.float().unflatten(-1, (-1, block))
        least, most = parts.amin(-1, keepdim=True), parts.amax(-1, keepdim=True)
        least, scale = least.bfloat16().float(), ((most - least) / (2 ** bits - 1)).bfloat16().float()
        codes = ((parts - least) / scale.clamp(min=1e-30)).round().clamp(0, 2 ** bits - 1)
        change = (codes * scale + least).flatten(-2).to(z.dtype) - z
    return z + change


class Compressor(nn.Module):
    """The codecs of all compressed layers: the first dimension of everything is the layer. K and V are divided by
    their scales in front of E and multiplied behind Dec, so that both count alike; files have it in the weights."""

    def __init__(self, n, standard):
        super().__init__()
        d = 2 * HALF
        self.scale = nn.Parameter(torch.ones(n, 1, d), requires_grad=False)
        self.gate, self.up = (nn.Parameter(torch.randn(n, WIDE, d)) for _ in range(2))
        self.down = nn.Parameter(torch.empty(n, WIDTH, WIDE))
        self.open = nn.Parameter(torch.empty(n, WIDE, WIDTH)) if standard else None
        self.out = nn.Parameter(torch.empty(n, d, WIDE if standard else WIDTH))

    def hidden(self, x):
        return F.silu(x @ self.gate.mT) * (x @ self.up.mT)

    def forward(self, x, b, bits):
        """x, b [n, tokens, d] → x as it is decompressed; bits 16: codes are not rounded."""
        x, b = x / self.scale, b / self.scale
        z = (self.hidden(x) - self.hidden(b)) @ self.down.mT
        z = z if bits == 16 else rounded(z, bits)
        if self.open is not None:
            z = F.silu(z @ self.open.mT)
        return (z @ self.out.mT + b) * self.scale

    @torch.no_grad()
    def begin(self, x, b):
        """From x, b of some tokens: gates near 1, so that E begins nearly linear; `down` and `out` are then the best
        of their rank (reduced-rank regression). A random rotation spreads the codes' variance evenly, for rounding."""
        n = len(x)
        parts = x.unflatten(-1, (2, HALF))
        spread = (parts - parts.mean(1, keepdim=True)).square().mean((1, 3)).sqrt()
        self.scale.copy_(spread.repeat_interleave(HALF, -1)[:, None])
        x, b = x / self.scale, b / self.scale
        centre = x.mean(1, keepdim=True)
        spread = (x - centre).square().sum(-1).mean(1).sqrt()[:, None, None]
        self.up.mul_(1 / spread)
        self.gate.mul_(0.5 / spread).add_(centre / (centre.square().sum(-1, keepdim=True) + spread.square() / 16))
        h, r = (self.hidden(x) - self.hidden(b)).double(), (x - b).double()
        gram = h.mT @ h
        gram += 1e-4 * gram.diagonal(dim1=-2, dim2=-1).mean(-1)[:, None, None] * torch.eye(WIDE, device=x.device)
        fit = torch.cholesky_solve(h.mT @ r, torch.linalg.cholesky(gram))
        guess = h @ fit
        u = torch.linalg.eigh(guess.mT @ guess).eigenvectors[..., -WIDTH:] @ rotation(n, WIDTH, x.device)
        self.down.copy_((fit @ u).mT)
        if self.open is None:
            self.out.copy_(u)
        else:  # silu(a) - silu(-a) = a: begins as linear as the light one
            size = (h @ self.down.mT.double()).square().mean((1, 2)).sqrt()[:, None, None].float()
            q = torch.linalg.qr(torch.randn(n, WIDE // 2, WIDTH, device=x.device)).Q
            large = (WIDE / 2 / WIDTH) ** .5 / size
            self.open.copy_(torch.cat((q, -q), 1) * large)
            self.out.copy_(u.float() @ torch.cat((q, -q), 1).mT / large)

    def tensors(self, compressed):
        files = {"gate": self.gate / self.scale, "up": self.up / self.scale, "down": self.down, "open": self.open,
                 "out": self.out * self.scale.mT}
        return {f"layers.{layer}.{name}": tensor[i].detach() for name, tensor in files.items() if tensor is not None
                for i, layer in enumerate(compressed)}


def rotation(n, width, device):
    return torch.linalg.qr(torch.randn(n, width, width, dtype=torch.double, device=device)).Q


def principal(moment, width):
    """[n, d, d] → the `width` largest directions, turned among themselves, [n, d, width]"""
    return torch.linalg.eigh(moment).eigenvectors[..., -width:] @ rotation(len(moment), width, moment.device)


def write(path, kind, tensors, width, stride):
    about = dict(sparsekv_codec="1", kind=kind, d=2 * HALF, width=width, near=N_REFS if stride else 0, stride=stride,
                 spans=1)
    save_file({name: tensor.bfloat16().contiguous().cpu() for name, tensor in tensors.items()}, path,
              metadata={key: str(value) for key, value in about.items()})


# Data

def batches(text, ctx, batch, workers, seed):
    data = train.Packed(text, ctx, batch, seed, MIX)
    return iter(torch.utils.data.DataLoader(data, batch_size=None, num_workers=workers, prefetch_factor=4,
                                            pin_memory=DEVICE == "cuda"))


def take(data):
    tokens, mask = next(data)
    return tokens.to(DEVICE, non_blocking=True).long(), mask.to(DEVICE, non_blocking=True).float()


@torch.no_grad()
def gather(net, data, compressed, stride, n):
    """x and b of about n tokens that would be compressed, float, [layer, token, d]"""
    xs, bs, have = [], [], 0
    while have < n:
        tokens = take(data)[0][:, :-1]
        with torch.autocast(DEVICE, torch.bfloat16):
            kvs = first_pass(net, tokens)[1][compressed]
        b, mask = base(kvs, stride), packable(kvs.shape[2], stride)
        xs.append(kvs[:, :, mask].flatten(1, 2).float())
        bs.append(b[:, :, mask].flatten(1, 2).float())
        have += xs[-1].shape[1]
    return torch.cat(xs, 1)[:, :n], torch.cat(bs, 1)[:, :n]


# Training

class Trial:
    """One batch through both passes."""

    def __init__(self, net, codec, compressed, stride):
        self.net, self.codec, self.compressed, self.stride = net, codec, compressed, stride

    def __call__(self, tokens, mask, bits):
        """Losses: next token; by layer the error of K and of V relative to their variance. And both passes' logits"""
        with torch.autocast(DEVICE, torch.bfloat16):
            entering, kvs, clean = first_pass(self.net, tokens[:, :-1])
            x = kvs[self.compressed]
            b, mine = base(x, self.stride), packable(x.shape[2], self.stride)[:, None]
            decompressed = self.codec(x.flatten(1, 2), b.flatten(1, 2), bits).view_as(x)
            error = (((decompressed - x) / self.codec.scale[:, None]).float() * mine).unflatten(-1, (2, HALF))
            error = error.square().mean((1, 2, 4)) / mine.float().mean()
            decompressed = torch.where(mine, decompressed.to(x.dtype), x)
            logits = second_pass(self.net, entering, kvs, self.compressed, dict(zip(self.compressed, decompressed)))
        ntp = train.loss_of(logits, tokens[:, 1:], mask[:, 1:])
        return ntp, error, clean, logits


def fit(codec, trial, data, log, begun, seconds):
    """Until `seconds` after `begun`; learning rate and rounding follow the clock."""
    opt = torch.optim.AdamW([p for p in codec.parameters() if p.requires_grad], lr=LEARNING_RATE, betas=(.9, .98),
                            weight_decay=0., fused=DEVICE == "cuda")
    start = shown = time.time()
    total, step, sums, count = max(1., begun + seconds - start), 0, 0, 0
    while (done := (time.time() - start) / total) < 1:
        for group in opt.param_groups:
            group["lr"] = LEARNING_RATE * min(1, (done + .001) / .02) * (1 - done)
        bits = BITS if done > ROUND_FROM else 16
        tokens, mask = take(data)
        ntp, error, clean, _ = trial(tokens, mask, bits)
        weight = ERROR_WEIGHT[0] ** (1 - done) * ERROR_WEIGHT[1] ** done
        (ntp + weight * error.sum() / 2).backward()
        nn.utils.clip_grad_norm_(codec.parameters(), 1.)
        opt.step()
        opt.zero_grad()
        step += 1
        with torch.no_grad():
            plain = train.loss_of(clean, tokens[:, 1:], mask[:, 1:])
            sums, count = sums + torch.cat((torch.stack((ntp, plain)), error.flatten())).detach(), count + 1
        if time.time() - shown > 10 or step == 1:
            shown = time.time()
            ntp, plain, *error = (sums / count).tolist()
            log(f"step {step} {shown - begun:.0f} s, {bits} bits, ntp {ntp:.4f} (model {plain:.4f}), K|V error by layer "
                + " ".join(f"{k:.3f}|{v:.3f}" for k, v in zip(error[::2], error[1::2])))
            sums, count = 0, 0


@torch.no_grad()
def judge(trial, text, ctx, log):
    """On text and tasks that were not trained on: loss and share of right tokens, against the model's own."""
    data = batches(text, ctx, 4, 1, 77)
    held = [take(data) for _ in range(6)]
    for bits in (16, 8, 4):
        sums = torch.zeros(4, device=DEVICE)
        for tokens, mask in held:
            ntp, error, clean, logits = trial(tokens, mask, bits)
            want, counted = tokens[:, 1:], mask[:, 1:]
            right = [((y.argmax(-1) == want) * counted).sum() / counted.sum() for y in (clean, logits)]
            sums += torch.stack((train.loss_of(clean, want, counted), ntp, *right)) / len(held)
        log("held out, {} bits: ntp {:.4f} → {:.4f}, right {:.4f} → {:.4f}".format(bits, *sums.tolist()))


def main():
    begun = time.time()
    args = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    args.add_argument("text", metavar="TRAIN.txt.xz", type=pathlib.Path)
    args.add_argument("out", metavar="OUT-DIR", nargs="?", default="out", type=pathlib.Path)
    args.add_argument("--variant", default="light", choices=("light", "standard", "noref", "pca", "palu"))
    args.add_argument("--seconds", type=float, default=240)
    args.add_argument("--full", default="0,1,2,7,12", help="layers that are not compressed")
    args.add_argument("--ctx", type=int, default=4096)
    args.add_argument("--batch", type=int, default=4)
    args.add_argument("--workers", type=int, default=4)
    args = args.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    name = {"light": "deltakv", "palu": "palu"}.get(args.variant, f"deltakv-{args.variant}")
    file = (args.out / f"{name}.log").open("w")

    def log(text):
        print(text, flush=True)
        print(text, file=file, flush=True)

    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    full = set() if args.variant == "palu" else {int(layer) for layer in args.full.split(",")}
    compressed = [layer for layer in range(LAYERS) if layer not in full]
    stride = 0 if args.variant in ("noref", "palu") else STRIDE
    net, path = load_model(), args.out / f"{name}.safetensors"
    data = batches(lzma.open(args.text).read(), args.ctx, args.batch, args.workers, 1)
    log(f"{args.variant}: layers {compressed}, stride {stride}, {time.time() - begun:.0f} s")

    if args.variant in ("pca", "palu"):
        x, b = gather(net, data, compressed, stride, 200000 if DEVICE == "cuda" else 20000)
        r = (x - b).double()
        moment = r.mT @ r
        if args.variant == "palu":  # K and V apart
            out = torch.zeros(len(compressed), 2 * HALF, PALU_WIDTH, device=r.device).double()
            for half in (slice(0, HALF), slice(HALF, None)):
                codes = slice(0, PALU_WIDTH // 2) if half.start == 0 else slice(PALU_WIDTH // 2, None)
                out[:, half, codes] = principal(moment[:, half, half], PALU_WIDTH // 2)
        else:
            out = principal(moment, WIDTH)
        lost = (r - r @ out @ out.mT).unflatten(-1, (2, HALF)).square().mean((1, 3))
        parts = x.unflatten(-1, (2, HALF))
        lost /= (parts - parts.mean(1, keepdim=True)).square().mean((1, 3))
        log("K|V error by layer " + " ".join(f"{k:.3f}|{v:.3f}" for k, v in lost.tolist()))
        tensors = {f"layers.{layer}.{part}": matrix[i] for part, matrix in (("out", out), ("down", out.mT))
                   for i, layer in enumerate(compressed)}
        write(path, "palu" if args.variant == "palu" else "deltakv", tensors, out.shape[-1], stride)
        return

    codec = Compressor(len(compressed), args.variant == "standard").to(DEVICE)
    codec.begin(*gather(net, data, compressed, stride, 30000 if DEVICE == "cuda" else 6000))
    trial = Trial(net, codec, compressed, stride)
    try:
        fit(codec, trial, data, log, begun, args.seconds)
    except KeyboardInterrupt:
        log("interrupted")
    finally:  # also if a loader's worker was ended with us
        write(path, "deltakv", codec.tensors(compressed), WIDTH, stride)
    judge(trial, lzma.open(HERE / "eval.txt.xz").read(), args.ctx, log)


if __name__ == "__main__":
    main()
