"""The page: one file with everything in it, which opens without a network. Text and tables are plain HTML made here;
`assets/page.js` draws the curves and sorts."""

from __future__ import annotations

import html
import json
import math
from collections.abc import Sequence
from importlib import resources
from typing import Any

import pandas as pd

from nextpolicy._version import __version__
from nextpolicy.report import bars, curves, palette, summary, text
from nextpolicy.report.bars import name, swatch, variant_name
from nextpolicy.report.runs import Run
from nextpolicy.report.tables import Comparison
from nextpolicy.report.text import Column
from nextpolicy.report.tiles import tiles

_SECTIONS = (
    ("aggregate", "All environments"),
    ("bars", "Score against PPO"),
    ("environments", "Each environment"),
    ("scores", "Returns"),
    ("curves", "Learning curves"),
    ("gate", "Gate"),
    ("runs", "Runs"),
)
_EXPLAINED = {
    "aggregate": (
        "Scores in percent of PPO's mean on the same environment. Where that mean is negative, it is 100 + "
        "100 (score - PPO) / |PPO|: an improvement counts as above 100. Intervals are 95 %, by resampling seeds."
    ),
    "bars": (
        "Mean score in percent of PPO's, on a logarithmic scale, with its 95 % interval. The words beside an "
        "environment name the best of all, PPO included, and how far it is ahead of the next."
    ),
    "environments": (
        "A click on a heading sorts. A star: Welch's test finds p < 0.1. Value loss and entropy are means over all "
        "rounds, and over the last 10 % of steps: at convergence, as the paper prints them."
    ),
    "scores": (
        "The score is the mean return of the episodes that ended in the last 10 % of steps, ± the standard deviation "
        "over seeds. Intervals are 95 %, by resampling seeds. A click on a heading sorts."
    ),
    "curves": (
        "Mean return of the episodes that ended in a round: thin for each seed, thick for their mean. Curves are "
        "thinned so that every peak stays. Arrow keys walk along a curve that has the focus."
    ),
    "gate": (
        "How far values still move, against the threshold under which they count as stable; how many rounds each "
        "target policy lived; and how many there have been."
    ),
    "runs": "What each run was told, and what it ran on.",
}


def page(comparison: Comparison, title: str = "", *, watch: str = "", problem: str = "") -> str:
    """The whole page; `watch` is the version that a serving process tells apart, `problem` why it is not of now."""
    members = comparison.members
    title = title or summary.title(members)
    variants = list(dict.fromkeys(members["variant"]))
    environments = _by_environment(comparison.runs)
    parts = {key: part for key, part in _parts(comparison, variants, environments).items() if part}
    words = {key: heading for key, heading in _SECTIONS if key in parts}
    controls = [_controls(variants), *[""] * len(words)]  # below the first section
    sections = "".join(
        f'<section id="{key}"><h2>{heading}</h2><p class="about">{_EXPLAINED[key]}</p>{parts[key]}</section>\n{below}'
        for (key, heading), below in zip(words.items(), controls)
    )
    nav = "".join(f'<a href="#{key}">{heading}</a>' for key, heading in words.items())
    live = f'<span class="live" role="status">{"not up to date" if problem else "live"}</span>' if watch else ""
    broken = f'<p class="problem" role="alert">This page shows an earlier state. {html.escape(problem)}</p>'
    body = (
        f"{broken if problem else ''}<header><h1>{html.escape(title)}{live}</h1>"
        f'<div class="tiles">{tiles(comparison, variants)}</div><div class="summary">{_summary(comparison)}</div>'
        f'<nav aria-label="Sections">{nav}</nav></header>\n<main>{sections}</main>\n'
    )
    return _document(title, body, _data(environments, variants, watch), bool(watch))


