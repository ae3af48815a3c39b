# SPDX-License-Identifier: Apache-2.0
"""
The scheduler half, the worker half and the attention backend, driven by a small engine instead of vLLM's. Requests
arrive, are read in chunks, decode with drafts, are preempted, aborted and repeated, in random order. Attention of
every row is compared with dense attention over the request's tokens.

K and V of a token depend only on its id and its position, as in a model's first layer, so prefixes can be shared.
$SPARSEKV_TEST_DEVICE=cuda:0 runs the tests on a device, where vLLM need not be installed (fake_vllm.py).
"""
import contextlib
import json
import os
import pickle
import random
import time
from pathlib import Path
from types import SimpleNamespace as Some
from typing import Any

import fake_vllm  # noqa: F401: before sparsekv.vllm
import pytest
from processes import control

torch = pytest.importorskip("torch")

import sparsekv  # noqa: E402
import sparsekv.vllm.backend as backend  # noqa: E402
import sparsekv.vllm.scheduler as scheduler_module  # noqa: E402
import sparsekv.vllm.worker as worker_module  # noqa: E402
from sparsekv.vllm.admission import try_several_rows  # noqa: E402
from sparsekv.vllm.identity import model_identity, name_under, request_key  # noqa: E402
from sparsekv.vllm.params import EngineParams  # noqa: E402
from sparsekv.vllm.scheduler import Scheduler, common  # noqa: E402

SEED = int(os.environ["SKV_SEED"])
DEVICE = os.environ.get("SPARSEKV_TEST_DEVICE", "cpu")
DTYPE = torch.float32 if DEVICE == "cpu" else torch.bfloat16
L, H, KV, D, VOCAB, LONGEST, BLOCK = 3, 4, 2, 64, 50, 400, 16
STEPS = int(os.environ.get("SPARSEKV_TEST_STEPS", "200"))


class Request:
    """The parts of vLLM's requests that the halves read."""

    def __init__(self, number: int, prompt: list[int], ours: dict | None, salt: str = ""):
        self.request_id = f"cmpl-{number}-0-{number:08x}"
        self.sampling_params = Some(extra_args={"sparsekv": ours} if ours else None)
        self.all_token_ids = list(prompt)
        self.device_ids = list(prompt)  # with tokens that were sampled, but are unknown to the scheduler
        self.prompt = list(prompt)
        self.stale, self.drop_stale = 0, False
        self.num_computed_tokens = self.num_preemptions = 0
        self.skip_reading_prefix_cache = False
        self.blocks: list[int] = []
        self.left = 0
        self.cache_salt, self.lora_request, self.mm_features, self.prompt_embeds = salt, None, [], None

    def inputs(self, tokens: list[int]) -> list[int]:
        """Inputs of the model: another salt acts like another adapter, so K and V of the same ids differ."""
        return [(t + 17 * len(self.cache_salt)) % VOCAB for t in tokens]

    @property
    def num_tokens(self) -> int:
        return len(self.all_token_ids)


