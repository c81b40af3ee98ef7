"""Running the scripts of benchmarks/ in this process."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[2] / "benchmarks"


def run(monkeypatch: pytest.MonkeyPatch, script: str, *arguments: str) -> None:
    monkeypatch.setattr(sys, "argv", [script, *arguments])
    monkeypatch.syspath_prepend(SCRIPTS)  # as Python does for a script
    runpy.run_path(str(SCRIPTS / script), run_name="__main__")


def complaint(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], script: str, *arguments: str) -> str:
    with pytest.raises(SystemExit):
        run(monkeypatch, script, *arguments)
    return capsys.readouterr().err.splitlines()[-1]
