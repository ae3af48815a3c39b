# SPDX-License-Identifier: Apache-2.0
"""A private daemon for one program: for notebooks, examples and tests. It needs no root and no systemd."""
import atexit
import errno
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from .client import Client
from .errors import Error

START_SECONDS = 10.0


def find_daemon() -> Path:
    """
    Finds $SPARSEKVD, or the daemon in the build directory that the extension is linked to, or the one in PATH or in
    sbin.
    """
    named = os.environ.get("SPARSEKVD")
    if named:
        if not os.access(named, os.X_OK):
            raise Error(errno.ENOENT, f"SPARSEKVD={named}: not a program that can be run")
        return Path(named)
    build = library_folder()
    near = [build.parents[1] / "daemon/sparsekvd"] if build and len(build.parents) > 1 else []
    path = os.pathsep.join([os.environ.get("PATH", ""), "/usr/local/sbin", "/usr/sbin"])
    found = shutil.which("sparsekvd", path=path)
    for candidate in [*near, *([Path(found)] if found else [])]:
        if os.access(candidate, os.X_OK):
            return candidate
    raise Error(errno.ENOENT, "sparsekvd is neither in PATH nor beside the client library; SPARSEKVD can name it")


def library_folder() -> Path | None:
    """The folder of the C library that the extension has loaded."""
    with open("/proc/self/maps", encoding="utf-8") as maps:
        for line in maps:
            if "libsparsekv-client.so" in line:
                return Path(line.split(maxsplit=5)[5].strip()).parent
    return None


def arguments(daemon: Path, directory: str, pool_bytes: int | None, more: tuple[str, ...]) -> list[str]:
    pool = pool_bytes or os.sysconf("SC_PHYS_PAGES") // 2 * os.sysconf("SC_PAGESIZE")
    account = pool + pool // 4  # there is one account; its quota must not be reached before the pool's limit
    args = ["--config=/dev/null", "--log-level=warning", f"--socket={directory}/socket"]
    args += [f"--pool-bytes={pool}", f"--account-bytes={account}"]
    policies = daemon.parent / "../policies/.libs"
    if policies.is_dir():
        args.append(f"--policy-path={policies.resolve()}")
    return [*args, *more]


class PrivateClient(Client):
    """
    A client of its own private daemon, which ends with close() or with the program. Other processes can connect to
    `socket`.
    """

    def __init__(self, pool_bytes: int | None, args: tuple[str, ...]):
        daemon = find_daemon()
        self._c: Any = None
        self._guardian: Any = None
        self.directory = tempfile.mkdtemp(prefix="sparsekv-")
        self.socket = f"{self.directory}/socket"
        guardian = str(Path(__file__).with_name("guardian.py"))
        self._guardian = subprocess.Popen(
            [sys.executable, "-I", "-S", guardian, self.directory, str(daemon), *arguments(daemon, self.directory, pool_bytes, args)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        atexit.register(self.close)
        try:
            self._wait(daemon)
        except BaseException:
            self.close()
            raise

    def _wait(self, daemon: Path) -> None:
        until = time.monotonic() + START_SECONDS
        while True:
            try:
                super().__init__(self.socket)
                return
            except Error as e:
                # EACCES: bound, but not yet accessible
                if e.errno not in (errno.ENOENT, errno.ECONNREFUSED, errno.EACCES):
                    raise
                ended = bool(select.select([self._guardian.stdout], [], [], 0.005)[0])
                if ended or time.monotonic() > until:
                    what = "ended at once" if ended else f"does not listen after {START_SECONDS:.0f} s"
                    raise Error(errno.ECHILD, f"the private daemon {daemon} {what}: {self._last_words()}") from None

    def _last_words(self) -> str:
        try:
            lines = Path(self.directory, "log").read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:
            lines = []
        return lines[-1] if lines else "it said nothing"

    def close(self) -> None:
        super().close()
        guardian, self._guardian = self._guardian, None
        if guardian is not None:
            guardian.stdin.close()
            guardian.wait()
            guardian.stdout.close()
            atexit.unregister(self.close)


def private(pool_bytes: int | None = None, *args: str) -> PrivateClient:
    """
    Starts a daemon for this program alone and connects to it: `with sparsekv.private() as client: ...`.

    pool_bytes: most memory for its pages; None: half of the machine's
    args: further arguments of sparsekvd
    The daemon ends with close(), or when the program ends in any way. All its sequences are then lost.
    """
    return PrivateClient(pool_bytes, args)


_default: Client | None = None


def set_default(client: Client | None) -> None:
    """Sets the client that default() returns."""
    global _default
    _default = client


def default() -> Client:
    """
    Returns the process's connection: that of set_default(), or else one to $SPARSEKV_SOCKET or the system's daemon.
    """
    global _default
    if _default is None or _default.closed:
        _default = Client()
    return _default