def _parts(comparison: Comparison, variants: list[str], environments: dict[str, list[Run]]) -> dict[str, str]:
    """What stands in each section; those that compare with PPO are empty where there is none."""
    by_key, totals, scores = comparison.environments, comparison.totals, comparison.scores
    several = len({suite for suite, _ in by_key}) > 1
    gate = [panel for panel in ("diff", "lifespan", "updates") if not all(v.startswith("ppo") for v in variants)]
    return {
        "aggregate": _table(totals, text.aggregate_columns(totals), variants) if len(totals) else "",
        "bars": "".join(bars.bars(suite, by_key, variants) for suite in dict.fromkeys(s for s, _ in by_key)),
        "environments": "".join(
            _heading(suite if several else "", variant, variants)
            + _table(table, text.environment_columns(table), variants)
            for (suite, variant), table in by_key.items()
        ),
        "scores": _table(scores, text.scores_columns(scores), variants),
        "curves": _cards(environments, ["return"]),
        "gate": _cards(environments, gate) if gate else "",
        "runs": "".join(map(_run, comparison.runs)),
    }


def _summary(comparison: Comparison) -> str:
    lines = "".join(f"<p>{html.escape(line)}</p>" for line in summary.sentences(comparison))
    if comparison.varied:
        said = html.escape(", ".join(comparison.varied))
        lines += f'<p class="varied">Settings that differ between environments: {said}.</p>'
    if comparison.mixed:
        fields = html.escape(", ".join(comparison.mixed))
        lines += f'<p class="warning">Mixed settings: these runs are not alike in {fields}; read with care.</p>'
    return lines


def _document(title: str, body: str, data: dict[str, Any], watch: bool) -> str:
    assets = resources.files("nextpolicy.report") / "assets"
    css, script = ((assets / name).read_text(encoding="utf-8") for name in ("page.css", "page.js"))
    # Nothing may be fetched, but by a page that is being served for the version of itself.
    policy = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"
    policy += "; connect-src 'self'" if watch else ""
    plain = json.dumps(data, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{html.escape(title)}</title>\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<meta name="generator" content="nextpolicy {__version__}">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}"><link rel="icon" href="data:,">\n'
        f"<style>\n{css}</style></head>\n<body>{body}"
        f'<script type="application/json" id="data">{plain}</script>\n<script>\n{script}</script></body></html>\n'
    )


def _by_environment(runs: Sequence[Run]) -> dict[str, list[Run]]:
    grouped: dict[str, list[Run]] = {}
    for run in runs:
        grouped.setdefault(run.env, []).append(run)
    return grouped


def _data(environments: dict[str, list[Run]], variants: list[str], watch: str) -> dict[str, Any]:
    """What the script needs."""
    panels = {panel: {k: v for k, v in about.items() if k != "points"} for panel, about in curves.PANELS.items()}
    drawn = [
        {
            "rounds": max(run.rounds for run in runs),
            "steps_per_round": runs[0].total_steps // max(runs[0].rounds, 1),
            "panels": {panel: curves.series(runs, variants, panel) for panel in curves.PANELS},
        }
        for runs in environments.values()
    ]
    slots = [palette.slot(variant, variants) for variant in variants]
    return {"variants": variants, "slots": slots, "panels": panels, "environments": drawn, "watch": watch}


def _controls(variants: list[str]) -> str:
    buttons = "".join(
        f'<button type="button" aria-pressed="true" data-variant="{i}">{swatch(v, variants)}{variant_name(v)}</button>'
        for i, v in enumerate(variants)
    )
    members = '<button type="button" aria-pressed="true" id="members">single seeds</button>'
    return f'<div class="controls" role="group" aria-label="What is shown">{buttons}{members}</div>'


def _heading(suite: str, variant: str, variants: list[str]) -> str:
    index = variants.index(variant)
    of = html.escape(text.SUITE_NAMES.get(suite, suite))
    return f'<h3 data-of="{index}">{swatch(variant, variants)}{variant_name(variant)} <small>{of}</small></h3>'


