"""Small copies of runs: the same report, far fewer bytes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import nextpolicy
from nextpolicy.report import compact, runs
from nextpolicy.report.tables import compare
from nextpolicy.run.folder import RunError

from .synthetic import lively, report, write_run


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Two runs and their copies; a seed of the second has no score."""
    root = tmp_path_factory.mktemp("compact")
    write_run(root / "runs" / "ant", "brax/ant", rounds=400, columns=lively(0))
    (root / "runs" / "ant" / "evaluation.json").write_text(json.dumps([{"member": 0, "mean": 12.5}]))
    (root / "runs" / "ant" / "checkpoints").mkdir()
    (root / "runs" / "ant" / "checkpoints" / "large").write_bytes(bytes(100_000))
    ended = {"episodes": lambda algo, seed, k: np.where((seed == 1) & (algo == "ppo"), 0, 2) * np.ones(len(k), int)}
    write_run(root / "runs" / "hopper", "brax/hopper", rounds=30, columns=ended)
    assert report(root / "runs", "--compact", root / "copies") == 0
    return root


def tables(path: Path, out: Path) -> dict[str, bytes]:
    assert report(path, "--out", out / "page.html") == 0
    return {p.name: p.read_bytes() for p in (out / "page-files").iterdir() if p.suffix in (".csv", ".md", ".tex")}


def test_all_tables_are_the_same_to_the_byte(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    whole, small = tables(folder / "runs", tmp_path / "a"), tables(folder / "copies", tmp_path / "b")
    assert len(whole) > 8
    # Only the reason why a member has no score needs its metrics.
    for name, content in whole.items():
        reason = b"no episode ended in the last 10 % of its steps"
        assert content.replace(rb"10 \% of its", b"10 % of its").replace(reason, b"its run had none") == small[name], (
            name
        )
    assert any(b"its run had none" in content for content in small.values())


def test_what_is_drawn_is_the_same_within_13_bits(folder: Path) -> None:
    whole, small = (runs.load(folder / kind / "ant").frame for kind in ("runs", "copies"))
    for name in runs.DRAWN:
        np.testing.assert_allclose(small[name], whole[name], rtol=2.0**-13)
    assert not np.array_equal(small["episode_return"], whole["episode_return"])
    assert "value_loss" not in small
    pd.testing.assert_frame_equal(small[list(runs.KEYS)], whole[list(runs.KEYS)])


def test_a_copy_of_a_copy_is_a_copy(folder: Path, tmp_path: Path) -> None:
    assert report(folder / "copies", "--compact", tmp_path / "again") == 0
    first, again = (compare([runs.load(path / "ant")]) for path in (folder / "copies", tmp_path / "again"))
    pd.testing.assert_frame_equal(first.members, again.members)


def test_checkpoints_stay_behind(folder: Path) -> None:
    size = {k: sum(p.stat().st_size for p in (folder / k).rglob("*") if p.is_file()) for k in ("runs", "copies")}
    assert size["copies"] < 0.2 * size["runs"]
    assert not list((folder / "copies").rglob("checkpoints"))


def test_rounding_keeps_what_is_not_finite() -> None:
    special = np.array([0.0, -0.0, np.nan, np.inf, -np.inf, 1.0, -3.5, np.finfo(np.float32).max], np.float32)
    np.testing.assert_array_equal(compact.rounded(special), special)
    values = np.random.default_rng(0).normal(size=1000).astype(np.float32) * np.float32(1e-3)
    np.testing.assert_allclose(compact.rounded(values), values, rtol=2.0**-13)
    assert len(np.unique(compact.rounded(np.linspace(1, 2, 99_999, dtype=np.float32)))) == 2**12 + 1


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda text: text.replace("\n2,", "\n7,"), "expected a row for each of 9 members"),
        (lambda text: text.replace("member", "who"), "statistics.csv cannot be read ('member')"),
        (lambda text: text.replace("100.0", "many"), "statistics.csv cannot be read (could not convert"),
        (lambda text: "", "statistics.csv cannot be read (No columns"),
    ],
)
def test_statistics_that_are_none(folder: Path, tmp_path: Path, capsys, change, expected: str) -> None:
    report(folder / "runs" / "ant", "--compact", tmp_path)
    file = tmp_path / "ant" / "statistics.csv"
    file.write_text(change(file.read_text()))
    assert report(tmp_path, "--out", tmp_path / "page.html") == 2
    assert "statistics.csv has changed since it was copied; copy the run again" in capsys.readouterr().err
    (tmp_path / "ant" / "copied.json").unlink()  # as an earlier version wrote it
    assert report(tmp_path, "--out", tmp_path / "page.html") == 2
    said = capsys.readouterr().err.strip()
    assert len(said.splitlines()) == 1
    assert expected in said


