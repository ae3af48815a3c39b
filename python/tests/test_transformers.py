# SPDX-License-Identifier: Apache-2.0
"""transformers' generate() on SmolLM2 in fp32: under `full` the tokens equal those of sdpa with DynamicCache."""
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, TextStreamer

import sparsekv
from sparsekv.transformers import SparseCache

FOLDER = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"), "sparsekv/smollm2-135m-instruct")
TEXTS = ["Once upon a time", "The capital of France is", "In mathematics, a group is a set with an operation that", "def fib(n):\n    "]
GREEDY = dict(do_sample=False, max_new_tokens=64, pad_token_id=0)


def load(implementation):
    return AutoModelForCausalLM.from_pretrained(FOLDER, attn_implementation=implementation, dtype=torch.float32)


@pytest.fixture(scope="module")
def model():
    return load("sparsekv")


@pytest.fixture(scope="module")
def stock():
    return load("sdpa")


@pytest.fixture(scope="module")
def tokenizer():
    tokenizer = AutoTokenizer.from_pretrained(FOLDER, padding_side="left")
    tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


@pytest.fixture(scope="module")
def one(tokenizer):
    return tokenizer("The history of the printing press begins in", return_tensors="pt")


@pytest.fixture(scope="module")
def ragged(tokenizer):
    return tokenizer(TEXTS, return_tensors="pt", padding=True)


@pytest.fixture(scope="module")
def expected(stock, one):
    return stock.generate(**one, **GREEDY)


def same(a, b):
    assert a.tolist() == b.tolist()


@pytest.fixture(autouse=True)
def our_client(client):
    sparsekv.set_default(client)


def test_single(model, one, expected):
    with SparseCache("full") as cache:
        same(model.generate(**one, past_key_values=cache, **GREEDY), expected)
        assert cache.tokens() == expected[0, :-1].tolist()
        assert cache.stats().attended_share == 1.0


def test_ragged_batch(model, stock, ragged):
    with SparseCache("full") as cache:
        same(model.generate(**ragged, past_key_values=cache, **GREEDY), stock.generate(**ragged, **GREEDY))
        lengths = ragged.attention_mask.sum(1).tolist()
        assert [len(seq) for seq in cache.seqs] == [n + 63 for n in lengths]  # no page for padding


@pytest.mark.parametrize("chunk", [3, 8])
def test_chunked(model, one, expected, chunk):
    with SparseCache("full") as cache:
        same(model.generate(**one, past_key_values=cache, prefill_chunk_size=chunk, **GREEDY), expected)


def test_beams(model, stock, one):
    more = GREEDY | dict(num_beams=4, max_new_tokens=32)
    with SparseCache("full") as cache:
        same(model.generate(**one, past_key_values=cache, **more), stock.generate(**one, **more))
    with SparseCache("full", name=[f"beam-{i}" for i in range(4)]) as cache:
        with pytest.raises(ValueError, match="as beams do"):
            model.generate(**one, past_key_values=cache, **more)
        for seq in cache.seqs:
            seq.drop()


def test_beams_of_a_batch(model, stock, ragged):
    more = GREEDY | dict(num_beams=2, max_new_tokens=16)
    with SparseCache("full") as cache:
        same(model.generate(**ragged, past_key_values=cache, **more), stock.generate(**ragged, **more))


def test_assisted(model, stock, one, expected):
    with SparseCache("full") as cache:
        same(model.generate(**one, past_key_values=cache, assistant_model=stock, **GREEDY), expected)
        assert cache.stats().steps < 40  # several tokens in a step


def test_prompt_lookup(model, one, expected):
    with SparseCache("full") as cache:
        same(model.generate(**one, past_key_values=cache, prompt_lookup_num_tokens=5, **GREEDY), expected)


def test_sampled(model, stock, one):
    more = dict(do_sample=True, max_new_tokens=24, pad_token_id=0, temperature=0.8, top_p=0.9)
    with SparseCache("full") as cache:
        torch.manual_seed(7)
        ours = model.generate(**one, past_key_values=cache, **more)
    torch.manual_seed(7)
    same(ours, stock.generate(**one, **more))


