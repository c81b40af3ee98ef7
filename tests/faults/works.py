"""The pieces of work that faults are injected into: how each begins, continues, and what it must end in."""

from __future__ import annotations

import contextlib
import functools
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from tests.run.helpers import FOUR_ROOMS, SMALL

import nextpolicy
from nextpolicy import runfiles
from nextpolicy.experiments.engines import LocalEngine
from nextpolicy.experiments.suite import Suite
from nextpolicy.experiments.task import Task, tasks
from nextpolicy.export import numpy_policy
from nextpolicy.loop.population import Program
from nextpolicy.report import compact, write
from nextpolicy.run import callbacks, checkpoint
from nextpolicy.run import run as runs
from nextpolicy.run.folder import RunFolder
from nextpolicy.run.job import Job

ROUND = 32  # environment steps
FIELDS: dict[str, Any] = {**FOUR_ROOMS, "total_env_steps": 3 * ROUND}
TINY = {**{k: v for k, v in SMALL.items() if k not in ("env", "quiet")}, "total_env_steps": ROUND}
SUITE = Suite(
    "tiny", "", ("four-rooms", "probe/action"), "default", ("ppo", "sv-dynamic"), 1, evaluate_episodes=2, fields=TINY
)
Prints = dict[str, bytes | str]  # what must come out the same: name -> content


@dataclass(frozen=True)
class Work:
    """Work on the files in a folder.

    prepare    makes what it starts from; called once, the folder is copied after
    begin      does it; may be interrupted
    go_on      what a user does after an interruption
    prints     what has to be the same as without one
    redone     whether going on is refused in one line where it was interrupted, and works in another place
    """

    name: str
    prepare: Callable[[Path], object]
    begin: Callable[[Path], object]
    go_on: Callable[[Path], object]
    prints: Callable[[Path], Prints]
    redone: bool = False


def nothing(place: Path) -> None:
    place.mkdir(parents=True, exist_ok=True)


def of_run(path: Path) -> Prints:
    """Metrics except how fast they came, and every array of the agents."""
    run = nextpolicy.load(path)
    frame = run.metrics.drop(columns="steps_per_second")
    found: Prints = {"state": str(run.status["state"]), "scores": run.scores().to_csv()}
    found |= {str(name): f"{column.dtype} {column.tolist()}" for name, column in frame.items()}
    for i, leaf in enumerate(jax.tree.leaves(run._agents)):
        key = jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)
        found[f"array {i}"] = np.asarray(jax.random.key_data(leaf) if key else leaf).tobytes()
    return found


def train(place: Path) -> None:
    nextpolicy.train(**FIELDS, out=place / "run")


def resume(place: Path, **how: Any) -> None:
    """What a user does: the command that the program named, or the same again where there is no run yet."""
    if (place / "run" / "config.json").is_file():
        nextpolicy.resume(place / "run", quiet=True, **how)
    else:
        nextpolicy.train(**FIELDS, out=place / "run")


@functools.cache
def evaluating() -> callbacks.EvaluateEvery:
    return callbacks.EvaluateEvery(2 * ROUND, episodes=2)


def evaluated(place: Path) -> Prints:
    run = nextpolicy.load(place / "run")
    runfiles.check_regular(place / "run" / "evaluations.csv")
    best = jax.tree.leaves(run.snapshot("best"))
    arrays = {f"best {i}": np.asarray(x).tobytes() for i, x in enumerate(best)}
    return {**of_run(place / "run"), **arrays, "evaluations": (place / "run" / "evaluations.csv").read_bytes()}


def damaged(place: Path) -> None:
    """A run cut off in its last round, whose second part of metrics is gone and whose last checkpoint is damaged."""
    train(place)
    run = place / "run"
    (run / "metrics" / "part-00000001-00000001.parquet").unlink()
    with open(run / "checkpoints" / "00000003" / checkpoint.ARRAYS, "r+b") as file:
        file.write(b"xx")
    RunFolder(run).set_status("running", rounds_done=3)


def extend(place: Path) -> None:
    nextpolicy.resume(place / "run", quiet=True, total_env_steps=4 * ROUND)


def of_suite(place: Path) -> list[Task]:
    return tasks(SUITE, place / "suite")


def suite(place: Path) -> None:
    outcomes = LocalEngine().run(of_suite(place), None, lambda task, text: None)
    failed = [str(outcome) for outcome in outcomes if outcome.state != "done"]
    if failed:
        raise RuntimeError(failed[0])


