"""What each figure shows, in one sentence, from the numbers of the study."""

from __future__ import annotations

import numpy as np

from nextpolicy.studies.four_rooms import maps, summary
from nextpolicy.studies.four_rooms.figures import NAMES, shown_seed
from nextpolicy.studies.four_rooms.study import Study
from nextpolicy.tabular import four_rooms_mdp, solve

REACHED = 0.9  # share of the best value that counts as having learned the task


def value(study: Study) -> str:
    """How fast, and how well at the end."""
    best = study.rows[0]["optimal_value"]
    rounds = {a: _median_round(study.column(a, "value_behaviour"), REACHED * best) for a in study.algos}
    said = ", ".join(f"{NAMES[a]} {k}" for a, k in rounds.items())
    near = [int(summary.of_algo(study.rows, a, "near_optimal").sum()) for a in study.algos]
    runs = len(study.rows)
    end = f"all {runs} runs end" if sum(near) == runs else f"{sum(near)} of {runs} runs end"
    return (
        f"Round in which the policy first reaches {100 * REACHED:.0f} % of the best possible value: {said}; {end} "
        f"within {summary.CLOSE:g} of the best."
    )


def _median_round(values: np.ndarray, level: float) -> str:
    """Median over seeds of the first round whose value [seeds, K] is at least `level`; `never` if most have none."""
    reached = values >= level
    first = np.where(reached.any(1), reached.argmax(1), np.inf)
    middle = float(np.median(first))
    return f"{middle:.0f}" if np.isfinite(middle) else "never"


def bottom_left(study: Study) -> str:
    """Where the policies differ."""
    gaps = {a: float(np.median(summary.of_algo(study.rows, a, "gap_bottom_left"))) for a in study.algos}
    lowest, *others = sorted(gaps, key=lambda a: gaps[a])
    rest = ", ".join(f"{NAMES[a]} {gaps[a]:.4f}" for a in others)
    best = f"{NAMES[lowest]} loses least, {gaps[lowest]:.4f} of value on average"
    return f"In the bottom-left room, {best}; {rest}{_clear(study)}."


def _clear(study: Study) -> str:
    """Whether PPO and dynamic SV-PPO differ there by more than chance."""
    pairs = summary.median_interval(summary.paired(study.rows, "gap_bottom_left", "ppo", "sv-dynamic"))
    if np.isnan(pairs.low):
        return few(study)
    words = "a clear difference" if pairs.low > 0 or pairs.high < 0 else "no clear difference"
    return f" (PPO minus SV-PPO, dynamic, by seed: {pairs}: {words})"


def gate(study: Study) -> str:
    """When the target was updated."""
    updates = summary.of_algo(study.rows, "sv-dynamic", "updates")
    first = summary.of_algo(study.rows, "sv-dynamic", "first_update")
    if not updates.any():
        return f"The gate never let the target follow in {study.rounds} rounds."
    return (
        f"The gate first let the target follow in round {np.median(first[updates > 0]):.0f}, and "
        f"{np.median(updates):.0f} times in all {study.rounds} rounds; PPO's target follows in every round."
    )


def errors(study: Study) -> str:
    """Whether the critic errs less on the data of the next policy."""
    means = {a: np.median(summary.of_algo(study.rows, a, "msve_next")) for a in study.algos}
    moved = {a: np.median(summary.of_algo(study.rows, a, "tv_visitation")) for a in study.algos}
    error, shift = (", ".join(f"{NAMES[a]} {v:.2g}" for a, v in each.items()) for each in (means, moved))
    return f"Squared error on the next policy's data, mean over rounds: {error}; shift of the data: {shift}."


def certificates(study: Study) -> str:
    """Whether the bounds hold, and whether they say anything."""
    held, empty, total = (sum(r[c] for r in study.rows) for c in _COUNTED)
    useful = total - sum(r["theorem1_vacuous"] for r in study.rows)
    return (
        f"{_of(held, total)} certificates hold, and {_of(empty, total).lower()} are vacuous: they promise no "
        f"improvement. Theorem 1, which knows the error on the next policy's data, promises one in {useful}."
    )


_COUNTED = ("certificates_held", "certificates_vacuous", "certificates")


def _of(count: int, total: int) -> str:
    return f"All {total}" if count == total else f"{count} of {total}"


def optimal(study: Study) -> str:
    """The routes of the optimal policy."""
    start = int(np.argmax(study.mdp.start))
    chance = float(four_rooms_mdp.top_route_probability(study.mdp, solve.optimal(study.mdp).pi, start))
    return f"The best policy takes the short way through the top with probability {chance:.3f}."


def snapshots(study: Study) -> str:
    """What a critic learns while its target is held."""
    run = study.trajectory.member(study.index("sv-dynamic", shown_seed(study)))
    first, last = maps.longest_hold(run.accepted)
    truth = solve.state_value(study.mdp, run.target[first])
    before, after = (float(np.abs(run.value[k + 1] - truth).mean()) for k in (first, last))
    return (
        f"While one target is held, from round {first} to {last}, the critic's mean error over all cells goes from "
        f"{before:.2g} to {after:.2g}."
    )


def few(study: Study) -> str:
    """A warning where there are too few seeds for an interval."""
    seeds = len(study.config.run.seeds)
    return "" if seeds >= summary.FEWEST else f" ({seeds} seed{'s' * (seeds > 1)}: too few to call this a difference)"
