"""Completion scripts, run by the shell itself."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from nextpolicy.cli.main import COMMANDS, main


@pytest.fixture(scope="module")
def script(tmp_path_factory) -> Path:
    from contextlib import redirect_stdout

    path = tmp_path_factory.mktemp("completion") / "nextpolicy.bash"
    with path.open("w") as file, redirect_stdout(file):
        assert main(["completion", "bash"]) == 0
    return path


def completed(script: Path, *words: str) -> list[str]:
    """What bash offers for the last of these words."""
    if shutil.which("bash") is None:
        pytest.skip("bash is not installed")
    line = " ".join(f"'{word}'" for word in ("nextpolicy", *words))
    asked = f"COMP_WORDS=({line}); COMP_CWORD={len(words)}; _nextpolicy"
    code = f'source {script}; {asked}; printf "%s\\n" "${{COMPREPLY[@]}}"'
    done = subprocess.run(["bash", "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return done.stdout.split()


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("",), [*COMMANDS, "--help", "--version"]),
        (("tr",), ["train"]),
        (
            ("train", "probe/act"),
            [f"probe/action{x}" for x in ("", "-observation", "-continuous", "-observation-continuous")],
        ),
        (("train", "--learning"), ["--learning-rate", "--learning-rate-final"]),
        (("train", "four-rooms", "--torso", "n"), ["nature"]),
        (("train", "four-rooms", "--preset", "co"), ["corrected"]),
        (("train", "four-rooms", "--layer-norm", ""), ["true", "false"]),
        (
            ("train", "four-rooms", "--algo", "sv"),
            ["sv-dynamic", "sv-pqn", "sv-pqn-static", "sv-sac", "sv-sac-static", "sv-static"],
        ),
        (("suite", ""), ["list", "run", "status"]),
        (("suite", "run", "minatar", "--bud"), ["--budget"]),
        (("suite", "list", "--bud"), []),
        (("study", "four-rooms", "--noi"), ["--noise"]),
        (("resume", "--recomp"), ["--recompute-metrics"]),
        (("completion", ""), ["bash", "zsh"]),
        (("eval", "run", "--policy", ""), ["target", "behaviour", "best"]),
        (("export", "run", "folder", "--policy", "b"), ["behaviour", "best"]),
        (("train", "four-rooms", "--policy", "c"), ["categorical"]),
        (("study", "criteria", "--noise", "s"), ["success"]),
        (("train", "four-rooms", "--out", ""), []),  # files, by the shell itself
        (("train", "four-rooms", ""), []),
    ],
)
def test_bash_completes(script: Path, words: tuple[str, ...], expected: list[str]) -> None:
    assert sorted(completed(script, *words)) == sorted(expected)


def test_zsh_uses_the_same_script(script: Path, capsys: pytest.CaptureFixture) -> None:
    assert main(["completion", "zsh"]) == 0
    said = capsys.readouterr().out
    assert said.endswith(script.read_text())
    if shutil.which("zsh") is not None:
        (script.parent / "nextpolicy.zsh").write_text(said)
        code = f"source {script.parent / 'nextpolicy.zsh'}; echo $_comps[nextpolicy]"
        done = subprocess.run(["zsh", "-f", "-c", code], capture_output=True, text=True, check=True)
        assert done.stderr == ""
        assert "_nextpolicy" in done.stdout


def test_an_unknown_shell(capsys: pytest.CaptureFixture) -> None:
    assert main(["completion", "fish"]) == 2
    assert "unknown shell 'fish'" in capsys.readouterr().err