def test_streamer(model, tokenizer, one, expected, capsys):
    with SparseCache("full") as cache:
        model.generate(**one, past_key_values=cache, streamer=TextStreamer(tokenizer), **GREEDY)
    assert capsys.readouterr().out.strip() == tokenizer.decode(expected[0]).strip()


def test_turns(model, stock, tokenizer, one):
    """A second turn in the same cache, then a third that repeats the current tokens."""
    more = GREEDY | dict(max_new_tokens=12)
    with SparseCache("full") as cache:
        first = model.generate(**one, past_key_values=cache, **more)
        turn = torch.cat([first, tokenizer(" But then, in the next century,", return_tensors="pt").input_ids], dim=1)
        second = model.generate(turn, past_key_values=cache, **more)
        same(second, stock.generate(turn, **more))
        again = torch.tensor([cache.tokens()])
        same(model.generate(again, past_key_values=cache, **more), stock.generate(again, **more))


def test_without_a_cache(model, stock, ragged):
    """Without a SparseCache the model attends as with sdpa."""
    more = GREEDY | dict(max_new_tokens=8)
    same(model.generate(**ragged, **more), stock.generate(**ragged, **more))
    with torch.no_grad():
        torch.testing.assert_close(model(**ragged, use_cache=False).logits, stock(**ragged, use_cache=False).logits)


KILLED = """
import sys, torch, sparsekv
from transformers import AutoModelForCausalLM, AutoTokenizer, TextStreamer
from sparsekv.transformers import SparseCache
folder, text = sys.argv[1:]
model = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="sparsekv", dtype=torch.float32)
class Told:
    def put(self, ids): print(*ids.flatten().tolist(), flush=True)
    def end(self): pass
ids = AutoTokenizer.from_pretrained(folder)(text, return_tensors="pt")
model.generate(**ids, past_key_values=SparseCache("full", name="killed"), do_sample=False, max_new_tokens=400, streamer=Told())
"""


def test_resumed_after_sigkill(model, client, one, expected):
    env = os.environ | {"SPARSEKV_SOCKET": client.socket}
    text = "The history of the printing press begins in"
    program = subprocess.Popen([sys.executable, "-c", KILLED, str(FOLDER), text], stdout=subprocess.PIPE, text=True, env=env)
    told = [int(x) for x in program.stdout.readline().split()]
    while len(told) < one.input_ids.shape[1] + 20:
        told += [int(x) for x in program.stdout.readline().split()]
    program.send_signal(signal.SIGKILL)
    told += [int(x) for x in program.stdout.read().split()]
    program.wait()
    with SparseCache("full", name="killed", model=model) as cache:
        ids = cache.tokens()
        # at most the last token's step had not begun
        assert len(ids) >= len(told) - 1 and told[: len(ids)] == ids[: len(told)]
        more = GREEDY | dict(max_new_tokens=expected.shape[1] - len(ids))
        same(model.generate(torch.tensor([ids]), past_key_values=cache, **more), expected)
        cache.seqs[0].drop()


def test_names_of_a_batch(model, stock, ragged):
    names, more = [f"row-{i}" for i in range(4)], GREEDY | dict(max_new_tokens=6)
    expected = stock.generate(**ragged, **(more | dict(max_new_tokens=12)))
    with SparseCache("full", name=names) as cache:
        first = model.generate(**ragged, past_key_values=cache, **more)
    mask = torch.cat([ragged.attention_mask, torch.ones((4, 6), dtype=torch.long)], dim=1)
    with SparseCache("full", name=names, model=model) as cache:
        assert cache.get_seq_length() == first.shape[1] - 1
        same(model.generate(first, attention_mask=mask, past_key_values=cache, **more), expected)
        for seq in cache.seqs:
            seq.drop()
    with SparseCache("full", name=names[:2]) as cache, pytest.raises(ValueError, match="name has 2 names"):
        model.generate(**ragged, past_key_values=cache, **more)


