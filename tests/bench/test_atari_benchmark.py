"""The Atari benchmark's arithmetic: means over games, curves, and who waited for whom."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import atari
import atari_learning
from atari_rounds import Stopwatch


def test_a_mean_return_counts_games_not_rounds():
    rows = [{"episode_return": 2.0, "episodes": 3.0}, {"episode_return": float("nan"), "episodes": 0.0}]
    rows += [{"episode_return": 10.0, "episodes": 1.0}]
    assert atari_learning.mean_return(rows) == 4.0
    assert atari_learning.mean_return(rows[1:2]) is None


def test_curves_are_smoothed_by_games_and_skip_rounds_without_any():
    points = np.asarray([[1, np.nan, 0], [2, 1.0, 1], [3, 4.0, 2], [4, np.nan, 0], [5, np.nan, 0], [6, np.nan, 0]])
    steps, mean = atari_learning.smoothed(points, share=0.0)  # one round to either side
    np.testing.assert_array_equal(steps, [1, 2, 3, 4])
    np.testing.assert_allclose(mean, [1.0, 3.0, 3.0, 4.0])


def test_figures_come_from_a_file_that_was_cut_off(tmp_path, capsys):
    (tmp_path / "curves.csv").write_text(
        ",".join(atari_learning.COLUMNS) + "\n"
        "Pong,ppo,0,128,1.5,nan,0,1\nPong,sv-dynamic,0,128,1.5,-20,2,0\nPong,ppo,1,256,3,-19,2,1\nPong,sv-dyn"
    )
    curves = atari_learning.read_curves(tmp_path / "curves.csv")
    assert {name: points.tolist() for name, points in curves["Pong"].items()}["sv-dynamic"] == [[128, -20, 2]]
    assert len(curves["Pong"]["ppo"]) == 2
    (tmp_path / "scores.json").write_text(json.dumps({"games": {"Pong": {"random": {"mean": -20.4}}}}))
    atari_learning.figures(tmp_path)
    assert (tmp_path / "learning.png").read_bytes()[:4] == b"\x89PNG"
    first = (tmp_path / "learning.svg").read_bytes()
    atari_learning.figures(tmp_path)
    assert (tmp_path / "learning.svg").read_bytes() == first
    (tmp_path / "curves.csv").write_text(",".join(atari_learning.COLUMNS) + "\n")
    atari_learning.figures(tmp_path)
    assert "figures: skipped" in capsys.readouterr().out


def test_a_round_is_told_apart_into_its_parts():
    loop: Any = SimpleNamespace(workers=[None])
    watch = Stopwatch(loop)
    watch.begin, watch.began, watch.collected, watch.learned, watch.end = 0.0, 1.0, 11.0, 14.0, 16.0
    watch.waited, watch.acted, watch.cores, watch.learning_cores = 4.0, 2.0, 3.0, 1.0
    watch.at_work = [(2.0, 5.0), (4.0, 6.0), (8.0, 10.0)]  # idle: 1-2, 6-8, 10-11
    parts = watch.parts()
    assert (parts["s round"], parts["s collect"], parts["s learn"], parts["s other"]) == (16.0, 10.0, 3.0, 3.0)
    assert parts["s no emulator at work"] == pytest.approx(4.0)
    assert parts["s fetch, send, note"] == pytest.approx(4.0)
    assert parts["groups at work"] == pytest.approx(0.7)


@pytest.mark.quick_compilation
@pytest.mark.allow_key_reuse  # the time of acting is that of one noise, again and again
def test_the_speed_of_every_row_is_measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("ale_py", reason="needs the atari extra")
    monkeypatch.setattr(atari, "ROWS", [("mlp", "float32", [("ppo", 2), ("sv-dynamic", 2)])])
    monkeypatch.setattr(atari, "enable_cache", lambda: None)
    sizes = "--num-envs 2 --rollout-length 8 --minibatch-size 16 --image-size 16 --threads 1 --rounds 1 --torso mlp"
    monkeypatch.setattr(sys, "argv", ["atari.py", "--part", "speed", "--out", str(tmp_path), *sizes.split()])
    atari.main()
    found = json.loads((tmp_path / "speed.json").read_text())
    assert set(found["rows"]) == {"ppo mlp float32 groups=2", "sv-dynamic mlp float32 groups=2"}
    for row in found["rows"].values():
        assert row["steps_per_second"] > 0
        assert row["one act, ms"]["ms act without upload"] > 0
