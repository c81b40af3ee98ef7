"""The headline numbers at the top of the page."""

from __future__ import annotations

import html

from nextpolicy.report import palette, summary, text
from nextpolicy.report.bars import colour, name, variant_name
from nextpolicy.report.baseline import label
from nextpolicy.report.tables import Comparison
from nextpolicy.report.text import Row, number

MOST = 8  # tiles with scores, if nothing can be compared


def tiles(comparison: Comparison, variants: list[str]) -> str:
    """Medians in percent of the baseline, if there are any; else scores, and for a single score its details."""
    against = summary.headlines(comparison.totals)
    if against:
        return "".join(_against_baseline(row, comparison, variants) for row in against)
    scored = summary.scored_rows(comparison.scores)
    if len(scored) == 1:
        return _one(scored[0], variants)
    several = comparison.scores["env"].nunique() > 1
    return "".join(_score(row, variants, several) for row in scored[:MOST])


def _tile(variant: str, variants: list[str], head: str, figure: str, about: str, small: str = "") -> str:
    """All texts except `variant` are HTML."""
    small = f"<small>{small}</small>" if small else ""
    return (
        f'<div class="tile" data-of="{variants.index(variant)}" style="{colour(palette.slot(variant, variants))}">'
        f"<span>{head}</span><strong>{figure}</strong><span>{about}</span>{small}</div>"
    )


def _against_baseline(row: Row, comparison: Comparison, variants: list[str]) -> str:
    """A variant's median with its interval, and on how many environments it was better and worse."""
    suites = {suite for suite, _ in comparison.environments}
    better, worse = summary.wins(comparison.environments[row["suite"], row["variant"]])
    where = text.count(int(row["environments"]), "environment")
    where += f" of {text.suite_name(row['suite'])}" * (len(suites) > 1)
    return _tile(
        row["variant"],
        variants,
        variant_name(row["variant"]),
        f"{number(row['median_pct_ppo'], places=1)} %",
        f"of {html.escape(label([row['variant']]))}'s score, median {_interval(row, 'median_pct_ppo', 1)}",
        f"better on {better}, worse on {worse} of {html.escape(where)} at p &lt; 0.1",
    )


def _score(row: Row, variants: list[str], several: bool) -> str:
    """A variant's score on an environment, with details in small print."""
    head = variant_name(row["variant"]) + (f" on {name(row['env'])}" if several else "")
    small = (
        f"final return {number(row['final_return'])}; {number(row['updates'], places=1)} target updates "
        f"({number(row['updates_pct'], places=1)} % of rounds); {text.whole_number(row, 'env_steps').shown} steps"
    )
    return _tile(row["variant"], variants, head, number(row["score"]), f"score {_interval(row, 'score')}", small)


def _one(row: Row, variants: list[str]) -> str:
    """Four tiles for the only score."""
    seeds = f"mean of {text.count(int(row['seeds']), 'seed')}"
    shown = (
        ("Score", number(row["score"]), _interval(row, "score"), f"return over the last 10 % of steps, {seeds}"),
        ("Final return", number(row["final_return"]), _interval(row, "final_return"), "of the last round's episodes"),
        (
            "Target updates",
            number(row["updates"], places=1),
            _interval(row, "updates", 1),
            f"in {number(row['updates_pct'], places=1)} % of rounds",
        ),
        ("Steps", text.whole_number(row, "env_steps").shown, "", "of each seed"),
    )
    return "".join(_tile(row["variant"], variants, *each) for each in shown)


def _interval(row: Row, column: str, places: int | None = None) -> str:
    return html.escape(text.with_interval(row, column, places).shown.partition(" ")[2])
