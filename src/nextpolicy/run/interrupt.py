"""Turn ctrl-C, SIGTERM and SIGHUP into one exception, so that training can shut down cleanly."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

_waiting: list[int] | None = None  # signals received while deferred; None if signals are not deferred
_came = 0  # the last signal raised; Python discards exceptions raised in callbacks of its garbage collector
_how_to_continue = ""


class Stopped(KeyboardInterrupt):
    """A signal stopped the work. The message is one line that says how to continue."""

    def __init__(self, text: str = "stopped", signum: int = signal.SIGINT) -> None:
        super().__init__(text)
        self.signum = signum


@contextlib.contextmanager
def raised(how_to_continue: str) -> Iterator[None]:
    """Raise `Stopped` on these signals. If a second signal ends the process, it prints `how_to_continue`.

    Signals that the caller handles or ignores (as under nohup) are left unchanged. Python allows signal handlers only
    in the main thread; in other threads, this context does nothing.
    """
    global _came, _how_to_continue
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    _came, _how_to_continue, unraisable = 0, how_to_continue, sys.unraisablehook
    sys.unraisablehook = ours_alone = lambda lost: None if isinstance(lost.exc_value, Stopped) else unraisable(lost)
    usual = {s: signal.getsignal(s) for s in SIGNALS}
    ours = [s for s, handler in usual.items() if handler in (signal.SIG_DFL, signal.default_int_handler)]
    for signum in ours:
        signal.signal(signum, _note)
    try:
        yield
        _how_to_continue = ""  # kept after `Stopped`: a second signal may arrive during shutdown
    finally:
        if sys.unraisablehook is ours_alone:
            sys.unraisablehook = unraisable
        for signum in ours:
            signal.signal(signum, usual[signum])


def _note(signum: int, _: FrameType | None) -> None:
    global _came
    if _waiting is not None and not _waiting:
        _waiting.append(signum)
        return
    _came = signum
    raise Stopped(signum=signum)


def check() -> None:
    """Raise `Stopped` again if Python has discarded it."""
    if _came:
        raise Stopped(signum=_came)


@contextlib.contextmanager
def deferred() -> Iterator[None]:
    """Delay a signal to the end of this context, so that a save that has begun is not lost.

    A second signal is raised immediately. Signals are delayed only if this module handles them.
    """
    global _waiting
    if _waiting is not None or threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    _waiting = came
    try:
        yield
    finally:
        _waiting = None
    if came:
        raise Stopped(signum=came[0])


def exit_on_second_signal() -> None:
    """For the command line: the first signal raises `Stopped`, the second ends the process without a traceback."""
    came = []

    def handle(signum: int, frame: FrameType | None) -> None:
        came.append(signum)
        if len(came) == 1:
            _note(signum, frame)
            return
        for child in multiprocessing.active_children():
            child.kill()
        last = f"; {_how_to_continue}" if _how_to_continue else ""
        print(f"nextpolicy: terminated{last}", file=sys.stderr, flush=True)
        os._exit(128 + signum)

    for signum in SIGNALS:
        if signal.getsignal(signum) in (signal.SIG_DFL, signal.default_int_handler):
            signal.signal(signum, handle)
