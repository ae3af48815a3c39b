# SPDX-License-Identifier: Apache-2.0
"""
Messages between the scheduler's process and the worker's: a Plan with each step, and a Report in return.

The scheduler numbers sequences. Request ids would not identify them: a preempted request gets another sequence when
it is resumed.
"""
from dataclasses import dataclass, field

from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorMetadata, KVConnectorWorkerMetadata


@dataclass
class Look:
    """
    Attaches the daemon's sequence of this name, or creates it. Its longest common prefix with `tokens` is kept; the
    Report has its length. The request is admitted only after that.
    """

    seq: int
    name: str
    policy: str | None
    tokens: list[int]


@dataclass
class Found:
    """
    The result of a Look.

    n_tokens: tokens that are kept
    exact: nothing was truncated
    busy: another client has attached the sequence
    short: the sequence is parked, and the pool has no pages for it
    """

    n_tokens: int = 0
    exact: bool = False
    busy: bool = False
    short: bool = False


@dataclass
class Open:
    """A new sequence; if `source` is a number, a fork of that sequence's first n_tokens."""

    seq: int
    name: str | None = None
    policy: str | None = None
    source: int | None = None
    n_tokens: int = 0


@dataclass
class Rows:
    """
    The rows of one request in a step.

    start, n: position of the first row, and number of rows
    tokens: their ids; None: one row, of the token that was sampled last, which the scheduler does not know yet
    block: vLLM's block that the first row is written to; None under Model Runner V2
    remaining: tokens of the prompt that later steps append
    drafts: number of rows that are candidates
    """

    seq: int
    start: int
    n: int
    tokens: list[int] | None
    block: int | None
    prompt: bool
    remaining: int = 0
    drafts: int = 0


@dataclass
class Plan(KVConnectorMetadata):
    """
    A step; the worker processes the fields in this order.

    accepted: for each sequence, the tokens of those rows of the previous step that count, if it had drafts
    drop, detach: sequences to be released
    look, open: sequences to be attached or created
    rows: by request id
    retained: sequences without a request; the first is dropped first
    attached: sequences of requests that are not admitted yet; the first, of the newest request, gives way first
    """

    accepted: dict[int, list[int]] = field(default_factory=dict)
    drop: list[int] = field(default_factory=list)
    detach: list[int] = field(default_factory=list)
    look: list[Look] = field(default_factory=list)
    open: list[Open] = field(default_factory=list)
    rows: dict[str, Rows] = field(default_factory=dict)
    retained: list[int] = field(default_factory=list)
    attached: list[int] = field(default_factory=list)
    block_size: int = 16

    @property
    def drafts(self) -> bool:
        return any(r.drafts for r in self.rows.values())


@dataclass
class Report(KVConnectorWorkerMetadata):
    """
    The worker's reply.

    found: results of each Look, by sequence number
    lost: sequences that gave way for lack of pages or could not be opened; none of their rows in the step were
        computed
    remarks: how a sequence differs from what was requested, by number
    keeps_all: Seq.keeps_all of the step's sequences, by number
    """

    found: dict[int, Found] = field(default_factory=dict)
    lost: list[int] = field(default_factory=list)
    remarks: dict[int, str] = field(default_factory=dict)
    keeps_all: dict[int, bool] = field(default_factory=dict)

    def aggregate(self, other: KVConnectorWorkerMetadata) -> "Report":
        assert isinstance(other, Report)
        return Report({**self.found, **other.found}, self.lost + other.lost, {**self.remarks, **other.remarks}, {**self.keeps_all, **other.keeps_all})
