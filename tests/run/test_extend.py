"""A run is extended in place: nothing of it is lost, and it can be killed and resumed like any other."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import nextpolicy
from nextpolicy import runfiles
from nextpolicy.cli import main as cli
from nextpolicy.config import ConfigError
from nextpolicy.report import runs as report_runs
from nextpolicy.run import training
from nextpolicy.run.folder import RunError

from .helpers import FOUR_ROOMS as FIELDS
from .helpers import assert_same_run, contents

pytestmark = [
    pytest.mark.allow_rank_promotion,
    pytest.mark.allow_key_reuse,
    pytest.mark.quick_compilation,
    pytest.mark.usefixtures("programs_kept"),
]


@pytest.fixture(scope="module")
def longer(whole: nextpolicy.Run, tmp_path_factory: pytest.TempPathFactory) -> nextpolicy.Run:
    """The same run extended to fourteen rounds."""
    path = shutil.copytree(whole.path, tmp_path_factory.mktemp("runs") / "longer")
    return nextpolicy.resume(path, total_env_steps=total(whole, 14), quiet=True)


def total(whole: nextpolicy.Run, rounds: int) -> int:
    return rounds * whole.config.batch_size


def test_earlier_rounds_are_kept_and_schedules_run_over_the_new_total(
    whole: nextpolicy.Run, longer: nextpolicy.Run
) -> None:
    assert longer.config.num_rounds == 14
    assert longer.status["state"] == "finished"
    first = longer.metrics[longer.metrics["round"] < 10].reset_index(drop=True)
    pd.testing.assert_frame_equal(first, whole.metrics)
    one = longer.metrics[longer.metrics["member"] == 0].set_index("round")
    initial, last = longer.config.algorithm.learning_rate, longer.config.algorithm.learning_rate_final
    rate = initial + (last - initial) * np.arange(14) / 14
    np.testing.assert_allclose(one["learning_rate"][10:], rate[10:], rtol=1e-5)
    assert one["learning_rate"][10] > one["learning_rate"][9], "the schedule is that of the new total"
    assert json.loads((longer.path / "config.json").read_text())["extended"] == [
        {"rounds": 10, "total_env_steps": total(whole, 10)}
    ]
    assert report_runs.load(longer.path).rounds_done == 14


def test_an_extended_run_that_is_killed_goes_on_to_the_same_end(
    whole: nextpolicy.Run, longer: nextpolicy.Run, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(BaseException):
        pass

    def kill(*arguments: Any, **named: Any) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(training, "run_block", kill)
        with pytest.raises(Killed):
            nextpolicy.resume(run, total_env_steps=total(whole, 14), quiet=True)
    assert nextpolicy.load(run).status["state"] == "running"
    # With or without the total: the folder knows it.
    again = nextpolicy.resume(run, total_env_steps=total(whole, 14), quiet=True)
    assert_same_run(again, longer)
    assert nextpolicy.resume(run, quiet=True).config.num_rounds == 14


def test_the_command_says_what_changes(whole: nextpolicy.Run, run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (run / "evaluation.json").write_text("[]")
    assert cli.main(["resume", str(run), "--total-env-steps", str(total(whole, 11)), "--quiet"]) == 0
    said = capsys.readouterr()
    assert not said.err
    assert (run / "evaluation-00000010.json").read_text() == "[]"
    assert not (run / "evaluation.json").exists()
    assert cli.main(["resume", str(run), "--total-env-steps", f"{total(whole, 12):.3e}"]) == 0
    said = capsys.readouterr()
    assert "of 12 rounds done; the schedules of the learning rate and of the gate now run over the new" in said.err
    assert [rounds for rounds, _ in runfiles.extensions(json.loads((run / "config.json").read_text()))] == [10, 11]


@pytest.mark.parametrize(
    ("steps", "words"),
    [
        (9, "total_env_steps: expected at least 320, the total of .*, got 288; a run cannot be shortened"),
        ("many", "total_env_steps: expected .*, got 'many'"),
        (-1, "total_env_steps"),
    ],
)
def test_a_total_that_is_none_changes_nothing(whole: nextpolicy.Run, run: Path, steps: Any, words: str) -> None:
    before = contents(run)
    asked = steps if isinstance(steps, str) or steps < 0 else total(whole, steps)
    with pytest.raises(ConfigError, match=words):
        nextpolicy.resume(run, total_env_steps=asked, quiet=True)
    assert contents(run) == before
    assert nextpolicy.resume(run, total_env_steps=total(whole, 10), quiet=True).config == whole.config
    assert contents(run) == before, "the same total extends nothing"


def test_metrics_before_an_extension_are_not_recomputed_under_other_schedules(
    longer: nextpolicy.Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = Path(shutil.copytree(longer.path, tmp_path / "run"))
    first, *_ = sorted((run / "metrics").iterdir())
    first.unlink()
    nextpolicy.resume(run, recompute_metrics=True)
    said = " ".join(capsys.readouterr().err.split())
    assert "they cannot be recomputed: the run was extended after round 10, and no checkpoint is left" in said
    assert not first.exists()
    # The checkpoint of the extension is gone, so later rounds cannot be recomputed either.
    later = run / "metrics" / runfiles.part_name(11, 11)
    later.unlink()
    nextpolicy.resume(run, recompute_metrics=True, quiet=True)
    assert not later.exists()


@pytest.mark.parametrize("history", [7, ["x"], [{"rounds": 1}], [{"rounds": "a", "total_env_steps": 1}]])
def test_a_history_that_is_none_is_one_line(run: Path, history: Any) -> None:
    raw = json.loads((run / "config.json").read_text())
    (run / "config.json").write_text(json.dumps({**raw, "extended": history}))
    with pytest.raises(RunError, match=r"config.json: extended: expected a list"):
        nextpolicy.load(run).config  # noqa: B018
    with pytest.raises(report_runs.ReportError, match=r"extended: expected a list"):
        report_runs.load(run)


def test_a_total_changed_by_hand_is_still_refused(whole: nextpolicy.Run, run: Path) -> None:
    raw = json.loads((run / "config.json").read_text())
    (run / "config.json").write_text(json.dumps({**raw, "total_env_steps": total(whole, 20)}))
    with pytest.raises(RunError, match="was changed: total_env_steps is"):
        nextpolicy.resume(run, quiet=True)


def test_a_stopped_run_is_extended_from_where_it_is(whole: nextpolicy.Run, tmp_path: Path) -> None:
    run = nextpolicy.train(**FIELDS, callback=lambda block: block.rounds_done == 4, out=tmp_path / "run")
    longer = nextpolicy.resume(run.path, total_env_steps=total(whole, 12), quiet=True)
    assert runfiles.extensions(json.loads((run.path / "config.json").read_text())) == [(4, total(whole, 10))]
    assert longer.status["state"] == "finished"
    assert longer.metrics["round"].max() == 11


def test_a_run_that_cannot_be_resumed_is_not_extended(
    whole: nextpolicy.Run, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw = json.loads((run / "config.json").read_text())
    (run / "config.json").write_text(json.dumps({**raw, "custom": ["actor"]}))
    for path in (run / "checkpoints").glob("*.json"):
        manifest = {k: v for k, v in runfiles.read_manifest(path).items() if k != "config"}
        runfiles.write_manifest(path, manifest)
    before = contents(run)
    with pytest.raises((ConfigError, RunError), match="actor"):
        nextpolicy.resume(run, total_env_steps=total(whole, 14), quiet=True)
    assert contents(run) == before
    (run / "study.json").write_text("{}")
    with pytest.raises(RunError, match="is a study, which cannot be extended; start another with more rounds"):
        nextpolicy.resume(run, total_env_steps=total(whole, 14), quiet=True)


def test_a_run_that_was_edited_is_not_extended(whole: nextpolicy.Run, run: Path) -> None:
    raw = json.loads((run / "config.json").read_text())
    (run / "config.json").write_text(json.dumps({**raw, "clip": 0.5}))
    before = contents(run)
    with pytest.raises(RunError, match=r"was changed: clip is 0\.5"):
        nextpolicy.resume(run, total_env_steps=total(whole, 14), quiet=True)
    assert contents(run) == before


def test_an_extension_is_recorded_before_training(
    whole: nextpolicy.Run, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nextpolicy.run.api.run_job", lambda *arguments, **named: None)
    nextpolicy.resume(run, total_env_steps=total(whole, 14), quiet=True)
    assert nextpolicy.load(run).status["state"] == "stopped"
    assert nextpolicy.load(run).status["rounds_done"] == 10
