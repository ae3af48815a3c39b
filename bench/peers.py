#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Attention of other libraries, on the shapes of `sparsekv-bench attention --device`: one query token a sequence.

Peers, each skipped with a comment if it is not installed or refuses a cell: PyTorch's scaled_dot_product_attention
(flash, cudnn; contiguous K and V), FlashAttention 3 (fa3; contiguous, it chooses how to split tokens), and FlashInfer
on pages of 16 tokens in random order (flashinfer-fa2 with tensor cores, flashinfer-cores without, flashinfer-fa3, its
cuDNN back end, XQA). fp8 means K and V in e4m3 with scales of 1; queries are then fp16, but e4m3 for fa3 and
flashinfer-fa3.

A figure is the median of five replays of a CUDA graph with many calls, each on another copy of K and V until 512 MB
have been read, so that neither the host nor the L2 cache affects it. GB/s counts each K and V byte once. The heads of
one group of one sequence are compared with plain PyTorch; a comment reports differences.

Measuring is done in a second process (peers/measure.py), which a peer may crash or hang: then a new process continues
after that cell. FlashInfer compiles a kernel when it first needs it, which takes longer than --limit allows: compile
in advance, or raise the limit. With FLASHINFER_DISABLE_JIT=1 it refuses kernels that are not compiled.

