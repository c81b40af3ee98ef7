"""Checkpoints of the full state by Orbax, with a manifest that tells a whole one from a damaged one.

A checkpoint is `checkpoints/<rounds>/` and `checkpoints/<rounds>.json`. The manifest is written last, after the
checkpoint was read back, and holds the size and digest of every file: a save cut short, or a file damaged later, is
never loaded. Only arrays are read: loading executes no code.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import re
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from nextpolicy import runfiles
from nextpolicy.run import interrupt
from nextpolicy.run.folder import RunError
from nextpolicy.runfiles import manifest_path, write_manifest
from nextpolicy.types import PyTree

STATE_FORMAT = 2  # which arrays a state has; written into every manifest. Version 0.1 wrote none, which counts as 1
_LEFTOVER = re.compile(r"\d{8}(\.orbax-checkpoint-tmp.*)?")  # a checkpoint's folder, or Orbax's while it writes one
_WILDCARDS = frozenset("*?[")


class CheckpointError(RunError):
    """A checkpoint that could not be saved: one line."""


def save(folder: Path, rounds_done: int, state: PyTree, keep: int, about: Mapping[str, Any] | None = None) -> None:
    """Write the state after `rounds_done` rounds and drop all but the newest `keep` checkpoints.

    `about` goes into the manifest: the run's configuration and the records of its metrics parts.
    """
    path = (folder / f"{rounds_done:08d}").absolute()
    first = jax.process_index() == 0
    if first:
        _remove(path)  # an earlier save of this round that a kill cut short
    with interrupt.deferred():
        try:
            _check_room(folder, state)
            with _without_wildcards(path.parent) as place, _quiet_threads():
                with _checkpointer() as writer:
                    writer.save(place / path.name, _flat(state))
                _read_back(place, rounds_done, state)  # no manifest before that
            if first:
                files = {str(p.relative_to(path)): runfiles.record_file(p) for p in _files(path)}
                facts = {"rounds_done": rounds_done, "state_format": STATE_FORMAT, "files": files}
                write_manifest(manifest_path(folder, rounds_done), {**facts, **(about or {})})
        except (OSError, ValueError, RuntimeError) as error:
            # Orbax leaves futures behind that log the same error again when they are collected.
            logging.getLogger("asyncio").addFilter(_is_no_forgotten_future)
            if first:
                _remove(path)
                _clear_leftovers(folder)
            reason = "no space left on the disk" if "space left" in str(error) else _first_line(error)
            raise CheckpointError(
                f"checkpoint: round {rounds_done} could not be saved in {folder} ({reason})"
            ) from error
    if first:
        for old in list_rounds(folder)[:-keep]:
            _remove(folder / f"{old:08d}")


def _check_room(folder: Path, state: PyTree) -> None:
    """Raise before Orbax begins what the disk cannot hold: its threads fail one by one, and not quietly.

    It writes arrays twice, for each process and then merged, and some forty small files.
    """
    needed = 3 * sum(x.nbytes for x in jax.tree.leaves(state)) + (256 << 10)
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise OSError(errno.ENOSPC, f"no space left: expected {needed / 1e6:.1f} MB free, got {free / 1e6:.1f} MB")


def _is_no_forgotten_future(record: logging.LogRecord) -> bool:
    return "exception was never retrieved" not in record.getMessage()


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]


def _read_back(folder: Path, rounds_done: int, state: PyTree) -> None:
    """Raise unless every array can be read: all values of Orbax's database, or, if it is stored otherwise, by Orbax."""
    import tensorstore

    base = {"driver": "file", "path": f"{folder / f'{rounds_done:08d}'}/"}
    with contextlib.suppress(ValueError, NotImplementedError):
        store = tensorstore.KvStore.open({"driver": "ocdbt", "base": base}).result()
        keys = store.list().result()
        for value in [store.read(key) for key in keys]:
            value.result()
        if {_stored_name(n) for n in _names(state)[0]} <= {key.decode().partition("/")[0] for key in keys}:
            return
    restore(folder, rounds_done, state)


@contextlib.contextmanager
def _without_wildcards(folder: Path) -> Iterator[Path]:
    """The folder under a path without `*`, `?` and `[`: Orbax looks for its files by pattern and would miss them."""
    if not _WILDCARDS & set(str(folder)):
        yield folder
        return
    if jax.process_count() > 1:
        raise RunError(f"out: expected a path without * ? [ for a run over several processes, got {folder}")
    with tempfile.TemporaryDirectory() as temporary:
        link = Path(temporary) / "checkpoints"
        link.symlink_to(folder, target_is_directory=True)
        yield link


@contextlib.contextmanager
def _quiet_threads() -> Iterator[None]:
    """Keep Orbax's threads from printing tracebacks of an error that is raised here as well."""
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


def list_rounds(folder: Path) -> list[int]:
    """Rounds of the checkpoints that were saved to the end, oldest first."""
    return runfiles.manifest_rounds(folder)


def newest_whole(folder: Path, at_most: int, say: Callable[[str], None]) -> int | None:
    """Rounds done at the newest undamaged checkpoint not past `at_most`; damaged ones are named through `say`."""
    for rounds in reversed(list_rounds(folder)):
        damage = fault(folder, rounds)
        if damage:
            say(f"checkpoint {rounds} is damaged ({damage}); falling back to an earlier one")
        elif rounds <= at_most:
            return rounds
    return None


def manifest(folder: Path, rounds: int) -> dict[str, Any]:
    """The manifest of a checkpoint; ValueError or OSError if it cannot be read."""
    return runfiles.read_manifest(manifest_path(folder, rounds))


