# SPDX-License-Identifier: Apache-2.0
"""
Connections to a daemon. client.h has the contract of each call; the docstrings here only describe what Python adds.
"""
import errno
from types import TracebackType
from typing import Any, Self

from ._native import ffi, lib
from .errors import Error, check
from .handle import Handle
from .model import Model
from .session import Session
from .text import c_text


def version() -> str:
    """The version of the C library."""
    return ffi.string(lib.skv_version()).decode()


class Client:
    """
    A connection to a daemon. Threads may share it: calls on one session exclude each other.

    socket: the daemon's; None: $SPARSEKV_SOCKET, or else the system's
    Raises Error: ENOENT or ECONNREFUSED if no daemon listens, EACCES, EPROTO, ETIMEDOUT.

    As a context manager it closes the connection at the end of the block, with everything that was opened on it.
    Named sequences stay in the daemon at their last commit; others are freed.
    """

    def __init__(self, socket: str | None = None):
        ret = ffi.new("struct skv_client **")
        self._handle = Handle()
        try:
            check(lib.skv_connect(ret, c_text("socket", socket) if socket else ffi.NULL))
        except Error as e:
            if e.errno in (errno.ENOENT, errno.ECONNREFUSED):
                e.strerror = f"{e.strerror}; `systemctl start sparsekvd` starts the system's daemon, sparsekv.private() one of your own"
            raise
        self._handle.c = ret[0]

    @property
    def closed(self) -> bool:
        return self._handle.c is None

    def _live(self) -> Any:
        if self._handle.c is None:
            raise ValueError("the client is closed")
        return self._handle.c

    def open(self, model: Model, policy: str = "full") -> Session:
        """Opens a session: one model, and the default policy of its sequences ("name?key=value&...")."""
        c_model, kept = model.to_c()
        ret = ffi.new("struct skv_session **")
        check(lib.skv_open(self._live(), c_model, c_text("policy", policy), ret))
        del kept
        return Session(self, model, Handle(ret[0], self._handle))

    def set_timeout(self, seconds: float) -> None:
        """Sets how long a call may wait for the daemon (default 5 s; 0: not at all)."""
        lib.skv_set_timeout(self._live(), round(seconds * 1000))

    def set_threads(self, n: int) -> None:
        """Sets the number of threads of the library's host kernels, from the next step on; 0: the default."""
        check(lib.skv_set_threads(self._live(), n))

    def close(self) -> None:
        """Closes the connection; a second call does nothing."""
        c = self._handle.close()
        if c is not None:
            lib.skv_disconnect(c)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, where: TracebackType | None) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()
