"""The table of criteria on small tasks: from run folders to rows, and from rows to percentages and aggregates."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
from tests.report.synthetic import lively, write_run

import differences
import small_tasks

RESULTS = Path(__file__).parents[2] / "results" / "criteria-small"
ENVS = ("gymnax/CartPole-v1", "gymnax/Acrobot-v1")


@pytest.fixture
def members(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Rows of PPO and both forms of SV-PPO on two environments, and of another suite with dynamic SV-PPO alone."""
    for number, env in enumerate(ENVS):
        name = env.replace("/", "-")
        write_run(tmp_path / "criteria-small" / name, env, seeds=6, columns=lively(number))
        write_run(tmp_path / "other" / name, env, seeds=4, algo=("sv-dynamic",), columns=lively(number, base=200.0))
    path = tmp_path / "new" / "members.csv"
    folders = [str(tmp_path / name) for name in ("other", "criteria-small")]
    monkeypatch.setattr(sys, "argv", ["small_tasks.py", "collect", *folders, "--out", str(path)])
    small_tasks.main()
    return path


def test_rows_name_their_suite(members: Path) -> None:
    frame = pd.read_csv(members)
    assert list(frame) == small_tasks.COLUMNS
    assert frame.groupby("suite").size().to_dict() == {"criteria-small": 2 * 3 * 6, "other": 2 * 4}
    assert not frame.duplicated(["suite", "env", "variant", "seed"]).any()
    assert frame["score"].notna().all()


def test_scores_are_in_percent_of_the_papers_dynamic(members: Path) -> None:
    frame = pd.read_csv(members)
    _, _, *lines = small_tasks.table(frame).splitlines()
    rows = {cells[1]: cells for cells in (re.split(r" *\| *", line) for line in lines)}
    means = frame.groupby(["suite", "variant", "env"])["score"].mean()
    base = means["criteria-small", "sv-dynamic"]
    assert rows["sv-dynamic, criteria-small"][4:8] == [""] * 4
    assert rows["sv-dynamic, criteria-small"][3] == f"100 ({base['gymnax/CartPole-v1']:.4g})"
    for name, suite, variant in (
        ("ppo, criteria-small", "criteria-small", "ppo"),
        ("sv-dynamic, other", "other", "sv-dynamic"),
    ):
        for cell, env in zip(rows[name][2:4], sorted(ENVS), strict=True):
            estimate, low, high = (float(x) for x in re.findall(r"\d+", cell))
            assert estimate == pytest.approx(100 * means[suite, variant, env] / base[env], abs=0.51)
            assert low <= estimate <= high
    # The last two aggregates are of the area under the curve.
    areas = [
        [
            rows["area"].to_numpy()
            for _, rows in frame[(frame["suite"] == suite) & (frame["variant"] == name)].groupby("env")
        ]
        for suite, name in (("criteria-small", "sv-static"), small_tasks.BASELINE)
    ]
    expected = [f"{x:.3g} [{low:.3g}, {high:.3g}]" for x, low, high in differences.together(*areas)]
    assert rows["sv-static, criteria-small"][6:8] == expected
    assert rows["sv-static, criteria-small"][4:6] != expected
    # Twice the return: 100 points above the baseline, and always higher.
    estimate, low, high = (float(x) for x in re.findall(r"[\d.]+", rows["sv-dynamic, other"][4]))
    assert (low, estimate, high) == pytest.approx((100, 100, 100), abs=12)
    assert rows["sv-dynamic, other"][5] == "1 [1, 1]"
    assert rows["sv-static, criteria-small"][8] == "25 to 25"


def test_intervals_cover_the_truth_as_often_as_they_say() -> None:
    """Of 60 comparisons of equal groups, about one in twenty has an interval beside 0 or one half."""
    rng = np.random.default_rng(0)
    missed = np.zeros(2)
    for _ in range(60):
        first, second = ([rng.normal(10, 1, 12) for _ in range(4)] for _ in range(2))
        found = differences.together(first, second, reps=200)
        missed += [not x.low <= truth <= x.high for x, truth in zip(found, (0.0, 0.5), strict=True)]
    assert (missed <= 10).all()


def test_the_interval_of_a_percentage_is_that_of_both_means() -> None:
    """By the delta method: standard errors of 2.5 % each."""
    rng = np.random.default_rng(2)
    mine, base = (rng.permutation(np.tile([mean * 0.9, mean * 1.1], 8)) for mean in (12.0, 10.0))
    estimate, low, high = (float(x) for x in re.findall(r"[\d.]+", small_tasks._cell(mine, base)))
    assert estimate == 120
    assert high - low == pytest.approx(2 * 1.96 * 120 * np.hypot(0.025, 0.025), rel=0.12)


def test_what_cannot_be_compared_is_refused(members: Path, tmp_path: Path) -> None:
    frame = pd.read_csv(members)
    with pytest.raises(
        ValueError, match="expected sv-dynamic of other on gymnax/Acrobot-v1, gymnax/CartPole-v1, got gym"
    ):
        small_tasks.table(frame[(frame["suite"] != "other") | (frame["env"] == ENVS[0])])
    with pytest.raises(ValueError, match="expected each suite once"):
        small_tasks.collect([tmp_path / "other", tmp_path / "other"])
    write_run(tmp_path / "other" / "stopped", "gymnax/Pendulum-v1", state="stopped", algo=("sv-dynamic",))
    with pytest.raises(ValueError, match=r"expected finished runs with scores, got .*stopped \(stopped\)"):
        small_tasks.collect([tmp_path / "other"])
    with pytest.raises(ValueError, match="environment without runs"):
        differences.together([np.ones(2), np.ones(0)], [np.ones(2), np.ones(2)])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["table", "{}/no.csv"], "No such file"),
        (["table", "{}/other.csv"], "members: expected rows of `collect` with sv-dynamic of criteria-small, got"),
        (["collect", "{}", "--out", "{}/new.csv"], "expected a run, got"),
    ],
)
def test_complaints_are_one_line(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    arguments: list[str],
    message: str,
) -> None:
    (tmp_path / "other.csv").write_text("env,variant\na,b\n")
    monkeypatch.setattr(sys, "argv", ["small_tasks.py", *(word.format(tmp_path) for word in arguments)])
    with pytest.raises(SystemExit):
        small_tasks.main()
    assert message in capsys.readouterr().err.splitlines()[-1]
    assert not (tmp_path / "new.csv").exists()


def test_the_committed_table_follows_from_its_rows(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["small_tasks.py", "table", str(RESULTS / "members.csv")])
    small_tasks.main()
    assert capsys.readouterr().out == (RESULTS / "table.md").read_text()
