"""The tables of a comparison: one row per environment for each variant, and one row per suite and variant.

Every number comes with its number of seeds and a 95 % interval (percentile bootstrap over seeds, on both sides of a
ratio, stratified by environment). Members that failed, are missing or are unfinished are counted and named.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from nextpolicy.report import aggregate, baseline, bootstrap, columns
from nextpolicy.report.aggregate import AggregateRow
from nextpolicy.report.bootstrap import REPS, bounds, resample
from nextpolicy.report.comparable import mixed_fields, varied_fields
from nextpolicy.report.layout import PAPER_NUMBERS
from nextpolicy.report.members import member_table
from nextpolicy.report.runs import Run

SEED = 0
_PAPER_VARIANTS = {"sv-static": "static", "sv-dynamic": "dynamic"}


def baseline_of(variant: str, variants: Sequence[str]) -> str | None:
    """The variant to compare with: the baseline at the same swept values, else unswept; None if there is neither."""
    base, swept = baseline.baseline_of(variant), variant.removeprefix(baseline.algo_of(variant))
    return next((name for name in (base + swept, base) if name in variants), None)


def variants_of(members: pd.DataFrame) -> list[str]:
    """All variants except baselines, in the order of the runs."""
    return [v for v in dict.fromkeys(members["variant"]) if not baseline.is_baseline(v)]


def environment_table(members: pd.DataFrame, variant: str) -> pd.DataFrame:
    """One row per environment that has this variant; `note` says what is missing."""
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
    for statistic in columns.present(ours):
        samples = [frame[statistic.name].to_numpy(np.float64) for frame in (scored, base)]
        means = [frame[statistic.name].mean() for frame in (scored, base)]
        draws = [_resampled_means(sample, [SEED, side]) for side, sample in enumerate(samples)]
        for view in statistic.views:
            name = view.name.format(statistic.name)
            row[name] = float(view.value(*means))
            row |= _ends(name, bounds(np.asarray(view.value(*draws))))
    row |= {"score_spread": np.nan, "p_value": np.nan, "significant": False, "detectable_pct": np.nan}
    if len(scored) and len(base):
        scores = {"": {"ours": scored["score"].to_numpy(), "ppo": base["score"].to_numpy()}}
        row |= aggregate.percent_table(scores, "ours").drop(columns="env").iloc[0].to_dict()
        if np.isnan(row["score_pct_of_ppo"]):
            why = baseline.worded("PPO's mean score is 0, which has no percentage", ours["variant"])
            row["note"] = "; ".join(filter(None, [row["note"], why]))
    return row


def scores_table(members: pd.DataFrame) -> pd.DataFrame:
    """One row per environment and variant, baselines included: means over seeds."""
    rows = []
    for (env, variant), ours in members.groupby(["env", "variant"], sort=False):
        scored = ours[ours["score"].notna()]
        row: dict[str, Any] = {"suite": ours["suite"].iloc[0], "env": env, "variant": variant}
        row |= {"seeds": len(scored), "seeds_planned": len(ours), "note": note_of(ours)}
        row |= {"score_std": scored["score"].std()}
        side = int(baseline.is_baseline(str(variant)))  # the same resamples, so the same intervals, as in comparisons
        for statistic in columns.present(ours):
            row[statistic.name] = scored[statistic.name].mean()
            draws = _resampled_means(scored[statistic.name].to_numpy(np.float64), [SEED, side])
            row |= _ends(statistic.name, bounds(draws))
        rows.append(row)
    return pd.DataFrame(rows)


def _resampled_means(values: np.ndarray, seed: list[int]) -> np.ndarray:
    """Means of resamples of the seeds, [REPS]; NaN for fewer than two seeds, which have no interval."""
    return resample(values, seed).mean(axis=1) if len(values) >= 2 else np.full(REPS, np.nan)


def _ends(name: str, interval: tuple[float, float]) -> dict[str, float]:
    return {f"{name}_low": interval[0], f"{name}_high": interval[1]}


def note_of(ours: pd.DataFrame, theirs: pd.DataFrame | None = None) -> str:
    """Which members have no score, and why; empty if all have one. `theirs` are the baseline's."""
    base = baseline.label(ours["variant"])
    if theirs is not None and not len(theirs):
        return f"no {base} run to compare with"
    notes: dict[str, list[str]] = {}
    for who, frame in (("", ours), (f"{base}'s ", ours[:0] if theirs is None else theirs)):
        lost = frame[frame["score"].isna()]
        for (state, reason), group in lost.groupby(["state", "reason"], sort=False):
            plural = "s" * (len(group) > 1)
            seeds = f"seed{plural} {', '.join(map(str, group['seed']))}"
            if len(group) == len(frame) > 1:
                seeds = f"all {len(frame)} seeds" if not who else f"{len(frame)} seeds"
            notes.setdefault(f"{state}{f': {reason}' if reason else ''}", []).append(f"{who}{seeds}")
    return "; ".join(f"{' and '.join(whose)} {what}" for what, whose in notes.items())


