"""Act at every change that this process makes to the files below a folder: copy the folder, or let the change fail.

A change is a call that creates, writes, renames or deletes; a write is stopped in the middle, with half of the bytes in
the file. What C++ libraries write themselves is not seen, only the Python calls around it.
"""

from __future__ import annotations

import builtins
import contextlib
import errno
import io
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

NEEDS_SPACE = ("open", "write", "mkdir", "fsync")  # what a full disk does not allow


class Change(NamedTuple):
    """A change that is about to be made; of a write, half is done."""

    number: int
    call: str
    path: str


Act = Callable[[Change], None]


class _Changes:
    """Counts changes below `root` and calls `act` before each, one at a time."""

    def __init__(self, root: Path, act: Act) -> None:
        self.root, self.act = str(root), act
        self.count, self.lock, self.acting = 0, threading.RLock(), False

    def note(self, call: str, path: Any, dir_fd: int | None = None) -> None:
        where = _absolute(path, dir_fd)
        if not where.startswith(self.root):
            return
        with self.lock:
            if self.acting:  # what `act` itself does
                return
            self.acting, self.count = True, self.count + 1
            try:
                self.act(Change(self.count - 1, call, where[len(self.root) + 1 :]))
            finally:
                self.acting = False


def _absolute(path: Any, dir_fd: int | None) -> str:
    if isinstance(path, int):
        return os.readlink(f"/proc/self/fd/{path}")
    name = os.fsdecode(path)
    return os.path.join(os.readlink(f"/proc/self/fd/{dir_fd}") if dir_fd is not None else os.getcwd(), name)


def _noted(changes: _Changes, call: str, usual: Callable[..., Any]) -> Callable[..., Any]:
    def changed(path: Any, *rest: Any, **options: Any) -> Any:
        creates = call != "open" or (rest[0] if rest else options["flags"]) & (os.O_CREAT | os.O_TRUNC)
        if creates:
            changes.note(call, path, options.get("dir_fd", options.get("src_dir_fd")))
        return usual(path, *rest, **options)

    return changed


def _open_noted(changes: _Changes, usual: Callable[..., Any]) -> Callable[..., Any]:
    def opened(path: Any, mode: str = "r", *rest: Any, **options: Any) -> Any:
        writes = isinstance(path, str | bytes | os.PathLike) and set(mode) & set("wax")
        if not writes:
            return usual(path, mode, *rest, **options)
        changes.note("open", path)
        file = usual(path, mode, *rest, **options)
        write = file.write

        def in_two_halves(data: Any) -> int:
            half = len(data) // 2
            write(data[:half])
            file.flush()
            changes.note("write", path)
            write(data[half:])
            return len(data)

        file.write = in_two_halves
        return file

    return opened


@contextlib.contextmanager
def watched(root: Path, act: Act) -> Iterator[_Changes]:
    """Call `act` before every change below `root`."""
    changes = _Changes(root, act)
    with pytest.MonkeyPatch.context() as patch:
        for name in ("replace", "rename", "unlink", "remove", "mkdir", "rmdir", "fsync", "symlink", "open"):
            patch.setattr(os, name, _noted(changes, name, getattr(os, name)))
        opened = _open_noted(changes, builtins.open)
        patch.setattr(builtins, "open", opened)
        patch.setattr(io, "open", opened)
        yield changes


def copier(root: Path, copies: Path) -> Act:
    """Copies the folder before each change: what a kill at this moment leaves, `copies/<number>`."""

    def act(change: Change) -> None:
        copy_tree(root, copies / f"{change.number:05d}")

    return act


def copy_tree(source: Path, target: Path) -> None:
    """Copy a folder that a library's threads may be writing to."""
    target.mkdir(parents=True)
    with contextlib.suppress(shutil.Error, FileNotFoundError):  # gone since they were listed
        shutil.copytree(source, target, dirs_exist_ok=True, symlinks=True)


def failing(number: int) -> Act:
    """An input/output error at one change, as of a bad cable."""

    def act(change: Change) -> None:
        if change.number == number:
            raise OSError(errno.EIO, os.strerror(errno.EIO), change.path)

    return act


def full_from(number: int) -> Act:
    """A disk that is full from one change on: nothing can be created or written, but renamed and deleted."""

    def act(change: Change) -> None:
        if change.number >= number and change.call in NEEDS_SPACE:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), change.path)

    return act
