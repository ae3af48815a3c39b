# SPDX-License-Identifier: Apache-2.0
"""
Which steps are replayed, captured or run piecewise, and what they are padded to. No device is needed: graphs and the
model are stand-ins that record what is called. test_graphs.py runs the same with vLLM on a GPU.
"""
import contextlib
import random
from types import SimpleNamespace as Some

import pytest

pytest.importorskip("vllm.v1.worker.gpu.cudagraph_utils", reason="needs vLLM: python/environment.sh makes an environment with it")

import sparsekv.vllm.graphs as graphs  # noqa: E402
import torch  # noqa: E402
from server import SEED  # noqa: E402
from vllm.config.compilation import CUDAGraphMode  # noqa: E402
from vllm.v1.worker.gpu.cudagraph_utils import BatchExecutionDescriptor  # noqa: E402

MOST = 10000  # tokens of the model's longest sequence


class Graph:
    calls: list[str] = []
    broken = False

    def capture_begin(self, pool, mode) -> None:
        pass

    def capture_end(self) -> None:
        Graph.calls.append("capture")
        if Graph.broken:
            raise RuntimeError("no memory")

    def replay(self) -> None:
        Graph.calls.append("replay")


class Worker:
    """key: of the open step; 0: it cannot be replayed"""

    metadata = None

    def __init__(self):
        self.key = 1
        self.params = Some(capture_policies=["sketch"])
        self.nobody: list[tuple[int, str | None]] = []

    def replay_key(self) -> int:
        return self.key

    def replayed(self, key: int) -> None:
        assert key == self.key

    def begin_again(self) -> None:
        Graph.calls.append("begin again")

    @contextlib.contextmanager
    def step_of_nobody(self, n_padded: int, policy: str | None):
        self.nobody.append((n_padded, policy))
        yield hash((n_padded, policy))


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch):
    """The graphs and the worker."""
    worker = Worker()
    Graph.calls, Graph.broken = [], False
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(graphs, "capture_pool", lambda *_: contextlib.nullcontext())
    monkeypatch.setattr(graphs, "set_forward_context", lambda *_, **__: contextlib.nullcontext())
    monkeypatch.setattr(graphs, "worker_half", lambda: worker)

    def model(input_ids: torch.Tensor, **_) -> torch.Tensor:
        return torch.zeros(len(input_ids), 4)

    def piecewise(model, inputs) -> torch.Tensor:
        Graph.calls.append("piecewise")
        return model(**inputs)

    mode = CUDAGraphMode.FULL_AND_PIECEWISE
    config = Some(model_config=Some(max_model_len=MOST))
    manager = Some(vllm_config=config, hidden_states=torch.zeros(8, 4), cudagraph_mode=mode, pool=None, run_pw_graph=piecewise)
    rows = Some(input_ids=torch.zeros(8), positions=torch.zeros(8), is_padding=torch.zeros(8))
    return graphs.StepGraphs(manager, model, Some(prepare_dummy_inputs=lambda *_: {}), rows, False), worker


def desc(n: int) -> BatchExecutionDescriptor:
    return BatchExecutionDescriptor(CUDAGraphMode.FULL, n, n, 1)


def run(made, n: int = 4) -> list[str]:
    """Runs a step. Returns what was called."""
    Graph.calls = []
    assert made[0].run(desc(n)).shape == (n, 4)
    return Graph.calls


def test_padded_lengths():
    rng = random.Random(SEED)
    for longest in (1, 2048, 2049, 3072, 3073, 32768, 32769, *(rng.randrange(1, 140000) for _ in range(500))):
        length = graphs.padded_length(longest, 132000)
        assert min(longest, 132000) <= length <= max(2048, 1.5 * longest) and (length & length - 1 == 0 or length % 3 == 0)


def test_captured_at_the_start(made):
    """All batch sizes, the largest first, of the engine's policy and of those in the configuration."""
    step_graphs, worker = made
    step_graphs.capture_all(worker, [desc(8), desc(4)], None)
    assert worker.nobody == [(n, policy) for policy in (None, "sketch") for n in (8, 4) for _ in range(2)]
    assert len(step_graphs.graphs) == 4
    worker.key = hash((4, "sketch"))
    assert run(made) == ["replay"]


def test_captured_when_it_comes_again(made):
    worker = made[1]
    for _ in range(graphs.CAPTURE_AFTER - 1):
        assert run(made) == ["piecewise"]
    assert run(made) == ["capture", "replay"]
    assert run(made) == ["replay"]
    assert run(made, 8) == ["piecewise"]  # another batch size
    worker.key = 2
    assert run(made) == ["piecewise"]
    worker.key = 0
    for _ in range(20):
        assert run(made) == ["piecewise"]


def test_capture_fails(made):
    """The step runs piecewise, after it was begun anew, and no other capture of its kind is tried."""
    Graph.broken = True
    calls = [run(made) for _ in range(graphs.CAPTURE_AFTER + 3)]
    assert calls[graphs.CAPTURE_AFTER - 1] == ["capture", "begin again", "piecewise"]
    assert all(x == ["piecewise"] for i, x in enumerate(calls) if i != graphs.CAPTURE_AFTER - 1)


def test_several_policies(made):
    """Keys of such steps change more often, so they are captured later."""
    made[0].padding(4, ("", "sketch"), 100)
    for _ in range(graphs.CAPTURE_MIXED_AFTER - 1):
        assert run(made) == ["piecewise"]
    assert run(made) == ["capture", "replay"]


def test_short_padding(made):
    """Padded to the model's longest sequence, until a length has come often."""
    step_graphs = made[0]
    for _ in range(graphs.SHORTEN_AFTER):
        assert step_graphs.padding(4, ("",), 3000) == 0
    assert step_graphs.padding(4, ("",), 2500) == 3072
    assert run(made) == ["capture", "replay"]
    assert step_graphs.padding(4, ("",), 4000) == 0 and step_graphs.padding(8, ("",), 3000) == 0 and step_graphs.padding(4, ("sketch",), 3000) == 0
    for _ in range(2 * graphs.SHORTEN_AFTER):
        assert step_graphs.padding(4, ("",), MOST) == 0


def test_the_least_recently_used_graph_goes(made, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(graphs, "MOST_GRAPHS", 2)
    step_graphs, worker = made
    for worker.key in (1, 2, 1, 3):
        for _ in range(graphs.CAPTURE_AFTER):
            run(made)
    assert [key for _, key in step_graphs.graphs] == [1, 3]


def test_without_a_worker(made, monkeypatch: pytest.MonkeyPatch):
    """vLLM's own warm-up."""
    monkeypatch.setattr(graphs, "worker_half", lambda: None)
    assert run(made) == ["piecewise"]
