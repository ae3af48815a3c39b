# SPDX-License-Identifier: Apache-2.0
"""Parameters of requests and of the engine's configuration, checked, with errors that name what is wrong."""
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

NAME = re.compile(r"[!-.0-~]{1,63}")  # printable ASCII without space and '/', as <sparsekv/client.h> requires for names
KEY = "sparsekv"


@dataclass(frozen=True)
class RequestParams:
    """
    Parameters of one request: kv_transfer_params={"sparsekv": {...}} in an OpenAI body, or
    SamplingParams(extra_args={"sparsekv": {...}}).

    policy: "name?key=value&..."; None: the engine's
    name: of its sequence, which then outlives the request and the engine; a later request with this name continues
        from the longest common prefix of tokens. None: no name
    fork: whether it may start from another request's pages if the first tokens are equal
    """

    policy: str | None = None
    name: str | None = None
    fork: bool = True


@dataclass(frozen=True)
class EngineParams:
    """
    kv_connector_extra_config of --kv-transfer-config.

    policy: of requests that name none
    socket: the daemon's; None: $SPARSEKV_SOCKET, or else the system's
    model_name: sequences belong to a model by it; None: derived from everything that K and V are computed from
        (identity.py)
    kv_dtype: of the pages, such as "fp8"; None: the model's
    threads: of the library's host kernels; 0: as many as torch has
    names: "request": a request may give its sequence's name; "request-id": if it does not, its X-Request-Id is the
        name
    forks: share the pages of prompts with equal beginnings
    fork_tokens: least number of common tokens for a fork
    retain: number of sequences of finished requests that are kept for forks, until their pages are needed
    max_tokens: limit of all sequences together; None: what the pool holds
    capture_policies: besides `policy`, those whose decode steps are captured as CUDA graphs when the engine starts; others
        when requests have named them
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
    capture_policies: list[str] | None = None


def checked(cls: type, what: str, values: Mapping[str, Any]) -> Any:
    """
    Makes the dataclass from these values. Raises ValueError, which names an unknown key or a value of the wrong type.
    """
    known = {f.name: f for f in fields(cls)}
    for key, value in values.items():
        if key not in known:
            raise ValueError(f"{what}: unknown key {key!r}, expected {', '.join(known)}")
        its = known[key].type
        kinds = (its.__name__ if isinstance(its, type) else str(its)).split(" | ")
        if ("None" if value is None else type(value).__name__) not in [kind.partition("[")[0] for kind in kinds]:
            raise ValueError(f"{what}: {key} is {value!r}, expected {' or '.join(kinds)}")
    return cls(**values)


def engine_params(extra: Mapping[str, Any]) -> EngineParams:
    """Parses kv_connector_extra_config. Raises ValueError."""
    p: EngineParams = checked(EngineParams, "kv_connector_extra_config", extra)
    if p.model_name is not None and not re.fullmatch(r"[!-~]{1,63}", p.model_name):
        raise ValueError(f"kv_connector_extra_config: model_name is {p.model_name!r}, expected 1 to 63 characters of printable ASCII without space")
    if p.names not in ("request", "request-id"):
        raise ValueError(f"kv_connector_extra_config: names is {p.names!r}, expected 'request' or 'request-id'")
    if not all(isinstance(policy, str) for policy in p.capture_policies or ()):
        raise ValueError(f"kv_connector_extra_config: capture_policies is {p.capture_policies!r}, expected a list of policies")
    if p.fork_tokens < 1 or p.retain < 0 or p.threads < 0:
        raise ValueError("kv_connector_extra_config: expected fork_tokens >= 1, retain >= 0 and threads >= 0")
    return p


def request_params(extra_args: Mapping[str, Any] | None) -> RequestParams:
    """Parses SamplingParams.extra_args. Raises ValueError."""
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
    """
    Returns the name of a request's sequence. request_id: vLLM's, which is the X-Request-Id with a prefix and a suffix
    of random digits.
    """
    if params.name is not None or engine.names == "request":
        return params.name
    outer = re.sub(r"-[0-9a-f]{8}$", "", request_id)
    return re.sub(r"[^!-.0-~]", "_", outer)[:63]
