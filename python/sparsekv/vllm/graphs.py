# SPDX-License-Identifier: Apache-2.0
"""
Replays whole decode steps as CUDA graphs.

vLLM's Model Runner V2 captures the forward pass once for each batch size, and replays it for every batch of decode
rows. Our attention cannot be recorded once for all: which kernels run depends on the policies of a step's sequences,
and a recording serves only steps with the same key (skv_step_key). So ModelCudaGraphManager keeps a graph here for
each batch size and key.

If all sequences of a step have one policy, the step is padded to the batch size and to a length (skv_pad_steps), so that
its key comes again. Padded to the model's longest sequence, one graph serves every step of that batch size and policy.
Those of the engine's policy and of capture_policies are captured when the engine starts, with a sequence that belongs to
no request, others when their key has come a few times. Kernels are faster if the padding is not much longer than the
sequences: a length that comes often gets a graph of its own. A step without a graph runs as vLLM runs batches with
prompts: piecewise.
"""
import functools
import logging
import time
from collections import Counter, OrderedDict
from typing import Any

import torch
from vllm.compilation.cudagraph_pool import capture_pool
from vllm.config.compilation import CUDAGraphMode
from vllm.forward_context import BatchDescriptor, set_forward_context
from vllm.v1.worker.gpu.cudagraph_utils import BatchExecutionDescriptor, ModelCudaGraphManager

from .worker import Worker, worker_half

log = logging.getLogger("vllm.sparsekv")

# A graph is captured when its key has come this often: in steps of one policy, and in steps of several, whose keys change
# more often. A capture takes as long as two to five decode steps.
CAPTURE_AFTER, CAPTURE_MIXED_AFTER = 3, 32
SHORTEN_AFTER = 16  # steps are padded to a shorter length when it has come this often, and then captured at once
MOST_GRAPHS = 512


