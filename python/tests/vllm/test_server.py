# SPDX-License-Identifier: Apache-2.0
"""
`vllm serve` on CPU with its K and V in sparsekvd: under `full` the tokens equal vLLM's own, whatever other requests
do.

One server is shared by the tests that do not need their own; a server takes most of a minute to start.
"""
import threading
import time
from pathlib import Path

import numpy
import pytest
from server import TOKENS, Server

import sparsekv

pytestmark = pytest.mark.timeout(1500)


@pytest.fixture(scope="module")
def daemon():
    with sparsekv.private(1 << 30, "--segment-bytes=4M") as client:
        yield client


@pytest.fixture(scope="module")
def server(model: Path, logs: Path, daemon):
    with Server(model, logs / "ours.log", ours={"policy": "full"}, daemon=daemon.socket) as server:
        yield server


@pytest.fixture(scope="module")
def drafting(model: Path, logs: Path, daemon):
    """
    Another server on the same daemon, which drafts. Two servers at a time are too many: test_kill_and_resume is the
    first to use it.
    """
    spec = '{"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 3, "prompt_lookup_min": 1}'
    with Server(model, logs / "drafts.log", "--speculative-config", spec, ours={"policy": "full"}, daemon=daemon.socket) as server:
        yield server


def test_tokens(server: Server, stock, prompts):
    """16 requests of mixed lengths at once: chunks of prompts together with decode rows."""
    got = server.together([(text, TOKENS) for text in prompts])
    assert [x["token_ids"] for x in got] == stock["mixed"]


def test_two_policies(server: Server, stock, prompts):
    """Half of the batch runs under another policy; the results of the other half do not change."""
    sparse = {"policy": "quest?budget=4"}
    got = server.together([(text, TOKENS, sparse if i % 2 else None) for i, text in enumerate(prompts)])
    assert [x["token_ids"] for x in got[::2]] == stock["mixed"][::2]
    alone = server.together([(text, TOKENS, sparse) for text in prompts[1::2]])
    assert [x["token_ids"] for x in got[1::2]] == [x["token_ids"] for x in alone]
    assert any(x["token_ids"] != want for x, want in zip(got[1::2], stock["mixed"][1::2]))
    assert all(x["said"]["policy"] == "quest?budget=4" for x in got[1::2])


def test_forks(server: Server, stock, prompts):
    """
    A repeated prompt costs one row; a prompt with the same beginning costs only the rest. The tokens are the same.
    """
    longest = max(range(16), key=lambda i: len(stock["prompts"][i]))
    server.complete(prompts[longest], TOKENS)  # the newest of the retained ones
    before = server.metrics()["sparsekv_vllm_forked_tokens_total"]
    got = server.complete(prompts[longest], TOKENS, {})
    assert got["token_ids"] == stock["mixed"][longest]
    deadline = time.monotonic() + 20
    while server.metrics()["sparsekv_vllm_forked_tokens_total"] <= before and time.monotonic() < deadline:
        server.complete("x", 2)
        time.sleep(0.6)
    assert server.metrics()["sparsekv_vllm_forked_tokens_total"] >= before + len(stock["prompts"][longest]) - 1


def test_abort(server: Server, stock, prompts):
    """Clients disconnect within answers and prompts; other requests are not affected, and no sequence stays."""
    threads = [threading.Thread(target=server.abort, args=(prompts[i], 500, {"name": f"gone-{i}"} if i % 2 else None, i % 3)) for i in range(6)]
    for t in threads:
        t.start()
    got = server.together([(text, TOKENS) for text in prompts[:8]])
    for t in threads:
        t.join()
    assert [x["token_ids"] for x in got] == stock["mixed"][:8]


def test_refusals(server: Server, prompts):
    """Errors are reported with status 400 before a request enters the engine."""
    for ours, text in [
        ({"policy": "nosuch"}, "nosuch"),
        ({"policy": "quest?budget=x"}, "budget"),
        ({"polcy": "full"}, "unknown key 'polcy'"),
        ({"name": "a b"}, "printable ASCII"),
        ({"name": 3}, "name is 3"),
        ("full", "expected an object"),
    ]:
        status, answer = server.post("/v1/completions", {"model": "m", "prompt": "x", "kv_transfer_params": {"sparsekv": ours}})
        assert status == 400 and text in answer["error"]["message"], answer


