"""The tables in `results/` follow from the runs there: their text exactly, their numbers to the last digits."""

from __future__ import annotations

import io
from pathlib import Path

import pandas as pd
import pytest

from nextpolicy.report import write
from nextpolicy.report.comparable import load_all
from nextpolicy.report.tables import compare

RESULTS = Path(__file__).parents[2] / "results"
BESIDE = {"brax-gate": ("brax",), "minatar-tuning": ("minatar",)}  # suites without PPO: where their tables take it from
SUITES = sorted(tables.parent for tables in RESULTS.glob("*/tables"))


def test_there_are_results() -> None:
    assert RESULTS / "minatar" in SUITES


@pytest.mark.parametrize("suite", SUITES, ids=lambda path: path.name)
def test_tables_are_those_of_the_runs(suite: Path) -> None:
    runs = [suite, *(RESULTS / name for name in BESIDE.get(suite.name, ()))]
    made = write._tables(compare(load_all([str(path) for path in runs])))
    stored = {
        file.name: file.read_text() for file in (suite / "tables").iterdir() if file.suffix in (".csv", ".md", ".tex")
    }
    assert stored.keys() == made.keys()
    for name, text in stored.items():
        if name.endswith(".csv"):  # processors round logarithms differently
            ours, theirs = (pd.read_csv(io.StringIO(each)) for each in (text, made[name]))
            pd.testing.assert_frame_equal(ours, theirs, rtol=1e-9, atol=0)
        else:
            assert text == made[name], name


def test_results_are_small() -> None:
    assert sum(file.stat().st_size for file in RESULTS.rglob("*") if file.is_file()) < 20e6
