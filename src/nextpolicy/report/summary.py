"""The title of a report, its summary in a few sentences, and its headline numbers."""

from __future__ import annotations

import pandas as pd

from nextpolicy.report.baseline import baseline_of, is_baseline, label, label_of
from nextpolicy.report.tables import Comparison
from nextpolicy.report.text import Row, count, number, suite_name, with_interval

MOST = 2  # at most this many variants or scores per sentence; the tables list them all


def title(members: pd.DataFrame) -> str:
    """What is compared, or what was run."""
    variants, envs = (list(dict.fromkeys(members[name])) for name in ("variant", "env"))
    others = {baseline_of(v) for v in variants if not is_baseline(v)}
    compared = dict.fromkeys(baseline_of(v) for v in variants if is_baseline(v) and baseline_of(v) in others)
    if compared:
        names = " and ".join(map(label_of, compared))
        return f"Stable-Value {names} against {names}"
    who = variants[0] if len(variants) == 1 else count(len(variants), "variant")
    return f"{who} on {envs[0] if len(envs) == 1 else count(len(envs), 'environment')}"


def sentences(comparison: Comparison) -> list[str]:
    """A few sentences: the runs, their scores (in percent of the baseline's, if possible), and what the gate did."""
    members, totals = comparison.members, comparison.totals
    finished = sum(run.state == "finished" for run in comparison.runs)
    first = (
        f"{count(len(comparison.runs), 'run')} with {count(len(members), 'member')} on "
        f"{count(members['env'].nunique(), 'environment')}: {finished} finished, "
        f"{count(int(members['score'].isna().sum()), 'member')} without a score."
    )
    shown = headlines(totals)[:MOST]
    if shown:
        return [first, *_against_baseline(shown, comparison)]
    scored = scored_rows(comparison.scores)
    if scored:
        return [first, *_in_returns(scored, members)]
    if finished < len(comparison.runs):
        return [first, "No member has a score yet: only finished runs have scores and gate statistics."]
    return [first, "No member has a score; the table says why."]


def _against_baseline(shown: list[Row], comparison: Comparison) -> list[str]:
    suite, totals = shown[0]["suite"], comparison.totals
    scores, gate = [], []
    for row in shown:
        table = comparison.environments[suite, row["variant"]]
        better, worse = wins(table)
        base = label([row["variant"]])
        scores.append(
            f"{row['variant']} has a median of {with_interval(row, 'median_pct_ppo', 1).shown} % of {base}'s score, "
            f"better on {better} and worse on {worse} of {count(int(row['environments']), 'environment')} at p < 0.1"
            + _speed(table, comparison.members)
        )
        gate.append(
            f"{row['variant']} updated its target in {number(table['updates_pct_of_ppo'].median(), places=1)} % of "
            f"rounds, on average by {number(row['kl_target_x_ppo'])} × the KL of a {base} update"
        )
    rest = _more(len(_comparable(totals)) - len(shown), "comparison")
    where = f"On {suite_name(suite)}, " if totals["suite"].nunique() > 1 else ""
    return [where + "; ".join(scores) + rest + ".", where + "; ".join(gate) + "."]


def _speed(table: pd.DataFrame, members: pd.DataFrame) -> str:
    """How fast a variant learned, in a clause; empty without its baseline in the same runs."""
    base = label(table["variant"])
    ours = members[members["variant"].isin(table["variant"]) & members["steps_to_goal"].notna()]
    if not len(ours):
        return ""
    if (ours["steps_to_goal"] >= ours["env_steps"]).mean() > 0.5:
        return f", and mostly does not reach 90 % of {base}'s gain"
    return f", and needs {number(table['steps_to_goal_x_ppo'].median())} × {base}'s steps to 90 % of {base}'s gain"


def _in_returns(scored: list[Row], members: pd.DataFrame) -> list[str]:
    scores, gate = [], []
    for row in scored[:MOST]:
        who = f"{row['variant']} on {row['env']}"
        scores.append(f"{who} scored {with_interval(row, 'score').shown}")
        gate.append(
            f"{who} updated its target {number(row['updates'], places=1)} times, "
            f"in {number(row['updates_pct'], places=1)} % of rounds"
        )
    rest = _more(len(scored) - MOST, "score")
    present = {baseline_of(v) for v in members["variant"] if is_baseline(v)}
    absent = [label_of(b) for b in dict.fromkeys(map(baseline_of, members["variant"])) if b and b not in present]
    why = f" There is no {' or '.join(absent)} run to compare with." if absent else ""
    return ["; ".join(scores) + rest + "." + why, "; ".join(gate) + "."]


def _more(n: int, noun: str) -> str:
    return f" ({n} more {noun}{'s' * (n != 1)} in the table)" if n > 0 else ""


def scored_rows(scores: pd.DataFrame) -> list[Row]:
    """Rows of the returns table that have a score."""
    return list(scores[scores["score"].notna()].to_dict("records"))


def _comparable(totals: pd.DataFrame) -> pd.DataFrame:
    return totals[(totals["source"] == "ours") & totals["median_pct_ppo"].notna()] if len(totals) else totals


def headlines(totals: pd.DataFrame) -> list[Row]:
    """Rows of the aggregate table: the four best variants on the suite with the most environments."""
    ours = _comparable(totals)
    if not len(ours):
        return []
    suite = ours.loc[ours["environments"].idxmax(), "suite"]
    best = ours[ours["suite"] == suite].sort_values("median_pct_ppo", ascending=False).head(4)
    return list(best.to_dict("records"))


def wins(table: pd.DataFrame) -> tuple[int, int]:
    """On how many environments a variant is significantly better than its baseline, and on how many it is worse."""
    sides = (table["score_pct_of_ppo"] > 100, table["score_pct_of_ppo"] < 100)
    better, worse = (int((table["significant"] & side).sum()) for side in sides)
    return better, worse
