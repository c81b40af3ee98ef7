"""One record in the table of columns is enough for every output, and runs may lack metrics or have more of them."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from nextpolicy import scores
from nextpolicy.report import columns, layout, text
from nextpolicy.report.comparable import load_all
from nextpolicy.report.members import member_table
from nextpolicy.report.statistic import MULTIPLE, OWN, Statistic, mean

from .synthetic import report, write_run
from .test_page import section, text_of

DASH = "–"
GRAD_NORM = Statistic("grad_norm", "Gradient norm", "mean norm of <all> gradients", mean("grad_norm"), (MULTIPLE, OWN))
NORMS = {"ppo": 2.0, "sv-static": 3.0, "sv-dynamic": 5.0}


def change_metrics(run: Path, change) -> None:
    for part in (run / "metrics").iterdir():
        change(pd.read_parquet(part)).to_parquet(part, index=False)


def drop(run: Path, *names: str) -> None:
    change_metrics(run, lambda frame: frame.drop(columns=list(names)))


def cells(markdown: str, heading: str) -> dict[str, str]:
    """First cell -> cell below the heading."""
    head, _, *rows = ([c.strip() for c in line.strip("|").split(" | ")] for line in markdown.splitlines())
    return {row[0]: row[head.index(heading)] for row in rows}


@pytest.fixture(scope="module")
def norms(tmp_path_factory) -> Path:
    """A report with one more record than usual, on two runs of which one lacks its metric."""
    root = tmp_path_factory.mktemp("norms")
    recorded = {"grad_norm": lambda algo, seed, k: np.full(len(k), NORMS[algo])}
    write_run(root / "runs" / "new", "brax/ant", seeds=2, columns=recorded)
    write_run(root / "runs" / "old", "brax/hopper", seeds=2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(columns, "STATISTICS", (*columns.STATISTICS, GRAD_NORM))
        assert report(root / "runs", "--out", root / "r.html") == 0
    return root


def test_a_record_appears_in_every_table_file(norms):
    folder = norms / "r-files"
    members = pd.read_csv(folder / "members.csv").set_index(["env", "variant"])["grad_norm"]
    assert members["brax/ant", "sv-static"].tolist() == [3.0, 3.0]
    assert members["brax/hopper"].isna().all()
    scores = pd.read_csv(folder / "scores.csv").set_index(["env", "variant"])
    assert (
        scores.loc[("brax/ant", "sv-dynamic"), ["grad_norm", "grad_norm_low", "grad_norm_high"]].tolist() == [5.0] * 3
    )
    static = pd.read_csv(folder / "brax-sv-static.csv").set_index("env")
    assert static.loc["brax/ant", ["grad_norm_x_ppo", "grad_norm_x_ppo_low", "grad_norm"]].tolist() == [1.5, 1.5, 3.0]
    for stem in ("scores", "brax-sv-static", "brax-sv-dynamic"):
        assert "Gradient norm" in (folder / f"{stem}.md").read_text()
        assert "Gradient norm" in (folder / f"{stem}.tex").read_text()


def test_a_record_appears_on_the_page(norms):
    page = (norms / "r.html").read_text()
    for name, heading in (("scores", "Gradient norm"), ("environments", "Gradient norm, × PPO")):
        assert f'<button type="button">{heading}</button>' in section(page, name)
        assert 'title="mean norm of &lt;all&gt; gradients' in section(page, name)


def test_a_record_explains_itself(norms):
    page, legend = (norms / "r.html").read_text(), (norms / "r-files" / "columns.md").read_text()
    assert "<dt>Gradient norm</dt><dd>mean norm of &lt;all&gt; gradients</dd>" in section(page, "scores")
    assert "- **Gradient norm**: mean norm of &lt;all> gradients\n" in legend
    assert re.findall("^## .*", legend, re.M) == [
        "## Each environment, against PPO",
        "## Returns",
        "## All environments",
    ]
    assert legend.count("- **Gradient norm, × PPO**") == 1, "two variants, one explanation"
    assert "- **Gradient norm, × PPO**: mean norm of &lt;all> gradients, in multiples of PPO's\n" in legend


def test_a_run_without_the_metric_has_a_dash(norms):
    shown = cells((norms / "r-files" / "brax-sv-static.md").read_text(), "Gradient norm, × PPO")
    assert shown == {"brax/ant": "1.50 [1.50, 1.50]", "brax/hopper": DASH}
    table = section((norms / "r.html").read_text(), "scores")
    rows = [text_of(row) for row in re.findall(r"<tr class.*?</tr>", table) if "hopper" in row]
    assert len(rows) == 3
    assert all(row.endswith(DASH) for row in rows), "the last column"


def test_every_column_is_explained():
    shown = [column for each in columns.STATISTICS for column in (each.column(), *each.view_columns())]
    assert set(layout.explanations(shown)) == {column.heading for column in shown}
    assert len({column.name for column in shown}) >= len({column.heading for column in shown})


READ = sorted({*columns.metrics_read(), "rounds_held"} - {"temperature", "q"})  # those are SAC's


@pytest.mark.parametrize("metric", READ)
def test_a_run_may_lack_any_metric(tmp_path, metric):
    drop(write_run(tmp_path / "runs" / "old", "brax/ant", seeds=2), metric)
    write_run(tmp_path / "runs" / "new", "brax/hopper", seeds=2)
    assert report(tmp_path / "runs", "--out", tmp_path / "r.html", "--page-only") == 0
    members = member_table(load_all([tmp_path / "runs"]))
    old, new = (members[members["env"] == env] for env in ("brax/ant", "brax/hopper"))
    for each in columns.present(members):
        if each.name not in ("target_score", "steps_to_goal") and not each.name.startswith("diff"):
            assert old[each.name].isna().all() == (metric in each.measure.reads), each.name
            assert new[each.name].notna().all()


def test_a_run_may_lack_all_metrics(tmp_path):
    """Page, tables and figures; the note says why there is no score."""
    drop(write_run(tmp_path / "runs" / "old", "brax/ant", seeds=2), *READ)
    assert report(tmp_path / "runs", "--out", tmp_path / "r.html") == 0
    why = "all 2 seeds no score: its metrics have no episode_return and no episodes"
    assert set(pd.read_csv(tmp_path / "r-files" / "scores.csv")["note"]) == {why}


def test_metrics_that_no_column_knows_change_nothing(tmp_path):
    run = write_run(tmp_path / "runs" / "a", "brax/ant", seeds=2)
    assert report(run, "--out", tmp_path / "without.html", "--page-only") == 0
    change_metrics(run, lambda f: f.assign(phase="warm-up", pair=[[1, 2]] * len(f), alpha=np.nan, replay=7))
    assert report(run, "--out", tmp_path / "with.html", "--page-only") == 0
    assert (tmp_path / "with.html").read_bytes() == (tmp_path / "without.html").read_bytes()


@pytest.mark.parametrize("key", ["round", "member", "seed", "variant", "env_steps"])
def test_metrics_must_say_whose_they_are(tmp_path, capsys, key):
    drop(write_run(tmp_path / "a", "brax/ant", seeds=1), key)
    assert report(tmp_path / "a", "--out", tmp_path / "r.html") == 2
    (said,) = capsys.readouterr().err.strip().splitlines()
    assert str(tmp_path / "a") in said


def test_the_score_of_a_member_by_hand():
    frame = pd.DataFrame(
        {"env_steps": range(10, 210, 10), "episode_return": [9.0] * 18 + [4.0, np.nan], "episodes": [1] * 18 + [3, 0]}
    )
    late = scores.late_rows(frame, 200)
    assert late["env_steps"].tolist() == [190, 200]
    assert scores.member_score(late) == 4.0
    assert scores.member_score(late.assign(episode_return=[4.0, 8.0], episodes=[3, 1])) == 5.0
    assert np.isnan(scores.member_score(late.assign(episodes=0)))
    assert np.isnan(scores.member_score(late.assign(episode_return=np.nan, episodes=1)))
    assert scores.member_score(late.assign(episode_return=np.float32(0.1), episodes=1)) == 0.1  # not 0.100000001


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (1234.5, "1234"),
        (12.345, "12.3"),
        (0.012345, "0.0123"),
        (-0.5, "-0.500"),
        (0, "0"),
        (np.nan, "–"),
        (1.5e9, "1.50e+09"),
        (0.9997, "1.00"),
        (-999.7, "-1000"),
        (12345.6, "12346"),
        (0.00001, "1.00e-05"),
        (np.inf, "–"),
        (None, "–"),
    ],
)
def test_numbers_as_shown(value, shown):
    assert text.number(value) == shown
