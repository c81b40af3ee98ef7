"""The report of the Four Rooms study: headlines, tables, and a page with all figures."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from nextpolicy.runfiles import write_whole
from nextpolicy.studies import page
from nextpolicy.studies.four_rooms import drawing, exact, figures, maps, player, proxy, summary, verdicts
from nextpolicy.studies.four_rooms.figures import NAMES, shown_seed
from nextpolicy.studies.four_rooms.study import Study


def headlines(study: Study) -> list[str]:
    """The five main results, one line each."""
    rows, rounds = study.rows, study.rounds
    of = lambda algo, column: summary.of_algo(rows, algo, column)  # noqa: E731
    finals = ", ".join(f"{NAMES[a]} {np.median(of(a, 'final_value')):.4f}" for a in study.algos)
    near = ", ".join(f"{int(of(a, 'near_optimal').sum())}" for a in study.algos)
    seeds = len(study.config.run.seeds)
    gaps = {a: np.median(of(a, "gap_bottom_left")) for a in study.algos}
    pairs = summary.median_interval(summary.paired(rows, "gap_bottom_left", "ppo", "sv-dynamic"))
    held, total = (sum(r[c] for r in rows) for c in ("certificates_held", "certificates"))
    vacuous = sum(r["certificates_vacuous"] for r in rows)
    dynamic = of("sv-dynamic", "updates")
    # A seed without an accepted update has no ratio.
    ratio = of("sv-dynamic", "kl_ratio")
    ratio = ratio[np.isfinite(ratio)]
    times = f"{summary.median_interval(ratio)} times that of a behavioural step" if len(ratio) else "no update was made"
    return [
        f"V*(s0) = {rows[0]['optimal_value']:.4f}; V(s0) after the last round, median: {finals} "
        f"(within {summary.CLOSE:g} of V* on {near} of {seeds} seeds)",
        f"target updates in {rounds} rounds, mean: dynamic {dynamic.mean():.1f} (from {dynamic.min():.0f} to "
        f"{dynamic.max():.0f}), static {of('sv-static', 'updates').mean():.0f}, PPO {of('ppo', 'updates').mean():.0f}",
        f"bottom-left room, mean V* - V, median: PPO {gaps['ppo']:.4f}, static {gaps['sv-static']:.4f}, dynamic "
        f"{gaps['sv-dynamic']:.4f}; PPO minus dynamic by seed {pairs}",
        f"KL of a dynamic target update, median: {times}",
        f"certificates that hold: {held} of {total}; vacuous (no improvement promised): {vacuous} of {total}",
    ]


def algorithm_table(study: Study) -> list[dict[str, Any]]:
    """Median and interval over seeds: one row per quantity, one column per algorithm."""
    lines = []
    for column, words in _TABLE.items():
        cells = {NAMES[a]: summary.median_interval(summary.of_algo(study.rows, a, column)) for a in study.algos}
        lines.append({"quantity": words, **cells})
    return lines


_TABLE = {
    "final_value": "V(s0) of the behaviour after the last round",
    "final_target_value": "V(s0) of the target after the last round",
    "value_at_60": "V(s0) of the behaviour after 60 rounds",
    "largest_late_drop": "largest drop of V(s0) after round 60",
    "updates": "target updates",
    "first_update": "round of the first target update",
    "kl_target": "KL of a target update (nats)",
    "kl_behaviour": "KL of a behavioural step (nats)",
    "kl_ratio": "their ratio",
    "gap_bottom_left": "bottom-left room: mean V* - V of the behaviour",
    "gap_target_bottom_left": "bottom-left room: mean V* - V of the target",
    "overestimate_bottom_left": "bottom-left room: largest mean overestimate by the critic",
    "top_from_doorway": "P(top route) from the doorway (6, 2)",
    "top_from_start": "P(top route) from the start",
    "msve_next": "next-policy-weighted squared value error, mean over rounds",
    "tv_visitation": "TV of successive visitations, mean over rounds",
    "tv_policy_max": "largest TV of successive behavioural policies, mean over rounds",
    **{f"diff_{k}": f"rank correlation of diff with {words}" for k, (_, _, words) in proxy.TRACKED.items()},
    **{f"diff_{k}_detrended": f"the same with {words}, without trends" for k, (_, _, words) in proxy.TRACKED.items()},
}


def failure_table(study: Study) -> list[dict[str, Any]]:
    """How many seeds end below half of V*(s0), and which; one row per algorithm."""
    lines = []
    for algo in study.algos:
        seeds = [r["seed"] for r in study.rows if r["algo"] == algo and r["failed"]]
        total = sum(r["algo"] == algo for r in study.rows)
        share = f"{100 * len(seeds) / total:.1f} %"
        if total >= summary.FEWEST:  # Wilson's 95 % interval
            share += " [{:.1f}, {:.1f}]".format(*(100 * end for end in summary.share_interval(len(seeds), total)))
        which = ", ".join(map(str, seeds))
        lines.append({"algorithm": NAMES[algo], "seeds": total, "failed": len(seeds), "share": share, "which": which})
    return lines


def certificate_table(study: Study) -> list[dict[str, Any]]:
    """How many certificates hold and how many are vacuous, by algorithm, over all, accepted and held rounds."""
    lines = []
    for algo in study.algos:
        accepted = study.column(algo, "accepted").astype(bool)
        for words, chosen in (("all", np.ones_like(accepted)), ("accepted", accepted), ("held", ~accepted)):
            count = lambda name, mask=chosen, who=algo: int(study.column(who, name)[mask].sum())  # noqa: E731
            lines.append(
                {
                    "algorithm": NAMES[algo],
                    "rounds": words,
                    "certificates": int(chosen.sum()),
                    "hold": count("holds"),
                    "assumptions met": count("assumptions_met"),
                    "SV bound vacuous": count("vacuous"),
                    "corollary vacuous": count("npa_vacuous"),
                    "Theorem 1 vacuous": count("theorem1_vacuous"),
                }
            )
    return lines


def write_report(study: Study, say: Callable[[str], None]) -> Path:
    """Write figures/, CSV tables and report.html to the study's folder."""
    for name, draw in figures.all_figures(study).items():
        say(f"four-rooms: figure {name}")
        page.save_figure(draw(), study.path / "figures", name)
    tables = {"members": study.rows, "algorithms": algorithm_table(study), "certificates": certificate_table(study)}
    tables["failures"] = failure_table(study)
    for name, rows in tables.items():
        write_whole(study.path / f"{name}.csv", pd.DataFrame(rows).to_csv(index=False).encode())
    say("four-rooms: page")
    target = study.path / "report.html"
    make_page(study).write(target)
    return target


