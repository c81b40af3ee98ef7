"""Checkpoints of the full state, each with a manifest that detects damage.

A checkpoint is the folder `checkpoints/<rounds>/` with the arrays in one file, and its manifest
`checkpoints/<rounds>.json`. The manifest contains the size and digest of the file. It is written last, after the file
has been read back. An interrupted save or a damaged file is therefore never loaded. Loading executes no code.
"""

from __future__ import annotations

import contextlib
import errno
import re
import shutil
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np

from nextpolicy import runfiles
from nextpolicy.run import interrupt, named_arrays, orbax_reader, tensor_file
from nextpolicy.run.folder import RunError
from nextpolicy.run.processes import agreed, fetch
from nextpolicy.runfiles import manifest_path, write_manifest
from nextpolicy.settings import short, shown
from nextpolicy.types import PyTree

STATE_FORMAT = 2  # version of the arrays in a state, recorded in every manifest; a manifest without it has format 1
ARRAYS = "state.safetensors"
_LEFTOVER = re.compile(r"\d{8}(\.orbax-checkpoint-tmp.*)?")  # the folder of a checkpoint; of Orbax in earlier versions
_MISSING = (errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG)  # there is no such file
_CHECKPOINT = re.compile(r"\d{8}")
_UNFINISHED_MANIFEST = re.compile(r"\.\d{8}\.json\.\d+\.tmp")


class CheckpointError(RunError):
    """A checkpoint could not be saved. The message is one line."""


def save(folder: Path, rounds_done: int, state: PyTree, keep: int, about: Mapping[str, Any] | None = None) -> None:
    """Write the state after `rounds_done` rounds and delete all but the newest `keep` checkpoints.

    `about` is added to the manifest: the configuration and the records of the metrics parts. All processes take part;
    the first one writes.
    """
    first, error = jax.process_index() == 0, cast(Exception | None, None)
    with interrupt.deferred():
        flat = fetch(named_arrays.flat(state))
        try:
            if first:
                _write(folder, rounds_done, flat, about or {})
        except Exception as caught:  # the other processes wait for the outcome, whatever it is
            error = caught
            with contextlib.suppress(OSError):
                _remove(folder / f"{rounds_done:08d}")
        if agreed(error is not None):
            reason = "no space left on the disk" if "space left" in str(error) else _first_line(error)
            raise CheckpointError(
                f"checkpoint: round {rounds_done} could not be saved in {folder} ({reason})"
            ) from error
    if first:
        for old in list_rounds(folder)[:-keep]:
            _remove(folder / f"{old:08d}")


def _write(folder: Path, rounds_done: int, flat: dict[str, np.ndarray], about: Mapping[str, Any]) -> None:
    """The arrays, read back, and then the manifest."""
    path = folder / f"{rounds_done:08d}"
    _remove(path)  # left by a save of this round that was killed
    path.mkdir()
    record = tensor_file.write(path / ARRAYS, flat)
    facts = {"rounds_done": rounds_done, "state_format": STATE_FORMAT, "files": {ARRAYS: record}}
    write_manifest(manifest_path(folder, rounds_done), {**facts, **about})


def _first_line(error: BaseException | None) -> str:
    text = "the first process failed" if error is None else str(error).strip() or type(error).__name__
    return text.splitlines()[0][:200]


def list_rounds(folder: Path) -> list[int]:
    """Rounds of the completely saved checkpoints, oldest first."""
    return runfiles.manifest_rounds(folder)


def newest_whole(folder: Path, at_most: int, say: Callable[[str], None]) -> int | None:
    """Rounds of the newest intact checkpoint up to round `at_most`; damaged ones are reported through `say`."""
    for rounds in reversed(list_rounds(folder)):
        damage = fault(folder, rounds)
        if damage:
            say(f"checkpoint {rounds} is damaged ({damage}); falling back to an earlier one")
        elif rounds <= at_most:
            return rounds
    return None


def manifest(folder: Path, rounds: int) -> dict[str, Any]:
    """The manifest of a checkpoint. Raises ValueError or OSError if it cannot be read."""
    return runfiles.read_manifest(manifest_path(folder, rounds))


def update_records(folder: Path, parts: Mapping[str, runfiles.FileRecord]) -> None:
    """Add the records of metrics parts to every manifest that covers their rounds."""
    for rounds in list_rounds(folder):
        with contextlib.suppress(ValueError):
            old = manifest(folder, rounds)
            covered = {name: r for name, r in parts.items() if int(name[14:22]) < rounds}
            metrics = {**runfiles.recorded_parts(old), **covered}
            runfiles.write_manifest(manifest_path(folder, rounds), {**old, "metrics": metrics})


def restore(folder: Path, rounds_done: int, template: PyTree) -> PyTree:
    """The saved state, with the structure, dtypes and sharding of `template` (arrays or ShapeDtypeStructs)."""
    path = (folder / f"{rounds_done:08d}").absolute()
    wanted = named_arrays.flat(template)
    if orbax_reader.wrote(listed := _listed(folder, rounds_done)):
        flat = orbax_reader.read(path, wanted, partial(_check, path, wanted))
    else:
        try:
            if ARRAYS not in listed:
                raise ValueError(f"its manifest does not list {ARRAYS}")
            saved = tensor_file.entries(path / ARRAYS)
        except (OSError, ValueError) as error:
            raise RunError(f"checkpoint {path}: the arrays cannot be read ({_first_line(error)})") from None
        _check(path, wanted, {name: entry.shape for name, entry in saved.items()})
        flat = {name: _placed(path, name, saved[name], x) for name, x in wanted.items()}
    return named_arrays.unflat(template, flat)