def aggregate_table(tables: dict[tuple[str, str], pd.DataFrame], members: pd.DataFrame | None = None) -> pd.DataFrame:
    """One row per (suite, variant) from its environment table, then the paper's row and the difference from it.

    Environments without a percentage are left out; `environments` and `environments_planned` count them. With
    `members`, each number has its interval, and there is the interquartile mean of all members.
    """
    paper = aggregate.paper_tables()["aggregate"].set_index(["suite", "variant"])
    rows: list[dict[str, Any]] = []
    for (suite, variant), table in tables.items():
        usable = table[table["score_pct_of_ppo"].notna()]
        seeds = usable["seeds"] if "seeds" in usable else pd.Series(dtype=float)
        row: dict[str, Any] = {"suite": suite, "variant": variant, "source": "ours"}
        row |= {"environments": len(usable), "environments_planned": len(table)}
        row |= {"seeds_min": seeds.min(), "seeds_max": seeds.max()}
        row |= dict.fromkeys(AggregateRow._fields, np.nan)
        if len(usable):
            row |= aggregate.aggregate_row(usable)._asdict()
            row |= {} if members is None else _aggregate_intervals(members, variant, list(usable["env"]))
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
    by_name: dict[str, list[np.ndarray]] = {"score": [], "kl_target": [], "kl_behaviour": []}
    percents = []
    for number, env in enumerate(envs):
        group = members[(members["env"] == env) & members["score"].notna()]
        ours = group[group["variant"] == variant]
        base = group[group["variant"] == baseline_of(variant, list(group["variant"]))]
        percents.append(aggregate.percent_of_ppo(ours["score"].to_numpy(), base["score"].mean()))
        for name, draws in by_name.items():
            samples = [resample(f[name].to_numpy(np.float64), [SEED, i, number]) for i, f in enumerate((ours, base))]
            relative = aggregate.percent_of_ppo if name == "score" else aggregate.multiple_of_ppo
            draws.append(relative(*(sample.mean(axis=1) for sample in samples)))
    if max(map(len, percents)) < 2:
        return {"iqm_pct_ppo": bootstrap.iqm(percents)}
    resampled = aggregate.aggregate_of(*(np.stack(draws, axis=1) for draws in by_name.values()))  # of [REPS, envs]
    iqm = bootstrap.stratified_bootstrap(percents, seed=SEED, reps=REPS)
    found = {"iqm_pct_ppo": iqm.estimate, **_ends("iqm_pct_ppo", (iqm.low, iqm.high))}
    for name, values in resampled._asdict().items():
        found |= _ends(name, bounds(values))
    return found


def with_paper(table: pd.DataFrame, suite: str, variant: str) -> pd.DataFrame:
    """The environment table with the paper's numbers and our differences from them; as it is unless it is of PPO."""
    if baseline.baseline_of(variant) != "ppo":
        return table
    paper = aggregate.paper_tables().get(f"{suite}_{_PAPER_VARIANTS.get(variant, '')}", pd.DataFrame({"env": []}))
    plain = [re.sub(r"\[.*|\s\(.*", "", env) for env in table["env"]]  # without options and folder name
    names = [re.sub(r"-v\d+$", "", env.rpartition("/")[2]).lower() for env in plain]
    printed = paper.set_index(paper["env"].astype(str).str.lower()).reindex(names).set_index(table.index)
    for number in PAPER_NUMBERS:
        theirs = printed[number.name].astype(float) if number.name in printed else np.nan
        ours = pd.Series(table.get(number.ours, np.nan), index=table.index, dtype=float)
        table = table.assign(**{f"paper_{number.name}": theirs, number.difference: ours - theirs})
    return table


class Comparison(NamedTuple):
    """Runs and all tables made of them."""

    runs: Sequence[Run]
    members: pd.DataFrame  # one row per member
    scores: pd.DataFrame  # one row per environment and variant, in returns
    environments: dict[tuple[str, str], pd.DataFrame]  # (suite, variant) -> one row per environment, in percent
    totals: pd.DataFrame  # one row per suite and variant, and the paper's
    mixed: Sequence[str]  # settings that differ between runs of one environment, if that was allowed
    varied: Sequence[str]  # settings that differ between environments of one suite, and how


def compare(runs: Sequence[Run]) -> Comparison:
    """All tables of these runs."""
    members = member_table(runs)
    return Comparison(
        runs, members, scores_table(members), *all_tables(members), mixed_fields(runs), varied_fields(runs)
    )


def all_tables(members: pd.DataFrame) -> tuple[dict[tuple[str, str], pd.DataFrame], pd.DataFrame]:
    """Environment tables by (suite, variant), for variants with a baseline to compare with, and the aggregate table."""
    tables = {}
    for suite, group in members.groupby("suite", sort=False):
        for variant in variants_of(group):
            if baseline_of(variant, list(group["variant"])) is None:
                continue
            tables[str(suite), variant] = with_paper(environment_table(group, variant), str(suite), variant)
    if not tables:
        return {}, pd.DataFrame()
    by_suite = dict(iter(members.groupby("suite", sort=False)))
    totals = [aggregate_table({key: table}, by_suite[key[0]]) for key, table in tables.items()]
    return tables, pd.concat(totals, ignore_index=True)
