"""Run folders as tables: what each run was told, how it ended, and its metrics by member and round.

Nothing but files is read: config.json, status.json, metrics/part-*.parquet and, if it is there, evaluation.json.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from nextpolicy import runfiles
from nextpolicy._version import __version__
from nextpolicy.config import MAX_MEMBERS, ConfigError, Member, TrainConfig, shown, whole
from nextpolicy.config.presets import preset_for

DEPTH = 3  # how far below a given folder runs are looked for
NEEDED = (
    "round env_steps member seed variant episode_return episodes accepted diff_over_threshold rounds_held "
    "kl_target kl_behaviour value_loss entropy"
)


class ReportError(ValueError):
    """Runs that cannot be reported on: one line."""


@dataclass(frozen=True, eq=False)
class Run:
    """One run folder."""

    path: Path
    name: str
    env: str  # the id, with its options where there are any
    suite: str  # minatar, brax, atari, four-rooms or default: what is aggregated together
    settings: dict[str, Any]  # config.json by flat name, without what follows
    about: dict[str, Any]  # versions, device, revision
    members: list[Member]
    state: str  # finished | running | stopped | failed | unknown
    reason: str
    last_sign: str  # when the status was written
    rounds_done: int
    rounds: int
    total_steps: int
    frame: pd.DataFrame
    evaluation: dict[int, float]  # member -> mean return of its target policy


def find(paths: Sequence[str | Path]) -> list[Path]:
    """Run folders given, or below the folders given; each once, in order."""
    found: dict[Path, Path] = {}
    for path in map(Path, paths):
        if not path.is_dir():
            raise ReportError(f"report: {path} is not a folder")
        inside = [p.parent for d in range(DEPTH + 1) for p in sorted(path.glob("*/" * d + "config.json"))]
        if not inside:
            raise ReportError(f"report: {path} holds no run (no config.json in it or up to {DEPTH} levels below)")
        found |= {p.resolve(): p for p in inside}
    return list(found.values())


def load(path: Path, *, allow_gaps: bool = False) -> Run:
    """A run as it is on disk; missing or damaged metrics are an error, unless gaps are allowed."""
    raw = _json(path / "config.json")
    about = raw.get("about", {})
    if not isinstance(about, dict) or not isinstance(about.get("versions", {}), dict):
        raise ReportError(f"run {path}: config.json has an `about` that is no table of facts")
    settings = {k: v for k, v in raw.items() if k not in ("about", "custom")}
    try:
        config = TrainConfig.from_flat(settings)
    except ConfigError as error:
        made_by = about.get("nextpolicy", "an unknown version")
        raise ReportError(f"run {path}: made by nextpolicy {made_by}, this is {__version__}: {error}") from None
    status = _json(path / "status.json") if (path / "status.json").is_file() else {}
    options = ",".join(f"{k}={v}" for k, v in config.environment.env_options.items())
    env = config.environment.env
    members = config.members()
    state = str(status.get("state", "unknown"))
    frame = _metrics(path, raw, state, config.num_rounds, allow_gaps)
    _check_rows(path, frame, members)
    rounds_done = 0 if frame.empty else int(frame["round"].max()) + 1
    return Run(
        path=path,
        name=path.resolve().name,
        env=f"{env}[{options}]" if options else env,
        suite=preset_for(env),
        settings={**settings, "custom": raw.get("custom", [])},
        about=about,
        members=members,
        state=state,
        reason=" ".join(str(status.get("reason", "")).split()),
        last_sign=str(status.get("time", ""))[:16].replace("T", " "),
        rounds_done=rounds_done,
        rounds=config.num_rounds,
        total_steps=config.num_rounds * config.batch_size,
        frame=frame,
        evaluation=_evaluation(path),
    )


def _json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text())
    except (OSError, ValueError, RecursionError) as error:
        raise ReportError(f"run {path.parent}: {path.name} cannot be read ({error})") from None
    if not isinstance(value, dict):
        raise ReportError(f"run {path.parent}: {path.name} holds no table of fields")
    return value


def _evaluation(path: Path) -> dict[int, float]:
    file = path / "evaluation.json"
    if not file.is_file():
        return {}
    try:
        rows = json.loads(file.read_text())
        return {whole("member", row["member"], 0, MAX_MEMBERS): _mean_return(row["mean"]) for row in rows}
    except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise ReportError(f"run {path}: evaluation.json cannot be read ({error})") from None


def _mean_return(raw: Any) -> float:
    """A mean of returns: NaN, or of a size that float32 numbers can have, so that ratios of two are finite."""
    mean = float(raw)
    if abs(mean) > 3.5e38:
        raise ValueError(f"mean: got {shown(raw)}, takes a finite number")
    return 0.0 if abs(mean) < 1e-45 else mean


def _metrics(path: Path, raw: dict[str, Any], state: str, rounds: int, allow_gaps: bool) -> pd.DataFrame:
    """All rows by member and round; what is damaged, missing, changed or of another version is an error."""
    names = NEEDED.split()
    damage = runfiles.metrics_damage(path, state, rounds)
    if damage and not allow_gaps:
        hint = f"`nextpolicy resume {path}` computes them again where a checkpoint allows, --allow-gaps does without"
        raise ReportError(f"run {path}: {damage[0]}; {hint}")
    changed = runfiles.changed_setting(raw, runfiles.newest_manifest(path / "checkpoints")[1])
    if changed:
        raise ReportError(f"run {path}: config.json was changed: {changed}; put it back")
    try:
        frame = runfiles.read_metrics(path, without=damage)
    except ValueError as error:
        raise ReportError(f"run {path}: {error}") from None
    if frame.empty:
        return pd.DataFrame(columns=names)
    missing = [n for n in names if n not in frame]
    if missing:
        made_by = raw.get("about", {}).get("nextpolicy", "an unknown version")
        raise ReportError(
            f"run {path}: made by nextpolicy {made_by}, has no column {', '.join(missing)}; "
            f"this is {__version__}, which needs it"
        )
    return frame[names]


def _check_rows(path: Path, frame: pd.DataFrame, members: list[Member]) -> None:
    """Rows must be numbers, of the members that config.json names, each round of each once."""
    for name in frame if len(frame) else ():
        kind = frame[name].dtype
        if name != "variant" and kind.kind not in "biuf":
            raise ReportError(f"run {path}: its metrics have in {name} what is not a number")
    if frame.duplicated(["member", "round"]).any():
        raise ReportError(f"run {path}: its metrics have a round of a member twice")
    told = {i: (member.variant, member.seed) for i, member in enumerate(members)}
    for who in frame[["member", "variant", "seed"]].drop_duplicates().itertuples(index=False):
        if told.get(who.member) != (who.variant, who.seed):
            raise ReportError(
                f"run {path}: its metrics have member {who.member} as {who.variant}, seed {who.seed}; "
                f"config.json names another"
            )
