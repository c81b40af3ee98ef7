"""Ctrl-C, SIGTERM and SIGHUP as one exception that training can end on in order."""

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

_waiting: list[int] | None = None  # signals that came while they were deferred; None when they are not
_came = 0  # a signal that was raised; Python drops what is raised inside callbacks of its garbage collector
_how_to_continue = ""


class Stopped(KeyboardInterrupt):
    """A signal ended the work in order; its text is one line that says how to go on."""

    def __init__(self, text: str = "stopped", signum: int = signal.SIGINT) -> None:
        super().__init__(text)
        self.signum = signum


@contextlib.contextmanager
def raised(how_to_continue: str) -> Iterator[None]:
    """Raise `Stopped` on the three signals meanwhile; `how_to_continue` is the last line of a process ended at once.

    Handlers of the caller's own, and signals that are ignored (as under nohup), are left alone. Python allows
    handlers in the main thread only.
    """
    global _came, _how_to_continue
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    _came, _how_to_continue, unraisable = 0, how_to_continue, sys.unraisablehook
    sys.unraisablehook = lambda lost: None if isinstance(lost.exc_value, Stopped) else unraisable(lost)
    usual = {s: signal.getsignal(s) for s in SIGNALS}
    ours = [s for s, handler in usual.items() if handler in (signal.SIG_DFL, signal.default_int_handler)]
    for signum in ours:
        signal.signal(signum, _note)
    try:
        yield
        _how_to_continue = ""  # after `Stopped` the line stays: a second signal may come while the process ends
    finally:
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
    """Raise again what was raised and lost."""
    if _came:
        raise Stopped(signum=_came)


@contextlib.contextmanager
def deferred() -> Iterator[None]:
    """Raise a signal that comes meanwhile at the end: Orbax writes in threads of its own, which would fail one by one.

    A second one is raised at once. Outside `raised` nothing is deferred.
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
    """For a program: the first signal is raised as an exception, the second ends the process without a traceback."""
    came = []

    def handle(signum: int, frame: FrameType | None) -> None:
        came.append(signum)
        if len(came) == 1:
            _note(signum, frame)
            return
        for child in multiprocessing.active_children():
            child.kill()
        last = f"; {_how_to_continue}" if _how_to_continue else ""
        print(f"nextpolicy: ended at once{last}", file=sys.stderr, flush=True)
        os._exit(128 + signum)

    for signum in SIGNALS:
        if signal.getsignal(signum) in (signal.SIG_DFL, signal.default_int_handler):
            signal.signal(signum, handle)
