"""A run that was killed and resumed is the run that was not, bit for bit; damage is seen, said and got around."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import nextpolicy
from nextpolicy import runfiles
from nextpolicy.config.fields import active_fields, settings_classes
from nextpolicy.run import checkpoint, folder, interrupt, job, metrics, named_arrays, tensor_file
from nextpolicy.run.folder import RunError

from .helpers import COMMAND, SMALL, assert_same_run, contents, environment, options

# Environments of other people, and a member axis of their code: their own rules.
pytestmark = [pytest.mark.allow_rank_promotion, pytest.mark.allow_key_reuse, pytest.mark.quick_compilation]

FIELDS: dict[str, Any] = {**SMALL, "seeds": 2, "algo": ("sv-dynamic",), "normalise_reward": True}


class Killed(BaseException):
    """Stands for a kill where a process of its own would only cost time: nothing in the package catches it."""


def small(env: str = "four-rooms", **fields: Any) -> dict[str, Any]:
    own = active_fields(*settings_classes(fields.get("algo", ("ppo",)), "stable-values"))
    ours = {name: value for name, value in FIELDS.items() if name in own}
    return {"env": env, "quiet": True, **ours, **fields}


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> nextpolicy.Run:
    return nextpolicy.train(**small(), out=tmp_path_factory.mktemp("runs") / "whole")


def test_checkpoints_of_another_version_are_refused_in_one_line_and_its_metrics_are_not(
    uninterrupted: nextpolicy.Run, tmp_path: Path
) -> None:
    """Version 0.1 wrote no `state_format`."""
    old = tmp_path / "old"
    shutil.copytree(uninterrupted.path, old)
    for path in (old / "checkpoints").glob("*.json"):
        manifest = runfiles.read_manifest(path)
        runfiles.write_manifest(path, {k: v for k, v in manifest.items() if k not in ("state_format", "digest")})
    run = nextpolicy.load(old)
    assert run.scores().equals(uninterrupted.scores())
    refusal = r"was written by nextpolicy \S+, whose checkpoints \S+ cannot read; install nextpolicy \S+ to resume"
    with pytest.raises(RunError, match=refusal):
        run.policy()
    folder.RunFolder.open(old).set_status("stopped", rounds_done=10)
    before = contents(old)
    with pytest.raises(RunError, match=refusal):
        nextpolicy.resume(old, quiet=True)
    assert contents(old) == before, "a refused folder stays as it was"


def killed_in(
    out: Path, patch: pytest.MonkeyPatch, module: Any, name: str, call: int, after: bool = False, **fields: Any
) -> None:
    """Train until the `call`-th call of `module.name`, which kills (before or after it has done its work)."""
    original, calls = getattr(module, name), iter(range(1, 10_000))

    def deadly(*args: Any, **kwargs: Any) -> Any:
        count = next(calls)
        if count == call and not after:
            raise Killed
        result = original(*args, **kwargs)
        if count == call:
            raise Killed
        return result

    with patch.context() as p:
        p.setattr(module, name, deadly)
        with pytest.raises(Killed):
            nextpolicy.train(**small(**fields), out=out)


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six of ten rounds, with the checkpoints of rounds 5 and 6."""
    out = tmp_path_factory.mktemp("runs") / "part"
    with pytest.MonkeyPatch.context() as patch:
        killed_in(out, patch, metrics, "write_part", 7)
    assert checkpoint.list_rounds(out / "checkpoints") == [5, 6]
    assert runfiles.end(out / "metrics") == 6
    return out


# --- where a kill can fall ---

MOMENTS: list[tuple[Any, str, int, bool]] = [
    (metrics, "write_part", 4, False),  # between a block and its metrics
    (metrics, "write_part", 4, True),  # between metrics and checkpoint
    (tensor_file, "write", 4, False),  # the checkpoint's folder is empty
    (tensor_file, "_chunks", 4, False),  # its file is empty
    (tensor_file, "_read_back", 3, False),  # the file is written and has not been read back
    (checkpoint, "write_manifest", 3, False),  # it has, and its manifest is not written
    (checkpoint, "_remove", 6, False),  # before an old checkpoint is dropped
    (runfiles.os, "replace", 9, False),  # a small file is written and not yet in place
]


