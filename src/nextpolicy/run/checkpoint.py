"""Checkpoints of the full state by Orbax, with a manifest that tells a whole one from a damaged one.

A checkpoint is `checkpoints/<rounds>/` and `checkpoints/<rounds>.json`; the manifest is written last and holds the size
and digest of every file, so that a save cut short, or a file cut short later, is never loaded. Only arrays are read:
loading runs no code.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import re
import shutil
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax

from nextpolicy.run.folder import RunError, write_json
from nextpolicy.types import PyTree

_LEFTOVER = re.compile(r"\d{8}(\.orbax-checkpoint-tmp.*)?")  # a checkpoint's folder, or Orbax's while it writes one


def save(folder: Path, rounds_done: int, state: PyTree, keep: int) -> None:
    """Write the state after `rounds_done` rounds and drop all but the newest `keep` checkpoints."""
    path = (folder / f"{rounds_done:08d}").absolute()
    if jax.process_index() == 0:
        _remove(path)  # an earlier save of this round that a kill cut short
    with _first_ctrl_c_later():
        with _checkpointer() as writer:
            writer.save(path, _flat(state))
        if jax.process_index() == 0:
            files = {
                str(p.relative_to(path)): [p.stat().st_size, _digest(p)] for p in sorted(path.rglob("*")) if p.is_file()
            }
            write_json(path.with_suffix(".json"), {"rounds_done": rounds_done, "files": files})
    if jax.process_index() == 0:
        for old in list_rounds(folder)[:-keep]:
            _remove(folder / f"{old:08d}")


@contextlib.contextmanager
def _first_ctrl_c_later() -> Iterator[None]:
    """A ctrl-C meanwhile is raised at the end: Orbax writes in threads of its own, which would fail one by one.

    A second one is raised at once. Python allows this only in the main thread, where alone it raises ctrl-C.
    """
    usual = signal.getsignal(signal.SIGINT)
    if usual is not signal.default_int_handler or threading.current_thread() is not threading.main_thread():
        yield
        return
    asked = []

    def note(*_: Any) -> None:
        asked.append(True)
        signal.signal(signal.SIGINT, usual)

    signal.signal(signal.SIGINT, note)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, usual)
    if asked:
        raise KeyboardInterrupt


def list_rounds(folder: Path) -> list[int]:
    """Rounds of the checkpoints that were saved to the end, oldest first."""
    return sorted(int(p.stem) for p in folder.glob("*.json") if re.fullmatch(r"\d{8}", p.stem))


def newest_whole(folder: Path, at_most: int, say: Callable[[str], None]) -> int | None:
    """Rounds done at the newest undamaged checkpoint not past `at_most`; damaged ones are named through `say`."""
    for rounds in reversed(list_rounds(folder)):
        fault = _fault(folder / f"{rounds:08d}")
        if fault:
            say(f"checkpoint {rounds} is damaged ({fault}); falling back to an earlier one")
        elif rounds <= at_most:
            return rounds
    return None


def restore(folder: Path, rounds_done: int, template: PyTree) -> PyTree:
    """The saved state, in the structure, types and placement of `template` (arrays or ShapeDtypeStructs)."""
    path = (folder / f"{rounds_done:08d}").absolute()
    wanted = _flat(template)
    with _checkpointer() as reader:
        saved = reader.metadata(path)
        saved = getattr(saved, "item_metadata", saved)
        saved = getattr(saved, "tree", saved)
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


def prune_after(folder: Path, rounds_done: int) -> None:
    """Drop checkpoints past `rounds_done`, and what saves or removals cut short have left; other files stay."""
    for rounds in list_rounds(folder):
        if rounds > rounds_done:
            _remove(folder / f"{rounds:08d}")
    for path in folder.iterdir():
        if _LEFTOVER.fullmatch(path.name) and not path.with_suffix(".json").exists():
            shutil.rmtree(path, ignore_errors=True)


def _checkpointer() -> Any:
    import orbax.checkpoint as ocp

    # Orbax reports every save at INFO through absl's logger, which would break the progress line.
    logging.getLogger("absl").setLevel(logging.WARNING)
    return ocp.StandardCheckpointer()


def _names(tree: PyTree) -> tuple[list[str], list[Any], Any]:
    leaves, structure = jax.tree_util.tree_flatten_with_path(tree)
    return (
        [jax.tree_util.keystr(path, simple=True, separator="/") for path, _ in leaves],
        [x for _, x in leaves],
        structure,
    )


def _is_key(x: Any) -> bool:
    return jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key)


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

    return {name.replace("/", "."): plain(x) for name, x in zip(names, leaves, strict=True)}


def _unflat(template: PyTree, flat: dict[str, Any]) -> PyTree:
    names, leaves, structure = _names(template)
    values = [flat[name.replace("/", ".")] for name in names]
    wrapped = [jax.random.wrap_key_data(v) if _is_key(t) else v for v, t in zip(values, leaves, strict=True)]
    return jax.tree_util.tree_unflatten(structure, wrapped)


def _digest(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "blake2b").hexdigest()


def _fault(path: Path) -> str | None:
    """What is wrong with a checkpoint's files, or None."""
    try:
        manifest = json.loads(path.with_suffix(".json").read_text())["files"]
        expected = {str(name): (int(size), str(digest)) for name, (size, digest) in manifest.items()}
    except (ValueError, KeyError, TypeError, AttributeError, OSError):
        return "its manifest cannot be read"
    for name, (size, digest) in expected.items():
        file = path / name
        if not file.is_file():
            return f"{name} is missing"
        if file.stat().st_size != size:
            return f"{name} has {file.stat().st_size} bytes of {size}"
        if _digest(file) != digest:
            return f"{name} has other content"
    return None


def _remove(path: Path) -> None:
    """The manifest first: without it the checkpoint no longer counts, so a kill half-way leaves nothing to load."""
    path.with_suffix(".json").unlink(missing_ok=True)
    shutil.rmtree(path, ignore_errors=True)