def _table(table: pd.DataFrame, columns: Sequence[Column], variants: list[str]) -> str:
    """A table that sorts; each row, or the whole table where it is of one variant, goes with the variant's switch."""
    head = "".join(
        f'<th scope="col"{_kind(words)} title="{html.escape(about)}">'
        f'<button type="button">{html.escape(words)}</button></th>'
        for words, about, _ in columns
    )
    rows = []
    for record, row in zip(table.to_dict("records"), text.cells(table, columns), strict=True):
        cells = "".join(
            _cell(cell, words, record, first=i == 0) for i, (cell, (words, _, _)) in enumerate(zip(row, columns))
        )
        of = variants.index(record["variant"])
        rows.append(f'<tr class="{record.get("source", "")}" data-of="{of}">{cells}</tr>')
    only = set(table["variant"])
    of_all = f' data-of="{variants.index(only.pop())}"' if len(only) == 1 and "source" not in table else ""
    label = html.escape(", ".join(dict.fromkeys(table["variant"])))
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="Table of {label}"{of_all}>'
        f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table></div>"
    )


def _cell(cell: text.Cell, heading: str, record: dict[str, Any], *, first: bool) -> str:
    shown, key = cell
    if heading == "Seeds" and record.get("note"):  # what is missing must be seen without scrolling to the note
        return f'<td class="lost" data-key="{key}" title="{html.escape(record["note"])}">{html.escape(shown)}</td>'
    key = "-inf" if key == -math.inf else key
    opening, closing = ('th scope="row"', "th") if first else ("td", "td")
    words = (variant_name if heading == "Variant" else name)(shown) if first else html.escape(shown)
    return f'<{opening}{_kind(heading)} data-key="{html.escape(str(key))}">{words}</{closing}>'


def _kind(heading: str) -> str:
    kind = {"Note": "note", "Variant": "text", "Source": "text"} | dict.fromkeys(text.NOT_IN_PRINT, "screen-only")
    return f' class="{kind[heading]}"' if heading in kind else ""


def _cards(environments: dict[str, list[Run]], panels: list[str]) -> str:
    cards = []
    for index, (env, runs) in enumerate(environments.items()):
        odd = "; ".join(f"{run.state} at {run.rounds_done} of {run.rounds}" for run in runs if run.state != "finished")
        charts = ""
        for panel in panels:
            label = curves.PANELS[panel]["label"]
            words = f'<p class="about">{label}</p>' if len(panels) > 1 else ""
            charts += (
                f'{words}<div class="chart" tabindex="0" role="group" data-env="{index}" data-panel="{panel}" '
                f'aria-label="{html.escape(label)} on {html.escape(env)}; arrow keys read it out"></div>'
            )
        state = f' <small class="note">{html.escape(odd)}</small>' if odd else ""
        kind = "card gate" if len(panels) > 1 else "card"
        cards.append(f'<article class="{kind}"><h3>{name(env)}{state}</h3>{charts}</article>')
    return f'<div class="grid">{"".join(cards)}</div>'


def _run(run: Run) -> str:
    """Every setting and version of a run, folded away."""
    about = {k: v for k, v in run.about.items() if k != "versions"} | run.about.get("versions", {})
    state = f"{run.state}, {run.rounds_done} of {run.rounds} rounds" + (f": {run.reason}" if run.reason else "")
    head = f"<summary><strong>{html.escape(run.env)}</strong> {html.escape(run.name)} ({html.escape(state)})</summary>"
    return f"<details>{head}{_pairs('Settings', run.settings)}{_pairs('Versions and device', about)}</details>"


def _pairs(heading: str, values: dict[str, Any]) -> str:
    show = lambda v: html.escape(v if isinstance(v, str) else json.dumps(v))  # noqa: E731
    rows = "".join(f"<div><dt>{html.escape(k)}</dt><dd>{show(v)}</dd></div>" for k, v in values.items())
    return f"<h3>{heading}</h3><dl>{rows}</dl>"
