# SPDX-License-Identifier: Apache-2.0
"""The package's annotations are correct: mypy in strict mode."""
import importlib.util
import os
import subprocess
import sys
from pathlib import Path


def test_annotations():
    root = Path(__file__).resolve().parents[1]
    files = sorted(map(str, (root / "sparsekv").rglob("*.py")))
    if importlib.util.find_spec("vllm") is None:  # its classes are unknown
        files = [file for file in files if "/vllm/" not in file]
    # mypy needs a minute to read the types of torch and vLLM
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"), "sparsekv/mypy")
    run = subprocess.run([sys.executable, "-m", "mypy", f"--cache-dir={cache}", *files], cwd=root, capture_output=True, text=True, timeout=600)
    assert run.returncode == 0, run.stdout + run.stderr
