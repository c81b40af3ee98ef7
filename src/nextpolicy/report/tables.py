"""The tables of a comparison: one line per environment for each variant, and one line per suite and variant.

Every number has the seeds it rests on and a 95 % interval (percentile bootstrap over seeds, on both sides of a ratio,
environments as strata). Members that failed, are missing or not finished are counted and named, never left out in
silence.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from nextpolicy.report import aggregate
from nextpolicy.report.aggregate import AggregateRow
from nextpolicy.report.comparable import mixed_fields, varied_fields
from nextpolicy.report.members import STATISTICS, member_table
from nextpolicy.report.runs import Run

REPS = 1000
SEED = 0
LEVEL = 0.95
_PAPER_VARIANTS = {"sv-static": "static", "sv-dynamic": "dynamic"}

# Columns that are a ratio of means, variant over PPO: name -> (statistic of a member, factor)
RATIOS = {
    "updates_pct_of_ppo": ("updates_pct", 100.0),
    "value_loss_x_ppo": ("value_loss", 1.0),
    "value_loss_late_x_ppo": ("value_loss_late", 1.0),
    "kl_target_x_ppo": ("kl_target", 1.0),
    "kl_behaviour_x_ppo": ("kl_behaviour", 1.0),
    "entropy_x_ppo": ("entropy", 1.0),
    "entropy_late_x_ppo": ("entropy_late", 1.0),
}
# Columns that are a mean of the variant's own members.
MEANS = {
    "score": "score",
    "diff_over_threshold_median_pct": "diff_median_pct",
    "diff_std_pct_of_threshold": "diff_std_pct",
}
# Columns that are a mean of PPO's members.
PPO_MEANS = {"ppo_score": "score", "ppo_entropy": "entropy", "ppo_entropy_late": "entropy_late"}
INTERVALS = ("score_pct_of_ppo", *RATIOS, *MEANS, *PPO_MEANS, "target_score_pct_of_ppo")
# What the paper prints by environment -> (our column it is compared with, name of the difference). Its value loss and
# entropy are "at convergence": the last 10 % of steps.
PAPER_COLUMNS = {
    "score_pct_of_ppo": ("score_pct_of_ppo", "difference_from_paper"),
    "value_loss_x_ppo": ("value_loss_late_x_ppo", "value_loss_difference_from_paper"),
    "ppo_entropy": ("ppo_entropy_late", "ppo_entropy_difference_from_paper"),
}
# Columns of the table of returns: a mean of a variant's own members, each with its interval.
OWN_MEANS = tuple(name for name in STATISTICS if name != "env_steps")


def baseline_of(variant: str, variants: Sequence[str]) -> str | None:
    """What a variant is compared with: PPO at the same swept values, else plain PPO."""
    swept = re.search(r"\[.*\]$", variant)
    wanted = [f"ppo{swept[0]}"] if swept else []
    return next((name for name in [*wanted, "ppo"] if name in variants), None)


def variants_of(members: pd.DataFrame) -> list[str]:
    """Every variant but PPO, in the order of the runs."""
    return [v for v in dict.fromkeys(members["variant"]) if not v.startswith("ppo")]


def environment_table(members: pd.DataFrame, variant: str) -> pd.DataFrame:
    """One line per environment that has or should have this variant; `note` says what is missing."""
    rows = []
    for env, group in members.groupby("env", sort=False):
        baseline = baseline_of(variant, list(group["variant"]))
        ours, theirs = group[group["variant"] == variant], group[group["variant"] == baseline]
        if len(ours):
            rows.append({"env": env, "variant": variant, **_environment_row(ours, theirs)})
    return pd.DataFrame(rows)


def _environment_row(ours: pd.DataFrame, theirs: pd.DataFrame) -> dict[str, Any]:
    scored, base = ours[ours["score"].notna()], theirs[theirs["score"].notna()]
    row: dict[str, Any] = {
        "seeds": len(scored),
        "seeds_planned": len(ours),
        "ppo_seeds": len(base),
        "ppo_seeds_planned": len(theirs),
        "note": note_of(ours, theirs),
    }
    row |= dict.fromkeys(("score_pct_of_ppo", "score_spread", "p_value"), np.nan) | {"significant": False}
    if len(scored) and len(base):
        scores = {"": {"ours": scored["score"].to_numpy(), "ppo": base["score"].to_numpy()}}
        row |= aggregate.percent_table(scores, "ours").drop(columns="env").iloc[0].to_dict()
        if np.isnan(row["score_pct_of_ppo"]):
            row["note"] = "; ".join(filter(None, [row["note"], "PPO's mean score is 0, which has no percentage"]))
    for name, (statistic, factor) in RATIOS.items():
        row[name] = _ratio(scored[statistic].mean(), base[statistic].mean(), factor)
    for name, statistic in MEANS.items():
        row[name] = scored[statistic].mean()
    for name, statistic in PPO_MEANS.items():
        row[name] = base[statistic].mean()
    row["target_score_pct_of_ppo"] = float(
        aggregate.percent_of_ppo(scored["target_score"].mean(), base["target_score"].mean())
    )
    for name, (low, high) in _intervals(scored, base).items():
        row[f"{name}_low"], row[f"{name}_high"] = low, high
    return row


def scores_table(members: pd.DataFrame) -> pd.DataFrame:
    """One line per environment and variant, PPO's too, in returns: nothing is compared, so nothing is needed for it."""
    rows = []
    for (env, variant), ours in members.groupby(["env", "variant"], sort=False):
        scored = ours[ours["score"].notna()]
        row: dict[str, Any] = {"suite": ours["suite"].iloc[0], "env": env, "variant": variant}
        row |= {"seeds": len(scored), "seeds_planned": len(ours), "note": note_of(ours)}
        row |= {"score_std": scored["score"].std(), "env_steps": scored["env_steps"].mean()}
        side = [SEED, int(str(variant).startswith("ppo"))]  # the resamples, so the intervals, of the table against PPO
        for name in OWN_MEANS:
            draws = _resampled(scored[name].to_numpy(np.float64), side) if len(scored) >= 2 else np.empty(0)
            row[name] = scored[name].mean()
            row[f"{name}_low"], row[f"{name}_high"] = _bounds(draws)
        rows.append(row)
    return pd.DataFrame(rows)


