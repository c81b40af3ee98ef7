"""Bad days: odd paths, strangers' files, damage, full disks, signals. What is there is never lost, and never wrong."""

from __future__ import annotations

import gc
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
import pytest

import nextpolicy
from nextpolicy import runfiles
from nextpolicy.cli import main as cli
from nextpolicy.config import presets
from nextpolicy.experiments.deadline import Deadline
from nextpolicy.run import checkpoint, interrupt, tensor_file, training
from nextpolicy.run.block import TrainingError
from nextpolicy.run.folder import RunError, RunFolder
from nextpolicy.run.job import make_job
from nextpolicy.run.training import run_job

from .helpers import COMMAND, assert_same_run, contents, environment, options
from .helpers import FOUR_ROOMS as FIELDS

pytestmark = [
    pytest.mark.allow_rank_promotion,
    pytest.mark.allow_key_reuse,
    pytest.mark.quick_compilation,
    pytest.mark.usefixtures("programs_kept"),
]


def part(run: Path, first: int) -> Path:
    return run / "metrics" / runfiles.part_name(first, first)


def change_json(path: Path, **changes: Any) -> None:
    runfiles.write_json(path, {**json.loads(path.read_text()), **changes})


def forget_records(run: Path) -> None:
    """Manifests as they were before they recorded metrics and configuration."""
    for manifest in (run / "checkpoints").glob("*.json"):
        raw = json.loads(manifest.read_text())
        kept = {k: v for k, v in raw.items() if k in ("rounds_done", "files", "state_format")}
        runfiles.write_json(manifest, kept)


# --- paths and disks ---


def test_a_path_with_wildcards_is_trained_loaded_and_resumed(whole: nextpolicy.Run, tmp_path: Path) -> None:
    out = tmp_path / "lr=[0.1] a*b?"
    assert_same_run(nextpolicy.train(**FIELDS, out=out), whole)
    part(out, 9).unlink()
    assert_same_run(nextpolicy.resume(out, quiet=True), whole)


def test_a_path_with_a_line_break_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"^run: [^\n]*a\\nb[^\n]*$"):
        nextpolicy.load(tmp_path / "a\nb")


def test_a_checkpoint_that_cannot_be_read_back_does_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that loses a bit."""
    chunks = tensor_file._chunks
    lost = iter([False, True])  # written, then read back

    def lossy(pieces: list[bytes]) -> Iterator[bytes]:
        first, *rest = chunks(pieces)
        yield (bytes(first)[:-1] + b"?") if next(lost) else first
        yield from rest

    monkeypatch.setattr(tensor_file, "_chunks", lossy)
    with pytest.raises(checkpoint.CheckpointError, match=r"^checkpoint: round 3 could not be saved in .*differently"):
        checkpoint.save(tmp_path, 3, {"x": np.arange(2)}, keep=1)
    assert list(tmp_path.iterdir()) == []


# --- somebody else's run folder ---

STRANGER = "import gymnasium, pathlib\npathlib.Path(__file__).with_name('it-ran').touch()\n"


@pytest.fixture
def stranger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A run whose environment id names a module, as it comes from somebody else; `it-ran` says that it was imported."""
    package = tmp_path / "theirrun"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "evil.py").write_text(STRANGER)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    fields = {k: v for k, v in FIELDS.items() if k not in ("env", "total_env_steps")}
    nextpolicy.train("gym/theirrun.evil:CartPole-v1", **fields, total_env_steps=64, out=package / "run")
    for name in ("theirrun", "theirrun.evil"):
        sys.modules.pop(name)
    (package / "it-ran").unlink()
    yield package
    for name in ("theirrun", "theirrun.evil"):
        sys.modules.pop(name, None)


