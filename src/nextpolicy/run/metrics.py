"""Metrics of a population as a table, which is written in parts, one per block."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from nextpolicy.config import Member
from nextpolicy.runfiles import FileRecord, part_name, parts, read_part, record_of, write_whole


def table(
    members: list[Member],
    first_round: int,
    steps_per_round: int,
    metrics: dict[str, np.ndarray],
    steps_per_second: float,
) -> pd.DataFrame:
    """One row per member and round; `metrics` are [M, rounds], starting at `first_round`."""
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
        columns[name] = flat.astype(np.int64) if flat.dtype.kind == "i" else flat
    return pd.DataFrame({**columns, "steps_per_second": np.float64(steps_per_second)})


def write_part(folder: Path, frame: pd.DataFrame) -> dict[str, FileRecord]:
    """Write the rows of a block to `part-<first>-<last>.parquet`; returns {file name: record}."""
    name = part_name(int(frame["round"].min()), int(frame["round"].max()))
    buffer = io.BytesIO()
    frame.to_parquet(buffer, index=False)
    write_whole(folder / name, buffer.getvalue())
    return {name: record_of(buffer.getvalue())}


def trim(folder: Path, rounds_done: int) -> None:
    """Delete the metrics of round `rounds_done` and later, which will be computed again."""
    for unfinished in folder.glob(".part-*.tmp"):
        unfinished.unlink()
    for first, last, path in parts(folder):
        if first >= rounds_done:
            path.unlink()
        elif last >= rounds_done:
            frame = read_part(path)
            write_part(folder, frame[frame["round"] < rounds_done])
            path.unlink()