def of_suite_files(place: Path) -> Prints:
    found: Prints = {}
    for task in of_suite(place):
        path = Path(task.path)
        found |= {f"{task.env} {name}": value for name, value in of_run(path).items()}
        found[f"{task.env} evaluation"] = (path / "evaluation.json").read_bytes()
    return found


def report(place: Path) -> None:
    with contextlib.redirect_stdout(None):
        write.write_report([str(place / "run")], place / "out" / "r.html", place / "out" / "files", "t", **ALLOWED)


ALLOWED = {"allow_mixed": False, "allow_gaps": False}


def prepare_report(place: Path) -> None:
    train(place)
    (place / "out").mkdir()


def of_report(place: Path) -> Prints:
    out = place / "out"
    return {str(p.relative_to(out)): p.read_bytes() for p in sorted(out.rglob("*")) if _is_result(p)}


def _is_result(path: Path) -> bool:
    return path.is_file() and not path.name.endswith(".tmp")


def export(place: Path) -> None:
    nextpolicy.load(place / "run").export(place / "policy")


def of_export(place: Path) -> Prints:
    policy = numpy_policy.load(place / "policy")
    return {"output": policy.output(np.arange(4)).tobytes(), **{k: v.tobytes() for k, v in policy.arrays.items()}}


def copy(place: Path) -> None:
    with contextlib.redirect_stdout(None):
        compact.write_copies([str(place / "run")], place / "small")


def of_copy(place: Path) -> Prints:
    out = place / "small"
    return {str(p.relative_to(out)): p.read_bytes() for p in sorted(out.rglob("*")) if p.is_file()}


def again_unless(made: str, begin: Callable[[Path], object]) -> Callable[[Path], None]:
    """Do it again unless it was done."""

    def go_on(place: Path) -> None:
        if not (place / made).exists():
            begin(place)

    return go_on


WORKS = (
    Work("training", nothing, train, resume, lambda place: of_run(place / "run")),
    Work(
        "training with evaluations",
        nothing,
        lambda place: nextpolicy.train(**FIELDS, out=place / "run", callback=evaluating()),
        lambda place: _resume_evaluating(place),
        evaluated,
    ),
    Work(
        "resuming a damaged run",
        damaged,
        lambda place: resume(place, recompute_metrics=True),
        lambda place: resume(place, recompute_metrics=True),
        lambda place: of_run(place / "run"),
    ),
    Work("extending a run", train, extend, extend, lambda place: of_run(place / "run")),
    Work("a suite", nothing, suite, suite, of_suite_files),
    Work("a report", prepare_report, report, report, of_report),
    Work("an export", train, export, again_unless("policy/policy.json", export), of_export, redone=True),
    Work("a small copy", train, copy, again_unless("small/run", copy), of_copy),
)


def _resume_evaluating(place: Path) -> None:
    if (place / "run" / "config.json").is_file():
        nextpolicy.resume(place / "run", quiet=True, callback=evaluating())
    else:
        nextpolicy.train(**FIELDS, out=place / "run", callback=evaluating())


@contextlib.contextmanager
def programs_kept() -> Iterator[None]:
    """Programs and drawings are made once: what is tested is what happens to files."""
    programs: dict[object, Program] = {}
    evaluators: dict[object, Any] = {}
    drawn: dict[str, Any] = {}
    build, make, draw = Job.program, runs.evaluator, write._files

    def program(job: Job) -> Program:
        name = job.config.to_json(), jax.config.values["jax_disable_most_optimizations"]
        if not job.by_name or job.on_host:
            return build(job)
        if name not in programs:
            programs[name] = build(job)
        return programs[name]

    def evaluator(env: Any, networks: Any, **how: Any) -> Any:
        name = env.spec.id, tuple(how.items())
        if name not in evaluators:
            evaluators[name] = make(env, networks, **how)
        return evaluators[name]

    def files(comparison: Any, folder: Path) -> dict[Path, str | bytes]:
        if "files" not in drawn:
            drawn["files"] = {path.name: content for path, content in draw(comparison, folder).items()}
        return {folder / name: content for name, content in drawn["files"].items()}

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Job, "program", program)
        patch.setattr(runs, "evaluator", evaluator)
        patch.setattr(write, "_files", files)
        yield


def start_of(work: Work, place: Path) -> Path:
    """The folder that the work starts from, made once and copied for each fault."""
    nothing(place)
    work.prepare(place)
    return place


def fresh(start: Path, place: Path) -> Path:
    return Path(shutil.copytree(start, place, symlinks=True))
