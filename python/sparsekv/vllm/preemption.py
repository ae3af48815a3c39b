# SPDX-License-Identifier: Apache-2.0
"""
A request that the worker had no pages for is preempted, as vLLM preempts where it has no blocks: it waits, and begins anew.

To vLLM 0.32 a connector can say that blocks of tokens computed before were not loaded, but not that a request's first rows were not
computed; and what else it says is heard after the step's tokens have been taken. So Scheduler.update_from_output is wrapped.
"""
import functools
import time
from typing import Any

from .plan import Report
from .scheduler import Scheduler


@functools.cache
def install() -> None:
    """Wrap vLLM's Scheduler, once in a process."""
    from vllm.v1.core.sched.scheduler import Scheduler as Theirs

    theirs = Theirs.update_from_output

    def ours(self: Any, scheduler_output: Any, model_runner_output: Any) -> Any:
        half, output = getattr(self.connector, "scheduler", None), model_runner_output.kv_connector_output
        if isinstance(half, Scheduler) and output is not None:
            preempt(self, half, output.kv_connector_worker_meta)
        return theirs(self, scheduler_output, model_runner_output)

    setattr(Theirs, "update_from_output", ours)


def preempt(scheduler: Any, half: Scheduler, report: Any) -> None:
    """Tell our half of the worker's report, and vLLM's scheduler what follows: tokens sampled of lost rows do not count."""
    assert isinstance(report, Report)
    lost, hopeless = half.report(report)
    for request in lost:
        scheduler.running.remove(request)
        scheduler._preempt_request(request, time.monotonic(), drop_stale_output=True)
    # requests that update_from_output ends with an error; 0.32 fills it where a grammar does not compile
    scheduler.grammar_compile_error_reqs.update(request.request_id for request in hopeless)
