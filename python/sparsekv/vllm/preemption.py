# SPDX-License-Identifier: Apache-2.0
"""
Preempts a request for which the worker had no pages, as vLLM does when it has no blocks: the request waits and starts
again.

In vLLM a connector can report that blocks computed earlier were not loaded, but not that a request's first rows
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
    for request in hopeless:
        fail(scheduler, request.request_id, half.remark_of(request.request_id))


def fail(scheduler: Any, request_id: str, why: str) -> None:
    """
    Lets update_from_output end the request with an error. vLLM has this for grammars that do not compile: a set of
    requests in 0.32, a dictionary with their errors in 0.33.
    """
    from vllm.outputs import RequestError

    errors = scheduler.grammar_compile_error_reqs
    if isinstance(errors, dict):
        errors[request_id] = RequestError("no_pages", why)
    else:
        errors.add(request_id)
