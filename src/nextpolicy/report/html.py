"""The page: one self-contained HTML file. Text and tables are written here; `assets/page.js` draws curves and sorts."""

from __future__ import annotations

import html
import json
from collections.abc import Callable, Sequence
from typing import Any

import pandas as pd

from nextpolicy._version import __version__
from nextpolicy.report import bars, curves, embed, layout, palette, summary, text
from nextpolicy.report.bars import name, swatch, variant_name
from nextpolicy.report.baseline import grouped, label_of, pace_of, worded
from nextpolicy.report.runs import Run, by_environment
from nextpolicy.report.statistic import Column
from nextpolicy.report.tables import Comparison
from nextpolicy.report.text import Cell, Row
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
        "Scores in percent of PPO's mean on the same environment. If that mean is negative, the percentage is 100 + "
        "100 (score - PPO) / |PPO|, so an improvement is above 100. Intervals are 95 %, by resampling seeds."
    ),
    "bars": (
        "Mean score in percent of PPO's, on a logarithmic scale, with its 95 % interval. Below each environment: "
        "which variant is best, PPO included, and by how much."
    ),
    "environments": (
        "Means over seeds [95 % interval, by resampling seeds]. A star means that Welch's test finds p < 0.1. "
        "Click a heading to sort."
    ),
    "scores": "Means over seeds [95 % interval, by resampling seeds], ± standard deviation. Click a heading to sort.",
    "curves": (
        "Mean return of the episodes that ended in each round against environment steps: thin for each seed, thick "
        "for the mean over seeds. Curves are thinned, but every peak is kept. Focus a curve and use the arrow keys to "
        "read it."
    ),
    "gate": (
        "How much values still change, relative to the threshold below which they count as stable; how many rounds "
        "each target policy lived; and the number of target updates. Thick lines are means over seeds."
    ),
    "runs": "Settings, versions and device of each run.",
}


def page(comparison: Comparison, title: str = "", *, watch: str = "", problem: str = "") -> str:
    """The whole page. `watch` is the version of a served page; `problem` says why it is out of date."""
    members = comparison.members
    title = title or summary.title(members)
    variants = list(dict.fromkeys(members["variant"]))
    environments = by_environment(comparison.runs)
    parts = {key: part for key, part in _parts(comparison, variants, environments).items() if part}
    compared = [variant for _, variant in comparison.environments]
    words = {key: html.escape(worded(heading, compared)) for key, heading in _SECTIONS if key in parts}
    about = _about(comparison)
    controls = [_controls(variants), *[""] * len(words)]  # below the first section
    sections = "".join(
        f'<section id="{key}"><h2>{heading}</h2><p class="about">{about[key]}</p>{parts[key]}</section>\n{below}'
        for (key, heading), below in zip(words.items(), controls)
    )
    nav = "".join(f'<a href="#{key}">{heading}</a>' for key, heading in words.items())
    live = f'<span class="live" role="status">{"out of date" if problem else "live"}</span>' if watch else ""
    broken = f'<p class="problem" role="alert">This page is out of date. {html.escape(problem)}</p>'
    body = (
        f"{broken if problem else ''}<header><h1>{html.escape(title)}{live}</h1>"
        f'<div class="tiles">{tiles(comparison, variants)}</div><div class="summary">{_summary(comparison)}</div>'
        f'<nav aria-label="Sections">{nav}</nav></header>\n<main>{sections}</main>\n'
    )
    return _document(title, body, _data(environments, variants, watch), bool(watch))


def _about(comparison: Comparison) -> dict[str, str]:
    """What is below the heading of each section, as HTML."""
    compared = [variant for _, variant in comparison.environments]
    about = {key: worded(words, compared) for key, words in _EXPLAINED.items()}
    bases = list(dict.fromkeys(label_of(base) for _, base in grouped(comparison.environments)))
    if len(bases) > 1:
        about["aggregate"] += f" The baseline is the plain variant of the same algorithm: {' or '.join(bases)}."
    return {key: html.escape(words, quote=False) for key, words in about.items()}