def padded_length(longest: int, most: int) -> int:
    """2048, 3072, 4096, 6144, 8192, ..., at most `most`."""
    power = max(2048, 1 << (longest - 1).bit_length())
    return min(power if longest > power // 4 * 3 or power == 2048 else power // 4 * 3, most)


class StepGraphs:
    """
    The graphs of one ModelCudaGraphManager, which has the batch sizes and the memory for outputs.

    graphs: by batch size and key, the least recently used first
    seen: number of steps without a graph, by batch size and key
    lengths: number of steps by batch size, policy and padded length
    """

    def __init__(self, manager: ModelCudaGraphManager, model: torch.nn.Module, model_state: Any, input_buffers: Any, has_lora: bool):
        self.manager = manager
        self.model = model
        self.model_state = model_state
        self.buffers = input_buffers
        self.has_lora = has_lora
        self.graphs: OrderedDict[tuple[BatchExecutionDescriptor, int], torch.cuda.CUDAGraph] = OrderedDict()
        self.seen: Counter[tuple[BatchExecutionDescriptor, int]] = Counter()
        self.lengths: Counter[tuple[int, tuple[str, ...], int]] = Counter()
        self.capture_after = CAPTURE_AFTER  # of the next step's key
        self.most_tokens: int = manager.vllm_config.model_config.max_model_len

    def padding(self, n_padded: int, policies: tuple[str, ...], longest: int) -> int:
        """
        The length that the next step is padded to; 0: the model's longest. Also decides how often its key must come to
        be captured.
        """
        length = padded_length(longest, self.most_tokens)
        self.lengths[n_padded, policies, length] += 1
        short = self.lengths[n_padded, policies, length] > SHORTEN_AFTER and length < self.most_tokens
        self.capture_after = CAPTURE_MIXED_AFTER if len(policies) > 1 else 1 if short else CAPTURE_AFTER
        return length if short else 0

    def capture_all(self, worker: Worker, descs: list[BatchExecutionDescriptor], before: Any) -> None:
        """Captures steps of the policies in the configuration, the largest batch first: the library's memory then stays where it is."""
        for policy in (None, *(worker.params.capture_policies or ())):
            for desc in descs:
                if before is not None:
                    before(desc.num_active_loras, desc.num_reqs, desc.num_tokens)
                self._capture_of_nobody(worker, desc, policy)
        log.info("sparsekv: %d CUDA graphs captured", len(self.graphs))

    def _capture_of_nobody(self, worker: Worker, desc: BatchExecutionDescriptor, policy: str | None) -> None:
        with worker.step_of_nobody(desc.num_tokens, policy):
            hidden = self._forward(desc, CUDAGraphMode.NONE, worker.metadata)  # what is compiled at the first use
            if self.manager.hidden_states is None:
                self.manager.hidden_states = torch.empty_like(hidden)
        with worker.step_of_nobody(desc.num_tokens, policy) as key:
            if key != 0:
                self._capture(desc, key, worker)

    def run(self, desc: BatchExecutionDescriptor) -> torch.Tensor:
        """Runs the open step. Returns hidden states, [padded rows, hidden size]."""
        assert self.manager.hidden_states is not None
        worker = worker_half()
        key = worker.replay_key() if worker is not None else 0
        if worker is None or key == 0:
            return self._piecewise(desc, worker)
        graph = self.graphs.get((desc, key))
        if graph is not None:
            self.graphs.move_to_end((desc, key))
            worker.replayed(key)
        elif self._is_due(desc, key) and self._try_capture(desc, key, worker):
            graph = self.graphs[desc, key]
        else:
            return self._piecewise(desc, worker)
        graph.replay()
        return self.manager.hidden_states[: desc.num_tokens]

    def _is_due(self, desc: BatchExecutionDescriptor, key: int) -> bool:
        self.seen[desc, key] += 1
        if len(self.seen) > 8 * MOST_GRAPHS:
            self.seen.clear()
        return self.seen[desc, key] >= self.capture_after

    def _try_capture(self, desc: BatchExecutionDescriptor, key: int, worker: Worker) -> bool:
        """Captures the open step, which has not run then."""
        begun = time.monotonic()
        try:
            self._capture(desc, key, worker)
        except (RuntimeError, torch.cuda.OutOfMemoryError) as e:
            log.warning("sparsekv: a CUDA graph for %d sequences cannot be captured: %s", desc.num_tokens, e)
            self.seen[desc, key] = -(1 << 30)
            worker.begin_again()
            return False
        del self.seen[desc, key]
        log.info("sparsekv: captured a CUDA graph for %d sequences in %.0f ms, %d in all", desc.num_tokens, 1e3 * (time.monotonic() - begun), len(self.graphs))
        if len(self.graphs) > MOST_GRAPHS:
            self.graphs.popitem(last=False)
        return True

    def _capture(self, desc: BatchExecutionDescriptor, key: int, worker: Worker) -> None:
        """As torch.cuda.graph, which also collects garbage and empties the allocator's cache: requests wait meanwhile."""
        manager, graph = self.manager, torch.cuda.CUDAGraph()
        assert manager.hidden_states is not None
        with capture_pool(manager.pool, manager.vllm_config) as pool:
            graph.capture_begin(pool, "thread_local")  # type: ignore[arg-type]
            try:
                manager.hidden_states[: desc.num_tokens] = self._forward(desc, CUDAGraphMode.NONE, worker.metadata)
            finally:
                graph.capture_end()
        self.graphs[desc, key] = graph

    def _piecewise(self, desc: BatchExecutionDescriptor, worker: Worker | None) -> torch.Tensor:
        mode = CUDAGraphMode.PIECEWISE if self.manager.cudagraph_mode.has_piecewise_cudagraphs() else CUDAGraphMode.NONE
        return self._forward(desc, mode, worker.metadata if worker is not None else None)

    def _forward(self, desc: BatchExecutionDescriptor, mode: CUDAGraphMode, metadata: dict[str, Any] | None) -> torch.Tensor:
        n = desc.num_tokens
        inputs = {
            "input_ids": self.buffers.input_ids[:n],
            "positions": self.buffers.positions[:n],
            "intermediate_tensors": None,
            **self.model_state.prepare_dummy_inputs(desc.num_reqs or n, n),
        }
        piecewise = mode == CUDAGraphMode.PIECEWISE
        descriptor = BatchDescriptor(num_tokens=n, has_lora=self.has_lora, num_active_loras=desc.num_active_loras) if piecewise else None
        with set_forward_context(
            metadata, self.manager.vllm_config, num_tokens=n, cudagraph_runtime_mode=mode, batch_descriptor=descriptor, slot_mapping={}, is_padding=self.buffers.is_padding[:n]
        ):
            hidden: torch.Tensor = self.manager.run_pw_graph(self.model, inputs) if piecewise else self.model(**inputs)
        return hidden


@functools.cache
def install() -> None:
    """Wraps ModelCudaGraphManager's capture and run_fullgraph, once in a process. Engines without our connector keep vLLM's."""
    their_capture, their_run = ModelCudaGraphManager.capture, ModelCudaGraphManager.run_fullgraph

    def capture(self: Any, model: Any, model_state: Any, input_buffers: Any, *args: Any, has_lora: bool = False, lora_capture_hook: Any = None, **more: Any) -> None:
        worker, descs = worker_half(), self._capture_descs.get(CUDAGraphMode.FULL)
        more.update(has_lora=has_lora, lora_capture_hook=lora_capture_hook)
        if worker is None or not descs:  # profiling of memory, or another connector
            return their_capture(self, model, model_state, input_buffers, *args, **more)
        del self._capture_descs[CUDAGraphMode.FULL]
        their_capture(self, model, model_state, input_buffers, *args, **more)
        self._capture_descs[CUDAGraphMode.FULL] = descs
        graphs = self.sparsekv_graphs = worker.graphs = StepGraphs(self, model, model_state, input_buffers, has_lora)
        with torch.inference_mode():
            graphs.capture_all(worker, descs, lora_capture_hook)

    def run_fullgraph(self: Any, desc: BatchExecutionDescriptor) -> Any:
        graphs: StepGraphs | None = getattr(self, "sparsekv_graphs", None)
        return their_run(self, desc) if graphs is None else graphs.run(desc)

    setattr(ModelCudaGraphManager, "capture", capture)
    setattr(ModelCudaGraphManager, "run_fullgraph", run_fullgraph)
