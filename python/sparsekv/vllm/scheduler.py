# SPDX-License-Identifier: Apache-2.0
"""
The half in the scheduler's process: decides which sequences exist, and which rows a step has.

It has no connection to the daemon. It knows requests as vLLM's objects, whose token ids grow as they are sampled, and
sequences by number. A running request has exactly one sequence, which holds its first num_computed_tokens tokens. If
the worker loses it for lack of pages, the request is preempted (preemption.py), waits, and starts again with another
sequence.
"""
import logging
import time
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..session import common
from . import params as p
from .identity import name_under, request_key
from .plan import Found, Look, Open, Plan, Report, Rows

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.request import Request

log = logging.getLogger("vllm.sparsekv")

BUSY_SECONDS = 10.0  # the daemon needs a moment to reclaim the sequences of an engine that died
# interval at which a request that waits for pages tries again; it also does when another request finishes
RETRY_SECONDS = 1.0
# time after which a waiting request fails if no other runs: other clients may release pages until then
SHORT_SECONDS = 10.0
LOOK_AHEAD = 2  # maximum number of waiting requests whose named sequences are attached; these hold pages


@dataclass
class Entry:
    """
    A request and its sequence.

    key: hash of what its K and V depend on besides token ids (identity.py)
    seq: None: it has none yet
    admitted: vLLM runs it
    prompt_end: rows at lower positions belong to a prompt
    preemptions: the request's number of preemptions when it was admitted
    found: result of a Look for its name
    source: the sequence to fork
    cached: tokens that it did not compute
    short_since: when it first found no pages
    keeps_all: its policy leaves K and V as they were computed, as reported by the worker for the previous step
    """

    request: "Request"
    params: p.RequestParams
    name: str | None
    key: str | None = ""
    seq: int | None = None
    admitted: bool = False
    prompt_end: int = 0
    preemptions: int = 0
    looking: bool = False
    found: Found | None = None
    busy_since: float | None = None
    source: int | None = None
    cached: int = 0
    short_since: float | None = None
    keeps_all: bool = False
    remark: str | None = None


