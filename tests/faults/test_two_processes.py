"""Two processes that do the same work in the same place: one does it, the other says so in one line."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tests.run.helpers import COMMAND, FOUR_ROOMS, SMALL, environment, options

import nextpolicy

from . import works

pytestmark = [
    pytest.mark.allow_rank_promotion,
    pytest.mark.allow_key_reuse,
    pytest.mark.quick_compilation,
    pytest.mark.no_cover,
]
TRAIN = {k: v for k, v in {**SMALL, "total_env_steps": 32 * 40}.items() if k not in ("env", "quiet")}


def at_once(*commands: list[str]) -> list[tuple[int, str]]:
    """Start all at the same time; exit code and stderr of each."""
    started = [
        subprocess.Popen(words, env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        for words in commands
    ]
    said = [process.communicate(timeout=300)[1] for process in started]
    return [(process.returncode, text.strip()) for process, text in zip(started, said, strict=True)]


def one_of(answers: list[tuple[int, str]]) -> str:
    """What the process said that did not do the work; exactly one did."""
    assert [code for code, _ in answers].count(0) == 1, answers
    (said,) = (text for code, text in answers if code)
    assert len(said.splitlines()) == 1, said
    return said


def test_one_of_two_trainings_gets_the_folder(tmp_path: Path) -> None:
    words = [*COMMAND, "train", "four-rooms", "--quiet", *options(**TRAIN), "--out"]
    said = one_of(at_once([*words, str(tmp_path / "run")], [*words, str(tmp_path / "run")]))
    assert str(tmp_path / "run") in said
    alone = subprocess.run([*words, str(tmp_path / "alone")], env=environment(), check=False)
    assert alone.returncode == 0
    assert works.of_run(tmp_path / "run") == works.of_run(tmp_path / "alone")


@pytest.mark.slow
def test_one_of_two_resumes_goes_on(tmp_path: Path) -> None:
    fields = {**FOUR_ROOMS, "total_env_steps": 32 * 40}
    nextpolicy.train(**fields, out=tmp_path / "run", callback=lambda block: block.rounds_done >= 4)
    resume = [*COMMAND, "resume", str(tmp_path / "run"), "--quiet"]
    answers = at_once(resume, resume)
    # The second may also come after the first has finished, and then has nothing to do.
    if [code for code, _ in answers] != [0, 0]:
        assert "is being written by another process; wait for it or end it" in one_of(answers)
    nextpolicy.train(**fields, out=tmp_path / "alone")
    assert works.of_run(tmp_path / "run") == works.of_run(tmp_path / "alone")


@pytest.mark.slow
def test_two_suites_in_one_folder_end_in_the_results_of_one(tmp_path: Path) -> None:
    begin = f"from pathlib import Path; from tests.faults import works; works.suite(Path({str(tmp_path / 'both')!r}))"
    for code, said in at_once([sys.executable, "-c", begin], [sys.executable, "-c", begin]):
        assert not code or "another process" in said.splitlines()[-1], said
    works.suite(tmp_path / "both")
    works.suite(tmp_path / "alone")
    assert works.of_suite_files(tmp_path / "both") == works.of_suite_files(tmp_path / "alone")


@pytest.mark.slow
def test_two_reports_leave_one_whole_page(tmp_path: Path) -> None:
    works.train(tmp_path)
    for out in ("both", "alone"):
        (tmp_path / out).mkdir()
    words = [*COMMAND, "report", str(tmp_path / "run"), "--out"]
    for code, said in at_once(*[[*words, str(tmp_path / "both" / "r.html")]] * 2):
        assert not code or len(said.splitlines()) == 1, said
    assert subprocess.run([*words, str(tmp_path / "alone" / "r.html")], env=environment(), check=False).returncode == 0
    both, alone = ((tmp_path / out / "r.html").read_text() for out in ("both", "alone"))
    assert both == alone
    assert not list((tmp_path / "both").glob("*.tmp"))
