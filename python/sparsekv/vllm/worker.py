# SPDX-License-Identifier: Apache-2.0
"""
The half in the worker's process: the session, its sequences by number, and the steps.

A step begins in the first layer's attention, because only then both the plan and the batch's order are known. It is
committed in wait_for_save, after the last layer. A step with drafts stays open until the next plan tells how many
rows count: sampling comes after wait_for_save, and connectors are not told its result.
"""
import errno
import logging
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import sparsekv
import torch
from sparsekv import Item, Seq

from . import metrics
from ..session import common
from .model import model_of
from .params import EngineParams
from .plan import Found, Look, Open, Plan, Report, Rows

if TYPE_CHECKING:
    from vllm.config import VllmConfig

    from .backend import SparseKVMetadata

log = logging.getLogger("vllm.sparsekv")


def device_of(vllm_config: "VllmConfig") -> str:
    kind = vllm_config.device_config.device_type
    return f"cuda:{torch.cuda.current_device()}" if kind == "cuda" else "cpu"


@dataclass
class Step:
    """
    An open step.

    rows: of these requests
    n: rows of vLLM's batch without padding
    index: the rows of the batch that are in the step; None: all
    attended: number of layers so far
    late: it ends with the next plan
    """

    rows: list[Rows]
    n: int
    index: torch.Tensor | None
    attended: int = 0
    late: bool = False


