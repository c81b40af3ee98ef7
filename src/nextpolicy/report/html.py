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
from nextpolicy.report import curves, text
from nextpolicy.report.runs import Run
from nextpolicy.report.tables import Comparison
from nextpolicy.report.text import Column, number

_COLOURS = 8
_SECTIONS = (
    ("aggregate", "All environments"),
    ("bars", "Score against PPO"),
    ("environments", "Each environment"),
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
    "environments": "A click on a heading sorts. A star: Welch's test finds p < 0.1.",
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


def page(comparison: Comparison, title: str, *, watch: str = "") -> str:
    """The whole page; `watch` is the version that a serving process tells apart."""
    runs, members, by_key, totals = comparison
    variants = list(dict.fromkeys(members["variant"]))
    environments = _by_environment(runs)
    parts = {
        "aggregate": _table(totals, text.aggregate_columns(), variants)
        if len(totals)
        else "<p>No variant to compare.</p>",
        "bars": "".join(_bars(suite, by_key, variants) for suite in dict.fromkeys(s for s, _ in by_key)),
        "environments": "".join(
            _heading(suite, variant, variants) + _table(table, text.environment_columns(table), variants)
            for (suite, variant), table in by_key.items()
        ),
        "curves": _cards(environments, ["return"]),
        "gate": _cards(environments, ["diff", "lifespan", "updates"]),
        "runs": "".join(map(_run, runs)),
    }
    sections = "".join(
        f'<section id="{name}"><h2>{words}</h2><p class="about">{_EXPLAINED[name]}</p>'
        f"{parts[name]}</section>\n{_controls(variants) if name == 'aggregate' else ''}"
        for name, words in _SECTIONS
    )
    summary = "".join(f"<p>{html.escape(line)}</p>" for line in text.summary(members, by_key, totals))
    nav = "".join(f'<a href="#{name}">{words}</a>' for name, words in _SECTIONS)
    body = (
        f'<header><h1>{html.escape(title)}</h1><div class="summary">{summary}</div>'
        f'<nav aria-label="Sections">{nav}</nav></header>\n<main>{sections}</main>\n'
    )
    return _document(title, body, _data(environments, variants, watch), bool(watch))


def _document(title: str, body: str, data: dict[str, Any], watch: bool) -> str:
    assets = resources.files("nextpolicy.report") / "assets"
    css, script = ((assets / name).read_text(encoding="utf-8") for name in ("page.css", "page.js"))
    # Nothing may be fetched, but by a page that is being served for the version of itself.
    policy = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"
    policy += "; connect-src 'self'" if watch else ""
    plain = json.dumps(data, separators=(",", ":"), allow_nan=False).replace("</", "<\\/")
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
    panels = {name: {k: v for k, v in about.items() if k != "points"} for name, about in curves.PANELS.items()}
    drawn = [
        {
            "rounds": max(run.rounds for run in runs),
            "steps_per_round": runs[0].total_steps // max(runs[0].rounds, 1),
            "panels": {panel: curves.series(runs, variants, panel) for panel in curves.PANELS},
        }
        for runs in environments.values()
    ]
    return {"variants": variants, "panels": panels, "environments": drawn, "watch": watch}


def _controls(variants: list[str]) -> str:
    buttons = "".join(
        f'<button type="button" aria-pressed="true" data-variant="{i}">{_swatch(i)}{html.escape(v)}</button>'
        for i, v in enumerate(variants)
    )
    members = '<button type="button" aria-pressed="true" id="members">single seeds</button>'
    return f'<div class="controls" role="group" aria-label="What is shown">{buttons}{members}</div>'


def _swatch(index: int) -> str:
    return f'<span class="swatch" style="--c: var(--c{index % _COLOURS})"></span>'


def _heading(suite: str, variant: str, variants: list[str]) -> str:
    number = variants.index(variant)
    name = html.escape(text.SUITE_NAMES.get(suite, suite))
    return f'<h3 data-of="{number}">{_swatch(number)}{html.escape(variant)} <small>{name}</small></h3>'


def _table(table: pd.DataFrame, columns: Sequence[Column], variants: list[str]) -> str:
    """A table that sorts; each row, or the whole table where it is of one variant, goes with the variant's switch."""
    head = "".join(
        f'<th scope="col"{_kind(words)} title="{html.escape(about)}">'
        f'<button type="button">{html.escape(words)}</button></th>'
        for words, about, _ in columns
    )
    rows = []
    for record, row in zip(table.to_dict("records"), text.cells(table, columns), strict=True):
        cells = "".join(_cell(cell, words, first=i == 0) for i, (cell, (words, _, _)) in enumerate(zip(row, columns)))
        of = variants.index(record["variant"])
        rows.append(f'<tr class="{record.get("source", "")}" data-of="{of}">{cells}</tr>')
    only = set(table["variant"])
    of_all = f' data-of="{variants.index(only.pop())}"' if len(only) == 1 and "source" not in table else ""
    label = html.escape(", ".join(dict.fromkeys(table["variant"])))
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="Table of {label}"{of_all}>'
        f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table></div>"
    )


def _cell(cell: text.Cell, heading: str, *, first: bool) -> str:
    shown, key = cell
    key = "-inf" if key == -math.inf else key
    opening, closing = ('th scope="row"', "th") if first else ("td", "td")
    words = _name(shown) if first else html.escape(shown)
    return f'<{opening}{_kind(heading)} data-key="{html.escape(str(key))}">{words}</{closing}>'


