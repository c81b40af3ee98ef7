"""The comparison of readings of the paper: its design, its fingerprints and its distances."""

from __future__ import annotations

import argparse
import itertools
import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import readings
import readings_table
from nextpolicy import criteria


def test_every_main_effect_is_a_difference_of_two_means_of_four() -> None:
    rows = readings.fraction("brax/hopper")
    assert len(set(rows)) == 8
    assert rows[0] == ("bootstrap", "each", "scale", "half", "fresh")  # f100efb
    for a, b in itertools.combinations(range(5), 2):
        assert set(Counter((row[a], row[b]) for row in rows).values()) == {2}, "two factors are confounded"
    assert sorted(readings.fraction("gymnax/Asterix-MinAtar")) == sorted(
        itertools.product(("target", "network"), ("scale", "standardise"))
    )


def test_a_reading_is_named_by_what_differs() -> None:
    assert readings.completed("brax/ant", ["none", "terminal"]) == ("terminal", "none", "scale", "half", "fresh")
    with pytest.raises(ValueError, match=r"only: expected levels among bootstrap, .*, got network"):
        readings.completed("brax/ant", ["network"])


def test_fingerprints_of_known_metrics() -> None:
    rounds = np.arange(20)
    metrics = {
        "entropy": np.where(rounds < 18, 4.0, 1.0),
        "value_loss": np.where(rounds < 18, 1.0, 3.0),
        "kl_target": np.where(rounds % 2, 0.5, 0.0),
        "kl_behaviour": np.full(20, 0.25),
        "accepted": rounds % 2 == 1,
        "episodes": np.where(rounds == 19, 3, np.where(rounds == 18, 1, 0)),
        "episode_return": np.where(rounds == 19, 10.0, np.where(rounds == 18, 2.0, np.nan)),
        "target_over_threshold": np.where(rounds == 0, np.nan, rounds / 100),
        "network_over_threshold": np.full(20, np.nan),
    }
    found = readings.fingerprints(metrics)
    assert found["entropy_late"] == 1.0
    assert found["value_loss_late"] == 3.0
    assert found["kl_target"] == 0.5
    assert found["updates_pct"] == 50.0
    assert found["score"] == 8.0  # each episode once
    assert found["target_median_pct"] == 10.0
    assert found["target_std_pct"] == pytest.approx(np.arange(1, 20).std(ddof=1), rel=1e-5)
    assert found["network_median_pct"] is None


def write(folder: Path, env: str, rows: dict[tuple[str, ...], dict[str, float]]) -> None:
    base = dict.fromkeys(readings_table.COLUMNS, 1.0) | readings_table.printed(env)
    content: dict[str, Any] = {"env": env, "factors": list(readings.factors(env)), "readings": []}
    for reading, changes in rows.items():
        members = [{"algo": "sv-dynamic", "seed": seed, **base, **changes} for seed in range(3)]
        content["readings"].append({"reading": reading, "members": members})
    (folder / f"readings-{env.replace('/', '-')}.json").write_text(json.dumps(content))


def test_the_nearest_reading_comes_first(tmp_path: Path) -> None:
    ours, theirs, *_ = readings.fraction("brax/hopper")
    write(tmp_path, "brax/hopper", {ours: {"entropy_late": 3.95 - 6.0, "target_median_pct": 51 / 4}, theirs: {}})
    far = readings_table.distances(readings_table.members(tmp_path))
    assert far["distance"][0] == pytest.approx(0.0, abs=1e-12)
    assert far["reading"][0] == " ".join(theirs)
    last = far.iloc[-1]
    assert (last["reading"], last["diff"]) == (" ".join(ours), "target")
    assert list(last[["entropy", "median", "spread"]]) == pytest.approx([2.0, 2.0, 0.0])  # 6 nats of 3, a quarter
    assert last["distance"] == pytest.approx(4 / 3)
    shown = readings_table.markdown(tmp_path)
    assert "| paper | 3.95 | 51 | 24 |" in shown
    assert "| truncation | bootstrap | 6 |" in shown


@pytest.mark.quick_compilation
@pytest.mark.allow_rank_promotion
def test_readings_are_trained_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setitem(criteria.CRITERIA, "both-diffs", readings.BothDiffs)  # `register` would outlive the test
    monkeypatch.setattr(criteria, "register", lambda criterion: None)
    arguments = "run gymnax/CartPole-v1 --seeds 1 --steps 4096 --only network --out"
    monkeypatch.setattr(sys, "argv", ["readings.py", *arguments.split(), str(tmp_path)])
    readings.main()
    (row,) = readings_table.members(tmp_path).to_dict("records")
    assert row["reading"] == "network scale"
    assert 0 < row["network_median_pct"] != row["target_median_pct"] > 0
    capsys.readouterr()
    readings.main()
    assert not capsys.readouterr().out, "a reading was trained twice"
    options = argparse.Namespace(algo="sv-dynamic", seeds=1, steps=4096.0)
    (stored,) = json.loads((tmp_path / "readings-gymnax-CartPole-v1.json").read_text())["readings"]
    assert readings.same_work(options, stored)
    for change in ({"seeds": 2}, {"steps": None}, {"algo": "ppo"}):
        assert not readings.same_work(argparse.Namespace(**{**vars(options), **change}), stored), change
