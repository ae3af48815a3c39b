# SPDX-License-Identifier: Apache-2.0
"""
Small random models on a device, $SPARSEKV_TEST_DEVICE=cuda:0. Recorded decode steps are compared with transformers'
own attention, and bit for bit with steps that are not recorded. Models are in fp32, pages in fp16. Without a device
these tests are skipped.
"""
import os

import pytest
import torch
from families import FAMILIES, make

from sparsekv.transformers import SparseCache

DEVICE = os.environ.get("SPARSEKV_TEST_DEVICE", "")
SEED = int(os.environ["SKV_SEED"])
CLOSE = 2e-2  # tolerance for fp16
GREEDY = dict(do_sample=False, max_new_tokens=48, pad_token_id=0)
pytestmark = pytest.mark.skipif(not DEVICE, reason="SPARSEKV_TEST_DEVICE names no device")


def pair(family: str = "Llama", stock: str = "sdpa"):
    """The same model with our attention and with another implementation."""
    return [make(family, SEED, name, head_dim=64, hidden_size=384).to(DEVICE) for name in ("sparsekv", stock)]


def prompt(batch: int, n: int) -> torch.Tensor:
    return torch.randint(3, 300, (batch, n), generator=torch.Generator().manual_seed(SEED)).to(DEVICE)


def made(client, policy: str = "full", **more) -> SparseCache:
    return SparseCache(policy, client=client, kv_dtype="float16", **more)


def recordings(cache: SparseCache):
    return cache._recordings[0]


def steps(model, cache, ids, n: int, **more) -> torch.Tensor:
    """Logits of n decode steps over given tokens, as one tensor."""
    with torch.no_grad():
        model(ids[:, :-n], past_key_values=cache, **more)
        every = [model(ids[:, i : i + 1], past_key_values=cache, **more).logits for i in range(ids.shape[1] - n, ids.shape[1])]
    return torch.cat(every, 1)


@pytest.mark.parametrize("family", FAMILIES)
def test_families(client, family, caplog):
    ours, stock = pair(family, "eager")
    ids = prompt(2, 60)
    with torch.no_grad():
        expected = stock(ids).logits[:, -20:]
    with made(client) as cache:
        assert (steps(ours, cache, ids, 20) - expected).abs().max() < CLOSE * expected.abs().max()
        if family == "GptOss":  # the loop over its experts reads the chosen ones from the device
            assert "are not recorded" in caplog.text
        else:
            assert (recordings(cache).made, recordings(cache).replayed) == (1, 18), caplog.text


@pytest.mark.parametrize("policy", ["full", "sketch", "quest?budget=0.25", "streaming?budget=0.25", "h2o?budget=0.25"])
def test_same_bits_as_unrecorded(client, policy):
    ours, _ = pair()
    ids = prompt(3, 400)
    with made(client, policy) as one, made(client, policy, graphs=False) as other:
        assert torch.equal(steps(ours, one, ids, 200), steps(ours, other, ids, 200))
        assert recordings(one).replayed > 100
        assert not other._recordings


def test_generate(client):
    ours, _ = pair()
    ids = prompt(4, 37)
    mask = torch.ones_like(ids)
    for row, n in enumerate((0, 5, 20, 36)):  # padding on the left
        mask[row, :n] = 0
    for more in ({}, dict(num_beams=2), dict(do_sample=True, top_p=0.9)):
        given = dict(attention_mask=mask, **(GREEDY | more))
        with made(client, graphs=False) as cache:
            torch.manual_seed(SEED)
            expected = ours.generate(ids, past_key_values=cache, **given)
        with made(client) as cache:
            torch.manual_seed(SEED)
            assert torch.equal(ours.generate(ids, past_key_values=cache, **given), expected)
            assert recordings(cache).replayed > 30


def test_streams_and_forks(client):
    """The caller's stream is used; forks share recordings; returned logits stay unchanged."""
    ours, stock = pair()
    ids = prompt(1, 50)
    with torch.no_grad():
        expected = stock(ids).logits
    with torch.cuda.stream(torch.cuda.Stream(DEVICE)), made(client) as cache, torch.no_grad():
        ours(ids[:, :20], past_key_values=cache)
        other = cache.fork()
        kept = []
        for i in range(20, 50):
            kept.append((ours(ids[:, i : i + 1], past_key_values=cache).logits, ours(ids[:, i : i + 1], past_key_values=other).logits))
        for i, (a, b) in enumerate(kept, 20):
            assert torch.equal(a, b)
            assert (a[:, 0] - expected[:, i]).abs().max() < CLOSE
        assert recordings(cache) is recordings(other)
        assert recordings(cache).made == 1


def test_drafts(client):
    ours, _ = pair()
    ids = prompt(1, 30).repeat(1, 3)
    given = dict(prompt_lookup_num_tokens=4, **GREEDY)
    with made(client) as cache, made(client, graphs=False) as other:
        expected = ours.generate(ids, past_key_values=other, **given)
        assert torch.equal(ours.generate(ids, past_key_values=cache, **given), expected)
        assert recordings(cache).replayed > 0


def test_compiled(client):
    ours, _ = pair()
    ids = prompt(2, 60)
    with made(client, compile=True) as one, made(client, graphs=False) as other:
        assert (steps(ours, one, ids, 20) - steps(ours, other, ids, 20)).abs().max() < CLOSE
        assert recordings(one).replayed == 18


def test_not_recorded(client, caplog):
    """A model that reads a value from the device: it runs normally, the log has the reason, and no step is lost."""
    ours, stock = pair()
    ids = prompt(1, 40)
    plain = ours.model.norm.forward
    ours.model.norm.forward = lambda x: plain(x) if x.abs().max().item() >= 0 else x
    with torch.no_grad():
        expected = stock(ids).logits[:, -10:]
    with made(client) as cache:
        assert (steps(ours, cache, ids, 10) - expected).abs().max() < CLOSE
        assert "are not recorded" in caplog.text
        assert cache.tokens() == ids[0].tolist()
    with made(client) as cache:
        more = dict(output_hidden_states=[True])  # a type of argument that recordings do not support
        assert (steps(ours, cache, ids, 10, **more) - expected).abs().max() < CLOSE
        assert "output_hidden_states is of list" in caplog.text