def _ratio(ours: Any, theirs: Any, factor: float) -> Any:
    """factor * ours / theirs where PPO's is positive; otherwise a multiple of it says nothing (entropies)."""
    ours, theirs = np.asarray(ours, np.float64), np.asarray(theirs, np.float64)
    return np.where(theirs > 0, factor * ours / np.where(theirs > 0, theirs, np.nan), np.nan)[()]


def _percent(ours: np.ndarray, theirs: np.ndarray) -> np.ndarray:
    """`aggregate.percent_of_ppo` with a PPO mean for every resample."""
    size = np.where(theirs == 0, np.nan, np.abs(theirs))
    return 100.0 + 100.0 * (ours - theirs) / size


def _resampled(values: np.ndarray, seed: list[int]) -> np.ndarray:
    """Means of REPS resamples of the seeds, [REPS]."""
    rng = np.random.default_rng(seed)
    return values[rng.integers(len(values), size=(REPS, len(values)))].mean(axis=1)


def _intervals(scored: pd.DataFrame, base: pd.DataFrame) -> dict[str, tuple[float, float]]:
    """Interval of every column; NaN with fewer than two seeds on a side it needs."""
    nothing = dict.fromkeys(INTERVALS, (np.nan, np.nan))
    mean = lambda frame, name, side: _resampled(frame[name].to_numpy(np.float64), [SEED, side])  # noqa: E731
    draws = {}
    if len(scored) >= 2:
        draws |= {name: mean(scored, statistic, 0) for name, statistic in MEANS.items()}
    if len(base) >= 2:
        draws |= {name: mean(base, statistic, 1) for name, statistic in PPO_MEANS.items()}
    if len(draws) == len(MEANS) + len(PPO_MEANS):
        for name, (statistic, factor) in RATIOS.items():
            draws[name] = _ratio(mean(scored, statistic, 0), mean(base, statistic, 1), factor)
        for name, statistic in (("score_pct_of_ppo", "score"), ("target_score_pct_of_ppo", "target_score")):
            draws[name] = _percent(mean(scored, statistic, 0), mean(base, statistic, 1))
    return nothing | {name: _bounds(values) for name, values in draws.items()}


