"""Run folders as tables: what each run was told, how it ended, and one row of numbers for each of its members.

Nothing but files is read: config.json, status.json, metrics/part-*.parquet and, if it is there, evaluation.json.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from nextpolicy._version import __version__
from nextpolicy.config import ConfigError, Member, TrainConfig
from nextpolicy.presets import preset_for

SCORE_SHARE = 0.1  # a member's score is its mean return over this last share of its steps
DEPTH = 3  # how far below a given folder runs are looked for
NEEDED = (
    "round env_steps member seed variant episode_return episodes accepted diff_over_threshold rounds_held "
    "kl_target kl_behaviour value_loss entropy"
)
# What may differ between runs that are compared: what is varied on purpose, and what leaves the numbers alone.
FREE_FIELDS = {"env", "env_options", "seeds", "algo", "sweep"} | {
    "population",
    "devices",
    "block_rounds",
    "tensorboard",
    "wandb",
    "keep_checkpoints",
}
_PART = re.compile(r"part-(\d{8})-(\d{8})\.parquet")


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


def load(path: Path) -> Run:
    """A run as it is on disk."""
    raw = _json(path / "config.json")
    about = raw.get("about", {})
    settings = {k: v for k, v in raw.items() if k not in ("about", "custom")}
    try:
        config = TrainConfig.from_flat(settings)
    except ConfigError as error:
        made_by = about.get("nextpolicy", "an unknown version")
        raise ReportError(f"run {path}: made by nextpolicy {made_by}, this is {__version__}: {error}") from None
    status = _json(path / "status.json") if (path / "status.json").is_file() else {}
    options = ",".join(f"{k}={v}" for k, v in config.environment.env_options.items())
    env = config.environment.env
    frame = _metrics(path, about)
    rounds_done = 0 if frame.empty else int(frame["round"].max()) + 1
    return Run(
        path=path,
        name=path.resolve().name,
        env=f"{env}[{options}]" if options else env,
        suite=preset_for(env),
        settings={**settings, "custom": raw.get("custom", [])},
        about=about,
        members=config.members(),
        state=str(status.get("state", "unknown")),
        reason=str(status.get("reason", "")),
        rounds_done=rounds_done,
        rounds=config.num_rounds,
        total_steps=config.num_rounds * config.batch_size,
        frame=frame,
        evaluation=_evaluation(path),
    )


def _json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text())
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ReportError(f"run {path.parent}: {path.name} cannot be read ({error})") from None
    if not isinstance(value, dict):
        raise ReportError(f"run {path.parent}: {path.name} holds no table of fields")
    return value


def _evaluation(path: Path) -> dict[int, float]:
    file = path / "evaluation.json"
    if not file.is_file():
        return {}
    try:
        return {int(row["member"]): float(row["mean"]) for row in json.loads(file.read_text())}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ReportError(f"run {path}: evaluation.json cannot be read ({error})") from None


def _metrics(path: Path, about: dict[str, Any]) -> pd.DataFrame:
    """All rows by member and round; a part that is damaged, missing or of another version is an error."""
    names = NEEDED.split()
    frames, expected = [], 0
    for part in sorted(p for p in (path / "metrics").glob("part-*.parquet") if _PART.fullmatch(p.name)):
        first, last = (int(n) for n in _PART.fullmatch(part.name).groups())  # type: ignore[union-attr]
        if first != expected:
            raise ReportError(f"run {path}: metrics of rounds {expected} to {first - 1} are missing; resume mends it")
        try:
            frame = pd.read_parquet(part)
        except Exception:
            # pyarrow raises many kinds of error on damaged files; any of them means the part cannot be used.
            raise ReportError(
                f"run {path}: {part.name} is damaged or half written; `nextpolicy resume` mends it"
            ) from None
        missing = [n for n in names if n not in frame]
        if missing:
            made_by = about.get("nextpolicy", "an unknown version")
            raise ReportError(
                f"run {path}: made by nextpolicy {made_by}, has no column {', '.join(missing)}; "
                f"this is {__version__}, which needs it"
            )
        frames.append(frame[names])
        expected = last + 1
    if not frames:
        return pd.DataFrame(columns=names)
    return pd.concat(frames, ignore_index=True).sort_values(["member", "round"], ignore_index=True)


def load_all(paths: Sequence[str | Path], *, allow_mixed: bool = False) -> list[Run]:
    """Every run below the paths, checked to be comparable within its suite."""
    runs = [load(path) for path in find(paths)]
    if not allow_mixed:
        _check_settings(runs)
        _check_members(runs)
        return runs
    labels = [(run.env, m) for run in runs for m in run.members]
    twice = {env for env, m in labels if labels.count((env, m)) > 1}
    return [replace(run, env=f"{run.env} ({run.name})") if run.env in twice else run for run in runs]


def _check_settings(runs: list[Run]) -> None:
    """Refuse a comparison of two settings: the first field that differs is named."""
    first: dict[str, Run] = {}
    for run in runs:
        other = first.setdefault(run.suite, run)
        for field in sorted({*run.settings, *other.settings} - FREE_FIELDS):
            ours, theirs = (r.settings.get(field, "not recorded") for r in (run, other))
            if ours != theirs:
                raise ReportError(
                    f"report: {run.path} has {field} = {ours}, {other.path} has {theirs}; these are different presets "
                    f"and not one comparison (--allow-mixed takes them all the same)"
                )


def _check_members(runs: list[Run]) -> None:
    seen: dict[tuple[str, Member], Run] = {}
    for run in runs:
        for member in run.members:
            other = seen.setdefault((run.env, member), run)
            if other is not run:
                raise ReportError(
                    f"report: {run.path} and {other.path} both hold {member.variant}, seed {member.seed} on {run.env}; "
                    f"give one of them (--allow-mixed shows each on its own line)"
                )


STATISTICS = (
    *("score", "updates_pct", "diff_median_pct", "diff_std_pct", "value_loss"),
    *("kl_target", "kl_behaviour", "entropy", "target_score"),
)


def member_table(runs: Sequence[Run]) -> pd.DataFrame:
    """One row per member of every run: who it is, how it stands (`state`, `reason`), and its statistics.

    score          mean return of the episodes that ended in the last 10 % of its steps, each episode counting once
    updates_pct    share of rounds that updated the target policy, in percent
    diff_*_pct     median and standard deviation (n - 1) over rounds of diff / threshold, in percent; sv-dynamic only
    kl_target      mean over the rounds that updated the target; the others are means over all rounds
    target_score   mean return of the target policy over whole episodes, where a suite has measured it

    Only a finished run has statistics: what a curve shows half-way is not what it will be. The rest is NaN.
    """
    rows = []
    for run in runs:
        by_member = dict(iter(run.frame.groupby("member"))) if len(run.frame) else {}
        for index, member in enumerate(run.members):
            frame = by_member.get(index)
            numbers, state, reason = dict.fromkeys(STATISTICS, np.nan), run.state, run.reason
            if run.state == "finished" and (frame is None or len(frame) < run.rounds):
                state, reason = "missing", "its metrics are not in the folder"
            elif run.state == "finished":
                numbers = _statistics(frame, member, run)
                if np.isnan(numbers["score"]):
                    state, reason = "no score", "no episode ended in the last 10 % of its steps"
            elif not reason:
                reason = f"{run.rounds_done} of {run.rounds} rounds done"
            who = (run.suite, run.env, member.variant, member.seed, run.name, state, reason)
            rows.append((*who, *numbers.values()))
    return pd.DataFrame(rows, columns=["suite", "env", "variant", "seed", "run", "state", "reason", *STATISTICS])


def _statistics(frame: pd.DataFrame, member: Member, run: Run) -> dict[str, float]:
    late = frame[frame["env_steps"] > (1 - SCORE_SHARE) * run.total_steps]
    episodes = late["episodes"].to_numpy()
    returns = np.where(episodes > 0, late["episode_return"].to_numpy(np.float64), 0.0)
    accepted = frame["accepted"].to_numpy(bool)
    mean = lambda name: float(frame[name].mean())  # noqa: E731
    diff = 100 * frame["diff_over_threshold"].to_numpy(np.float64)
    diff = diff[np.isfinite(diff)] if member.algo == "sv-dynamic" else diff[:0]
    values = (
        # Returns are recorded in float32: past six digits two members that earned the same would differ by noise.
        float(f"{returns @ episodes / episodes.sum():.6g}") if episodes.sum() else np.nan,
        100.0 * float(accepted.mean()),
        float(np.median(diff)) if len(diff) else np.nan,
        float(np.std(diff, ddof=1)) if len(diff) > 1 else np.nan,
        mean("value_loss"),
        float(frame["kl_target"].to_numpy(np.float64)[accepted].mean()) if accepted.any() else np.nan,
        mean("kl_behaviour"),
        mean("entropy"),
        run.evaluation.get(run.members.index(member), np.nan),
    )
    return dict(zip(STATISTICS, values, strict=True))
