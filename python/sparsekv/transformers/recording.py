# SPDX-License-Identifier: Apache-2.0
"""
Decode steps as CUDA graphs.

Launching a step's kernels one by one from Python can take longer than running them on the GPU. A recorded step is one
launch. The library's key (skv_step_key: number of rows, their capacity, their policies) tells which steps fit a
recording; ids and positions are copied into its buffers, and logits out of them. The first step with a key runs
normally, which also loads what a device loads at first use. The second is recorded, and later ones replay it. Steps
that cannot be recorded run normally, and the log has the reason.
"""
import contextlib
import gc
import inspect
import logging
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from transformers import PreTrainedModel
from transformers.cache_utils import Cache

from ..session import Session

KEPT = 8  # number of recordings; the least recently used one is dropped

log = logging.getLogger("sparsekv")


class NewRows(Cache):
    """
    Replaces the SparseCache for the layers of a recorded or compiled step. It has no lengths, because a length that
    Python reads during the recording would be the same in all later steps.
    """

    def __init__(self) -> None:
        super().__init__(layers=[])

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return key_states, value_states

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return 0

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        return query_length, 0

    def get_query_offset(self, layer_idx: int = 0) -> int:
        return 0

    @property
    def is_sliding(self) -> list[bool]:
        return [False]


NEW_ROWS = NewRows()


class NotRecorded(Exception):
    """A step cannot be recorded; the text says why."""


@dataclass
class Recording:
    graph: torch.cuda.CUDAGraph
    inputs: dict[str, torch.Tensor]
    output: Any


@dataclass
class Arguments:
    """A model call's arguments: tensors, for which a recording has buffers, and constants, which it was made with."""

    tensors: dict[str, torch.Tensor]
    constants: dict[str, Any]

    @property
    def kind(self) -> Any:
        shapes = tuple((name, x.shape, x.dtype) for name, x in self.tensors.items())
        return shapes, tuple(self.constants.items())


def arguments_of(args: tuple[Any, ...], kwargs: dict[str, Any], columns: int) -> Arguments:
    """Sorts the arguments of a decode step that begins after `columns` columns. Raises NotRecorded."""
    if len(args) > 1:
        raise NotRecorded("the model was called with several positional arguments, expected input_ids alone")
    given = {**({"input_ids": args[0]} if args else {}), **kwargs}
    # every row decodes, so the mask has no effect; the cache is replaced
    given = {name: x for name, x in given.items() if x is not None and name not in ("attention_mask", "past_key_values")}
    tensors = {name: x for name, x in given.items() if isinstance(x, torch.Tensor)}
    constants = {name: x for name, x in given.items() if name not in tensors}
    for name, x in constants.items():
        if not isinstance(x, (bool, int, float, str)):
            raise NotRecorded(f"the argument {name} is of {type(x).__name__}")
    if "position_ids" not in tensors:
        batch, n = next(iter(tensors.values())).shape[:2]
        device = next(iter(tensors.values())).device
        tensors["position_ids"] = torch.arange(columns, columns + n, device=device).expand(batch, n)
    return Arguments(tensors, constants)


def copy_of(output: Any, cache: Cache) -> Any:
    """Copies a model's output, which the next replay overwrites, and puts the caller's cache into it."""
    if isinstance(output, torch.Tensor):
        return output.clone()
    if isinstance(output, dict):
        return type(output)(**{name: copy_of(x, cache) for name, x in output.items()})
    if isinstance(output, (tuple, list)):
        return type(output)(copy_of(x, cache) for x in output)
    return cache if output is NEW_ROWS else output


class Recordings:
    """
    Recordings of one model's decode steps in one session. On the host nothing is recorded; steps are only compiled.
    """

    def __init__(self, model: PreTrainedModel, session: Session, compiles: bool | dict[str, Any]):
        self.session = session
        self.made = self.replayed = 0
        compiling = {"dynamic": False, **(compiles if isinstance(compiles, dict) else {})}
        self._device = torch.device(session.model.device)
        self._compiled = torch.compile(model.forward, **compiling) if compiles else None
        if self._device.type == "cuda":
            self._stream = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
            self._pool = torch.cuda.graph_pool_handle()
        self._known: OrderedDict[Any, Recording | None] = OrderedDict()  # None: the key was seen once
        self._off = ""
        if "position_ids" not in inspect.signature(model.forward).parameters:
            self._give_up(f"{type(model).__name__}.forward takes no position_ids")

    def _give_up(self, why: str) -> None:
        self._off = why
        log.warning("sparsekv: decode steps are not recorded: %s", why)

    @contextlib.contextmanager
    def on_stream(self) -> Iterator[None]:
        """
        The block's work runs on the recordings' stream, because the default stream cannot record; it is ordered with
        the caller's stream.
        """
        if self._device.type != "cuda":
            yield
            return
        caller = torch.cuda.current_stream(self._device)
        self._stream.wait_stream(caller)
        with torch.cuda.stream(self._stream):
            yield
        caller.wait_stream(self._stream)

    def call(self, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], columns: int) -> Any:
        """
        Runs the model's call in the open step. Raises NotRecorded; the caller then begins the step again without a
        recording.
        """
        if self._off:
            return forward(*args, **kwargs)
        try:
            a = arguments_of(args, kwargs, columns)
        except NotRecorded as e:
            self._give_up(str(e))
            return forward(*args, **kwargs)
        key = self.session.key()
        if key != 0:
            output = self._call(forward, key, a)
        elif self._compiled is not None:
            output = self._run(forward, a.tensors, a.constants)
        else:  # the step measures recall
            return forward(*args, **kwargs)
        return copy_of(output, kwargs["past_key_values"])

    def _call(self, forward: Callable[..., Any], key: int, a: Arguments) -> Any:
        """Returns the output of a recording, or of a normal run."""
        whole = (key, a.kind)
        found = self._known.get(whole)
        if found is None and whole not in self._known:
            self._known[whole] = None
            while len(self._known) > KEPT:
                self._known.popitem(last=False)
            return self._run(forward, a.tensors, a.constants)
        self._known.move_to_end(whole)
        if found is None:
            found = self._known[whole] = self._record(forward, a)
        else:
            for name, x in a.tensors.items():
                found.inputs[name].copy_(x)
            self.session.replayed(key)
            self.replayed += 1
        found.graph.replay()
        return found.output

    def _run(self, forward: Callable[..., Any], tensors: dict[str, torch.Tensor], constants: dict[str, Any]) -> Any:
        more = {} if self._compiled is None else {"compiled": self._compiled}
        return forward(**tensors, **constants, past_key_values=NEW_ROWS, **more)

    def _record(self, forward: Callable[..., Any], a: Arguments) -> Recording:
        inputs = {name: x.clone() for name, x in a.tensors.items()}
        graph = torch.cuda.CUDAGraph()
        collects = gc.isenabled()
        gc.disable()  # freeing memory may synchronize the device, which is forbidden while a stream records
        try:
            graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
            try:
                output = self._run(forward, inputs, a.constants)
            finally:
                graph.capture_end()
        except Exception as e:
            why = e.__context__ if e.__context__ is not None else e  # ending a broken recording fails, too
            self._give_up(f"{type(why).__name__}: {why}".splitlines()[0])
            raise NotRecorded(self._off) from e
        finally:
            if collects:
                gc.enable()
        self.made += 1
        return Recording(graph, inputs, output)
