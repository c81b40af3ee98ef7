"""Every column of every table against numbers worked out by hand, and the paper's aggregates through the same code."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from nextpolicy.experiments.catalogue import SUITES
from nextpolicy.report import aggregate, columns, formats, layout, summary, tables
from nextpolicy.report.aggregate import AggregateRow
from nextpolicy.report.comparable import load_all
from nextpolicy.report.members import member_table

from .synthetic import write_run

ROUNDS = 20


def last_tenth(values):
    """Returns that are `values[algo][seed]` in the last 10 % of rounds (2 of 20) and 999 before."""
    return lambda algo, seed, k: np.where(k >= 18, values[algo][seed], 999.0).astype(np.float32)


def falling(values):
    """`values[algo]` before and in the last 10 % of rounds."""
    return lambda algo, seed, k: np.where(k >= 18, values[algo][1], values[algo][0])


@pytest.fixture(scope="module")
def compared(tmp_path_factory) -> tables.Comparison:
    """Three environments: a plain one, one whose returns are negative, one without any spread."""
    root = tmp_path_factory.mktemp("runs")
    scores = {"ppo": [8.0, 10.0, 12.0], "sv-static": [10.0, 10.0, 10.0], "sv-dynamic": [12.0, 15.0, 18.0]}
    plain = {
        "episode_return": last_tenth(scores),
        # Two rounds of the last tenth: 3 episodes and 1; the mean must count episodes, not rounds.
        "episodes": lambda algo, seed, k: np.where(k == 18, 3, 1),
        # Other values in the last tenth than before: 18 rounds of the first, 2 of the second.
        "value_loss": falling({"ppo": (0.5, 0.5), "sv-static": (1.0, 1.0), "sv-dynamic": (0.2, 1.0)}),
        "kl_drift": falling(dict.fromkeys(("ppo", "sv-static", "sv-dynamic"), (0.01, 0.11))),
        "entropy": falling({"ppo": (2.0, 1.0), "sv-static": (3.0, 3.0), "sv-dynamic": (1.0, 0.1)}),
        "diff_over_threshold": lambda algo, seed, k: np.where(algo == "sv-dynamic", 1.0 + k % 4, 0.0),
    }
    negative = {
        "episode_return": last_tenth({"ppo": [-10.0] * 3, "sv-static": [-15.0] * 3, "sv-dynamic": [-4.0, -5.0, -6.0]}),
        "entropy": lambda algo, seed, k: np.full(len(k), -1.0),
    }
    write_run(root / "a", "brax/ant", rounds=ROUNDS, columns=plain)
    write_run(root / "b", "brax/reacher", rounds=ROUNDS, columns=negative)
    write_run(root / "c", "brax/fast", rounds=ROUNDS)
    return tables.compare(load_all([root]))


@pytest.fixture(scope="module")
def members(compared) -> pd.DataFrame:
    return compared.members


def of(members, env, variant):
    table = tables.with_paper(tables.environment_table(members, variant), "brax", variant)
    return table.set_index("env").loc[env]


def test_a_members_row(members):
    row = members[(members["env"] == "brax/ant") & (members["variant"] == "sv-dynamic") & (members["seed"] == 1)].iloc[
        0
    ]
    expected = {
        "score": 15.0,
        "area": 900.6,  # (18 x 999 + 2 x 15) / 20
        "steps_to_goal": np.nan,  # PPO's return does not rise
        "final_return": 15.0,
        "updates": 10.0,
        "updates_pct": 50.0,
        "updates_least_pct": 50.0,
        "updates_most_pct": 50.0,
        "ratio_ess": 0.9,
        "env_steps": 20 * 20480,
        "diff_median_pct": 250.0,  # of 100, 200, 300, 400 five times over
        "diff_std_pct": 100 * np.sqrt(20 * 1.25 / 19),
        "value_loss": 0.28,  # (18 x 0.2 + 2 x 1) / 20
        "value_loss_late": 1.0,
        "kl_target": 0.02,  # over the rounds that updated; over all it would be 0.01
        "kl_behaviour": 0.01,
        "entropy": 0.91,
        "entropy_late": 0.1,
        "target_score": np.nan,
    }
    assert set(expected) == {each.name for each in columns.STATISTICS if not each.optional}
    for name, value in expected.items():
        assert row[name] == pytest.approx(value, nan_ok=True), name
    assert (row["suite"], row["run"], row["state"]) == ("brax", "a", "finished")


def test_a_score_counts_episodes(tmp_path):
    columns = {
        "episode_return": lambda algo, seed, k: np.where(k == 18, 4.0, np.where(k == 19, 8.0, np.nan)),
        "episodes": lambda algo, seed, k: np.where(k == 18, 3, np.where(k == 19, 1, 0)),
    }
    write_run(tmp_path / "a", "brax/ant", seeds=1, rounds=ROUNDS, columns=columns)
    assert member_table(load_all([tmp_path]))["score"].tolist() == [5.0] * 3  # (3 x 4 + 1 x 8) / 4


def test_every_column_of_an_environment_table(members):
    row = of(members, "brax/ant", "sv-dynamic")
    expected = {
        "variant": "sv-dynamic",
        "seeds": 3,
        "seeds_planned": 3,
        "ppo_seeds": 3,
        "ppo_seeds_planned": 3,
        "note": "",
        "score": 15.0,
        "ppo_score": 10.0,
        "score_pct_of_ppo": 150.0,  # 12, 15, 18 over a mean of 10
        "score_spread": 30.0,  # standard deviation of 120, 150, 180
        "area_pct_of_ppo": 100 * 900.6 / 900.1,
        "steps_to_goal_x_ppo": np.nan,
        "significant": True,  # t = 5 / sqrt(9/3 + 4/3) = 2.40, df = 3.5: p = 0.083
        "updates_pct_of_ppo": 50.0,
        "updates_least_pct": 50.0,
        "updates_most_pct": 50.0,
        "ratio_ess": 0.9,
        "kl_drift": 0.02,  # (18 x .01 + 2 x .11) / 20
        "diff_median_pct": 250.0,
        "diff_std_pct": 100 * np.sqrt(20 * 1.25 / 19),
        "value_loss_x_ppo": 0.56,  # 0.28 / 0.5
        "value_loss_late_x_ppo": 2.0,  # 1 / 0.5
        "kl_target_x_ppo": 2.0,
        "kl_behaviour_x_ppo": 1.0,
        "entropy_x_ppo": 0.91 / 1.9,
        "entropy_late_x_ppo": 0.1,
        "ppo_entropy": 1.9,
        "ppo_entropy_late": 1.0,
        "target_score_pct_of_ppo": np.nan,
        "paper_score_pct_of_ppo": 99.0,
        "difference_from_paper": 51.0,
        "paper_updates_pct_of_ppo": 93.82,
        "updates_difference_from_paper": 50 - 93.82,
        "paper_diff_over_threshold_median_pct": 67.0,
        "diff_median_difference_from_paper": 183.0,
        "paper_diff_std_pct_of_threshold": 38.0,
        "diff_std_difference_from_paper": 100 * np.sqrt(20 * 1.25 / 19) - 38,
        "paper_kl_target_x_ppo": 1.0,
        "kl_target_difference_from_paper": 1.0,
        "paper_kl_behaviour_x_ppo": 1.0,
        "kl_behaviour_difference_from_paper": 0.0,
        # The paper's are at convergence: against the last 10 %, not against all rounds.
        "paper_value_loss_x_ppo": 1.49,
        "value_loss_difference_from_paper": 2.0 - 1.49,
        "paper_ppo_entropy": -0.07,
        "ppo_entropy_difference_from_paper": 1.07,
    }
    computed = set(row.index) - {"p_value", "detectable_pct"} - {n for n in row.index if n.endswith(("_low", "_high"))}
    assert computed == set(expected), "a column without a hand-made example"
    for name, value in expected.items():
        assert row[name] == value or row[name] == pytest.approx(value, nan_ok=True), name
    assert row["p_value"] == pytest.approx(0.0823, abs=2e-3)
    # scipy.stats.nct with 3.48 degrees of freedom exceeds Welch's 2.94 in four of five cases if shifted by 3.967.
    assert row["detectable_pct"] == pytest.approx(10 * 3.967 * np.sqrt(9 / 3 + 4 / 3), rel=1e-3)
    assert of(members, "brax/ant", "sv-static")["kl_target_x_ppo"] == pytest.approx(4.0)
    assert np.isnan(of(members, "brax/ant", "sv-static")["diff_median_pct"])


def test_intervals_hold_their_numbers_and_no_spread_gives_no_width(members):
    row = of(members, "brax/ant", "sv-dynamic")
    # The means of resampled seeds lie between the least and the greatest: 12..18 over 12..8.
    assert 100 <= row["score_pct_of_ppo_low"] < 150 < row["score_pct_of_ppo_high"] <= 225
    assert (row["value_loss_x_ppo_low"], row["value_loss_x_ppo_high"]) == pytest.approx((0.56, 0.56))
    assert (row["value_loss_late_x_ppo_low"], row["value_loss_late_x_ppo_high"]) == (2.0, 2.0)
    for name in (view.name.format(each.name) for each in columns.present(members) for view in each.views):
        assert {f"{name}_low", f"{name}_high"} <= set(row.index)


@pytest.mark.parametrize("algos", [("ppo", "sv-static"), ("sac", "sv-sac")], ids=", ".join)
def test_returns_have_the_numbers_and_intervals_of_the_table_against_the_baseline(tmp_path, algos):
    scores = np.random.default_rng(0).normal(100.0, 20.0, (2, 9))
    returns = {"episode_return": lambda algo, seed, k: np.full(len(k), scores[int(algo == algos[0]), seed])}
    write_run(tmp_path / "a", "brax/ant", seeds=9, algo=algos, columns=returns)
    compared = tables.compare(load_all([tmp_path]))
    base, ours = compared.scores.to_dict("records")
    (row,) = compared.environments["brax", algos[1]].to_dict("records")
    for end in ("", "_low", "_high"):
        assert (ours[f"score{end}"], base[f"score{end}"]) == (row[f"score{end}"], row[f"ppo_score{end}"])
    assert base["score_std"] == pytest.approx(np.std(scores[1], ddof=1), rel=1e-5)


def test_a_negative_ppo_mean_counts_improvement_as_above_100(members):
    better, worse = of(members, "brax/reacher", "sv-dynamic"), of(members, "brax/reacher", "sv-static")
    assert better["score_pct_of_ppo"] == pytest.approx(150.0)  # 100 + 100 (-5 + 10) / 10
    assert worse["score_pct_of_ppo"] == pytest.approx(50.0)
    assert better["score_pct_of_ppo_low"] >= 140.0
    assert np.isnan(better["entropy_x_ppo"])  # PPO's entropy is -1: a multiple of it says nothing
    assert better["ppo_entropy"] == -1.0


def test_an_environment_without_spread(members):
    row = of(members, "brax/fast", "sv-dynamic")
    assert row["score_pct_of_ppo"] == 100.0
    assert (row["score_spread"], row["p_value"], row["significant"]) == (0.0, 1.0, False)
    assert (row["score_pct_of_ppo_low"], row["score_pct_of_ppo_high"]) == (100.0, 100.0)
    assert row["difference_from_paper"] == 0.0


def test_the_aggregate_row_by_hand(members):
    _, totals = tables.all_tables(members)
    ours, paper, difference = totals[totals["variant"] == "sv-dynamic"].to_dict("records")
    assert (ours["source"], paper["source"], difference["source"]) == ("ours", "paper", "difference")
    # Percentages 150, 150 and 100.
    assert (ours["q1"], ours["median_pct_ppo"], ours["q3"]) == (125.0, 150.0, 150.0)
    assert ours["geomean_pct_ppo"] == pytest.approx(100 * 1.5 ** (2 / 3))
    assert ours["geomean_spread"] == pytest.approx(np.exp(np.log(1.5) * np.sqrt(1 / 3)))
    assert ours["beat_ppo_pct"] == pytest.approx(200 / 3)
    assert (ours["kl_target_x_ppo"], ours["kl_behaviour_x_ppo"]) == (pytest.approx(2.0), pytest.approx(1.0))
    assert (ours["environments"], ours["environments_planned"], ours["seeds_min"], ours["seeds_max"]) == (3, 3, 3, 3)
    # All nine: 100, 100, 100, 120, 140, 150, 150, 160, 180; without two at each end.
    assert ours["iqm_pct_ppo"] == pytest.approx((100 + 120 + 140 + 150 + 150) / 5)
    for name in (*AggregateRow._fields, "iqm_pct_ppo"):
        assert ours[f"{name}_low"] <= ours[name] <= ours[f"{name}_high"], name
    assert paper["median_pct_ppo"] == 100.2
    assert difference["median_pct_ppo"] == pytest.approx(49.8)


def test_the_papers_aggregates_come_out_of_the_code_that_real_runs_use():
    """Through `aggregate_table`; the cells that follow only from unrounded scores are in test_aggregate.py."""
    published = aggregate.paper_tables()
    keys = {(s, f"sv-{v}"): published[f"{s}_{v}"] for s in aggregate.PAPER_SUITES for v in aggregate.PAPER_VARIANTS}
    totals = tables.aggregate_table(keys).set_index(["suite", "variant", "source"])
    for suite, variant in keys:
        gap = totals.loc[(suite, variant, "difference"), list(AggregateRow._fields)].astype(float).abs() - 1e-9
        if suite == "atari":
            assert (gap <= [0.05, 0.05, 0.05, 0.05, 0.005, 0.05, 0.005, 0.005]).all(), gap
        else:  # whole percentages in the source's table move these by half a percent, or by one environment of 12
            assert (gap <= [0.5, 0.5, 0.5, 0.5, 0.005, 100 / 12 + 0.5, 0.005, 0.005]).all(), gap
    assert len(totals) == 12


def test_swept_variants_are_compared_with_ppo_at_their_values_or_plain():
    assert tables.baseline_of("sv-dynamic[lam=0.9]", ["ppo[lam=0.9]", "ppo[lam=0.95]"]) == "ppo[lam=0.9]"
    assert tables.baseline_of("sv-dynamic[delta_v=0.1]", ["ppo", "sv-dynamic[delta_v=0.1]"]) == "ppo"
    assert tables.baseline_of("sv-dynamic[delta_v=0.1]", ["sv-static"]) is None


def test_intervals_of_two_seeds_by_hand(tmp_path):
    """Means of two resampled seeds are the lower (1 in 4), the middle or the upper: 2.5 % and 97.5 % are the ends, and
    of a ratio the ends over the other's ends (1 in 16)."""
    scores = {"ppo": [8.0, 12.0], "sv-static": [12.0, 18.0], "sv-dynamic": [10.0, 10.0]}
    losses = {"ppo": [1.0, 2.0], "sv-static": [3.0, 5.0], "sv-dynamic": [1.0, 1.0]}
    columns = {
        "episode_return": last_tenth(scores),
        "value_loss": lambda algo, seed, k: np.full(len(k), losses[algo][seed]),
        "entropy": lambda algo, seed, k: np.full(len(k), losses[algo][seed]),
        "kl_target": lambda algo, seed, k: np.full(len(k), losses[algo][seed]),
    }
    write_run(tmp_path / "a", "brax/ant", seeds=2, columns=columns)
    by_key, totals = tables.all_tables(member_table(load_all([tmp_path])))
    (row,) = by_key["brax", "sv-static"].to_dict("records")
    ours = totals[totals["source"] == "ours"].to_dict("records")[0]
    expected = {
        "score": (12.0, 15.0, 18.0),
        "ppo_score": (8.0, 10.0, 12.0),
        "score_pct_of_ppo": (100.0, 150.0, 225.0),
        "value_loss_x_ppo": (1.5, 4 / 1.5, 5.0),
        "kl_target_x_ppo": (1.5, 4 / 1.5, 5.0),
        "entropy_x_ppo": (1.5, 4 / 1.5, 5.0),
        "ppo_entropy": (1.0, 1.5, 2.0),
        "updates_pct_of_ppo": (25.0, 25.0, 25.0),
    }
    for name, interval in expected.items():
        assert (row[f"{name}_low"], row[name], row[f"{name}_high"]) == pytest.approx(interval), name
    # One environment: its percentage is the median, the quartiles and the geometric mean.
    for name in ("median_pct_ppo", "q1", "q3", "geomean_pct_ppo"):
        assert (ours[f"{name}_low"], ours[name], ours[f"{name}_high"]) == pytest.approx((100.0, 150.0, 225.0)), name
    assert (ours["iqm_pct_ppo_low"], ours["iqm_pct_ppo"], ours["iqm_pct_ppo_high"]) == (120.0, 150.0, 180.0)
    assert (ours["kl_target_x_ppo_low"], ours["kl_target_x_ppo_high"]) == pytest.approx((1.5, 5.0))
    assert (ours["beat_ppo_pct_low"], ours["beat_ppo_pct"], ours["beat_ppo_pct_high"]) == (0.0, 100.0, 100.0)


