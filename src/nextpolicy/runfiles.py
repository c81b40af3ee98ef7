"""The files of a run folder that training writes and everybody reads: whole files, metrics parts and manifests.

Metrics are `metrics/part-<first>-<last>.parquet`, one part per block. `checkpoints/<rounds>.json` is the manifest of a
checkpoint: the size and digest of its own files (`files`) and of every metrics part up to it (`metrics`), and the
configuration it was trained with (`config`). Reading any of them executes nothing.
"""

from __future__ import annotations

import bisect
import contextlib
import errno
import hashlib
import itertools
import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

# Settings that do not change what a run computes: they may differ between runs that are compared, and may be edited
# before a run is resumed.
OPERATIONAL_FIELDS = frozenset({"population", "devices", "block_rounds", "tensorboard", "wandb", "keep_checkpoints"})

_PART = re.compile(r"part-(\d{8})-(\d{8})\.parquet")
_MANIFEST = re.compile(r"\d{8}")


class FileRecord(NamedTuple):
    """What a manifest says of a file."""

    size: int
    digest: str


class Damage(NamedTuple):
    """Rounds whose metrics cannot be used, both ends included."""

    first: int
    last: int
    path: Path | None  # the part at fault; None where there is none
    what: str

    def __str__(self) -> str:
        rounds = f"round {self.first}" if self.first == self.last else f"rounds {self.first} to {self.last}"
        return f"metrics of {rounds} are {self.what}"


