# SPDX-License-Identifier: Apache-2.0
"""
The half in the worker's process: the session, its sequences by number, and the steps.

A step begins as soon as the plan and the batch's order are known: under Model Runner V2 in start_load_kv, otherwise in
the first layer's attention. It is committed in wait_for_save, after the last layer. A step with drafts stays open until
the next plan tells how many rows count.

Under V2 the commit records the sampled tokens, which may still be in the device's queue (sampling.py). So the next step
may be planned before the host knows them: asynchronous scheduling.
"""
import errno
import itertools
import logging
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import sparsekv
import torch
from sparsekv import Item, Seq
from vllm.distributed.kv_transfer import get_kv_transfer_group, has_kv_transfer_group

from . import metrics
from ..session import common
from .model import model_of
from .params import EngineParams
from .plan import Found, Look, Open, Plan, Report, Rows

if TYPE_CHECKING:
    from vllm.config import VllmConfig

    from .backend import SparseKVMetadata
    from .graphs import StepGraphs

log = logging.getLogger("vllm.sparsekv")

NO_ROOM = (errno.ENOSPC, errno.EDQUOT)  # of an attach: the sequence is parked, and there are no pages to read it back


def device_of(vllm_config: "VllmConfig") -> str:
    kind = vllm_config.device_config.device_type
    return f"cuda:{torch.cuda.current_device()}" if kind == "cuda" else "cpu"


def worker_half() -> "Worker | None":
    """The worker's half of this process's connector; None: another connector, or vLLM's warm-up and profiling."""
    return getattr(get_kv_transfer_group(), "worker", None) if has_kv_transfer_group() else None


def leave_default_stream() -> None:
    """Makes another stream current if the default one is. A step is captured on its own stream, and CUDA cannot capture the default stream."""
    default = torch.cuda.default_stream()
    if torch.cuda.current_stream() == default:
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(default)
        torch.cuda.set_stream(stream)


@dataclass
class Step:
    """
    An open step.

    rows: of these requests
    requests: their places in the batch; None: it has all of the batch's requests
    index: the rows of the batch that are in the step; None: all
    attended: number of layers so far
    sampled: token sampled for each request of the batch, or -1, as int32
    late: it ends with the next plan
    """

    rows: list[Rows]
    requests: list[int] | None
    index: torch.Tensor | None
    attended: int = 0
    sampled: torch.Tensor | None = None
    late: bool = False