def _name(env: str) -> str:
    """An environment's id, which may break after a slash or an underscore."""
    return html.escape(env).replace("/", "/<wbr>").replace("_", "_<wbr>")


def _kind(heading: str) -> str:
    return {"Note": ' class="note"', "Variant": ' class="text"', "Source": ' class="text"'}.get(heading, "")


def _bars(suite: str, by_key: dict[tuple[str, str], pd.DataFrame], variants: list[str]) -> str:
    """Bars from 100 % to each variant's score, on a logarithmic scale that all environments of the suite share."""
    shown = {v: t.set_index("env").to_dict("index") for (s, v), t in by_key.items() if s == suite}
    envs = list(dict.fromkeys(env for rows in shown.values() for env in rows))
    ends = ("", "_low", "_high")
    values = [row[f"score_pct_of_ppo{end}"] for rows in shown.values() for row in rows.values() for end in ends]
    low, high = _span(values)

    def place(value: float) -> float:
        inside = min(max(value, low), high)
        return 100 * math.log(inside / low) / math.log(high / low)

    def order(env: str) -> float:
        best = [rows[env]["score_pct_of_ppo"] for rows in shown.values() if env in rows]
        return max((v for v in best if math.isfinite(v)), default=-math.inf)

    rows = []
    for env in sorted(envs, key=order, reverse=True):
        tracks = "".join(_track(v, rows_of[env], variants, place) for v, rows_of in shown.items() if env in rows_of)
        winner = html.escape(margin({v: rows_of[env] for v, rows_of in shown.items() if env in rows_of}))
        line = f'<i class="one-hundred" style="left:{place(100):.2f}%"></i>'
        name = f'<div class="name">{_name(env)}<small>{winner}</small></div>'
        rows.append(f'<div class="bar-row">{name}<div class="tracks">{line}{tracks}</div></div>')
    axis = "".join(f'<span style="left:{place(m):.2f}%">{m:g} %</span>' for m in _marks(low, high))
    axis = f'<div class="bar-row" aria-hidden="true"><div></div><div class="axis">{axis}</div></div>'
    return f'<h3>{html.escape(text.SUITE_NAMES.get(suite, suite))}</h3><div class="bars">{"".join(rows)}{axis}</div>'


def _span(values: list[float]) -> tuple[float, float]:
    """Percentages at the ends of the bars' scale: all that are positive, within a factor of 10 of PPO below."""
    positive = [max(v, 10.0) for v in values if v > 0 and math.isfinite(v)]
    return min([80.0, *positive]) / 1.05, max([125.0, *positive]) * 1.15


def _marks(low: float, high: float) -> list[float]:
    """100 and some percentages around it, fewer the wider the scale."""
    narrow = (50, 60, 70, 80, 90, 100, 110, 125, 150, 175, 200, 250)
    wide = (10, 25, 50, 100, 200, 400, 800, 1600, 3200)
    return [m for m in (narrow if high / low < 4 else wide) if low * 1.03 <= m <= high / 1.03]


def _track(variant: str, row: dict[str, Any], variants: list[str], place: Any) -> str:
    index, value = variants.index(variant), row["score_pct_of_ppo"]
    shown = html.escape(text.with_interval(row, "score_pct_of_ppo")[0])
    note = f" ({html.escape(row['note'])})" if row["note"] else ""
    title = f'title="{html.escape(variant)}: {shown} % of PPO, {int(row["seeds"])} seeds{note}"'
    if not math.isfinite(value):
        return f'<div class="track" data-of="{index}" {title}><span class="note">no score{note}</span></div>'
    start, end = sorted((place(100), place(value)))
    bar = f'<i style="left:{start:.2f}%;width:{end - start:.2f}%;--c: var(--c{index % _COLOURS})"></i>'
    whisker, reach = "", end
    if math.isfinite(row["score_pct_of_ppo_low"]):
        left, right = place(row["score_pct_of_ppo_low"]), place(row["score_pct_of_ppo_high"])
        whisker = f'<b style="left:{left:.2f}%;width:{max(right - left, 0):.2f}%"></b>'
        reach = max(reach, right)
    # The number stands behind whatever reaches furthest, or at the right edge before it would leave the track.
    where = f"left:{reach:.2f}%" if reach < 84 else "right:0"
    label = f'<span style="{where}">{number(value, places=1)}</span>'
    return f'<div class="track" data-of="{index}" {title}>{bar}{whisker}{label}</div>'


def margin(rows: dict[str, dict[str, Any]]) -> str:
    """`sv-dynamic ahead by 4.2 points`: the best of the variants and PPO, against the next."""
    scores = {v: row["score_pct_of_ppo"] for v, row in rows.items() if math.isfinite(row["score_pct_of_ppo"])}
    if not scores:
        return "no score to compare"
    (best, first), (_, second), *_ = sorted({**scores, "PPO": 100.0}.items(), key=lambda item: -item[1])
    lead = number(first - second, places=1)
    return "level" if lead == "0.0" else f"{best} ahead by {lead} points"


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
        cards.append(f'<article class="{kind}"><h3>{_name(env)}{state}</h3>{charts}</article>')
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