def _bounds(draws: np.ndarray) -> tuple[float, float]:
    draws = draws[np.isfinite(draws)]
    if len(draws) < REPS // 2:
        return np.nan, np.nan
    low, high = np.quantile(draws, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)


def note_of(ours: pd.DataFrame, theirs: pd.DataFrame | None = None) -> str:
    """What is missing and why, in words; empty if nothing is. `theirs` are PPO's members, where it is compared."""
    if theirs is not None and not len(theirs):
        return "no PPO run to compare with"
    notes: dict[str, list[str]] = {}
    for who, frame in (("", ours), ("PPO's ", ours[:0] if theirs is None else theirs)):
        lost = frame[frame["score"].isna()]
        for (state, reason), group in lost.groupby(["state", "reason"], sort=False):
            plural = "s" * (len(group) > 1)
            seeds = f"seed{plural} {', '.join(map(str, group['seed']))}"
            if len(group) == len(frame) > 1:
                seeds = f"all {len(frame)} seeds" if not who else f"{len(frame)} seeds"
            notes.setdefault(f"{state}{f': {reason}' if reason else ''}", []).append(f"{who}{seeds}")
    return "; ".join(f"{' and '.join(whose)} {what}" for what, whose in notes.items())


def aggregate_table(tables: dict[tuple[str, str], pd.DataFrame], members: pd.DataFrame | None = None) -> pd.DataFrame:
    """One line per (suite, variant) from its environment table, and below it the paper's and the difference.

    An environment without a percentage cannot enter; `environments` of `environments_planned` says how many did.
    With `members`, each number has its interval, and the interquartile mean of all members is there too.
    """
    paper = aggregate.paper_tables()["aggregate"].set_index(["suite", "variant"])
    rows: list[dict[str, Any]] = []
    for (suite, variant), table in tables.items():
        usable = table[table["score_pct_of_ppo"].notna()]
        seeds = usable["seeds"] if "seeds" in usable else pd.Series(dtype=float)
        row = {"suite": suite, "variant": variant, "source": "ours"}
        row |= {"environments": len(usable), "environments_planned": len(table)}
        row |= {"seeds_min": seeds.min(), "seeds_max": seeds.max()}
        row |= (
            (aggregate.aggregate_row(usable)._asdict()) if len(usable) else dict.fromkeys(AggregateRow._fields, np.nan)
        )
        if members is not None and len(usable):
            row |= _aggregate_intervals(members, variant, list(usable["env"]))
        rows.append(row)
        key = (suite, _PAPER_VARIANTS.get(variant, ""))
        if key in paper.index:
            printed = paper.loc[key]
            rows.append({"suite": suite, "variant": variant, "source": "paper", **printed})
            gaps = {name: row[name] - printed[name] for name in AggregateRow._fields}
            rows.append({"suite": suite, "variant": variant, "source": "difference", **gaps})
    return pd.DataFrame(rows)