class Model:
    """Queries, keys and values by layer, token and position."""

    def __init__(self, seed: int):
        make = torch.Generator().manual_seed(seed)
        self.table = {w: torch.randn(L, VOCAB, n, D, generator=make) for w, n in (("q", H), ("k", KV), ("v", KV))}
        self.place = {w: torch.randn(L, LONGEST + 64, n, D, generator=make) for w, n in (("q", H), ("k", KV), ("v", KV))}

    def rows(self, what: str, layer: int, tokens: list[int], start: int) -> torch.Tensor:
        ids = torch.tensor(tokens).clamp(min=0)
        return (self.table[what][layer, ids] + self.place[what][layer, start : start + len(tokens)]).to(DEVICE, DTYPE)

    def attention(self, layer: int, tokens: list[int], start: int) -> torch.Tensor:
        """Dense attention of the rows from `start` on, in double precision."""
        q = self.rows("q", layer, tokens[start:], start).double()
        k, v = (self.rows(w, layer, tokens, 0).double().repeat_interleave(H // KV, 1) for w in "kv")
        score = torch.einsum("rhd,nhd->hrn", q, k) / D**0.5
        later = torch.arange(len(tokens), device=DEVICE)[None] > torch.arange(start, len(tokens), device=DEVICE)[:, None]
        return torch.einsum("hrn,nhd->rhd", score.masked_fill(later[None], -torch.inf).softmax(-1), v)


class Engine:
    """
    vLLM's scheduler and runner, as far as the connector depends on them. v2: the runner passes the batch's order and what
    it sampled; asynchronous: the scheduler gets a step's results only after it has planned the next step.
    """

    def __init__(self, client: sparsekv.Client, socket: str, rng: random.Random, v2: bool, policy: str = "full", asynchronous: bool = False):
        layers = {f"model.layers.{i}": self.layer(i) for i in range(L)}
        config = Some(
            layers=layers,
            cache_config=Some(block_size=BLOCK, enable_prefix_caching=True),
            use_v2_model_runner=v2,
            device_config=Some(device_type=DEVICE.partition(":")[0]),
        )
        params = EngineParams(policy=policy, socket=socket, fork_tokens=20, retain=3)
        worker_module.model_of = lambda *_: (self.shape(), {name: i for i, name in enumerate(layers)})
        self.rng, self.v2, self.asynchronous, self.layers = rng, v2, asynchronous, layers
        self.in_flight: list[tuple[dict[Request, list[int]], Any]] = []  # requests with sampled tokens, and the report, of each step
        self.scheduler, self.worker = Scheduler(config, params), worker_module.Worker(config, params)
        self.builder = backend.SparseKVMetadataBuilder(Some(), list(layers), Some(), DEVICE)
        worker_module.has_kv_transfer_group, worker_module.get_kv_transfer_group = (lambda: True), (lambda: Some(worker=self.worker))
        self.model = Model(rng.randrange(1 << 30))
        self.waiting: list[Request] = []
        self.running: list[Request] = []
        self.failed: list[Request] = []
        self.free = list(range(1, 4000))
        self.dense = True  # outputs must equal dense attention
        self.counts = {"rows": 0, "drafts": 0, "found": 0, "preempted": 0, "lost": 0}

    @staticmethod
    def shape() -> sparsekv.Model:
        dtype = str(DTYPE)[6:]
        return sparsekv.Model("halves", n_layers=L, n_heads=H, n_kv_heads=KV, head_dim=D, max_tokens=LONGEST + 32, kv_dtype=dtype, device=DEVICE)

    @staticmethod
    def layer(i: int):
        impl = backend.SparseKVImpl(H, D, D**-0.5, KV)
        return Some(layer_name=f"model.layers.{i}", impl=impl)

    def ask(self, request: Request, answer: int) -> None:
        request.left = answer
        self.scheduler.add(request)
        self.waiting.append(request)

    def grow(self, request: Request, tokens: int) -> None:
        while len(request.blocks) * BLOCK < tokens:
            request.blocks.append(self.free.pop(self.rng.randrange(len(self.free))))

    def give_back(self, request: Request) -> None:
        self.free += request.blocks
        request.blocks = []

    def preempt(self, request: Request, drop_stale: bool = False) -> None:
        self.running.remove(request)
        self.give_back(request)
        request.num_computed_tokens, request.num_preemptions = 0, request.num_preemptions + 1
        request.stale, request.drop_stale = sum(request in results for results, _ in self.in_flight), drop_stale
        if drop_stale:
            request.device_ids = list(request.all_token_ids)
        self.waiting.insert(0, request)
        self.counts["preempted"] += 1

    def finish(self, request: Request) -> None:
        (self.running if request in self.running else self.waiting).remove(request)
        self.scheduler.finish(request)
        self.give_back(request)

    def schedule(self, drafting: bool) -> Some:
        budget, n, drafts = self.rng.choice([1, 16, 40, 100]) + len(self.running), {}, {}
        for r in self.running:
            rows = min(budget, len(r.device_ids) - r.num_computed_tokens)
            if rows <= 0:
                continue
            if drafting and r.num_computed_tokens == r.num_tokens - 1 and self.rng.random() < 0.6:
                drafts[r.request_id] = [self.rng.randrange(VOCAB) for _ in range(self.rng.randrange(1, 5))]
                rows += len(drafts[r.request_id])
            n[r.request_id], budget = rows, budget - rows
            self.grow(r, r.num_computed_tokens + rows)
        for r in list(self.waiting):
            if r.stale > 0 and not r.drop_stale:
                continue
            found = self.scheduler.match(r) if budget > 0 and len(self.running) < 6 else None
            if found is None:
                continue
            self.counts["found"] += found
            self.waiting.remove(r)
            self.running.append(r)
            r.num_computed_tokens = found
            n[r.request_id] = min(budget, r.num_tokens - found)
            budget -= n[r.request_id]
            self.grow(r, found + n[r.request_id])
            self.scheduler.admit(r, found)
        state = Some(get_block_ids=lambda i: ([*next(r for r in self.running if r.request_id == i).blocks],))
        return Some(num_scheduled_tokens=n, scheduled_spec_decode_tokens=drafts, kv_connector_block_state=state, has_sync_kv_loads=False)

    def step(self, drafting: bool) -> None:
        output = self.schedule(drafting)
        planned = self.planned(output)
        plan = pickle.loads(pickle.dumps(self.scheduler.plan(planned)))
        self.worker.bind(plan)
        self.check_recorded()
        batch = [r for r in self.running if r.request_id in output.num_scheduled_tokens]
        self.rng.shuffle(batch)
        sampled: dict[Request, list[int]] = {}
        if batch:
            if self.v2:
                assert planned.has_sync_kv_loads
                self.worker.start([r.request_id for r in batch], None)
            self.forward(batch, output)
            sampled = {r: self.sample(r, output) for r in batch}
            if self.v2:
                ids = [ids[-1:] or [0] for ids in sampled.values()]
                self.worker.sampled(torch.tensor(ids, device=DEVICE), torch.tensor([len(x) for x in sampled.values()], device=DEVICE))
        self.worker.end()
        self.in_flight.append((sampled, self.worker.take_report()))
        if not self.asynchronous or len(self.in_flight) > 1 or not batch:
            self.update(*self.in_flight[0])

    def planned(self, output: Some) -> Some:
        """The output as the scheduler half sees it: Model Runner V2 does not tell the scheduler the drafts' ids."""
        drafts = output.scheduled_spec_decode_tokens
        hidden = {r: [-1] * len(ids) for r, ids in drafts.items()} if self.v2 else drafts
        return Some(**{**vars(output), "scheduled_spec_decode_tokens": hidden})

    def check_recorded(self) -> None:
        """Sequences have the ids of all their tokens."""
        for r in self.running:
            seq = self.worker.seqs.get(self.scheduler.entries[r.request_id].seq)
            if seq is not None:
                assert seq.tokens()[0] == r.device_ids[: len(seq)]

    def update(self, sampled: dict[Request, list[int]], report: Any) -> None:
        """The scheduler gets the results of the oldest step."""
        lost, hopeless = self.scheduler.report(report)
        for r in lost:
            self.preempt(r, drop_stale=True)
        self.in_flight.pop(0)
        for r, ids in sampled.items():
            if r.stale > 0:
                r.stale -= 1
                if r.drop_stale:
                    continue
            r.all_token_ids += ids
            r.left -= len(ids)
        self.counts["lost"] += len(lost)
        self.failed += hopeless
        for r in [*hopeless, *(r for r in sampled if r.left <= 0)]:
            if r in self.running or r in self.waiting:
                self.finish(r)

    def sample(self, r: Request, output: Some) -> list[int]:
        rows, drafts = output.num_scheduled_tokens[r.request_id], output.scheduled_spec_decode_tokens.get(r.request_id, [])
        r.num_computed_tokens += rows
        if r.num_computed_tokens < len(r.device_ids):
            return []
        right = self.rng.randrange(len(drafts) + 1) if drafts else 0
        r.num_computed_tokens -= len(drafts) - right
        self.counts["drafts"] += right
        ids = [*drafts[:right], self.rng.randrange(VOCAB)]
        r.device_ids += ids
        return ids

    def forward(self, batch: list[Request], output: Some) -> None:
        spans, starts, slots = [], [0], []
        for r in batch:
            rows, drafts = output.num_scheduled_tokens[r.request_id], output.scheduled_spec_decode_tokens.get(r.request_id, [])
            tokens = [*r.device_ids, *drafts][: r.num_computed_tokens + rows]
            spans.append((r, r.inputs(tokens), r.num_computed_tokens))
            starts.append(starts[-1] + rows)
            slots += [r.blocks[p // BLOCK] * BLOCK + p % BLOCK for p in range(r.num_computed_tokens, len(tokens))]
        pad = self.rng.choice([0, 0, 3])
        common_metadata = Some(causal=True, query_start_loc_cpu=torch.tensor(starts), slot_mapping=torch.tensor(slots + [-1] * pad, device=DEVICE))
        metadata = self.builder.build(0, common_metadata)
        for i, layer in enumerate(self.layers.values()):
            q, k, v = (torch.cat([self.model.rows(w, i, tokens[at:], at) for _, tokens, at in spans]) for w in "qkv")
            q, k, v = (torch.nn.functional.pad(x, (0, 0, 0, 0, 0, pad), value=float("nan")) for x in (q, k, v))
            out = torch.full_like(q, float("nan"))
            layer.impl.forward(layer, q, k, v, None, metadata, out)
            assert not out[: starts[-1]].isnan().any()
            # a graph is replayed for more requests than it was captured with: what it does must not depend on the padding
            if self.worker.step is not None and self.worker.step.index is None:
                assert out[starts[-1] :].isnan().all()
            for (_, tokens, at), a, b in zip(spans, starts, starts[1:]):
                if not out[a:b].any():
                    continue  # failed; the worker reports it
                error = (out[a:b].double() - self.model.attention(i, tokens, at)).abs().max()
                assert not self.dense or error < (1e-4 if DTYPE == torch.float32 else 4e-2), (float(error), at, len(tokens))
        self.counts["rows"] += starts[-1]


def prompt(rng: random.Random, old: list[list[int]]) -> list[int]:
    """New tokens, often after the beginning of an older request's."""
    begin = rng.choice(old) if old and rng.random() < 0.6 else []
    begin = begin[: rng.randrange(len(begin) + 1)]
    return [*begin, *[rng.randrange(VOCAB) for _ in range(rng.randrange(1, 60))]][: LONGEST - 80]


def play(engine: Engine, rng: random.Random, steps: int, drafting: bool, named: float = 0.4) -> None:
    old: list[list[int]] = []
    for number in range(steps):
        if len(engine.waiting) < 3 and rng.random() < 0.4:
            ours = {}
            if rng.random() < named:
                ours["name"] = f"talk-{rng.randrange(4)}"
            request = Request(number, prompt(rng, old), ours, rng.choice(["", "", "a", "bb"]))
            old.append(request.all_token_ids)
            engine.ask(request, rng.randrange(1, 40))
        if engine.running and rng.random() < 0.08:
            engine.preempt(rng.choice(engine.running))
        if (engine.running or engine.waiting) and rng.random() < 0.05:
            engine.finish(rng.choice(engine.running + engine.waiting))
        engine.step(drafting)
    for _ in range(2000):
        if not engine.running and not engine.waiting and not any(sampled for sampled, _ in engine.in_flight):
            break
        engine.step(drafting)
    assert not engine.running and not engine.waiting
    engine.scheduler.forget_retained()
    engine.step(False)
    assert engine.worker.session.stats().n_seqs == 0 and not engine.worker.seqs and not engine.scheduler.names


@pytest.fixture
def client():
    """A daemon for each test, because named sequences of another test's model have other K and V."""
    with sparsekv.private(512 << 20) as client:
        yield client


@pytest.mark.parametrize("v2, drafting, asynchronous", [(False, False, False), (False, True, False), (True, False, False), (True, True, False), (True, False, True)])
def test_random(client, v2: bool, drafting: bool, asynchronous: bool):
    print(f"SKV_SEED={SEED}")
    rng = random.Random(f"{SEED} {v2} {drafting} {asynchronous}")
    engine = Engine(client, client.socket, rng, v2, asynchronous=asynchronous)
    play(engine, rng, STEPS, drafting)
    print(engine.counts)
    assert engine.counts["found"] > 0 and engine.counts["preempted"] > 0 and (engine.counts["drafts"] > 0) == drafting
    assert engine.counts["lost"] == 0
    engine.worker.close()


def test_what_else_k_and_v_depend_on(tmp_path):
    """Adapters are identified by their files, images by content and position; for embeddings the key is unknown."""
    (tmp_path / "adapter_config.json").write_text("{}")
    weights = tmp_path / "adapter_model.safetensors"
    weights.write_bytes(b"1")

    def key(**more):
        return request_key(Some(**(dict(lora_request=None, cache_salt=None, mm_features=[], prompt_embeds=None) | more)))

    def adapter(path, name="a"):
        return Some(lora_name=name, lora_path=str(path), lora_int_id=1)

    def image(content, at):
        return [Some(identifier=content, mm_position=Some(offset=at, length=9))]

    plain, a = key(), key(lora_request=adapter(tmp_path))
    assert plain == ""
    assert a == key(lora_request=adapter(tmp_path, "the same under another name"))
    keys = [plain, a, key(cache_salt="a"), key(lora_request=adapter("hub/name")), key(lora_request=adapter("hub/name", "b")),
            key(lora_request=adapter(tmp_path), cache_salt="a"), key(mm_features=image("x", 3)), key(mm_features=image("x", 4)), key(mm_features=image("y", 3))]  # fmt: skip
    weights.write_bytes(b"2")  # retrained in place
    keys.append(key(lora_request=adapter(tmp_path)))
    assert len(set(keys)) == len(keys)
    assert key(prompt_embeds=torch.zeros(1)) is None
    assert name_under(plain, "chat") == "chat" and len(name_under(a, "c" * 63)) == 63 and name_under(a, "chat") != name_under(keys[-1], "chat")


def engine_config(folder, **more) -> Some:
    config = {"model_type": "llama", "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}, "sliding_window": None} | more.pop("config", {})
    model = dict(model=str(folder), dtype=torch.bfloat16, quantization=None, seed=0, revision=None, max_model_len=512, hf_config=Some(model_type="llama", to_dict=lambda: config))
    return Some(model_config=Some(**(model | more)), load_config=Some(load_format="auto"))


def test_what_an_engines_model_is(tmp_path):
    """
    A model is identified by its weights, whatever files hold them and wherever they are, and by its configuration.
    """
    shape = sparsekv.Model("model", 2, 4, 2, 64, 512)
    for folder in ("a/model", "b/model", "c/model"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "pytorch_model.bin").write_bytes(b"1" if folder[0] != "b" else b"2")
    a, b, c = (tmp_path / x / "model" for x in "abc")
    (tmp_path / "a.gguf").write_bytes(b"3")

    def name(folder=a, shape=shape, **more):
        return model_identity(engine_config(folder, **more), shape)

    theta = {"rope_type": "default", "rope_theta": 20000.0}  # as by --hf-overrides
    names = [name(), name(b), name(tmp_path / "a.gguf"), name("hub/model"), name("hub/model", revision="x"), name(quantization="fp8"), name(dtype=torch.float16),
             name(config=dict(rope_parameters=theta)), name(config=dict(sliding_window=64)), name(shape=sparsekv.Model("model", 2, 4, 4, 64, 512))]  # fmt: skip
    assert len(set(names)) == len(names)
    assert name(c) == name() and name(shape=sparsekv.Model("model", 2, 4, 2, 64, 256)) == name()
    # the shape's RoPE is unknown, so its factors may depend on the longest sequence
    assert name(max_model_len=1024) != name()
    known = sparsekv.Model("model", 2, 4, 2, 64, 512, rope=sparsekv.Rope("default", 10000.0))
    assert name(shape=known, max_model_len=1024) == name(shape=known)
    (a / "pytorch_model.bin").write_bytes(b"4")  # retrained in place
    assert name() not in names


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch):
    """Requests that wait for pages try again in the next step."""
    monkeypatch.setattr(scheduler_module, "RETRY_SECONDS", 0.0)


def small_pool(*args: str):
    """A daemon with a pool of 4 MiB."""
    device = () if DEVICE == "cpu" else ("--cuda-pool-bytes=4M", "--cuda-segment-bytes=2M")
    return sparsekv.private(4 << 20, "--segment-bytes=1M", *device, *args)


@pytest.mark.parametrize("asynchronous", [False, True])
def test_short_of_pages(at_once, asynchronous: bool):
    """A pool that another client also uses: requests start again, and nothing else goes wrong."""
    print(f"SKV_SEED={SEED}")
    rng = random.Random(SEED)
    with small_pool() as client:
        engine = Engine(client, client.socket, rng, v2=asynchronous, asynchronous=asynchronous)
        with client.open(engine.shape()) as neighbour:
            held = hold(neighbour, engine.worker.session, 80)
            play(engine, rng, STEPS, False, named=0)  # a named sequence keeps its pages between requests
            del held
        print(engine.counts)
        assert engine.counts["lost"] > 0 and not engine.failed
        engine.worker.close()


def finish(engine: Engine, *requests: Request) -> None:
    """Runs steps until the requests are answered."""
    until = time.monotonic() + 30
    while any(r.left > 0 for r in requests):
        assert time.monotonic() < until
        engine.step(False)


@contextlib.contextmanager
def crowded_engine(*args: str):
    """An engine whose pool has room for 40 pages, because a neighbour has the rest; and the neighbour's session."""
    with small_pool(*args) as client:
        engine = Engine(client, client.socket, random.Random(SEED), v2=False)
        with client.open(engine.shape()) as neighbour:
            held = hold(neighbour, engine.worker.session, 40)
            yield engine, neighbour
            del held
        engine.worker.close()


@pytest.fixture
def crowded(at_once):
    with crowded_engine() as found:
        yield found


@pytest.fixture
def parking(at_once, tmp_path: Path):
    """The same, with a daemon that parks sequences."""
    tmp_path.chmod(0o700)
    with crowded_engine(f"--parked-path={tmp_path}") as (engine, _):
        yield engine


def test_first_step_waits(crowded):
    """
    A prompt that does not fit waits, and so do later ones; other requests continue. It is served when there are
    pages.
    """
    engine, neighbour = crowded
    small, large, late = (Request(i, [7 + i] * n, None) for i, n in enumerate((20, 320, 20)))
    engine.ask(small, 30)
    engine.step(False)
    engine.ask(large, 3)
    engine.ask(late, 3)
    finish(engine, small)
    assert small.num_preemptions == 0 and engine.counts["lost"] > 0
    for _ in range(20):
        engine.step(False)
    assert large.left == 3 and late.left == 3 and not engine.failed
    neighbour.close()
    finish(engine, large, late)
    assert not engine.failed


def test_first_step_fails(crowded, monkeypatch: pytest.MonkeyPatch):
    """A prompt that is alone and finds no pages for long fails; the next one is served."""
    engine, _ = crowded
    monkeypatch.setattr(scheduler_module, "SHORT_SECONDS", 0.1)
    large, late = (Request(i, [7 + i] * n, None) for i, n in enumerate((320, 20)))
    engine.ask(large, 3)
    engine.ask(late, 3)
    finish(engine, late)
    assert engine.failed == [large] and large.left == 3


def test_waiting_requests_give_way(crowded):
    """A waiting request's sequence is dropped before those of running requests. The request then computes all its tokens."""
    engine, _ = crowded
    first = Request(0, [7] * 120, {"name": "talk"})
    engine.ask(first, 3)
    finish(engine, first)
    again, small, large = Request(1, [*first.all_token_ids, 8], {"name": "talk"}), Request(2, [5] * 20, None), Request(3, [9] * 120, None)
    engine.ask(again, 3)
    engine.step(False)
    engine.waiting.remove(again)  # it is attached, and not admitted
    engine.ask(small, 30)
    engine.step(False)
    engine.ask(large, 3)
    finish(engine, small, large)
    assert engine.counts["lost"] == 0 and engine.counts["found"] == 0
    engine.waiting.append(again)
    finish(engine, again)
    assert not engine.failed


def test_named_sequences_are_parked(parking):
    """The daemon parks a named sequence whose pages another request needs. The next request of that name finds all its tokens."""
    engine = parking
    first, other = Request(0, [7] * 120, {"name": "talk"}), Request(1, [9] * 120, None)
    engine.ask(first, 3)
    finish(engine, first)
    engine.ask(other, 3)
    finish(engine, other)
    again = Request(2, [*first.all_token_ids, 8], {"name": "talk"})
    engine.ask(again, 3)
    finish(engine, again)
    assert engine.counts["found"] == len(first.all_token_ids) - 1
    assert engine.counts["lost"] == 0 and not engine.failed


def test_what_gives_way_is_parked(parking):
    """Named requests do not fit into the pool together. A preempted one later finds the tokens that it had computed."""
    engine = parking
    requests = [Request(i, [7 + i] * 40, {"name": f"talk-{i}"}) for i in range(3)]
    for request in requests:
        engine.ask(request, 60)
    finish(engine, *requests)
    assert engine.counts["lost"] > 0 and engine.counts["found"] > 0 and not engine.failed


def test_parked_and_no_room(parking, monkeypatch: pytest.MonkeyPatch):
    """A request waits while there is no room to read its parked sequence back. It then finds all tokens of the sequence."""
    engine = parking
    first, other = Request(0, [7] * 120, {"name": "talk"}), Request(1, [9] * 80, None)
    engine.ask(first, 3)
    finish(engine, first)
    engine.ask(other, 40)
    while other.left > 30:
        engine.step(False)
    again = Request(2, [*first.all_token_ids, 8], {"name": "talk"})
    engine.ask(again, 3)
    while other.left > 1:
        engine.step(False)
    assert again in engine.waiting and again.left == 3
    finish(engine, other, again)
    assert engine.counts["found"] == len(first.all_token_ids) - 1 and engine.counts["lost"] == 0


def test_few_sequences_are_attached_ahead(client):
    """Requests with names that wait for others hold the pages of a few sequences only."""
    engine = Engine(client, client.socket, random.Random(SEED), v2=False)
    requests = [Request(i, [7 + i] * 20, {"name": f"talk-{i}"}) for i in range(30)]
    for request in requests:
        engine.ask(request, 5)
    engine.step(False)
    assert len(engine.scheduler.attached) == len(engine.worker.seqs) == scheduler_module.LOOK_AHEAD
    finish(engine, *requests)
    assert not engine.scheduler.attached
    engine.worker.close()


def hold(neighbour: sparsekv.Session, session: sparsekv.Session, left: int) -> list[sparsekv.Seq]:
    """
    Creates sequences of the neighbour that leave the session room for about `left` pages. They have only K and V;
    nothing attends.
    """
    held = []
    while session.room().pages > left:
        held.append(neighbour.new())
        with neighbour.step([sparsekv.Item(held[-1], 16, prompt=True)]) as step:
            for layer in range(L):
                kv = torch.zeros(16, KV, D, dtype=DTYPE, device=DEVICE)
                step.attend(layer, None, kv, kv, None)
    return held


@pytest.mark.parametrize("policy, forks", [("full", True), ("quest?budget=64", True), ("h2o?budget=64", False), ("kivi", False), ("full?prefill=streaming", False)])
def test_forks_by_policy(client, policy: str, forks: bool):
    """A prompt forks another's sequence if its policy keeps all K and V, as reported by the worker's session."""
    engine = Engine(client, client.socket, random.Random(SEED), v2=False, policy=policy)
    engine.dense = policy == "full"
    first, second, third = (Request(i, [7] * 40, None) for i in range(3))
    engine.ask(first, 8)
    engine.step(False)
    engine.ask(second, 3)  # while the first one runs
    finish(engine, first, second)
    engine.ask(third, 3)  # after both have finished
    finish(engine, third)
    assert (engine.worker.stats.own.get("forked_tokens", 0) > 0) == forks
    assert bool(engine.scheduler.retained) == forks
    engine.worker.close()


def test_no_forks_of_what_another_policy_left(client):
    """A named sequence that h2o evicted from does not have all K and V, whichever policy continues it."""
    engine = Engine(client, client.socket, random.Random(SEED), v2=False)
    engine.dense = False
    ours = {"name": "left", "policy": "h2o?budget=32&dense=0"}
    left = Request(0, [7] * 40, ours)
    engine.ask(left, 3)
    finish(engine, left)
    again, other = Request(1, [*left.all_token_ids, 8, 8], {"name": "left"}), Request(2, [*left.all_token_ids, 9], None)
    engine.ask(again, 8)
    while not again.num_computed_tokens:
        engine.step(False)
    engine.ask(other, 3)
    finish(engine, again, other)
    assert engine.counts["found"] > 0 and engine.counts["lost"] == 0 and engine.worker.stats.own.get("forked_tokens", 0) == 0
    engine.worker.close()


def test_several_rows():
    """Admission asks the library which policies can verify drafts."""
    with sparsekv.private(64 << 20) as client:
        for policy, right in {"full": True, "sketch": True, "kivi": True, "h2o": False, "raas": False}.items():
            with client.open(sparsekv.Model("rows", 1, 1, 1, 64, 64), policy) as session:
                with contextlib.nullcontext() if right else pytest.raises(ValueError, match=f"several rows a step: .*policy {policy}"):
                    try_several_rows(session)


def test_common():
    rng = random.Random(SEED)
    for _ in range(500):
        a, b = ([rng.randrange(2) for _ in range(rng.randrange(12))] for _ in range(2))
        assert common(a, b) == next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))
