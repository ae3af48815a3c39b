# SPDX-License-Identifier: Apache-2.0
"""
Passes the tokens that Model Runner V2 sampled to the worker half, before the step is committed. vLLM gives them to no
connector, so GPUModelRunner.sample is wrapped.
"""
import functools
from typing import Any

from .worker import worker_half


@functools.cache
def install() -> None:
    """Wraps vLLM's GPUModelRunner, once in a process."""
    from vllm.v1.worker.gpu.model_runner import GPUModelRunner

    theirs = GPUModelRunner.sample

    def ours(self: Any, *args: Any, **more: Any) -> Any:
        output, num_sampled, num_rejected = theirs(self, *args, **more)
        worker = worker_half()
        if worker is not None:
            worker.sampled(output.sampled_token_ids, num_sampled)
        return output, num_sampled, num_rejected

    setattr(GPUModelRunner, "sample", ours)
