# SPDX-License-Identifier: Apache-2.0
"""
Requests leave nothing behind: descriptors, pages and memory of this process and of the daemon stay as they are.

$SPARSEKV_REQUESTS: how many (400 unless set; `SPARSEKV_REQUESTS=10000` takes minutes).
"""
import gc
import os
from pathlib import Path

import families
import torch

import sparsekv
from sparsekv.transformers import SparseCache

REQUESTS = int(os.environ.get("SPARSEKV_REQUESTS", 400))
POLICIES = ["full", "sketch?budget=16", "quest?budget=2", "streaming?budget=16", "h2o?budget=16", "kivi?bits=4&residual=16"]


def of(pid):
    """Descriptors, and resident memory in MiB."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    rss = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS"))
    return len(os.listdir(f"/proc/{pid}/fd")), rss / 1024


def daemon_of(client):
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            continue
        if client.socket.encode() in command and b"guardian" not in command:
            return pid
    raise AssertionError(f"no daemon of {client.socket}")


def request(model, rng, i):
    """One of a few kinds: a batch, names that come and go, beams, chunks, a call that raises."""
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
        _, first, last = figures[0], figures[1], figures[-1]
        assert last[0] == first[0] and last[2] == first[2], "descriptors"
        assert last[4] == first[4], "pages"
        assert last[3] <= first[3] * 1.02 + 1, "the daemon's memory"
        assert last[1] <= first[1] * 1.02 + 8, "this process's memory"
