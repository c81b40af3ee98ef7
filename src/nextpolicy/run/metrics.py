"""Metrics as Parquet parts, one per block, each written whole; and the table read back from them."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from nextpolicy.config import Member
from nextpolicy.run.folder import write_whole

_NAME = re.compile(r"part-(\d{8})-(\d{8})\.parquet")
_COUNTS = ("episodes", "stable_rounds", "rounds_held", "k_min", "k_max")


def table(
    members: list[Member],
    first_round: int,
    steps_per_round: int,
    metrics: dict[str, np.ndarray],
    steps_per_second: float,
) -> pd.DataFrame:
    """One row per member and round; `metrics` are [M, rounds] for the rounds from `first_round` on."""
    count, rounds = next(iter(metrics.values())).shape
    index = np.arange(first_round, first_round + rounds, dtype=np.int64)
    columns: dict[str, Any] = {
        "round": np.tile(index, count),
        "env_steps": np.tile((index + 1) * steps_per_round, count),
        "member": np.repeat(np.arange(count, dtype=np.int64), rounds),
        "seed": np.repeat(np.asarray([m.seed for m in members], np.int64), rounds),
        "variant": np.repeat(np.asarray([m.variant for m in members], object), rounds),
    }
    for name, values in metrics.items():
        flat = values.reshape(-1)
        columns[name] = flat.astype(np.int64) if name in _COUNTS else flat
    return pd.DataFrame({**columns, "steps_per_second": np.float64(steps_per_second)})


def write_part(folder: Path, frame: pd.DataFrame) -> Path:
    """Write a block's rows as `part-<first>-<last>.parquet`."""
    first, last = int(frame["round"].min()), int(frame["round"].max())
    buffer = io.BytesIO()
    frame.to_parquet(buffer, index=False)
    path = folder / f"part-{first:08d}-{last:08d}.parquet"
    write_whole(path, buffer.getvalue())
    return path


def parts(folder: Path) -> list[tuple[int, int, Path]]:
    """(first round, last round, path) of every part, in order."""
    found = ((_NAME.fullmatch(p.name), p) for p in folder.glob("part-*.parquet"))
    return sorted((int(m[1]), int(m[2]), p) for m, p in found if m)


def read(folder: Path) -> pd.DataFrame:
    """All rows, by member and round."""
    frames = [pd.read_parquet(path) for _, _, path in parts(folder)]
    if not frames:
        return pd.DataFrame()
    return pd.concat(frames, ignore_index=True).sort_values(["member", "round"], ignore_index=True)


def first_damage(folder: Path) -> tuple[int, Path | None] | None:
    """The first round that is not on disk whole, with the damaged part if there is one; None if all parts join up."""
    expected = 0
    for first, last, path in parts(folder):
        if first != expected:
            return expected, None
        try:
            rows = pd.read_parquet(path)
            whole = len(rows) and rows["round"].min() == first and rows["round"].max() == last
        except Exception:
            # pyarrow raises many kinds of error on damaged files; any of them means the part cannot be used.
            whole = False
        if not whole:
            return first, path
        expected = last + 1
    return None


def end(folder: Path) -> int:
    """Rounds covered by the parts on disk."""
    found = parts(folder)
    return found[-1][1] + 1 if found else 0


def trim(folder: Path, rounds_done: int) -> None:
    """Delete parts past a checkpoint, so that what is done again is not there twice; a part across it is cut."""
    for unfinished in folder.glob(".part-*.tmp"):
        unfinished.unlink()
    for first, last, path in parts(folder):
        if first >= rounds_done:
            path.unlink()
        elif last >= rounds_done:
            frame = pd.read_parquet(path)
            write_part(folder, frame[frame["round"] < rounds_done])
            path.unlink()
