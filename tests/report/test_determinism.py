"""The shares of updates that a gate allows, and the figure of score against entropy and effective sample size."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy.stats import permutation_test, spearmanr

from nextpolicy.report import determinism
from nextpolicy.report.comparable import load_all
from nextpolicy.report.members import member_table

from .synthetic import report, write_run

BOUNDS = {"ppo": (1, 1), "sv-static": (4, 4), "sv-dynamic": (2, 5)}
GATE = {
    "k_min": lambda algo, seed, k: np.full(len(k), BOUNDS[algo][0]),
    "k_max": lambda algo, seed, k: np.where(k < 10, BOUNDS[algo][1], BOUNDS[algo][0]),  # decays after ten rounds
    "ratio_ess": lambda algo, seed, k: np.full(len(k), 0.5 if algo == "sv-static" else 1.0),
}


def test_a_schedule_allows_one_share_and_a_gate_a_range(tmp_path: Path) -> None:
    write_run(tmp_path / "ant", "brax/ant", seeds=1, rounds=20, columns=GATE)
    table = member_table(load_all([tmp_path])).set_index("variant")
    assert table.loc["ppo", ["updates_least_pct", "updates_most_pct"]].tolist() == [100.0, 100.0]
    assert table.loc["sv-static", ["updates_least_pct", "updates_most_pct"]].tolist() == [25.0, 25.0]
    # Never stable: rounds 5 and 10, then every second. Always stable: every second round.
    assert table.loc["sv-dynamic", ["updates_least_pct", "updates_most_pct"]].tolist() == [35.0, 50.0]
    assert table.loc["sv-static", "ratio_ess"] == 0.5


def test_points_are_environments_with_both_numbers(tmp_path: Path) -> None:
    for i, env in enumerate(("ant", "hopper", "reacher", "pusher", "walker2d")):
        entropy = {"entropy": lambda algo, seed, k, i=i: np.full(len(k), 1.0 + i)}
        score = {"episode_return": lambda algo, seed, k, i=i: np.full(len(k), 10.0 - (algo == "sv-dynamic") * i)}
        write_run(tmp_path / "runs" / env, f"brax/{env}", seeds=1, columns=GATE | entropy | score)
    assert report(tmp_path / "runs", "--out", tmp_path / "r.html") == 0
    drawing = (tmp_path / "r-files" / "brax-determinism.svg").read_text()
    assert "sv-static –, sv-dynamic -1.00 (p 0.02)" in drawing  # static scores are all equal; 2 of 120 permutations
    assert "effective sample size of the variant" in drawing
    paper = pd.read_csv(tmp_path / "r-files" / "brax-sv-dynamic.csv").set_index("env")
    assert paper.loc["brax/hopper", "paper_updates_pct_of_ppo"] == 97.2
    assert paper.loc["brax/hopper", "updates_difference_from_paper"] == pytest.approx(50 - 97.2)
    assert paper.loc["brax/ant", "paper_kl_target_x_ppo"] == 1.0


@pytest.mark.parametrize("seed", range(3))
def test_p_values_are_those_of_all_permutations(seed: int) -> None:
    x, score = np.random.default_rng(seed).integers(0, 5, (2, 7))  # with ties
    points = pd.DataFrame({"x": x, "score": score})
    distance = lambda order: abs(spearmanr(x, order).statistic)  # noqa: E731
    exact = permutation_test([score], distance, permutation_type="pairings", n_resamples=10**5, alternative="greater")
    assert determinism._chance(points) == pytest.approx(exact.pvalue)


@pytest.mark.parametrize("environments", [4, 5, 8, 9])
def test_p_values_are_exact_for_few_environments_only(environments: int) -> None:
    x = np.arange(environments)
    points = pd.DataFrame({"x": x, "score": (x * 3) % environments + x / 100})
    found = spearmanr(points["x"], points["score"])
    exact = determinism._chance(points) if environments <= 8 else found.pvalue
    shown = f"{found.statistic:.2f} (p {exact:.2f})" if environments >= 5 else "–"
    assert determinism._rank(points) == shown


def test_names_side_by_side_stay_at_their_points() -> None:
    scores = {"brax/ant": (0.2, 120.0), "brax/hopper": (0.8, 120.0), "brax/fast": (0.5, 80.0)}
    table = pd.DataFrame([(e, x, y) for e, (x, y) in scores.items()], columns=["env", "ratio_ess", "score_pct_of_ppo"])
    made = determinism.figure("brax", {"sv-static": table}, ["sv-static"])
    assert made is not None
    axes = made.axes[1]
    names = {text.get_text(): text.xy for text in axes.texts}
    assert names["ant"][1] == names["hopper"][1] > names["fast"][1]
    for env, (x, y) in scores.items():
        left, bottom = (axes.transScale + axes.transLimits).transform((x, y - 100))
        assert names[env[5:]] == pytest.approx((left, bottom), abs=0.03)


def test_names_at_one_place_stand_above_each_other() -> None:
    table = pd.DataFrame({"env": ["brax/ant", "brax/hopper", "brax/fast"], "score_pct_of_ppo": [100.0, 100.0, 150.0]})
    made = determinism.figure("brax", {"sv-static": table.assign(ratio_ess=0.5)}, ["sv-static"])
    assert made is not None
    places = {text.get_text(): text.xy[1] for text in made.axes[1].texts}
    assert places["hopper"] - places["ant"] > 0.02
    assert places["fast"] > 0.9


def test_no_figure_without_the_columns() -> None:
    bare = pd.DataFrame({"env": ["a"], "score_pct_of_ppo": [100.0]})
    assert determinism.figure("brax", {"sv-static": bare}, ["sv-static"]) is None