def test_conversation(server: Server, stock, prompts):
    """A named sequence is continued: the second request computes only new tokens."""
    first = server.complete(stock["prompts"][3], 12, {"name": "chat"})
    longer = stock["prompts"][3] + first["token_ids"] + stock["prompts"][0][1:]
    second = server.complete(longer, 12, {"name": "chat"})
    assert second["said"]["cached_tokens"] == len(stock["prompts"][3]) + 11
    assert second["token_ids"] == server.complete(longer, 12)["token_ids"]
    other = server.complete(stock["prompts"][4], 12, {"name": "chat"})
    assert other["token_ids"] == stock["mixed"][4][:12] and other["said"]["cached_tokens"] <= 1


def test_kill_and_resume(request: pytest.FixtureRequest, server: Server, stock, prompts):
    """
    SIGKILL within named answers. Another engine, which drafts, continues the sequences: tokens that the client has
    are not computed again, and the answer is unchanged.
    """
    n, has = 90, 40
    whole = server.together([(stock["prompts"][i], n) for i in range(4)])
    answering = threading.Barrier(5)
    threads = [threading.Thread(target=server.abort, args=(stock["prompts"][i], 1000, {"name": f"job-{i}"}, has, answering.wait)) for i in range(4)]
    for t in threads:
        t.start()
    answering.wait(400)
    server.kill()
    for t in threads:
        t.join()
    again: Server = request.getfixturevalue("drafting")
    for i in range(4):
        asked = stock["prompts"][i] + whole[i]["token_ids"][:has]
        got = again.complete(asked, n - has, {"name": f"job-{i}"})
        assert got["token_ids"] == whole[i]["token_ids"][has:]
        assert got["said"]["cached_tokens"] == len(asked) - 1


def test_drafts(drafting: Server, stock, prompts):
    """Drafts from the text itself: rows are rejected and accepted, and the tokens are the same."""
    got = drafting.together([(text, TOKENS) for text in prompts])
    assert [x["token_ids"] for x in got] == stock["mixed"]
    counted = drafting.metrics()
    assert counted["vllm:spec_decode_num_accepted_tokens_total"] > 0
    assert counted["vllm:spec_decode_num_draft_tokens_total"] > counted["vllm:spec_decode_num_accepted_tokens_total"]
    status, answer = drafting.post("/v1/completions", {"model": "m", "prompt": "x", "kv_transfer_params": {"sparsekv": {"policy": "h2o"}}})
    assert status == 400 and "evicts by scores" in answer["error"]["message"]


def fill(session: sparsekv.Session, left: int) -> list[sparsekv.Seq]:
    """Creates sequences that take all pages of the pool but `left`; each has one layer and 16 tokens."""
    kv, seqs = numpy.zeros((16, 8, 256), numpy.float32), []
    while session.room().pages > left:
        seqs.append(session.new())
        with session.step([sparsekv.Item(seqs[-1], 16, prompt=True)]) as step:
            step.attend(0, None, kv, kv, None)
    return seqs


def test_small_pool(model: Path, logs: Path, stock, prompts):
    """
    More requests than fit in the pool: vLLM preempts, and no token changes. While another client has most of the
    pool, a prompt that does not fit waits, or only that prompt fails; the engine continues.
    """
    with sparsekv.private(112 << 20, "--segment-bytes=4M") as client:
        with Server(model, logs / "small.log", ours={"policy": "full"}, daemon=client.socket) as server:
            longest = max(range(16), key=lambda i: len(stock["prompts"][i]))
            with client.open(sparsekv.Model("neighbour", 1, 8, 8, 256, 4096)) as neighbour:
                held = fill(neighbour, 24)
                status, answer = server.post("/v1/completions", {"model": "m", "prompt": prompts[longest]})
                assert status == 500 and "the pool had no pages" in (logs / "small.log").read_text(encoding="utf-8"), answer
                waits = threading.Timer(4, neighbour.close)
                waits.start()
                got = server.complete(prompts[longest], TOKENS)
                assert got["token_ids"] == stock["mixed"][longest] and not waits.is_alive()
                del held
            got = server.together([(text[:400], 90) for text in prompts])
            assert [x["token_ids"] for x in got] == stock["short"]
            assert server.metrics()["vllm:num_preemptions_total"] > 0
            named = server.together([(text[:400], 90, {"name": f"n-{i}"}) for i, text in enumerate(prompts)])
            assert [x["token_ids"] for x in named] == stock["short"]
