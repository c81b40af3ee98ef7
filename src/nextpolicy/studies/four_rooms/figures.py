"""The figures of the Four Rooms study. Each function returns a matplotlib figure whose main elements have a gid.

gids: `target-updates` (a dot per accepted round of the seed shown), `threshold` (delta_v), `optimal` (the value of the
optimal policy), `median`, `band`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import Normalize
from matplotlib.figure import Figure

from nextpolicy.studies.four_rooms import exact, maze
from nextpolicy.studies.four_rooms.study import Study
from nextpolicy.tabular import four_rooms_mdp, solve
from nextpolicy.tabular.mdp import TabularMDP

# Colours based on Okabe and Ito's palette; line styles and widths distinguish the lines without colour.
STYLE: dict[str, dict[str, Any]] = {
    "ppo": {"color": "#D55E00", "linestyle": (0, (5, 2)), "linewidth": 1.4},
    "sv-static": {"color": "#5BA3D0", "linestyle": (0, (1, 1)), "linewidth": 1.6},
    "sv-dynamic": {"color": "#00477A", "linestyle": "-", "linewidth": 1.8},
}
NAMES = {"ppo": "PPO", "sv-static": "SV-PPO, static", "sv-dynamic": "SV-PPO, dynamic"}
EXAMINED = (10, 30, 50, 60, 80, 90, 100, 194)  # of 195 rounds; the paper discusses rounds 50 to 100


def shown_seed(study: Study) -> int:
    """The seed for figures of single runs: the one whose number of dynamic target updates is closest to the median."""
    updates = study.column("sv-dynamic", "accepted").sum(1)
    return study.config.run.seeds[int(np.argmin(np.abs(updates - np.median(updates))))]


def optimal_policy(mdp: TabularMDP) -> Figure:
    """The optimal policy and its visitation."""
    best = solve.optimal(mdp)
    visited = solve.renormalised_visitation(mdp, best.pi).sum(-1)
    figure = _figure(8.4, 4.0)
    left, right = figure.subplots(1, 2)
    maze.arrows(left, best.pi, "Optimal policy (arrow length = probability)")
    image = maze.heat(right, visited, maze.visitation_norm(visited), "Its discounted state visitation")
    _bar(figure, image, right, "fraction of non-terminal time (log scale)")
    return figure


def snapshots(study: Study, seed: int) -> Figure:
    """Two rounds of dynamic SV-PPO with the same target: the first and the last of its longest hold."""
    run = study.trajectory.member(study.index("sv-dynamic", seed))
    rounds = longest_hold(run.accepted)
    truth = solve.state_value(study.mdp, run.target[rounds[0]])
    predicted = [run.value[k + 1] for k in rounds]
    visited = [solve.renormalised_visitation(study.mdp, run.behaviour[k]).sum(-1) for k in rounds]
    scale = Normalize(min(0.0, *(v.min() for v in predicted)), max(truth.max(), *(v.max() for v in predicted)))
    limit = _limit([v - truth for v in predicted])
    figure = _figure(11.5, 5.2)
    grid = figure.subplots(2, 4)
    for row, k, v, d in zip(grid, rounds, predicted, visited):
        row[0].set_ylabel(f"round {k}", fontsize=11)
        images = [
            maze.heat(row[0], truth, scale, "true value of the target"),
            maze.heat(row[1], d, maze.visitation_norm(*visited), f"visitation of the behaviour @ {k}"),
            maze.heat(row[2], v, scale, f"predicted value after {k}"),
            maze.signed(row[3], v - truth, limit, "predicted - true"),
        ]
    labels = ("V(s)", "fraction of time (log)", "v(s)", "v(s) - V(s)")
    for column, (image, label) in enumerate(zip(images, labels)):
        _bar(figure, image, list(grid[:, column]), label)
    figure.suptitle(f"SV-PPO (dynamic), seed {seed}: one target, held from round {rounds[0]} to {rounds[1]}")
    return figure


def longest_hold(accepted: np.ndarray) -> tuple[int, int]:
    """(first, last) round of the longest period with one target; the last round is the one that replaces it."""
    ends = [*np.flatnonzero(accepted).tolist()]
    if not ends or ends[-1] != len(accepted) - 1:
        ends.append(len(accepted) - 1)
    starts = [0, *(e + 1 for e in ends[:-1])]
    return max(zip(starts, ends), key=lambda hold: hold[1] - hold[0])


def learning_curves(study: Study, seed: int) -> Figure:
    """Four panels: value, next-policy-weighted error, shift of the visitation, and the statistic of the gate."""
    figure = _figure(10.0, 7.0)
    value, error, shift, gate = figure.subplots(2, 2).ravel()
    for axes, name, title, unit in (
        (value, "value_behaviour", "(a) Value of the sampling policy", "V(s0) (discounted return)"),
        (error, "msve_next_alive", "(b) Next-policy-weighted squared value error", "mean (V - v)² (return²)"),
        (shift, "tv_visitation_alive", "(c) Shift of the training distribution", "total variation, μ(k) to μ(k+1)"),
        (gate, "scaled_diff", "(d) Statistic of the gate", "diff / scale (fraction of |y|)"),
    ):
        columns = {a: _column(study, a, name) for a in study.algos}
        _bands(axes, columns, title, unit, seeds=axes is value)
        _dots(axes, study, seed, columns["sv-dynamic"])
        if axes is not value:
            axes.set_yscale("log")
    best = float(solve.optimal(study.mdp).V @ study.mdp.start)
    value.axhline(best, color="black", linestyle=":", linewidth=1.0, gid="optimal")
    value.text(0, best, "V*", va="bottom", fontsize=8)
    threshold = study.config.criterion.delta_v
    gate.axhline(threshold, color="black", linestyle="--", linewidth=1.2, gid="threshold")
    words = f"threshold δ = {threshold:g}"
    gate.text(study.rounds - 1, threshold * 1.08, words, ha="right", va="bottom", fontsize=8)
    value.legend(fontsize=8, loc="lower right", framealpha=0.9)
    figure.suptitle(
        _who(study, f"\ndots: target updates of SV-PPO (dynamic), seed {seed}, on its own thin line"), fontsize=11
    )
    return figure


def _column(study: Study, algo: str, name: str) -> np.ndarray:
    if name == "scaled_diff":
        return study.column(algo, "diff") / np.maximum(study.column(algo, "diff_scale"), 1e-12)
    return study.column(algo, name)


def _dots(axes: Axes, study: Study, seed: int, column: np.ndarray) -> None:
    """The curve of one seed with a dot at every accepted round."""
    row = study.config.run.seeds.index(seed)
    accepted = np.flatnonzero(study.column("sv-dynamic", "accepted")[row])
    axes.plot(np.arange(study.rounds), column[row], color="#00477A", linewidth=0.5, alpha=0.7, gid="shown-seed")
    dot: dict[str, Any] = {
        "markerfacecolor": "#F0E442",
        "markeredgecolor": "black",
        "markeredgewidth": 0.6,
        "markersize": 3.6,
    }
    dot |= {"linestyle": "none", "marker": "o", "label": "target update", "gid": "target-updates"}
    axes.plot(accepted, column[row][accepted], **dot)


def rooms(study: Study) -> Figure:
    """The bottom-left room, where the algorithms differ."""
    figure = _figure(11.5, 3.7)
    gap, route, pairs = figure.subplots(1, 3, width_ratios=(1.25, 1.25, 1.0))
    _bands(gap, {a: np.maximum(study.column(a, "gap_bottom_left"), 1e-5) for a in study.algos},
           "(a) Policy gap in the bottom-left room", "mean V* - V over its cells (return)")  # fmt: skip
    gap.set_yscale("log")
    gap.legend(fontsize=8, loc="lower left")
    _bands(route, {a: study.column(a, "top_from_doorway") for a in study.algos},
           "(b) Top route from doorway (6, 2)", "probability")  # fmt: skip
    best = four_rooms_mdp.top_route_probability(study.mdp, solve.optimal(study.mdp).pi, exact.DOORWAY)
    route.axhline(float(best), color="black", linestyle=":", linewidth=1.0, gid="optimal")
    route.text(0, float(best), f" optimal {float(best):.3f}", va="bottom", fontsize=8)
    route.set_ylim(-0.03, 1.05)
    final = {a: np.maximum(study.column(a, "gap_bottom_left")[:, -1], 1e-5) for a in study.algos}
    low = min(map(np.min, final.values())) <= 1e-5
    for values in zip(*final.values()):
        pairs.plot(range(len(values)), values, color="0.6", linewidth=0.8, zorder=1)
    for place, (algo, values) in enumerate(final.items()):
        marker = {"ppo": "s", "sv-static": "^", "sv-dynamic": "o"}[algo]
        colour = STYLE[algo]["color"]
        pairs.scatter([place] * len(values), values, color=colour, marker=marker, edgecolor="black", s=28, zorder=2)
        pairs.plot([place - 0.2, place + 0.2], [np.median(values)] * 2, color="black", linewidth=2.0, zorder=3)
    pairs.set(yscale="log", xlim=(-0.5, len(final) - 0.5), ylabel="mean V* - V over its cells (return)")
    pairs.set_xticks(range(len(final)), [NAMES[a].replace(", ", "\n") for a in final], fontsize=8)
    pairs.set_title("(c) After the last round, by seed", fontsize=10)
    figure.suptitle(_who(study, "; gaps below 1e-5 are drawn at 1e-5" if low else ""), fontsize=11)
    return figure


def certificates(study: Study) -> Figure:
    """The slack of each bound, and the errors in the bounds."""
    figure = _figure(11.5, 3.9)
    slack, errors, policies = figure.subplots(1, 3)
    truth = study.column("sv-dynamic", "improvement")
    for name, label, style in (
        ("theorem1_lower", "Theorem 1 (error under the next policy)", "-"),
        ("npa_bound", "corollary (error on the data, true shift)", (0, (5, 2))),
        ("bound", "SV-API theorem (worst-state change of policy)", (0, (1, 1))),
    ):
        lost = truth - study.column("sv-dynamic", name)
        slack.plot(np.median(lost, axis=0), label=label, linestyle=style, color="#00477A")
    slack.axhline(1.0 / (1.0 - study.mdp.gamma), color="0.5", linewidth=0.8)
    most = {"fontsize": 7, "va": "top"}
    slack.text(0.3 * study.rounds, 1.0 / (1.0 - study.mdp.gamma), "1/(1-γ), the largest possible return", **most)
    slack.set(yscale="log", xlabel="round k", ylabel="improvement - bound (return)")
    slack.set_title("(a) Slack of the bounds, SV-PPO (dynamic)", fontsize=10)
    slack.set_ylim(top=1e10)
    slack.legend(fontsize=7, loc="upper right")
    errors.set(yscale="log", xlabel="round k", ylabel="ε = mean |Q - q| (return)")
    errors.set_title("(b) Error of the critic", fontsize=10)
    _medians(errors, study, (("epsilon_train", 0.8, "on the data"), ("epsilon_next", 2.0, "next policy")))
    policies.set(yscale="log", xlabel="round k", ylabel="total variation, β(k) to β(k+1)")
    policies.set_title("(c) Step of the behavioural policy", fontsize=10)
    _medians(policies, study, (("tv_policy_max", 0.8, "largest over states"), ("tv_policy_mean", 2.0, "expected")))
    figure.suptitle(_who(study), fontsize=11)
    return figure


def _medians(axes: Axes, study: Study, lines: tuple[tuple[str, float, str], ...]) -> None:
    """Medians over seeds of PPO and dynamic SV-PPO; each of `lines` is (column, line width, words of the legend)."""
    for algo in ("ppo", "sv-dynamic"):
        for name, width, words in lines:
            drawn = {**STYLE[algo], "linewidth": width}
            axes.plot(np.median(study.column(algo, name), axis=0), label=f"{NAMES[algo]}, {words}", **drawn)
    axes.legend(fontsize=7)


def examination(study: Study, algo: str, seed: int) -> Figure:
    """One run at several rounds: values, error of the critic, visitation, policy."""
    run = study.trajectory.member(study.index(algo, seed))
    rounds = examined_rounds(study.rounds)
    truth = solve.state_value(study.mdp, run.target[list(rounds)])
    predicted = run.value[[k + 1 for k in rounds]]
    visited = solve.renormalised_visitation(study.mdp, run.behaviour[[k + 1 for k in rounds]]).sum(-1)
    scale = Normalize(min(0.0, predicted.min()), max(truth.max(), predicted.max()))
    # Errors of the first rounds are so large that later ones would look blank, so clip the colour scale.
    limit = max(0.02, float(np.quantile(np.abs(predicted - truth), 0.9)))
    figure = _figure(1.55 * len(rounds) + 1.2, 8.6)
    grid = figure.subplots(5, len(rounds), squeeze=False)
    images: list = [None] * 5
    for i, k in enumerate(rounds):
        column = grid[:, i]
        note = " *" if run.accepted[k] and algo != "ppo" else ""
        images[0] = maze.heat(column[0], truth[i], scale, f"round {k}{note}", marks=False)
        images[1] = maze.heat(column[1], predicted[i], scale, marks=False)
        images[2] = maze.signed(column[2], predicted[i] - truth[i], limit, marks=False)
        images[3] = maze.heat(column[3], visited[i], maze.visitation_norm(visited), marks=False)
        maze.arrows(column[4], run.behaviour[k + 1], marks=False)
    names = ("true V\nof the target", "predicted v", "v - V", "visitation of\nthe next behaviour", "next behaviour")
    units = ("V(s)", "v(s)", "v(s) - V(s)", "fraction (log)", "")
    for row, name, image, unit in zip(grid, names, images, units):
        row[0].set_ylabel(name, fontsize=9)
        if image is not None:
            _bar(figure, image, list(row), unit, extend="both" if unit == "v(s) - V(s)" else "neither")
    stars = "; * the target was replaced in this round" if algo != "ppo" else ""
    figure.suptitle(f"{NAMES[algo]}, seed {seed}: selected rounds{stars}")
    return figure


def examined_rounds(rounds: int) -> tuple[int, ...]:
    """The rounds of `EXAMINED`, rescaled to a study with `rounds` rounds."""
    return tuple(sorted({min(rounds - 1, round(k * rounds / 195)) for k in EXAMINED}))


def all_figures(study: Study) -> dict[str, Callable[[], Figure]]:
    """Functions that draw the figures, by file name."""
    seed = shown_seed(study)
    return {
        "optimal": lambda: optimal_policy(study.mdp),
        "snapshots": lambda: snapshots(study, seed),
        "learning-curves": lambda: learning_curves(study, seed),
        "bottom-left-room": lambda: rooms(study),
        "certificates": lambda: certificates(study),
        "examination-ppo": lambda: examination(study, "ppo", seed),
        "examination-sv-dynamic": lambda: examination(study, "sv-dynamic", seed),
        "examination-sv-static": lambda: examination(study, "sv-static", seed),
    }


def _bands(axes: Axes, columns: dict[str, np.ndarray], title: str, unit: str, *, seeds: bool = False) -> None:
    """Median over seeds as a line and interquartile range as a band, of columns [seeds, K]; optionally every seed."""
    for algo, column in columns.items():
        k = np.arange(column.shape[1])
        low, high = np.quantile(column, [0.25, 0.75], axis=0)
        band = axes.fill_between(k, low, high, color=STYLE[algo]["color"], alpha=0.2, linewidth=0)
        band.set_gid("band")
        for one in column if seeds else ():
            axes.plot(k, one, color=STYLE[algo]["color"], linewidth=0.4, alpha=0.5, gid="seed")
        axes.plot(k, np.median(column, axis=0), label=NAMES[algo], gid="median", **STYLE[algo])
    axes.set_title(title, fontsize=10)
    axes.set(xlabel="round k", ylabel=unit)


def _who(study: Study, more: str = "") -> str:
    seeds = len(study.config.run.seeds)
    return (
        f"Four Rooms: median of {seeds} seed{'s' if seeds > 1 else ''}, band from the first to the third quartile{more}"
    )


def _limit(errors: list[np.ndarray]) -> float:
    """A symmetric scale for signed maps."""
    return max(1e-6, max(float(np.abs(e).max()) for e in errors))


def _figure(width: float, height: float) -> Figure:
    return Figure(figsize=(width, height), layout="constrained")


def _bar(figure: Figure, image: object, axes: object, label: str, extend: str = "neither") -> None:
    bar = figure.colorbar(image, ax=axes, fraction=0.046, pad=0.02, shrink=0.9, aspect=30, extend=extend)  # type: ignore[arg-type]
    bar.set_label(label, fontsize=8)
    bar.ax.tick_params(labelsize=7)
