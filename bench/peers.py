#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Attention of other libraries, on the shapes and with the timing of `sparsekv-bench attention --device`.

PyTorch's scaled_dot_product_attention (its FlashAttention and cuDNN back ends) on contiguous K and V, and, where it is
installed, FlashInfer's paged decode on pages of 16 tokens in random order. fp16, one query token a sequence. A figure
is the median of five batches of calls between two events; GB/s counts each K and V byte once.

With --prefill causal attention of whole prompts instead, to hold against `sparsekv-bench prefill --device`: fp16 and
bf16, a call at a time, and fewer of them where they take seconds; TFLOP/s counts the pairs that the mask leaves.
"""
import argparse
import statistics

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel


def milliseconds(call, calls=20, batches=5):
    for _ in range(3):
        call()
    times = []
    for _ in range(batches):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        for _ in range(calls):
            call()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) / calls)
    return statistics.median(times)


def report(name, heads, kv_heads, dim, tokens, batch, ms):
    gbps = batch * tokens * kv_heads * dim * 4 / ms / 1e6
    print(f"{name},{heads}/{kv_heads},{dim},fp16,{tokens},{batch},{ms:.4f},{gbps:.0f}", flush=True)


def sdpa(heads, kv_heads, dim, tokens, batch):
    def rows(h, n):
        return torch.randn(batch, h, n, dim, device="cuda", dtype=torch.float16)

    q, k, v = rows(heads, 1), rows(kv_heads, tokens), rows(kv_heads, tokens)
    for name, backend in ("flash", SDPBackend.FLASH_ATTENTION), ("cudnn", SDPBackend.CUDNN_ATTENTION):
        with sdpa_kernel(backend):
            ms = milliseconds(lambda: F.scaled_dot_product_attention(q, k, v, enable_gqa=heads != kv_heads))
        report(name, heads, kv_heads, dim, tokens, batch, ms)


def prefill(heads, kv_heads, dim, tokens, dtype):
    def rows(h):
        return torch.randn(1, h, tokens, dim, device="cuda", dtype=dtype)

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
        # the first call wakes what it needs, which shows unless it takes long itself
        ms = statistics.median(times[1:] if len(times) > 1 else times)
        tflops = 4 * heads * dim * (tokens * (tokens + 1) / 2) / ms / 1e9
        dtype_name = "fp16" if dtype == torch.float16 else "bf16"
        print(f"{name},{heads}/{kv_heads},{dim},{dtype_name},{tokens},{ms:.3f},{tflops:.1f}", flush=True)


def flashinfer(heads, kv_heads, dim, tokens, batch):
    import flashinfer

    pages = tokens // 16
    kv = torch.randn(batch * pages, 2, kv_heads, 16, dim, device="cuda", dtype=torch.float16)
    q = torch.randn(batch, heads, dim, device="cuda", dtype=torch.float16)
    order = torch.randperm(batch * pages, device="cuda", dtype=torch.int32)
    first = torch.arange(batch + 1, dtype=torch.int32, device="cuda") * pages
    last = torch.full((batch,), 16, dtype=torch.int32, device="cuda")
    work = torch.empty(256 << 20, dtype=torch.uint8, device="cuda")
    wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(work, "HND", use_tensor_cores=True)
    wrapper.plan(first, order, last, heads, kv_heads, dim, 16, q_data_type=torch.float16, kv_data_type=torch.float16)
    report("flashinfer", heads, kv_heads, dim, tokens, batch, milliseconds(lambda: wrapper.run(q, kv)))


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--heads", default="32/8", help="q heads/kv heads (%(default)s)")
    p.add_argument("--dim", type=int, default=128, help="head dimension (%(default)s)")
    p.add_argument("--shapes", default="64x8192,64x32768,16x131072", help="batch x tokens, ... (%(default)s)")
    p.add_argument("--prefill", metavar="TOKENS", help="prompts of so many tokens, ... instead, such as 32768,131072")
    p.add_argument("--dtype", default="fp16,bf16", help="of prompts: fp16, bf16 or both (%(default)s)")
    a = p.parse_args()
    heads, kv_heads = map(int, a.heads.split("/"))

    if a.prefill:
        print("kernel,heads,dim,dtype,tokens,ms,tflop_per_s")
        for tokens in map(int, a.prefill.split(",")):
            for dtype in a.dtype.split(","):
                prefill(heads, kv_heads, a.dim, tokens, {"fp16": torch.float16, "bf16": torch.bfloat16}[dtype])
                torch.cuda.empty_cache()
        return

    print("kernel,heads,dim,dtype,tokens,batch,ms,gb_per_s")
    for shape in a.shapes.split(","):
        batch, tokens = map(int, shape.split("x"))
        sdpa(heads, kv_heads, a.dim, tokens, batch)
        try:
            flashinfer(heads, kv_heads, a.dim, tokens, batch)
        except ImportError:
            print(f"# flashinfer is not installed: left out at {shape}", flush=True)
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
