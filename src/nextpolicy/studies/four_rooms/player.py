"""The player of the page: one seed of every algorithm, round by round, as compact data for `assets/player.js`.

Frame i of K + 1 is the state after i rounds, so frame 0 is the start: behaviour beta_i, target pi_i, critic v_{i-1},
and the true values of pi_i. A target changes only with an update, so what belongs to it is stored once per target.
Probabilities take one byte. Values take two, on a linear scale; visitations two, on a square-root scale, which keeps
rarely visited cells accurate.
"""

from __future__ import annotations

import base64
import html
from typing import Any

import matplotlib
import numpy as np
from matplotlib.colors import to_hex

from nextpolicy.report.palette import FIXED
from nextpolicy.studies.four_rooms import exact, maze
from nextpolicy.studies.four_rooms.figures import NAMES, shown_seed
from nextpolicy.studies.four_rooms.study import Study
from nextpolicy.tabular import four_rooms_mdp, solve
from nextpolicy.tabular.mdp import FloatArray

SHADES = 33  # colours of the heat maps
LARGE = 0.1  # errors of the critic above this are marked
MAPS = {  # kind -> caption
    "policy": "behaviour; shaded where the target differs",
    "true": "true values of the target",
    "predicted": "values predicted by the critic",
    "target": "where the target goes",
    "behaviour": "where the behaviour goes",
}


def data(study: Study) -> dict[str, Any]:
    """What player.js draws: the map, the scales, and every algorithm's frames of the seed shown."""
    seed = shown_seed(study)
    runs = {algo: study.trajectory.member(study.index(algo, seed)) for algo in study.algos}
    truth = {algo: solve.state_value(study.mdp, run.target[_starts(run)]) for algo, run in runs.items()}
    values = np.concatenate([*truth.values(), *(run.value for run in runs.values())])
    low, high = float(values.min()), float(values.max())
    algos = [_algorithm(study, algo, run, truth[algo], low, high) for algo, run in runs.items()]
    shades = matplotlib.colormaps[maze.SEQUENTIAL](np.linspace(0, 1, SHADES))
    first = np.flatnonzero(runs["sv-dynamic"].accepted)
    return {
        "cells": four_rooms_mdp.cells.tolist(),
        "walls": np.argwhere(four_rooms_mdp.WALLS).tolist(),
        "start": four_rooms_mdp.state_index(*four_rooms_mdp.START),
        "goal": four_rooms_mdp.state_index(*four_rooms_mdp.GOAL),
        "rounds": study.rounds,
        "low": low,
        "high": high,
        "top": max(one.pop("top") for one in algos),
        "large": LARGE,
        "shades": [to_hex(shade) for shade in shades],
        "first": int(first[0]) if len(first) else study.rounds,  # just before the first update
        "algos": algos,
    }


def _starts(run: exact.Trajectory) -> list[int]:
    """The frames in which a target is new: the start and each update."""
    return [0, *(np.flatnonzero(run.accepted) + 1).tolist()]


def _algorithm(
    study: Study, algo: str, run: exact.Trajectory, truth: FloatArray, low: float, high: float
) -> dict[str, Any]:
    visits = lambda policy: solve.renormalised_visitation(study.mdp, policy).sum(-1)  # noqa: E731
    behaviour, target = visits(run.behaviour), visits(run.target[_starts(run)])
    linear = lambda x: _packed((x - low) / max(high - low, 1e-12), np.uint16)  # noqa: E731
    return {
        "name": NAMES[algo],
        "slot": FIXED.index(algo),
        "updates": np.flatnonzero(run.accepted).tolist(),
        "said": sentences(study, algo, run, behaviour),
        "top": float(max(behaviour.max(), target.max())),
        "policy": _packed(run.behaviour, np.uint8),
        "predicted": linear(run.value),
        "true": linear(truth),
        "behaviour": _packed(np.sqrt(behaviour), np.uint16),
        "target": _packed(np.sqrt(target), np.uint16),
    }


