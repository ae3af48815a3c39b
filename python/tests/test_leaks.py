# SPDX-License-Identifier: Apache-2.0
"""
Requests leave nothing behind: descriptors, pages and memory of this process and of the daemon stay constant.

$SPARSEKV_REQUESTS: number of requests (default 400; `SPARSEKV_REQUESTS=10000` takes minutes).
"""
import gc
import os

import families
import torch
from processes import daemon_of, flat, of

import sparsekv
from sparsekv.transformers import SparseCache

REQUESTS = int(os.environ.get("SPARSEKV_REQUESTS", 400))
POLICIES = ["full", "sketch?budget=16", "quest?budget=2", "streaming?budget=16", "h2o?budget=16", "kivi?bits=4&residual=16"]


def request(model, rng, i):
    """One of several kinds: a batch, temporary names, beams, chunks, a call that raises an exception."""
    ids = torch.tensor(rng.integers(3, 300, (1 + i % 3, 20 + i % 40)))
    more = dict(do_sample=False, max_new_tokens=4, pad_token_id=0)
    name = None if i % 5 else [f"request-{i}-{row}" for row in range(len(ids))]
    cache = SparseCache(POLICIES[i % len(POLICIES)], name=name)
    if i % 7 == 3 and cache.policy == "full":
        more["num_beams"] = 2
        cache = SparseCache("full")
        name = None
    if i % 11 == 5:
        more["prefill_chunk_size"] = 16
    model.generate(ids, past_key_values=cache, **more)
    if i % 13 == 6:
        try:
            model(ids[:, :0], past_key_values=cache)
        except (sparsekv.Error, RuntimeError, ValueError, IndexError):
            pass
    if name:
        again = SparseCache(cache.policy, name=name)
        cache.close()
        again.bind(model)
        for seq in again.seqs:
            seq.drop()


def test_requests_leave_nothing(rng):
    model = families.make("Qwen3", 1, "sparsekv")
    with sparsekv.private(256 << 20) as client:
        sparsekv.set_default(client)
        daemon, figures = daemon_of(client), []
        watch = client.open(sparsekv.Model("watch", 1, 1, 1, 64, 64))
        for i in range(REQUESTS + 1):
            if i % (REQUESTS // 4) == 0:
                gc.collect()
                figures.append((*of(os.getpid()), *of(daemon), watch.room().pages))
                print("after %5d: here %d descriptors, %.1f MiB; daemon %d, %.1f MiB; room for %d pages" % (i, *figures[-1]))
            request(model, rng, i)
        flat(figures)
