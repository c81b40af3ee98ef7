"""The numbers in large at the head of the page."""

from __future__ import annotations

import html
from typing import Any

from nextpolicy.report import palette, summary, text
from nextpolicy.report.bars import colour, name, variant_name
from nextpolicy.report.tables import Comparison
from nextpolicy.report.text import number

MOST = 8  # scores where nothing can be compared with PPO


def tiles(comparison: Comparison, variants: list[str]) -> str:
    """Medians in percent of PPO where there are any; else scores, and of a single one everything about it."""
    against = summary.headlines(comparison.totals)
    if against:
        return "".join(_against_ppo(row, comparison, variants) for row in against)
    scored = summary.scored_rows(comparison.scores)
    if len(scored) == 1:
        return _one(scored[0], variants)
    several = comparison.scores["env"].nunique() > 1
    return "".join(_score(row, variants, several) for row in scored[:MOST])


def _tile(variant: str, variants: list[str], head: str, figure: str, about: str, small: str = "") -> str:
    """All but `variant` are HTML."""
    small = f"<small>{small}</small>" if small else ""
    return (
        f'<div class="tile" data-of="{variants.index(variant)}" style="{colour(palette.slot(variant, variants))}">'
        f"<span>{head}</span><strong>{figure}</strong><span>{about}</span>{small}</div>"
    )


def _against_ppo(row: dict[str, Any], comparison: Comparison, variants: list[str]) -> str:
    """A variant's median, with its interval and on how many environments it was better and worse."""
    suites = {suite for suite, _ in comparison.environments}
    better, worse = summary.wins(comparison.environments[row["suite"], row["variant"]])
    _, _, interval = text.with_interval(row, "median_pct_ppo")[0].partition(" ")
    where = text.count(int(row["environments"]), "environment")
    where += f" of {text.SUITE_NAMES.get(row['suite'], row['suite'])}" * (len(suites) > 1)
    return _tile(
        row["variant"],
        variants,
        variant_name(row["variant"]),
        f"{number(row['median_pct_ppo'], places=1)} %",
        f"of PPO's score, median {html.escape(interval)}",
        f"significantly better on {better}, worse on {worse} of {html.escape(where)}",
    )


def _score(row: dict[str, Any], variants: list[str], several: bool) -> str:
    """A variant's score on an environment, and the rest in small."""
    head = variant_name(row["variant"]) + (f" on {name(row['env'])}" if several else "")
    small = (
        f"final return {number(row['final_return'])}; {number(row['updates'], places=1)} target updates "
        f"({number(row['updates_pct'], places=1)} % of rounds); {text.steps(row)[0]} steps"
    )
    return _tile(row["variant"], variants, head, number(row["score"]), f"score {_interval(row, 'score')}", small)


def _one(row: dict[str, Any], variants: list[str]) -> str:
    """The four numbers of the only score there is."""
    seeds = f"mean of {text.count(int(row['seeds']), 'seed')}"
    shown = (
        ("Score", number(row["score"]), _interval(row, "score"), f"return over the last 10 % of steps, {seeds}"),
        ("Final return", number(row["final_return"]), _interval(row, "final_return"), "of the last round's episodes"),
        (
            "Target updates",
            number(row["updates"], places=1),
            _interval(row, "updates"),
            f"in {number(row['updates_pct'], places=1)} % of rounds",
        ),
        ("Steps", text.steps(row)[0], "", "of each seed"),
    )
    return "".join(_tile(row["variant"], variants, *each) for each in shown)


def _interval(row: dict[str, Any], column: str) -> str:
    return html.escape(text.with_interval(row, column)[0].partition(" ")[2])
