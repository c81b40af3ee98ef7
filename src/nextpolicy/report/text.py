"""Tables as people read them: which columns there are, and how each number is shown."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import pandas as pd

SUITE_NAMES = {
    "minatar": "MinAtar",
    "brax": "Brax",
    "atari": "Atari",
    "four-rooms": "Four Rooms",
    "default": "Other environments",
}
MISSING = "–"
LATE = "mean over the last 10 % of steps: at convergence, as the paper prints it"
# Columns that paper has no room for, printed or in LaTeX: they are on the screen, in Markdown and in CSV.
NOT_IN_PRINT = (
    *("p", "Score", "PPO score", "Target policy, % of PPO", "PPO entropy, all rounds", "PPO entropy, last 10 %"),
    *("Paper: value loss, × PPO", "Paper: value loss, difference"),
    *("Paper: PPO entropy", "Paper: PPO entropy, difference"),
)

Cell = tuple[str, float | str]  # what is shown, and what it is sorted by
Column = tuple[str, str, Callable[[Any], Cell]]  # heading, explanation, row -> cell


def count(n: int, noun: str) -> str:
    return f"{n} {noun}{'s' * (n != 1)}"


def number(value: Any, digits: int = 3, places: int | None = None) -> str:
    """Three digits, more for whole parts, or so many places; a dash for what is not a number."""
    if value is None or not math.isfinite(float(value)):
        return MISSING
    value = float(value)
    if places is not None:
        return f"{value:.{places}f}"
    if value == 0:
        return "0"
    before = math.floor(math.log10(abs(float(f"{value:.{digits - 1}e}")))) + 1  # 0.9997 is 1.00, not 1.000
    if before > 6 or before < -3:
        return f"{value:.{digits - 1}e}"
    return f"{value:.{max(0, digits - before)}f}"


def with_interval(row: Any, name: str) -> Cell:
    """`104.2 [98.1, 110.0]`; percentages and numbers of updates always with one place."""
    value, low, high = (row.get(f"{name}{end}", math.nan) for end in ("", "_low", "_high"))
    places = 1 if "pct" in name or name in ("q1", "q3", "updates") else None
    shown = number(value, places=places)
    if shown != MISSING and not math.isnan(float(low)):
        shown += f" [{number(low, places=places)}, {number(high, places=places)}]"
    return shown, _sortable(value)


def _sortable(value: Any) -> float:
    return float("-inf") if value is None or math.isnan(float(value)) else float(value)


def _plain(name: str) -> Callable[[Any], Cell]:
    return lambda row: (number(row.get(name, math.nan)), _sortable(row.get(name, math.nan)))


def _interval(name: str) -> Callable[[Any], Cell]:
    return lambda row: with_interval(row, name)


def _score(name: str, spread: str, places: int | None) -> Callable[[Any], Cell]:
    """`104.2 ± 3.1 [98.1, 110.0]*`"""

    def cell(row: Any) -> Cell:
        shown, key = with_interval(row, name)
        if shown != MISSING and not math.isnan(row[spread]):
            value, space, interval = shown.partition(" ")
            shown = f"{value} ± {number(row[spread], places=places)}{space}{interval}"
        return shown + ("*" if row.get("significant") else ""), key

    return cell


def _share(row: Any, whose: str = "") -> str:
    scored, planned = int(row[f"{whose}seeds"]), int(row[f"{whose}seeds_planned"])
    return str(scored) if scored == planned else f"{scored} of {planned}"


def _seeds(row: Any) -> Cell:
    ours, ppo = _share(row), _share(row, "ppo_")
    return (ours if ours == ppo else f"{ours}; PPO {ppo}"), float(row["seeds"])


def _with_content(table: pd.DataFrame, columns: Sequence[Column], keep: Sequence[str]) -> list[Column]:
    """Those that have something in them, and those that are kept in any case."""
    rows = table.to_dict("records")
    return [c for c in columns if c[0] in keep or any(c[2](row)[0] not in (MISSING, "") for row in rows)]


def environment_columns(table: pd.DataFrame) -> list[Column]:
    """Columns of an environment table; those with nothing in them are left out."""
    columns: list[Column] = [
        ("Environment", "", lambda row: (row["env"], row["env"])),
        ("Seeds", "members with a score, of those planned", _seeds),
        (
            "Score, % of PPO",
            "mean ± standard deviation over seeds [95 % interval]; * where Welch's test finds p < 0.1",
            _score("score_pct_of_ppo", "score_spread", 1),
        ),
        ("p", "Welch's two-sided t-test of the scores", _plain("p_value")),
        ("Score", "mean return over the last 10 % of steps [95 % interval]", _interval("score")),
        ("PPO score", "the same of PPO", _interval("ppo_score")),
        (
            "Target policy, % of PPO",
            "return of the target policy over whole episodes, against PPO's [95 % interval]",
            _interval("target_score_pct_of_ppo"),
        ),
        ("Updates, % of PPO", "rounds that updated the target policy", _interval("updates_pct_of_ppo")),
        (
            "diff / threshold, median %",
            "at most 100 counts as stable",
            _interval("diff_over_threshold_median_pct"),
        ),
        ("diff / threshold, std %", "over rounds", _interval("diff_std_pct_of_threshold")),
        ("Value loss, all rounds, × PPO", "mean over all rounds", _interval("value_loss_x_ppo")),
        ("Value loss, last 10 %, × PPO", LATE, _interval("value_loss_late_x_ppo")),
        ("KL target, × PPO", "size of an update of the target policy", _interval("kl_target_x_ppo")),
        ("KL behaviour, × PPO", "size of a round's step of the behavioural policy", _interval("kl_behaviour_x_ppo")),
        ("Entropy, all rounds, × PPO", "where PPO's is positive", _interval("entropy_x_ppo")),
        ("Entropy, last 10 %, × PPO", f"{LATE}; where PPO's is positive", _interval("entropy_late_x_ppo")),
        ("PPO entropy, all rounds", "mean over all rounds", _interval("ppo_entropy")),
        ("PPO entropy, last 10 %", LATE, _interval("ppo_entropy_late")),
        ("Paper: score, % of PPO", "the score the paper prints", _plain("paper_score_pct_of_ppo")),
        ("Paper: score, difference", "ours less the paper's", _plain("difference_from_paper")),
        ("Paper: value loss, × PPO", "at convergence", _plain("paper_value_loss_x_ppo")),
        (
            "Paper: value loss, difference",
            "ours over the last 10 % of steps, less the paper's",
            _plain("value_loss_difference_from_paper"),
        ),
        ("Paper: PPO entropy", "at convergence", _plain("paper_ppo_entropy")),
        (
            "Paper: PPO entropy, difference",
            "ours over the last 10 % of steps, less the paper's",
            _plain("ppo_entropy_difference_from_paper"),
        ),
        ("Note", "what is missing", lambda row: (row["note"], row["note"])),
    ]
    return _with_content(table, columns, ("Environment", "Seeds", "Score, % of PPO"))


def scores_columns(table: pd.DataFrame) -> list[Column]:
    """Columns of the table of returns; those with nothing in them are left out."""
    columns: list[Column] = [
        ("Environment", "", lambda row: (row["env"], row["env"])),
        ("Variant", "", lambda row: (row["variant"], row["variant"])),
        ("Seeds", "members with a score, of those planned", lambda row: (_share(row), float(row["seeds"]))),
        (
            "Score, return",
            "mean return over the last 10 % of steps ± standard deviation over seeds [95 % interval]",
            _score("score", "score_std", None),
        ),
        ("Final return", "of the episodes that ended in the last round [95 % interval]", _interval("final_return")),
        ("Target policy, return", "over whole episodes [95 % interval]", _interval("target_score")),
        ("Target updates", "rounds that updated the target policy", _interval("updates")),
        ("Updates, % of rounds", "rounds that updated the target policy", _interval("updates_pct")),
        ("Steps", "of all environments of a member together", steps),
        ("diff / threshold, median %", "at most 100 counts as stable", _interval("diff_median_pct")),
        ("diff / threshold, std %", "over rounds", _interval("diff_std_pct")),
        ("Value loss, all rounds", "mean over all rounds", _interval("value_loss")),
        ("Value loss, last 10 %", LATE, _interval("value_loss_late")),
        ("KL target", "size of an update of the target policy", _interval("kl_target")),
        ("KL behaviour", "size of a round's step of the behavioural policy", _interval("kl_behaviour")),
        ("Entropy, all rounds", "mean over all rounds", _interval("entropy")),
        ("Entropy, last 10 %", LATE, _interval("entropy_late")),
        ("Note", "what is missing", lambda row: (row["note"], row["note"])),
    ]
    return _with_content(table, columns, ("Environment", "Variant", "Seeds"))


def steps(row: Any) -> Cell:
    value = row.get("env_steps", math.nan)
    return (MISSING if math.isnan(value) else f"{value:,.0f}"), _sortable(value)


def aggregate_columns(table: pd.DataFrame) -> list[Column]:
    """Columns of the aggregate table; suite and source only where there are several, none with nothing in it."""
    columns: list[Column] = [
        ("Variant", "", lambda row: (row["variant"], row["variant"])),
        ("Suite", "", lambda row: (SUITE_NAMES.get(row["suite"], row["suite"]), row["suite"])),
        ("Source", "", lambda row: (row["source"], row["source"])),
        ("Environments", "with a percentage, of those planned", _environments),
        ("Seeds", "", _seed_range),
        ("Median, % of PPO", "[95 % interval]", _interval("median_pct_ppo")),
        ("Quartile 1", "", _interval("q1")),
        ("Quartile 3", "", _interval("q3")),
        ("Geometric mean, %", "[95 % interval]", _interval("geomean_pct_ppo")),
        ("Spread, ×/÷", "exp of the standard deviation of logarithms", _interval("geomean_spread")),
        ("Interquartile mean, %", "over all members [95 % interval]", _interval("iqm_pct_ppo")),
        ("Above PPO, %", "share of environments strictly above 100", _interval("beat_ppo_pct")),
        ("KL target, × PPO", "geometric mean", _interval("kl_target_x_ppo")),
        ("KL behaviour, × PPO", "geometric mean", _interval("kl_behaviour_x_ppo")),
    ]
    same = [c.title() for c in ("suite", "source") if table[c].nunique() == 1]
    return _with_content(table, [c for c in columns if c[0] not in same], ("Variant", "Environments"))


def _environments(row: Any) -> Cell:
    n, m = row.get("environments", math.nan), row.get("environments_planned", math.nan)
    if math.isnan(n):
        return MISSING, -1.0
    return (str(int(n)) if n == m else f"{int(n)} of {int(m)}"), float(n)


def _seed_range(row: Any) -> Cell:
    low, high = row.get("seeds_min", math.nan), row.get("seeds_max", math.nan)
    if math.isnan(low):
        return MISSING, -1.0
    return (str(int(low)) if low == high else f"{int(low)}–{int(high)}"), float(low)


def cells(table: pd.DataFrame, columns: Sequence[Column]) -> list[list[Cell]]:
    """Rows of cells."""
    return [[make(row) for _, _, make in columns] for row in table.to_dict("records")]
