# SPDX-License-Identifier: Apache-2.0
"""
`vllm serve` on a GPU ($SPARSEKV_TEST_DEVICE=cuda:0, vLLM's CUDA build): decode steps replayed as CUDA graphs, planned
asynchronously, give the tokens of steps that are neither.
"""
import concurrent.futures
import contextlib
import os
import random
from pathlib import Path

import pytest
from server import ON_CUDA, SEED, TOKENS, Server

import sparsekv

pytestmark = [pytest.mark.timeout(3600), pytest.mark.skipif(not ON_CUDA, reason="needs a GPU: SPARSEKV_TEST_DEVICE=cuda:0")]

POLICIES = ["full", "sketch", "quest?budget=0.25", "h2o?budget=256", "kivi", "delta?budget=0.25"]
REQUESTS = int(os.environ.get("SPARSEKV_REQUESTS", "200"))
KILLS = int(os.environ.get("SPARSEKV_KILLS", "2"))  # each starts a server, which takes a minute or two
AT_ONCE = int(os.environ.get("SPARSEKV_KILLS_AT_ONCE", "2"))


@pytest.fixture(scope="module")
def daemon():
    with sparsekv.private(1 << 30, "--cuda-pool-bytes=8G") as client:
        yield client


def serve(model: Path, log: Path, daemon, *args: str) -> Server:
    return Server(model, log, "--gpu-memory-utilization", "0.1", "--max-model-len", "4096", *args, ours={"policy": "full"}, daemon=daemon.socket)


@pytest.fixture(scope="module")
def servers(model: Path, logs: Path, daemon):
    """One that replays whole steps, and one that only has piecewise graphs. They start at once: it takes a minute or two."""
    kinds: dict[str, tuple[str, ...]] = {"whole": (), "piecewise": ("--no-async-scheduling", "--compilation-config", '{"cudagraph_mode": "PIECEWISE"}')}
    with contextlib.ExitStack() as stack:
        with concurrent.futures.ThreadPoolExecutor() as pool:
            started = pool.map(lambda kind: stack.enter_context(serve(model, logs / f"{kind}.log", daemon, *kinds[kind])), kinds)
        yield dict(zip(kinds, started))


@pytest.fixture(scope="module")
def server(servers) -> Server:
    return servers["whole"]


# A request of a batch has the tokens that it has alone unless two tokens are nearly as likely: vLLM's own matrix products
# round differently in other batches.
CLEAR = 0.1  # least difference between the log-probabilities of the two likeliest tokens, nats


def ids(answers: list[dict]) -> list[list[int]]:
    return [x["token_ids"] for x in answers]


def is_clear(answer: dict) -> bool:
    best = [sorted(top.values(), reverse=True) for top in answer["logprobs"]["top_logprobs"]]
    return all(first - second > CLEAR for first, second, *_ in best)


@pytest.mark.parametrize("policy", POLICIES)
def test_whole_steps_are_the_same(servers, prompts, policy: str):
    """One request at a time. Two rounds: graphs of the policy are captured in the first."""
    ours = {"policy": policy, "fork": False}
    want, *got = ([servers[kind].complete(text, 2 * TOKENS, ours) for text in prompts] for kind in ("piecewise", "whole", "whole"))
    assert ids(got[0]) == ids(want)
    assert ids(got[1]) == ids(want)


def test_each_as_alone(server: Server, prompts):
    """Requests of six policies, of which some are aborted, have the tokens that each has alone."""
    print(f"SKV_SEED={SEED}")
    rng = random.Random(SEED)
    calls = [(policy, text) for policy in POLICIES for text in prompts]
    answers = [server.complete(text, TOKENS, {"policy": policy, "fork": False}, logprobs=2) for policy, text in calls]
    alone = {call: x["token_ids"] for call, x in zip(calls, answers) if is_clear(x)}
    print(f"{len(alone)} of {len(calls)} answers are clear")
    assert {policy for policy, _ in alone} == set(POLICIES)
    todo = [(rng.choice([*alone]), rng.random() < 0.1) for _ in range(REQUESTS)]

    def run(call: tuple[str, str], aborted: bool) -> list[int]:
        ours = {"policy": call[0], "fork": False}
        if not aborted:
            return server.complete(call[1], TOKENS, ours)["token_ids"]
        server.abort(call[1], 500, ours)
        return alone[call]

    with concurrent.futures.ThreadPoolExecutor(24) as pool:
        got = list(pool.map(lambda x: run(*x), todo))
    differ = [(call, x) for x, (call, _) in zip(got, todo) if x != alone[call]]
    assert not differ, f"{len(differ)} of {REQUESTS}: {differ[:3]}"


@pytest.mark.parametrize("policy", ["full", "sketch"])
def test_batches_of_other_sizes(server: Server, prompts, policy: str):
    """
    A graph that is captured on demand, with fewer requests than rows, serves batches with more of them.
    """
    ours = {"policy": policy, "fork": False}
    answers = [server.complete(text, 3 * TOKENS, ours, logprobs=2) for text in prompts]
    alone = {text: x["token_ids"] for text, x in zip(prompts, answers) if is_clear(x)}
    assert alone
    for at_once in (5, 6, 8, 3, 4, 2, 9, 12, 16):
        texts = [[*alone][i % len(alone)] for i in range(at_once)]
        for _ in range(2):
            got = server.together([(text, 3 * TOKENS, ours) for text in texts])
            assert ids(got) == [alone[text] for text in texts], at_once


def test_kills(model: Path, logs: Path, daemon, server: Server, prompts):
    """After a SIGKILL at any moment every token that the client received is in the sequence, and the answer goes on as before."""
    print(f"SKV_SEED={SEED}")
    rng = random.Random(SEED)
    whole = server.complete(prompts[5], 200, {"fork": False})
    prompt, want = whole["prompt_token_ids"], whole["token_ids"]

    def kill(number: int, stop: int) -> None:
        name, received = f"killed-{number}", []
        with serve(model, logs / f"killed-{number}.log", daemon, "--gpu-memory-utilization", "0.05") as victim:
            for token in victim.stream(prompt, 200, {"name": name, "fork": False}):
                received.append(token)
                if len(received) == stop:
                    break
            victim.kill()
        assert received == want[:stop]
        rest = server.complete([*prompt, *received], 200 - stop, {"name": name})
        assert rest["token_ids"] == want[stop:]
        assert rest["said"]["cached_tokens"] == len(prompt) + stop - 1

    with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(kill, range(KILLS), [rng.randrange(1, 190) for _ in range(KILLS)]))