With --prefill it measures causal attention of whole prompts instead, for comparison with `sparsekv-bench prefill
--device`: fp16 and bf16, one call at a time, and fewer calls if they take seconds; TFLOP/s counts the pairs that the
mask leaves.
"""
import argparse
import importlib.metadata
import json
import os
import queue
import re
import signal
import statistics
import subprocess
import sys
import threading
import time

PEERS = {
    "flash": ("fp16",),
    "cudnn": ("fp16",),
    "fa3": ("bf16", "fp8"),
    "flashinfer-fa2": ("fp16", "fp8"),
    "flashinfer-cores": ("fp16", "fp8"),
    "flashinfer-fa3": ("fp16", "fp8"),
    "flashinfer-cudnn": ("fp16",),
    "xqa": ("fp16", "fp8"),
}
TOKENS = 4096, 32768, 131072, 1048576
THIN = [f"{batch}x{tokens}:%s" for tokens in TOKENS for batch in (1, 8)]
SETS = {
    "grid": [f"{b}x{t}:{4 * h}/{h}:128" for h in (8, 2, 1) for t in TOKENS for b in (1, 2, 4, 8)],
    "batches": ["64x8192:32/8:128", "64x32768:32/8:128", "16x131072:32/8:128"],
    "ragged": ["1x131072+63x1024:32/8:128"],
    "dims": [cell % f"{4 * h}/{h}:{dim}" for dim in (64, 256) for h in (8, 1) for cell in THIN],
    "groups": [cell % f"{group * h}/{h}:128" for group in (1, 8, 16) for h in (8, 1) for cell in THIN],
    "quick": ["1x4096:32/8:128", "8x131072:32/8:128", "64x8192:32/8:128", "1x131072+63x1024:32/8:128"],
}


class Worker:
    """The measuring process"""

    def __init__(self):
        program = os.path.join(os.path.dirname(os.path.abspath(__file__)), "peers", "measure.py")
        self.process = subprocess.Popen([sys.executable, program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                                        bufsize=1, start_new_session=True)
        self.lines = queue.Queue()
        threading.Thread(target=self.read, daemon=True).start()

    def read(self):
        for line in self.process.stdout:
            self.lines.put(line.rstrip("\n"))
        self.lines.put(None)

    def ask(self, task):
        try:
            self.process.stdin.write(json.dumps(task) + "\n")
        except OSError:
            pass  # the process has ended; answer() reports it

    def answer(self, seconds):
        """Prints lines of an answer. Returns ".", "! why" if the peer is not available, or why there is no answer."""
        until, last = time.monotonic() + seconds, "."
        while True:
            try:
                line = self.lines.get(timeout=max(0, until - time.monotonic()))
            except queue.Empty:
                return f"no answer in {seconds:.0f} s"
            if line is None:
                return f"the process ended with status {self.process.wait()}"
            if line == ".":
                return last
            if line[:1] == "!":
                last = line
            else:
                print(line, flush=True)

    def stop(self):
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.process.wait()


def version(name):
    try:
        return f"{name} {importlib.metadata.version(name)}"
    except importlib.metadata.PackageNotFoundError:
        return f"no {name}"


def decode(tasks, seconds, limit):
    names = ("torch", "triton", "flashinfer-python", "apache-tvm-ffi", "nvidia-cudnn-frontend", "flash_attn_3", "fa3_fwd")
    print("# " + ", ".join(map(version, names)), flush=True)
    print("kernel,heads,dim,dtype,tokens,batch,ms,gb_per_s", flush=True)
    end, worker, broken, gone, late = time.monotonic() + seconds, None, {}, set(), {}
    for name, dtype, cell in tasks:
        if name in gone or (name, dtype) in gone:
            continue
        if not worker and time.monotonic() < end:
            worker = Worker()
            if (why := worker.answer(min(180, end - time.monotonic()))) != ".":
                print(f"# nothing can be measured: {why}", flush=True)
                break
        if time.monotonic() >= end:
            late.setdefault(cell, []).append(f"{name} {dtype}")
            continue
        worker.ask((name, dtype, cell))
        why = worker.answer(min(limit, end - time.monotonic()))
        if why[:1] == "!":
            print(f"# {name}: left out from here on: {why[2:]}", flush=True)
            gone.add(name)
        elif why != ".":
            print(f"# {name} {cell} {dtype}: {why}", flush=True)
            worker.stop()
            worker = None
            broken[name, dtype] = broken.get((name, dtype), 0) + 1
            if broken[name, dtype] == 3:
                print(f"# {name} {dtype}: left out from here on: it broke or hung three times", flush=True)
                gone.add((name, dtype))
    for cell, what in late.items():
        print(f"# {cell}: left out, {seconds:.0f} s are over: {', '.join(what)}", flush=True)
    if worker:
        worker.stop()


def prefill(heads, kv_heads, dim, tokens, dtype):
    import torch
    import torch.nn.functional as F
    from torch.nn.attention import SDPBackend, sdpa_kernel

    def rows(h):
        return torch.randn(1, h, tokens, dim, device="cuda", dtype={"fp16": torch.float16, "bf16": torch.bfloat16}[dtype])

    q, k, v = rows(heads), rows(kv_heads), rows(kv_heads)
    for name, backend in ("flash", SDPBackend.FLASH_ATTENTION), ("cudnn", SDPBackend.CUDNN_ATTENTION):
        times = []
        with sdpa_kernel(backend):
            while len(times) < 6 and sum(times) < 4000:
                begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
                begin.record()
                F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=heads != kv_heads)
                end.record()
                end.synchronize()
                times.append(begin.elapsed_time(end))
        # the first call is a warm-up, and counts only if it is the only one because it takes long
        ms = statistics.median(times[1:] if len(times) > 1 else times)
        tflops = 4 * heads * dim * (tokens * (tokens + 1) / 2) / ms / 1e9
        print(f"{name},{heads}/{kv_heads},{dim},{dtype},{tokens},{ms:.3f},{tflops:.1f}", flush=True)
    del q, k, v
    torch.cuda.empty_cache()


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--cells", default="grid,batches,ragged,dims,groups",
                   help=f"of {', '.join(SETS)}, or BATCHxTOKENS[+BATCHxTOKENS...][:HEADS[:DIM]], ... (%(default)s)")
    p.add_argument("--quick", action="store_true", help="a handful of cells: --cells quick")
    p.add_argument("--peers", default=",".join(PEERS), help="%(default)s")
    p.add_argument("--seconds", type=float, default=540, help="for all of it; what is left then is named (%(default)s)")
    p.add_argument("--limit", type=float, default=40, help="seconds for a peer and dtype at a cell (%(default)s)")
    p.add_argument("--heads", default="32/8", help="q heads/kv heads, of prompts and cells that name none (%(default)s)")
    p.add_argument("--dim", default="128", help="head dimension, likewise (%(default)s)")
    p.add_argument("--prefill", metavar="TOKENS", help="prompts of so many tokens, ... instead, such as 32768,131072")
    p.add_argument("--dtype", default="fp16,bf16", help="of prompts: fp16, bf16 or both (%(default)s)")
    a = p.parse_args()

    if a.prefill:
        heads, kv_heads = map(int, a.heads.split("/"))
        print("kernel,heads,dim,dtype,tokens,ms,tflop_per_s")
        for tokens in map(int, a.prefill.split(",")):
            for dtype in a.dtype.split(","):
                prefill(heads, kv_heads, int(a.dim), tokens, dtype)
        return

    peers = a.peers.split(",")
    if unknown := set(peers) - set(PEERS):
        p.error(f"no such peer: {', '.join(unknown)}")
    cells = []
    for name in ("quick" if a.quick else a.cells).split(","):
        for cell in SETS.get(name, [name]):
            if not re.fullmatch(r"\d+x\d+(\+\d+x\d+)*(:\d+/\d+(:\d+)?)?", cell):
                p.error(f"no such cell: {cell}")
            shape, *rest = cell.split(":")
            cells.append(":".join([shape, *rest, *[a.heads, a.dim][len(rest):]]))
    # cells of one dtype are adjacent, because they share K and V
    decode([(p, d, c) for c in cells for d in ("fp16", "bf16", "fp8") for p in peers if d in PEERS[p]], a.seconds, a.limit)


if __name__ == "__main__":
    main()
