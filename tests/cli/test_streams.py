"""Odd standard streams and too little memory: a command still ends with its own exit code and at most one line."""

from __future__ import annotations

import subprocess
import sys

import pytest

from nextpolicy.cli import main as program

PROGRAM = f"{sys.executable} -m nextpolicy"


def shell(line: str, **variables: str) -> subprocess.CompletedProcess[str]:
    given = " ".join(f"{name}={value}" for name, value in variables.items())
    return subprocess.run(["bash", "-c", f"{given} {line}"], capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize("command", ["--version", "suite list"])
def test_a_closed_standard_output_is_no_error(command: str) -> None:
    done = shell(f"{PROGRAM} {command} >&-")
    assert (done.returncode, done.stderr) == (0, "")


def test_what_the_terminal_cannot_show_is_escaped() -> None:
    code = (
        "import sys; from nextpolicy.cli import main; main._dispatch = lambda a: print('run: \\u00fc'); main.program()"
    )
    done = shell(f'{sys.executable} -c "{code}"', PYTHONIOENCODING="ascii")
    assert (done.returncode, done.stdout, done.stderr) == (0, "run: \\xfc\n", "")


def test_too_little_memory_is_one_line(capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    def exhausted(arguments: list[str]) -> None:
        raise MemoryError

    monkeypatch.setattr(program, "_dispatch", exhausted)
    assert program.main(["envs"]) == 2
    assert capsys.readouterr().err == "nextpolicy: out of memory; free some, or use smaller settings\n"


def test_a_name_cannot_steer_the_terminal(capsys: pytest.CaptureFixture) -> None:
    assert program.main(["report", "\x1b[2Jruns ü"]) == 2
    assert capsys.readouterr().err == "nextpolicy: report: expected a folder, got \\x1b[2Jruns ü\n"
