"""Files of a run folder: atomic writes, metrics parts and manifests.

Metrics are `metrics/part-<first>-<last>.parquet`, one part per block of rounds. `checkpoints/<rounds>.json` is the
manifest of a checkpoint: size and digest of its own files (`files`) and of every metrics part up to it (`metrics`), and
the configuration it was trained with (`config`). Reading them executes no code.
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
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

# Settings that do not affect results: they may differ between compared runs and be edited before a resume.
OPERATIONAL_FIELDS = frozenset({"population", "devices", "block_rounds", "tensorboard", "wandb", "keep_checkpoints"})

EVALUATION = "evaluation.json"  # returns of the target policy, written by a suite once training has finished
STUDY = "study.json"  # marks the run of a study, whose tables belong to its rounds
STATISTICS_FILE = "statistics.csv"  # in a small copy of a run (`nextpolicy report --compact`)
COPIED = "copied.json"  # in such a copy: size and digest of its files
EVALUATIONS = "evaluations.csv"  # returns of the policies during training, if it was asked for
BEST = "best"  # folder of the policies with the highest of these returns, one file for each member
NOT_SETTINGS = ("about", "custom", "extended")  # keys of config.json that are not fields of the configuration

_PART = re.compile(r"part-(\d{8})-(\d{8})\.parquet")
_MANIFEST = re.compile(r"\d{8}")


class FileRecord(NamedTuple):
    """Size and digest of a file, as a manifest records them."""

    size: int
    digest: str


class Damage(NamedTuple):
    """Rounds `first` to `last`, both included, whose metrics cannot be used."""

    first: int
    last: int
    path: Path | None  # the damaged part; None if the rounds are missing
    what: str

    def __str__(self) -> str:
        rounds = f"round {self.first}" if self.first == self.last else f"rounds {self.first} to {self.last}"
        return f"metrics of {rounds} are {self.what}"


def write_whole(path: Path, data: bytes) -> None:
    """Write a file atomically: readers see the old content or the new one, even after a power cut."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


def write_json(path: Path, value: object) -> None:
    write_whole(path, _json_bytes(value))


def overwrite_json(path: Path, value: object) -> None:
    """Like `write_json`, but on a full disk the file is overwritten in place, which needs no space."""
    try:
        write_json(path, value)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT) or not path.is_file() or path.is_symlink():
            raise
        with open(path, "r+b") as file:
            file.write(_json_bytes(value))
            file.truncate()


def _json_bytes(value: object) -> bytes:
    return (json.dumps(value, indent=2) + "\n").encode()


def check_regular(path: Path) -> None:
    """Raise ValueError if this is a pipe or a device, which may never end."""
    if not (stat.S_ISREG(mode := path.stat().st_mode) or stat.S_ISDIR(mode)):  # opening a folder is an OSError
        raise ValueError(f"expected a regular file, got {path.name}, which is a pipe or a device")


def read_object(path: Path) -> dict[str, Any]:
    """The JSON object in a file; ValueError if the file holds anything else."""
    check_regular(path)
    try:
        value = json.loads(path.read_text())
    except RecursionError:
        raise ValueError("expected a JSON object, got lists nested too deeply") from None
    if not isinstance(value, dict):
        raise ValueError(f"expected a JSON object, got a {type(value).__name__}")
    return value


def record_of(data: bytes) -> FileRecord:
    return FileRecord(len(data), hashlib.blake2b(data).hexdigest())


def record_file(path: Path) -> FileRecord:
    check_regular(path)
    with open(path, "rb") as file:
        return FileRecord(path.stat().st_size, hashlib.file_digest(file, "blake2b").hexdigest())


def records(value: object) -> dict[str, FileRecord]:
    """Records by file name, from a manifest's `{name: [size, digest]}`; ValueError for anything else."""
    if not isinstance(value, Mapping):
        raise ValueError(f"expected [size, digest] by file name, got a {type(value).__name__}")
    try:
        return {str(name): FileRecord(int(size), str(digest)) for name, (size, digest) in value.items()}
    except (TypeError, OverflowError):
        raise ValueError("expected [size, digest] by file name, got something else for a file") from None


def manifest_path(checkpoints: Path, rounds: int) -> Path:
    return checkpoints / f"{rounds:08d}.json"


def manifest_rounds(checkpoints: Path) -> list[int]:
    """Rounds of the completely saved checkpoints, oldest first."""
    return sorted(int(p.stem) for p in checkpoints.glob("*.json") if _MANIFEST.fullmatch(p.stem))


def write_manifest(path: Path, content: Mapping[str, Any]) -> None:
    """Write a manifest together with its own digest."""
    write_json(path, {**content, "digest": _digest_of(content)})


def read_manifest(path: Path) -> dict[str, Any]:
    """The manifest in a file; ValueError if it is not a manifest or was changed after it was written."""
    content = read_object(path)
    digest = content.pop("digest", None)  # earlier versions wrote none
    if digest is not None and digest != _digest_of(content):
        raise ValueError("expected an unchanged manifest, got one that does not match its own digest")
    return content


def _digest_of(content: Mapping[str, Any]) -> str:
    return hashlib.blake2b(json.dumps(content, sort_keys=True).encode()).hexdigest()


