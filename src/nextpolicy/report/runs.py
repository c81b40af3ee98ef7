"""Run folders as tables: the settings of each run, how it ended, and its metrics by member and round.

Reads config.json, status.json, metrics/part-*.parquet, the manifests of checkpoints and, if they exist, evaluation.json
and statistics.csv.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from nextpolicy import runfiles
from nextpolicy._version import __version__
from nextpolicy.config import MAX_MEMBERS, ConfigError, Member, TrainConfig, shown, whole
from nextpolicy.config.presets import preset_for
from nextpolicy.report import columns
from nextpolicy.report.baseline import algorithm_of
from nextpolicy.settings import is_text

DEPTH = 3  # levels below a given folder that are searched for runs
KEYS = ("round", "env_steps", "member", "seed", "variant")
# Settings that runs of earlier versions do not record, with the value that leaves a run as it was without them.
ADDED_LATER = {"init_from": "", "held_out": 0.0}
DRAWN = ("episode_return", "accepted", "diff_over_threshold", "rounds_held")  # by figures and on the page


class ReportError(ValueError):
    """Runs that cannot be reported on, in one line."""


@dataclass(frozen=True, eq=False)
class Run:
    """One run folder."""

    path: Path
    name: str
    env: str  # the id and its options
    suite: str  # minatar, brax, atari, four-rooms, playground, craftax or default: aggregated together
    settings: dict[str, Any]  # config.json by flat name, without `about`
    about: dict[str, Any]  # versions, device, revision
    members: list[Member]
    state: str  # finished | running | stopped | failed | unknown
    reason: str
    last_sign: str  # when the status was written
    rounds_done: int
    rounds: int
    total_steps: int
    frame: pd.DataFrame  # the metrics that the report reads, as far as the run recorded them
    evaluation: dict[int, float]  # member -> mean return of its target policy
    statistics: pd.DataFrame | None = None  # `columns.STATISTICS` of each member, if this is a small copy of a run

    @property
    def algorithm(self) -> str:
        """The algorithm that all members share."""
        return algorithm_of(self.members[0].algo)

    @property
    def steps_per_round(self) -> int:
        return self.total_steps // max(self.rounds, 1)


def find(paths: Sequence[str | Path]) -> list[Path]:
    """The run folders among the paths or below them, each once, in order."""
    found: dict[Path, Path] = {}
    for path in map(Path, paths):
        if not path.is_dir():
            raise ReportError(f"report: expected a folder, got {path}")
        inside = [p.parent for d in range(DEPTH + 1) for p in sorted(path.glob("*/" * d + "config.json"))]
        inside = [p for p in inside if not any(part.startswith(".") for part in p.relative_to(path).parts)]
        if not inside:
            raise ReportError(
                f"report: expected a run, got {path} (no config.json in it or up to {DEPTH} levels below)"
            )
        for each in inside:
            if not is_text(each):
                raise ReportError(f"report: expected a path in UTF-8, got {str(each)!r}; rename the folder")
        found |= {p.resolve(): p for p in inside}
    return list(found.values())


def load(path: Path, *, allow_gaps: bool = False) -> Run:
    """Read a run folder; missing or damaged metrics are an error unless `allow_gaps`."""
    _check_copy(path)
    raw = _json(path / "config.json")
    about = raw.get("about", {})
    if not isinstance(about, dict) or not isinstance(about.get("versions", {}), dict):
        raise ReportError(f"run {path}: about: expected an object in config.json, got {shown(about)}")
    settings = {k: v for k, v in raw.items() if k not in runfiles.NOT_SETTINGS}
    try:
        runfiles.extensions(raw)
    except ValueError as error:
        raise ReportError(f"run {path}: config.json: {error}; restore it") from None
    try:
        config = TrainConfig.from_flat(settings)
    except ConfigError as error:
        version = about.get("nextpolicy", "of an unknown version")
        raise ReportError(f"run {path}: written by nextpolicy {version}, this is {__version__}: {error}") from None
    status = _json(path / "status.json") if (path / "status.json").is_file() else {}
    options = ",".join(f"{k}={v}" for k, v in config.environment.env_options.items())
    env = config.environment.env
    members = config.members()
    state = _text(status.get("state", "unknown"))
    frame = _metrics(path, raw, state, config.num_rounds, allow_gaps)
    _check_rows(path, frame, members)
    rounds_done = 0 if frame.empty else int(frame["round"].max()) + 1
    return Run(
        path=path,
        name=path.resolve().name,
        env=f"{env}[{options}]" if options else env,
        suite=preset_for(env),
        settings={**ADDED_LATER, **settings, "custom": raw.get("custom", []), "extended": raw.get("extended", [])},
        about=about,
        members=members,
        state=state,
        reason=" ".join(_text(status.get("reason", "")).split()),
        last_sign=_text(status.get("time", ""))[:16].replace("T", " "),
        rounds_done=rounds_done,
        rounds=config.num_rounds,
        total_steps=config.num_rounds * config.batch_size,
        frame=frame,
        evaluation=_evaluation(path),
        statistics=_statistics(path, len(members)),
    )


def _check_copy(path: Path) -> None:
    """Raise if this is a small copy of a run and a file was changed since. Earlier versions recorded none."""
    if not (path / runfiles.COPIED).is_file():
        return
    try:
        expected = runfiles.records(runfiles.read_manifest(path / runfiles.COPIED).get("files"))
        if any(not (path / name).resolve().is_relative_to(path.resolve()) for name in expected):
            raise ValueError("it names files outside the run")
        changed = [name for name, record in expected.items() if runfiles.record_file(path / name) != record]
    except (OSError, ValueError) as error:
        raise ReportError(f"run {path}: {runfiles.COPIED} cannot be read ({error}); copy the run again") from None
    if changed:
        raise ReportError(f"run {path}: {changed[0]} has changed since it was copied; copy the run again")


def _json(path: Path) -> dict[str, Any]:
    try:
        return runfiles.read_object(path)
    except (OSError, ValueError) as error:
        raise ReportError(f"run {path.parent}: {path.name} cannot be read ({error})") from None


def _text(value: object) -> str:
    """Text that a page can hold: JSON may have half a surrogate pair, which UTF-8 has not."""
    return str(value).encode(errors="backslashreplace").decode()


def _evaluation(path: Path) -> dict[int, float]:
    if not (path / runfiles.EVALUATION).is_file():
        return {}
    try:
        rows = runfiles.read_evaluation(path)
        return {whole("member", row["member"], 0, MAX_MEMBERS): _finite(row["mean"]) for row in rows}
    except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise ReportError(f"run {path}: evaluation.json cannot be read ({error})") from None


def _statistics(path: Path, members: int) -> pd.DataFrame | None:
    """The statistics of a copy's members, one row each in order; None if the run is no copy."""
    file = path / runfiles.STATISTICS_FILE
    if not file.is_file():
        return None
    try:
        table = pd.read_csv(file)
        if list(table["member"]) != list(range(members)):
            raise ValueError(f"expected a row for each of {members} members")
        return table.drop(columns="member").astype(np.float64)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ReportError(f"run {path}: {file.name} cannot be read ({' '.join(str(error).split())})") from None