def make_page(study: Study) -> page.Page:
    """The page, from plain words to details."""
    out = page.Page("Four Rooms: PPO and Stable-Value PPO from the inside")
    for section in (_opening, _player, _room, _gate, _theory, _rest):
        section(out, study)
    return out


def _panels(study: Study, *panels: figures.Panel) -> list[str]:
    return [page.themed(figures.panel(study, draw), draw.__name__.replace("_", "-")) for draw in panels]


def _opening(out: page.Page, study: Study) -> None:
    out.text("An agent learns to walk from the start S to the goal G, although its steps sometimes go astray.", "lead")
    out.text(
        "It improves its behaviour with the help of a critic, which learns how good a fixed policy, the target, is: "
        "PPO replaces the target after every round, Stable-Value PPO only once the critic's predictions have settled.",
        "lead",
    )
    out.text(
        "The maze is so small that the truth can be computed after every round, so this page shows what both of them "
        "really learned.",
        "lead",
    )
    out.figure([drawing.task(), drawing.idea()], "The maze, and when the target follows the behaviour.")
    out.heading("How well they learn")
    out.verdict(verdicts.value(study))
    out.figure(
        _panels(study, figures.value),
        f"{figures.about(study)} The value $V(s_0)$ is the expected discounted return from the start, computed "
        f"exactly. Ticks on the axis: target updates of SV-PPO, dynamic (seed {shown_seed(study)}).",
        "hero",
    )
    with out.folded("The five main numbers"):
        out.numbers(headlines(study))


def _player(out: page.Page, study: Study) -> None:
    out.heading("See it happen")
    out.text(
        f"Drag the slider through all {study.rounds} rounds (seed {shown_seed(study)}), or use the arrow keys, and "
        "space to play. Ticks are target updates. Arrows show the behaviour: the longer, the likelier. A cell is "
        "shaded where the behaviour has moved away from the target; when the target follows, the shade vanishes, "
        "the true values jump and the critic has to learn them anew. Shift and arrow keys, or a click, choose a "
        "cell."
    )
    out.interactive(player.markup(study), player.data(study), "player.css", "player.js")


def _room(out: page.Page, study: Study) -> None:
    out.heading("Where the policies differ")
    out.text(
        "Once an agent knows the way through the top, it rarely sees the bottom-left room, and a policy can stay "
        "poor there unnoticed. The loss is the mean of $V^* - V$ over the cells of the room: the value of the best "
        "policy minus that of the learned one."
    )
    out.verdict(verdicts.bottom_left(study))
    out.figure(
        _panels(study, figures.gap, figures.pairs, figures.route),
        f"{figures.about(study)} By seed: points of one seed are joined, bars are medians. Losses below "
        f"{figures.SMALLEST_GAP:g} are drawn there. The last panel: from the doorway into the room, how likely is "
        "the way back and through the top?",
    )


