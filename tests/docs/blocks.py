"""The code blocks of README.md and docs/*.md, and how they are executed.

Every `python` and `bash` block is executed, unless the line before it says why not:

    <!-- not executed: installs from the network -->

The blocks of a page are executed in order, in one working folder and one Python namespace. They are executed as they
stand; only what they train is smaller, by the tables `SMALL` and `SHORT`. A `toml` block whose first line is a comment
with a file name is written to that file.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from nextpolicy import algos, criteria
from nextpolicy.algos import VARIANTS
from nextpolicy.cli.main import main
from nextpolicy.config import TrainConfig, presets
from nextpolicy.experiments import catalogue
from nextpolicy.run import extend, processes

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
EXECUTED = ("python", "bash")

# What every training of a block is reduced to, after its own settings were checked.
SMALL: dict[str, Any] = {
    "total_env_steps": 4 * 64,
    "num_envs": 4,
    "rollout_length": 16,
    "minibatch_size": 32,
    "epochs": 1,
    "hidden": (8,),
    "warmup_steps": 0,
}
# Options added to commands whose length `SMALL` does not determine.
SHORT: dict[str, list[str]] = {
    "study four-rooms": ["--rounds", "2"],
    "study theory": ["--cases", "20", "--four-rooms-cases", "2", "--rounds", "2", "--repeats", "1"],
    "bench": ["--seconds", "0.01", "--repeats", "1"],
}


@dataclass(frozen=True)
class Block:
    """A fenced block, the number of its first line, and why it is not executed."""

    page: Path
    line: int
    language: str
    text: str
    why_not: str | None

    @property
    def executed(self) -> bool:
        return self.language in EXECUTED and self.why_not is None

    @property
    def commands(self) -> list[list[str]]:
        """The words of each command of a shell block."""
        lines = self.text.replace("\\\n", " ").splitlines()
        return [words for line in lines if (words := shlex.split(line, comments=True))]

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def blocks(page: Path) -> list[Block]:
    """The fenced blocks of a page."""
    found, lines = [], page.read_text(encoding="utf-8").splitlines()
    start = None
    for number, line in enumerate(lines):
        if start is None and line.startswith("```"):
            start = number
        elif start is not None and line == "```":
            mark = re.fullmatch(r"<!-- not executed: (.+) -->", lines[start - 1] if start else "")
            text = "\n".join(lines[start + 1 : number]) + "\n"
            found.append(Block(page, start + 2, lines[start][3:].strip(), text, mark[1] if mark else None))
            start = None
    assert start is None, f"{page}: a block does not end"
    return found


ALL = [block for page in PAGES for block in blocks(page)]


def execute(block: Block, namespace: dict[str, Any]) -> None:
    """Execute a block in the current folder."""
    if block.language == "python":
        code = "\n" * (block.line - 1) + block.text  # so that a traceback has the lines of the page
        exec(compile(code, str(block.page), "exec"), namespace)
    for words in block.commands if block.language == "bash" else []:
        assert words[0] == "nextpolicy", f"{block}: only nextpolicy is executed, not {words[0]}; mark the block"
        short = next((more for start, more in SHORT.items() if words[1:][: len(start.split())] == start.split()), [])
        assert main([*words[1:], *short]) == 0, f"{block}: {' '.join(words)}"


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trainings of the size of `SMALL`, and suites of one environment and one seed; registries are restored."""
    build, longer = presets.build, extend.longer

    def build_small(env: str, **fields: Any) -> TrainConfig:
        config = build(env, **fields)
        return config.replace(**{name: value for name, value in SMALL.items() if name in config.fields()})

    monkeypatch.setattr(presets, "build", build_small)
    monkeypatch.setattr(extend, "longer", lambda folder, steps: longer(folder, min(float(steps), 8 * 64)))
    monkeypatch.setattr(processes, "use_all_cores", lambda: None)  # other tests use the devices of this process too
    for name, suite in catalogue.SUITES.items():
        one = replace(suite, environments=suite.environments[:1], seeds=1, evaluate_episodes=2)
        monkeypatch.setitem(catalogue.SUITES, name, one)
    for registry in (algos.ALGORITHMS, VARIANTS, criteria.CRITERIA):
        for name, value in list(registry.items()):  # type: ignore[attr-defined]
            monkeypatch.setitem(registry, name, value)  # type: ignore[arg-type]