def test_nothing_is_overwritten_and_only_finished_runs_are_copied(folder: Path, tmp_path: Path, capsys) -> None:
    assert report(folder / "runs", "--compact", folder / "copies") == 2
    assert "exists; move it, or choose another folder" in capsys.readouterr().err
    write_run(tmp_path / "half", "brax/ant", state="stopped")
    assert report(tmp_path / "half", "--compact", tmp_path / "out") == 2
    assert "compact: expected finished runs, got" in capsys.readouterr().err
    for name in ("a/ant", "b/ant"):
        write_run(tmp_path / name, "brax/ant", seeds=1)
    assert report(tmp_path / "a", tmp_path / "b", "--compact", tmp_path / "out") == 2
    assert "distinct names, got ant twice" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
    (tmp_path / "file").write_text("mine")
    assert report(tmp_path / "a", "--compact", tmp_path / "file") == 2
    assert "compact: expected a folder, got" in capsys.readouterr().err
    for words, said in ((["--watch"], "expected no other options, got --watch"), ([], "got an empty name")):
        assert report(tmp_path / "a", "--compact", "" if not words else "x", *words) == 2
        assert said in capsys.readouterr().err


def test_an_evaluation_is_copied_and_a_copy_is_no_run(folder: Path) -> None:
    copy = folder / "copies" / "ant"
    assert runs.load(copy).evaluation == {0: 12.5}
    loaded = nextpolicy.load(copy)
    for use in (loaded.scores, loaded.policy, lambda: nextpolicy.resume(copy, quiet=True)):
        with pytest.raises(RunError, match="is a small copy for reports; use the run that it was made of"):
            use()
    assert runs.load(copy).state == "finished"


def test_what_an_interrupted_copy_left_is_not_read(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder / "copies" / "ant", tmp_path / "all" / "ant")
    shutil.copytree(folder / "copies" / "ant", tmp_path / "all" / ".hopper.part")
    assert [path.name for path in runs.find([tmp_path / "all"])] == ["ant"]


def test_what_a_killed_copy_left_is_replaced_and_a_folder_of_somebody_else_is_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_run(tmp_path / "ant", "brax/ant", seeds=1)
    part, place = tmp_path / "copies" / ".ant.part", tmp_path / "copies" / "ant"
    for name in ("notes.txt", "metrics/mine.csv"):
        own = part / name
        own.parent.mkdir(parents=True, exist_ok=True)
        own.write_text("mine")
        assert report(tmp_path / "ant", "--compact", tmp_path / "copies") == 2
        said = capsys.readouterr().err
        assert said == f"nextpolicy: compact: expected to write {part}, got a folder of something else; move it\n"
        assert own.read_text() == "mine"
        own.unlink()
    part.rename(tmp_path / "aside")
    part.symlink_to(tmp_path / "nowhere")
    assert report(tmp_path / "ant", "--compact", tmp_path / "copies") == 2
    assert "got a folder of something else" in capsys.readouterr().err
    part.unlink()
    (tmp_path / "aside").rename(part)
    (part / "config.json").write_text("{")
    (part / ".copied.json.7.tmp").write_text("{")
    (part / "metrics" / "part-00000000-00000001.parquet").write_text("half")
    assert report(tmp_path / "ant", "--compact", tmp_path / "copies") == 0
    assert [path.name for path in (tmp_path / "copies").iterdir()] == ["ant"]
    assert runs.load(place).state == "finished"
