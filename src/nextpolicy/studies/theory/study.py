"""The theory study: tests of the paper's statements on random MDPs and Four Rooms, and a comparison of algorithms."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pandas as pd

from nextpolicy.run.folder import RunError
from nextpolicy.runfiles import write_whole
from nextpolicy.studies import page
from nextpolicy.studies.theory import checks, compare
from nextpolicy.tabular import four_rooms_mdp


def claim(path: Path) -> None:
    """Create the folder of the study. Raises `RunError` if it holds files."""
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise RunError(f"out: expected a new or empty folder, got {path}, which holds other files; nothing was written")
    path.mkdir(parents=True, exist_ok=True)


def run(
    cases: int, four_rooms_cases: int, seed: int, settings: compare.Settings, say: Callable[[str], None]
) -> dict[str, Any]:
    """Run the study. Returns all tables, the largest counterexamples and the histories of the algorithms."""
    say(f"theory: {cases} cases on random MDPs")
    everything = [*checks.random_cases(cases, seed), checks.unseen_door()]
    random, worst = checks.check(iter(everything))
    mdp = four_rooms_mdp.four_rooms()
    say(f"theory: {four_rooms_cases} cases on Four Rooms")
    on_maze, _ = checks.check(checks.random_cases(four_rooms_cases, seed + 1, mdp))
    say(f"theory: policy iteration, {settings.repeats} repeats of {settings.rounds} rounds each")
    histories = compare.compare(mdp, settings)
    return {
        "random": random,
        "four_rooms": on_maze,
        "counterexamples": worst,
        "comparison": compare.table(histories),
        "histories": histories,
        "mdp": mdp,
    }


def write_report(path: Path, results: dict[str, Any], settings: compare.Settings) -> Path:
    """Write CSV tables, counterexamples.json, the figure and report.html."""
    out = page.Page("The theory of next-policy sampling, tested")
    out.heading("Statements on random MDPs")
    out.text(
        "Two to eight states, two to four actions; exact, slightly wrong, arbitrarily wrong and adversarial estimates; "
        "one hand-made case. A violation exceeds rounding error. The ratio of bound to true value is the median over "
        "cases where both are positive: 1 is tight, a loose lower bound is below 1, a loose upper bound above. A lower "
        "bound is vacuous if it is not positive."
    )
    out.table(results["random"])
    out.heading("The same on Four Rooms")
    out.table(results["four_rooms"])
    out.heading("Counterexamples: the largest violation of each statement that fails")
    out.text("counterexamples.json contains them in full, with all arrays.")
    plain = ("bound", "truth", "states", "actions", "gamma", "estimate", "largest_error_times_1_minus_gamma")
    if results["counterexamples"]:
        rows = [{"statement": n, **{k: c[k] for k in plain}} for n, c in results["counterexamples"].items()]
        out.table(rows)
    out.heading("Algorithms 1 and 2 and conservative policy iteration with a slow, noisy critic")
    out.text(
        "Four Rooms from the uniform policy; each algorithm uses data of its own behavioural policy. "
        + ", ".join(f"{k} {v:g}" for k, v in asdict(settings).items())
        + ". Medians (updates: means) over repeats."
    )
    drawn = compare.figure(results["mdp"], results["histories"])
    page.save_figure(drawn, path / "figures", "policy-iteration")
    out.figure([page.themed(drawn, "policy-iteration")], "Return of the target, and its losses.")
    out.table(results["comparison"])
    for name in ("random", "four_rooms", "comparison"):
        write_whole(path / f"{name}.csv", pd.DataFrame(results[name]).to_csv(index=False).encode())
    write_whole(path / "counterexamples.json", json.dumps(results["counterexamples"], indent=1).encode())
    target = path / "report.html"
    out.write(target)
    return target


def plain_table(rows: list[dict[str, Any]], title: str) -> str:
    frame = pd.DataFrame([{k: page.show(v) for k, v in r.items()} for r in rows])
    return f"\n{title}\n{frame.to_string(index=False)}"


def raise_if_violated(results: dict[str, Any]) -> None:
    """Raise if a statement that should hold was violated: a bug here, or an error in the theory."""
    lines = [*results["random"], *results["four_rooms"]]
    broken = [r["statement"] for r in lines if r["expected"] == "holds" and r["violations"]]
    if broken:
        raise RuntimeError(f"theory: expected no violation of true statements, got {', '.join(sorted(set(broken)))}")