def test_forks(model, stock, ragged):
    """One prompt, read once, is continued under several policies, each with its own fork."""
    more = GREEDY | dict(max_new_tokens=6)
    with SparseCache("full") as cache:
        with torch.no_grad():
            position = (ragged.attention_mask.cumsum(1) - 1).clamp(min=0)
            model(**{name: x[:, :-1] for name, x in ragged.items()}, position_ids=position[:, :-1], past_key_values=cache)
        expected = stock.generate(**ragged, **more)
        for policy in ["full", "streaming?budget=6&sinks=2&dense=0", "full"]:
            with cache.fork(policy) as fork:
                out = model.generate(**ragged, past_key_values=fork, **more)
                assert fork.attended_share() == 1 if policy == "full" else fork.attended_share() < 0.8
                assert policy != "full" or out.tolist() == expected.tolist()
        assert cache.get_seq_length() == ragged.input_ids.shape[1] - 1
        assert cache.stats().n_seqs == 4


@pytest.mark.parametrize("policy", ["sketch?budget=32", "quest?budget=2", "streaming?budget=32", "h2o?budget=32"])
def test_policies(model, one, expected, policy):
    """Policies decode and attend to fewer tokens. They read the prompt densely: the first token is that of `full`."""
    more = GREEDY | dict(max_new_tokens=100)
    with SparseCache(policy) as cache:
        ours = model.generate(**one, past_key_values=cache, **more)
        n = one.input_ids.shape[1]
        assert ours[0, : n + 1].tolist() == expected[0, : n + 1].tolist()
        assert cache.stats().attended_share < 0.9


@pytest.mark.parametrize("policy", ["full", "sketch?budget=32", "h2o?budget=32"])
def test_fp8(model, stock, one, expected, policy):
    """
    With fp8 pages the next token's distribution is close to that of fp32 pages. (Not exact with chunks, because
    torch's products differ in the last bit.)
    """
    with torch.no_grad(), SparseCache("full", kv_dtype="fp8") as cache:
        got = model(**one, past_key_values=cache).logits[0].log_softmax(-1)
        want = stock(**one).logits[0].log_softmax(-1)
        assert 1e-7 < (want.exp() * (want - got)).sum(-1).mean() < 5e-3
        assert cache.session.model.page_bytes == 2 * 3 * 16 * (64 + 1)
    with SparseCache(policy, kv_dtype="fp8") as cache:
        assert model.generate(**one, past_key_values=cache, **GREEDY).shape == expected.shape
    with pytest.raises(sparsekv.Error, match="not of fp8"), SparseCache("kivi", kv_dtype=torch.float8_e4m3fn) as cache:
        model(**one, past_key_values=cache)


def test_a_call_that_raises_changes_nothing(model, one, expected):
    with SparseCache("full") as cache, torch.no_grad():
        model(one.input_ids, past_key_values=cache)
        hook = model.model.layers[12].register_forward_pre_hook(lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            model(expected[:, one.input_ids.shape[1] :][:, :1], past_key_values=cache)
        hook.remove()
        assert cache.get_seq_length() == len(cache.seqs[0]) == one.input_ids.shape[1]
        same(model.generate(expected[:, :40], past_key_values=cache, **(GREEDY | dict(max_new_tokens=4))), expected[:, :44])


def test_refusals(model, stock, one, ragged):
    with pytest.raises(ValueError, match="attn_implementation is sdpa, expected sparsekv"):
        stock.generate(**one, past_key_values=SparseCache(), **GREEDY)
    with SparseCache() as cache:
        model.generate(**one, past_key_values=cache, **(GREEDY | dict(max_new_tokens=2)))
        with pytest.raises(ValueError, match="the batch has 4 rows, expected 1"):
            model(**ragged, past_key_values=cache)
    with SparseCache("nosuch") as cache, pytest.raises(sparsekv.Error, match="nosuch"):
        model.generate(**one, past_key_values=cache, **GREEDY)
    with SparseCache() as cache, pytest.raises(ValueError, match="attention_mask is not"):
        model(one.input_ids, attention_mask=torch.zeros((1, 1, 9, 9)), past_key_values=cache)