def _gate(out: page.Page, study: Study) -> None:
    gate = study.config.criterion
    out.heading("When the target follows")
    out.text(
        "The gate of SV-PPO, dynamic looks at how much the critic's predictions still change in a round, relative "
        f"to their size (diff). At most {gate.delta_v:g} counts as stable. The target follows after {gate.k_min} "
        f"stable rounds in a row, or after {gate.k_max} rounds at the latest. SV-PPO, static follows every "
        f"{study.config.run.static_k} rounds, whatever the values do."
    )
    out.verdict(verdicts.gate(study))
    out.figure(_panels(study, figures.gate), f"{figures.about(study)} Ticks: target updates, as above.")
    with out.folded("Is the critic better on the data of the next policy?"):
        out.verdict(verdicts.errors(study))
        words = "First, the mean of $(V^{pi_k} - v_k)^2$ over the states that the next behaviour visits; then how far "
        words += "the visited states and actions move in a round, in total variation. Both exclude the goal."
        out.figure(_panels(study, figures.error, figures.shift), f"{figures.about(study)} {words}")


def _theory(out: page.Page, study: Study) -> None:
    out.heading("What the theory promises")
    out.text(
        "A certificate is a lower bound, computed after every round, on how much better the next behaviour is than "
        "the target: on $V^{beta_{k+1}}(s_0) - V^{pi_k}(s_0)$. It holds if the true difference is not smaller. It is "
        "vacuous if it is not positive: true, but it promises nothing. The certificate of the SV-API theorem needs "
        "the largest change of the policy over all states, $delta = max_s d_{TV}(beta_k, beta_{k+1}) / (1 - gamma)$, "
        "and the error of $q = R + gamma P v_k$ on the data. The corollary uses the true shift of the data instead "
        "of $delta$. On rounds in which the target was held, all three are for the update that would have been made."
    )
    out.verdict(verdicts.certificates(study))
    with out.folded("The bounds, round by round"):
        out.figure(
            _panels(study, figures.slack, figures.critic_errors, figures.policy_steps),
            "Medians over seeds. First: SV-PPO, dynamic; no return exceeds $1 / (1 - gamma)$. Second: the mean error "
            "$epsilon$ on the data (thin) and on the next policy's data (thick). Third: the step of the behaviour, "
            "in the state where it is largest (thin) and on average (thick).",
        )
        out.table(certificate_table(study))


def _rest(out: page.Page, study: Study) -> None:
    out.heading("Details")
    with out.folded("The best policy"):
        out.verdict(verdicts.optimal(study))
        words = "By policy iteration. Actions that are equally good share their probability."
        out.figure([page.themed(maps.optimal_policy(study.mdp), "optimal")], words)
    with out.folded("One target, learned for many rounds"):
        out.verdict(verdicts.snapshots(study))
        words = "Two rounds with the same target. Values share one colour scale; signs mark errors above a tenth of it."
        out.figure([page.themed(maps.snapshots(study, shown_seed(study)), "snapshots")], words)
    with out.folded("All numbers by algorithm"):
        enough = len(study.config.run.seeds) >= summary.FEWEST
        out.text("Median over seeds" + (" with a 95 % bootstrap interval." if enough else f"{verdicts.few(study)}."))
        out.table(algorithm_table(study))
    with out.folded("Seeds that failed"):
        out.text(f"A seed has failed if its policy ends below {summary.FAILED:g} of the best value, $V^*(s_0)$.")
        out.table(failure_table(study))
    with out.folded("Every run"):
        out.table([_short(r) for r in study.rows])
    with out.folded("Settings"):
        out.text(settings(study))
    with out.folded("Columns of exact.parquet"):
        out.text("In round $k$, $beta_k$ collects data for the target $pi_k$, and the critic becomes $v_k$.")
        out.table([{"column": k, "meaning": v} for k, v in exact.COLUMNS.items()])


_NOISE = {
    "fail": "a step goes as intended with probability 0.8 and in each other direction with 0.2 / 3",
    "third": "with probability 1/3 a step goes in one of the other three directions, otherwise as intended",
    "success": "with probability 0.8 a step goes in a random direction, otherwise as intended",
    "none": "every step goes as intended",
}


def settings(study: Study) -> str:
    """The settings of the study in words."""
    config = study.config
    noise = config.environment.env_options.get("noise", "fail")
    seeds = len(config.run.seeds)
    return (
        f"{seeds} seed{'s' * (seeds > 1)}, {study.rounds} rounds of {config.batch_size:,} environment steps, "
        f"discount $gamma = {config.algorithm.gamma:g}$. Noise '{noise}': {_NOISE[noise]}. Values, visitations and "
        "bounds are exact: linear algebra in double precision on the policies and critics after every round."
    )


def _short(row: dict[str, Any]) -> dict[str, Any]:
    names = ("algo", "seed", "final_value", "near_optimal", "largest_late_drop", "updates", "first_update", "kl_ratio")
    return {n: row[n] for n in (*names, "gap_bottom_left", "top_from_doorway", "certificates_held")}