def _packed(shares: FloatArray, kind: type[np.uint8] | type[np.uint16]) -> str:
    """Numbers in [0, 1] as little-endian integers in base64."""
    whole = np.round(shares * np.iinfo(kind).max).astype(np.dtype(kind).newbyteorder("<"))
    return base64.b64encode(whole.tobytes()).decode()


def sentences(study: Study, algo: str, run: exact.Trajectory, visited: FloatArray) -> list[str]:
    """What happened, for each frame; `visited` [K + 1, 104] is the visitation of the behaviour."""
    drift = (visited * exact.kl(run.target, run.behaviour)).sum(-1)
    index = study.index(algo, shown_seed(study))
    step = study.exact["exact_kl_target"][index]
    change = study.metrics["diff"][index] / np.maximum(study.metrics["diff_scale"][index], 1e-12)
    said = ["Before training: target and behaviour are the same untrained policy."]
    rounds_held, stable_rounds, least, most = (
        study.metrics[name][index].astype(int) for name in ("rounds_held", "stable_rounds", "k_min", "k_max")
    )
    for k, accepted in enumerate(run.accepted):
        held, stable = int(rounds_held[k]), int(stable_rounds[k])
        if accepted:
            forced = stable < least[k] and held >= most[k]
            why = _why(study, algo, held, stable, forced=forced)
            said.append(f"Round {k}: the target follows, KL {step[k]:.2g}{why}.")
        else:
            why = _why_not(study, algo, stable, int(least[k]), float(change[k]))
            rounds = "1 round" if held == 1 else f"{held} rounds"
            said.append(
                f"Round {k}: the target is held, now for {rounds}; {why}. Behaviour: KL {drift[k + 1]:.2g} away."
            )
    return said


def _why(study: Study, algo: str, held: int, stable: int, *, forced: bool) -> str:
    if algo == "ppo":
        return ", as in every round of PPO"
    if algo == "sv-static":
        return f": this gate opens every {study.config.run.static_k} rounds"
    if forced:
        return f": it was held for {held} rounds, the most allowed"
    return f": values were stable for {stable} round{'s' if stable > 1 else ''}"


def _why_not(study: Study, algo: str, stable: int, needed: int, change: float) -> str:
    if algo == "sv-static":
        return f"this gate opens every {study.config.run.static_k} rounds"
    if stable:
        return f"values are stable for {stable} of {needed} rounds"
    limit = study.config.criterion.delta_v
    return f"values are still {change:.2g} of their size from their targets (limit {limit:g})"


def markup(study: Study) -> str:
    """The elements that player.js fills; without scripts, a note."""
    rivals = "".join(
        f'<option value="{i}"{" selected" if algo == "sv-dynamic" else ""}>{html.escape(NAMES[algo])}</option>'
        for i, algo in enumerate(study.algos)
        if algo != "ppo"
    )
    sides = "".join(
        '<article class="side"><h3></h3><p class="said" role="status"></p><div class="maps">'
        + "".join(
            f'<div class="map {kind}"><div class="plot"></div><p>{words}</p></div>' for kind, words in MAPS.items()
        )
        + "</div><table><tbody></tbody></table></article>"
        for _ in range(2)
    )
    return (
        '<section class="player" id="player" aria-label="Player: every round of PPO and SV-PPO">'
        '<div class="bar"><div class="buttons"><button type="button" id="back">◂ update</button>'
        '<button type="button" id="play" aria-pressed="false">▶ play</button>'
        '<button type="button" id="next">update ▸</button>'
        f'<label>beside PPO: <select id="rival">{rivals}</select></label><output id="round-name"></output></div>'
        f'<div class="ticks"></div><input type="range" id="round" min="0" max="{study.rounds}" step="1" '
        'aria-label="Round"><div class="ticks"></div></div>'
        f'<div class="sides">{sides}</div><div class="scales"></div>'
        "<noscript><p>The player needs JavaScript; the figures below do not.</p></noscript></section>"
    )
