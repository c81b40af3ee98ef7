"""Which runs can be compared, and the errors for those that cannot."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from nextpolicy.report.comparable import load_all
from nextpolicy.report.runs import ReportError
from nextpolicy.report.tables import compare

from .synthetic import complaint, report, write_run


@pytest.fixture
def run(tmp_path) -> Path:
    return write_run(tmp_path / "run", "brax/ant", seeds=2)


def test_different_settings_of_an_environment_are_refused_unless_asked_for(tmp_path, run, capsys):
    write_run(tmp_path / "other", "brax/ant", seeds=(2, 3), learning_rate=1e-3)
    assert report(tmp_path, "--out", tmp_path / "r.html") == 2
    said = complaint(capsys)
    assert "learning_rate: expected the same value in all runs on brax/ant, got 0.0003 in" in said
    assert f"and 0.001 in {tmp_path / 'other'}; --allow-mixed" in said
    assert report(tmp_path, "--out", tmp_path / "r.html", "--allow-mixed", "--page-only") == 0


def test_fields_of_one_environment_need_no_permission_and_are_said(tmp_path, capsys):
    """As `[environment."brax/hopper"]` in a suite gives them."""
    write_run(tmp_path / "a", "brax/ant", seeds=2, rounds=20)
    write_run(tmp_path / "b", "brax/hopper", seeds=2, rounds=30, gamma=0.9)
    assert report(tmp_path, "--out", tmp_path / "r.html", "--page-only") == 0
    steps = [run.settings["total_env_steps"] for run in load_all([tmp_path])]
    said = (
        "ettings that differ between environments: gamma (0.99 on brax/ant; 0.9 on brax/hopper), "
        f"total_env_steps ({steps[0]} on brax/ant; {steps[1]} on brax/hopper)"
    )
    assert said in capsys.readouterr().out
    page = (tmp_path / "r.html").read_text()
    assert said in page
    assert "Mixed settings" not in page
    write_run(tmp_path / "c", "brax/hopper", seeds=(2, 3), rounds=30)  # the environment under another setting
    assert report(tmp_path, "--out", tmp_path / "r.html", "--page-only") == 2
    assert "gamma: expected the same value in all runs on brax/hopper, got " in complaint(capsys)


def test_values_of_many_environments_are_counted(tmp_path):
    for i, env in enumerate(("ant", "hopper", "reacher", "pusher", "fast")):
        write_run(tmp_path / env, f"brax/{env}", seeds=1, algo=("ppo",), parts=1, gamma=0.9 if i == 4 else 0.99)
    (said,) = compare(load_all([tmp_path])).varied
    assert said == "gamma (0.99 on 4 environments; 0.9 on brax/fast)"


def test_different_suites_are_not_one_comparison_and_may_differ(tmp_path, run):
    write_run(tmp_path / "other", "gymnax/Breakout-MinAtar", seeds=2)
    assert report(tmp_path, "--out", tmp_path / "r.html", "--page-only") == 0


def test_the_same_seed_twice_is_refused_unless_asked_for(tmp_path, run, capsys):
    write_run(tmp_path / "again", "brax/ant", seeds=1)
    assert report(tmp_path, "--out", tmp_path / "r.html") == 2
    assert "seeds: expected each seed once, got ppo, seed 0 on brax/ant in" in complaint(capsys)
    assert report(tmp_path, "--out", tmp_path / "r.html", "--allow-mixed", "--page-only") == 0
    page = (tmp_path / "r.html").read_text()
    assert "ant (again)" in page
    assert "ant (run)" in page


def environments(*paths: Path, allow_mixed: bool = False) -> dict[str, int]:
    """Seeds of sv-static on each line of the table."""
    table = compare(load_all(paths, allow_mixed=allow_mixed)).environments["brax", "sv-static"]
    return dict(zip(table["env"], table["seeds"], strict=True))


def test_two_suites_of_the_same_folders_stand_on_lines_of_their_own(tmp_path):
    for suite in ("a", "b"):
        write_run(tmp_path / suite / "brax-ant", "brax/ant", seeds=2)
    apart = environments(tmp_path / "a", tmp_path / "b", allow_mixed=True)
    assert apart == {"brax/ant (a/brax-ant)": 2, "brax/ant (b/brax-ant)": 2}


def test_seeds_of_two_settings_are_not_one_sample_even_if_mixing_is_allowed(tmp_path, capsys):
    write_run(tmp_path / "a", "brax/ant", seeds=2)
    write_run(tmp_path / "b", "brax/ant", seeds=(2, 3, 4), gamma=0.9)
    assert environments(tmp_path, allow_mixed=True) == {"brax/ant (a)": 2, "brax/ant (b)": 3}
    assert report(tmp_path, "--out", tmp_path / "r.html", "--allow-mixed", "--page-only") == 0
    assert "mixed: runs differ in gamma" in capsys.readouterr().out
    assert "Mixed settings: these runs differ in gamma;" in (tmp_path / "r.html").read_text()


def test_variants_of_two_settings_are_compared_if_mixing_is_allowed(tmp_path):
    write_run(tmp_path / "a", "brax/ant", algo=("ppo",))
    write_run(tmp_path / "b", "brax/ant", algo=("sv-static",), gamma=0.9)
    table = compare(load_all([tmp_path], allow_mixed=True)).environments["brax", "sv-static"]
    assert table["score_pct_of_ppo"].tolist() == [100.0]


def test_the_same_run_given_twice_is_one_run(tmp_path, run, capsys):
    (tmp_path / "link").symlink_to(run)
    assert report(run, tmp_path, tmp_path / "link", "--out", tmp_path / "r.html", "--page-only") == 0
    assert "1 run)" in capsys.readouterr().out


def test_seeds_in_two_folders_are_one_environment(tmp_path):
    write_run(tmp_path / "a", "brax/ant", seeds=2)
    write_run(tmp_path / "b", "brax/ant", seeds=(2, 3, 4))
    assert environments(tmp_path) == {"brax/ant": 5}


@pytest.mark.parametrize(("field", "other"), [("init_from", "runs/x"), ("held_out", 0.25)])
def test_runs_of_earlier_versions_lack_a_setting_and_are_comparable(tmp_path, field, other):
    old, new = (
        write_run(tmp_path / name, "brax/ant", algo=(algo,)) for name, algo in (("a", "ppo"), ("b", "sv-static"))
    )
    raw = json.loads((old / "config.json").read_text())
    (old / "config.json").write_text(json.dumps({k: v for k, v in raw.items() if k != field}))
    assert len(load_all([old, new])) == 2
    raw = json.loads((new / "config.json").read_text())
    assert field in raw
    (new / "config.json").write_text(json.dumps({**raw, field: other}))
    with pytest.raises(ReportError, match=field):
        load_all([old, new])
