# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the vLLM tests: a real model, prompts of mixed lengths, and the results of stock vLLM."""
import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("vllm", reason="needs vLLM: python/environment.sh makes an environment with it")

from server import SEED, TOKENS, Server  # noqa: E402

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="session")
def model() -> Path:
    """
    SmolLM2-135M-Instruct: $SPARSEKV_VLLM_MODEL, or the model that bench/real/model.py fetches (93 MB) or has fetched.
    """
    named = os.environ.get("SPARSEKV_VLLM_MODEL")
    if named:
        return Path(named)
    made = subprocess.run([sys.executable, str(ROOT / "bench/real/model.py")], capture_output=True, text=True, check=False)
    if made.returncode != 0:
        pytest.skip(f"no model: {made.stderr.strip().splitlines()[-1:]}")
    return Path(made.stdout.strip().splitlines()[-1])


@pytest.fixture(scope="session")
def prompts() -> list[str]:
    """16 pieces of prose, of 20 to 3,000 characters."""
    rng = random.Random(SEED)
    text = (ROOT / "models/prose.txt").read_text(encoding="utf-8")
    pieces = []
    for i in range(16):
        length = [20, 100, 300, 600, 1200, 3000][i % 6]
        at = rng.randrange(len(text) - length)
        pieces.append(text[at : at + length])
    return pieces


@pytest.fixture(scope="session")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("vllm")


@pytest.fixture(scope="session")
def stock(model: Path, prompts: list[str], logs: Path) -> dict[str, list[list[int]]]:
    """
    Token ids of stock vLLM: for all prompts at once, and for their beginnings with longer answers; and the prompts'
    ids. $SPARSEKV_VLLM_STOCK names a folder that caches them for repeated runs.
    """
    kept = Path(os.environ.get("SPARSEKV_VLLM_STOCK", logs)) / f"stock-{SEED}-{TOKENS}.json"
    if kept.exists():
        return json.loads(kept.read_text(encoding="utf-8"))
    with Server(model, logs / "stock.log") as server:
        mixed = server.together([(text, TOKENS) for text in prompts])
        short = server.together([(text[:400], 90) for text in prompts])
    found = {
        "mixed": [x["token_ids"] for x in mixed],
        "short": [x["token_ids"] for x in short],
        "prompts": [x["prompt_token_ids"] for x in mixed],
    }
    kept.write_text(json.dumps(found), encoding="utf-8")
    return found