def read_evaluation(run: Path) -> list[dict[str, Any]]:
    """The rows of evaluation.json; ValueError if they cannot be read or were changed after they were written."""
    check_regular(file := run / EVALUATION)
    old = file.read_bytes()[:1] == b"["  # version 0.1 wrote a list
    content = {"rows": json.loads(file.read_text())} if old else read_manifest(file)
    env = read_object(run / "config.json").get("env")
    if not isinstance(rows := content.get("rows"), list) or content.get("env", env) != env:
        raise ValueError(f"expected rows of {env}, got something else")
    return rows


def newest_manifest(checkpoints: Path) -> tuple[int, dict[str, Any]]:
    """(rounds, manifest) of the newest checkpoint with a readable manifest; (0, {}) if there is none."""
    for rounds in reversed(manifest_rounds(checkpoints)):
        with contextlib.suppress(OSError, ValueError):
            return rounds, read_manifest(manifest_path(checkpoints, rounds))
    return 0, {}


def recorded_parts(manifest: Mapping[str, Any]) -> dict[str, FileRecord]:
    """Records of metrics parts by file name; empty for manifests of versions that did not record them."""
    try:
        return records(manifest.get("metrics", {}))
    except ValueError:
        return {}


def changed_setting(config: Mapping[str, Any], manifest: Mapping[str, Any]) -> str | None:
    """The first setting in which `config.json` differs from the checkpoint, as a sentence; None if there is none."""
    trained = manifest.get("config")
    if not isinstance(trained, dict):
        return None
    for name in sorted((config.keys() | trained.keys()) - OPERATIONAL_FIELDS - {"about", "extended"}):
        if config.get(name) != trained.get(name):
            if name == "total_env_steps" and any(trained.get(name) == old for _, old in extensions(config)):
                continue  # the checkpoint was saved before the run was extended
            return f"{name} is {config.get(name)!r} in config.json and {trained.get(name)!r} in the checkpoint"
    return None


def extensions(config: Mapping[str, Any]) -> list[tuple[int, int]]:
    """(rounds done, total_env_steps before) of every extension of a run; ValueError if they cannot be read."""
    try:
        return [(int(each["rounds"]), int(each["total_env_steps"])) for each in config.get("extended", [])]
    except (TypeError, KeyError, ValueError, OverflowError):
        raise ValueError("extended: expected a list of rounds and total_env_steps, got something else") from None


def parts(folder: Path) -> list[tuple[int, int, Path]]:
    """(first round, last round, path) of every metrics part, in order."""
    found = ((_PART.fullmatch(p.name), p) for p in folder.glob("part-*.parquet"))
    return sorted((int(m[1]), int(m[2]), p) for m, p in found if m)


def end(folder: Path) -> int:
    """Number of rounds up to the last one that has metrics on disk."""
    found = parts(folder)
    return found[-1][1] + 1 if found else 0


def part_name(first: int, last: int) -> str:
    return f"part-{first:08d}-{last:08d}.parquet"


def read_part(path: Path) -> pd.DataFrame:
    """The rows of a part; ValueError if it cannot be read."""
    try:
        check_regular(path)
        return pd.read_parquet(path)
    except Exception:
        # pyarrow raises many kinds of errors on damaged files.
        raise ValueError(f"{path.name} cannot be read") from None


def damage(folder: Path, rounds: int, recorded: Mapping[str, FileRecord]) -> list[Damage]:
    """Missing, damaged and overlapping parts among the metrics of the first `rounds` rounds.

    If parts overlap, those in `recorded` are kept and the others reported.
    """
    found, covered = [], list[tuple[int, int]]()
    for first, last, path in sorted(parts(folder), key=lambda part: (part[2].name not in recorded, part)):
        if first >= rounds:
            continue
        what = _fault(path, first, last, recorded.get(path.name))
        before = bisect.bisect_right(covered, (last, rounds))
        overlaps = before > 0 and covered[before - 1][1] >= first
        if overlaps:
            what = f"{path.name} overlaps another part"
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
            return None if record_file(path) == record else f"{path.name} has changed since it was written"
        rows = read_part(path)
    except (OSError, ValueError):
        return f"{path.name} cannot be read"
    if "round" not in rows or not len(rows) or (rows["round"].min(), rows["round"].max()) != (first, last):
        return f"{path.name} does not hold the rounds in its name"
    return None


def expected_rounds(run: Path, state: str, rounds: int) -> int:
    """Number of rounds that must have metrics: all of a finished run, else those written or checkpointed so far."""
    if state == "finished":
        return rounds
    return max(end(run / "metrics"), min(newest_manifest(run / "checkpoints")[0], rounds))


def metrics_damage(run: Path, state: str, rounds: int) -> list[Damage]:
    """Damage to the metrics of a run of `rounds` rounds with status `state`."""
    recorded = recorded_parts(newest_manifest(run / "checkpoints")[1])
    return damage(run / "metrics", expected_rounds(run, state, rounds), recorded)


def read_metrics(run: Path, without: list[Damage] | None = None) -> pd.DataFrame:
    """All rows, sorted by member and round, except those of the parts in `without`; ValueError if a part is damaged."""
    bad = {d.path for d in without or ()}
    frames = [read_part(path) for _, _, path in parts(run / "metrics") if path not in bad]
    if not frames:
        return pd.DataFrame()
    frame = pd.concat(frames, ignore_index=True)
    if not {"member", "round"} <= set(frame):
        raise ValueError("metrics: expected columns member and round, got parts without them")
    return frame.sort_values(["member", "round"], ignore_index=True)
