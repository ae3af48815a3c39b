# SPDX-License-Identifier: Apache-2.0
"""
What travels between the scheduler's process and the worker's: a Plan with each step, a Report back.

Sequences are known by numbers that the scheduler gives, never by request ids: a preempted request that is resumed has
another sequence.
"""
from dataclasses import dataclass, field

from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorMetadata, KVConnectorWorkerMetadata


@dataclass
class Look:
    """
    Take up the daemon's sequence of this name, or make it: as much of it stays as begins like `tokens`. The Report says
    how much that is; only then the request is admitted.
    """

    seq: int
    name: str
    policy: str | None
    tokens: list[int]


@dataclass
class Found:
    """Of a Look: the tokens that stay; exact: nothing was cut off. busy: another client holds the sequence."""

    n_tokens: int = 0
    exact: bool = False
    busy: bool = False


@dataclass
class Open:
    """A new sequence; where `source` is a number, a fork of that sequence's first n_tokens."""

    seq: int
    name: str | None = None
    policy: str | None = None
    source: int | None = None
    n_tokens: int = 0


@dataclass
class Rows:
    """
    The rows of one request in a step: token ids from position `start` on, the first of them written to vLLM's block
    `block`. remaining: tokens of the prompt that later steps append. drafts: how many of the rows are candidates.
    """

    seq: int
    start: int
    tokens: list[int]
    block: int
    prompt: bool
    remaining: int = 0
    drafts: int = 0


@dataclass
class Plan(KVConnectorMetadata):
    """
    A step, in the order in which the worker does it. accepted: of the step before, if it had drafts, the rows of each
    sequence that count. drop, detach: sequences that go. look, open: those that come. rows: by request id. retained:
    sequences that no request runs, the first to be dropped first.
    """

    accepted: dict[int, int] = field(default_factory=dict)
    drop: list[int] = field(default_factory=list)
    detach: list[int] = field(default_factory=list)
    look: list[Look] = field(default_factory=list)
    open: list[Open] = field(default_factory=list)
    rows: dict[str, Rows] = field(default_factory=dict)
    retained: list[int] = field(default_factory=list)
    block_size: int = 16

    @property
    def drafts(self) -> bool:
        return any(r.drafts for r in self.rows.values())


@dataclass
class Report(KVConnectorWorkerMetadata):
    """
    Back from the worker. found: of each Look, by number. lost: sequences that it dropped for want of pages, or could not
    open: of the step's, none of the rows were computed. remarks: in what a sequence is other than what was asked for, by number.
    keeps_all: of the step's sequences, by number (Seq.keeps_all).
    """

    found: dict[int, Found] = field(default_factory=dict)
    lost: list[int] = field(default_factory=list)
    remarks: dict[int, str] = field(default_factory=dict)
    keeps_all: dict[int, bool] = field(default_factory=dict)

    def aggregate(self, other: KVConnectorWorkerMetadata) -> "Report":
        assert isinstance(other, Report)
        return Report({**self.found, **other.found}, self.lost + other.lost, {**self.remarks, **other.remarks}, {**self.keeps_all, **other.keeps_all})