@pytest.mark.usefixtures("programs_kept")
@pytest.mark.parametrize(("module", "name", "call", "after"), MOMENTS)
def test_killed_at_a_chosen_moment(
    uninterrupted: nextpolicy.Run,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    module: Any,
    name: str,
    call: int,
    after: bool,
) -> None:
    killed_in(tmp_path / "run", monkeypatch, module, name, call, after)
    assert folder.RunFolder.open(tmp_path / "run").status()["state"] == "running"
    run = nextpolicy.resume(tmp_path / "run", quiet=True)
    assert_same_run(run, uninterrupted)
    assert not list(run.path.rglob("*.tmp"))


def kill_and_resume(env: str, out: Path, kills: int, seed: int, **fields: Any) -> None:
    """Start a run as a process, kill it at random moments, resume it each time, and let the last one finish."""
    print(f"kills at random moments, seed {seed}")
    draw = random.Random(seed)
    chosen = {k: v for k, v in small(env, **fields).items() if k not in ("env", "quiet")}
    command = [*COMMAND, "train", env, "--quiet", "--out", str(out), *options(**chosen)]
    for _ in range(kills):
        with subprocess.Popen(command, env=environment(), stderr=subprocess.PIPE, text=True) as process:
            parts = lambda: len(list((out / "metrics").glob("part-*.parquet")))  # noqa: E731
            already, deadline = parts(), time.monotonic() + 200
            while parts() <= already and process.poll() is None and time.monotonic() < deadline:
                time.sleep(0.01)
            time.sleep(draw.uniform(0.0, 0.6))
            process.send_signal(signal.SIGKILL)
            process.wait()
            assert process.returncode == -signal.SIGKILL, process.stderr.read() if process.stderr else ""
        command = [*COMMAND, "resume", str(out), "--quiet"]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr


def test_killed_at_a_random_moment(tmp_path: Path) -> None:
    seed = int.from_bytes(os.urandom(4), "little")
    long = {"total_env_steps": 32 * 40}
    kill_and_resume("four-rooms", tmp_path / "killed", kills=1, seed=seed, **long)
    whole = nextpolicy.train(**small(**long), out=tmp_path / "whole")
    assert_same_run(nextpolicy.load(tmp_path / "killed"), whole)


@pytest.mark.slow
@pytest.mark.parametrize("env", ["four-rooms", "gymnax/CartPole-v1", "gymnax/Pendulum-v1", "brax/inverted_pendulum"])
def test_killed_ten_times_in_a_row(tmp_path: Path, env: str) -> None:
    seed = int.from_bytes(os.urandom(4), "little")
    fields = {"total_env_steps": 32 * 200, "normalise_obs": env != "four-rooms"}
    kill_and_resume(env, tmp_path / "killed", kills=10, seed=seed, **fields)
    whole = nextpolicy.train(**small(env, **fields), out=tmp_path / "whole")
    assert_same_run(nextpolicy.load(tmp_path / "killed"), whole)


@pytest.mark.slow
@pytest.mark.parametrize("replay_size", [32 * 500, 32 * 7], ids=["filling", "wrapped"])
def test_sac_is_killed_with_its_replay_buffer(tmp_path: Path, replay_size: int) -> None:
    fields = {"algo": ("sac", "sv-sac"), "total_env_steps": 32 * 60, "replay_size": replay_size, "warmup_steps": 8}
    kill_and_resume("gymnax/Pendulum-v1", tmp_path / "killed", kills=3, seed=7, **fields)
    whole = nextpolicy.train(**small("gymnax/Pendulum-v1", **fields), out=tmp_path / "whole")
    assert whole.metrics["replay_held"].max() == min(replay_size, 32 * 61)
    assert_same_run(nextpolicy.load(tmp_path / "killed"), whole)