class Worker:
    """
    Calls of SparseKVConnector and of the attention layers in the worker's process: bind, attend for each layer, end.
    """

    def __init__(self, vllm_config: "VllmConfig", params: EngineParams):
        self.params = params
        self.device = device_of(vllm_config)
        model, self.layers = model_of(vllm_config, params, self.device)
        self.client = sparsekv.Client(params.socket)
        self.client.set_threads(params.threads or torch.get_num_threads())
        self.session = self.client.open(model, params.policy)
        log.info("sparsekv: model %s of %d layers, policy %s, kernels %s", model.name, model.n_layers, self.session.policy, self.session.backend)
        self.seqs: dict[int, Seq] = {}
        self.left: OrderedDict[str, None] = OrderedDict()  # names of detached sequences, the oldest first
        self.plan: Plan | None = None
        self.order: list[str] | None = None
        self.step: Step | None = None
        self.begun = False
        self.made = Report()
        self.stats = metrics.Source(self.session)

    # ---- before the step ----

    def bind(self, plan: Plan) -> None:
        """Finishes the previous step, then releases and opens the plan's sequences."""
        self._finish_late(plan.accepted)
        for seq in plan.drop:
            self._close(seq, keep=False)
        for seq in plan.detach:
            self._close(seq, keep=True)
        for look in plan.look:
            self._look(look)
        for new in plan.open:
            self._open(new)
        self.plan, self.order, self.begun = plan, None, False

    def _finish_late(self, accepted: dict[int, int]) -> None:
        if self.step is None:
            return
        step, self.step = self.step, None
        if not step.late:  # the forward pass failed
            self.session.abort()
            return
        self.session.end(accepted=[accepted.get(rows.seq, 0) for rows in step.rows])

    def _close(self, number: int, keep: bool) -> None:
        seq = self.seqs.pop(number, None)
        if seq is None:
            return
        try:
            seq.detach() if keep else seq.drop()
            if keep and seq.name is not None:
                self.left[seq.name] = None
        except sparsekv.Error as e:
            log.warning("sparsekv: sequence %s: %s", seq.name or number, e)

    def _drop_left(self) -> bool:
        """
        Drops the named sequence that this engine detached longest ago. The daemon itself reclaims such sequences only
        if another user needs pages, but vLLM counts their pages as free.
        """
        while self.left:
            name = self.left.popitem(last=False)[0]
            try:
                self.session.attach(name).drop()
            except sparsekv.Error:  # it is gone, or another client has attached it
                continue
            log.warning("sparsekv: out of pages: the sequence %s, which no request runs, is dropped", name)
            return True
        return False

    def _look(self, look: Look) -> None:
        self.left.pop(look.name, None)
        try:
            seq = self.session.attach(look.name)
        except sparsekv.Error as e:
            if e.errno == errno.EBUSY:
                self.made.found[look.seq] = Found(busy=True)
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

    def _set_policy(self, number: int, policy: str | None) -> None:
        if policy is None:
            return
        try:
            self.seqs[number].set_policy(policy)
        except sparsekv.Error as e:
            self._remark(number, f"policy {policy}: {e.strerror}: {self.session.policy} ran instead")

    def _remark(self, number: int, text: str) -> None:
        log.warning("sparsekv: %s", text)
        self.made.remarks[number] = text

    # ---- the step ----

    def attend(self, layer: str, batch: "SparseKVMetadata", q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, out: torch.Tensor) -> bool:
        """
        Attends one layer's rows, [rows, heads, head_dim] each. Returns False if no step is planned, as in vLLM's
        warm-up.
        """
        if self.plan is None or not self.plan.rows:
            return False
        number = self.layers[layer]
        if not self.begun:
            self._begin(self.plan, batch)
        step = self.step
        if step is None:  # all rows failed
            return False
        if step.index is None:
            k, v = (x if x is None else x[: step.n] for x in (k, v))
            self.session.attend(number, q[: step.n], k, v, out[: step.n])
            out[step.n :].zero_()
        else:
            kept = out.new_empty(len(step.index), *out.shape[1:])
            k, v = (x if x is None else x[step.index] for x in (k, v))
            self.session.attend(number, q[step.index], k, v, kept)
            out.zero_()
            out[step.index] = kept
        step.attended += 1
        return True

    def _batch(self, plan: Plan, batch: "SparseKVMetadata") -> list[Rows]:
        """Returns the plan's rows in the order of vLLM's batch."""
        if self.order is not None:
            return [plan.rows[request] for request in self.order]
        by_block = {rows.block: rows for rows in plan.rows.values()}
        first = batch.slots[batch.query_start[: len(plan.rows)]]  # waits for a device
        return [by_block[slot // plan.block_size] for slot in first.tolist()]

    def _begin(self, plan: Plan, batch: "SparseKVMetadata") -> None:
        """Begins the step with those requests of the batch that have sequences and pages."""
        order = self._batch(plan, batch)
        spans = list(zip(batch.query_start, batch.query_start[1:]))[: len(order)]
        if [len(rows.tokens) for rows in order] != [b - a for a, b in spans]:
            raise RuntimeError(f"sparsekv: vLLM's batch is not the plan's: rows {batch.query_start}, expected {[len(rows.tokens) for rows in order]}")
        live = [rows for rows in order if self._ready(rows)]
        while live and not self._reserve(live):
            live = self._give_up_some(plan, live)
        self.begun = True
        if not live:
            return
        index = None
        if len(live) < len(order):
            index = torch.cat([torch.arange(a, b) for rows, (a, b) in zip(order, spans) if rows in live]).to(batch.slots.device)
        self.step = Step(live, spans[-1][1], index)
        self.made.keeps_all |= {rows.seq: self.seqs[rows.seq].keeps_all for rows in live}

    def _ready(self, rows: Rows) -> bool:
        """Whether the sequence exists and its length is the rows' start."""
        seq = self.seqs.get(rows.seq)
        if seq is not None and len(seq) == rows.start:
            return True
        what = "is not there" if seq is None else f"has {len(seq)} tokens, expected {rows.start}"
        log.warning("sparsekv: sequence %d %s", rows.seq, what)
        self._lose(rows.seq)
        return False

    def _lose(self, number: int) -> None:
        """Drops the sequence of a request, which is then preempted."""
        self._close(number, keep=False)
        self.made.lost.append(number)
        self.stats.add("lost_sequences", 1)

    def _reserve(self, live: list[Rows]) -> bool:
        items = [Item(self.seqs[r.seq], len(r.tokens), r.prompt, r.remaining, r.tokens) for r in live]
        stream = torch.cuda.current_stream().cuda_stream if self.device != "cpu" else 0
        try:
            self.session.begin(items, stream)
            return True
        except sparsekv.OutOfPages:
            return False

    def _give_up_some(self, plan: Plan, live: list[Rows]) -> list[Rows]:
        """
        Frees pages. First drops sequences without a request, then sequences of the newest requests in the step. If
        the step has only one request left, other requests' sequences are dropped first.
        """
        while plan.retained:
            number = plan.retained.pop(0)
            if number in self.seqs:
                self._close(number, keep=False)
                self.made.lost.append(number)
                return live
        if self._drop_left():
            return live
        others = self.seqs.keys() - {rows.seq for rows in plan.rows.values()}
        if len(live) == 1 and others:
            victim = max(others)
        else:
            victim = next(rows.seq for rows in reversed(plan.rows.values()) if rows in live)
        log.warning("sparsekv: out of pages: the request of sequence %d, of %d tokens, waits", victim, len(self.seqs[victim]))
        self._lose(victim)
        return [rows for rows in live if rows.seq != victim]

    def end(self) -> None:
        """After the last layer: commits the step, unless rows may be rejected."""
        step, self.plan = self.step, None
        if step is None:
            return
        step.late = step.attended == len(self.layers) and any(rows.drafts for rows in step.rows)
        if step.late:
            return
        self.step = None
        if step.attended == len(self.layers):
            self.session.end()
        else:
            self.session.abort()

    # ---- results ----

    def take_report(self) -> Report:
        made, self.made = self.made, Report()
        return made

    def take_stats(self) -> metrics.SparseKVStats | None:
        return self.stats.take()

    def close(self) -> None:
        self.client.close()