def update_records(folder: Path, parts: Mapping[str, runfiles.FileRecord]) -> None:
    """Put new records of metrics parts into every manifest that covers their rounds."""
    for rounds in list_rounds(folder):
        with contextlib.suppress(ValueError):
            old = manifest(folder, rounds)
            covered = {name: r for name, r in parts.items() if int(name[14:22]) < rounds}
            metrics = {**runfiles.recorded_parts(old), **covered}
            runfiles.write_manifest(manifest_path(folder, rounds), {**old, "metrics": metrics})


def restore(folder: Path, rounds_done: int, template: PyTree) -> PyTree:
    """The saved state, in the structure, types and placement of `template` (arrays or ShapeDtypeStructs)."""
    path = (folder / f"{rounds_done:08d}").absolute()
    wanted = _flat(template)
    with _quiet_threads(), _checkpointer() as reader:
        saved = reader.metadata(path)
        saved = getattr(saved, "item_metadata", saved)
        saved = getattr(saved, "tree", saved)
        if saved is None:
            raise RunError(f"checkpoint {path}: its arrays cannot be read")
        if set(saved) != set(wanted):
            odd = sorted(set(saved) ^ set(wanted))[0]
            raise RunError(
                f"checkpoint {path}: its state differs from this program's at {odd}; it cannot be resumed by it"
            )
        for name, ours in wanted.items():
            if tuple(saved[name].shape) != tuple(ours.shape):
                raise RunError(
                    f"checkpoint {path}: its {name} is {tuple(saved[name].shape)}, this program's {tuple(ours.shape)}; "
                    "takes the environment and networks it was saved with"
                )
        flat = reader.restore(path, wanted)
    return _unflat(template, flat)


def placed_like(state: PyTree) -> PyTree:
    """Shapes, types and placement of a state: a template for `restore`."""
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), state)


def set_aside(folder: Path, rounds: int) -> None:
    """Rename a checkpoint that cannot be used, its manifest first, so that it no longer counts."""
    for path in (manifest_path(folder, rounds), folder / f"{rounds:08d}"):
        if path.exists():
            path.rename(unused_name(path.with_name(f"{path.name}.damaged")))


def unused_name(path: Path) -> Path:
    """`path`, with a number behind it where that is taken."""
    candidates = (path if i == 1 else path.with_name(f"{path.name}-{i}") for i in range(1, 10_000))
    return next(candidate for candidate in candidates if not candidate.exists())


def prune_after(folder: Path, rounds_done: int) -> None:
    """Drop checkpoints past `rounds_done`, and what saves or removals cut short have left; other files stay."""
    for rounds in list_rounds(folder):
        if rounds > rounds_done:
            _remove(folder / f"{rounds:08d}")
    _clear_leftovers(folder)


def _clear_leftovers(folder: Path) -> None:
    for path in folder.iterdir():
        if _LEFTOVER.fullmatch(path.name) and not path.with_suffix(".json").exists():
            shutil.rmtree(path, ignore_errors=True)


def _checkpointer() -> Any:
    import orbax.checkpoint as ocp

    # Orbax reports every save at INFO through absl's logger, which would break the progress line.
    logger = logging.getLogger("absl")
    logger.setLevel(max(logger.level, logging.WARNING))
    return ocp.StandardCheckpointer()


def _names(tree: PyTree) -> tuple[list[str], list[Any], Any]:
    leaves, structure = jax.tree_util.tree_flatten_with_path(tree)
    return (
        [jax.tree_util.keystr(path, simple=True, separator="/") for path, _ in leaves],
        [x for _, x in leaves],
        structure,
    )


def _is_key(x: Any) -> bool:
    return jnp.issubdtype(x.dtype, jax.dtypes.prng_key)


def _flat(tree: PyTree) -> dict[str, Any]:
    """Leaves by path; typed PRNG keys as the integers they hold."""
    names, leaves, _ = _names(tree)

    def plain(x: Any) -> Any:
        if not _is_key(x):
            return x
        if isinstance(x, jax.ShapeDtypeStruct):
            data = jax.eval_shape(jax.random.key_data, x)
            return jax.ShapeDtypeStruct(data.shape, data.dtype, sharding=x.sharding)
        return jax.random.key_data(x)

    return {_stored_name(name): plain(x) for name, x in zip(names, leaves, strict=True)}


def _stored_name(name: str) -> str:
    return name.replace("/", ".")


def _unflat(template: PyTree, flat: dict[str, Any]) -> PyTree:
    names, leaves, structure = _names(template)
    values = [flat[_stored_name(name)] for name in names]
    wrapped = [jax.random.wrap_key_data(v) if _is_key(t) else v for v, t in zip(values, leaves, strict=True)]
    return jax.tree_util.tree_unflatten(structure, wrapped)


def _files(path: Path) -> list[Path]:
    return sorted(p for p in path.rglob("*") if p.is_file())


def fault(folder: Path, rounds: int) -> str | None:
    """What is wrong with the files of a checkpoint, or None."""
    path = folder / f"{rounds:08d}"
    try:
        expected = runfiles.records(manifest(folder, rounds)["files"])
    except (ValueError, KeyError, OSError):
        return "its manifest cannot be read"
    if not expected:
        return "its manifest names no file"
    for name, record in expected.items():
        try:
            found = runfiles.record_file(path / name)
        except OSError:
            return f"{name} is missing"
        if found.size != record.size:
            return f"{name} has {found.size} bytes of {record.size}"
        if found != record:
            return f"{name} has other content"
    return None


def _remove(path: Path) -> None:
    """The manifest first: without it the checkpoint no longer counts, so a kill half-way leaves nothing to load."""
    path.with_suffix(".json").unlink(missing_ok=True)
    shutil.rmtree(path, ignore_errors=True)
