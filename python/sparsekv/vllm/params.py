# SPDX-License-Identifier: Apache-2.0
"""What a request and the engine's configuration may say to us, checked, with errors that name what was wrong."""
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

NAME = re.compile(r"[!-.0-~]{1,63}")  # printable ASCII without space and '/', as <sparsekv/client.h> says of names
KEY = "sparsekv"


@dataclass(frozen=True)
class RequestParams:
    """
    Of one request: kv_transfer_params={"sparsekv": {...}} in an OpenAI body, or SamplingParams(extra_args={"sparsekv":
    {...}}).

    policy: "name?key=value&...", None: the engine's. name: of its sequence, which then outlives the request and the
    engine; a later request of that name goes on from the longest prefix of tokens that both have. None: no name. fork:
    may it start from another request's pages where the first tokens are the same?
    """

    policy: str | None = None
    name: str | None = None
    fork: bool = True


@dataclass(frozen=True)
class EngineParams:
    """
    kv_connector_extra_config of --kv-transfer-config.

    policy: of requests that name none. socket: the daemon's; None: $SPARSEKV_SOCKET, else the system's. model_name:
    sequences belong to a model by it; None: what K and V are computed from (identity.py). kv_dtype: of the pages,
    "fp8" for one; None: the model's. threads: of the library's host kernels; 0: as many as torch has. names: "request": a request says its
    sequence's name; "request-id": where it does not, its X-Request-Id is the name. forks: share the pages of prompts that
    begin alike. fork_tokens: from so many common tokens on. retain: sequences of finished requests kept for forks, until
    their pages are needed. max_tokens: of all sequences together, at most; None: what the pool holds.
    """

    policy: str = "full"
    socket: str | None = None
    model_name: str | None = None
    kv_dtype: str | None = None
    threads: int = 0
    names: str = "request"
    forks: bool = True
    fork_tokens: int = 64
    retain: int = 16
    max_tokens: int | None = None


def checked(cls: type, what: str, values: Mapping[str, Any]) -> Any:
    """The dataclass with these values; ValueError names a key that it does not have, or a value of another type."""
    known = {f.name: f for f in fields(cls)}
    for key, value in values.items():
        if key not in known:
            raise ValueError(f"{what}: unknown key {key!r}, expected {', '.join(known)}")
        its = known[key].type
        kinds = (its.__name__ if isinstance(its, type) else str(its)).split(" | ")
        if ("None" if value is None else type(value).__name__) not in kinds:
            raise ValueError(f"{what}: {key} is {value!r}, expected {' or '.join(kinds)}")
    return cls(**values)


def engine_params(extra: Mapping[str, Any]) -> EngineParams:
    """Of kv_connector_extra_config. Raises ValueError."""
    p: EngineParams = checked(EngineParams, "kv_connector_extra_config", extra)
    if p.model_name is not None and not re.fullmatch(r"[!-~]{1,63}", p.model_name):
        raise ValueError(f"kv_connector_extra_config: model_name is {p.model_name!r}, expected 1 to 63 characters of printable ASCII without space")
    if p.names not in ("request", "request-id"):
        raise ValueError(f"kv_connector_extra_config: names is {p.names!r}, expected 'request' or 'request-id'")
    if p.fork_tokens < 1 or p.retain < 0 or p.threads < 0:
        raise ValueError("kv_connector_extra_config: expected fork_tokens >= 1, retain >= 0 and threads >= 0")
    return p


def request_params(extra_args: Mapping[str, Any] | None) -> RequestParams:
    """Of SamplingParams.extra_args. Raises ValueError."""
    extra = extra_args or {}
    said = extra.get(KEY)
    if said is None:
        said = (extra.get("kv_transfer_params") or {}).get(KEY)
    if said is None:
        return RequestParams()
    if not isinstance(said, Mapping):
        raise ValueError(f"{KEY}: {said!r}, expected an object with name, policy, fork")
    p: RequestParams = checked(RequestParams, KEY, said)
    if p.name is not None and not NAME.fullmatch(p.name):
        raise ValueError(f"{KEY}: name is {p.name!r}, expected 1 to 63 characters of printable ASCII without space and '/'")
    return p


def name_of(params: RequestParams, engine: EngineParams, request_id: str) -> str | None:
    """The name of a request's sequence. request_id: vLLM's, the X-Request-Id with a prefix and random digits behind it."""
    if params.name is not None or engine.names == "request":
        return params.name
    outer = re.sub(r"-[0-9a-f]{8}$", "", request_id)
    return re.sub(r"[^!-.0-~]", "_", outer)[:63]
