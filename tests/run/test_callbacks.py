"""Callbacks: what they see, how they stop a run, and what happens when they fail."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pandas as pd
import pytest

import nextpolicy
from nextpolicy.cli import main as cli
from nextpolicy.config import ConfigError
from nextpolicy.run.callbacks import LONGEST, all_of, rounds_until
from nextpolicy.run.folder import RunError

from .helpers import SMALL, assert_same_run, options

pytestmark = [
    pytest.mark.allow_rank_promotion,
    pytest.mark.allow_key_reuse,
    pytest.mark.quick_compilation,
    pytest.mark.usefixtures("programs_kept"),
]
FIELDS: dict[str, Any] = {**SMALL, "env": "probe/action", "quiet": True, "block_rounds": 2, "seeds": 2}


def test_a_callback_sees_every_block_after_it_was_saved(tmp_path: Path) -> None:
    seen: list[nextpolicy.BlockEnd] = []
    policies = []

    def note(block: nextpolicy.BlockEnd) -> None:
        seen.append(block)
        policies.append(np.asarray(block.run.snapshot("behaviour").params["params"]["head"]["Dense_0"]["kernel"]))

    run = nextpolicy.train(**FIELDS, callback=note, out=tmp_path / "run")
    assert [block.rounds_done for block in seen] == [2, 4, 6, 8, 10]
    assert [block.env_steps for block in seen] == [64, 128, 192, 256, 320]
    assert all(not np.array_equal(a, b) for a, b in itertools.pairwise(policies)), "an old policy"
    drop = ["steps_per_second"]
    joined = pd.concat([block.metrics for block in seen]).sort_values(["member", "round"], ignore_index=True)
    pd.testing.assert_frame_equal(joined.drop(columns=drop), run.metrics.drop(columns=drop), check_dtype=False)
    rows = seen[0].metrics
    for member, value in seen[0].returns().items():
        own = rows[rows["member"] == member]
        assert value == pytest.approx(np.average(own["episode_return"], weights=own["episodes"]))


def test_a_stopped_run_goes_on_to_the_same_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole = nextpolicy.train(**FIELDS, out=tmp_path / "whole")
    fields = {**FIELDS, "quiet": False}
    run = nextpolicy.train(**fields, callback=lambda block: block.rounds_done >= 4, out=tmp_path / "run")
    assert run.status["state"] == "stopped"
    assert "run: stopped by its callback after 4 of 10 rounds" in capsys.readouterr().err
    last = run.metrics[run.metrics["round"] == 3].set_index("member")["episode_return"]
    np.testing.assert_allclose(run.scores()["score"], last)  # of its steps so far
    assert_same_run(nextpolicy.resume(run.path, quiet=True), whole)


def test_stopping_at_a_return_waits_for_every_member() -> None:
    metrics = {"member": [0, 0, 1, 1], "episodes": [1, 3, 0, 2], "episode_return": [0.0, 4.0, np.nan, 2.0]}
    block = nextpolicy.BlockEnd(None, pd.DataFrame(metrics), 1, 2)  # type: ignore[arg-type]
    assert block.returns().tolist() == [3.0, 2.0]
    assert nextpolicy.stop_at_return(2.0)(block) is True
    assert nextpolicy.stop_at_return(2.5)(block) is False
    nothing = nextpolicy.BlockEnd(None, pd.DataFrame({**metrics, "episodes": [1, 3, 0, 0]}), 1, 2)  # type: ignore[arg-type]
    assert nextpolicy.stop_at_return(-9.0)(nothing) is False
    for threshold in ("high", float("nan"), True):
        with pytest.raises(ConfigError, match="stop_at_return: expected a finite number, got"):
            nextpolicy.stop_at_return(threshold)  # type: ignore[arg-type]


def test_the_command_stops_too(tmp_path: Path) -> None:
    fields = {k: v for k, v in FIELDS.items() if k not in ("env", "quiet")}
    words = ["train", "probe/action", *options(**fields), "--quiet", "--out", str(tmp_path / "run")]
    cli.main([*words, "--stop-at-return", "-100"])
    assert nextpolicy.load(tmp_path / "run").status["rounds_done"] == 2
    cli.main(["resume", str(tmp_path / "run"), "--quiet", "--stop-at-return", "100"])
    assert nextpolicy.load(tmp_path / "run").status["state"] == "finished"


def test_a_callback_that_fails_costs_nothing(tmp_path: Path) -> None:
    def fail(block: nextpolicy.BlockEnd) -> None:
        raise RuntimeError("no connection")

    with pytest.raises(RuntimeError, match="no connection"):
        nextpolicy.train(**FIELDS, callback=fail, out=tmp_path / "run")
    run = nextpolicy.load(tmp_path / "run")
    assert (run.status["state"], run.status["reason"]) == ("failed", "no connection")
    assert nextpolicy.resume(run.path, quiet=True).status["state"] == "finished"
    with pytest.raises(ConfigError, match="callback: expected True to stop, or nothing, got 'yes'"):
        nextpolicy.train(**FIELDS, callback=lambda block: "yes", out=tmp_path / "words")  # type: ignore[arg-type,return-value]
    with pytest.raises(ConfigError, match="callback: expected a function of a BlockEnd, or a list of them, got 3"):
        nextpolicy.train(**FIELDS, callback=3, out=tmp_path / "three")  # type: ignore[arg-type]
    assert not (tmp_path / "three").exists()


@pytest.mark.parametrize("error", [RunError("the table is damaged"), SystemExit("enough")])
def test_no_run_is_left_running_by_a_callback(tmp_path: Path, error: BaseException) -> None:
    def fail(block: nextpolicy.BlockEnd) -> None:
        raise error

    with pytest.raises(type(error)):
        nextpolicy.train(**FIELDS, callback=fail, out=tmp_path / "run")
    status = nextpolicy.load(tmp_path / "run").status
    assert (status["state"], status["rounds_done"], status["reason"]) == ("failed", 2, str(error))
    assert nextpolicy.resume(tmp_path / "run", quiet=True).status["state"] == "finished"


def test_the_best_policy_of_each_member_is_kept(tmp_path: Path) -> None:
    snapshots: dict[tuple[int, int], Any] = {}

    class Watching(nextpolicy.EvaluateEvery):
        def _row(self, block: nextpolicy.BlockEnd, member: int) -> dict[str, Any]:
            snapshots[block.env_steps, member] = block.run.snapshot("target", member)
            # Member 0 is best in the middle, member 1 at the end.
            mean = {0: {128: 1.0, 224: 9.0, 320: 5.0}, 1: {128: 1.0, 224: 2.0, 320: 3.0}}[member][block.env_steps]
            return {**super()._row(block, member), "mean": mean}

    run = nextpolicy.train(**FIELDS, callback=Watching(100, episodes=4), out=tmp_path / "run")
    table = pd.read_csv(run.path / "evaluations.csv")
    assert table["env_steps"].tolist() == [128, 128, 224, 224, 320, 320]
    assert table.loc[table["member"] == 0, "mean"].tolist() == [1.0, 9.0, 5.0]
    for member, steps in ((0, 224), (1, 320)):
        for x, y in zip(
            jax.tree.leaves(run.snapshot("best", member)), jax.tree.leaves(snapshots[steps, member]), strict=True
        ):
            np.testing.assert_array_equal(x, y)
    assert run.policy("best", 1)(np.zeros(run._job.setup.spec.obs_shape, np.float32)) is not None
    assert cli.main(["eval", str(run.path), "--policy", "best", "--episodes", "2"]) == 0


def test_blocks_end_where_callbacks_ask_for_it(tmp_path: Path) -> None:
    """Without `block_rounds`, which would otherwise make blocks of some seconds."""
    fields = {**FIELDS, "block_rounds": 0}
    ends: list[int] = []
    every = [nextpolicy.EvaluateEvery(100, episodes=4), lambda block: ends.append(block.rounds_done)]
    run = nextpolicy.train(**fields, callback=every, out=tmp_path / "evaluated")
    assert {4, 7, 10} <= set(ends)
    assert pd.read_csv(run.path / "evaluations.csv")["env_steps"].unique().tolist() == [128, 224, 320]
    stop = nextpolicy.stop_at_return(-100.0)
    assert [stop.rounds_until(done, 32) for done in (0, 3, 9, 10)] == [10, 7, 1, 10]  # type: ignore[attr-defined]
    evaluate = nextpolicy.EvaluateEvery(100)
    assert [evaluate.rounds_until(done, 32) for done in (0, 3, 4, 6, 7)] == [4, 1, 3, 1, 3]
    assert nextpolicy.EvaluateEvery(1).rounds_until(5, 32) == 1
    both = all_of(stop, evaluate)
    assert both.rounds_until(6, 32) == 1  # type: ignore[union-attr]


@pytest.mark.parametrize("steps", [64, 100])
def test_evaluations_of_a_run_that_was_cut_off_are_those_of_a_whole_one(tmp_path: Path, steps: int) -> None:
    every = {"episodes": 4}
    whole = nextpolicy.train(**FIELDS, callback=nextpolicy.EvaluateEvery(steps, **every), out=tmp_path / "whole")
    both = all_of(nextpolicy.EvaluateEvery(steps, **every), lambda block: block.rounds_done == 6)
    cut = nextpolicy.train(**FIELDS, callback=both, out=tmp_path / "cut")
    assert cut.status["state"] == "stopped"
    again = nextpolicy.resume(cut.path, quiet=True, callback=nextpolicy.EvaluateEvery(steps, **every))
    assert (again.path / "evaluations.csv").read_bytes() == (whole.path / "evaluations.csv").read_bytes()
    for member in range(2):
        pairs = zip(*(jax.tree.leaves(run.snapshot("best", member)) for run in (again, whole)), strict=True)
        assert all(np.array_equal(x, y) for x, y in pairs)
    table = pd.read_csv(whole.path / "evaluations.csv")
    assert len(table) == {64: 10, 100: 6}[steps]
    own = table[table["member"] == 0].iloc[-1]
    expected = whole.evaluate(episodes=4).iloc[0]
    assert (own["mean"], own["std"]) == pytest.approx((expected["mean"], expected["std"]))


def test_bad_evaluations_are_one_line(tmp_path: Path) -> None:
    for arguments, words in (((0,), "evaluate_every"), ((64, 0), "episodes"), ((64, 4, "best"), "policy: expected")):
        with pytest.raises(ConfigError, match=words):
            nextpolicy.EvaluateEvery(*arguments)
    run = nextpolicy.train(**FIELDS, out=tmp_path / "run")
    with pytest.raises(RunError, match="has no best policy of member 1; train with --evaluate-every"):
        run.policy("best", 1)
    with pytest.raises(ConfigError, match="policy: expected 'target', 'behaviour' or 'best', got 'worst'"):
        run.policy("worst")
    (run.path / "best").mkdir()
    (run.path / "best" / "member-00000.npz").write_bytes(b"no arrays")
    with pytest.raises(RunError, match=r"member-00000.npz cannot be read"):
        run.policy("best")
    words = ["train", "probe/action", *options(**{k: v for k, v in FIELDS.items() if k not in ("env", "quiet")})]
    words += ["--quiet", "--evaluate-every", "200", "--evaluate-episodes", "2", "--out", str(tmp_path / "other")]
    assert cli.main(words) == 0
    assert pd.read_csv(tmp_path / "other" / "evaluations.csv")["env_steps"].unique().tolist() == [224, 320]


@pytest.mark.parametrize(("wanted", "given"), [(3, 3), (np.int64(4), 4), (0, 1), (-5, 1), (10**18, LONGEST)])
def test_a_block_has_at_least_one_round_and_not_too_many(wanted: Any, given: int) -> None:
    class Mine:
        def rounds_until(self, done: int, batch_size: int) -> Any:
            return wanted

    assert rounds_until(Mine(), 0, 32) == given  # type: ignore[arg-type]


@pytest.mark.parametrize("wanted", ["x", 1.5, float("nan"), None, True])
def test_a_wish_that_is_no_number_of_rounds_is_one_line(wanted: Any) -> None:
    class Mine:
        def rounds_until(self, done: int, batch_size: int) -> Any:
            return wanted

    with pytest.raises(ConfigError, match="callback: expected a whole number of rounds from rounds_until, got"):
        rounds_until(Mine(), 0, 32)  # type: ignore[arg-type]