class Scheduler:
    """
    SparseKVConnector's calls in the scheduler's process, in the order of a step: match, admit, plan, report, finish.
    """

    def __init__(self, vllm_config: "VllmConfig", params: p.EngineParams):
        self.params = params
        self.block_size = vllm_config.cache_config.block_size
        self.v2 = vllm_config.use_v2_model_runner
        if vllm_config.cache_config.enable_prefix_caching:
            log.info("sparsekv: vLLM's prefix cache is off, its blocks hold no K and V; %s", "requests fork sequences instead" if params.forks else "forks are off too")
            vllm_config.cache_config.enable_prefix_caching = False
        self.entries: dict[str, Entry] = {}
        self.names: dict[str, str] = {}  # name → the request that uses its sequence
        # seq → policy and key, tokens
        self.retained: OrderedDict[int, tuple[tuple[str, str | None], list[int]]] = OrderedDict()
        self.adapters: dict[int, str] = {}  # LoRA adapters in use: number → key
        self.waiting: dict[str, float] = {}  # requests that wait for pages → when they try again
        self.attached: dict[str, Entry] = {}  # requests with a sequence that are not admitted yet, by request id
        self.next = Plan(block_size=self.block_size)
        # of a step with drafts: rows, request, its number of tokens before
        self.last: list[tuple[Rows, "Request", int]] = []
        self.n_seqs = 0

    def _number(self) -> int:
        self.n_seqs += 1
        return self.n_seqs

    # ---- new requests ----

    def add(self, request: "Request") -> None:
        sampling = request.sampling_params
        params = p.request_params(sampling.extra_args if sampling is not None else None)
        name, key = p.name_of(params, self.params, request.request_id), request_key(request, self.adapters)
        entry = Entry(request, params, name, key)
        if key is None and name is not None:
            entry.name, entry.remark = None, "the prompt came as embeddings, of which a sequence records nothing: the request ran without a name"
        elif key and name is not None:
            entry.name = name_under(key, name)
        self.entries[request.request_id] = entry

    def match(self, request: "Request") -> int | None:
        """
        Returns the number of a waiting request's tokens that need not be computed; None: ask again in the next step.
        """
        entry = self.entries[request.request_id]
        self._release_preempted(entry)
        if self._waits_for_pages(request.request_id):
            return None
        if entry.name is not None:
            return self._look(entry)
        entry.source, n = self._longest_fork(entry)
        return n

    def admit(self, request: "Request", n_found: int) -> None:
        """vLLM runs the request from this step on, starting at position n_found."""
        entry = self.entries[request.request_id]
        self.attached.pop(request.request_id, None)
        entry.admitted, entry.preemptions, entry.cached = True, request.num_preemptions, n_found
        entry.prompt_end = request.num_tokens
        if entry.found is not None:
            if entry.found.exact and entry.found.n_tokens == n_found == request.num_tokens - 1:
                entry.prompt_end = n_found  # the row is the next decode row
            return
        self._open(entry, entry.source if n_found else None, n_found)

    def _open(self, entry: Entry, source: int | None = None, n_tokens: int = 0) -> None:
        entry.seq, entry.keeps_all = self._number(), False
        self.next.open.append(Open(entry.seq, entry.name, entry.params.policy, source, n_tokens))

    # ---- requests that wait for pages ----

    def _waits_for_pages(self, request_id: str) -> bool:
        """First come, first served: if a request waits, later ones wait, too."""
        if request_id in self.waiting:
            return time.monotonic() < self.waiting[request_id]
        return bool(self.waiting)

    def _short(self, entry: Entry) -> None:
        """Records that the request found no pages."""
        now = time.monotonic()
        entry.short_since = entry.short_since or now
        self.waiting[entry.request.request_id] = now + RETRY_SECONDS

    def _is_short_for_long(self, entry: Entry) -> bool:
        """Whether the request has waited SHORT_SECONDS for pages, and no request runs that could free some."""
        waited = entry.short_since is not None and time.monotonic() - entry.short_since >= SHORT_SECONDS
        return waited and not any(e.admitted and e.seq is not None for e in self.entries.values())

    def _hopeless(self, lost: list[Entry]) -> list[Entry]:
        """
        Returns the first of the requests without pages, if it has waited for long and no other request runs that
        could free pages.
        """
        if not lost or not self._is_short_for_long(lost[0]):
            return []
        entry = lost[0]
        entry.remark = (
            f"the pool had no pages for {entry.request.num_tokens} tokens in {SHORT_SECONDS:.0f} s, although no other request ran: other clients hold them "
            f"(sparsekvctl status), or the policy {self._policy(entry)} needs more than there are"
        )
        log.error("sparsekv: request %s fails: %s", entry.request.request_id, entry.remark)
        return [entry]

    def remark_of(self, request_id: str) -> str:
        return self.entries[request_id].remark or ""

    # ---- sequences by name ----

    def _look(self, entry: Entry) -> int | None:
        """Attaches a named sequence through the worker before the request is admitted, which takes a step."""
        request, name = entry.request, entry.name
        assert name is not None
        if entry.found is not None:
            return entry.found.n_tokens
        if entry.looking or self.names.setdefault(name, request.request_id) != request.request_id:
            return None  # a request with the same name is not finished
        if len(self.attached) >= LOOK_AHEAD:
            return None
        self.attached[request.request_id] = entry
        entry.looking, entry.seq, entry.keeps_all = True, self._number(), False
        tokens = [] if request.skip_reading_prefix_cache else list(request.all_token_ids)[:-1]
        self.next.look.append(Look(entry.seq, name, entry.params.policy, tokens))
        return None

    def _found(self, entry: Entry, found: Found) -> None:
        entry.looking = False
        if not found.busy and not found.short:
            entry.found = found
            return
        entry.seq = None
        self.attached.pop(entry.request.request_id, None)
        if found.short:
            self._short(entry)
            if self._is_short_for_long(entry):
                self._run_without_name(entry, f"the pool had no pages for the sequence {entry.name}, which is parked, although no other request ran")
            return
        entry.busy_since = entry.busy_since or time.monotonic()
        if time.monotonic() - entry.busy_since > BUSY_SECONDS:
            self._run_without_name(entry, f"another client holds the sequence {entry.name}")

    def _run_without_name(self, entry: Entry, why: str) -> None:
        entry.remark = f"{why}: the request ran without a name"
        log.warning("sparsekv: request %s: %s", entry.request.request_id, entry.remark)
        self._release_name(entry)
        entry.name = None

    def _release_name(self, entry: Entry) -> None:
        if entry.name is not None and self.names.get(entry.name) == entry.request.request_id:
            del self.names[entry.name]

    # ---- prefixes ----

    def _policy(self, entry: Entry) -> str:
        return entry.params.policy or self.params.policy

    def _may_fork(self, entry: Entry) -> bool:
        return self.params.forks and entry.params.fork and entry.key is not None

    def _forkable(self, entry: Entry) -> bool:
        """
        Whether others may fork its sequence. Tokens that it found in the daemon may have been computed under another
        policy.
        """
        found = entry.found is not None and entry.found.n_tokens > 0
        return self._may_fork(entry) and entry.keeps_all and not found

    def _longest_fork(self, entry: Entry) -> tuple[int | None, int]:
        """
        Returns the sequence with the same policy and key and the longest common prefix, and its length; None, 0 if
        that is too short.
        """
        if not self._may_fork(entry) or entry.request.skip_reading_prefix_cache:
            return None, 0
        tokens, alike = list(entry.request.all_token_ids)[:-1], (self._policy(entry), entry.key)
        best, length = None, self.params.fork_tokens - 1
        for other in self.entries.values():
            if other.admitted and other.seq is not None and (self._policy(other), other.key) == alike and self._forkable(other):
                request = other.request
                if request.num_preemptions == other.preemptions:
                    n = common(tokens, list(request.all_token_ids)[: request.num_computed_tokens])
                    best, length = (other.seq, n) if n > length else (best, length)
        for seq, (its, its_tokens) in self.retained.items():
            if its == alike:
                n = common(tokens, its_tokens)
                best, length = (seq, n) if n > length else (best, length)
        if best is not None and best in self.retained:
            self.retained.move_to_end(best)
        return (best, length) if best is not None else (None, 0)

    def _retain(self, entry: Entry) -> bool:
        """Keeps a finished request's sequence for forks, if that is useful; returns whether it did."""
        n = entry.request.num_computed_tokens
        if entry.seq is None or self.params.retain == 0 or not self._forkable(entry) or n < self.params.fork_tokens:
            return False
        self.retained[entry.seq] = (self._policy(entry), entry.key), list(entry.request.all_token_ids)[:n]
        if len(self.retained) > self.params.retain:
            self.next.drop.append(self.retained.popitem(last=False)[0])
        return True

    def forget_retained(self) -> None:
        self.next.drop += self.retained
        self.retained.clear()

    # ---- a step ----

    def _release_preempted(self, entry: Entry) -> None:
        """
        Handles a preemption by vLLM, which has freed the request's blocks. A named sequence stays in the daemon,
        where the request will find it.
        """
        if not entry.admitted or entry.request.num_preemptions == entry.preemptions:
            return
        if entry.seq is not None:
            (self.next.drop if entry.name is None else self.next.detach).append(entry.seq)
        entry.seq, entry.found, entry.admitted, entry.source = None, None, False, None

    def plan(self, output: "SchedulerOutput") -> Plan:
        """Returns the step that vLLM has scheduled, with everything that must happen before it."""
        for entry in self.entries.values():
            self._release_preempted(entry)
        plan = self.next
        plan.accepted = {rows.seq: self._accepted(rows, request, before) for rows, request, before in self.last}
        for request_id, n in output.num_scheduled_tokens.items():
            plan.rows[request_id] = self._rows(output, self.entries[request_id], n)
        self.next = Plan(block_size=self.block_size)
        plan.retained, plan.attached = list(self.retained), [e.seq for e in reversed(self.attached.values()) if e.seq is not None]
        self.last = [(r, self.entries[i].request, self.entries[i].request.num_tokens) for i, r in plan.rows.items()] if plan.drafts else []
        if self.v2 and plan.rows:
            # start_load_kv is then called before the forward pass, with the batch's order
            output.has_sync_kv_loads = True
        return plan

    def _rows(self, output: "SchedulerOutput", entry: Entry, n: int) -> Rows:
        request, drafts = entry.request, output.scheduled_spec_decode_tokens.get(entry.request.request_id, [])
        start = request.num_computed_tokens
        assert entry.seq is not None
        ids: list[int] | None = [*request.all_token_ids[start : start + n - len(drafts)], *drafts]
        if n == 1 and not ids:  # asynchronous scheduling: the token is being sampled
            ids = None
        prompt = start < entry.prompt_end and not drafts
        left = max(0, entry.prompt_end - start - n) if prompt else 0
        return Rows(entry.seq, start, n, ids, self._block_at(output, request.request_id, start), prompt, left, len(drafts))

    def _block_at(self, output: "SchedulerOutput", request_id: str, token: int) -> int | None:
        """
        Returns the number of vLLM's block that holds a token. Returns None under Model Runner V2: the worker does not
        use it there, and vLLM would make a list of all blocks of the request.
        """
        if self.v2:
            return None
        assert output.kv_connector_block_state is not None
        (blocks,) = output.kv_connector_block_state.get_block_ids(request_id) or ([],)
        return blocks[token // self.block_size]

    @staticmethod
    def _accepted(rows: Rows, request: "Request", tokens_before: int) -> list[int]:
        """
        Tokens of the rows that count in a step with drafts: one for each sampled token. Rows of prompts all count.
        Model Runner V2 samples drafts on the device, so the plan of that step has -1 in their place.
        """
        n = min(request.num_tokens - tokens_before, rows.n) if rows.drafts else rows.n
        return list(request.all_token_ids[rows.start : rows.start + n])

    # ---- results ----

    def report(self, report: Report) -> tuple[list["Request"], list["Request"]]:
        """
        Returns the requests that vLLM must preempt because their sequences were lost, and those of them that must
        fail.
        """
        lost: list[Entry] = []
        for seq in self.retained.keys() & set(report.lost):
            del self.retained[seq]
        for entry in self.entries.values():
            if entry.seq is None:
                continue
            entry.remark = report.remarks.get(entry.seq, entry.remark)
            entry.keeps_all = report.keeps_all.get(entry.seq, entry.keeps_all)
            if entry.seq in report.lost:
                entry.seq, entry.found, entry.looking = None, None, False
                self.attached.pop(entry.request.request_id, None)
                lost += [entry] if entry.admitted else []
            elif entry.seq in report.found:
                self._found(entry, report.found[entry.seq])
            elif entry.admitted:
                entry.short_since = None
                self.waiting.pop(entry.request.request_id, None)
        for entry in lost:
            self._short(entry)
        return [entry.request for entry in lost], [entry.request for entry in self._hopeless(lost)]

    def finish(self, request: "Request") -> dict[str, Any] | None:
        """
        Ends a finished or aborted request. Returns what the client is told about its sequence (kv_transfer_params).
        """
        entry = self.entries.pop(request.request_id, None)
        if entry is None:
            return None
        self.attached.pop(request.request_id, None)
        self.waiting.pop(request.request_id, None)
        self.waiting = dict.fromkeys(self.waiting, 0.0)
        self.next.look = [look for look in self.next.look if look.seq != entry.seq]
        self._release_preempted(entry)
        if entry.seq is not None:
            if entry.name is not None:
                self.next.detach.append(entry.seq)
            elif not (entry.admitted and self._retain(entry)):
                self.next.drop.append(entry.seq)
        self._release_name(entry)
        if entry.params == p.RequestParams() and entry.remark is None:
            return None
        said = {"policy": self._policy(entry), "name": entry.name, "cached_tokens": entry.cached, "remark": entry.remark}
        return {p.KEY: {key: value for key, value in said.items() if value is not None}}
