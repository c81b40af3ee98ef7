"""Figures of policies, values and visitations on the map."""

from __future__ import annotations

import numpy as np
from matplotlib.colors import Normalize
from matplotlib.figure import Figure

from nextpolicy.studies.four_rooms import maze
from nextpolicy.studies.four_rooms.study import Study
from nextpolicy.tabular import solve
from nextpolicy.tabular.mdp import TabularMDP


def optimal_policy(mdp: TabularMDP) -> Figure:
    """The optimal policy and its visitation."""
    best = solve.optimal(mdp)
    visited = solve.renormalised_visitation(mdp, best.pi).sum(-1)
    figure = Figure(figsize=(6.4, 3.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    maze.arrows(left, best.pi, "optimal policy\n(arrow length: probability)")
    image = maze.heat(right, visited, maze.visitation_norm(visited), "its discounted visitation")
    _bar(figure, image, right, "fraction of time (log scale)")
    return figure


def snapshots(study: Study, seed: int) -> Figure:
    """Two rounds of dynamic SV-PPO with the same target: the first and the last of its longest hold."""
    run = study.trajectory.member(study.index("sv-dynamic", seed))
    rounds = longest_hold(run.accepted)
    truth = solve.state_value(study.mdp, run.target[rounds[0]])
    predicted = [run.value[k + 1] for k in rounds]
    visited = [solve.renormalised_visitation(study.mdp, run.behaviour[k]).sum(-1) for k in rounds]
    scale = Normalize(min(0.0, *(v.min() for v in predicted)), max(truth.max(), *(v.max() for v in predicted)))
    limit = max(1e-6, *(float(np.abs(v - truth).max()) for v in predicted))
    figure = Figure(figsize=(5.0, 9.2), layout="constrained")
    grid = figure.subplots(4, 2)
    for column, k, v, d in zip(grid.T, rounds, predicted, visited):
        images = [
            maze.heat(column[0], truth, scale, f"round {k}\ntrue value of the target"),
            maze.heat(column[1], v, scale, "predicted value"),
            maze.signed(column[2], v - truth, limit, "predicted - true"),
            maze.heat(column[3], d, maze.visitation_norm(*visited), "visitation of the behaviour"),
        ]
    for row, image, label in zip(grid, images, ("V(s)", "v(s)", "v(s) - V(s)", "fraction of time (log)")):
        _bar(figure, image, list(row), label)
    figure.suptitle(f"SV-PPO, dynamic, seed {seed}", fontsize=10)
    return figure


def longest_hold(accepted: np.ndarray) -> tuple[int, int]:
    """(first, last) round of the longest period with one target; the last round is the one that replaces it."""
    ends = [*np.flatnonzero(accepted).tolist()]
    if not ends or ends[-1] != len(accepted) - 1:
        ends.append(len(accepted) - 1)
    starts = [0, *(e + 1 for e in ends[:-1])]
    return max(zip(starts, ends), key=lambda hold: hold[1] - hold[0])


def _bar(figure: Figure, image: object, axes: object, label: str) -> None:
    bar = figure.colorbar(image, ax=axes, fraction=0.046, pad=0.02, shrink=0.9, aspect=30)  # type: ignore[arg-type]
    bar.set_label(label, fontsize=8)
    bar.ax.tick_params(labelsize=7)