def test_loading_a_strangers_run_runs_no_code(stranger: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = stranger / "run"
    run = nextpolicy.load(path)
    assert len(run.metrics) == 2
    assert len(run.scores()) == 1
    refused = r"imports the Python module theirrun\.evil, which runs its code; if you trust it, pass trust="
    for use in (run.snapshot, run.policy, run.evaluate, lambda: nextpolicy.resume(path, quiet=True)):
        with pytest.raises(RunError, match=refused):
            use()
    for command in (["eval", str(path)], ["resume", str(path)], ["eval", str(path), "--trust-module", "theirs"]):
        assert cli.main(command) == 2
        assert "--trust-module theirrun.evil" in capsys.readouterr().err
    assert cli.main(["report", str(path), "--out", str(stranger / "r.html"), "--page-only"]) == 0
    assert not (stranger / "it-ran").exists()


@pytest.mark.parametrize("trust", ["theirrun.evil", ["other", "theirrun.evil"], True])
def test_a_module_is_imported_at_the_users_word(stranger: Path, trust: Any) -> None:
    run = nextpolicy.load(stranger / "run", trust=trust)
    assert not (stranger / "it-ran").exists()
    run.snapshot()
    assert (stranger / "it-ran").exists()


def test_a_run_with_objects_of_the_callers_loads_without_them(tmp_path: Path) -> None:
    fields = {k: v for k, v in FIELDS.items() if k not in ("env", "total_env_steps")}
    make = lambda: gymnasium.make("CartPole-v1")  # noqa: E731
    nextpolicy.train(env_fn=make, **fields, total_env_steps=64, out=tmp_path / "run")
    run = nextpolicy.load(tmp_path / "run")
    assert len(run.metrics) == 2
    assert len(run.scores()) == 1
    assert cli.main(["report", str(run.path), "--out", str(tmp_path / "r.html"), "--page-only"]) == 0
    with pytest.raises(RunError, match="was trained with a custom env_fn; pass the same again"):
        run.policy()
    assert nextpolicy.load(run.path, env_fn=make).policy() is not None


# --- metrics ---


def test_an_early_part_that_is_lost_costs_no_training(
    whole: nextpolicy.Run, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Round 2 of a run that is cut off at round 9: training goes on from there, and all checkpoints stay."""
    checkpoint._remove(run / "checkpoints" / "00000010")
    part(run, 2).write_bytes(b"garbage")
    RunFolder(run).set_status("running", rounds_done=9)
    before = contents(run / "checkpoints")
    resumed = nextpolicy.resume(run, quiet=True)
    said = capsys.readouterr().err
    assert "metrics of round 2 are damaged (part-00000002-00000002.parquet has changed since it was written)" in said
    assert "renamed to part-00000002-00000002.damaged" in said
    assert "there is no earlier checkpoint; `nextpolicy resume" in said
    assert (run / "metrics" / "part-00000002-00000002.damaged").read_bytes() == b"garbage"
    assert before.items() <= contents(run / "checkpoints").items()
    assert set(resumed.partial_metrics()["round"]) == set(range(10)) - {2}
    for use in (lambda: resumed.metrics, resumed.scores):
        with pytest.raises(RunError, match="metrics of round 2 are missing; `nextpolicy resume"):
            use()
    assert resumed.scores(allow_gaps=True).equals(whole.scores())
    report = ["report", str(run), "--out", str(run.parent / "r.html"), "--page-only"]
    assert (cli.main(report), cli.main([*report, "--allow-gaps"])) == (2, 0)
    assert "metrics of some rounds are not in the folder" in (run.parent / "r.html").read_text()
    assert_same_run(nextpolicy.resume(run, quiet=True, recompute_metrics=True), whole)


def test_the_last_part_of_a_finished_run_is_missed_and_computed_again(
    whole: nextpolicy.Run, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    part(run, 9).unlink()
    for allow in (False, True):
        with pytest.raises(RunError, match="metrics of round 9 are missing"):
            nextpolicy.load(run).scores(allow_gaps=allow)
    assert cli.main(["report", str(run), "--out", str(run.parent / "r.html")]) == 2
    assert "metrics of round 9 are missing; `nextpolicy resume" in capsys.readouterr().err
    before = contents(run / "checkpoints" / "00000009") | contents(run / "checkpoints" / "00000010")
    assert_same_run(nextpolicy.resume(run, quiet=True), whole)
    assert "recomputing them from round 9" in capsys.readouterr().err
    assert contents(run / "checkpoints" / "00000009") | contents(run / "checkpoints" / "00000010") == before
    assert cli.main(["report", str(run), "--out", str(run.parent / "r.html"), "--page-only"]) == 0


def test_what_lies_after_a_checkpoint_is_computed_again(
    whole: nextpolicy.Run, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Rounds 7 to 9 are lost and the checkpoint of round 9 is there: round 9 at once, the others on request."""
    for first in (7, 8, 9):
        part(run, first).unlink()
    resumed = nextpolicy.resume(run, quiet=True)
    said = capsys.readouterr().err
    assert "metrics of rounds 7 to 8 are missing; there is no earlier checkpoint" in said
    assert "metrics of round 9 are missing; recomputing them from round 9" in said
    assert set(resumed.partial_metrics()["round"]) == set(range(10)) - {7, 8}
    assert_same_run(nextpolicy.resume(run, quiet=True, recompute_metrics=True), whole)


def flipped(path: Path, bit: int) -> None:
    data = bytearray(path.read_bytes())
    data[bit // 8] ^= 1 << bit % 8
    path.write_bytes(data)


@pytest.mark.parametrize("flips", [40, pytest.param(600, marks=pytest.mark.slow)])
def test_no_flipped_bit_in_a_part_goes_unnoticed(run: Path, flips: int) -> None:
    draw, parts = random.Random(0), sorted((run / "metrics").iterdir())
    for _ in range(flips):
        path = draw.choice(parts)
        good = path.read_bytes()
        flipped(path, draw.randrange(8 * len(good)))
        with pytest.raises(RunError, match=r"has changed since it was written"):
            _ = nextpolicy.load(run).metrics
        path.write_bytes(good)
    assert len(nextpolicy.load(run).metrics) == 10


def test_a_run_of_a_version_without_records_still_loads_and_resumes(whole: nextpolicy.Run, run: Path) -> None:
    forget_records(run)
    assert_same_run(nextpolicy.load(run), whole)
    checkpoint._remove(run / "checkpoints" / "00000010")
    RunFolder(run).set_status("running", rounds_done=9)
    assert_same_run(nextpolicy.resume(run, quiet=True), whole)
    flipped(part(run, 3), 8 * 40)
    with pytest.raises(RunError, match="has changed since it was written"):
        _ = nextpolicy.load(run).metrics


def test_a_finished_run_without_a_whole_checkpoint_is_left_alone(run: Path) -> None:
    for name in ("00000009", "00000010"):
        (run / "checkpoints" / name / checkpoint.ARRAYS).unlink()
    before = contents(run / "metrics")
    for _ in range(2):
        with pytest.raises(RunError, match="is finished but has no intact checkpoint"):
            nextpolicy.resume(run, quiet=True)
        assert contents(run / "metrics") == before
        assert RunFolder(run).status()["state"] == "finished"


def test_an_older_policy_is_not_taken_for_that_of_a_finished_run(whole: nextpolicy.Run, run: Path) -> None:
    flipped(run / "checkpoints" / "00000010" / checkpoint.ARRAYS, 80)
    with pytest.raises(RunError, match=r"checkpoint 10 is damaged \(.*\); `nextpolicy resume"):
        nextpolicy.load(run).snapshot()
    assert_same_run(nextpolicy.resume(run, quiet=True), whole)


# --- config.json ---


def test_a_changed_setting_is_named_and_refused(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    change_json(run / "config.json", learning_rate=0.5)
    changed = r"learning_rate is 0\.5 in config\.json and 0\.00025 in the checkpoint; restore it"
    with pytest.raises(RunError, match=changed):
        nextpolicy.resume(run, quiet=True)
    with pytest.raises(RunError, match=changed):
        nextpolicy.load(run).snapshot()
    assert cli.main(["report", str(run), "--out", str(run.parent / "r.html")]) == 2
    assert "config.json was changed: learning_rate is 0.5" in capsys.readouterr().err
    with pytest.raises(RunError, match=changed):
        nextpolicy.load(run).scores()
    change_json(run / "config.json", learning_rate=0.00025, keep_checkpoints=5)
    assert nextpolicy.load(run).snapshot() is not None


def test_fewer_rounds_than_are_done_are_refused(run: Path) -> None:
    """Also where the manifest is of a version that did not record settings."""
    RunFolder(run).set_status("stopped", rounds_done=10)
    change_json(run / "config.json", total_env_steps=96)
    before = contents(run)
    with pytest.raises(RunError, match=r"total_env_steps is 96 in config\.json and 320 in the checkpoint"):
        nextpolicy.resume(run, quiet=True)
    assert contents(run) == before
    forget_records(run)
    with pytest.raises(RunError, match=r"has a checkpoint of round 10, but config\.json asks for 3 rounds"):
        nextpolicy.resume(run, quiet=True)
    assert part(run, 9).exists()


def test_a_manifest_that_was_changed_is_not_believed(
    whole: nextpolicy.Run, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = run / "checkpoints" / "00000010.json"
    path.write_text(path.read_text().replace('"metrics"', '"metrixs"'))
    RunFolder(run).set_status("running", rounds_done=10)
    assert_same_run(nextpolicy.resume(run, quiet=True), whole)
    assert "checkpoint 10 is damaged (its manifest cannot be read)" in capsys.readouterr().err


@pytest.mark.parametrize(
    "manifest", [{"files": {}}, {"files": {"x": [float("inf"), "a"]}}, {"files": {"x": [1, "a"]}, "metrics": None}]
)
def test_odd_manifests_are_damage(run: Path, manifest: dict[str, Any]) -> None:
    (run / "checkpoints" / "00000010.json").write_text(json.dumps(manifest))
    assert checkpoint.fault(run / "checkpoints", 10)
    assert len(nextpolicy.load(run).metrics) == 10


def test_recorded_parts_are_believed_and_others_set_aside(whole: nextpolicy.Run, run: Path) -> None:
    """A part of three rounds lies beside the three that training wrote, and another is a folder."""
    frame = nextpolicy.load(run).metrics
    frame[frame["round"].between(3, 5)].to_parquet(run / "metrics" / runfiles.part_name(3, 5))
    found = runfiles.metrics_damage(run, "finished", 10)
    assert [(d.first, d.last, d.path.name if d.path else "") for d in found] == [(3, 5, runfiles.part_name(3, 5))]
    part(run, 9).unlink()
    part(run, 9).mkdir()
    assert_same_run(nextpolicy.resume(run, quiet=True), whole)


def test_a_lock_that_is_a_link_empties_no_file(run: Path) -> None:
    mine = run.parent / "mine.txt"
    mine.write_text("keep me")
    (run / ".lock").unlink()
    (run / ".lock").symlink_to(mine)
    with pytest.raises(OSError, match="symbolic links"):
        nextpolicy.resume(run, quiet=True)
    assert mine.read_text() == "keep me"


# --- what is not finite ---


class Overflowing(gymnasium.Env):
    """Observations become infinite after `steps` steps; rewards never do."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (2,))
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, steps: int) -> None:
        self.left = steps

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> Any:
        self.left -= 1
        return np.full(2, np.inf if self.left < 0 else 0.0, np.float32), 1.0, False, False, {}


@pytest.mark.parametrize(("steps", "saved"), [(0, 0), (20, 2)])
def test_infinite_observations_are_not_saved(tmp_path: Path, steps: int, saved: int) -> None:
    fields = {k: v for k, v in FIELDS.items() if k != "env"}
    stands = "the checkpoint of round 2 is the last finite one" if saved else "there is no checkpoint yet"
    with pytest.raises(TrainingError, match=stands):
        nextpolicy.train(env_fn=lambda: Overflowing(steps), **fields, normalise_obs=True, out=tmp_path / "run")
    assert checkpoint.list_rounds(tmp_path / "run" / "checkpoints") == [1, 2][:saved]
    status = RunFolder(tmp_path / "run").status()
    assert (status["state"], status["rounds_done"]) == ("failed", saved)


def test_a_saved_state_that_is_not_finite_is_passed_over(
    whole: nextpolicy.Run, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = make_job(nextpolicy.load(run).config)
    program = job.program()
    state = checkpoint.restore(run / "checkpoints", 10, checkpoint.placed_like(program.init(job.seeds)))
    infinite = state.agent._replace(target=type(state.agent.target)(*_infinite(state.agent.target)))
    about = {k: v for k, v in checkpoint.manifest(run / "checkpoints", 10).items() if k in ("config", "metrics")}
    checkpoint.save(run / "checkpoints", 10, state._replace(agent=infinite), 2, about)
    RunFolder(run).set_status("running", rounds_done=10)
    assert_same_run(nextpolicy.resume(run, quiet=True), whole)
    assert "checkpoint 10 contains values that are not finite; falling back" in capsys.readouterr().err


def _infinite(snapshot: Any) -> Any:
    import jax

    return jax.tree.map(lambda x: x * np.inf, tuple(snapshot))


# --- a full disk ---


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 400 kB, where one may be made."""
    disk = tmp_path / "disk"
    disk.mkdir()
    made = shutil.which("mount") and subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=400k", "tmpfs", str(disk)], capture_output=True, check=False
    )
    if not made or made.returncode:
        pytest.skip("mounting a file system needs root")
    try:
        yield disk
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_a_full_disk_is_one_line_and_leaves_nothing_half_written(whole: nextpolicy.Run, small_disk: Path) -> None:
    out = small_disk / "run"
    fields = {k: v for k, v in FIELDS.items() if k not in ("env", "quiet")}
    command = [*COMMAND, "train", "four-rooms", "--quiet", "--out", str(out), *options(**fields)]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 2, done.stderr
    assert len(done.stderr.splitlines()) == 1, done.stderr
    assert "o space left on" in done.stderr
    assert f"`nextpolicy resume {out}` continues it" in done.stderr
    status = RunFolder(out).status()
    assert status["state"] == "failed"
    assert "o space left on" in status["reason"]
    assert status["rounds_done"] == max(checkpoint.list_rounds(out / "checkpoints"), default=0)
    assert not [p for p in out.rglob("*") if "tmp" in p.name]
    subprocess.run(["mount", "-o", "remount,size=40m", str(small_disk)], check=True)
    assert_same_run(nextpolicy.resume(out, quiet=True), whole)


# --- two at a time ---


def test_a_checkpoint_that_is_replaced_while_it_is_read(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    restore, tried = checkpoint.restore, []

    def replaced(folder: Path, rounds: int, template: Any) -> Any:
        tried.append(rounds)
        if len(tried) == 1:
            checkpoint._remove(folder / f"{rounds:08d}")
        return restore(folder, rounds, template)

    monkeypatch.setattr(checkpoint, "restore", replaced)
    RunFolder(run).set_status("running", rounds_done=10)
    assert nextpolicy.load(run).snapshot() is not None
    assert tried == [10, 9]


# --- stops ---


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_stops_a_run_that_can_be_resumed(whole: nextpolicy.Run, tmp_path: Path, signum: int) -> None:
    fields = {k: v for k, v in FIELDS.items() if k not in ("env", "quiet")}
    job = make_job(presets.build("four-rooms", algo="sv-dynamic", **fields))
    folder = RunFolder.create(tmp_path / "run", job.config, {"custom": []})

    def press(first: int, *_: Any) -> None:
        if first == 3:
            signal.raise_signal(signum)

    usual = signal.getsignal(signum)
    with pytest.raises(interrupt.Stopped) as stopped:
        run_job(job, folder, quiet=True, on_block=press)
    folder.unlock()
    assert signal.getsignal(signum) is usual
    assert stopped.value.signum == signum
    assert str(stopped.value) == f"training stopped at round 4 of 10; `nextpolicy resume {folder.path}` continues it"
    assert isinstance(stopped.value, KeyboardInterrupt)
    status = folder.status()
    assert (status["state"], status["rounds_done"]) == ("stopped", 4)
    assert_same_run(nextpolicy.resume(folder.path, quiet=True), whole)


def test_a_signal_that_python_drops_still_stops(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What is raised inside a callback of the garbage collector goes no further."""
    fields = {k: v for k, v in FIELDS.items() if k not in ("env", "quiet")}
    job = make_job(presets.build("four-rooms", algo="sv-dynamic", **fields))
    folder = RunFolder.create(tmp_path / "run", job.config, {"custom": []})

    def in_callback(*_: Any) -> None:
        gc.callbacks.remove(in_callback)
        signal.raise_signal(signal.SIGTERM)

    def press(first: int, *_: Any) -> None:
        if first == 3:
            gc.callbacks.append(in_callback)
            gc.collect()

    with pytest.raises(interrupt.Stopped):
        run_job(job, folder, quiet=True, on_block=press)
    folder.unlock()
    assert folder.status()["state"] == "stopped"
    assert "ignored" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("env", "custom", "words"),
    [
        ("four-rooms", [], "`nextpolicy resume {path} --recompute-metrics` continues it"),
        ("gym/mine:Maze-v0", [], "`nextpolicy resume {path} --trust-module mine --recompute-metrics` continues it"),
        ("custom/Maze", ["env_fn"], "`nextpolicy.resume({path!r}, env_fn=...)` continues it"),
    ],
)
def test_the_last_line_is_what_continues_the_run(tmp_path: Path, env: str, custom: list[str], words: str) -> None:
    path = tmp_path / "my run"
    config = presets.build(env)
    RunFolder.create(path, config, {"custom": custom}).unlock()
    job = SimpleNamespace(config=config)
    shown = str(path) if custom else f"'{path}'"
    expected = words.replace("{path!r}", repr(str(path))).replace("{path}", shown)
    assert training._how_to_continue(job, RunFolder(path), True) == expected  # type: ignore[arg-type]


def test_ignored_signals_stay_ignored() -> None:
    """As nohup asks for."""
    usual = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with interrupt.raised(""):
            signal.raise_signal(signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, usual)


def test_a_second_ctrl_c_shows_no_traceback(tmp_path: Path) -> None:
    out = tmp_path / "run"
    fields = {k: v for k, v in FIELDS.items() if k not in ("env", "quiet")} | {"total_env_steps": 32 * 100_000}
    command = [*COMMAND, "train", "four-rooms", "--quiet", "--out", str(out), *options(**fields)]
    with subprocess.Popen(command, env=environment(), stderr=subprocess.PIPE, text=True) as process:
        try:
            _wait(lambda: part(out, 2).exists() or process.poll() is not None)
            process.send_signal(signal.SIGINT)
            time.sleep(0.02)
            process.send_signal(signal.SIGINT)
            said = process.communicate(timeout=60)[1]
        finally:
            process.kill()
    assert process.returncode in (130, -signal.SIGINT)
    lines = said.splitlines()  # one, or two where the first signal's own line was out already
    assert lines
    assert all(line.endswith(f"`nextpolicy resume {out}` continues it") for line in lines)


def _wait(condition: Callable[[], bool], seconds: float = 200) -> None:
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.01)


@pytest.mark.parametrize("sink", [{"wandb": "x"}, {"tensorboard": True}])
def test_a_missing_extra_is_said_before_the_folder_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sink: dict[str, Any]
) -> None:
    for name in ("wandb", "tensorboardX"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ValueError, match="pip install"):
        nextpolicy.train(**FIELDS, **sink, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_start_that_was_killed_before_its_configuration_blocks_nothing(tmp_path: Path) -> None:
    config = presets.build("four-rooms")
    left = tmp_path / "run"
    for name in ("metrics", "checkpoints"):
        (left / name).mkdir(parents=True)
    for name in (".lock", f".config.json.{os.getpid()}.tmp"):
        (left / name).touch()
    RunFolder.create(left, config, {}).unlock()
    assert (left / "config.json").is_file()
    mine = tmp_path / "mine"
    (mine / "metrics").mkdir(parents=True)
    (mine / "metrics" / "notes.txt").write_text("keep me")
    with pytest.raises(RunError, match="holds other files"):
        RunFolder.create(mine, config, {})
    assert (mine / "metrics" / "notes.txt").read_text() == "keep me"


def test_a_suite_from_a_file_imports_no_module_unasked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "theirs.py").write_text(STRANGER)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "s.toml").write_text('environments = ["gym/theirs:CartPole-v1"]\nalgo = "ppo"\n')
    command = ["suite", "run", str(tmp_path / "s.toml"), "--out", str(tmp_path / "out"), "--budget", "1s"]
    monkeypatch.setattr(Deadline, "allows_start", lambda _: False)  # no time to begin anything
    assert cli.main(command) == 2
    assert "imports the Python module theirs" in capsys.readouterr().err
    assert cli.main([*command, "--trust-module", "theirs"]) == 0
    assert not (tmp_path / "it-ran").exists()
