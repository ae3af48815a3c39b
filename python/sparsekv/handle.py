# SPDX-License-Identifier: Apache-2.0
"""C objects of the library, each of which is freed with the one that it was opened on."""
from typing import Any, Self


class Handle:
    """
    A C object; `c` is None once it is closed. Closing it closes the handles of what was opened on it, too. These are
    strong references: when the garbage collector takes a session and its sequences at once, weak ones are gone already.
    """

    __slots__ = ("_opened", "_parent", "c")

    def __init__(self, c: Any = None, parent: "Handle | None" = None):
        self.c = c
        self._parent = parent
        self._opened: set[Self] = set()
        if parent is not None:
            parent._opened.add(self)

    def close(self) -> Any:
        """Returns the C object for its owner to free; None: it was closed before."""
        for handle in list(self._opened):
            handle.close()
        if self._parent is not None:
            self._parent._opened.discard(self)
        c, self.c, self._parent = self.c, None, None
        return c
