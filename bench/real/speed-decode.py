#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares decode steps of transformers on a device with SparseCache and with transformers' own caches, in one run.

usage: speed-decode.py [--tokens N] [--batch N] [--steps N] [--new N] [--device DEVICE] VARIANT...

The model has the shape of Llama-3-8B with random weights in bf16. Caches are filled with random K and V, as after a
prompt of N tokens. A VARIANT is dynamic (sdpa with DynamicCache: PyTorch's FlashAttention), static (sdpa with
StaticCache, compiled as by generate()), or a policy of SparseCache, optionally with "+eager" (steps are not
recorded), "+compile", or "+tuned" (compiled; one-row products become tuned reductions). Columns: median milliseconds
of a step (model call and argmax); the device's part of it; the host's part, until the call returns; tokens/s of
generate() with --new tokens, greedily; the step relative to the time in which the device reads weights and K and V;
seconds of the first four steps, with compilation and recording.
"""
import argparse
import statistics
import time

import torch
from transformers import CompileConfig, DynamicCache, LlamaConfig, LlamaForCausalLM, StaticCache

import sparsekv
from sparsekv.session import Item
from sparsekv.transformers import SparseCache

LLAMA_3_8B = dict(
    vocab_size=128256, hidden_size=4096, intermediate_size=14336, num_hidden_layers=32, num_attention_heads=32,
    num_key_value_heads=8, max_position_embeddings=140000, rms_norm_eps=1e-5, pad_token_id=0, eos_token_id=None,
    rope_parameters=dict(rope_type="default", rope_theta=500000.0),
)  # fmt: skip
COMPILES = {
    "compile": True,
    "tuned": {"options": {"coordinate_descent_tuning": True}},
}
CHUNK = 8192  # tokens that are added to a cache at a time


def read_rate(device):
    """Measures the bytes a second that a sum of 8 GB reads."""
    x = torch.zeros(1 << 31, dtype=torch.float32, device=device)
    times = []
    for _ in range(8):
        torch.cuda.synchronize()
        start = time.perf_counter()
        x.sum()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return x.numel() * 4 / min(times)


def rows(config, batch, n, device):
    """Random K, V [batch, n_kv_heads, n, head_dim] of a layer."""
    shape = (batch, config.num_key_value_heads, n, config.hidden_size // config.num_attention_heads)
    return [torch.randn(shape, dtype=torch.bfloat16, device=device) for _ in range(2)]


def fill_ours(cache, model, batch, tokens):
    """Fills our cache as a prompt does, but only appends K and V."""
    cache.bind(model)
    cache._make(batch)
    session, config = cache.session, model.config
    for start in range(0, tokens, CHUNK):
        n = min(CHUNK, tokens - start)
        for seq in cache.seqs:
            session.begin([Item(seq, n, prompt=True, remaining=tokens - start - n, tokens=[5] * n)])
            for layer in range(config.num_hidden_layers):
                k, v = (x[0].transpose(0, 1).contiguous() for x in rows(config, 1, n, model.device))
                session.attend(layer, None, k, v, None)
            session.end()
    cache._columns.append(tokens, None, batch)


def fill_theirs(cache, model, batch, tokens):
    for layer in range(model.config.num_hidden_layers):
        cache.update(*rows(model.config, batch, tokens, model.device), layer)


class Variant:
    """A filled cache, and a call that decodes a step with it."""

    def __init__(self, name, model, client, a):
        spec, _, how = name.partition("+")
        self.model = model
        self.ours = spec not in ("dynamic", "static")
        model.set_attn_implementation("sparsekv" if self.ours else "sdpa")
        room = a.tokens + a.steps * 3 + 2 * a.new + 64
        if self.ours:
            self.cache = SparseCache(spec, client=client, graphs=how != "eager", compile=COMPILES.get(how, False), max_tokens=room)
            fill_ours(self.cache, model, a.batch, a.tokens)
        elif spec == "dynamic":
            self.cache = DynamicCache(config=model.config)
            fill_theirs(self.cache, model, a.batch, a.tokens)
        else:
            self.cache = StaticCache(config=model.config, max_cache_len=room)
            fill_theirs(self.cache, model, a.batch, a.tokens)
        self.call = model.get_compiled_call(CompileConfig()) if spec == "static" else model.__call__
        self.token = torch.full((a.batch, 1), 5, device=model.device)
        self.columns = a.tokens

    def step(self):
        given = {}
        if not self.ours:
            position = torch.full_like(self.token, self.columns)
            given = self.model.prepare_inputs_for_generation(self.token, past_key_values=self.cache, position_ids=position, use_cache=True)
            given.pop("past_key_values"), given.pop("input_ids")
        out = self.call(input_ids=self.token, past_key_values=self.cache, **{"logits_to_keep": 1, "return_dict": True, **given})
        self.columns += 1
        self.token = out.logits[:, -1:].argmax(-1)

    def device_ms(self):
        """Device time of a step; all its launches are queued before the device begins."""
        stream = torch.cuda.current_stream()
        if self.ours and self.cache._recordings:
            stream = self.cache._recordings[0]._stream
        begun, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        with torch.cuda.stream(stream):
            torch.cuda._sleep(200_000_000)
            begun.record()
        self.step()
        ended.record()
        torch.cuda.synchronize()
        return begun.elapsed_time(ended)


def timed(f, n):
    times = []
    for _ in range(n):
        torch.cuda.synchronize()
        start = time.perf_counter()
        f()
        returned = time.perf_counter()
        torch.cuda.synchronize()
        times.append(((time.perf_counter() - start) * 1e3, (returned - start) * 1e3))
    return [statistics.median(x) for x in zip(*times)]


def generated(v, a):
    """Tokens a second of generate()."""
    ids = torch.full((a.batch, v.columns + 1), 5, device=v.model.device)
    given = dict(do_sample=False, pad_token_id=0, past_key_values=v.cache, attention_mask=torch.ones_like(ids))
    seconds = []
    for n in (a.new // 4, a.new):
        given["attention_mask"] = torch.ones_like(ids)
        torch.cuda.synchronize()
        start = time.perf_counter()
        ids = v.model.generate(ids, max_new_tokens=n, **given)
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
    return a.batch * a.new / seconds[1]


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--tokens", type=int, default=32768)
    p.add_argument("--batch", type=int, default=1)
    p.add_argument("--steps", type=int, default=40)
    p.add_argument("--new", type=int, default=64)
    p.add_argument("--layers", type=int, default=32)
    p.add_argument("--device", default="cuda:0")
    p.add_argument("variant", nargs="+")
    a = p.parse_args()
    rate = read_rate(a.device)
    config = LlamaConfig(**(LLAMA_3_8B | dict(num_hidden_layers=a.layers)))
    config._attn_implementation = "sdpa"
    with torch.device(a.device):
        model = LlamaForCausalLM._from_config(config, dtype=torch.bfloat16).eval()
    weights = sum(x.numel() for name, x in model.named_parameters() if "embed_tokens" not in name) * 2
    kv = a.batch * a.tokens * config.num_hidden_layers * config.num_key_value_heads * 128 * 2 * 2
    floor = (weights + kv) / rate * 1e3
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}; {a.batch} x {a.tokens} tokens; reads {rate / 1e12:.2f} TB/s; "
          f"weights {weights / 1e9:.1f} GB, K and V {kv / 1e9:.1f} GB: {floor:.2f} ms", flush=True)  # fmt: skip
    print(f"{'':34} step ms  device   host  tokens/s  of the read   first s", flush=True)
    with sparsekv.private(1 << 30) as client, torch.inference_mode():
        for name in a.variant:
            try:
                v = Variant(name, model, client, a)
                start = time.perf_counter()
                for _ in range(4):  # compilation and recording
                    v.step()
                torch.cuda.synchronize()
                first = time.perf_counter() - start
                step, host = timed(v.step, a.steps)
                device = statistics.median(v.device_ms() for _ in range(8))
                speed = generated(v, a)
                print(f"{name:34} {step:7.2f} {device:7.2f} {host:6.2f} {speed:9.1f} {step / floor:12.2f} {first:9.1f}", flush=True)
            except Exception as e:
                print(f"{name:34} {type(e).__name__}: {str(e)[:300]}", flush=True)
            v = None
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