# --- damage ---


def largest(path: Path) -> Path:
    return max((p for p in path.rglob("*") if p.is_file()), key=lambda p: p.stat().st_size)


def truncate(path: Path) -> None:
    with open(path, "r+b") as file:
        file.truncate(path.stat().st_size // 2)


def flip_a_bit(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))


def part(run: Path, first: int) -> Path:
    return run / "metrics" / f"part-{first:08d}-{first:08d}.parquet"


DAMAGE: dict[str, tuple[Callable[[Path], Any], str]] = {
    "checkpoint cut short": (lambda r: truncate(largest(r / "checkpoints/00000006")), "checkpoint 6 is damaged"),
    "checkpoint bit flipped": (lambda r: flip_a_bit(largest(r / "checkpoints/00000006")), "has different content"),
    "checkpoint file gone": (lambda r: largest(r / "checkpoints/00000006").unlink(), "is missing"),
    "manifest cut short": (lambda r: truncate(r / "checkpoints/00000006.json"), "manifest cannot be read"),
    "manifest is a list": (lambda r: (r / "checkpoints/00000006.json").write_text("[1]"), "manifest cannot be read"),
    "manifest is bytes": (lambda r: (r / "checkpoints/00000006.json").write_bytes(b"\xff\xfe"), "cannot be read"),
    "all checkpoints cut short": (
        lambda r: [truncate(largest(r / f"checkpoints/0000000{n}")) for n in (5, 6)],
        "restarting from round 0",
    ),
    "last part cut short": (
        lambda r: truncate(part(r, 5)),
        "metrics of round 5 are damaged (part-00000005-00000005.parquet has changed since it was written)",
    ),
    "last part gone": (
        lambda r: part(r, 5).unlink(),
        "metrics of round 5 are missing; recomputing them from round 5",
    ),
    "part is garbage": (lambda r: part(r, 5).write_bytes(b"no"), "renamed to part-00000005-00000005.damaged"),
    "first part gone": (
        lambda r: part(r, 0).unlink(),
        "metrics of round 0 are missing; recomputing them from round 0",
    ),
    "manifest names no sizes": (
        lambda r: (r / "checkpoints/00000006.json").write_text('{"files": {"x": 1}}'),
        "manifest cannot be read",
    ),
    "status is garbage": (lambda r: (r / "status.json").write_text("{"), ""),
}