class Worker:
    """
    Calls of SparseKVConnector and of the attention layers in the worker's process: bind, attend for each layer, end.
    """

    def __init__(self, vllm_config: "VllmConfig", params: EngineParams):
        self.params = params
        self.device = device_of(vllm_config)
        if self.device != "cpu":
            leave_default_stream()
        model, self.layers = model_of(vllm_config, params, self.device)
        self.client = sparsekv.Client(params.socket)
        self.client.set_threads(params.threads or torch.get_num_threads())
        self.session = self.client.open(model, params.policy)
        log.info("sparsekv: model %s of %d layers, policy %s, kernels %s", model.name, model.n_layers, self.session.policy, self.session.backend)
        self.seqs: dict[int, Seq] = {}
        self.policies: dict[int, str] = {}  # of the sequences that have one of their own
        self.leaving: list[tuple[int, bool]] = []  # sequences to be released: number, and whether a named one is kept
        self.left: OrderedDict[str, None] = OrderedDict()  # names of detached sequences, the oldest first
        self.plan: Plan | None = None
        self.step: Step | None = None
        self.begun = False
        self.committed: torch.Tensor | None = None  # sampled tokens that the device's queue still reads
        self.graphs: "StepGraphs | None" = None
        self.metadata: dict[str, Any] = dict.fromkeys(self.layers)  # of the attention layers, if vLLM replays the step
        self.made = Report()
        self.stats = metrics.Source(self.session)

    # ---- before the step ----

    def bind(self, plan: Plan) -> None:
        """
        Finishes the previous step, then releases and opens the plan's sequences. Under asynchronous scheduling that
        step, which may have rows of these sequences, still runs on the device, and their release waits for it. So they
        are released when this step is queued behind it (end), or earlier if a name or pages are needed.
        """
        self._finish_late(plan.accepted)
        self.leaving = [*((seq, False) for seq in plan.drop), *((seq, True) for seq in plan.detach)]
        if plan.look or not plan.rows:
            self._release()
        for look in plan.look:
            self._look(look, plan)
        for new in plan.open:
            self._open(new)
        self.plan, self.begun = plan, False

    def _finish_late(self, accepted: dict[int, list[int]]) -> None:
        if self.step is None:
            return
        step, self.step = self.step, None
        if not step.late:  # the forward pass failed
            self.session.abort()
            return
        tokens = [accepted.get(rows.seq, []) for rows in step.rows]
        for i, (rows, ids) in enumerate(zip(step.rows, tokens)):
            if rows.drafts:
                self.session.set_tokens(i, [*ids, *[-1] * (rows.n - len(ids))])
        self.session.end(accepted=[len(ids) for ids in tokens])

    def _release(self) -> bool:
        """Releases the sequences that are to be released; returns whether there were any."""
        leaving, self.leaving = self.leaving, []
        for number, keep in leaving:
            self._close(number, keep)
        return bool(leaving)

    def _close(self, number: int, keep: bool) -> None:
        seq = self.seqs.pop(number, None)
        self.policies.pop(number, None)
        if seq is None:
            return
        try:
            seq.detach() if keep else seq.drop()
            if keep and seq.name is not None:
                self.left[seq.name] = None
        except sparsekv.Error as e:
            log.warning("sparsekv: sequence %s: %s", seq.name or number, e)

    def _give_way(self, number: int) -> None:
        """
        Frees the pages of a sequence. If a request has it, the request waits. An anonymous sequence is dropped. A named
        one is detached: when a step needs its pages, the daemon parks it, or else _drop_left() drops it.
        """
        seq = self.seqs.get(number)
        self._close(number, keep=seq is not None and seq.name is not None and len(seq) > 0)
        self.made.lost.append(number)

    def _first_gives_way(self, numbers: list[int]) -> bool:
        """
        Lets one sequence give way: the first in the list that the worker still has. Removes the list's numbers up to
        it. Returns False if the worker has none of them.
        """
        while numbers:
            number = numbers.pop(0)
            if number in self.seqs:
                self._give_way(number)
                return True
        return False

    def _drop_left(self) -> bool:
        """
        Drops the named sequence that this engine detached longest ago, since vLLM counts its pages as free. Without
        parked-path, the daemon itself reclaims such sequences only if another user needs pages. With it, they are
        parked before a step runs out of pages; then nothing is dropped.
        """
        while self.left:
            name = self.left.popitem(last=False)[0]
            before = self.session.room().pages
            try:
                seq = self.session.attach(name)
            except sparsekv.Error as e:
                if e.errno in NO_ROOM:  # it is parked, and so are the others
                    self.left.clear()
                continue  # it is gone, or another client has attached it
            if self.session.room().pages < before:  # it was parked
                self.left.clear()
                seq.detach()
                return False
            seq.drop()
            log.warning("sparsekv: out of pages: the sequence %s, which no request runs, is dropped", name)
            return True
        return False

    def _attach(self, name: str, plan: Plan) -> Seq:
        """Attaches the sequence. If there is no room to read it back, sequences without a request give way to it."""
        while True:
            try:
                return self.session.attach(name)
            except sparsekv.Error as e:
                if e.errno not in NO_ROOM or not self._first_gives_way(plan.retained):
                    raise

    def _look(self, look: Look, plan: Plan) -> None:
        self.left.pop(look.name, None)
        try:
            seq = self._attach(look.name, plan)
        except sparsekv.Error as e:
            if e.errno == errno.EBUSY:
                self.made.found[look.seq] = Found(busy=True)
                return
            if e.errno in NO_ROOM:
                self.made.found[look.seq] = Found(short=True)
                return
            if e.errno != errno.ENOENT:
                self._remark(look.seq, f"the sequence {look.name} could not be attached ({e.strerror}): it was made anew")
            self._open(Open(look.seq, look.name if e.errno == errno.ENOENT else None, look.policy))
            self.made.found[look.seq] = Found()
            return
        self.seqs[look.seq] = seq
        self._set_policy(look.seq, look.policy)
        has = len(seq)
        n = common(seq.tokens()[0], look.tokens)
        if n < has:
            n = self._cut(seq, n)
        self.stats.add("found_tokens", n)
        self.made.found[look.seq] = Found(n, exact=n == has)

    @staticmethod
    def _cut(seq: Seq, n: int) -> int:
        """Truncates to n tokens, or to none if the policy does not allow that."""
        try:
            seq.truncate(n)
            return n
        except sparsekv.Error as e:
            log.info("sparsekv: sequence %s starts anew: %s", seq.name, e)
            seq.truncate(0)
            return 0

    def _open(self, new: Open) -> None:
        """Opens a sequence. If that fails, the sequence is missing when its rows come, and its request is preempted."""
        try:
            if new.source is None:
                seq = self.session.new(new.name)
            else:
                seq = self.seqs[new.source].fork(new.name, new.n_tokens)
                self.stats.add("forked_tokens", new.n_tokens)
        except (sparsekv.Error, KeyError) as e:
            log.warning("sparsekv: sequence %s cannot be opened: %s", new.name or new.seq, e)
            return
        self.seqs[new.seq] = seq
        if new.source is None:
            self._set_policy(new.seq, new.policy)
        elif new.source in self.policies:
            self.policies[new.seq] = self.policies[new.source]

    def _set_policy(self, number: int, policy: str | None) -> None:
        if policy is None:
            return
        try:
            self.seqs[number].set_policy(policy)
            self.policies[number] = policy
        except sparsekv.Error as e:
            self._remark(number, f"policy {policy}: {e.strerror}: {self.session.policy} ran instead")

    def _remark(self, number: int, text: str) -> None:
        log.warning("sparsekv: %s", text)
        self.made.remarks[number] = text

    # ---- the step ----

    def attend(self, layer: str, batch: "SparseKVMetadata | None", q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, out: torch.Tensor) -> bool:
        """
        Attends one layer's rows, [rows, heads, head_dim] each. Returns False if no step is planned, as in vLLM's
        warm-up. Rows of padding stay as they are, as with vLLM's own backends: a graph may be replayed for more
        requests than it was captured with, so nothing here may depend on their number.
        """
        number = self.layers[layer]
        if not self.begun:
            if self.plan is None or not self.plan.rows or batch is None:
                return False
            self._begin(self._order_of_blocks(self.plan, batch))
        step = self.step
        if step is None:  # all rows failed
            return False
        if step.index is None:
            self.session.attend(number, q, k, v, out)
        else:
            kept = out.new_empty(len(step.index), *out.shape[1:])
            k, v = (x if x is None else x[step.index] for x in (k, v))
            self.session.attend(number, q[step.index], k, v, kept)
            out.zero_()
            out[step.index] = kept
        step.attended += 1
        return True

    @staticmethod
    def _order_of_blocks(plan: Plan, batch: "SparseKVMetadata") -> list[Rows]:
        """Returns the plan's rows in the order of vLLM's batch, as the slots of the batch's rows show it."""
        by_block = {rows.block: rows for rows in plan.rows.values()}
        first = batch.slots[batch.query_start[: len(plan.rows)]]  # waits for a device
        order = [by_block[slot // plan.block_size] for slot in first.tolist()]
        if [rows.n for rows in order] != [b - a for a, b in zip(batch.query_start, batch.query_start[1:])][: len(order)]:
            raise RuntimeError(f"sparsekv: vLLM's batch is not the plan's: rows {batch.query_start}, expected {[rows.n for rows in order]}")
        return order

    def start(self, requests: list[str], metadata: dict[str, "SparseKVMetadata"] | None) -> None:
        """
        Begins the planned step under Model Runner V2, which passes the batch's requests in order. metadata: of the
        layers, if vLLM replays the step as a whole; it has the batch size with padding.
        """
        if self.plan is None or not self.plan.rows:
            return
        order = [self.plan.rows[request] for request in requests]
        if metadata is not None and self.graphs is not None:
            self.metadata, n_padded = metadata, len(next(iter(metadata.values())).slots)
            policies = tuple(sorted({self.policies.get(rows.seq, "") for rows in order}))
            self.session.pad_steps(n_padded, self.graphs.padding(n_padded, policies, max(rows.start for rows in order) + 1))
        elif self.device != "cpu":
            self.session.pad_steps(0)
        self._begin(order)

    def _begin(self, order: list[Rows]) -> None:
        """Begins the step with those requests of the batch that have sequences and pages."""
        assert self.plan is not None
        live = [rows for rows in order if self._ready(rows)]
        while live and not self._reserve(live):
            live = self._give_up_some(self.plan, live)
        self.begun = True
        if not live:
            return
        requests, index = None, None
        if len(live) < len(order):
            ends = list(itertools.accumulate(rows.n for rows in order))
            requests = [i for i, rows in enumerate(order) if rows in live]
            index = torch.cat([torch.arange(ends[i] - order[i].n, ends[i]) for i in requests]).to(self.device)
        self.step = Step(live, requests, index)
        self.made.keeps_all |= {rows.seq: self.seqs[rows.seq].keeps_all for rows in live}

    def _ready(self, rows: Rows) -> bool:
        """Whether the sequence exists and its length is the rows' start."""
        seq = self.seqs.get(rows.seq)
        if seq is not None and len(seq) == rows.start:
            return True
        what = "is not there" if seq is None else f"has {len(seq)} tokens, expected {rows.start}"
        log.warning("sparsekv: sequence %d %s", rows.seq, what)
        self._close(rows.seq, keep=False)
        self._lose(rows.seq)
        return False

    def _lose(self, number: int) -> None:
        """The sequence of a running request gives way; the request is preempted."""
        self._give_way(number)
        self.stats.add("lost_sequences", 1)

    def _reserve(self, live: list[Rows]) -> bool:
        try:
            self._begin_items([Item(self.seqs[r.seq], r.n, r.prompt, r.remaining, r.tokens) for r in live])
            return True
        except sparsekv.OutOfPages:
            return False

    def _begin_items(self, items: list[Item]) -> None:
        self.session.begin(items, torch.cuda.current_stream().cuda_stream if self.device != "cpu" else 0)

    def _give_up_some(self, plan: Plan, live: list[Rows]) -> list[Rows]:
        """
        Frees pages. First sequences without a request give way, then those of requests that are not admitted yet, then
        those of the newest requests in the step. If the step has only one request left, other requests' sequences give
        way first.
        """
        if self._release() or self._first_gives_way(plan.retained) or self._drop_left() or self._first_gives_way(plan.attached):
            return live
        others = self.seqs.keys() - {rows.seq for rows in plan.rows.values()}
        if len(live) == 1 and others:
            victim = max(others)
        else:
            victim = next(rows.seq for rows in reversed(plan.rows.values()) if rows in live)
        log.warning("sparsekv: out of pages: the request of sequence %d, of %d tokens, waits", victim, len(self.seqs[victim]))
        self._lose(victim)
        return [rows for rows in live if rows.seq != victim]

    # ---- steps that are replayed as CUDA graphs (graphs.py) ----

    def replay_key(self) -> int:
        """The key of a graph that may run in place of the open step's layers; 0: none may."""
        return self.session.key() if self.step is not None and self.step.index is None else 0

    def replayed(self, key: int) -> None:
        assert self.step is not None
        self.session.replayed(key)
        self.step.attended = len(self.layers)

    def begin_again(self) -> None:
        """Begins the open step anew. No layer of it may have run."""
        assert self.step is not None
        self.session.abort()
        self.step.attended = 0
        self._begin_items([Item(self.seqs[r.seq], r.n, r.prompt, r.remaining, r.tokens) for r in self.step.rows])

    @contextmanager
    def step_of_nobody(self, n_padded: int, policy: str | None) -> Iterator[int]:
        """
        A step of a sequence that belongs to no request, for a capture: it is aborted. policy: None: the engine's.
        Yields the step's key.
        """
        self.session.pad_steps(n_padded)
        seq = self.session.new()
        try:
            seq.set_policy(policy)
            self._begin_items([Item(seq)])
            self.step, self.begun = Step([], None, None), True
            yield self.session.key()
        finally:
            self.session.abort()
            self.step, self.begun = None, False
            seq.drop()

    # ---- the end of the step ----

    def sampled(self, tokens: torch.Tensor, n_sampled: torch.Tensor) -> None:
        """
        The tokens that vLLM sampled for the requests of the batch, in order: [requests, ...]; n_sampled: how many of
        each, 0 for a prompt that is not read to its end.
        """
        if self.step is None:
            return
        first = tokens[:, 0]
        if any(rows.prompt for rows in self.step.rows):
            first = torch.where(n_sampled > 0, first, -1)
        self.step.sampled = first.to(torch.int32)

    def end(self) -> None:
        """After the last layer: commits the step, and releases the plan's sequences."""
        self._end_step()
        self._release()

    def _end_step(self) -> None:
        """Commits the step, unless rows may be rejected."""
        step, self.plan = self.step, None
        if step is None:
            return
        step.late = step.attended == len(self.layers) and any(rows.drafts for rows in step.rows)
        if step.late:
            return
        self.step = None
        if step.attended == len(self.layers):
            self._commit(step)
        else:
            self.session.abort()

    def _commit(self, step: Step) -> None:
        next_tokens = step.sampled
        if next_tokens is None and any(rows.tokens is None for rows in step.rows):
            raise RuntimeError("sparsekv: vLLM schedules asynchronously, but did not pass the tokens that it sampled")
        if next_tokens is not None and step.requests is not None:
            next_tokens = next_tokens[torch.tensor(step.requests, device=next_tokens.device)]  # waits for a device
        if next_tokens is None:
            self.session.end()
        elif self.device == "cpu":
            self.session.end(next=next_tokens.tolist())
        else:
            self.committed = next_tokens
            self.session.end(next_address=next_tokens.data_ptr())

    # ---- results ----

    def take_report(self) -> Report:
        made, self.made = self.made, Report()
        return made

    def take_stats(self) -> metrics.SparseKVStats | None:
        return self.stats.take()

    def close(self) -> None:
        self.client.close()
