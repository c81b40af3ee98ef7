"""Every variant is compared with the plain one of its own algorithm: SAC, a user's algorithm, and several at once."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import nextpolicy
from nextpolicy import algos
from nextpolicy.algos.ppo import PPO
from nextpolicy.cli import main as cli
from nextpolicy.report import baseline, columns, curves, figures, html, layout, palette, summary, write
from nextpolicy.report.comparable import load_all
from nextpolicy.report.runs import ReportError
from nextpolicy.report.tables import compare

from .synthetic import complaint, report, write_run
from .test_page import section, text_of

SAC = ("sac", "sv-sac-static", "sv-sac")
SUITE = """
environments = ["probe/action-continuous"]
algo = ["sac", "sv-sac"]
seeds = 2
evaluate_episodes = 0
[fields]
total_env_steps = 320
num_envs = 4
rollout_length = 8
warmup_steps = 8
minibatch_size = 8
replay_size = 256
hidden = [8]
"""


def scores(**of: float) -> dict:
    """Columns whose returns are these after the first round, by algorithm."""
    return {"episode_return": lambda algo, seed, k: np.where(k == 0, 0.0, of[algo.replace("-", "_")] + seed)}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A suite of SAC, trained and reported by the command line."""
    root = tmp_path_factory.mktemp("sac")
    (root / "tiny.toml").write_text(SUITE)
    assert cli.main(["suite", "run", str(root / "tiny.toml"), "--out", str(root / "runs")]) == 0
    assert report(root / "runs", "--out", root / "r.html") == 0
    return root


def test_a_suite_of_sac_is_reported_against_sac(trained: Path) -> None:
    page, folder = (trained / "r.html").read_text(), trained / "r-files"
    assert "<h1>Stable-Value SAC against SAC</h1>" in page
    assert "PPO" not in page
    assert '<button type="button">Score, % of SAC</button>' in section(page, "environments")
    assert "Score against SAC" in section(page, "bars")
    for file in folder.glob("*.*"):
        if file.suffix in (".csv", ".md", ".tex", ".svg"):
            assert not re.search("ppo", file.read_text(), re.IGNORECASE), file.name
    table = pd.read_csv(folder / "default-sv-sac.csv")
    assert {"score_pct_of_sac", "kl_target_x_sac", "sac_seeds", "sac_entropy"} <= set(table)
    assert not [name for name in table if "paper" in name]
    metrics = nextpolicy.load(trained / "runs" / "probe-action-continuous").metrics
    last = metrics[metrics["round"] == 9].groupby("variant")[["q", "temperature"]].mean()  # 10 % of the rounds
    assert table["q"].iloc[0] == pytest.approx(last.loc["sv-sac", "q"])
    ratio = last.loc["sv-sac", "temperature"] / last.loc["sac", "temperature"]
    assert table["temperature_x_sac"].iloc[0] == pytest.approx(ratio)
    assert np.isfinite(table["score_pct_of_sac"]).all()
    assert np.isfinite(pd.read_csv(folder / "aggregate.csv")["median_pct_sac"]).all()
    names = {file.name for file in folder.iterdir()}
    stems = ("bars", "scatter", "determinism", "learning-curves", "diff", "lifespan")
    assert {f"default-{stem}.png" for stem in stems} <= names


def test_any_metric_of_sac_can_be_drawn_in_its_colours(trained: Path) -> None:
    run = nextpolicy.load(trained / "runs" / "probe-action-continuous")
    for metric in ("temperature", "q", "episode_return"):
        drawn = {line.get_label(): line.get_color() for line in run.plot(metric).axes[0].lines}
        assert drawn == {"sac": palette.COLOURS[0], "sv-sac": palette.COLOURS[2]}


def test_a_copy_of_a_run_of_sac_has_the_same_tables(trained: Path, tmp_path: Path) -> None:
    assert report(trained / "runs", "--compact", tmp_path / "small") == 0
    for name, content in write._tables(compare(load_all([tmp_path / "small"]))).items():
        assert (trained / "r-files" / name).read_text() == content, name