@pytest.mark.usefixtures("programs_kept")
@pytest.mark.parametrize("what", DAMAGE)
def test_damage_is_seen_said_and_got_around(
    what: str, uninterrupted: nextpolicy.Run, interrupted: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    spoil, said = DAMAGE[what]
    shutil.copytree(interrupted, tmp_path / "run")
    spoil(tmp_path / "run")
    run = nextpolicy.resume(tmp_path / "run", quiet=True)
    assert said in capsys.readouterr().err
    assert_same_run(run, uninterrupted)


@pytest.mark.usefixtures("programs_kept")
def test_foreign_files_are_left_alone(
    uninterrupted: nextpolicy.Run, interrupted: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    shutil.copytree(interrupted, tmp_path / "run")
    foreign = ["notes.txt", "checkpoints/notes.json", "checkpoints/7", "checkpoints/mine/x", "metrics/part-x.parquet"]
    foreign += ["metrics/other.parquet", "checkpoints/99.json"]
    for name in foreign:
        (tmp_path / "run" / name).parent.mkdir(exist_ok=True)
        (tmp_path / "run" / name).write_text("keep me")
    assert_same_run(nextpolicy.resume(tmp_path / "run", quiet=True), uninterrupted)
    assert all((tmp_path / "run" / name).read_text() == "keep me" for name in foreign)
    assert capsys.readouterr().err == ""


@pytest.mark.usefixtures("programs_kept")
def test_leftovers_of_kills_are_cleared(uninterrupted: nextpolicy.Run, interrupted: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(interrupted, run)
    leftovers = [
        "checkpoints/00000007.orbax-checkpoint-tmp-1/x",
        f"checkpoints/00000003/{checkpoint.ARRAYS}",
        "metrics/.part-1.7.tmp",
    ]
    for name in leftovers:
        (run / name).parent.mkdir(exist_ok=True)
        (run / name).write_text("half")
    assert_same_run(nextpolicy.resume(run, quiet=True), uninterrupted)
    assert not [name for name in leftovers if (run / name).exists()]


def test_metrics_past_the_checkpoint_are_not_there_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounds 4 to 7 have metrics and no checkpoint; done again, in blocks of another length, they are there once."""
    run = tmp_path / "run"
    killed_in(run, monkeypatch, metrics, "write_part", 2, after=True, block_rounds=4)
    assert runfiles.end(run / "metrics") == 8
    config = run / "config.json"
    config.write_text(config.read_text().replace('"block_rounds": 4', '"block_rounds": 1'))
    table = nextpolicy.resume(run, quiet=True).metrics
    np.testing.assert_array_equal(table["round"], [*range(10)] * 2)
    assert [first for first, _, _ in runfiles.parts(run / "metrics")] == [0, 4, 5, 6, 7, 8, 9]


def test_a_finished_run_is_not_touched(uninterrupted: nextpolicy.Run) -> None:
    before = contents(uninterrupted.path)
    nextpolicy.resume(uninterrupted.path, quiet=True)
    assert contents(uninterrupted.path) == before


def test_a_run_held_by_another_process_is_refused(interrupted: Path, tmp_path: Path) -> None:
    shutil.copytree(interrupted, tmp_path / "run")
    holder = folder.RunFolder.open(tmp_path / "run").locked()
    try:
        with pytest.raises(RunError, match="is being written by another process"):
            nextpolicy.resume(tmp_path / "run", quiet=True)
    finally:
        holder.unlock()


def test_old_checkpoints_are_dropped(uninterrupted: nextpolicy.Run) -> None:
    assert checkpoint.list_rounds(uninterrupted.path / "checkpoints") == [9, 10]
    folders = sorted(p.name for p in (uninterrupted.path / "checkpoints").iterdir() if p.is_dir())
    assert folders == ["00000009", "00000010"]


@pytest.mark.parametrize("presses", [1, 2])
def test_ctrl_c_during_a_save_comes_after_it_and_a_second_one_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, presses: int
) -> None:
    write, handler = checkpoint.write_manifest, signal.signal(signal.SIGINT, signal.default_int_handler)

    def pressed(*args: Any) -> None:
        for _ in range(presses):
            signal.raise_signal(signal.SIGINT)
        write(*args)

    monkeypatch.setattr(checkpoint, "write_manifest", pressed)
    try:
        with pytest.raises(KeyboardInterrupt), interrupt.raised(""):
            checkpoint.save(tmp_path, 3, {"x": np.arange(2)}, keep=1)
        assert checkpoint.list_rounds(tmp_path) == ([3] if presses == 1 else [])
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, handler)


def test_empty_arrays_come_back(tmp_path: Path) -> None:
    """A robot without contacts has arrays of size 0 in its state."""
    state = {"x": jnp.arange(2), "contacts": jnp.zeros((3, 0), jnp.int8)}
    checkpoint.save(tmp_path, 1, state, keep=1)
    back = checkpoint.restore(tmp_path, 1, checkpoint.placed_like(state))
    assert jax.tree.map(lambda x: (x.shape, x.dtype, x.tolist()), back) == jax.tree.map(
        lambda x: (x.shape, x.dtype, x.tolist()), state
    )


@pytest.mark.parametrize("writer", ["ours", "Orbax"])
def test_arrays_keys_and_shapes_are_those_that_were_saved(tmp_path: Path, writer: str) -> None:
    """Earlier versions saved with Orbax."""
    state = {"x": jnp.arange(6).reshape(2, 3), "key": jax.random.key(5), "contacts": jnp.zeros((3, 0))}
    template = checkpoint.placed_like(state)
    if writer == "ours":
        checkpoint.save(tmp_path, 1, state, keep=1)
    else:
        import orbax.checkpoint as ocp

        with ocp.StandardCheckpointer() as saver:
            saver.save(tmp_path / "00000001", named_arrays.flat(state))
        files = {"_METADATA": runfiles.record_file(tmp_path / "00000001" / "_METADATA")}
        checkpoint.write_manifest(runfiles.manifest_path(tmp_path, 1), {"rounds_done": 1, "files": files})
    back = checkpoint.restore(tmp_path, 1, template)
    assert back["x"].tolist() == state["x"].tolist()
    assert jax.random.key_data(back["key"]).tolist() == jax.random.key_data(state["key"]).tolist()
    assert back["contacts"].shape == (3, 0)
    wrong = {**template, "x": jax.ShapeDtypeStruct((3, 2), jnp.int32, sharding=state["x"].sharding)}
    with pytest.raises(RunError, match=r"x: expected shape \(3, 2\), got \(2, 3\)"):
        checkpoint.restore(tmp_path, 1, wrong)
    with pytest.raises(RunError, match=r"got a difference at key"):
        checkpoint.restore(tmp_path, 1, {"x": template["x"]})


def test_an_array_of_another_dtype_is_not_converted(tmp_path: Path) -> None:
    checkpoint.save(tmp_path, 1, {"x": jnp.arange(3)}, keep=1)
    with pytest.raises(RunError, match=r"x: expected float32, got int32; train a new run$"):
        checkpoint.restore(tmp_path, 1, {"x": jnp.zeros(3)})


def test_arrays_come_back_on_the_devices_they_were_on(tmp_path: Path) -> None:
    device = jax.local_devices()[0]
    spread = jax.sharding.NamedSharding(jax.make_mesh((1,), ("members",)), jax.sharding.PartitionSpec("members"))
    state = {"x": jax.device_put(jnp.arange(4.0), spread), "y": jax.device_put(jnp.arange(2), device)}
    checkpoint.save(tmp_path, 1, state, keep=1)
    back = checkpoint.restore(tmp_path, 1, checkpoint.placed_like(state))
    assert jax.tree.map(lambda x: x.sharding, back) == jax.tree.map(lambda x: x.sharding, state)
    assert back["x"].tolist() == [0, 1, 2, 3]


def test_a_checkpoint_of_another_program_is_refused(interrupted: Path, tmp_path: Path) -> None:
    """One without layer normalisation, in manifests that say nothing of the configuration."""
    run, checkpoints = tmp_path / "run", tmp_path / "run" / "checkpoints"
    shutil.copytree(interrupted, run)
    state = checkpoint.restore(checkpoints, 6, job.make_job(nextpolicy.load(run).config).template())
    del state.agent.learner.params["actor"]["params"]["torso"]["LayerNorm_0"]
    for rounds in (5, 6):
        checkpoint.save(checkpoints, rounds, state, keep=2)
    with pytest.raises(RunError, match=r"got a difference at .*LayerNorm_0"):
        nextpolicy.resume(run, quiet=True)


def test_block_lengths_do_not_show(uninterrupted: nextpolicy.Run, tmp_path: Path) -> None:
    """Also where the machine chooses them: capacity and blocks are others, the result is not."""
    run = nextpolicy.train(**small(block_rounds=4), out=tmp_path / "run")
    drop = ["steps_per_second"]
    one, other = (r.metrics.drop(columns=drop) for r in (run, uninterrupted))
    assert list(one.columns) == list(other.columns)
    np.testing.assert_array_equal(one["round"], other["round"])
    np.testing.assert_allclose(one["value_loss"], other["value_loss"], rtol=1e-4)
