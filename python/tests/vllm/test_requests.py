# SPDX-License-Identifier: Apache-2.0
"""
Requests through vLLM's engine leave nothing behind: runs many_requests.py in a process of its own.

$SPARSEKV_REQUESTS: number of requests (default 2,400, because the engine's memory grows up to about 1,000;
`SPARSEKV_REQUESTS=10000` takes minutes).
"""
import os
import subprocess
import sys
from pathlib import Path

import pytest

REQUESTS = os.environ.get("SPARSEKV_REQUESTS", "2400")


@pytest.mark.timeout(3600)
def test_requests_leave_nothing():
    program = Path(__file__).with_name("many_requests.py")
    run = subprocess.run([sys.executable, str(program), REQUESTS], capture_output=True, text=True, check=False)
    print(*(line for line in run.stdout.splitlines() if line.startswith("after")), sep="\n")
    assert run.returncode == 0, run.stderr[-4000:]
