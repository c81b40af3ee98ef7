"""Reads checkpoints of versions that wrote them with Orbax.

Orbax no longer writes them: for each array of a save, TensorStore 0.1.86 leaks 2.6 KB.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from nextpolicy.run.folder import RunError


def wrote(names: Collection[str]) -> bool:
    """Whether Orbax wrote a checkpoint with these files."""
    return "_METADATA" in names


def read(path: Path, wanted: Mapping[str, Any], check: Callable[[dict[str, tuple[int, ...]]], None]) -> dict[str, Any]:
    """The arrays of a checkpoint, with the dtypes and sharding of `wanted`. `check` is given their shapes first."""
    import orbax.checkpoint as ocp

    for name in ("absl", "asyncio"):  # Orbax logs every call, and errors in addition to raising them
        logging.getLogger(name).setLevel(logging.CRITICAL)
    try:
        with ocp.StandardCheckpointer() as reader:
            saved: Any = reader.metadata(path)
            saved = getattr(saved, "item_metadata", saved)
            saved = getattr(saved, "tree", saved)
            check({name: tuple(array.shape) for name, array in saved.items()})
            for name, array in saved.items():
                if array.dtype != wanted[name].dtype:
                    raise RunError(f"checkpoint {path}: {name}: expected {wanted[name].dtype}, got {array.dtype}")
            return reader.restore(path, dict(wanted))
    except RunError:
        raise
    except Exception as error:  # Orbax and TensorStore raise many kinds of errors on damaged files
        what = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        raise RunError(f"checkpoint {path}: the arrays cannot be read ({what})") from None