def _aggregate_intervals(members: pd.DataFrame, variant: str, envs: list[str]) -> dict[str, float]:
    """Intervals of the aggregate row and of the interquartile mean, resampling seeds within each environment."""
    columns: dict[str, list[np.ndarray]] = {"score": [], "kl_target": [], "kl_behaviour": []}
    percents = []
    for number, env in enumerate(envs):
        group = members[(members["env"] == env) & members["score"].notna()]
        ours = group[group["variant"] == variant]
        base = group[group["variant"] == baseline_of(variant, list(group["variant"]))]
        percents.append(aggregate.percent_of_ppo(ours["score"].to_numpy(), base["score"].mean()))
        for name, draws in columns.items():
            sides = (_resampled(f[name].to_numpy(np.float64), [SEED, i, number]) for i, f in enumerate((ours, base)))
            draws.append(_percent(*sides) if name == "score" else _ratio(*sides, 1.0))
    middle = aggregate.iqm(percents)
    if max(map(len, percents)) < 2:
        return {"iqm_pct_ppo": middle}
    resampled = aggregate.aggregate_of(*(np.stack(draws, axis=1) for draws in columns.values()))  # of [REPS, envs]
    named = {name: _bounds(values) for name, values in resampled._asdict().items()}
    named["iqm_pct_ppo"] = aggregate.stratified_bootstrap(percents, seed=SEED, reps=REPS, level=LEVEL)[1:]
    bounds = {f"{name}_{end}": value for name, both in named.items() for end, value in zip(("low", "high"), both)}
    return {"iqm_pct_ppo": middle, **bounds}


def with_paper(table: pd.DataFrame, suite: str, variant: str) -> pd.DataFrame:
    """The environment table with the paper's columns and our differences from them, where the paper has them."""
    paper = aggregate.paper_tables().get(f"{suite}_{_PAPER_VARIANTS.get(variant, '')}", pd.DataFrame({"env": []}))
    plain = [re.sub(r"\[.*|\s\(.*", "", env) for env in table["env"]]  # without options and folder
    names = [re.sub(r"-v\d+$", "", env.rpartition("/")[2]).lower() for env in plain]
    printed = paper.set_index(paper["env"].astype(str).str.lower()).reindex(names).set_index(table.index)
    columns = {}
    for name, (ours, difference) in PAPER_COLUMNS.items():
        columns[f"paper_{name}"] = printed[name].astype(float) if name in printed else np.nan
        measured = pd.Series(table.get(ours, np.nan), index=table.index, dtype=float)
        columns[difference] = measured - columns[f"paper_{name}"]
    return table.assign(**columns)


class Comparison(NamedTuple):
    """All that is shown of some runs."""

    runs: Sequence[Run]
    members: pd.DataFrame  # one line per member
    scores: pd.DataFrame  # one line per environment and variant, in returns
    environments: dict[tuple[str, str], pd.DataFrame]  # (suite, variant) -> one line per environment, against PPO
    totals: pd.DataFrame  # one line per suite and variant, and the paper's
    mixed: Sequence[str]  # settings in which runs of one environment differ, where that was allowed
    varied: Sequence[str]  # settings in which environments of one suite differ, and how


def compare(runs: Sequence[Run]) -> Comparison:
    """Every table of these runs."""
    members = member_table(runs)
    return Comparison(
        runs, members, scores_table(members), *all_tables(members), mixed_fields(runs), varied_fields(runs)
    )


def all_tables(members: pd.DataFrame) -> tuple[dict[tuple[str, str], pd.DataFrame], pd.DataFrame]:
    """Every environment table by (suite, variant) that has a PPO to compare with, and the aggregate table over them."""
    tables = {}
    for suite, group in members.groupby("suite", sort=False):
        for variant in variants_of(group):
            if baseline_of(variant, list(group["variant"])) is None:
                continue
            tables[str(suite), variant] = with_paper(environment_table(group, variant), str(suite), variant)
    if not tables:
        return {}, pd.DataFrame()
    by_suite = dict(iter(members.groupby("suite", sort=False)))
    parts = [aggregate_table({key: table}, by_suite[key[0]]) for key, table in tables.items()]
    return tables, pd.concat(parts, ignore_index=True)
