"""A thread that drives environments: its caller can do other work meanwhile, and notices one that never returns."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from typing import Any

from nextpolicy.envs.base import HostEnvError

SECONDS_PER_ENV = 1.0  # more that starting and resetting may take: many environments are made one after another
MOST_SECONDS = 1e9  # a wait of more than about nine times this is refused by the operating system


class Driver:
    """One thread that does one thing at a time for a caller who will not wait for ever.

    It is a daemon: a step that hangs inside it cannot be stopped, but it does not keep the program alive.
    """

    def __init__(self, env_id: str, timeout: float) -> None:
        self.env_id, self.timeout = env_id, timeout
        self.idle = True
        self.finished_at = 0.0  # when the thread was done with what was waited for last, by `time.perf_counter`
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
            hint = "; a script needs `if __name__ == '__main__':` around what it does" if what == "start" else ""
            raise HostEnvError(f"{self.env_id}: a worker process died during {what}{hint}") from error
        raise HostEnvError(f"{self.env_id}: {what} raised {type(error).__name__}: {line_of(error)}") from error

    def call(self, what: str, work: Callable[[], Any], timeout: float | None = None) -> Any:
        self.submit(work)
        return self.wait(what, timeout)

    def stop(self) -> None:
        self._work.put(None)


def _serve(work: queue.SimpleQueue, done: queue.SimpleQueue) -> None:
    while (task := work.get()) is not None:
        try:
            result = (task(), None, time.perf_counter())
        except BaseException as error:
            result = (None, error, time.perf_counter())
        done.put(result)
        del task, result  # or an environment that was let go of would live until the next task


def drive(env_id: str, timeout: float, work: Callable[[], Any]) -> Any:
    """What `work` gives, if it does within `timeout` seconds."""
    thread = Driver(env_id, timeout)
    try:
        return thread.call("start", work)
    finally:
        thread.stop()


def check_timeout(env_id: str, seconds: float) -> float:
    """A time limit that something can be done in, and that can be waited for."""
    if not 0 < seconds <= MOST_SECONDS:
        raise ValueError(
            f"{env_id} worker_timeout: got {seconds:g}, takes a number of seconds above 0, at most {MOST_SECONDS:g}"
        )
    return seconds


def line_of(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [""])[0]
