"""A thread that drives environments, so that the caller can do other work meanwhile and notice one that hangs."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from typing import Any

from nextpolicy.envs.base import HostEnvError

SECONDS_PER_ENV = 1.0  # added to the timeout of start and reset: environments are made one after another
MOST_SECONDS = 1e9  # the operating system refuses to wait for more than about nine times this


class Driver:
    """One thread that runs one task at a time, for a caller that waits with a timeout.

    It is a daemon thread: a step that hangs cannot be stopped, but does not keep the process alive.
    """

    def __init__(self, env_id: str, timeout: float) -> None:
        self.env_id, self.timeout = env_id, timeout
        self.idle = True
        self.finished_at = 0.0  # `time.perf_counter()` at the end of the last task that was waited for
        self._work: queue.SimpleQueue = queue.SimpleQueue()
        self._done: queue.SimpleQueue = queue.SimpleQueue()
        threading.Thread(target=_serve, args=(self._work, self._done), daemon=True, name=f"env {env_id}").start()

    def submit(self, work: Callable[[], Any]) -> None:
        self.idle = False
        self._work.put(work)

    def wait(self, what: str, timeout: float | None = None) -> Any:
        limit = self.timeout if timeout is None else timeout
        try:
            value, error, self.finished_at = self._done.get(timeout=limit)
        except queue.Empty:
            raise HostEnvError(f"{self.env_id}: {what} did not return within worker_timeout, {limit:g} s") from None
        self.idle = True
        if error is None:
            return value
        if isinstance(error, (EOFError, ConnectionError)):
            hint = "; a script needs `if __name__ == '__main__':` around its main part" if what == "start" else ""
            raise HostEnvError(f"{self.env_id}: a worker process died during {what}{hint}") from error
        raise HostEnvError(f"{self.env_id}: {what} raised {type(error).__name__}: {line_of(error)}") from error

    def call(self, what: str, work: Callable[[], Any], timeout: float | None = None) -> Any:
        self.submit(work)
        return self.wait(what, timeout)

    def stop(self) -> None:
        self._work.put(None)


def _serve(work: queue.SimpleQueue, done: queue.SimpleQueue) -> None:
    result: tuple[object, BaseException | None, float]
    while (task := work.get()) is not None:
        try:
            result = (task(), None, time.perf_counter())
        except BaseException as error:
            result = (None, error, time.perf_counter())
        done.put(result)
        del task, result  # they may hold the last reference to an environment


def drive(env_id: str, timeout: float, work: Callable[[], Any]) -> Any:
    """Run `work` in a thread and return its result; raises after `timeout` seconds."""
    thread = Driver(env_id, timeout)
    try:
        return thread.call("start", work)
    finally:
        thread.stop()


def check_timeout(env_id: str, seconds: float) -> float:
    """Return `seconds`, or raise if it is not a valid timeout."""
    if not 0 < seconds <= MOST_SECONDS:
        raise ValueError(f"{env_id} worker_timeout: expected seconds in (0, {MOST_SECONDS:g}], got {seconds:g}")
    return seconds


def line_of(error: BaseException) -> str:
    """The first line of an error's message."""
    return (str(error).strip().splitlines() or [""])[0]
