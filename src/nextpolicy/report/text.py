"""Tables and sentences as people read them: which columns there are, and how each number is shown."""

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

Cell = tuple[str, float | str]  # what is shown, and what it is sorted by
Column = tuple[str, str, Callable[[Any], Cell]]  # heading, explanation, row -> cell


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
    """`104.2 [98.1, 110.0]`; what is in percent of PPO always with one place."""
    value, low, high = (row.get(f"{name}{end}", math.nan) for end in ("", "_low", "_high"))
    places = 1 if "pct" in name or name in ("q1", "q3") else None
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


def _score(row: Any) -> Cell:
    shown, key = with_interval(row, "score_pct_of_ppo")
    if shown != MISSING and not math.isnan(row["score_spread"]):
        shown = shown.replace(" [", f" ± {number(row['score_spread'], places=1)} [", 1)
    return shown + ("*" if row["significant"] else ""), key


def _seeds(row: Any) -> Cell:
    share = lambda n, m: str(int(n)) if n == m else f"{int(n)} of {int(m)}"  # noqa: E731
    ours, ppo = share(row["seeds"], row["seeds_planned"]), share(row["ppo_seeds"], row["ppo_seeds_planned"])
    return (ours if ours == ppo else f"{ours}; PPO {ppo}"), float(row["seeds"])


def environment_columns(table: pd.DataFrame) -> list[Column]:
    """Columns of an environment table; those with nothing in them are left out."""
    columns: list[Column] = [
        ("Environment", "", lambda row: (row["env"], row["env"])),
        ("Seeds", "members with a score, of those planned", _seeds),
        (
            "Score, % of PPO",
            "mean ± standard deviation over seeds [95 % interval]; * where Welch's test finds p < 0.1",
            _score,
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
        ("Value loss, × PPO", "", _interval("value_loss_x_ppo")),
        ("KL target, × PPO", "size of an update of the target policy", _interval("kl_target_x_ppo")),
        ("KL behaviour, × PPO", "size of a round's step of the behavioural policy", _interval("kl_behaviour_x_ppo")),
        ("Entropy, × PPO", "where PPO's is positive", _interval("entropy_x_ppo")),
        ("PPO entropy", "", _interval("ppo_entropy")),
        ("Paper, % of PPO", "the score the paper prints", _plain("paper_score_pct_of_ppo")),
        ("Difference", "ours less the paper's", _plain("difference_from_paper")),
        ("Note", "what is missing", lambda row: (row["note"], row["note"])),
    ]
    rows = table.to_dict("records")
    keep = ("Environment", "Seeds", "Score, % of PPO")
    return [c for c in columns if c[0] in keep or any(c[2](row)[0] not in (MISSING, "") for row in rows)]


def aggregate_columns(table: pd.DataFrame) -> list[Column]:
    """Columns of the aggregate table; suite and source only where there are several."""
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
    return [c for c in columns if c[0] not in same]


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


def summary(
    states: Sequence[str], members: pd.DataFrame, tables: dict[tuple[str, str], pd.DataFrame], totals: pd.DataFrame
) -> list[str]:
    """Three sentences: what there is, how the scores compare, what the gate did. `states` are those of the runs."""
    finished = sum(state == "finished" for state in states)
    lost = members[members["score"].isna()]
    first = (
        f"{len(states)} run{'s' * (len(states) != 1)} with {len(members)} members on {members['env'].nunique()} "
        f"environment{'s' * (members['env'].nunique() != 1)}: {finished} finished, "
        f"{len(lost)} member{'s' * (len(lost) != 1)} without a score."
    )
    shown = headlines(totals)[:2]
    if not shown:
        return [first, "No variant can be compared with PPO yet.", "The gate's numbers come with the first scores."]
    suite = shown[0]["suite"]
    scores, gate = [], []
    for row in shown:
        table = tables[suite, row["variant"]]
        better, worse = wins(table)
        scores.append(
            f"{row['variant']} has a median of {with_interval(row, 'median_pct_ppo')[0]} % of PPO's score, "
            f"significantly better on {better} and worse on {worse} of {int(row['environments'])} environments"
        )
        gate.append(
            f"{row['variant']} updated its target in {number(table['updates_pct_of_ppo'].median(), places=1)} % of "
            f"rounds, each time by {number(row['kl_target_x_ppo'])} × the KL of a PPO update"
        )
    more = len(_comparable(totals)) - len(shown)
    rest = f" ({more} more comparison{'s' * (more != 1)} in the table)" if more else ""
    where = f"On {SUITE_NAMES.get(suite, suite)}, " if totals["suite"].nunique() > 1 else ""
    return [first, where + "; ".join(scores) + rest + ".", where + "; ".join(gate) + "."]


def _comparable(totals: pd.DataFrame) -> pd.DataFrame:
    return totals[(totals["source"] == "ours") & totals["median_pct_ppo"].notna()] if len(totals) else totals


def headlines(totals: pd.DataFrame) -> list[dict[str, Any]]:
    """Lines of the aggregate table to begin with: the suite with most environments, its best four variants."""
    ours = _comparable(totals)
    if not len(ours):
        return []
    suite = ours.loc[ours["environments"].idxmax(), "suite"]
    return ours[ours["suite"] == suite].sort_values("median_pct_ppo", ascending=False).head(4).to_dict("records")


def wins(table: pd.DataFrame) -> tuple[int, int]:
    """On how many environments a variant is significantly better and worse than PPO."""
    sides = (table["score_pct_of_ppo"] > 100, table["score_pct_of_ppo"] < 100)
    better, worse = (int((table["significant"] & side).sum()) for side in sides)
    return better, worse