def test_markdown_latex_and_summary(members):
    by_key, _ = tables.all_tables(members)
    table = by_key["brax", "sv-dynamic"]
    shown = formats.markdown(table, layout.environment_columns(table))
    assert "| brax/ant | 3 | 150.0 ± 30.0 [" in shown
    assert shown.count("\n") == 2 + 3
    tex = formats.latex(table, layout.environment_columns(table), "50 % of brax_x")
    for word in (
        r"\toprule",
        r"\midrule",
        r"\bottomrule",
        r"50 \% of brax\_x",
        r"{150.0 $\pm$ 30.0*} \\ {\scriptsize [",
    ):
        assert word in tex
    body = tex.partition(r"\midrule")[2].partition(r"\bottomrule")[0].strip().splitlines()
    assert [line.split(" & ")[:2] for line in body] == [[f"brax/{env}", "3"] for env in ("ant", "reacher", "fast")]
    assert all(line.endswith(r" \\[2pt]") for line in body)
    assert r"\begin{tabular}{@{}lrrrrrrrrrrrrr@{}}" in tex


def test_the_summary(compared):
    lines = summary.sentences(compared)
    assert lines[0] == "3 runs with 27 members on 3 environments: 3 finished, 0 members without a score."
    assert "sv-dynamic has a median of 150.0 [" in lines[1]
    assert "better on 2 and worse on 0 of 3 environments at p < 0.1" in lines[1]
    assert "sv-dynamic updated its target in 50.0 % of rounds, on average by 2.00 × the KL" in lines[2]
    assert len(lines) == 3


@pytest.mark.parametrize("suite", ["brax", "atari"])
@pytest.mark.parametrize("variant", ["sv-static", "sv-dynamic"])
def test_every_environment_of_the_papers_suites_has_the_papers_number(suite, variant):
    envs = SUITES[suite].environments
    table = tables.with_paper(pd.DataFrame({"env": envs, "score_pct_of_ppo": 100.0}), suite, variant)
    assert table["paper_score_pct_of_ppo"].notna().all()
    assert len(envs) == len(aggregate.paper_tables()[f"{suite}_{variant.removeprefix('sv-')}"])
    odd = pd.DataFrame({"env": [f"{envs[0]}[x=1]", f"{envs[0]} (a/b)", "brax/nothing"], "score_pct_of_ppo": 100.0})
    first, second, none = tables.with_paper(odd, suite, variant)["paper_score_pct_of_ppo"]
    assert first == second == table["paper_score_pct_of_ppo"].iloc[0]
    assert np.isnan(none)
