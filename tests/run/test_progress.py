"""What is shown while a run trains: each algorithm by itself."""

from __future__ import annotations

import numpy as np
import pytest

from nextpolicy.run import progress
from nextpolicy.run.progress import Speed, Standing

METRICS = {
    "episode_return": np.array([[1.0, np.nan], [4.0, 10.0], [np.nan, np.nan]]),
    "episodes": np.array([[2, 0], [1, 3], [0, 0]]),
    "accepted": np.array([[True, True], [False, True], [False, False]]),
}


def test_each_algorithm_has_its_own_mean_over_episodes() -> None:
    ppo, dynamic = progress.standings(METRICS, ["ppo", "sv-dynamic", "sv-dynamic"])
    assert ppo == Standing("ppo", 1.0, 1.0)
    assert dynamic == Standing("sv-dynamic", 8.5, 0.25)  # (4 + 3 x 10) / 4
    (nothing,) = progress.standings({k: v[2:] for k, v in METRICS.items()}, ["ppo"])
    assert np.isnan(nothing.mean_return)


def test_names_are_shown_if_there_are_several() -> None:
    both = [Standing("ppo", 1.0, 1.0), Standing("sv-dynamic", 8.5, 0.25)]
    assert progress.described(both) == "return ppo 1 (accepted 100%), sv-dynamic 8.5 (accepted 25%)"
    assert progress.described(both, accepted=False) == "return ppo 1, sv-dynamic 8.5"
    assert progress.described(both[1:]) == "return 8.5, accepted 25%"
    assert progress.described(both[1:], accepted=False) == "return 8.5"


def test_lines_are_few_and_say_how_long_it_will_take(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter([100.0, 101.0, 112.0, 113.0])
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(clock))
    lines = progress.Lines(400, "env")
    for done in (1, 2, 130, 400):
        lines.update(done, [Standing("ppo", 3.0, 1.0)], Speed(1e6, 2.0))
    said = capsys.readouterr().err.splitlines()
    assert said == [
        "env: round 1/400, 1M steps/s, return 3, accepted 100%, 3 min left",
        "env: round 130/400, 1M steps/s, return 3, accepted 100%, 2 min left",
        "env: round 400/400, 1M steps/s, return 3, accepted 100%, 0 s left",
    ]


def test_a_bar_says_how_long_it_will_take_after_its_first_block() -> None:
    bar = progress.Bar(400, "env")
    try:
        bar.update(2, [Standing("ppo", 3.0, 1.0)], Speed(1e6, 10.0))
        assert bar.bar.tasks[0].fields["facts"] == "1M steps/s  return 3, accepted 100%  40 s left"
    finally:
        bar.close()


@pytest.mark.parametrize(("seconds", "text"), [(0.4, "0 s"), (89, "89 s"), (600, "10 min"), (43_200, "12.0 h")])
def test_times_are_readable(seconds: float, text: str) -> None:
    assert progress.duration(seconds) == text
