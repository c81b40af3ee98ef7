"""Checks that runs can be compared: the same settings for each algorithm and environment, and no seed twice.

Environments in one suite may have different settings (`[environment."..."]` in the suite file), because variants are
compared with their baseline only on the same environment. The report lists the settings that differ. Algorithms may
have different settings too, because each is compared with its own baseline.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from nextpolicy.config import Member
from nextpolicy.report.runs import ReportError, Run, find, load
from nextpolicy.runfiles import OPERATIONAL_FIELDS

# Settings that may differ between compared runs: those under comparison, and those that do not affect the results.
FREE_FIELDS = {"env", "env_options", "seeds", "algo", "sweep"} | OPERATIONAL_FIELDS


def load_all(paths: Sequence[str | Path], *, allow_mixed: bool = False, allow_gaps: bool = False) -> list[Run]:
    """All runs below the paths, checked to be comparable.

    With `allow_mixed` nothing is checked, and runs that cannot be pooled get the folder's name in their `env`.
    """
    runs = [load(path, allow_gaps=allow_gaps) for path in find(paths)]
    if not allow_mixed:
        _check_settings(runs)
        _check_members(runs)
        return runs
    by_env: dict[str, list[Run]] = {}
    for run in runs:
        by_env.setdefault(run.env, []).append(run)
    apart = {env for env, many in by_env.items() if _must_stand_apart(many)}
    names = _distinct_names([run for run in runs if run.env in apart])
    return [replace(run, env=f"{run.env} ({names[run.path]})") if run.env in apart else run for run in runs]


def _must_stand_apart(runs: list[Run]) -> bool:
    """Whether runs of one environment cannot be pooled: a variant has a seed twice, or different settings."""
    for i, run in enumerate(runs):
        for other in runs[:i]:
            shared = {m.variant for m in run.members} & {m.variant for m in other.members}
            if set(run.members) & set(other.members) or (shared and differing_fields(run, other)):
                return True
    return False


def _distinct_names(runs: list[Run]) -> dict[Path, str]:
    """The name of each run's folder, with as many parent folders as needed to be unique."""
    whole = {run.path: run.path.resolve().parts for run in runs}
    for depth in range(1, max(map(len, whole.values()), default=1) + 1):
        names = {path: "/".join(parts[-depth:]) for path, parts in whole.items()}
        if len(set(names.values())) == len(names):
            break
    return names


def differing_fields(run: Run, other: Run) -> list[str]:
    """Settings that differ but must be the same within one comparison."""
    fields = sorted({*run.settings, *other.settings} - FREE_FIELDS)
    missing = "not recorded"
    return [f for f in fields if run.settings.get(f, missing) != other.settings.get(f, missing)]


def _comparison(run: Run) -> str:
    """The algorithm, the environment's id and its options, without the folder name that `load_all` may append."""
    return str([run.algorithm, run.settings.get("env"), run.settings.get("env_options")])


def mixed_fields(runs: Sequence[Run]) -> list[str]:
    """Settings that differ between runs of one environment; none unless mixing was allowed."""
    first: dict[str, Run] = {}
    return sorted({f for run in runs for f in differing_fields(run, first.setdefault(_comparison(run), run))})


def varied_fields(runs: Sequence[Run]) -> list[str]:
    """Settings of one algorithm that differ between environments of one suite: `gamma (0.9 on a; 0.99 on b)`."""
    by_suite: dict[tuple[str, str], dict[str, Run]] = {}
    for run in runs:
        by_suite.setdefault((run.suite, run.algorithm), {}).setdefault(_comparison(run), run)
    said = []
    for suite in by_suite.values():
        one, *others = suite.values()
        for field in sorted({f for run in others for f in differing_fields(run, one)}):
            values: dict[str, list[str]] = {}
            for run in suite.values():
                values.setdefault(str(run.settings.get(field, "not recorded")), []).append(run.env)
            said.append(f"{field} ({'; '.join(f'{value} on {_some(envs)}' for value, envs in values.items())})")
    return said


def _some(envs: list[str], most: int = 3) -> str:
    return ", ".join(envs) if len(envs) <= most else f"{len(envs)} environments"


def _check_settings(runs: list[Run]) -> None:
    """Raise ReportError for the first setting that differs between runs of one environment."""
    first: dict[str, Run] = {}
    for run in runs:
        other = first.setdefault(_comparison(run), run)
        for field in differing_fields(run, other):
            ours, theirs = (r.settings.get(field, "not recorded") for r in (run, other))
            raise ReportError(
                f"{field}: expected the same value in all runs on {run.env}, got {ours} in {run.path} and {theirs} in "
                f"{other.path}; --allow-mixed compares them anyway"
            )


def _check_members(runs: list[Run]) -> None:
    seen: dict[tuple[str, Member], Run] = {}
    for run in runs:
        for member in run.members:
            other = seen.setdefault((run.env, member), run)
            if other is not run:
                raise ReportError(
                    f"seeds: expected each seed once, got {member.variant}, seed {member.seed} on {run.env} in "
                    f"{run.path} and {other.path}; leave one out, or show both with --allow-mixed"
                )
