"""Every input is answered: exit code 0, or 2 with one line; no traceback, no hang, nothing overwritten.

A share of the inputs runs here in seconds, all of them (10,000 command lines, 4,000 suites, 5,000 run folders) with
`make test-slow`. Seeds are fixed, so that a red test is red for everybody; the report names an input of each kind.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import nextpolicy
from nextpolicy.cli.main import main
from nextpolicy.experiments import catalogue

from . import command_lines, documents
from .harness import fault_of, no_work, report, state_of

pytestmark = [pytest.mark.allow_rank_promotion, pytest.mark.allow_key_reuse, pytest.mark.quick_compilation]
pytestmark += [pytest.mark.no_cover]  # thousands of inputs: measuring what they cover takes half as long again

TINY = {"total_env_steps": 64, "num_envs": 4, "rollout_length": 8, "minibatch_size": 32, "hidden": (8,), "epochs": 1}
SUITE = 'environments = ["probe/action"]\npreset = "default"\nalgo = ["ppo", "sv-dynamic"]\nseeds = 1\n'
SUITE += f"[fields]\n{''.join(f'{k} = {list(v) if isinstance(v, tuple) else v}' + chr(10) for k, v in TINY.items())}"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder `precious` with a finished run, a stopped one and a user's files, and `work` beside it to work in."""
    root = tmp_path_factory.mktemp("fuzz")
    precious, work = root / "precious", root / "work"
    precious.mkdir()
    work.mkdir()
    (precious / "suite.toml").write_text(SUITE)
    config = catalogue.load(str(precious / "suite.toml")).config("probe/action")
    run = nextpolicy.train("probe/action", preset="default", out=precious / "run", quiet=True, **_fields(config))
    rows = [{"member": i, "variant": m.variant, "mean": 1.5} for i, m in enumerate(run.members)]
    (precious / "run" / "evaluation.json").write_text(json.dumps(rows))
    shutil.copytree(precious / "run", precious / "stopped")
    (precious / "stopped" / "status.json").write_text('{"state": "stopped", "rounds_done": 1, "rounds": 2}')
    (precious / "notes.txt").write_text("mine")
    (precious / "page.html").write_text("mine too")
    before = os.getcwd()
    os.chdir(work)
    with no_work():
        yield root
    os.chdir(before)


def _fields(config: Any) -> dict[str, Any]:
    return {name: value for name, value in config.flat().items() if name not in ("env", "env_options")}


def judged(inputs: Iterator[Any], count: int, answer: Callable[[Any], int], precious: Path, work: Path) -> None:
    """Give every input to `answer`; all that went wrong is said at once."""
    faults, kept, seen = [], state_of(precious), 0
    for given in inputs:
        seen += 1
        fault = fault_of(lambda given=given: answer(given))
        if fault is not None:
            faults.append((fault, repr(given)))
        if seen % 20 == 0 or seen == count:
            after = state_of(precious)
            if after != kept:
                changed = sorted(set(after.items()) ^ set(kept.items()))[0][0]
                faults.append((f"this input or one of 20 before it changed {changed}", repr(given)))
            kept = after
        if seen % 100 == 0:
            for left in work.iterdir():
                shutil.rmtree(left) if left.is_dir() else left.unlink()
    assert seen == count
    assert not faults, report(faults, count)


SLOW = pytest.mark.slow


@pytest.mark.parametrize("count", [150, pytest.param(10_000, marks=SLOW)])
def test_command_lines(place: Path, count: int) -> None:
    judged(command_lines.lines(1, count), count, main, place / "precious", place / "work")


@pytest.mark.parametrize("count", [400, pytest.param(4_000, marks=SLOW)])
def test_suites(place: Path, count: int) -> None:
    def answer(data: bytes) -> int:
        Path("mine.toml").write_bytes(data)
        return main(["suite", "status", "mine.toml", "--out", "../precious/suite-out"])

    judged(documents.tomls(2, count), count, answer, place / "precious", place / "work")


COMMANDS = {
    "config.json": ("load", "report", "suite", "eval", "resume"),
    "status.json": ("load", "report", "suite", "resume"),
    "evaluation.json": ("report", "suite"),
}


@pytest.mark.parametrize("count", [300, pytest.param(5_000, marks=SLOW)])
def test_run_folders(place: Path, count: int, tmp_path: Path) -> None:
    victim = tmp_path / "out" / "probe-action"
    shutil.copytree(place / "precious" / "run", victim)
    original = {name: (victim / name).read_bytes() for name in COMMANDS}
    turns = dict.fromkeys(COMMANDS, 0)

    def load() -> int:
        run = nextpolicy.load(victim)
        return 0 if repr(run) and len(run.members) else 1

    lines = {
        "report": ["report", str(victim), "--page-only"],
        "suite": ["suite", "status", str(place / "precious" / "suite.toml"), "--out", str(victim.parent)],
        "eval": ["eval", str(victim), "--episodes", "2"],
        "resume": ["resume", str(victim), "--quiet"],
    }

    def answer(given: tuple[str, bytes]) -> int:
        name, data = given
        for other, content in original.items():
            (victim / other).write_bytes(data if other == name else content)
        word = COMMANDS[name][turns[name] % len(COMMANDS[name])]
        turns[name] += 1
        return main(lines[word]) if word != "load" else _as_main(load)

    inputs = documents.jsons(3, count, {name: json.loads(data) for name, data in original.items()})
    judged(inputs, count, answer, place / "precious", place / "work")


def _as_main(call: Callable[[], int]) -> int:
    """Python's errors judged as the command line's: the kinds that it prints, and one line each."""
    try:
        return call()
    except (ValueError, RuntimeError, OSError) as error:
        print(f"nextpolicy: {error}", file=sys.stderr)
        return 2
