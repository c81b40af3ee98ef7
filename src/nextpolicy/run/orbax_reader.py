"""Reads checkpoints of versions that wrote them with Orbax.

Orbax no longer writes them: for each array of a save, TensorStore 0.1.86 leaks 2.6 KB.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from nextpolicy.run.folder import RunError


def wrote(path: Path) -> bool:
    """Whether Orbax wrote this checkpoint."""
    return (path / "_METADATA").exists()


def read(path: Path, wanted: Mapping[str, Any], check: Callable[[dict[str, tuple[int, ...]]], None]) -> dict[str, Any]:
    """The arrays of a checkpoint, with the dtypes and sharding of `wanted`. `check` is given their shapes first."""
    import orbax.checkpoint as ocp

    logger = logging.getLogger("absl")  # Orbax logs every call at INFO
    logger.setLevel(max(logger.level, logging.WARNING))
    with ocp.StandardCheckpointer() as reader:
        saved: Any = reader.metadata(path)
        saved = getattr(saved, "item_metadata", saved)
        saved = getattr(saved, "tree", saved)
        if saved is None:
            raise RunError(f"checkpoint {path}: the arrays cannot be read")
        check({name: tuple(array.shape) for name, array in saved.items()})
        return reader.restore(path, dict(wanted))
