"""`nextpolicy study theory`: the statements on random MDPs and Four Rooms, and the algorithms side by side."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pandas as pd

from nextpolicy.config import MAX_SEED, whole
from nextpolicy.run.folder import RunError
from nextpolicy.runfiles import write_whole
from nextpolicy.studies import page, theory_checks, theory_compare
from nextpolicy.tabular import four_rooms


def main(arguments: Sequence[str], parser_class: type[argparse.ArgumentParser], parse: Callable[..., Any]) -> None:
    """The command."""
    options = parse(_parser(parser_class), arguments)
    say = (lambda text: None) if options.quiet else (lambda text: print(text, file=sys.stderr, flush=True))
    for name, low, high in (("cases", 1, 10**7), ("four_rooms_cases", 1, 10**7), ("seed", 0, MAX_SEED)):
        whole(name, getattr(options, name), low, high)
    settings = theory_compare.Settings(
        rounds=options.rounds,
        repeats=options.repeats,
        sigma=options.sigma,
        samples=options.samples,
        step_size=options.step_size,
    )
    path = Path(options.out or f"runs/study-theory-{time.strftime('%Y%m%d-%H%M%S')}")
    _claim(path)
    results = run(options.cases, options.four_rooms_cases, options.seed, settings, say)
    report = write_report(path, results, settings)
    print(_plain(results["random"], "random MDPs"))
    print(_plain(results["four_rooms"], "Four Rooms"))
    print(_plain(results["comparison"], "policy iteration on Four Rooms with a slow, noisy critic"))
    print(f"report: {report}")
    _raise_if_broken(results)


def _parser(parser_class: type[argparse.ArgumentParser]) -> argparse.ArgumentParser:
    parser = parser_class(
        prog="nextpolicy study theory",
        description="Try every statement of the theory on random cases; run its algorithms with a noisy critic.",
        allow_abbrev=False,
    )
    default = theory_compare.Settings()
    parser.add_argument("--cases", type=int, default=2000, help="Cases on random MDPs; default 2000.")
    parser.add_argument("--four-rooms-cases", type=int, default=200, help="Cases on Four Rooms; default 200.")
    parser.add_argument("--seed", type=int, default=0, help="Seed of the cases; default 0.")
    parser.add_argument("--rounds", type=int, default=default.rounds, help="Rounds of policy iteration.")
    parser.add_argument("--repeats", type=int, default=default.repeats, help="Noise seeds of each algorithm.")
    parser.add_argument("--sigma", type=float, default=default.sigma, help="Noise of the critic per visit.")
    parser.add_argument("--samples", type=float, default=default.samples, help="Visits that a round is worth.")
    parser.add_argument("--step-size", type=float, default=default.step_size, help="Mirror-descent step of API.")
    parser.add_argument("--out", help="New folder for the report; default runs/study-theory-<time>.")
    parser.add_argument("--quiet", action="store_true", help="No progress.")
    return parser


def _claim(path: Path) -> None:
    """A new or empty folder, or an error before any work is done."""
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise RunError(f"out: {path} holds other files, takes a new or empty folder; nothing was written")
    path.mkdir(parents=True, exist_ok=True)


def run(
    cases: int, four_rooms_cases: int, seed: int, settings: theory_compare.Settings, say: Callable[[str], None]
) -> dict[str, Any]:
    """All tables, the worst counterexamples and the histories of the algorithms."""
    say(f"theory: {cases} cases on random MDPs")
    everything = [*theory_checks.random_cases(cases, seed), theory_checks.unseen_door()]
    random, worst = theory_checks.check(iter(everything))
    mdp = four_rooms.four_rooms()
    say(f"theory: {four_rooms_cases} cases on Four Rooms")
    on_maze, _ = theory_checks.check(theory_checks.random_cases(four_rooms_cases, seed + 1, mdp))
    say(f"theory: policy iteration, {settings.repeats} repeats of {settings.rounds} rounds each")
    histories = theory_compare.compare(mdp, settings)
    return {
        "random": random,
        "four_rooms": on_maze,
        "counterexamples": worst,
        "comparison": theory_compare.table(histories),
        "histories": histories,
        "mdp": mdp,
    }


def write_report(path: Path, results: dict[str, Any], settings: theory_compare.Settings) -> Path:
    """CSV tables, counterexamples as JSON, the figure and report.html."""
    out = page.Page("The theory of next-policy sampling, tried")
    out.heading("Statements on random MDPs")
    out.text(
        "Two to eight states, two to four actions; exact, slightly wrong, arbitrarily wrong and adversarial estimates; "
        "one case made by hand. A violation is beyond rounding. The ratio of bound to truth is the median over cases "
        "where both are positive: 1 is tight, below 1 a lower bound that promises less than happens, above 1 an upper "
        "bound that allows more. A vacuous lower bound is not positive."
    )
    out.table(results["random"])
    out.heading("The same on Four Rooms")
    out.table(results["four_rooms"])
    out.heading("Counterexamples: the largest violation of each statement that fails")
    out.text("In full, with every array, in counterexamples.json.")
    plain = ("bound", "truth", "states", "actions", "gamma", "estimate", "largest_error_times_1_minus_gamma")
    if results["counterexamples"]:
        rows = [{"statement": n, **{k: c[k] for k in plain}} for n, c in results["counterexamples"].items()]
        out.table(rows)
    out.heading("Algorithms 1 and 2 and conservative iteration with a slow, noisy critic")
    out.text(
        "Four Rooms from the uniform policy; all see data of their own behaviour. "
        + ", ".join(f"{k} {v:g}" for k, v in asdict(settings).items())
        + ". Medians (updates: means) over repeats."
    )
    drawn = theory_compare.figure(results["mdp"], results["histories"])
    out.figure(page.save_figure(drawn, path / "figures", "policy-iteration"), "Return of the target, and its losses.")
    out.table(results["comparison"])
    for name in ("random", "four_rooms", "comparison"):
        write_whole(path / f"{name}.csv", pd.DataFrame(results[name]).to_csv(index=False).encode())
    write_whole(path / "counterexamples.json", json.dumps(results["counterexamples"], indent=1).encode())
    target = path / "report.html"
    out.write(target)
    return target


def _plain(rows: list[dict[str, Any]], title: str) -> str:
    frame = pd.DataFrame([{k: page.show(v) for k, v in r.items()} for r in rows])
    return f"\n{title}\n{frame.to_string(index=False)}"


def _raise_if_broken(results: dict[str, Any]) -> None:
    """A statement that should hold and did not is a bug, here or in the theory: say so loudly."""
    lines = [*results["random"], *results["four_rooms"]]
    broken = [r["statement"] for r in lines if r["expected"] == "holds" and r["violations"]]
    if broken:
        raise RuntimeError(f"violated, and should hold: {', '.join(sorted(set(broken)))}")
