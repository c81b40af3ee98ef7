"""What is missing from runs is counted and named in tables and summary."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd

from nextpolicy.report import columns, formats, layout, summary, tables
from nextpolicy.report.comparable import load_all
from nextpolicy.report.members import member_table

from .synthetic import write_run

ROUNDS = 20


def test_a_missing_seed_and_a_failed_environment_are_shown(tmp_path):
    write_run(tmp_path / "ant", "brax/ant", rounds=ROUNDS)
    for part in (tmp_path / "ant" / "metrics").iterdir():
        frame = pd.read_parquet(part)
        frame[~((frame["variant"] == "sv-dynamic") & (frame["seed"] == 2))].to_parquet(part, index=False)
    write_run(tmp_path / "pusher", "brax/pusher", rounds=ROUNDS, state="failed", reason="rewards were not finite")
    none = {"episodes": lambda algo, seed, k: np.zeros(len(k), int)}
    write_run(tmp_path / "hopper", "brax/hopper", rounds=ROUNDS, columns=none)
    table = tables.environment_table(member_table(load_all([tmp_path])), "sv-dynamic").set_index("env")
    assert table.loc["brax/ant", ["seeds", "seeds_planned", "ppo_seeds"]].tolist() == [2, 3, 3]
    assert table.loc["brax/ant", "note"] == "seed 2 missing: metrics of some rounds are not in the folder"
    assert table.loc["brax/ant", "score_pct_of_ppo"] == 100.0
    assert table.loc["brax/pusher", ["seeds", "seeds_planned"]].tolist() == [0, 3]
    assert table.loc["brax/pusher", "note"] == "all 3 seeds and PPO's 3 seeds failed: rewards were not finite"
    assert "no episode ended in the last 10 %" in table.loc["brax/hopper", "note"]
    (row,) = (
        tables.aggregate_table({("brax", "sv-dynamic"): table.reset_index()})
        .query("source == 'ours'")
        .to_dict("records")
    )
    assert (row["environments"], row["environments_planned"]) == (1, 3)
    shown = formats.markdown(table.reset_index(), layout.environment_columns(table.reset_index()))
    assert "| 2 of 3; PPO 3 |" in shown
    assert "rewards were not finite" in shown


def test_variants_without_ppo_have_no_percentage(tmp_path):
    write_run(tmp_path / "a", "brax/ant", algo=("sv-static",))
    (row,) = tables.environment_table(member_table(load_all([tmp_path])), "sv-static").to_dict("records")
    assert np.isnan(row["score_pct_of_ppo"])
    assert row["note"] == "no PPO run to compare with"


def test_one_side_with_one_seed_has_no_interval_of_a_ratio(tmp_path):
    write_run(tmp_path / "a", "brax/ant", seeds=1, algo=("ppo",))
    write_run(tmp_path / "b", "brax/ant", seeds=2, algo=("sv-static",))
    (row,) = tables.environment_table(member_table(load_all([tmp_path])), "sv-static").to_dict("records")
    assert (row["score_low"], row["score_high"]) == (10.0, 10.0)
    for name in ("ppo_score", "score_pct_of_ppo", "value_loss_x_ppo"):
        assert np.isnan(row[f"{name}_low"]), name


def test_one_seed_has_no_interval(tmp_path):
    write_run(tmp_path / "a", "brax/ant", seeds=1)
    tables_, totals = tables.all_tables(member_table(load_all([tmp_path])))
    assert np.isnan(tables_["brax", "sv-static"].iloc[0]["score_pct_of_ppo_low"])
    table = tables_["brax", "sv-static"]
    assert "| brax/ant | 1 | 100.0 |" in formats.markdown(table, layout.environment_columns(table))
    assert "median_pct_ppo_low" not in totals or totals["median_pct_ppo_low"].isna().all()


def test_what_documents_would_misread_is_escaped(tmp_path):
    write_run(tmp_path / "a", "brax/ant", state="failed", reason="a|b <c>\n50 % of $x_1 {y} ~^\\ -3")
    table = tables.environment_table(member_table(load_all([tmp_path])), "sv-static")
    columns = layout.environment_columns(table)
    (line,) = formats.markdown(table, columns).splitlines()[2:]
    assert "a\\|b &lt;c> 50 % of $x_1" in line
    note = formats.latex(table, columns, "x").splitlines()[-2]
    for word in (
        "a$|$b $<$c$>$ 50",
        r"\% of \$x\_1 \{y\}",
        r"\textasciitilde{}\textasciicircum{}\textbackslash{} $-$3",
    ):
        assert word in note


def test_a_mean_of_zero_has_scores_but_no_percentage_and_says_so(tmp_path):
    zero = {"episode_return": lambda algo, seed, k: np.full(len(k), 0.0 if algo == "ppo" else 3.0)}
    write_run(tmp_path / "a", "brax/ant", columns=zero)
    (row,) = tables.environment_table(member_table(load_all([tmp_path])), "sv-static").to_dict("records")
    assert (row["score"], row["ppo_score"], row["seeds"]) == (3.0, 0.0, 3)
    assert np.isnan(row["score_pct_of_ppo"])
    assert row["note"] == "PPO's mean score is 0, which has no percentage"


def test_returns_that_are_not_finite_are_no_score(tmp_path):
    odd = {"episode_return": lambda algo, seed, k: np.where((seed == 1) & (k == 19), np.inf, 4.0)}
    write_run(tmp_path / "a", "brax/ant", columns=odd)
    members = member_table(load_all([tmp_path]))
    assert members[members["seed"] == 1]["reason"].unique() == "its returns were not finite"
    (row,) = tables.environment_table(members, "sv-static").to_dict("records")
    assert (row["seeds"], row["seeds_planned"], row["score_pct_of_ppo"]) == (2, 3, 100.0)
    assert row["note"] == "seed 1 and PPO's seed 1 no score: its returns were not finite"


def test_unfinished_runs_have_no_statistics_and_say_how_far_they_are(tmp_path):
    write_run(tmp_path / "a", "brax/ant", rounds=20, state="running")
    (tmp_path / "a" / "status.json").write_text('{"state": "running", "time": "2026-01-02T03:04:05+0000"}')
    members = member_table(load_all([tmp_path]))
    assert members[[each.name for each in columns.present(members)]].isna().all(axis=None)
    assert members["reason"].unique() == "20 of 20 rounds done, last written 2026-01-02 03:04"
    write_run(tmp_path / "b", "brax/hopper", rounds=20, state="stopped")
    assert member_table(load_all([tmp_path / "b"]))["reason"].unique() == "20 of 20 rounds done"


def test_the_summary_counts_runs_not_their_first_members(tmp_path):
    write_run(tmp_path / "ant", "brax/ant", rounds=ROUNDS)
    for part in (tmp_path / "ant" / "metrics").iterdir():
        frame = pd.read_parquet(part)
        frame[frame["member"] > 0].to_parquet(part, index=False)
    compared = tables.compare(load_all([tmp_path]))
    first, *_ = summary.sentences(compared)
    assert first == "1 run with 9 members on 1 environment: 1 finished, 1 member without a score."


def test_only_significant_differences_are_wins():
    rows = [(100.5, True), (99.5, True), (120.0, False), (80.0, True), (100.0, True), (np.nan, False)]
    assert summary.wins(pd.DataFrame(rows, columns=["score_pct_of_ppo", "significant"])) == (1, 2)


def test_the_largest_suite_leads_and_its_best_four_variants():
    rows = [("brax", f"v{i}", "ours", 3, 90.0 + i) for i in range(6)]
    rows += [("brax", "v5", "paper", np.nan, 500.0), ("atari", "w", "ours", 2, 200.0), ("brax", "x", "ours", 3, np.nan)]
    totals = pd.DataFrame(rows, columns=["suite", "variant", "source", "environments", "median_pct_ppo"])
    assert [row["variant"] for row in summary.headlines(totals)] == ["v5", "v4", "v3", "v2"]
    assert summary.headlines(pd.DataFrame()) == []


def test_the_target_policys_score_is_compared_where_it_was_measured(tmp_path):
    run = write_run(tmp_path / "a", "brax/ant", seeds=2)
    measured = [{"member": m, "mean": mean} for m, mean in enumerate([8.0, 12.0, 5.0, 5.0, 20.0, 30.0])]
    (run / "evaluation.json").write_text(json.dumps(measured))
    members = member_table(load_all([tmp_path]))
    assert members["target_score"].tolist() == [8.0, 12.0, 5.0, 5.0, 20.0, 30.0]
    (row,) = tables.environment_table(members, "sv-dynamic").to_dict("records")
    assert row["target_score_pct_of_ppo"] == 250.0
    assert 160 < row["target_score_pct_of_ppo_low"] < 250 < row["target_score_pct_of_ppo_high"] <= 375
