# SPDX-License-Identifier: Apache-2.0
"""
A `vllm serve` for tests, started as by a user, and used over HTTP. $SPARSEKV_TEST_DEVICE=cuda:0 is for vLLM's CUDA build.
"""
import concurrent.futures
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

SEED = int(os.environ["SKV_SEED"])
TOKENS = 24  # of an answer
ON_CUDA = os.environ.get("SPARSEKV_TEST_DEVICE", "cpu") != "cpu"
START_SECONDS = float(os.environ.get("SPARSEKV_VLLM_START_SECONDS", "400"))
ANSWER_SECONDS = 400.0


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Server:
    """
    `ours`: the connector's extra config; None: stock vLLM. A context manager; kill() sends SIGKILL to all its
    processes.
    """

    def __init__(self, model: Path, log: Path, *args: str, ours: dict[str, Any] | None = None, daemon: str | None = None):
        self.port, self.log = free_port(), log
        command = [sys.executable, "-m", "vllm.entrypoints.cli.main", "serve", str(model), "--port", str(self.port), "--served-model-name", "m"]
        command += ["--max-model-len", "2048", "--block-size", "32", "--max-num-seqs", "16"]
        command += ["--dtype", "bfloat16"] if ON_CUDA else ["--dtype", "float32", "--enforce-eager"]
        command += ["--max-num-batched-tokens", "256", "--kv-cache-memory-bytes", str(1 << 29 if ours is None else 1 << 26), *args]
        env = {**os.environ, "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"}
        if ours is not None:
            transfer = {"kv_connector": "SparseKVConnector", "kv_role": "kv_both", "kv_connector_extra_config": ours}
            command += ["--kv-transfer-config", json.dumps(transfer)]
            command += ["--attention-backend", "CUSTOM"] if ON_CUDA else []
        if daemon is not None:
            env["SPARSEKV_SOCKET"] = daemon
        with open(log, "w", encoding="utf-8") as out:
            self.process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, env=env, start_new_session=True)
        self._wait()

    def _wait(self) -> None:
        until = time.monotonic() + START_SECONDS
        while True:
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health", timeout=5).close()
                return
            except OSError:
                if self.process.poll() is not None or time.monotonic() > until:
                    self.kill()
                    raise RuntimeError(f"vllm serve did not start:\n{self.log.read_text(encoding='utf-8')[-4000:]}") from None
                time.sleep(0.3)

    def post(self, path: str, body: dict[str, Any], headers: dict[str, str] | None = None, seconds: float = ANSWER_SECONDS) -> tuple[int, dict[str, Any]]:
        """Returns the status and the JSON of the answer."""
        data = json.dumps(body).encode()
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", data, {"Content-Type": "application/json", **(headers or {})})
        try:
            with urllib.request.urlopen(request, timeout=seconds) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as e:
            return e.code, json.load(e)

    def complete(self, prompt: str | list[int], n: int, ours: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
        """
        Returns a greedy completion of n tokens: the choice with token_ids, prompt_token_ids, and what was reported
        about the sequence.
        """
        headers = more.pop("headers", None)
        body = {"model": "m", "prompt": prompt, "max_tokens": n, "temperature": 0, "ignore_eos": True, "return_token_ids": True, **more}
        if ours is not None:
            body["kv_transfer_params"] = {"sparsekv": ours}
        status, answer = self.post("/v1/completions", body, headers)
        assert status == 200, answer
        return {**answer["choices"][0], "said": (answer.get("kv_transfer_params") or {}).get("sparsekv")}

    def together(self, calls: list[tuple[Any, ...]]) -> list[dict[str, Any]]:
        """Calls complete() for all at once."""
        with concurrent.futures.ThreadPoolExecutor(len(calls)) as pool:
            return list(pool.map(lambda call: self.complete(*call), calls))

    def abort(self, prompt: str | list[int], n: int, ours: dict[str, Any] | None = None, after: int = 3, then: Callable[[], object] | None = None) -> None:
        """Requests a stream, reads `after` tokens of it, calls `then`, and closes the connection."""
        body: dict[str, Any] = {"model": "m", "prompt": prompt, "max_tokens": n, "temperature": 0, "ignore_eos": True, "stream": True}
        if ours is not None:
            body["kv_transfer_params"] = {"sparsekv": ours}
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=ANSWER_SECONDS) as answer:
            for _ in range(2 * after):  # each token is a line and an empty line
                answer.readline()
            if then is not None:
                then()

    def stream(self, prompt: list[int], n: int, ours: dict[str, Any]) -> Iterator[int]:
        """Yields the token ids of a greedy completion as they arrive."""
        body = {"model": "m", "prompt": prompt, "max_tokens": n, "temperature": 0, "ignore_eos": True, "stream": True, "return_token_ids": True}
        body["kv_transfer_params"] = {"sparsekv": ours}
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=ANSWER_SECONDS) as answer:
            for line in answer:
                if line.startswith(b"data: {"):
                    yield from json.loads(line[6:])["choices"][0].get("token_ids") or []

    def metrics(self) -> dict[str, float]:
        """Prometheus samples by name, summed over labels."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=30) as answer:
            lines = answer.read().decode().splitlines()
        found: dict[str, float] = {}
        for line in lines:
            if not line.startswith("#"):
                name, value = line.rpartition(" ")[::2]
                name = name.partition("{")[0]
                found[name] = found.get(name, 0.0) + float(value)
        return found

    def kill(self) -> None:
        """Sends SIGKILL to the server and all of its processes."""
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.process.wait()

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
            try:
                self.process.wait(60)
            except subprocess.TimeoutExpired:
                pass
        self.kill()

    def __enter__(self) -> "Server":
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