def _finite(raw: str | float) -> float:
    """A mean return: NaN, or within the range of float32, so that the ratio of two is finite."""
    mean = float(raw)
    if abs(mean) > 3.5e38:
        raise ValueError(f"mean: expected a finite number, got {shown(raw)}")
    return 0.0 if abs(mean) < 1e-45 else mean


def _metrics(path: Path, raw: dict[str, Any], state: str, rounds: int, allow_gaps: bool) -> pd.DataFrame:
    """All rows by member and round, with the metrics that the report reads and the run recorded."""
    names = list(dict.fromkeys([*KEYS, *DRAWN, *sorted(columns.metrics_read())]))
    damage = runfiles.metrics_damage(path, state, rounds)
    if damage and not allow_gaps:
        command = f"`nextpolicy resume {shlex.quote(str(path))}`"
        hint = f"{command} recomputes them from a checkpoint, --allow-gaps reports without them"
        raise ReportError(f"run {path}: {damage[0]}; {hint}")
    changed = runfiles.changed_setting(raw, runfiles.newest_manifest(path / "checkpoints")[1])
    if changed:
        raise ReportError(f"run {path}: config.json was changed: {changed}; restore it")
    try:
        frame = runfiles.read_metrics(path, without=damage)
    except ValueError as error:
        raise ReportError(f"run {path}: {error}") from None
    if frame.empty:
        return pd.DataFrame(columns=names)
    missing = [name for name in KEYS if name not in frame]
    if missing:
        version = raw.get("about", {}).get("nextpolicy", "of an unknown version")
        raise ReportError(
            f"run {path}: metrics: expected {', '.join(KEYS)}, got no {', '.join(missing)}; "
            f"it was written by nextpolicy {version}, this is {__version__}"
        )
    return frame[[name for name in names if name in frame]]


def _check_rows(path: Path, frame: pd.DataFrame, members: list[Member]) -> None:
    """Metrics must be numbers, of the members in config.json, with each round of each once."""
    for name in frame if len(frame) else ():
        kind = frame[name].dtype
        if name != "variant" and kind.kind not in "biuf":
            raise ReportError(f"run {path}: metrics: expected numbers in {name}, got {kind}")
    twice = frame[frame.duplicated(["member", "round"])]
    if len(twice):
        first = twice.iloc[0]
        raise ReportError(f"run {path}: metrics: expected each round once, got round {first['round']} twice")
    configured = {i: (member.variant, member.seed) for i, member in enumerate(members)}
    for who in frame[["member", "variant", "seed"]].drop_duplicates().itertuples(index=False):
        if configured.get(who.member) != (who.variant, who.seed):
            raise ReportError(
                f"run {path}: metrics: expected the members of config.json, got member {who.member} as {who.variant}, "
                f"seed {who.seed}"
            )


def by_environment(runs: Sequence[Run]) -> dict[str, list[Run]]:
    grouped: dict[str, list[Run]] = {}
    for run in runs:
        grouped.setdefault(run.env, []).append(run)
    return grouped
