# SPDX-License-Identifier: Apache-2.0
"""
Passes the tokens that Model Runner V2 sampled to the worker half, before the step is committed. vLLM 0.32 gives them to
no connector, so GPUModelRunner.postprocess_sampled is wrapped.
"""
import functools
from typing import Any

import torch

from .worker import worker_half


@functools.cache
def install() -> None:
    """Wraps vLLM's GPUModelRunner, once in a process."""
    from vllm.v1.worker.gpu.model_runner import GPUModelRunner

    theirs = GPUModelRunner.postprocess_sampled

    def ours(self: Any, idx_mapping: torch.Tensor, sampled_tokens: torch.Tensor, num_sampled: torch.Tensor, *args: Any, **more: Any) -> None:
        worker = worker_half()
        if worker is not None:
            worker.sampled(sampled_tokens, num_sampled)
        theirs(self, idx_mapping, sampled_tokens, num_sampled, *args, **more)

    setattr(GPUModelRunner, "postprocess_sampled", ours)
