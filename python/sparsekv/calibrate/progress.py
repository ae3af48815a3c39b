# SPDX-License-Identifier: Apache-2.0
"""
Shows the progress of work on stderr, and ends the work on a signal.

On a terminal it is one line, drawn at most ten times a second and erased when the work ends. Otherwise it prints a
line from time to time, so that a log shows the progress of a long run; a run of a few seconds prints none.
"""
import shutil
import signal
import sys
import time
from types import FrameType
from typing import TextIO

BAR = 24

# When stderr is no terminal: least seconds between lines; seconds after which a line is printed in any case; least
# progress between lines.
LINE_SECONDS = 5.0
LINE_AT_LEAST = 60.0
LINE_SHARE = 0.05


class Interrupted(Exception):
    """A signal was received; what was measured so far is written."""


class Stop:
    """
    The first SIGINT or SIGTERM raises Interrupted at the next step of the work. The second ends the program at once.
    """

    def __init__(self) -> None:
        self.signal = 0

    def install(self) -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._on_signal)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self.signal = number
        for each in (signal.SIGINT, signal.SIGTERM):
            signal.signal(each, signal.SIG_DFL)

    def check(self) -> None:
        if self.signal:
            raise Interrupted(signal.Signals(self.signal).name)


class Progress:
    """
    Draws the progress.

    total: units of work
    stop: checked by add(), which raises Interrupted
    quiet: draw nothing
    """

    def __init__(self, total: float, stop: Stop | None = None, quiet: bool = False, to: TextIO = sys.stderr):
        self.total, self.done = max(total, 1.0), 0.0
        self._stop, self._on, self._to = stop, not quiet, to
        self._terminal = to.isatty()
        self._begun = time.monotonic()
        self._drawn = 0.0 if self._terminal else self._begun
        self._shown = 0.0  # the share drawn last

    def add(self, units: float, label: str) -> None:
        """Adds `units` to the work done; `label` names the work. Raises Interrupted."""
        self.show(self.done + units, label)
        if self._stop is not None:
            self._stop.check()

    def show(self, done: float, label: str) -> None:
        self.done = done
        now, share = time.monotonic(), min(max(done / self.total, 0.0), 1.0)
        if not self._on or not self._due(now, share):
            return
        self._drawn, self._shown = now, share
        left = (now - self._begun) * (1 - share) / share if share > 0.01 else None
        time_left = "" if left is None else f"{int(left) // 60}:{int(left) % 60:02d} left  "
        full = int(share * BAR)
        line = f"[{'#' * full}{'.' * (BAR - full)}] {100 * share:3.0f} %  {time_left}{label}"
        if self._terminal:  # \033[K erases the rest of a longer earlier line; a line that wraps could not be erased
            self._to.write(f"\r{line[: shutil.get_terminal_size().columns - 1]}\033[K")
        else:
            self._to.write(line + "\n")
        self._to.flush()

    def _due(self, now: float, share: float) -> bool:
        since = now - self._drawn
        if self._terminal:
            return since >= 0.1
        return since >= LINE_AT_LEAST or (since >= LINE_SECONDS and share - self._shown >= LINE_SHARE)

    def end(self) -> None:
        if self._on and self._terminal and self._drawn > 0:
            self._to.write("\r\033[K")
            self._to.flush()
        self._on = False