def write_whole(path: Path, data: bytes) -> None:
    """Write a file so that a reader, or a power cut, sees the old content or the new, never a part."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise


def write_json(path: Path, value: Any) -> None:
    write_whole(path, (json.dumps(value, indent=2) + "\n").encode())


def overwrite_json(path: Path, value: Any) -> None:
    """As `write_json`; on a full disk the old file is written over in place, which needs no room."""
    try:
        write_json(path, value)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT) or not path.is_file() or path.is_symlink():
            raise
        with open(path, "r+b") as file:
            file.write((json.dumps(value, indent=2) + "\n").encode())
            file.truncate()


def read_object(path: Path) -> dict[str, Any]:
    """The JSON object in a file; ValueError if it is none."""
    try:
        value = json.loads(path.read_text())
    except RecursionError:
        raise ValueError("lists in lists without end") from None
    if not isinstance(value, dict):
        raise ValueError(f"expected an object, got a {type(value).__name__}")
    return value


def record_of(data: bytes) -> FileRecord:
    return FileRecord(len(data), hashlib.blake2b(data).hexdigest())


def record_file(path: Path) -> FileRecord:
    with open(path, "rb") as file:
        return FileRecord(path.stat().st_size, hashlib.file_digest(file, "blake2b").hexdigest())


def records(value: Any) -> dict[str, FileRecord]:
    """Records by file name as a manifest holds them; ValueError if they cannot be read."""
    try:
        return {str(name): FileRecord(int(size), str(digest)) for name, (size, digest) in value.items()}
    except (TypeError, AttributeError, OverflowError):
        raise ValueError("expected [size, digest] for each file") from None


def manifest_path(checkpoints: Path, rounds: int) -> Path:
    return checkpoints / f"{rounds:08d}.json"


def manifest_rounds(checkpoints: Path) -> list[int]:
    """Rounds of the checkpoints that were saved to the end, oldest first."""
    return sorted(int(p.stem) for p in checkpoints.glob("*.json") if _MANIFEST.fullmatch(p.stem))


def write_manifest(path: Path, content: Mapping[str, Any]) -> None:
    """A manifest, with a digest of itself."""
    write_json(path, {**content, "digest": _digest_of(content)})


def read_manifest(path: Path) -> dict[str, Any]:
    """The manifest in a file; ValueError if it is none, or not what was written."""
    content = read_object(path)
    digest = content.pop("digest", None)  # manifests of earlier versions have none
    if digest is not None and digest != _digest_of(content):
        raise ValueError("expected a manifest as it was written")
    return content


def _digest_of(content: Mapping[str, Any]) -> str:
    return hashlib.blake2b(json.dumps(content, sort_keys=True).encode()).hexdigest()


def newest_manifest(checkpoints: Path) -> tuple[int, dict[str, Any]]:
    """(rounds, manifest) of the newest checkpoint whose manifest can be read; (0, {}) if there is none."""
    for rounds in reversed(manifest_rounds(checkpoints)):
        with contextlib.suppress(OSError, ValueError):
            return rounds, read_manifest(manifest_path(checkpoints, rounds))
    return 0, {}


def recorded_parts(manifest: Mapping[str, Any]) -> dict[str, FileRecord]:
    """What a manifest says of metrics parts; nothing if it is of a version that did not record them."""
    try:
        return records(manifest.get("metrics", {}))
    except ValueError:
        return {}


def changed_setting(config: Mapping[str, Any], manifest: Mapping[str, Any]) -> str | None:
    """Which setting of `config.json` is not what the checkpoint was trained with, in words; None if all are."""
    then = manifest.get("config")
    if not isinstance(then, dict):
        return None
    for name in sorted((config.keys() | then.keys()) - OPERATIONAL_FIELDS - {"about"}):
        if config.get(name) != then.get(name):
            return f"{name} is {config.get(name)!r} in config.json and {then.get(name)!r} in the checkpoint"
    return None


def parts(folder: Path) -> list[tuple[int, int, Path]]:
    """(first round, last round, path) of every metrics part, in order."""
    found = ((_PART.fullmatch(p.name), p) for p in folder.glob("part-*.parquet"))
    return sorted((int(m[1]), int(m[2]), p) for m, p in found if m)


def end(folder: Path) -> int:
    """Rounds covered by the parts on disk."""
    found = parts(folder)
    return found[-1][1] + 1 if found else 0


def part_name(first: int, last: int) -> str:
    return f"part-{first:08d}-{last:08d}.parquet"


def read_part(path: Path) -> pd.DataFrame:
    """The rows of a part; ValueError in one line if they cannot be read."""
    try:
        return pd.read_parquet(path)
    except Exception:
        # pyarrow raises many kinds of error on damaged files; any of them means the part cannot be used.
        raise ValueError(f"{path.name} cannot be read") from None


def damage(folder: Path, rounds: int, recorded: Mapping[str, FileRecord]) -> list[Damage]:
    """What is wrong with the metrics of the first `rounds` rounds: parts that are missing, damaged or overlap.

    Of parts that overlap the recorded ones are right.
    """
    found, covered = [], list[tuple[int, int]]()
    for first, last, path in sorted(parts(folder), key=lambda part: (part[2].name not in recorded, part)):
        if first >= rounds:
            continue
        what = _fault(path, first, last, recorded.get(path.name))
        before = bisect.bisect_right(covered, (last, rounds))
        overlaps = before > 0 and covered[before - 1][1] >= first
        if overlaps:
            what = f"{path.name} has rounds that another part has"
        if what is not None:
            found.append(Damage(first, min(last, rounds - 1), path, f"damaged ({what})"))
        if not overlaps:
            covered.insert(before, (first, last))
    edges = itertools.pairwise([(-1, -1), *covered, (rounds, rounds)])
    found += [Damage(end + 1, start - 1, None, "missing") for (_, end), (start, _) in edges if end + 1 < start]
    return sorted(found, key=lambda d: (d.first, d.last))


def _fault(path: Path, first: int, last: int, record: FileRecord | None) -> str | None:
    try:
        if record is not None:
            return None if record_file(path) == record else f"{path.name} is not what was written"
        rows = read_part(path)
    except (OSError, ValueError):
        return f"{path.name} cannot be read"
    if "round" not in rows or not len(rows) or (rows["round"].min(), rows["round"].max()) != (first, last):
        return f"{path.name} has other rounds than its name says"
    return None


def expected_rounds(run: Path, state: str, rounds: int) -> int:
    """Rounds whose metrics must be there: all of them in a finished run, else those up to the newest checkpoint."""
    return (
        rounds
        if state == "finished"
        else max(end(run / "metrics"), min(newest_manifest(run / "checkpoints")[0], rounds))
    )


def metrics_damage(run: Path, state: str, rounds: int) -> list[Damage]:
    """What is wrong with the metrics of a run of `rounds` rounds whose status is `state`."""
    recorded = recorded_parts(newest_manifest(run / "checkpoints")[1])
    return damage(run / "metrics", expected_rounds(run, state, rounds), recorded)


def read_metrics(run: Path, without: list[Damage] | None = None) -> pd.DataFrame:
    """All rows by member and round, without the parts that are named as damaged."""
    bad = {d.path for d in without or ()}
    frames = [read_part(path) for _, _, path in parts(run / "metrics") if path not in bad]
    if not frames:
        return pd.DataFrame()
    return pd.concat(frames, ignore_index=True).sort_values(["member", "round"], ignore_index=True)
