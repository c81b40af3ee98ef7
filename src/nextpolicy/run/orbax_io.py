"""Orbax's checkpointer, with checks that it lacks and without its log output."""

from __future__ import annotations

import contextlib
import errno
import logging
import shutil
import tempfile
import threading
from collections.abc import Iterator
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
    usual, loggers = threading.excepthook, [logging.getLogger(name) for name in ("absl", "asyncio")]
    levels = [logger.level for logger in loggers]
    threading.excepthook = lambda _: None
    for logger in loggers:
        logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        threading.excepthook = usual
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


def ignore_lost_futures() -> None:
    """Suppress a second log of a failed save: Orbax leaves futures behind that log the error when collected."""
    logging.getLogger("asyncio").addFilter(_is_no_forgotten_future)


def _is_no_forgotten_future(record: logging.LogRecord) -> bool:
    return "exception was never retrieved" not in record.getMessage()