@pytest.mark.parametrize("variants", [("ppo", "sv-static", "sv-dynamic"), SAC, ("pqn", "sv-pqn-static", "sv-pqn")])
def test_plain_is_grey_static_orange_and_dynamic_blue(variants: tuple[str, ...]) -> None:
    assert [palette.slot(v, variants) for v in variants] == [0, 1, 2]
    assert [palette.slot(v, [v]) for v in variants] == [0, 1, 2]
    assert [columns.has_threshold(v) for v in variants] == [False, False, True]
    assert baseline.label(variants) == variants[0].upper()


def test_a_second_algorithm_has_the_colours_of_the_first_in_dashes() -> None:
    both = ("sv-sac", "sac", "ppo", "sv-dynamic")
    places = {v: palette.slot(v, both) for v in both}
    assert places == {"ppo": 0, "sv-dynamic": 2, "sac": 8, "sv-sac": 10}
    assert {v: palette.is_second(place) for v, place in places.items()} == {v: "sac" in v for v in both}


@pytest.fixture
def both(tmp_path: Path) -> Path:
    """PPO and SAC on one environment, with different numbers of steps per round."""
    own = scores(ppo=99.0, sv_static=109.0, sv_dynamic=119.0)
    write_run(tmp_path / "runs" / "ppo", "brax/ant", columns=own, num_envs=8, rollout_length=16, minibatch_size=64)
    own = scores(sac=199.0, sv_sac_static=189.0, sv_sac=194.0)
    write_run(tmp_path / "runs" / "sac", "brax/ant", columns=own, algo=SAC, num_envs=4, rollout_length=4, rounds=40)
    return tmp_path


def test_each_algorithm_is_compared_with_its_own_baseline(both: Path) -> None:
    compared = compare(load_all([both / "runs"]))
    percent = {v: t["score_pct_of_ppo"].iloc[0] for (_, v), t in compared.environments.items()}
    assert percent == pytest.approx({"sv-static": 110, "sv-dynamic": 120, "sv-sac-static": 95, "sv-sac": 97.5})
    goals = {v: t["steps_to_goal_x_ppo"].iloc[0] for (_, v), t in compared.environments.items()}
    assert goals == dict.fromkeys(percent, 1.0), "each reaches its own baseline's goal in the second round"
    assert compared.mixed == []
    assert compared.varied == []
    assert summary.title(compared.members) == "Stable-Value PPO and SAC against PPO and SAC"
    assert re.search(r"sv-dynamic has a median of 120\.0 \[.*?\] % of PPO's score", summary.sentences(compared)[1])
    of_paper = {v: any("paper" in name for name in table) for (_, v), table in compared.environments.items()}
    assert of_paper == {"sv-static": True, "sv-dynamic": True, "sv-sac-static": False, "sv-sac": False}


def test_the_page_of_two_algorithms(both: Path) -> None:
    compared = compare(load_all([both / "runs"]))
    page, files = html.page(compared), write._tables(compared)
    assert '<button type="button">Median, % of the baseline</button>' in section(page, "aggregate")
    assert "The baseline is the plain variant of the same algorithm: PPO or SAC." in section(page, "aggregate")
    assert re.findall("<h3>(in .*?)</h3>", section(page, "bars")) == ["in percent of PPO", "in percent of SAC"]
    for heading in ("Score, % of PPO", "Score, % of SAC"):
        assert f'<button type="button">{heading}</button>' in section(page, "environments")
    tiles = text_of(page.partition('<div class="tiles">')[2].partition('<div class="summary">')[0])
    assert "sv-sac 97.5 % of SAC's score" in tiles
    assert "sv-dynamic 120.0 % of PPO's score" in tiles
    assert {"median_pct_baseline", "kl_target_x_baseline"} <= set(files["aggregate.csv"].partition("\n")[0].split(","))
    assert re.findall("^## Each.*", files["columns.md"], re.M) == [
        f"## Each environment, against {b}" for b in ("PPO", "SAC")
    ]
    assert "SAC ahead by 2.5 points" in text_of(section(page, "bars")).partition("in percent of SAC")[2]