def _parts(comparison: Comparison, variants: list[str], environments: dict[str, list[Run]]) -> dict[str, str]:
    """Contents of each section; those that compare with a baseline are empty without one."""
    by_key, totals, scores = comparison.environments, comparison.totals, comparison.scores
    several = len({suite for suite, _ in by_key}) > 1
    gate = [panel for panel in ("diff", "lifespan", "updates") if any(pace_of(v) != "plain" for v in variants)]
    return {
        "aggregate": _explained_tables([("", totals)], layout.aggregate_columns, variants) if len(totals) else "",
        "bars": _bars(comparison, variants),
        "environments": _explained_tables(
            [(_heading(suite if several else "", v, variants), table) for (suite, v), table in by_key.items()],
            layout.environment_columns,
            variants,
        ),
        "scores": _explained_tables([("", scores)], layout.scores_columns, variants),
        "curves": _cards(environments, ["return"]),
        "gate": _cards(environments, gate) if gate else "",
        "runs": "".join(map(_run, comparison.runs)),
    }


def _bars(comparison: Comparison, variants: list[str]) -> str:
    """A chart for each suite and baseline, named by what tells it from the others."""
    groups = grouped(comparison.environments)
    suites, bases = ({key[i] for key in groups} for i in range(2))
    charts = []
    for (suite, base), tables in groups.items():
        names = [text.suite_name(suite)] * (len(suites) > 1) + [f"in percent of {label_of(base)}"] * (len(bases) > 1)
        charts.append(bars.bars(", ".join(names), tables, variants))
    return "".join(charts)


def _summary(comparison: Comparison) -> str:
    lines = "".join(f"<p>{html.escape(line)}</p>" for line in summary.sentences(comparison))
    if comparison.varied:
        said = html.escape(", ".join(comparison.varied))
        lines += f'<p class="varied">Settings that differ between environments: {said}.</p>'
    if comparison.mixed:
        fields = html.escape(", ".join(comparison.mixed))
        lines += f'<p class="warning">Mixed settings: these runs differ in {fields}; compare with care.</p>'
    return lines


def _document(title: str, body: str, data: dict[str, Any], watch: bool) -> str:
    css, svg, script = map(embed.asset, ("page.css", "svg.js", "page.js"))
    # A page may fetch nothing; a served page may ask for its newest version.
    policy = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"
    policy += "; connect-src 'self'" if watch else ""
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{html.escape(title)}</title>\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<meta name="generator" content="nextpolicy {__version__}">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}"><link rel="icon" href="data:,">\n'
        f"<style>\n{palette.css()}{css}</style></head>\n<body>{body}"
        f"{embed.data_element(data)}\n<script>\n{svg}{script}</script></body></html>\n"
    )


