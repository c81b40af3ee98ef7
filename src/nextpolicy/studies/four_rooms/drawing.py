"""The drawing at the top of the page: the task, and when each algorithm's target moves. Inline SVG, no numbers."""

from __future__ import annotations

import numpy as np

from nextpolicy.tabular import four_rooms_mdp

_TOP = ((4, 1), (3, 3), (3, 6), (3, 8), (6, 9), (8, 9))  # cells (row, col) on the way
_BOTTOM = ((4, 1), (6, 2), (9, 3), (10, 6), (10, 8), (8, 9))


def task() -> str:
    """The map with start, goal and the two routes."""
    size = 22
    walls = "".join(f"M{size * c} {size * r}h{size}v{size}h-{size}z" for r, c in np.argwhere(four_rooms_mdp.WALLS))
    routes = "".join(
        f'<polyline points="{" ".join(_centre(cell, size) for cell in way)}" fill="none" stroke="{colour}" '
        f'stroke-width="5" stroke-linejoin="round" stroke-linecap="round" stroke-dasharray="{dashes}"/>'
        for way, colour, dashes in ((_TOP, "var(--c3)", "none"), (_BOTTOM, "var(--c4)", "9 8"))
    )
    letters = "".join(
        f'<circle cx="{size * (c + 0.5)}" cy="{size * (r + 0.5)}" r="12" fill="var(--paper)" stroke="var(--ink)"/>'
        f'<text x="{size * (c + 0.5)}" y="{size * (r + 0.5) + 5}" text-anchor="middle">{letter}</text>'
        for letter, (r, c) in (("S", four_rooms_mdp.START), ("G", four_rooms_mdp.GOAL))
    )
    words = _words(((170, 58, "short way", "var(--c3)"), (50, 258, "long way", "var(--c4)")))
    side = 13 * size
    return (
        f'<svg class="drawing" viewBox="0 0 {side} {side}" style="--width: 14rem" role="img" '
        f'aria-label="Four rooms joined by doorways, with a short and a long way from the start S to the goal G">'
        f'<path class="wall" d="{walls}"/>{routes}{letters}{words}</svg>'
    )


def idea() -> str:
    """Two sketches over time: PPO's target moves with the behaviour, that of SV-PPO in few, large steps."""
    return (
        '<svg class="drawing" viewBox="0 0 420 300" style="--width: 22rem" role="img" aria-label="Sketch: the target '
        'of PPO moves in every round; that of SV-PPO stays until values are stable, and then catches up">'
        + _sketch(18, "PPO: the target moves in every round", "var(--c0)", 1)
        + _sketch(166, "SV-PPO: it waits until values are stable", "var(--c2)", 6)
        + "</svg>"
    )


def _sketch(top: int, title: str, colour: str, held: int) -> str:
    """The behaviour as a thin line over 18 rounds, and the target as steps that follow every `held` rounds."""
    rounds = 18
    x = [12 + 15 * i for i in range(rounds + 1)]
    behaviour = [top + 108 - 88 * (1 - np.exp(-i / 7)) for i in range(rounds + 1)]
    line = " ".join(f"{a},{b:.1f}" for a, b in zip(x, behaviour))
    steps = [behaviour[held * (i // held)] for i in range(rounds + 1)]
    target = f"M{x[0]} {steps[0]:.1f}" + "".join(f"H{a}V{b:.1f}" for a, b in zip(x[1:], steps[1:]))
    ends = _words(((x[-1] + 8, behaviour[-1] - 3, "behaviour", "var(--soft-ink)"),
                   (x[-1] + 8, steps[-1] + 15, "target", colour)))  # fmt: skip
    return (
        f'<text x="12" y="{top}" font-weight="bold">{title}</text>'
        f'<polyline points="{line}" fill="none" stroke="var(--soft-ink)" stroke-width="1.5" stroke-dasharray="4 3"/>'
        f'<path d="{target}" fill="none" stroke="{colour}" stroke-width="3.5"/>{ends}'
        f'<text x="{x[-1] + 8}" y="{top + 112}" style="fill: var(--soft-ink)">time →</text>'
    )


def _words(places: tuple[tuple[float, float, str, str], ...]) -> str:
    return "".join(
        f'<text x="{x:.0f}" y="{y:.0f}" style="fill: {colour}">{words}</text>' for x, y, words, colour in places
    )


def _centre(cell: tuple[int, int], size: int) -> str:
    return f"{size * (cell[1] + 0.5):g},{size * (cell[0] + 0.5):g}"
