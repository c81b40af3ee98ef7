"""What a column of the report consists of: `Statistic` computes, shows and explains one number of each member."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import numpy as np
import pandas as pd

from nextpolicy.report.aggregate import multiple_of_ppo, percent_of_ppo
from nextpolicy.report.baseline import worded
from nextpolicy.report.text import Cell, Row, with_interval

Form = Callable[[Row, str], Cell]  # (row, column name) -> cell
Mean = np.ndarray | float  # over seeds: one mean, or one for each resample

PERCENTAGE: Form = partial(with_interval, places=1)


@dataclass(frozen=True)
class Column:
    """One column of one table."""

    name: str  # in CSV files
    heading: str
    about: str  # explains the heading
    form: Form = with_interval
    kind: str = "number"  # number | text | note
    in_print: bool = True  # LaTeX and the printed page have no room for the others
    always: bool = False  # shown even if all its cells are empty

    def against(self, variants: Sequence[str]) -> Column:
        """The same in the words of these variants' baseline."""
        return replace(self, heading=worded(self.heading, variants), about=worded(self.about, variants))

    def cell(self, row: Row) -> Cell:
        return self.form(row, self.name)


@dataclass(frozen=True)
class Rows:
    """The metrics of one member of a finished run, one row per round, in order."""

    all: pd.DataFrame
    late: pd.DataFrame  # rounds in the last 10 % of its steps
    algo: str
    target_return: float  # from evaluation.json; NaN without one
    goal: float = math.nan  # return that `learning_speed.steps_to_goal` waits for; NaN without a baseline in the run


class Measure(NamedTuple):
    """How a number is computed from a member's metrics."""

    reads: tuple[str, ...]  # metrics it needs
    compute: Callable[[Rows], float]


@dataclass(frozen=True)
class View:
    """A column of the tables against PPO: a function of two means over seeds, the variant's and PPO's.

    In `name`, `heading` and `about`, `{0}` is the statistic's own, `{1}` the same with a lower-case first letter.
    """

    name: str
    heading: str
    value: Callable[[Mean, Mean], Mean]
    about: str = "{0}"
    form: Form | None = None  # None: as the statistic
    in_print: bool = True


@dataclass(frozen=True)
class Statistic:
    """One number of each member. Tables show its mean over seeds; tables against PPO show its views."""

    name: str
    heading: str
    about: str
    measure: Measure
    views: tuple[View, ...] = ()
    form: Form = with_interval
    optional: bool = False  # in no file if no run recorded it; never in the printed table of returns

    def of(self, rows: Rows) -> float:
        """The member's number; NaN if its run did not record a metric that is needed."""
        return self.measure.compute(rows) if set(self.measure.reads) <= set(rows.all) else math.nan

    def column(self) -> Column:
        """Its column in the table of returns."""
        return Column(self.name, self.heading, self.about, self.form, in_print=not self.optional)

    def view_columns(self) -> list[Column]:
        """Its columns in the tables against PPO, in the order of its views."""
        return [
            Column(
                view.name.format(self.name),
                view.heading.format(self.heading, _small(self.heading)),
                view.about.format(self.about),
                view.form or self.form,
                in_print=view.in_print,
            )
            for view in self.views
        ]


def _small(words: str) -> str:
    return words[:1].lower() + words[1:]


OWN = View("{0}", "{0}", lambda ours, theirs: ours)
OF_PPO = View("ppo_{0}", "PPO {1}", lambda ours, theirs: theirs, "PPO's {0}", in_print=False)
MULTIPLE = View("{0}_x_ppo", "{0}, × PPO", multiple_of_ppo, "{0}, in multiples of PPO's", with_interval)
PERCENT = View("{0}_pct_of_ppo", "{0}, % of PPO", percent_of_ppo, "{0}, in percent of PPO's", PERCENTAGE)


def mean(metric: str) -> Measure:
    """Mean over all rounds."""
    return Measure((metric,), lambda rows: float(rows.all[metric].mean()))


def late_mean(metric: str) -> Measure:
    """Mean over the last 10 % of steps."""
    return Measure((metric,), lambda rows: float(rows.late[metric].mean()))
