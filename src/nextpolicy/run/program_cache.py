"""Cache of programs on disk. A file is read only if it is intact and only the user can write to it.

JAX does not verify the programs that it reads from a file: a flipped bit can change results, crash or hang. Every file
therefore contains a digest of its name and content, which is verified before JAX reads it. The folder and its files
must be owned by the user and not be writable by anyone else. In the default folder, JAX's own compilation cache uses
the same format; a cache folder set by the user is left unchanged.
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
_told: set[Path] = set()  # folders the user has been warned about


def default_cache() -> Path:
    """The cache folder if `jax_compilation_cache_dir` is not set."""
    return Path.home() / ".cache" / "nextpolicy" / "xla"


def enable_cache() -> None:
    """Cache compiled programs on disk, unless the caller has configured JAX's cache."""
    if _setting("cache_dir") is not None or _setting("cache_max_size") != -1:
        return
    try:
        folder = default_cache()
    except RuntimeError:  # no home directory
        return
    if not (usable(folder.parent) and usable(folder) and _hand_to_jax(folder)):
        return
    jax.config.update("jax_compilation_cache_dir", str(folder))
    # Cache small programs too: building a Brax model compiles fifty of them.
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    # XLA's own GPU caches have no checksum, and a cached program does not need them.
    jax.config.update("jax_persistent_cache_enable_xla_caches", "none")


def _setting(name: str) -> Any:
    return jax.config.values[f"jax_compilation_{name}"]


def usable(folder: Path) -> bool:
    """Create the folder if necessary and return whether it is safe to use. If not, warn once."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        fault = _fault(folder, stat.S_ISDIR, "a folder")
    except OSError as error:
        fault = f"expected a folder that can be created, got {error.strerror}"
    if fault:
        _tell(folder, f"{fault}; programs are not cached until you remove it or run chmod 700 on it")
    return not fault


def read(path: Path) -> bytes | None:
    """The content written to `path`; None if it is missing, damaged or unsafe."""
    try:
        if fault := _fault(path, stat.S_ISREG, "a regular file"):
            _tell(path.parent, f"{path.name}: {fault}; it will be replaced")
            return None
        data = path.read_bytes()
    except OSError:
        return None
    content = data[len(_sealed(path.name, b"")) :]
    return content if data == _sealed(path.name, content) else None


def write(path: Path, content: bytes) -> None:
    """Write a file atomically. On an error nothing is written, and the next start compiles again."""
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
    """Why a file or folder is unsafe, as `expected X, got Y`; None if it is safe."""
    found = path.lstat()
    if not right_kind(found.st_mode):
        return f"expected {kind}, got {'a link' if stat.S_ISLNK(found.st_mode) else 'something else'}"
    if found.st_uid != os.geteuid():
        return f"expected {kind} owned by you, got one owned by user {found.st_uid}"
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return f"expected {kind} that only you can write to, got mode {stat.S_IMODE(found.st_mode):o}"
    return None


def _tell(folder: Path, what: str) -> None:
    if folder not in _told:
        _told.add(folder)
        print(f"nextpolicy: program cache {folder}: {what}", file=sys.stderr, flush=True)


class _CheckedFiles:
    """File access of JAX's cache, through `read` and `write`."""

    def __init__(self, folder: Path) -> None:
        self._path = folder

    def get(self, key: str) -> bytes | None:
        return read(self._path / f"{key}-cache")

    def put(self, key: str, value: bytes) -> None:
        write(self._path / f"{key}-cache", value)


def _hand_to_jax(folder: Path) -> bool:
    """Make JAX's cache use `_CheckedFiles` in `folder`: compressed by zstandard, its own files have no checksum.

    JAX has no public API for this. Returns False if a later JAX does not have the private function either.
    """
    from jax._src import compilation_cache

    usual: Any = getattr(compilation_cache, "get_file_cache", None)
    usual = getattr(usual, "__wrapped__", usual)  # do not wrap our own function again
    if usual is None:
        _tell(
            folder,
            f"expected JAX with a cache that can be verified, got {jax.__version__}; programs are not cached",
        )
        return False

    @functools.wraps(usual)
    def choose(path: str) -> Any:
        return (_CheckedFiles(folder), path) if path == str(folder) else usual(path)

    compilation_cache.get_file_cache = choose
    return True
