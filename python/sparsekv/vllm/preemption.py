# SPDX-License-Identifier: Apache-2.0
"""
Preempts a request for which the worker had no pages, as vLLM does when it has no blocks: the request waits and starts
again.

In vLLM 0.32 a connector can report that blocks computed earlier were not loaded, but not that a request's first rows
were not computed; and other reports are read after the step's tokens were accepted. So Scheduler.update_from_output
is wrapped.
"""
import functools
import time
from typing import Any

from .plan import Report
from .scheduler import Scheduler


@functools.cache
def install() -> None:
    """Wraps vLLM's Scheduler, once in a process."""
    from vllm.v1.core.sched.scheduler import Scheduler as Theirs

    theirs = Theirs.update_from_output

    def ours(self: Any, scheduler_output: Any, model_runner_output: Any) -> Any:
        half, output = getattr(self.connector, "scheduler", None), model_runner_output.kv_connector_output
        if isinstance(half, Scheduler) and output is not None:
            preempt(self, half, output.kv_connector_worker_meta)
        return theirs(self, scheduler_output, model_runner_output)

    setattr(Theirs, "update_from_output", ours)


def preempt(scheduler: Any, half: Scheduler, report: Any) -> None:
    """
    Passes the worker's report to our half, and its consequences to vLLM's scheduler: tokens sampled from lost rows do
    not count.
    """
    assert isinstance(report, Report)
    lost, hopeless = half.report(report)
    for request in lost:
        scheduler.running.remove(request)
        scheduler._preempt_request(request, time.monotonic(), drop_stale_output=True)
    # update_from_output ends these requests with an error; vLLM 0.32 uses the set for grammars that do not compile
    scheduler.grammar_compile_error_reqs.update(request.request_id for request in hopeless)