def _data(environments: dict[str, list[Run]], variants: list[str], watch: str) -> dict[str, Any]:
    """The data of page.js."""
    panels = {name: {"label": panel.label, **panel.options} for name, panel in curves.PANELS.items()}
    drawn = [
        {
            "steps": max(run.total_steps for run in runs),
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
    return f'<div class="controls" role="group" aria-label="Shown variants">{buttons}{members}</div>'


def _heading(suite: str, variant: str, variants: list[str]) -> str:
    index = variants.index(variant)
    of = html.escape(text.suite_name(suite))
    return f'<h3 data-of="{index}">{swatch(variant, variants)}{variant_name(variant)} <small>{of}</small></h3>'


def _explained_tables(
    tables: Sequence[tuple[str, pd.DataFrame]], columns_of: Callable[[pd.DataFrame], list[Column]], variants: list[str]
) -> str:
    """Tables below their headings (HTML), and then what their columns mean."""
    parts, meanings = [], dict[str, str]()
    for heading, table in tables:
        columns = columns_of(table)
        parts.append(heading + _table(table, columns, variants))
        meanings |= layout.explanations(columns)
    rows = "".join(f"<dt>{html.escape(words)}</dt><dd>{html.escape(about)}</dd>" for words, about in meanings.items())
    legend = f'<details class="meanings"><summary>What the columns mean</summary><dl>{rows}</dl></details>'
    return "".join(parts) + (legend if parts else "")


def _table(table: pd.DataFrame, columns: Sequence[Column], variants: list[str]) -> str:
    """A sortable table. Rows follow the switch of their variant, and so does a table of a single variant."""
    head = "".join(
        f'<th scope="col"{_class(column)} title="{html.escape(column.about)}">'
        f'<button type="button">{html.escape(column.heading)}</button></th>'
        for column in columns
    )
    rows = []
    for record, row in zip(table.to_dict("records"), layout.cells(table, columns), strict=True):
        cells = "".join(_cell(cell, column, record, first=i == 0) for i, (cell, column) in enumerate(zip(row, columns)))
        of = variants.index(record["variant"])
        rows.append(f'<tr class="{record.get("source", "")}" data-of="{of}">{cells}</tr>')
    only = set(table["variant"])
    of_all = f' data-of="{variants.index(only.pop())}"' if len(only) == 1 and "source" not in table else ""
    label = html.escape(", ".join(dict.fromkeys(table["variant"])))
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="Table of {label}"{of_all}>'
        f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table></div>"
    )


def _cell(cell: Cell, column: Column, record: Row, *, first: bool) -> str:
    shown, key = html.escape(cell.shown), html.escape(str(cell.key))
    if column.name == "seeds" and record.get("note"):  # visible without scrolling to the note
        return f'<td class="lost" data-key="{key}" title="{html.escape(record["note"])}">{shown}</td>'
    if first:
        shown = (variant_name if column.name == "variant" else name)(cell.shown)
    opening, closing = ('th scope="row"', "th") if first else ("td", "td")
    return f'<{opening}{_class(column)} data-key="{key}">{shown}</{closing}>'


def _class(column: Column) -> str:
    kind = column.kind if column.in_print else "screen-only"
    return "" if kind == "number" else f' class="{kind}"'


def _cards(environments: dict[str, list[Run]], panels: list[str]) -> str:
    cards = []
    for index, (env, runs) in enumerate(environments.items()):
        odd = "; ".join(f"{run.state} at {run.rounds_done} of {run.rounds}" for run in runs if run.state != "finished")
        charts = ""
        for panel in panels:
            label = curves.PANELS[panel].label
            charts += (
                f'<div class="chart" tabindex="0" role="group" data-env="{index}" data-panel="{panel}" '
                f'aria-label="{html.escape(label)} on {html.escape(env)}; read with the arrow keys"></div>'
            )
        state = f' <small class="note">{html.escape(odd)}</small>' if odd else ""
        kind = "card gate" if len(panels) > 1 else "card"
        cards.append(f'<article class="{kind}"><h3>{name(env)}{state}</h3>{charts}</article>')
    return f'<div class="grid">{"".join(cards)}</div>'


def _run(run: Run) -> str:
    """All settings and versions of a run, folded."""
    about = {k: v for k, v in run.about.items() if k != "versions"} | run.about.get("versions", {})
    state = f"{run.state}, {run.rounds_done} of {run.rounds} rounds" + (f": {run.reason}" if run.reason else "")
    head = f"<summary><strong>{html.escape(run.env)}</strong> {html.escape(run.name)} ({html.escape(state)})</summary>"
    return f"<details>{head}{_pairs('Settings', run.settings)}{_pairs('Versions and device', about)}</details>"


def _pairs(heading: str, values: dict[str, Any]) -> str:
    shown = {k: v if isinstance(v, str) else json.dumps(v) for k, v in values.items()}
    rows = "".join(f"<div><dt>{html.escape(k)}</dt><dd>{html.escape(v)}</dd></div>" for k, v in shown.items())
    return f"<h3>{heading}</h3><dl>{rows}</dl>"
