# SPDX-License-Identifier: Apache-2.0
"""Counters of the worker's session, for vLLM's log and its /metrics. `sparsekvctl metrics` has the daemon's own."""
import time
from typing import Any

import sparsekv
from prometheus_client import Counter, Gauge
from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorPromMetrics, KVConnectorStats
from vllm.v1.metrics.utils import create_metric_per_engine

EVERY_SECONDS = 0.5  # each report costs vLLM time in both of its processes

COUNTERS = {
    "steps": "Committed steps",
    "prompt_tokens": "Rows of prompts",
    "decode_tokens": "Rows that were decoded, accepted drafts included",
    "attended_tokens": "Tokens that decode rows attended to, over layers",
    "causal_tokens": "Tokens that dense attention would have attended to",
    "evicted_pages": "Pages evicted",
    "forked_tokens": "Tokens of prompts that were forked from another sequence",
    "found_tokens": "Tokens of prompts that a named sequence had",
    "lost_sequences": "Sequences of running requests dropped for want of pages",
}
GAUGES = {"n_seqs": "Sequences that the engine holds", "stock_pages": "Free pages on lease"}


class SparseKVStats(KVConnectorStats):
    """data: increments of counters, and gauges."""

    def reset(self) -> None:
        self.data = {}

    def aggregate(self, other: KVConnectorStats) -> "SparseKVStats":
        sums = {name: self.data.get(name, 0) + other.data.get(name, 0) for name in COUNTERS}
        return SparseKVStats({**sums, **{name: other.data.get(name, self.data.get(name, 0)) for name in GAUGES}})

    def reduce(self) -> dict[str, int | float]:
        causal = self.data.get("causal_tokens", 0)
        share = self.data.get("attended_tokens", 0) / causal if causal else 1.0
        return {**{name: self.data.get(name, 0) for name in (*COUNTERS, *GAUGES)}, "attended_share": round(share, 4)}

    def is_empty(self) -> bool:
        return not any(self.data.get(name) for name in COUNTERS)


class Source:
    """The worker's counters: the session's, and its own."""

    def __init__(self, session: sparsekv.Session):
        self.session = session
        self.own: dict[str, int] = {}
        self.before: dict[str, int] = {}
        self.at = 0.0

    def add(self, name: str, n: int) -> None:
        self.own[name] = self.own.get(name, 0) + n

    def take(self) -> SparseKVStats | None:
        if time.monotonic() < self.at + EVERY_SECONDS:
            return None
        self.at = time.monotonic()
        stats = self.session.stats()
        now = {name: getattr(stats, name, self.own.get(name, 0)) for name in COUNTERS}
        data = {name: now[name] - self.before.get(name, 0) for name in COUNTERS}
        self.before = now
        return SparseKVStats({**data, **{name: getattr(stats, name) for name in GAUGES}})


class SparseKVPromMetrics(KVConnectorPromMetrics):
    """Prometheus metrics sparsekv_vllm_* with vLLM's labels."""

    def __init__(self, vllm_config: Any, metric_types: Any, labelnames: list[str], per_engine_labelvalues: dict[int, list[object]]):
        super().__init__(vllm_config, metric_types, labelnames, per_engine_labelvalues)
        self.metrics: dict[str, Any] = {}
        for names, kind in ((COUNTERS, Counter), (GAUGES, Gauge)):
            for name, what in names.items():
                suffix = "_total" if kind is Counter else ""
                metric = metric_types[kind](name=f"sparsekv_vllm_{name.removeprefix('n_')}{suffix}", documentation=what, labelnames=labelnames)
                self.metrics[name] = create_metric_per_engine(metric, per_engine_labelvalues)

    def observe(self, transfer_stats_data: dict[str, Any], engine_idx: int = 0) -> None:
        for name in COUNTERS:
            self.metrics[name][engine_idx].inc(transfer_stats_data.get(name, 0))
        for name in GAUGES:
            if name in transfer_stats_data:
                self.metrics[name][engine_idx].set(transfer_stats_data[name])
