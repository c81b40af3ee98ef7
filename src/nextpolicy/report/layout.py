"""Which columns each table has, in order. Empty columns are left out."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import pandas as pd

from nextpolicy.report import baseline, columns, text
from nextpolicy.report.statistic import PERCENTAGE, Column
from nextpolicy.report.text import MISSING, Cell, Row


@dataclass(frozen=True)
class PaperNumber:
    """A number that the paper gives for each environment, beside the column it is compared with."""

    name: str  # in the paper's table
    ours: str  # the paper's value loss and entropy are at convergence
    difference: str
    heading: str
    in_print: bool = False

    def columns(self) -> list[Column]:
        what = self.heading.partition(",")[0]
        named = partial(Column, form=text.plain, in_print=self.in_print)
        return [
            named(f"paper_{self.name}", f"Paper: {self.heading}", "the paper's number"),
            named(self.difference, f"Paper: {what}, difference", f"{self.ours} minus the paper's number"),
        ]


PAPER_NUMBERS = (
    PaperNumber("score_pct_of_ppo", "score_pct_of_ppo", "difference_from_paper", "score, % of PPO", in_print=True),
    PaperNumber(
        "updates_pct_of_ppo", "updates_pct_of_ppo", "updates_difference_from_paper", "updates, % of PPO's rounds"
    ),
    PaperNumber(
        "diff_over_threshold_median_pct", "diff_median_pct", "diff_median_difference_from_paper", "diff median, %"
    ),
    PaperNumber("diff_std_pct_of_threshold", "diff_std_pct", "diff_std_difference_from_paper", "diff std, %"),
    PaperNumber("kl_target_x_ppo", "kl_target_x_ppo", "kl_target_difference_from_paper", "KL target, × PPO"),
    PaperNumber(
        "kl_behaviour_x_ppo", "kl_behaviour_x_ppo", "kl_behaviour_difference_from_paper", "KL behaviour, × PPO"
    ),
    PaperNumber("value_loss_x_ppo", "value_loss_late_x_ppo", "value_loss_difference_from_paper", "value loss, × PPO"),
    PaperNumber("ppo_entropy", "ppo_entropy_late", "ppo_entropy_difference_from_paper", "PPO entropy"),
)


def _share(row: Row, whose: str = "") -> str:
    scored, planned = int(row[f"{whose}seeds"]), int(row[f"{whose}seeds_planned"])
    return str(scored) if scored == planned else f"{scored} of {planned}"


def _seeds(row: Row, name: str) -> Cell:
    """`8`, `7 of 8` or `7 of 8; PPO 8`"""
    ours = _share(row)
    ppo = _share(row, "ppo_") if "ppo_seeds" in row else ours
    base = baseline.label([row["variant"]])
    return Cell(ours if ours == ppo else f"{ours}; {base} {ppo}", float(row["seeds"]))


def _range(row: Row, ends: tuple[str, str], form: str) -> Cell:
    first, second = (row.get(end, math.nan) for end in ends)
    if math.isnan(first):
        return Cell(MISSING, -1.0)
    shown = str(int(first)) if first == second else form.format(int(first), int(second))
    return Cell(shown, float(first))


_ENVIRONMENT = Column("env", "Environment", "", text.words, "text", always=True)
_VARIANT = Column("variant", "Variant", "", text.words, "text", always=True)
_SEEDS = Column("seeds", "Seeds", "members with a score, of those planned", _seeds, always=True)
_P_VALUE = Column("p_value", "p", "Welch's two-sided t-test of the scores", text.plain, in_print=False)
_DETECTABLE = Column(
    "detectable_pct",
    "Detectable, points",
    "true difference from PPO, in percentage points, that so many seeds with this spread find at p = 0.05 in four of "
    "five cases",
    PERCENTAGE,
    in_print=False,
)
_NOTE = Column("note", "Note", "what is missing, and why", text.words, "note")
_AGGREGATE = (
    _VARIANT,
    Column("suite", "Suite", "", lambda row, name: Cell(text.suite_name(row[name]), row[name]), "text"),
    Column("source", "Source", "", text.words, "text"),
    Column(
        "environments",
        "Environments",
        "environments with a percentage, of those planned",
        lambda row, name: _range(row, (name, "environments_planned"), "{} of {}"),
        always=True,
    ),
    Column(
        "seeds",
        "Seeds",
        "members with a score on each environment",
        lambda row, name: _range(row, ("seeds_min", "seeds_max"), "{}–{}"),
    ),
    Column("median_pct_ppo", "Median, % of PPO", "median of the environments' percentages", PERCENTAGE),
    Column("q1", "Quartile 1", "first quartile of the environments' percentages", PERCENTAGE),
    Column("q3", "Quartile 3", "third quartile of the environments' percentages", PERCENTAGE),
    Column("geomean_pct_ppo", "Geometric mean, %", "geometric mean of the environments' percentages", PERCENTAGE),
    Column("geomean_spread", "Spread, ×/÷", "exp of the standard deviation of the logarithms of the percentages"),
    Column("iqm_pct_ppo", "Interquartile mean, %", "mean of the middle half of all members' percentages", PERCENTAGE),
    Column("beat_ppo_pct", "Above PPO, %", "share of environments strictly above 100 %", PERCENTAGE),
    Column("kl_target_x_ppo", "KL target, × PPO", "geometric mean over environments of the size of a target update"),
    Column(
        "kl_behaviour_x_ppo", "KL behaviour, × PPO", "geometric mean over environments of the size of a round's update"
    ),
)


def environment_columns(table: pd.DataFrame) -> list[Column]:
    """Columns of a table against the baseline."""
    score, *others = (column for statistic in columns.STATISTICS for column in statistic.view_columns())
    paper = (column for each in PAPER_NUMBERS for column in each.columns())
    first = replace(score, always=True)
    return _with_content(table, [_ENVIRONMENT, _SEEDS, first, _P_VALUE, _DETECTABLE, *others, *paper, _NOTE])


def scores_columns(table: pd.DataFrame) -> list[Column]:
    """Columns of the table of returns."""
    return _with_content(
        table, [_ENVIRONMENT, _VARIANT, _SEEDS, *(each.column() for each in columns.STATISTICS), _NOTE]
    )


def aggregate_columns(table: pd.DataFrame) -> list[Column]:
    """Columns of the table over environments; suite and source only if there are several."""
    same = [name for name in ("suite", "source") if table[name].nunique() == 1]
    return _with_content(table, [column for column in _AGGREGATE if column.name not in same])


def _with_content(table: pd.DataFrame, chosen: Sequence[Column]) -> list[Column]:
    rows, variants = table.to_dict("records"), list(table["variant"])
    return [
        c.against(variants) for c in chosen if c.always or any(c.cell(row).shown not in (MISSING, "") for row in rows)
    ]


def cells(table: pd.DataFrame, chosen: Sequence[Column]) -> list[list[Cell]]:
    return [[column.cell(row) for column in chosen] for row in table.to_dict("records")]


def explanations(chosen: Iterable[Column]) -> dict[str, str]:
    """Heading -> explanation, for columns that have one."""
    return {column.heading: column.about for column in chosen if column.about}
