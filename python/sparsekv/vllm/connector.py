# SPDX-License-Identifier: Apache-2.0
"""The connector, which vLLM instantiates twice: in the scheduler's process and in the worker's."""
from typing import TYPE_CHECKING, Any

from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1, KVConnectorMetadata, KVConnectorRole, SupportsHMA
from vllm.v1.core.sched.output import SchedulerOutput

from . import capacity, graphs, metrics, model, preemption, sampling
from .params import engine_params
from .plan import Plan, Report
from .scheduler import Scheduler
from .worker import Worker

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.forward_context import ForwardContext
    from vllm.v1.core.kv_cache_manager import KVCacheBlocks
    from vllm.v1.kv_cache_interface import KVCacheConfig
    from vllm.v1.request import Request


class SparseKVConnector(KVConnectorBase_V1, SupportsHMA):
    """Passes vLLM's calls to one of the halves. `scheduler` or `worker` is None, depending on the role."""

    requires_kv_delivery = False  # no KV cache is handed to another engine, so preempting a request loses nothing

    def __init__(self, vllm_config: "VllmConfig", role: KVConnectorRole, kv_cache_config: "KVCacheConfig"):
        super().__init__(vllm_config, role, kv_cache_config)
        model.refuse(vllm_config)
        params = engine_params(self._kv_transfer_config.kv_connector_extra_config)
        self.scheduler: Scheduler | None = None
        self.worker: Worker | None = None
        if role == KVConnectorRole.SCHEDULER:
            capacity.check(vllm_config, kv_cache_config)
            self.scheduler = Scheduler(vllm_config, params)
            preemption.install()
        else:
            self.worker = Worker(vllm_config, params)
            if vllm_config.use_v2_model_runner:
                sampling.install()
            if vllm_config.use_v2_model_runner and vllm_config.device_config.device_type == "cuda":
                graphs.install()

    # ---- before the connector exists ----

    @classmethod
    def get_required_kvcache_layout(cls, vllm_config: "VllmConfig") -> str | None:
        """
        Requires no layout. vLLM calls this in the engine's process before it computes the number of blocks, so it is
        the place to set that number.
        """
        capacity.limit(vllm_config)
        return None

    # ---- the worker half ----

    def bind_connector_metadata(self, connector_metadata: KVConnectorMetadata) -> None:
        super().bind_connector_metadata(connector_metadata)
        assert self.worker is not None and isinstance(connector_metadata, Plan)
        self.worker.bind(connector_metadata)

    def start_load_kv(self, forward_context: "ForwardContext", **kwargs: Any) -> None:
        assert self.worker is not None
        if "request_ids" in kwargs:  # Model Runner V2
            self.worker.start(kwargs["request_ids"], kwargs.get("attn_metadata"))

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Does nothing: K and V are not loaded, attention reads them in place."""

    def save_kv_layer(self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any) -> None:
        """Does nothing: attention has appended K and V."""

    def wait_for_save(self) -> None:
        assert self.worker is not None
        self.worker.end()

    def build_connector_worker_meta(self) -> Report:
        assert self.worker is not None
        return self.worker.take_report()

    def shutdown(self) -> None:
        if self.worker is not None:
            self.worker.close()

    # ---- the scheduler half ----

    def on_new_request(self, request: "Request") -> None:
        assert self.scheduler is not None
        self.scheduler.add(request)

    def get_num_new_matched_tokens(self, request: "Request", num_computed_tokens: int) -> tuple[int | None, bool]:
        assert self.scheduler is not None and num_computed_tokens == 0
        return self.scheduler.match(request), False

    def update_state_after_alloc(self, request: "Request", blocks: "KVCacheBlocks", num_external_tokens: int) -> None:
        assert self.scheduler is not None
        self.scheduler.admit(request, num_external_tokens)

    def build_connector_meta(self, scheduler_output: SchedulerOutput) -> Plan:
        assert self.scheduler is not None
        return self.scheduler.plan(scheduler_output)

    def request_finished_all_groups(self, request: "Request", block_ids: tuple[list[int], ...]) -> tuple[bool, dict[str, Any] | None]:
        assert self.scheduler is not None
        return False, self.scheduler.finish(request)

    def request_finished(self, request: "Request", block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:
        return self.request_finished_all_groups(request, (block_ids,))

    def reset_cache(self) -> bool:
        assert self.scheduler is not None
        self.scheduler.forget_retained()
        return True

    # ---- metrics ----

    def get_kv_connector_stats(self) -> metrics.SparseKVStats | None:
        return self.worker.take_stats() if self.worker is not None else None

    @classmethod
    def build_kv_connector_stats(cls, data: dict[str, Any] | None = None) -> metrics.SparseKVStats:
        return metrics.SparseKVStats(data=data or {})

    @classmethod
    def build_prom_metrics(cls, vllm_config: "VllmConfig", metric_types: Any, labelnames: list[str], per_engine_labelvalues: Any) -> metrics.SparseKVPromMetrics:
        return metrics.SparseKVPromMetrics(vllm_config, metric_types, labelnames, per_engine_labelvalues)
