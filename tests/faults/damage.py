"""Flipped bytes, and files cut short, emptied, swapped or gone, in every kind of file of a run, a suite and an export.

A reader of the damaged folder must give what it gave before, or refuse in one line; then the run is repaired, which
must end in what it was, or refuse in one line.
"""

from __future__ import annotations

import itertools
import os
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import nextpolicy
from nextpolicy.report.runs import load as load_for_report

from . import works
from .outcomes import CHANGED, LOST, REFUSED, SAME, Result, answer
from .works import Prints, fresh

SEED = 21


class Reader(NamedTuple):
    """Reads a folder; what it gives must not change unnoticed."""

    name: str
    read: Callable[[Path], Prints]


class Victim(NamedTuple):
    """Kinds of files that are damaged, as patterns, who reads them, and how the folder is repaired."""

    name: str
    prepare: Callable[[Path], object]
    files: dict[str, str]
    readers: tuple[Reader, ...]
    repair: Callable[[Path], object]


def metrics(path: Path) -> Prints:
    run = nextpolicy.load(path)
    return {"metrics": run.metrics.drop(columns="steps_per_second").to_csv(), "scores": run.scores().to_csv()}


def reported(path: Path) -> Prints:
    run = load_for_report(path)
    members = [str(member) for member in run.members]
    frame = run.frame.drop(columns="steps_per_second", errors="ignore")
    found: Prints = {"frame": frame.to_csv(), "members": str(members), "evaluation": str(run.evaluation)}
    return {**found, "statistics": "" if run.statistics is None else run.statistics.to_csv()}


def evaluated(path: Path) -> Prints:
    found = [load_for_report(path / name) for name in ("four-rooms", "probe-action")]
    if not all(run.evaluation for run in found):
        raise ValueError("a dash in the report")
    return {run.env: str(run.evaluation) for run in found}


def best(path: Path) -> Prints:
    return {k: v for k, v in works.evaluated(path.parent).items() if k.startswith("best")}


def train_evaluated(place: Path) -> None:
    nextpolicy.train(**works.FIELDS, out=place / "run", callback=works.evaluating())


def export_of(place: Path) -> None:
    works.train(place)
    works.export(place)


def copy_of(place: Path) -> None:
    works.train(place)
    works.copy(place)


RUN_FILES = {
    "config.json": "run/config.json",
    "status.json": "run/status.json",
    "metrics": "run/metrics/part-*",
    "manifest of a checkpoint": "run/checkpoints/*.json",
    "arrays of a checkpoint": "run/checkpoints/*/**/*",
    "evaluations.csv": "run/evaluations.csv",
    "best policy": "run/best/*",
}
VICTIMS = (
    Victim(
        "a run",
        train_evaluated,
        RUN_FILES,
        (
            Reader("metrics", lambda place: metrics(place / "run")),
            Reader("report", lambda place: reported(place / "run")),
            Reader("agents", lambda place: {k: v for k, v in works.of_run(place / "run").items() if k != "state"}),
            Reader("best policy", lambda place: best(place / "run")),
        ),
        lambda place: nextpolicy.resume(place / "run", quiet=True, recompute_metrics=True, callback=works.evaluating()),
    ),
    Victim(
        "a suite",
        works.suite,
        {"evaluation.json": "suite/*/evaluation.json", "status.json": "suite/*/status.json"},
        (Reader("report", lambda place: evaluated(place / "suite")),),
        works.suite,
    ),
    Victim(
        "an export",
        export_of,
        {"policy.json": "policy/policy.json", "policy.npz": "policy/policy.npz"},
        (Reader("loader", works.of_export),),
        works.nothing,
    ),
    Victim(
        "a small copy",
        copy_of,
        {
            "metrics": "small/run/metrics/*",
            "statistics.csv": "small/run/statistics.csv",
            "copied.json": "small/run/c*d.json",
        },
        (Reader("report", lambda place: reported(place / "small" / "run")),),
        works.nothing,
    ),
    Victim(
        "a report",
        lambda place: (works.prepare_report(place), works.report(place)),
        {"page": "out/r.html", "tables and figures": "out/files/*", "record": "out/.nextpolicy-report.json"},
        (),
        works.report,
    ),
)


PIPE = object()  # in place of a file, a pipe that nobody writes to


def ways(dice: random.Random, path: Path, siblings: list[Path], flips: int) -> Iterator[tuple[str, Any]]:
    """(what is done, the bytes that are left, or None for a file that is gone, or `PIPE`)."""
    data = path.read_bytes()
    for _ in range(flips if data else 0):
        at, bit = dice.randrange(len(data)), dice.randrange(8)
        yield f"bit {bit} of byte {at} flipped", data[:at] + bytes([data[at] ^ 1 << bit]) + data[at + 1 :]
    yield "cut short", data[: len(data) // 2]
    yield "emptied", b""
    yield "gone", None
    others = [other for other in siblings if other.read_bytes() != data]
    if others:
        other = dice.choice(others)
        yield f"replaced by {other.name}", other.read_bytes()
    yield "replaced by a pipe", PIPE


def damages(victim: Victim, root: Path, flips: int, most: int = 100) -> Iterator[Result]:
    """Damage two files of every kind in every way, or in the first `most` of them."""
    start = works.start_of(victim, root / "start")  # type: ignore[arg-type]
    expected = {reader.name: reader.read(start) for reader in victim.readers}
    for kind, pattern in victim.files.items():
        dice = random.Random(f"{SEED} {victim.name} {kind}")
        siblings = sorted(p for p in start.glob(pattern) if p.is_file())
        for path in dice.sample(siblings, min(2, most, len(siblings))):
            for what, data in itertools.islice(ways(dice, path, siblings, flips), most):
                place = fresh(start, root / "damaged")
                target = place / path.relative_to(start)
                if isinstance(data, bytes):
                    target.write_bytes(data)
                else:
                    target.unlink()
                    if data is PIPE:
                        os.mkfifo(target)
                fault = f"{target.relative_to(place)}: {what}"
                yield Result(f"damage: {victim.name}, {kind}", fault, *_outcome(victim, place, expected))
                shutil.rmtree(place)


def _outcome(victim: Victim, place: Path, expected: dict[str, Prints]) -> tuple[str, str]:
    """Read, repair, read again; a refusal is a good answer, another number is not."""
    refused = ""
    for repaired in (False, True):
        if repaired:
            said = answer(lambda: victim.repair(place))
            refused = said.refusal
            if said.wrong:
                return LOST, f"repair: {said.wrong}"
        for reader in victim.readers:
            found = answer(lambda reader=reader: reader.read(place))
            if found.wrong:
                return LOST, f"{reader.name}: {found.wrong}"
            if found.refusal:
                refused = refused or (found.refusal if repaired else "")
            elif found.value != expected[reader.name]:
                odd = [k for k, v in expected[reader.name].items() if found.value.get(k) != v]  # type: ignore[attr-defined]
                return CHANGED, f"{reader.name}: {'after repair ' * repaired}{odd[:4]}"
    return (REFUSED, refused) if refused else (SAME, "")
