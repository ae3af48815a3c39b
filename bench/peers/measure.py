#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The process in which bench/peers.py measures. It reads a task a line from stdin, JSON of [peer, dtype, cell]. It
writes lines to print to stdout, and a line of "." after each task. A line "! why" means that the peer is not
available at all."""
import json
import os
import statistics
import sys

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

PAGE = 16
STREAMED = 512 << 20  # bytes of K and V that are read before a copy is used again
DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp8": torch.float8_e4m3fn}


class Refused(Exception):
    """A peer cannot do this; the text says why."""


class Cell:
    """"64x8192:32/8:128": batch x tokens (more with +), query heads/kv heads, head dimension"""

    def __init__(self, name):
        self.name = name
        self.shape, heads, dim = name.split(":")
        self.heads, self.kv_heads = map(int, heads.split("/"))
        self.dim, self.scale = int(dim), int(dim) ** -0.5
        self.lens = []
        for part in self.shape.split("+"):
            batch, tokens = map(int, part.split("x"))
            self.lens += [tokens] * batch
        if any(n % PAGE for n in self.lens) or self.heads % self.kv_heads:
            raise Refused(f"whole pages of {PAGE} tokens and whole groups of heads are expected")
        self.batch, self.total, self.most = len(self.lens), sum(self.lens), max(self.lens)
        self.even = self.total == self.batch * self.most
        self.first = [sum(self.lens[:i]) for i in range(self.batch + 1)]

    def bytes(self, dtype):
        return 2 * self.total * self.kv_heads * self.dim * DTYPES[dtype].itemsize


# A peer is a function of (cell, q, flat). q is [batch, heads, dim]; flat has the elements of several copies of K and
# V, in the layout that the peer chooses. It returns call(i), which attends to copy i and returns [batch, heads, dim]
# in some shape, and rows(b, h), which returns K and V [tokens, dim] of a sequence and head in copy 0.


def sdpa(backend, cell, q, flat):
    if not cell.even:
        raise Refused("every sequence has to be of one length")
    kv, q = flat.view(-1, 2, cell.batch, cell.kv_heads, cell.most, cell.dim), q.unsqueeze(2)

    def call(i):
        with sdpa_kernel(backend):
            return F.scaled_dot_product_attention(q, kv[i, 0], kv[i, 1], enable_gqa=cell.heads != cell.kv_heads)

    return call, lambda b, h: kv[0, :, b, h]


def fa3(cell, q, flat):
    try:
        import flash_attn_interface as fa
    except ImportError:
        import fa3_fwd_interface as fa

    q = q.to(flat.dtype)
    kv = flat.view(-1, 2, cell.total, cell.kv_heads, cell.dim)
    if cell.even:
        dense, q = kv.view(-1, 2, cell.batch, cell.most, cell.kv_heads, cell.dim), q.unsqueeze(1)

        def call(i):
            return fa.flash_attn_with_kvcache(q, dense[i, 0], dense[i, 1], num_splits=0)
    else:
        ends = torch.tensor(cell.first, dtype=torch.int32, device="cuda")
        ones = torch.arange(cell.batch + 1, dtype=torch.int32, device="cuda")

        def call(i):
            return fa.flash_attn_varlen_func(q, kv[i, 0], kv[i, 1], ones, ends, 1, cell.most, num_splits=0)

    return call, lambda b, h: kv[0, :, cell.first[b] : cell.first[b + 1], h]


def paged(cell, flat):
    pages = cell.total // PAGE
    kv = flat.view(-1, pages, 2, cell.kv_heads, PAGE, cell.dim)
    order = torch.randperm(pages, device="cuda", dtype=torch.int32)
    first = [n // PAGE for n in cell.first]
    table = torch.zeros(cell.batch, cell.most // PAGE, dtype=torch.int32, device="cuda")
    for b in range(cell.batch):
        table[b, : first[b + 1] - first[b]] = order[first[b] : first[b + 1]]

    def rows(b, h):
        return kv[0, order[first[b] : first[b + 1]].long(), :, h].transpose(0, 1).reshape(2, -1, cell.dim)

    work = torch.zeros(256 << 20, dtype=torch.uint8, device="cuda")
    lens = torch.tensor(cell.lens, dtype=torch.int32, device="cuda")
    return kv, order, torch.tensor(first, dtype=torch.int32), table, lens, work, rows


def flashinfer(backend, cores, cell, q, flat):
    import flashinfer

    if backend == "cudnn":
        import cudnn  # without this import FlashInfer would load kernels from elsewhere
    kv, order, first, table, _, work, rows = paged(cell, flat)
    q, out = q.to(flat.dtype) if backend == "fa3" else q, q.dtype
    last = torch.full((cell.batch,), PAGE, dtype=torch.int32)
    wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(work, "HND", use_tensor_cores=cores, backend=backend)
    wrapper.plan(first, order, last, cell.heads, cell.kv_heads, cell.dim, PAGE, q_data_type=q.dtype,
                 kv_data_type=flat.dtype, o_data_type=out, block_tables=table if backend == "cudnn" else None)
    return lambda i: wrapper.run(q, kv[i]), rows


def xqa(cell, q, flat):
    from flashinfer.decode import xqa_batch_decode_with_kv_cache

    kv, _, _, table, lens, work, rows = paged(cell, flat)
    return lambda i: xqa_batch_decode_with_kv_cache(q, kv[i], work, table, lens, cell.most, bmm1_scale=cell.scale,
                                                    bmm2_scale=1.0, kv_layout="HND"), rows


def peer(function, *arguments):
    return lambda *more: function(*arguments, *more)


PEERS = {
    "flash": (peer(sdpa, SDPBackend.FLASH_ATTENTION), ("fp16",)),
    "cudnn": (peer(sdpa, SDPBackend.CUDNN_ATTENTION), ("fp16",)),
    "fa3": (fa3, ("bf16", "fp8")),
    "flashinfer-fa2": (peer(flashinfer, "fa2", True), ("fp16", "fp8")),
    "flashinfer-cores": (peer(flashinfer, "auto", False), ("fp16", "fp8")),
    "flashinfer-fa3": (peer(flashinfer, "fa3", True), ("fp16", "fp8")),
    "flashinfer-cudnn": (peer(flashinfer, "cudnn", False), ("fp16",)),
    "xqa": (xqa, ("fp16", "fp8")),
}


def copies(cell, dtype):
    """Returns copies of K and V: STREAMED bytes, or as many as fit."""
    size = cell.bytes(dtype)
    room = torch.cuda.mem_get_info()[0] * 9 // 10 - (1 << 30)
    n = min(-(-STREAMED // size), room // size)
    if n < 1:
        raise Refused(f"K and V take {size / 1e9:.0f} GB, and {room / 1e9:.0f} GB are free")
    # the repeated length is not a power of two, so that no two heads are equal
    some = torch.randn(min(50_000_017, n * size), device="cuda", dtype=torch.float16).to(DTYPES[dtype])
    flat = torch.empty(n * size // some.itemsize, device="cuda", dtype=some.dtype)
    for part in flat.view(torch.uint8).split(some.nbytes):
        part.copy_(some.view(torch.uint8)[: len(part)])
    return flat


def differs(cell, q, out, rows):
    """For the last sequence and kv head: the distance to plain PyTorch, relative to the norm."""
    group = cell.heads // cell.kv_heads
    k, v = (x.float() for x in rows(cell.batch - 1, cell.kv_heads - 1))
    right = torch.softmax(q[-1, -group:].float() @ k.T * cell.scale, -1) @ v
    out = out.reshape(cell.batch, cell.heads, cell.dim)[-1, -group:].float()
    return ((out - right).norm() / right.norm()).item()


def milliseconds(call, n, note):
    """Milliseconds of one call; call(i) uses copy i of n."""
    row = [i % n for i in range(n * -(-8 // n))]
    for i in (0, n - 1, 0):
        call(i)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            for i in row:
                call(i)
        replay = graph.replay
    except Exception as e:
        torch.cuda.synchronize()
        note(f"not captured, called in a loop ({reason(e)})")

        def replay():
            for i in row:
                call(i)

    times = []
    while len(times) < 6 and sum(times) < 4000:  # the first is a warm-up
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end))
    return statistics.median(times[1:] or times) / len(row)


def reason(e):
    text = " ".join(str(e).split()) or type(e).__name__
    return text[:200] if isinstance(e, Refused) else f"{type(e).__name__}: {text}"[:200]


def measure(name, dtype, cell, flat, say):
    torch.manual_seed(1)
    # queries that fp8 represents exactly, so that all peers compute the same
    q = torch.randn(cell.batch, cell.heads, cell.dim, device="cuda").to(torch.float8_e4m3fn)
    q = q.to(torch.bfloat16 if name == "fa3" else torch.float16)
    call, rows = PEERS[name][0](cell, q, flat)
    out = call(0).clone()
    n = flat.nbytes // cell.bytes(dtype)
    ms = milliseconds(call, n, lambda text: say(f"# {name} {cell.name} {dtype}: {text}"))
    gbps = cell.bytes(dtype) / ms / 1e6
    tokens = cell.most if cell.even else cell.shape
    say(f"{name},{cell.heads}/{cell.kv_heads},{cell.dim},{dtype},{tokens},{cell.batch},{ms:.4f},{gbps:.0f}")
    if not (error := differs(cell, q, out, rows)) < 0.1:
        say(f"# {name} {cell.name} {dtype}: differs from plain PyTorch by {100 * error:.0f} %")


def work():
    stdout = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # output that libraries print

    def say(text):
        print(text, file=stdout, flush=True)

    device = torch.cuda.get_device_properties(0)
    cuda, cudnn = torch.version.cuda, torch.backends.cudnn.version()
    say(f"# {device.name}, {device.total_memory >> 20} MiB, CUDA {cuda}, cuDNN {cudnn}")
    say(".")
    of, flat = None, None
    for line in sys.stdin:
        name, dtype, where = json.loads(line)
        try:
            cell = Cell(where)
            if of != (dtype, where):
                of, flat = None, None
                torch.cuda.empty_cache()
                flat, of = copies(cell, dtype), (dtype, where)
            measure(name, dtype, cell, flat, say)
        except ImportError as e:
            say(f"! {reason(e)}")
        except Exception as e:
            say(f"# {name} {where} {dtype}: left out: {reason(e)}")
        try:
            torch.cuda.synchronize()
            torch.cuda.empty_cache()
        except Exception as e:
            say(f"# {name} {where} {dtype}: {reason(e)}")
            os._exit(1)
        say(".")


if __name__ == "__main__":
    work()
