"""Orbax's checkpointer, with checks that it lacks and without its log output."""

from __future__ import annotations

import contextlib
import errno
import logging
import shutil
import sys
import tempfile
import threading
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import jax

from nextpolicy.run.folder import RunError
from nextpolicy.types import PyTree

_WILDCARDS = frozenset("*?[")


def checkpointer() -> Any:
    """Orbax's `StandardCheckpointer`, without its messages below WARNING."""
    import orbax.checkpoint as ocp

    # Orbax logs every save at INFO through absl's logger, which would interrupt the progress bar.
    logger = logging.getLogger("absl")
    logger.setLevel(max(logger.level, logging.WARNING))
    return ocp.StandardCheckpointer()


@contextlib.contextmanager
def quiet_threads() -> Iterator[None]:
    """Suppress tracebacks of Orbax's threads, whose errors are raised in the main thread as well."""
    usual, loggers = (
        (threading.excepthook, sys.unraisablehook),
        [logging.getLogger(name) for name in ("absl", "asyncio")],
    )
    levels = [logger.level for logger in loggers]
    threading.excepthook = lambda _: None
    sys.unraisablehook = lambda _: None  # of threads that C++ starts
    for logger in loggers:
        logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        threading.excepthook, sys.unraisablehook = usual
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


@contextlib.contextmanager
def without_wildcards(folder: Path) -> Iterator[Path]:
    """A path to the folder without `*`, `?` and `[`: Orbax finds its files by glob patterns."""
    if not _WILDCARDS & set(str(folder)):
        yield folder
        return
    if jax.process_count() > 1:
        raise RunError(f"out: expected a path without * ? [ for a run over several processes, got {folder}")
    with tempfile.TemporaryDirectory() as temporary:
        link = Path(temporary) / "checkpoints"
        link.symlink_to(folder, target_is_directory=True)
        yield link


def check_room(folder: Path, state: PyTree) -> None:
    """Raise before a save if the disk is too full: Orbax would fail and log in each of its threads.

    Orbax writes the arrays twice, once per process and once merged, and about forty small files.
    """
    needed = 3 * sum(x.nbytes for x in jax.tree.leaves(state)) + (256 << 10)
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise OSError(errno.ENOSPC, f"no space left: expected {needed / 1e6:.1f} MB free, got {free / 1e6:.1f} MB")


def end_failed_save(before: Iterable[threading.Thread]) -> None:
    """End what a failed save leaves behind: threads that were not there `before`, and messages that come later.

    A thread of Orbax waits up to five minutes for one that has failed, and the process would wait for it at exit.
    """
    from orbax.checkpoint._src.futures import future

    _ignore_late_messages()
    for thread in set(threading.enumerate()) - set(before):
        waiting: Any = thread
        with contextlib.suppress(Exception):  # not one of Orbax's, or of a version with other private names
            waiting.cancel()
            future.set_signals(waiting._receive_signals, operation_id=waiting._operation_id)


def _ignore_late_messages() -> None:
    """Suppress further reports of a failed save: of futures that are collected, and of writes that end later."""
    warnings.filterwarnings("ignore", "coroutine .* was never awaited", RuntimeWarning)
    logging.getLogger("asyncio").addFilter(_is_no_forgotten_future)
    usual = sys.unraisablehook
    if getattr(usual, "__name__", "") == "_report_others":
        return

    def _report_others(lost: sys.UnraisableHookArgs) -> None:
        if "Event loop is closed" not in str(lost.exc_value):
            usual(lost)

    sys.unraisablehook = _report_others


def _is_no_forgotten_future(record: logging.LogRecord) -> bool:
    return "exception was never retrieved" not in record.getMessage()
