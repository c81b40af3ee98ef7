"""The tables in `results/` follow from the runs beside them, to the byte."""

from __future__ import annotations

from pathlib import Path

import pytest

from nextpolicy.report import write
from nextpolicy.report.comparable import load_all
from nextpolicy.report.tables import compare

RESULTS = Path(__file__).parents[2] / "results"
SUITES = sorted(tables.parent for tables in RESULTS.glob("*/tables"))


def test_there_are_results() -> None:
    assert RESULTS / "minatar" in SUITES


@pytest.mark.parametrize("suite", SUITES, ids=lambda path: path.name)
def test_tables_are_those_of_the_runs(suite: Path) -> None:
    made = write._tables(compare(load_all([str(suite)])))
    stored = {
        file.name: file.read_text() for file in (suite / "tables").iterdir() if file.suffix in (".csv", ".md", ".tex")
    }
    assert stored == made


def test_results_are_small() -> None:
    assert sum(file.stat().st_size for file in RESULTS.rglob("*") if file.is_file()) < 20e6
