"""What the command writes, and which run folders are errors."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from nextpolicy.report import curves, files

from .synthetic import complaint, lively, report, write_run


def test_page_tables_and_figures(tmp_path, capsys):
    for i, env in enumerate(("brax/ant", "brax/reacher")):
        write_run(tmp_path / "runs" / env[5:], env, columns=lively(i, (50.0, -50.0)[i]), rounds=40)
    assert report(tmp_path / "runs", "--out", tmp_path / "report.html") == 0
    assert "page:" in capsys.readouterr().out
    page = (tmp_path / "report.html").read_text()
    assert "http" not in page.replace("http-equiv", "").replace("http://www.w3.org/2000/svg", "")
    names = {p.name for p in (tmp_path / "report-files").iterdir()}
    for stem in ("aggregate", "brax-sv-static", "brax-sv-dynamic"):
        assert {f"{stem}.md", f"{stem}.csv", f"{stem}.tex"} <= names
    for stem in ("bars", "learning-curves", "diff", "lifespan", "scatter"):
        assert {f"brax-{stem}.svg", f"brax-{stem}.png"} <= names
        assert (tmp_path / "report-files" / f"brax-{stem}.png").read_bytes().startswith(b"\x89PNG")
    assert len(pd.read_csv(tmp_path / "report-files" / "members.csv")) == 18
    assert not [n for n in names if n.endswith(".tmp")]


def test_value_loss_and_entropy_over_all_rounds_and_at_convergence(tmp_path):
    """The paper prints them at convergence: the last 10 % of steps, 2 of 20 rounds."""
    late = {"ppo": 1.0, "sv-static": 2.0, "sv-dynamic": 4.0}
    fall = lambda algo, seed, k: np.where(k >= 18, late[algo], 0.5)  # noqa: E731
    write_run(tmp_path / "runs", "brax/ant", columns={"value_loss": fall, "entropy": fall}, seeds=2)
    assert report(tmp_path / "runs", "--out", tmp_path / "r.html") == 0
    (row,) = pd.read_csv(tmp_path / "r-files" / "brax-sv-static.csv").to_dict("records")
    for name in ("value_loss", "entropy"):
        assert row[f"{name}_x_ppo"] == pytest.approx((18 * 0.5 + 2 * 2) / (18 * 0.5 + 2 * 1))
        assert row[f"{name}_late_x_ppo"] == 2.0
    assert (row["paper_value_loss_x_ppo"], row["value_loss_difference_from_paper"]) == (1.23, pytest.approx(0.77))
    assert (row["paper_ppo_entropy"], row["ppo_entropy_difference_from_paper"]) == (-0.07, pytest.approx(1.07))
    page = (tmp_path / "r.html").read_text()
    for heading in ("Value loss", "Entropy"):
        for which in ("all rounds", "last 10 %"):
            assert f'<button type="button">{heading}, {which}, × PPO</button>' in page


@pytest.fixture
def run(tmp_path) -> Path:
    return write_run(tmp_path / "run", "brax/ant", seeds=2)


def test_an_empty_folder(tmp_path, capsys):
    assert report(tmp_path, "--out", tmp_path / "r.html") == 2
    assert f"report: expected a run, got {tmp_path} (no config.json" in complaint(capsys)
    assert report(tmp_path / "nowhere", "--out", tmp_path / "r.html") == 2
    assert f"report: expected a folder, got {tmp_path / 'nowhere'}" in complaint(capsys)
    assert not (tmp_path / "r.html").exists()


def test_a_half_written_part(run, capsys):
    part = sorted((run / "metrics").iterdir())[1]
    part.write_bytes(part.read_bytes()[: part.stat().st_size // 2])
    assert report(run, "--out", run.parent / "r.html") == 2
    assert f"metrics of rounds 10 to 19 are damaged ({part.name} cannot be read); `nextpolicy resume" in complaint(
        capsys
    )


def test_a_part_that_is_not_there(run, capsys):
    sorted((run / "metrics").iterdir())[0].unlink()
    assert report(run, "--out", run.parent / "r.html") == 2
    assert "metrics of rounds 0 to 9 are missing" in complaint(capsys)


def test_a_part_still_being_written_is_not_read(run):
    (run / "metrics" / ".part-00000020-00000029.parquet.77.tmp").write_bytes(b"PAR1 half")
    assert report(run, "--out", run.parent / "r.html", "--page-only") == 0


def change_config(run: Path, **fields) -> None:
    config = json.loads((run / "config.json").read_text())
    (run / "config.json").write_text(json.dumps({**config, **fields}))


def test_a_run_of_another_version_has_an_unknown_field(run, capsys):
    change_config(run, learning_rte=1)
    assert report(run, "--out", run.parent / "r.html") == 2
    assert "written by nextpolicy 0.1.0, this is" in (said := complaint(capsys))
    assert "unknown field 'learning_rte'; did you mean" in said


def test_a_config_that_is_not_json(run, capsys):
    (run / "config.json").write_text('{"env": ')
    assert report(run, "--out", run.parent / "r.html") == 2
    assert "config.json cannot be read" in complaint(capsys)


def change_part(run: Path, change, which: int = 1) -> None:
    part = sorted((run / "metrics").iterdir())[which]
    change(pd.read_parquet(part)).to_parquet(part, index=False)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            lambda f: f.assign(round=f["round"] - 10),
            "part-00000010-00000019.parquet does not hold the rounds in its name",
        ),
        (lambda f: pd.concat([f, f.head(1)]), "metrics: expected each round once, got round 10 twice"),
        (lambda f: f.assign(seed=f["seed"] + 5), "expected the members of config.json, got member 0 as ppo, seed 5"),
        (lambda f: f.assign(variant="mine"), "expected the members of config.json, got member 0 as mine, seed 0"),
        (
            lambda f: f.assign(member=f["member"] + 99),
            "of config.json, got member 99 as ppo, seed 0",
        ),
        (lambda f: f.assign(entropy="high"), "metrics: expected numbers in entropy, got object"),
    ],
)
def test_metrics_that_cannot_be_of_this_run(run, capsys, change, words):
    change_part(run, change)
    assert report(run, "--out", run.parent / "r.html") == 2
    assert words in complaint(capsys)


def test_parts_that_overlap(run, capsys):
    _, second = sorted((run / "metrics").iterdir())
    pd.read_parquet(second).query("round >= 15").to_parquet(second.with_name("part-00000015-00000019.parquet"))
    assert report(run, "--out", run.parent / "r.html") == 2
    assert "part-00000015-00000019.parquet overlaps another part" in complaint(capsys)


@pytest.mark.parametrize("about", [[1], "x", {"versions": [1]}])
def test_facts_that_are_no_table(run, capsys, about):
    change_config(run, about=about)
    assert report(run, "--out", run.parent / "r.html") == 2
    assert "about: expected an object in config.json, got " in complaint(capsys)


@pytest.mark.parametrize(
    ("name", "content"), [("status.json", "[]"), ("status.json", "{"), ("evaluation.json", '{"a": 1}')]
)
def test_little_files_that_cannot_be_read(run, capsys, name, content):
    (run / name).write_text(content)
    assert report(run, "--out", run.parent / "r.html") == 2
    assert name in complaint(capsys)


@pytest.mark.parametrize(
    ("out", "words"),
    [
        ("r.pdf", "ends in .html"),
        ("no/where/r.html", "expected a file in an existing folder, got"),
        ("folder.html", "out: expected a file, got the folder"),
    ],
)
def test_a_wrong_out(run, capsys, out, words):
    (run.parent / "folder.html").mkdir()
    assert report(run, "--out", run.parent / out) == 2
    assert words in complaint(capsys)


def test_files_cannot_go_into_a_file(run, capsys):
    (run.parent / "taken").write_text("mine")
    for inside in ("taken", "taken/deep"):
        assert report(run, "--out", run.parent / "r.html", "--files", run.parent / inside) == 2
        assert "which is a file or inside one" in complaint(capsys)
    assert not (run.parent / "r.html").exists()


def test_what_cannot_be_written_is_said_and_leaves_nothing(tmp_path):
    (tmp_path / "folder").mkdir()
    with pytest.raises(OSError, match=r"folder cannot be written \(Is a directory\)"):
        files.write(tmp_path / "folder", "x")
    assert [p.name for p in tmp_path.iterdir()] == ["folder"]


def test_a_run_that_has_just_begun_is_shown(tmp_path):
    write_run(tmp_path / "a", "brax/ant", state="running")
    for part in (tmp_path / "a" / "metrics").iterdir():
        part.unlink()
    assert report(tmp_path, "--out", tmp_path / "r.html") == 0
    assert "No member has a score yet: only finished runs" in (tmp_path / "r.html").read_text()


def test_names_cannot_become_markup(tmp_path):
    folder = write_run(tmp_path / "a", "brax/ant", state="failed", reason="</script><b>&")
    change_config(folder, wandb="</script><img src=x>")
    assert report(tmp_path, "--out", tmp_path / "r.html", "--page-only", "--title", "<i>") == 0
    page = (tmp_path / "r.html").read_text()
    assert page.count("</script>") == 2
    assert "<img" not in page
    assert "<title>&lt;i&gt;</title>" in page


def test_thinning_keeps_ends_and_extremes():
    rng = np.random.default_rng(0)
    x = np.arange(5000)
    y = rng.normal(size=5000)
    y[1234], y[4321], y[7] = 99.0, -99.0, np.nan
    thin_x, thin_y = curves.thin(x, y, 200)
    assert len(thin_x) <= 200
    assert (thin_x[0], thin_x[-1]) == (0, 4999)
    assert np.all(np.diff(thin_x) > 0)
    assert thin_y[thin_x == 1234] == 99.0
    assert thin_y[thin_x == 4321] == -99.0
    np.testing.assert_array_equal(thin_y, y[thin_x])
    assert curves.thin(x, np.ones(5000), 200)[0].tolist() == [0, 4999]
    assert len(curves.thin(x, np.ones(5000), 200, line=False)[0]) == 101  # points that stand alone: one of each bucket
    assert len(curves.thin(x[:150], y[:150], 200)[0]) == 149  # all but the NaN
