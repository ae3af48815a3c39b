# SPDX-License-Identifier: Apache-2.0
"""
Runs a private daemon while the program that started this process lives. private.py runs this file.

Standard input is a pipe from the program; it closes when the program ends in any way. The guardian then ends the
daemon and removes its directory. Arguments: the directory, the daemon, the daemon's arguments.
"""
import ctypes
import os
import select
import shutil
import signal
import subprocess
import sys

PR_SET_PDEATHSIG = 1
STOP_SECONDS = 3.0


def with_its_parent() -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def main() -> None:
    directory, daemon, *args = sys.argv[1:]
    clean = {k: v for k, v in os.environ.items() if k not in ("NOTIFY_SOCKET", "WATCHDOG_USEC", "LISTEN_FDS")}
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal's Ctrl-C must reach only the program
    with open(os.path.join(directory, "log"), "ab") as log:
        child = subprocess.Popen(
            [daemon, *args], stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=clean, preexec_fn=with_its_parent
        )
    gone = os.pidfd_open(child.pid)
    ready, _, _ = select.select([0, gone], [], [])
    if 0 not in ready:  # the daemon ended by itself: keep its log until the program has read it
        os.close(1)
        select.select([0], [], [])
    child.terminate()
    try:
        child.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()
    shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    main()
