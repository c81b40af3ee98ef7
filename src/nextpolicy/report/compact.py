"""Small copies of run folders, for a repository or a web page. `nextpolicy report` reads them like the runs themselves.

A copy has the settings, the status and the evaluation of a run, the statistics of its members (`statistics.csv`) and,
of each round, what figures draw. Returns and differences are rounded to 13 bits. There are no checkpoints.
"""

from __future__ import annotations

import io
import os
import shutil
from collections.abc import Sequence
from fnmatch import fnmatch
from pathlib import Path

import numpy as np
import pandas as pd

from nextpolicy import runfiles
from nextpolicy.report import columns
from nextpolicy.report.members import member_table
from nextpolicy.report.runs import DRAWN, KEYS, ReportError, Run, find, load
from nextpolicy.report.text import count

_COPIED = ("config.json", "status.json", "evaluation.json")  # files of a run that a copy has as they are
_BITS = 12  # of the 23 stored bits of a float32; a thirteenth is implied


def write_copies(paths: Sequence[str], out: Path) -> None:
    """Write a small copy of each finished run among `paths` or below them to `out`, under its own name."""
    if any(place.exists() and not place.is_dir() for place in (out, *out.parents)):
        raise ReportError(f"compact: expected a folder, got {out}, which is a file or inside one")
    runs = [load(path) for path in find(paths)]
    places = {run.path: out / run.name for run in runs}
    _check(runs, places)
    for run in runs:
        _write(run, places[run.path])
    size = sum(file.stat().st_size for place in places.values() for file in place.rglob("*") if file.is_file())
    print(f"small copies: {out} ({count(len(runs), 'run')}, {size / 1e6:.2f} MB)")


def _check(runs: Sequence[Run], places: dict[Path, Path]) -> None:
    names = [run.name for run in runs]
    for run in runs:
        if run.state != "finished":
            raise ReportError(f"compact: expected finished runs, got {run.path}, which is {run.state}")
        if names.count(run.name) > 1:
            raise ReportError(f"compact: expected run folders with distinct names, got {run.name} twice")
        if places[run.path].exists():
            raise ReportError(f"compact: {places[run.path]} exists; move it, or choose another folder")
        part = _unfinished(places[run.path])
        if os.path.lexists(part) and not _is_ours(part):
            raise ReportError(f"compact: expected to write {part}, got a folder of something else; move it")


def _write(run: Run, place: Path) -> None:
    """Write to a temporary folder first, so that a copy is whole or absent."""
    part = _unfinished(place)
    shutil.rmtree(part, ignore_errors=True)  # of a copy that was killed; `_check` has looked into it
    (part / "metrics").mkdir(parents=True)
    for name in _COPIED:
        if (run.path / name).is_file():
            shutil.copyfile(run.path / name, part / name)
    members = member_table([run])
    statistics = members[[each.name for each in columns.present(members)]]
    (part / runfiles.STATISTICS_FILE).write_text(statistics.to_csv(index_label="member"))
    (part / "metrics" / runfiles.part_name(0, run.rounds - 1)).write_bytes(_drawn(run.frame))
    files = {str(file.relative_to(part)): runfiles.record_file(file) for file in part.rglob("*") if file.is_file()}
    runfiles.write_manifest(part / runfiles.COPIED, {"files": files})
    part.rename(place)


def _unfinished(place: Path) -> Path:
    """Where a copy is written before it is moved to `place`."""
    return place.with_name(f".{place.name}.part")


def _is_ours(part: Path) -> bool:
    """Whether a folder has nothing but what a copy that was killed leaves behind."""
    if not part.is_dir() or part.is_symlink():
        return False
    known = ("metrics", "metrics/part-*.parquet", runfiles.STATISTICS_FILE, *_COPIED, runfiles.COPIED)
    patterns = (*known, f".{runfiles.COPIED}.*.tmp")  # the last: half of a manifest
    inside = [path.relative_to(part).as_posix() for path in part.rglob("*")]
    return all(any(fnmatch(name, pattern) for pattern in patterns) for name in inside)


def _drawn(frame: pd.DataFrame) -> bytes:
    """The metrics that figures draw, as Parquet."""
    kept = frame[[name for name in (*KEYS, *DRAWN) if name in frame]].copy()
    numbers = [name for name in kept if kept[name].dtype.kind == "f"]
    for name in numbers:
        kept[name] = rounded(kept[name].to_numpy(np.float32))
    file = io.BytesIO()
    others = [name for name in kept if name not in numbers]
    options = {"use_dictionary": others, "use_byte_stream_split": numbers, "compression_level": 19}
    kept.to_parquet(file, index=False, compression="zstd", **options)
    return file.getvalue()


def rounded(values: np.ndarray) -> np.ndarray:
    """float32 values with 13 significant bits, a relative error of at most 2^-13; infinities and NaN are kept."""
    drop = 23 - _BITS
    bits = values.view(np.uint32)
    near = (bits + np.uint32(1 << (drop - 1))) & np.uint32(-1 << drop & 0xFFFFFFFF)
    close = near.view(np.float32)
    return np.where(np.isfinite(values) & np.isfinite(close), close, values)
