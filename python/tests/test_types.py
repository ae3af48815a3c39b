# SPDX-License-Identifier: Apache-2.0
"""The package's annotations hold: mypy, strict."""
import subprocess
import sys
from pathlib import Path


def test_annotations():
    root = Path(__file__).resolve().parents[1]
    files = sorted(map(str, (root / "sparsekv").rglob("*.py")))
    run = subprocess.run([sys.executable, "-m", "mypy", *files], cwd=root, capture_output=True, text=True, timeout=600)
    assert run.returncode == 0, run.stdout + run.stderr