def test_figures_of_two_algorithms_are_apart_where_they_have_percentages(both: Path) -> None:
    compared = compare(load_all([both / "runs"]))
    drawn = figures.all_figures(compared.runs, compared.members, compared.environments)
    assert [name for name in drawn if "bars" in name] == ["brax-ppo-bars", "brax-sac-bars"]
    for base, variants in (("PPO", {"sv-static", "sv-dynamic"}), ("SAC", {"sv-sac-static", "sv-sac"})):
        (axes,) = drawn[f"brax-{base.lower()}-scatter"].axes
        assert set(axes.get_legend_handles_labels()[1]) == {*variants, base}
        assert axes.get_ylabel() == f"score, percentage points above {base}"
    lives = drawn["brax-lifespan"].axes[1].lines
    assert len({(line.get_color(), line.get_linestyle(), str(line._dash_pattern)) for line in lives}) == 4


def test_curves_of_two_algorithms_are_at_their_own_steps(both: Path) -> None:
    runs = load_all([both / "runs"])
    variants = [m.variant for run in runs for m in run.members]
    drawn = {variants[curve["v"]]: curve["p"] for curve in curves.series(runs, variants, "return")}
    assert drawn == {**dict.fromkeys(("ppo", "sv-static", "sv-dynamic"), 128), **dict.fromkeys(SAC, 16)}
    ends = {line.get_label(): line.get_xdata()[-1] for line in figures.learning_curves(runs, variants).axes[0].lines}
    assert ends == {**dict.fromkeys(("ppo", "sv-static", "sv-dynamic"), 20 * 128), **dict.fromkeys(SAC, 40 * 16)}


def test_settings_of_one_algorithm_must_still_agree(both: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_run(both / "runs" / "more", "brax/ant", algo=("sv-sac",), seeds=(7,), tau=0.5, num_envs=4, rollout_length=4)
    with pytest.raises(ReportError, match="tau: expected the same value in all runs on brax/ant"):
        load_all([both / "runs"])
    assert report(both / "runs", "--out", both / "r.html") == 2
    assert "--allow-mixed" in complaint(capsys)


def test_a_missing_baseline_is_named(tmp_path: Path) -> None:
    write_run(tmp_path / "a", "brax/ant", algo=("sv-sac",))
    write_run(tmp_path / "b", "brax/hopper", algo=("ppo", "sv-dynamic"), state="running")
    said = " ".join(summary.sentences(compare(load_all([tmp_path]))))
    assert said.count("There is no SAC run to compare with.") == 1
    write_run(tmp_path / "c", "brax/walker2d", algo=("sac", "sv-sac"))
    table = compare(load_all([tmp_path])).environments["brax", "sv-sac"].set_index("env")
    seeds = layout.environment_columns(table.reset_index())[1]
    assert [seeds.cell(row).shown for row in table.to_dict("records")] == ["3; SAC 0", "3"]
    assert table["note"].to_dict() == {"brax/ant": "no SAC run to compare with", "brax/walker2d": ""}


@pytest.fixture
def mine() -> Iterator[None]:
    """A user's algorithm, whose names look like those of PPO, registered for one test."""
    before = dict(algos.ALGORITHMS), dict(algos.VARIANTS)
    variants = {"sv-mine": "dynamic", "my-ppo": "plain", "ppo-too": "plain"}
    algos.register(type("Mine", (PPO,), {"name": "mine", "variants": variants}))
    yield
    for table, content in zip((algos.ALGORITHMS, algos.VARIANTS), before, strict=True):
        table.clear()
        table.update(content)


@pytest.mark.usefixtures("mine")
def test_the_baseline_of_a_users_algorithm(tmp_path: Path) -> None:
    own = scores(my_ppo=9.0, sv_mine=19.0, ppo_too=4.0)
    write_run(tmp_path / "a", "brax/ant", algo=("my-ppo", "sv-mine", "ppo-too"), columns=own)
    compared = compare(load_all([tmp_path]))
    page = html.page(compared)
    assert "<h1>Stable-Value my-ppo against my-ppo</h1>" in page
    assert '<button type="button">Score, % of my-ppo</button>' in page
    files = write._tables(compared)
    tables = [pd.read_csv(io.StringIO(files[f"brax-{v}.csv"])) for v in ("sv-mine", "ppo-too")]
    assert [table["score_pct_of_my-ppo"].iloc[0] for table in tables] == pytest.approx([200.0, 50.0])
    variants = ["my-ppo", "sv-mine", "ppo-too"]
    assert [palette.slot(v, variants) for v in variants] == [0, 2, 3], "of two plain ones, the first is grey"
    assert baseline.label(variants) == "my-ppo"
