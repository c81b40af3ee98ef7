"""The report of the Four Rooms study: headlines, tables, and a page with all figures."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from nextpolicy.runfiles import write_whole
from nextpolicy.studies import page
from nextpolicy.studies.four_rooms import exact, proxy, summary
from nextpolicy.studies.four_rooms.figures import NAMES, all_figures, shown_seed
from nextpolicy.studies.four_rooms.study import Study

CAPTIONS = {
    "optimal": "The optimal policy and its discounted state visitation, by policy iteration. Tied actions share "
    "probability equally.",
    "snapshots": "Two rounds that evaluate the same frozen target: true value of the target, visitation of the "
    "behavioural policy, prediction of the critic, and its error (marks show the sign). Values share one colour scale.",
    "learning-curves": "Exact quantities of every round. Lines are medians over seeds, bands the interquartile range; "
    "(a) also shows every seed. PPO updates its target every round, so it has no dots. Visitations exclude terminal "
    "states.",
    "bottom-left-room": "The room that the paper discusses: the loss of value there, and the probability of the top "
    "route from the doorway into it.",
    "certificates": "The bounds compared with the true improvement. Medians over seeds.",
    "examination-ppo": "PPO, round by round, one seed.",
    "examination-sv-dynamic": "SV-PPO with the dynamic gate, round by round, same seed.",
    "examination-sv-static": "SV-PPO with the static gate, round by round, same seed.",
}


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
        low, high = summary.share_interval(len(seeds), total)
        share = f"{100 * len(seeds) / total:.1f} % [{100 * low:.1f}, {100 * high:.1f}]"
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
    out = page.Page("Four Rooms: exact analysis of Stable-Value PPO")
    config = study.config
    noise = config.environment.env_options.get("noise", "fail")
    seeds = len(config.run.seeds)
    out.text(
        f"{seeds} seeds, {study.rounds} rounds of {config.batch_size} steps, noise '{noise}', discount "
        f"{config.algorithm.gamma:g}. Single runs are shown for seed {shown_seed(study)}. Values, visitations and "
        "bounds are exact: linear algebra in double precision on the policies and critics after every round."
    )
    out.numbers(headlines(study))
    for name, draw in all_figures(study).items():
        say(f"four-rooms: figure {name}")
        out.figure(page.save_figure(draw(), study.path / "figures", name), CAPTIONS[name])
    out.heading("By algorithm")
    out.text("Median over seeds with a 95 % bootstrap interval.")
    out.table(algorithm_table(study))
    out.heading("Failures")
    out.text(f"Seeds whose policy ends below {summary.FAILED:g} V*(s0); 95 % interval of the share by Wilson.")
    out.table(failure_table(study))
    out.heading("Certificates")
    out.text(
        "The certificate of round k is the lower bound of the SV-API theorem on V(s0) of the next behavioural policy "
        "minus V(s0) of the target, with q = R + gamma P v and delta = max d_TV / (1 - gamma). On accepted rounds it "
        "certifies the accepted update, on held rounds the rejected one. A bound that is not positive is vacuous: it "
        "guarantees no improvement."
    )
    out.table(certificate_table(study))
    out.heading("Every member")
    out.table([_short(r) for r in study.rows])
    out.heading("Columns of exact.parquet")
    out.table([{"column": k, "meaning": v} for k, v in exact.COLUMNS.items()])
    tables = {"members": study.rows, "algorithms": algorithm_table(study), "certificates": certificate_table(study)}
    tables["failures"] = failure_table(study)
    for name, rows in tables.items():
        write_whole(study.path / f"{name}.csv", pd.DataFrame(rows).to_csv(index=False).encode())
    target = study.path / "report.html"
    out.write(target)
    return target


def _short(row: dict[str, Any]) -> dict[str, Any]:
    names = ("algo", "seed", "final_value", "near_optimal", "largest_late_drop", "updates", "first_update", "kl_ratio")
    return {n: row[n] for n in (*names, "gap_bottom_left", "top_from_doorway", "certificates_held")}