def _listed(folder: Path, rounds: int) -> set[str]:
    """The names of a checkpoint's files, by its manifest: others were not verified."""
    with contextlib.suppress(ValueError, KeyError, OSError):
        return set(runfiles.records(manifest(folder, rounds)["files"]))
    return set()


def _check(path: Path, wanted: Mapping[str, Any], saved: Mapping[str, tuple[int, ...]]) -> None:
    """Raise unless the arrays in a checkpoint have these names and shapes."""
    if set(saved) != set(wanted):
        odd = sorted(set(saved) ^ set(wanted))[0]
        raise RunError(
            f"checkpoint {path}: expected the arrays of this program's state, got a difference at {short(odd)}; "
            "use the configuration and version it was saved with"
        )
    for name, ours in wanted.items():
        if saved[name] != tuple(ours.shape):
            raise RunError(
                f"checkpoint {path}: {name}: expected shape {tuple(ours.shape)}, got {shown(saved[name])}; "
                "use the environment and networks it was saved with"
            )


def _placed(path: Path, name: str, entry: tensor_file.Entry, like: Any) -> jax.Array:
    """One array of a checkpoint, on the devices of `like`."""
    if entry.dtype != like.dtype:
        raise RunError(f"checkpoint {path}: {name}: expected {like.dtype}, got {entry.dtype}; train a new run")
    array = tensor_file.read(path / ARRAYS, entry)
    if like.sharding is None:
        return jnp.asarray(array)
    return jax.make_array_from_callback(array.shape, like.sharding, lambda index: array[index])


def placed_like(state: PyTree) -> PyTree:
    """Shapes, dtypes and sharding of a state: a template for `restore`."""
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), state)


def set_aside(folder: Path, rounds: int) -> None:
    """Rename an unusable checkpoint so that it is ignored, manifest first."""
    for path in (manifest_path(folder, rounds), folder / f"{rounds:08d}"):
        if path.exists():
            path.rename(unused_name(path.with_name(f"{path.name}.damaged")))


def unused_name(path: Path) -> Path:
    """`path`, with a numeric suffix if it exists."""
    candidates = (path if i == 1 else path.with_name(f"{path.name}-{i}") for i in range(1, 10_000))
    return next(candidate for candidate in candidates if not candidate.exists())


def prune_after(folder: Path, rounds_done: int) -> None:
    """Delete checkpoints after `rounds_done` and the remains of interrupted saves and deletions."""
    for rounds in list_rounds(folder):
        if rounds > rounds_done:
            _remove(folder / f"{rounds:08d}")
    _clear_leftovers(folder)


def without_manifest(folder: Path) -> list[int]:
    """Rounds of the checkpoints whose manifest is gone."""
    found = [path for path in folder.iterdir() if _CHECKPOINT.fullmatch(path.name) and path.is_dir()]
    return [int(path.name) for path in found if not path.with_suffix(".json").exists()]


def _clear_leftovers(folder: Path) -> None:
    """Delete what an interrupted save or deletion left, but nothing that a user has put there."""
    for path in folder.iterdir():
        if _LEFTOVER.fullmatch(path.name) and not path.with_suffix(".json").exists() and _is_ours(path):
            shutil.rmtree(path, ignore_errors=True)
        elif _UNFINISHED_MANIFEST.fullmatch(path.name):
            path.unlink(missing_ok=True)


def _is_ours(path: Path) -> bool:
    names = {each.name for each in path.iterdir()} if path.is_dir() and not path.is_symlink() else {""}
    return names <= {ARRAYS} or ".orbax" in path.name or orbax_reader.wrote(names)


def fault(folder: Path, rounds: int) -> str | None:
    """The first damage found in the files of a checkpoint; None if it is intact.

    Raises if a file cannot be read, for lack of permission for example: it may be intact.
    """
    path = folder / f"{rounds:08d}"
    try:
        facts = manifest(folder, rounds)
        expected = runfiles.records(facts["files"])
    except (ValueError, KeyError):
        return "its manifest cannot be read"
    except OSError as error:
        _raise_unless_missing(manifest_path(folder, rounds), error)
        return "its manifest cannot be read"
    if facts.get("rounds_done") != rounds:
        return f"its manifest is that of round {shown(facts.get('rounds_done'))}"
    if ARRAYS not in expected and not orbax_reader.wrote(expected):
        return "its manifest lists no arrays"
    for name, record in expected.items():
        if Path(name).is_absolute() or ".." in Path(name).parts:
            return f"its manifest lists {short(name)}, which is not in its folder"
        try:
            size = (path / name).stat().st_size
            if size != record.size:
                return f"{short(name)} has {size} bytes of {record.size}"
            if runfiles.record_file(path / name) != record:
                return f"{short(name)} has different content"
        except ValueError:
            return f"{short(name)} is no regular file"
        except OSError as error:
            _raise_unless_missing(path / name, error)
            return f"{short(name)} is missing"
    return None


def _raise_unless_missing(path: Path, error: OSError) -> None:
    """A file that is there but cannot be read may be intact."""
    if error.errno not in _MISSING:
        why = error.strerror or str(error)
        raise RunError(f"checkpoint: {path} cannot be read ({why}); make it readable and try again") from None


def _remove(path: Path) -> None:
    """Delete a checkpoint, manifest first: if this is interrupted, the rest is ignored."""
    path.with_suffix(".json").unlink(missing_ok=True)
    shutil.rmtree(path, ignore_errors=True)
