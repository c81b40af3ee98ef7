"""The bar chart of the page, as plain HTML: each variant's score, drawn from its baseline's 100 %."""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Mapping

import pandas as pd

from nextpolicy.report import palette, text
from nextpolicy.report.baseline import label, worded
from nextpolicy.report.text import Row, number

ROOM = 1.3  # the scale extends this factor beyond the scores; wider intervals are cut off and marked


def bars(heading: str, tables: dict[str, pd.DataFrame], variants: list[str]) -> str:
    """Bars from 100 % to each variant's score, on one logarithmic scale for all environments, below a heading."""
    shown = {v: t.set_index("env").to_dict("index") for v, t in tables.items()}
    base = label(tables)
    envs = list(dict.fromkeys(env for rows in shown.values() for env in rows))
    low, high = span([row["score_pct_of_ppo"] for rows in shown.values() for row in rows.values()])

    def place(value: float) -> float:
        inside = min(max(value, low), high)
        return 100 * math.log(inside / low) / math.log(high / low)

    def order(env: str) -> float:
        best = [rows[env]["score_pct_of_ppo"] for rows in shown.values() if env in rows]
        return max((v for v in best if math.isfinite(v)), default=-math.inf)

    rows = []
    for env in sorted(envs, key=order, reverse=True):
        tracks = "".join(_track(v, rows_of[env], variants, place) for v, rows_of in shown.items() if env in rows_of)
        winner = html.escape(margin({v: rows_of[env] for v, rows_of in shown.items() if env in rows_of}, base))
        line = f'<i class="one-hundred" style="left:{place(100):.2f}%"></i>'
        head = f'<div class="name">{name(env)}<small>{winner}</small></div>'
        many = " many" * (len(shown) > 4)
        rows.append(f'<div class="bar-row{many}">{head}<div class="tracks">{line}{tracks}</div></div>')
    few = apart(marks(low, high), place, 18.0)  # on a phone
    axis = "".join(
        f'<span class="{"few" if m in few else "more"}" style="left:{place(m):.2f}%">{m:g} %</span>'
        for m in apart(marks(low, high), place, 6.0)
    )
    axis = f'<div class="bar-row" aria-hidden="true"><div></div><div class="axis">{axis}</div></div>'
    head = f"<h3>{html.escape(heading)}</h3>" if heading else ""
    return f'{head}<div class="bars">{"".join(rows)}{axis}</div>'


def name(env: str) -> str:
    """An environment's id, with line breaks allowed after slashes and underscores."""
    return html.escape(env).replace("/", "/<wbr>").replace("_", "_<wbr>")


def variant_name(variant: str) -> str:
    """A variant's name, with line breaks allowed before and between its swept values."""
    return html.escape(variant).replace("[", "<wbr>[").replace(",", ",<wbr>")


def paint(slot: int) -> str:
    """Class and style in a variant's colour; stripes tell the second use of a colour from the first."""
    return f'class="{"again" if palette.is_second(slot) else "once"}" style="{colour(slot)}'


def colour(slot: int) -> str:
    return f"--c: var(--c{slot % len(palette.COLOURS)})"


def swatch(variant: str, variants: list[str]) -> str:
    return f'<span class="swatch"><i {paint(palette.slot(variant, variants))}"></i></span>'


def span(values: list[float]) -> tuple[float, float]:
    """Ends of the scale in percent; it covers all positive scores, but goes no lower than a tenth of the baseline's."""
    positive = [max(v, 10.0) for v in values if v > 0 and math.isfinite(v)]
    return min([75.0, *(v / ROOM for v in positive)]), max([133.0, *(v * ROOM for v in positive)])


def marks(low: float, high: float) -> list[float]:
    """Tick marks in percent; the wider the scale, the fewer."""
    narrow = (50, 60, 70, 80, 90, 100, 110, 125, 150, 175, 200, 250)
    wide = (10, 25, 50, 100, 200, 400, 800, 1600, 3200)
    return [m for m in (narrow if high / low < 4 else wide) if low * 1.03 <= m <= high / 1.03]


def apart(marks: list[float], place: Callable[[float], float], gap: float) -> list[float]:
    """Those marks whose labels keep a `gap` (in percent of the scale) between them; 100 is always kept."""
    kept: list[float] = []
    for mark in sorted(marks, key=lambda m: abs(place(m) - place(100))):
        if all(abs(place(mark) - place(other)) >= gap for other in kept):
            kept.append(mark)
    return sorted(kept)


def _track(variant: str, row: Row, variants: list[str], place: Callable[[float], float]) -> str:
    index, value = variants.index(variant), row["score_pct_of_ppo"]
    shown = html.escape(text.with_interval(row, "score_pct_of_ppo", places=1).shown)
    note = f" ({html.escape(row['note'])})" if row["note"] else ""
    share = html.escape(worded("% of PPO", [variant]))
    title = f'title="{html.escape(variant)}: {shown} {share}, {int(row["seeds"])} seeds{note}"'
    if not math.isfinite(value):
        why = html.escape(row["note"] or "no score")
        return f'<div class="track" data-of="{index}" {title}><span class="note">{why}</span></div>'
    start, end = sorted((place(100), place(value)))
    bar = f'<i {paint(palette.slot(variant, variants))};left:{start:.2f}%;width:{end - start:.2f}%"></i>'
    whisker = ""
    if math.isfinite(row["score_pct_of_ppo_low"]):
        low, high = row["score_pct_of_ppo_low"], row["score_pct_of_ppo_high"]
        left, right = place(low), place(high)
        # At 0 or 100 the scale ends and the interval continues.
        cut = " ".join(word for word, at, end in (("from-left", left, 0.0), ("to-right", right, 100.0)) if at == end)
        whisker = f'<b class="{cut}" style="left:{left:.2f}%;width:{right - left:.2f}%"></b>'
    star = "*" if row["significant"] else ""
    figure, _, interval = shown.partition(" ")
    label = f'<span class="value">{figure}{star} <small>{interval}</small></span>'
    return f'<div class="track" data-of="{index}" {title}>{bar}{whisker}{label}</div>'


def margin(rows: Mapping[str, Row], base: str) -> str:
    """`sv-dynamic ahead by 4.2 points`: the lead of the best over the second best, the baseline included."""
    scores = {v: row["score_pct_of_ppo"] for v, row in rows.items() if math.isfinite(row["score_pct_of_ppo"])}
    if not scores:
        return "nothing to compare"
    (best, first), (_, second), *_ = sorted({**scores, base: 100.0}.items(), key=lambda item: -item[1])
    lead = number(first - second, places=1)
    return "level" if lead == "0.0" else f"{best} ahead by {lead} points"
