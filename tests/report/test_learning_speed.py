"""Area under the learning curve, and steps to 90 % of PPO's score."""

from __future__ import annotations

import re

import numpy as np
import pandas as pd
import pytest

from nextpolicy.report import learning_speed
from nextpolicy.report.comparable import load_all
from nextpolicy.report.statistic import Rows
from nextpolicy.report.summary import sentences
from nextpolicy.report.tables import compare

from .synthetic import write_run

SLOPES = {"ppo": 1.0, "sv-static": 0.5, "sv-dynamic": 2.0}


def rows(returns, episodes=None, goal: float = np.nan) -> Rows:
    k = np.arange(len(returns))
    frame = pd.DataFrame(
        {"env_steps": 100 * (k + 1), "episode_return": returns, "episodes": 1 if episodes is None else episodes}
    )
    return Rows(frame, frame.tail(1), "ppo", np.nan, goal)


@pytest.mark.parametrize(
    ("returns", "episodes", "area"),
    [
        ([1.0, 2.0, 6.0], None, 3.0),
        ([1.0, np.nan, 6.0], [5, 0, 1], 8 / 3),  # a round without episodes has the return of the one before
        ([np.nan, 2.0, 4.0], [0, 1, 1], 3.0),
        ([np.nan, np.nan], [0, 0], np.nan),
    ],
)
def test_area(returns, episodes, area: float) -> None:
    assert learning_speed.area(rows(returns, episodes)) == pytest.approx(area, rel=1e-5, nan_ok=True)


@pytest.mark.parametrize(
    ("goal", "steps"),
    [(0.0, 100), (3.0, 400), (8.5, 1000), (9.5, 1000), (np.nan, np.nan)],  # the last goal is never reached
)
def test_steps_to_a_goal(goal: float, steps: float) -> None:
    found = learning_speed.steps_to_goal(rows(np.arange(10.0), goal=goal))
    assert found == pytest.approx(steps, nan_ok=True)


def test_returns_are_averaged_over_episodes_of_a_fiftieth_of_the_rounds() -> None:
    returns = np.zeros(100)
    returns[10], returns[20:] = 10.0, 10.0  # one lucky round
    episodes = np.ones(100)
    assert learning_speed.steps_to_goal(rows(returns, episodes, goal=9.0)) == 2200  # rounds 20 and 21
    episodes[10] = 99
    assert learning_speed.steps_to_goal(rows(returns, episodes, goal=9.0)) == 1100
    returns[0], episodes[10] = 10.0, 1  # luck in the first round is averaged too
    assert learning_speed.steps_to_goal(rows(returns, episodes, goal=9.0)) == 2200
    returns[:20], episodes[:20] = np.nan, 0
    assert learning_speed.steps_to_goal(rows(returns, episodes, goal=9.0)) == 2100


@pytest.mark.parametrize(
    ("first", "scores", "goal"),
    [
        ([0.0, 2.0], [10.0, 12.0], 10.0),  # .9 of the way from 1 to 11
        ([-110.0], [-10.0], -20.0),
        ([5.0], [4.0], np.nan),
        ([5.0], [], np.nan),
    ],
)
def test_the_goal(first: list[float], scores: list[float], goal: float) -> None:
    frames = [pd.DataFrame({"episode_return": [np.nan, x, 99.0], "episodes": [0, 1, 1]}) for x in first]
    late = [pd.DataFrame({"episode_return": [x], "episodes": [3]}) for x in scores]
    assert learning_speed.goal(frames, late) == pytest.approx(goal, nan_ok=True)


def test_tables_and_headline_have_the_speed(tmp_path) -> None:
    rising = {"episode_return": lambda algo, seed, k: np.minimum(SLOPES[algo] * k, 18.0).astype(np.float32)}
    write_run(tmp_path / "a", "brax/ant", columns=rising)
    comparison = compare(load_all([str(tmp_path)]))
    scores = comparison.scores.set_index("variant")
    batch = scores.loc["ppo", "env_steps"] / 20
    # PPO scores 18 over its last two rounds, so the goal is 16.2: round 17, and round 9 at twice the slope.
    assert scores["steps_to_goal"].to_dict() == {"ppo": 18 * batch, "sv-static": 20 * batch, "sv-dynamic": 10 * batch}
    assert scores.loc["ppo", "area"] == pytest.approx((sum(range(19)) + 18) / 20, rel=1e-5)
    dynamic = comparison.environments["brax", "sv-dynamic"].iloc[0]
    assert dynamic["steps_to_goal_x_ppo"] == pytest.approx(10 / 18)
    assert dynamic["area_pct_of_ppo"] == pytest.approx(
        100 * scores.loc["sv-dynamic", "area"] / scores.loc["ppo", "area"]
    )
    said = " ".join(sentences(comparison))
    assert re.search(r"sv-dynamic has [^;]*, and needs 0.556 × PPO's steps to 90 % of PPO's gain", said)
    assert re.search(r"sv-static has [^;]*, and mostly does not reach 90 % of PPO's gain", said)


def test_without_ppo_there_is_no_goal(tmp_path) -> None:
    write_run(tmp_path / "a", "brax/ant", algo=("sv-dynamic",))
    comparison = compare(load_all([str(tmp_path)]))
    assert comparison.scores["steps_to_goal"].isna().all()
    assert comparison.scores["area"].tolist() == [10.0]
