# SPDX-License-Identifier: Apache-2.0
"""
Checks requests before they enter the engine, so that an OpenAI client gets status 400 and the reason.

The only hook of vLLM 0.32 for that is a logits processor's validate_params, but an engine with custom logits
processors refuses speculative decoding. So InputProcessor._validate_params is wrapped.
"""
import errno
import functools
from typing import Any

import sparsekv

from . import CONNECTOR
from .model import shape_of
from .params import engine_params, request_params


@functools.cache
def _wrap() -> None:
    from vllm.exceptions import VLLMValidationError
    from vllm.v1.engine.input_processor import InputProcessor

    theirs = InputProcessor._validate_params

    def ours(self: Any, params: Any, *args: Any, **kwargs: Any) -> Any:
        transfer = self.vllm_config.kv_transfer_config
        if transfer is not None and transfer.has_connector(CONNECTOR):
            try:
                validate(self, params)
            except ValueError as e:  # vLLM converts other exceptions to status 500 without a text
                raise VLLMValidationError(str(e), parameter="kv_transfer_params") from e
        return theirs(self, params, *args, **kwargs)

    setattr(InputProcessor, "_validate_params", ours)


def install() -> None:
    """Wraps InputProcessor, once in a process."""
    _wrap()


def validate(processor: Any, params: Any) -> None:
    """Raises ValueError with what is wrong in the request. `processor` remembers valid policies."""
    said = request_params(getattr(params, "extra_args", None))
    if said.policy is None:
        return
    known = processor.__dict__.setdefault("_sparsekv_policies", set())
    if said.policy not in known:
        try_policy(processor.vllm_config, said.policy)
        if len(known) < 1000:
            known.add(said.policy)


def try_policy(vllm_config: Any, policy: str) -> None:
    """
    Opens a session with the model's shape and this policy in host memory. Raises ValueError if the engine cannot run
    it.
    """
    params = engine_params(vllm_config.kv_transfer_config.kv_connector_extra_config)
    try:
        with sparsekv.Client(params.socket) as client, client.open(shape_of(vllm_config, params), policy) as session:
            if vllm_config.speculative_config is not None:
                try_several_rows(session)
    except sparsekv.Error as e:
        raise ValueError(f"sparsekv: policy {policy}: {e.strerror}") from e


def try_several_rows(session: sparsekv.Session) -> None:
    """
    Raises ValueError if the session's policy decodes only one row a step. The library reports that before it
    allocates pages.
    """
    try:
        session.begin([sparsekv.Item(session.new(), 2)])
    except sparsekv.OutOfPages:
        pass
    except sparsekv.Error as e:
        if e.errno != errno.ENOTSUP:
            raise
        raise ValueError(f"sparsekv: this engine verifies drafts (--speculative-config), several rows a step: {e.strerror}") from e
    session.abort()
