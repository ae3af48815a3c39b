# SPDX-License-Identifier: Apache-2.0
"""A private daemon for one program: for notebooks, examples and tests. It needs no root and no systemd."""
import atexit
from pathlib import Path
from typing import Any

from ._native import ffi, lib
from .client import Client
from .errors import check_engine
from .handle import Handle
from .text import c_text


def find_daemon() -> Path:
    """The daemon that private() starts (engine/private-daemon.h says where it is looked for). Raises Error."""
    path, error = ffi.new("char[]", 4096), ffi.new("struct eng_error *")
    check_engine(lib.eng_private_find(path, error), error)
    return Path(ffi.string(path).decode())


def library_folder() -> Path | None:
    """The folder of the C library that the extension has loaded."""
    with open("/proc/self/maps", encoding="utf-8") as maps:
        for line in maps:
            if "libsparsekv-client.so" in line:
                return Path(line.split(maxsplit=5)[5].strip()).parent
    return None


class PrivateClient(Client):
    """
    A client of its own private daemon, which ends with close() or with the program. Other processes can connect to
    `socket`.
    """

    _daemon: Any

    def __init__(self, pool_bytes: int | None, args: tuple[str, ...]):
        self._handle, self._daemon = Handle(), None
        daemon, client, error = ffi.new("struct eng_private **"), ffi.new("struct skv_client **"), ffi.new("struct eng_error *")
        more = [ffi.new("char[]", c_text("argument", arg)) for arg in args]
        c_more = ffi.new("const char *[]", [*more, ffi.NULL])
        check_engine(lib.eng_private_start(pool_bytes or 0, c_more, daemon, client, error), error)
        self._handle.c, self._daemon = client[0], daemon[0]
        self.socket = ffi.string(lib.eng_private_socket(self._daemon)).decode()
        self.directory = str(Path(self.socket).parent)
        atexit.register(self.close)

    def close(self) -> None:
        super().close()
        daemon, self._daemon = self._daemon, None
        if daemon is not None:
            lib.eng_private_stop(daemon)
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
