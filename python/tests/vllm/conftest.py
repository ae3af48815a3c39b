# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the vLLM tests: a real model, prompts of mixed lengths, and what vLLM as it is makes of them."""
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("vllm", reason="needs vLLM: python/vllm-env.sh makes an environment with it")

from server import Server  # noqa: E402

import sparsekv  # noqa: E402

SEED = int(os.environ.get("SKV_SEED", random.SystemRandom().randrange(1 << 32)))
ROOT = Path(__file__).resolve().parents[3]
TOKENS = 24


def pytest_report_header() -> str:
    return f"vLLM tests: SKV_SEED={SEED}, libsparsekv-client {sparsekv.version()}"


@pytest.fixture(scope="session")
def model() -> Path:
    """SmolLM2-135M-Instruct: $SPARSEKV_VLLM_MODEL, else what bench/real/model.py fetches (93 MB) or has fetched."""
    named = os.environ.get("SPARSEKV_VLLM_MODEL")
    if named:
        return Path(named)
    made = subprocess.run([sys.executable, str(ROOT / "bench/real/model.py")], capture_output=True, text=True, check=False)
    if made.returncode != 0:
        pytest.skip(f"no model: {made.stderr.strip().splitlines()[-1:]}")
    return Path(made.stdout.strip().splitlines()[-1])


@pytest.fixture(scope="session")
def prompts() -> list[str]:
    """16 pieces of the project's own prose, of 20 to 3,000 characters."""
    rng = random.Random(SEED)
    text = "\n".join((ROOT / name).read_text(encoding="utf-8") for name in ("README.md", "HACKING.md", "doc/design.md"))
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
    """Token ids of vLLM without us: of all prompts at once, and of the first ones with longer answers, each a prompt's ids too."""
    with Server(model, logs / "stock.log") as server:
        mixed = server.together([(text, TOKENS) for text in prompts])
        short = server.together([(text[:400], 90) for text in prompts])
    return {
        "mixed": [x["token_ids"] for x in mixed],
        "short": [x["token_ids"] for x in short],
        "prompts": [x["prompt_token_ids"] for x in mixed],
    }
