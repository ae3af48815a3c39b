# SPDX-License-Identifier: Apache-2.0
"""Resources of processes, for tests that check that requests leave nothing behind."""
import os
import shutil
import subprocess
from pathlib import Path

import sparsekv
from sparsekv.private import find_daemon


def of(pid: int | str) -> tuple[int, float]:
    """Returns the number of descriptors, and the resident memory in MiB."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    rss = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS"))
    return len(os.listdir(f"/proc/{pid}/fd")), rss / 1024


def daemon_of(client: sparsekv.PrivateClient) -> str:
    """Returns the process id of a private daemon."""
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            continue
        if client.socket.encode() in command and b"--private=" not in command and b"sparsekvd" in command:
            return pid
    raise AssertionError(f"no daemon of {client.socket}")


def control(client: sparsekv.PrivateClient, *args: str) -> str:
    """Runs sparsekvctl from the daemon's build directory or from PATH, and returns its output."""
    near = find_daemon().parent / "ctl/sparsekvctl"
    command = str(near) if near.exists() else shutil.which("sparsekvctl")
    assert command is not None, f"sparsekvctl is neither {near} nor in PATH"
    return subprocess.run([command, "--socket", client.socket, *args], capture_output=True, text=True, check=False).stdout


def flat(figures: list[tuple[int, float, int, float, int]]) -> None:
    """
    Fails unless the figures stay constant. Each has descriptors and MiB of this process, the same for the daemon, and
    the pool's free pages.

    The first figure is from before any request. The middle one is compared with the last, because allocators and
    caches fill up until then.
    """
    first, last = figures[len(figures) // 2], figures[-1]
    assert last[0] == first[0] and last[2] == first[2], "descriptors"
    assert last[4] == first[4], "pages"
    assert last[3] <= first[3] * 1.02 + 1, "the daemon's memory"
    assert last[1] <= first[1] * 1.02 + 8, "this process's memory"
