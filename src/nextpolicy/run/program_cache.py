"""Programs kept on disk between starts, in files that are read only if they are whole and ours.

A compiled program runs as it stands in its file, and JAX's reader of traced ones does not expect damage: a flipped bit
can change results, crash or hang. So every file carries a digest of its content and of the name it is for, checked
before JAX sees a byte, and folder and files must belong to the user and be writable by nobody else. JAX's own
compilation cache goes through the same files in our default folder; in a folder of the user's own it is left alone.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import stat
import sys
import tempfile
from pathlib import Path
from typing import Any

import jax

_MAGIC = "nextpolicy program 1"
_told: set[Path] = set()  # folders of which the user was told


def default_cache() -> Path:
    """Where programs are kept unless `jax_compilation_cache_dir` says otherwise."""
    return Path.home() / ".cache" / "nextpolicy" / "xla"


def enable_cache() -> None:
    """Keep compiled programs on disk, unless the caller has said where, how much or not to."""
    if _setting("cache_dir") is not None or _setting("cache_max_size") != -1:
        return
    try:
        folder = default_cache()
    except RuntimeError:  # no home
        return
    if not (usable(folder.parent) and usable(folder) and _hand_to_jax(folder)):
        return
    jax.config.update("jax_compilation_cache_dir", str(folder))
    # Small programs too: making a Brax model takes fifty of them.
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    # XLA's own files for GPUs lie beside them without a checksum, and a program that is kept does not need them.
    jax.config.update("jax_persistent_cache_enable_xla_caches", "none")


def _setting(name: str) -> Any:
    return jax.config.values[f"jax_compilation_{name}"]


def usable(folder: Path) -> bool:
    """Whether a folder, made if there is none, may hold programs; if not, the user is told once."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        fault = _fault(folder, stat.S_ISDIR, "a folder")
    except OSError as error:
        fault = f"expected a folder that can be made, got {error.strerror}"
    if fault:
        _tell(folder, f"{fault}; programs are not kept until it is removed, or mended by chmod 700")
    return not fault


def read(path: Path) -> bytes | None:
    """What was written to `path`; None if there is nothing, or nothing that is whole and ours."""
    try:
        if fault := _fault(path, stat.S_ISREG, "a regular file"):
            _tell(path.parent, f"{path.name}: {fault}; it is replaced")
            return None
        data = path.read_bytes()
    except OSError:
        return None
    content = data[len(_sealed(path.name, b"")) :]
    return content if data == _sealed(path.name, content) else None


def write(path: Path, content: bytes) -> None:
    """Whole or not at all; a disk that takes nothing costs the next start its time, and nothing else."""
    with contextlib.suppress(OSError):
        handle, part = tempfile.mkstemp(dir=path.parent, prefix=".", suffix=".part")  # mode 0600
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(_sealed(path.name, content))
            os.replace(part, path)
        finally:
            Path(part).unlink(missing_ok=True)


def _sealed(name: str, content: bytes) -> bytes:
    digest = hashlib.blake2b(f"{name}\n".encode() + content).hexdigest()
    return f"{_MAGIC}\n{name}\n{digest}\n".encode() + content


def _fault(path: Path, right_kind: Any, kind: str) -> str | None:
    """What speaks against using a file or folder, in the words of an error."""
    found = path.lstat()
    if not right_kind(found.st_mode):
        return f"expected {kind}, got {'a link' if stat.S_ISLNK(found.st_mode) else 'something else'}"
    if found.st_uid != os.geteuid():
        return f"expected {kind} of yours, got one of user {found.st_uid}"
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return f"expected {kind} that only you may write, got mode {stat.S_IMODE(found.st_mode):o}"
    return None


def _tell(folder: Path, what: str) -> None:
    if folder not in _told:
        _told.add(folder)
        print(f"nextpolicy: program cache {folder}: {what}", file=sys.stderr, flush=True)


class _CheckedFiles:
    """What JAX's cache does with its files, by `read` and `write`."""

    def __init__(self, folder: Path) -> None:
        self._path = folder

    def get(self, key: str) -> bytes | None:
        return read(self._path / f"{key}-cache")

    def put(self, key: str, value: bytes) -> None:
        write(self._path / f"{key}-cache", value)


def _hand_to_jax(folder: Path) -> bool:
    """Have JAX keep its files in `folder` as `_CheckedFiles`: compressed by zstandard, its own have no checksum.

    JAX has no public place for this; where a later JAX has no such function either, nothing is kept.
    """
    from jax._src import compilation_cache

    usual: Any = getattr(compilation_cache, "get_file_cache", None)
    usual = getattr(usual, "__wrapped__", usual)  # not once more around our own
    if usual is None:
        _tell(folder, f"expected a JAX whose cache can be checked, got {jax.__version__}; programs are not kept")
        return False

    @functools.wraps(usual)
    def choose(path: str) -> Any:
        return (_CheckedFiles(folder), path) if path == str(folder) else usual(path)

    compilation_cache.get_file_cache = choose
    return True
