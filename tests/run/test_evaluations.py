"""evaluations.csv and the best policies: what was changed, removed or put in another's place is noticed."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import nextpolicy
from nextpolicy.run import arrays, evaluations
from nextpolicy.run.folder import RunError

from .helpers import FOUR_ROOMS

pytestmark = [pytest.mark.allow_rank_promotion, pytest.mark.allow_key_reuse, pytest.mark.quick_compilation]
ROWS = pd.DataFrame({"env_steps": [32, 32, 64, 64, 96], "member": [0, 1, 0, 1, 0], "mean": [1.0, 9.0, 3.0, 2.0, 3.0]})


@pytest.fixture
def file(tmp_path: Path) -> Path:
    evaluations.write(tmp_path / "evaluations.csv", ROWS)
    return tmp_path / "evaluations.csv"


def test_rows_come_back(file: Path) -> None:
    pd.testing.assert_frame_equal(evaluations.read(file).drop(columns="check"), ROWS)
    evaluations.write(file, evaluations.read(file))  # the checksums are made anew, not of themselves
    pd.testing.assert_frame_equal(evaluations.read(file).drop(columns="check"), ROWS)


def test_the_first_of_the_highest_returns_is_the_best(file: Path) -> None:
    assert evaluations.steps_of_best(file.parent, 0) == 64
    assert evaluations.steps_of_best(file.parent, 1) == 32
    with pytest.raises(RunError, match=r"has no return of member 2; train with --evaluate-every$"):
        evaluations.steps_of_best(file.parent, 2)


@pytest.mark.parametrize("row", [1, 2, 3, 4])
def test_a_row_that_is_gone_is_missed(file: Path, row: int) -> None:
    lines = file.read_text().splitlines(keepends=True)
    file.write_text("".join(lines[:row] + lines[row + 1 :]))
    with pytest.raises(RunError, match=r"a row was changed or removed\); move it away to start a new one$"):
        evaluations.read(file)


def test_rows_in_another_order_are_noticed(file: Path) -> None:
    head, first, second, *rest = file.read_text().splitlines(keepends=True)
    file.write_text("".join([head, second, first, *rest]))
    with pytest.raises(RunError, match="a row was changed or removed"):
        evaluations.read(file)


@pytest.fixture(scope="module")
def evaluated(tmp_path_factory: pytest.TempPathFactory) -> nextpolicy.Run:
    out = tmp_path_factory.mktemp("runs") / "run"
    fields = {**FOUR_ROOMS, "total_env_steps": 64, "algo": ("ppo", "sv-dynamic")}
    return nextpolicy.train(**fields, out=out, callback=nextpolicy.EvaluateEvery(32, episodes=2))


def test_a_best_policy_in_anothers_place_is_noticed(evaluated: nextpolicy.Run, tmp_path: Path) -> None:
    path = shutil.copytree(evaluated.path, tmp_path / "run")
    nextpolicy.load(path).snapshot("best", 0)
    shutil.copyfile(path / "best" / "member-00001.npz", path / "best" / "member-00000.npz")
    with pytest.raises(RunError, match=r"npz is of member 1, not 0; resume the run, or put the right file back$"):
        nextpolicy.load(path).snapshot("best", 0)


def test_an_older_best_policy_is_noticed(evaluated: nextpolicy.Run, tmp_path: Path) -> None:
    path = shutil.copytree(evaluated.path, tmp_path / "run")
    snapshot = evaluated.snapshot("best", 0)
    arrays.save(path / "best" / "member-00000.npz", snapshot, member=0, env_steps=7)
    with pytest.raises(RunError, match=r"npz is of env_steps 7, not \d+; resume"):
        nextpolicy.load(path).snapshot("best", 0)


def test_a_file_of_a_version_without_a_description_is_read(tmp_path: Path) -> None:
    tree = [np.arange(3.0, dtype=np.float32)]
    np.savez(tmp_path / "x.npz", **{"0": tree[0]})
    np.testing.assert_array_equal(arrays.load(tmp_path / "x.npz", tree, member=1)[0], tree[0])


def test_a_return_that_is_no_number_is_never_the_best(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    callback = nextpolicy.EvaluateEvery(32, episodes=2)
    row, means = callback._row, iter([1.0, float("nan"), 0.5])
    monkeypatch.setattr(callback, "_row", lambda *given: {**row(*given), "mean": next(means)})
    run = nextpolicy.train(**{**FOUR_ROOMS, "total_env_steps": 96}, out=tmp_path / "run", callback=callback)
    assert evaluations.steps_of_best(run.path, 0) == 32
    run.snapshot("best", 0)
