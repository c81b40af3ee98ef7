"""Arguments that no run was made for: each is refused in one line, before anything is written or trained."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

import nextpolicy
from nextpolicy import runfiles
from nextpolicy.config import ConfigError
from nextpolicy.report import compact, runs
from nextpolicy.run import folder
from nextpolicy.run.folder import RunError
from run.helpers import FOUR_ROOMS, SMALL
from run.test_api import Actor, Corridor, Critic, EveryOther

pytestmark = [pytest.mark.allow_rank_promotion, pytest.mark.allow_key_reuse, pytest.mark.quick_compilation]

BAD_NAME = os.fsdecode(b"run-\xff")  # a folder name that is not UTF-8


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("env", Corridor()),
        ("env_fn", Corridor),
        ("env_params", {"length": 2}),
        ("actor", Actor()),
        ("critic", Critic()),
        ("criterion", EveryOther()),
        ("criterion_params", [1.0]),
    ],
)
def test_a_run_does_not_go_on_with_objects_that_it_was_not_started_with(
    whole: nextpolicy.Run, name: str, given: Any
) -> None:
    said = rf"was trained without a custom {name}, got one; leave out {name}="
    with pytest.raises(RunError, match=said):
        nextpolicy.resume(whole.path, quiet=True, **{name: given})
    with pytest.raises(RunError, match=said):
        nextpolicy.load(whole.path, **{name: given}).policy()


def test_a_member_may_be_any_whole_number(whole: nextpolicy.Run, tmp_path: Path) -> None:
    assert whole.export(tmp_path / "policy", member=0.0).is_dir()  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"member: expected a whole number"):
        whole.export(tmp_path / "other", member=0.5)  # type: ignore[arg-type]


@pytest.mark.parametrize("threshold", [10**400, -(10**400)])
def test_a_return_beyond_floating_point_is_refused(threshold: int) -> None:
    with pytest.raises(ConfigError, match="stop_at_return: expected a finite number, got"):
        nextpolicy.stop_at_return(threshold)


@pytest.mark.parametrize("preset", [["paper"], {}, 3])
def test_a_preset_that_is_no_name_is_refused(preset: Any) -> None:
    with pytest.raises(ConfigError, match="preset: expected one of corrected, paper"):
        nextpolicy.train("four-rooms", preset=preset, **SMALL)


def test_a_folder_name_that_is_not_text_is_refused(whole: nextpolicy.Run, tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"out: expected a path in UTF-8, got '.*run-\\udcff'; choose another name"):
        nextpolicy.train(**FOUR_ROOMS, out=tmp_path / BAD_NAME)
    assert not list(tmp_path.iterdir())
    shutil.copytree(whole.path, tmp_path / BAD_NAME)
    with pytest.raises(RunError, match=r"run: expected a path in UTF-8, got '.*'; rename the folder"):
        nextpolicy.load(tmp_path / BAD_NAME)
    with pytest.raises(runs.ReportError, match=r"report: expected a path in UTF-8, got '.*'; rename the folder"):
        runs.find([tmp_path])


def test_a_folder_inside_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(RunError, match=r"out: expected a new or empty folder, got .*run, which is inside a file"):
        nextpolicy.train(**FOUR_ROOMS, out=tmp_path / "file" / "run")
    assert (tmp_path / "file").read_text() == "mine"


def test_hints_are_commands_that_a_shell_understands(whole: nextpolicy.Run, tmp_path: Path) -> None:
    run = Path(shutil.copytree(whole.path, tmp_path / "my run"))
    hint = re.escape(f"`nextpolicy resume '{run}'`")
    with pytest.raises(RunError, match=f"{hint} continues it"):
        nextpolicy.train(**FOUR_ROOMS, out=run)
    next((run / "metrics").glob("part-*")).unlink()
    with pytest.raises(runs.ReportError, match=f"{hint} recomputes them"):
        runs.load(run)


def test_a_status_that_is_not_text_can_be_reported(run: Path, tmp_path: Path) -> None:
    (run / "status.json").write_text('{"state": "\\ud800", "reason": "\\ud800", "time": "\\ud800"}')
    found = runs.load(run)
    assert (found.state, found.reason, found.last_sign) == ("\\ud800",) * 3


def test_sac_on_discrete_actions_names_what_works() -> None:
    with pytest.raises(ConfigError, match="algo: expected a variant of ppo or pqn for gymnax/CartPole-v1"):
        nextpolicy.train("gymnax/CartPole-v1", algo="sac", total_env_steps=10_000)


@pytest.mark.parametrize("path", [None, 3, 1.5, ["run"]])
def test_what_is_no_path_is_named(whole: nextpolicy.Run, path: Any) -> None:
    for name, call in (
        ("run", nextpolicy.load),
        ("run", nextpolicy.resume),
        ("folder", whole.export),
        ("out", lambda given: nextpolicy.train(**FOUR_ROOMS, out=given)),
    ):
        if (name, path) != ("out", None):  # a place of its own
            with pytest.raises(ConfigError, match=rf"^{name}: expected a path, got {re.escape(repr(path))}$"):
                call(path)


def test_a_folder_that_another_process_takes_meanwhile_is_refused(
    whole: nextpolicy.Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    describe = folder.describe_machine

    def slowly() -> dict[str, Any]:
        (tmp_path / "run").mkdir()
        (tmp_path / "run" / "config.json").write_text("theirs")
        return describe()

    monkeypatch.setattr(folder, "describe_machine", slowly)
    with pytest.raises(RunError, match=r"^out: expected a new or empty folder, got .*run, which holds another run$"):
        nextpolicy.train(**FOUR_ROOMS, out=tmp_path / "run")
    assert (tmp_path / "run" / "config.json").read_text() == "theirs"


def test_a_small_copy_cannot_name_files_outside_of_it(whole: nextpolicy.Run, tmp_path: Path) -> None:
    compact.write_copies([str(whole.path)], tmp_path)
    (place,) = tmp_path.iterdir()
    runfiles.write_manifest(place / runfiles.COPIED, {"files": {"/dev/zero": [0, "x"], "config.json": [0, "x"]}})
    with pytest.raises(runs.ReportError, match=r"it names files outside the run\); copy the run again$"):
        runs.load(place)
