"""Checkpoints that are gone, exchanged, unreadable, hostile or of odd arrays: nothing is lost, and each is one line."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import nextpolicy
from nextpolicy import runfiles
from nextpolicy.run import checkpoint, tensor_file
from nextpolicy.run.folder import RunError, RunFolder

from .helpers import FOUR_ROOMS as FIELDS
from .helpers import assert_same_run, contents

pytestmark = [
    pytest.mark.allow_rank_promotion,
    pytest.mark.allow_key_reuse,
    pytest.mark.quick_compilation,
    pytest.mark.usefixtures("programs_kept"),
]


@pytest.fixture(autouse=True)
def _no_hang() -> Iterator[None]:
    """A pipe that nobody writes to would be waited for without end."""
    usual = signal.signal(signal.SIGALRM, lambda *_: pytest.fail("hangs"))
    signal.alarm(120)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, usual)


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six of ten rounds, with the checkpoints of rounds 5 and 6."""
    out = tmp_path_factory.mktemp("runs") / "run"
    nextpolicy.train(**FIELDS, out=out, callback=lambda block: block.rounds_done == 6)
    assert checkpoint.list_rounds(out / "checkpoints") == [5, 6]
    return out


@pytest.fixture
def run(stopped: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(stopped, tmp_path / "run"))


def arrays_of(run: Path, rounds: int = 6) -> Path:
    return run / "checkpoints" / f"{rounds:08d}" / checkpoint.ARRAYS


def sign(run: Path, rounds: int = 6, **changes: Any) -> None:
    """Make the manifest fit what the file of arrays holds now."""
    file = runfiles.manifest_path(run / "checkpoints", rounds)
    files = {checkpoint.ARRAYS: runfiles.record_file(arrays_of(run, rounds))}
    runfiles.write_manifest(file, {**runfiles.read_manifest(file), "files": files, **changes})


# --- gone ---


def remove_all(run: Path) -> None:
    shutil.rmtree(run / "checkpoints")
    (run / "checkpoints").mkdir()


def remove_manifests(run: Path) -> None:
    for file in (run / "checkpoints").glob("*.json"):
        file.unlink()


@pytest.mark.parametrize("remove", [remove_all, remove_manifests])
@pytest.mark.parametrize("state", ["stopped", "finished"])
def test_no_metrics_are_lost_with_the_checkpoints(
    run: Path, remove: Callable[[Path], None], state: str, capsys: pytest.CaptureFixture[str]
) -> None:
    remove(run)
    RunFolder(run).set_status(state, rounds_done=6)
    metrics, arrays = contents(run / "metrics"), sorted(contents(run / "checkpoints").values())
    if state == "finished":
        with pytest.raises(RunError, match="is finished but has no intact checkpoint"):
            nextpolicy.resume(run, quiet=True)
        assert contents(run / "metrics") == metrics
    else:
        nextpolicy.resume(run, quiet=True, callback=lambda block: True)
        assert "restarting from round 0, earlier metrics are kept in metrics.old" in capsys.readouterr().err
        assert contents(run / "metrics.old") == metrics
    kept = contents(run / "checkpoints").items()
    assert not arrays or arrays == sorted(data for name, data in kept if state == "finished" or ".damaged" in name)


def test_a_run_killed_before_its_first_checkpoint_starts_again_without_a_word(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    remove_all(run)
    for _, last, path in runfiles.parts(run / "metrics"):
        if last:
            path.unlink()
    RunFolder(run).set_status("running", rounds_done=0)
    nextpolicy.resume(run, quiet=True, callback=lambda block: True)
    assert capsys.readouterr().err == ""
    assert not (run / "metrics.old").exists()


def test_a_users_folder_among_the_checkpoints_stays(run: Path) -> None:
    notes = run / "checkpoints" / "20261118" / "mine.txt"
    notes.parent.mkdir()
    notes.write_text("mine")
    unfinished = run / "checkpoints" / ".00000017.json.20276.tmp"
    unfinished.write_text("half")
    nextpolicy.resume(run, quiet=True)
    assert notes.read_text() == "mine"
    assert not unfinished.exists()


def test_the_manifest_goes_before_the_arrays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint.save(tmp_path, 1, {"x": np.arange(2)}, keep=1)
    left: list[list[int]] = []
    monkeypatch.setattr(shutil, "rmtree", lambda *_, **__: left.append(checkpoint.list_rounds(tmp_path)))
    checkpoint._remove(tmp_path / "00000001")
    assert left == [[]]


def test_what_a_manifest_names_is_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """fsync comes after the last byte of the arrays and before the manifest."""
    seen: list[tuple[int, bool]] = []
    fsync = os.fsync

    def watched(number: int) -> None:
        there = (tmp_path / "00000001.json").exists()
        seen.append((os.fstat(number).st_size, there))
        fsync(number)

    monkeypatch.setattr(os, "fsync", watched)
    checkpoint.save(tmp_path, 1, {"x": np.arange(1000)}, keep=1)
    assert seen[0] == ((tmp_path / "00000001" / checkpoint.ARRAYS).stat().st_size, False)


# --- exchanged ---


def test_an_older_checkpoint_in_the_place_of_a_newer_one_is_noticed(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = nextpolicy.train(**FIELDS, out=tmp_path / "whole")
    shutil.copy(arrays_of(run, 5), arrays_of(run, 6))
    shutil.copy(run / "checkpoints" / "00000005.json", run / "checkpoints" / "00000006.json")
    assert_same_run(nextpolicy.resume(run, quiet=True), whole)
    assert "checkpoint 6 is damaged (its manifest is that of round 5)" in capsys.readouterr().err


@pytest.mark.parametrize("before", ["2 x cpu", "1 x cpu", None, 5])
def test_a_resume_on_other_devices_says_so(run: Path, before: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """One device here. Manifests of earlier versions do not name them."""
    file = runfiles.manifest_path(run / "checkpoints", 6)
    assert runfiles.read_manifest(file)["trained_on"] == "1 x cpu"
    sign(run, trained_on=before)
    nextpolicy.resume(run, quiet=True)
    said = "checkpoint 6 was trained on 2 x cpu, training resumes on 1 x cpu: last bits may differ\n"
    assert capsys.readouterr().err == (said if before == "2 x cpu" else "")


def test_arrays_that_no_manifest_lists_are_not_loaded(run: Path) -> None:
    other = {"config.json": runfiles.record_file(run / "config.json")}
    sign(run, files=other)
    assert checkpoint.fault(run / "checkpoints", 6) == "its manifest lists no arrays"
    with pytest.raises(RunError, match=r"its manifest does not list state\.safetensors"):
        checkpoint.restore(run / "checkpoints", 6, {"x": jnp.zeros(2)})


@pytest.mark.parametrize("name", ["/dev/zero", "../../config.json"])
def test_a_manifest_names_files_of_its_checkpoint_only(run: Path, name: str) -> None:
    files = {checkpoint.ARRAYS: runfiles.record_file(arrays_of(run)), name: (0, "x")}
    sign(run, files=files)
    assert checkpoint.fault(run / "checkpoints", 6) == f"its manifest lists {name}, which is not in its folder"


@pytest.mark.parametrize("name", ["a\0b", "\ud800", "x" * 5000, "a\nb\x1b[2J"], ids=["NUL", "half", "long", "steers"])
def test_odd_names_in_a_manifest_are_damage_in_one_line(
    run: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    files = {checkpoint.ARRAYS: runfiles.record_file(arrays_of(run)), name: (0, "x")}
    sign(run, files=files)
    nextpolicy.resume(run, quiet=True, callback=lambda block: True)
    (said,) = (line for line in capsys.readouterr().err.split("\n") if line)
    assert said.startswith("checkpoint 6 is damaged (")
    assert len(said) < 250
    assert said.isprintable()


# --- what is no file ---


@pytest.mark.parametrize("kind", ["pipe", "device"])
@pytest.mark.parametrize("name", ["checkpoints/00000006.json", "checkpoints/00000006/" + checkpoint.ARRAYS, "metrics"])
def test_pipes_and_devices_are_not_waited_for(run: Path, kind: str, name: str) -> None:
    path = run / name if name != "metrics" else runfiles.parts(run / "metrics")[2][2]
    path.unlink()
    os.mkfifo(path) if kind == "pipe" else path.symlink_to("/dev/zero")
    if name == "metrics":
        with pytest.raises(RunError, match="metrics of round 2 are damaged"):
            _ = nextpolicy.load(run).metrics
    else:
        assert nextpolicy.load(run).snapshot() is not None  # that of round 5
    assert checkpoint.newest_whole(run / "checkpoints", 10, lambda _: None) == (6 if name == "metrics" else 5)


def test_readers_of_arrays_and_metrics_wait_for_no_pipe(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "x")
    with pytest.raises(ValueError, match="expected a regular file, got x, which is a pipe or a device"):
        tensor_file.entries(tmp_path / "x")
    with pytest.raises(ValueError, match="x cannot be read"):
        runfiles.read_part(tmp_path / "x")


def test_a_status_that_is_a_pipe_is_no_status(run: Path) -> None:
    (run / "status.json").unlink()
    os.mkfifo(run / "status.json")
    assert nextpolicy.load(run).status["state"] == "unknown"


@pytest.mark.parametrize("name", ["metrics", "checkpoints"])
def test_nothing_is_written_or_deleted_through_a_link(run: Path, tmp_path: Path, name: str) -> None:
    mine = tmp_path / "mine"
    (run / name).rename(mine)
    (run / name).symlink_to(mine, target_is_directory=True)
    before = contents(mine)
    with pytest.raises(RunError, match=rf"^run: expected a folder, got a link, .*/{name}; move the whole run folder"):
        nextpolicy.resume(run, quiet=True)
    assert contents(mine) == before


def test_a_file_that_may_not_be_read_is_not_taken_for_damaged(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Root may read everything, so the error is raised here."""
    record = runfiles.record_file

    def denied(path: Path) -> runfiles.FileRecord:
        if path.name == checkpoint.ARRAYS:
            raise PermissionError(13, "Permission denied")
        return record(path)

    before = contents(run / "checkpoints")
    monkeypatch.setattr(runfiles, "record_file", denied)
    for use in (lambda: nextpolicy.resume(run, quiet=True), nextpolicy.load(run).snapshot):
        with pytest.raises(RunError, match=r"cannot be read \(Permission denied\); make it readable and try again$"):
            use()
    assert contents(run / "checkpoints") == before


# --- a stranger's arrays, with digests that are right ---


def hostile_name(header: dict[str, Any]) -> None:
    header["a\nb\x1b[2J"] = header.pop(sorted(header)[0])


def long_name(header: dict[str, Any]) -> None:
    header["x" * 100_000] = header.pop(sorted(header)[0])


def other_dtype(header: dict[str, Any]) -> None:
    next(each for each in header.values() if each["dtype"] == "F32")["dtype"] = "I32"


@pytest.mark.parametrize("change", [hostile_name, long_name, other_dtype])
def test_a_header_of_another_program_is_one_short_line(run: Path, change: Callable[[dict[str, Any]], None]) -> None:
    data = arrays_of(run).read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    change(header)
    text = json.dumps(header).encode()
    arrays_of(run).write_bytes(len(text).to_bytes(8, "little") + text + data[8 + length :])
    sign(run)
    for use in (lambda: nextpolicy.resume(run, quiet=True), nextpolicy.load(run).snapshot):
        with pytest.raises(RunError, match=r"^checkpoint [^\n]*: [^\n]*(expected|got a difference)") as caught:
            use()
        assert str(caught.value).isprintable()
        assert len(str(caught.value)) < 500


def test_arrays_that_are_something_else_are_one_line(run: Path) -> None:
    arrays_of(run).write_bytes(b"something else")
    sign(run)
    for use in (lambda: nextpolicy.resume(run, quiet=True), nextpolicy.load(run).snapshot):
        with pytest.raises(RunError, match=r"the arrays cannot be read \(state.safetensors: expected a safetensors"):
            use()


def test_arrays_that_vanish_are_one_line(run: Path) -> None:
    shutil.rmtree(arrays_of(run).parent)
    with pytest.raises(RunError, match=r"the arrays cannot be read \(\[Errno 2\]"):
        checkpoint.restore(run / "checkpoints", 6, {"x": jnp.zeros(2)})


# --- odd states ---


@pytest.mark.parametrize("dtype", [jnp.complex64, jnp.float8_e4m3fn, jnp.float8_e5m2, jnp.bfloat16], ids=str)
def test_arrays_of_uncommon_dtypes_come_back(tmp_path: Path, dtype: Any) -> None:
    state = {"x": jnp.arange(4).astype(dtype), "key": jax.random.key(3, impl="rbg")}
    checkpoint.save(tmp_path, 1, state, keep=1)
    back = checkpoint.restore(tmp_path, 1, checkpoint.placed_like(state))
    assert back["x"].dtype == dtype
    assert np.asarray(back["x"]).tobytes() == np.asarray(state["x"]).tobytes()
    assert jax.random.key_impl(back["key"]) == "rbg"
    assert jnp.array_equal(jax.random.key_data(back["key"]), jax.random.key_data(state["key"]))


def test_a_dtype_without_a_name_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(checkpoint.CheckpointError, match=r"^checkpoint: round 1 .*x: expected one of bool, .*got int4"):
        checkpoint.save(tmp_path, 1, {"x": jnp.arange(4).astype(jnp.int4)}, keep=1)
    assert list(tmp_path.iterdir()) == []


def test_two_arrays_of_one_name_are_one_line(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"^state: expected different names for its arrays, got a\.b twice"):
        checkpoint.save(tmp_path, 1, {"a.b": np.arange(2), "a": {"b": np.arange(3)}}, keep=1)


def test_a_manifest_that_cannot_be_replaced_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "00000001.json").mkdir()
    with pytest.raises(checkpoint.CheckpointError, match=r"^checkpoint: round 1 could not be saved"):
        checkpoint.save(tmp_path, 1, {"x": np.arange(2)}, keep=1)


# --- Orbax's, of earlier versions ---


@pytest.fixture
def old(tmp_path: Path) -> Path:
    import orbax.checkpoint as ocp

    path = tmp_path / "old" / "00000001"
    path.parent.mkdir()
    with ocp.StandardCheckpointer() as saver:
        saver.save(path, {"x": jnp.arange(3)})
    sign_old(path)
    return path


def sign_old(path: Path) -> None:
    files = {str(p.relative_to(path)): runfiles.record_file(p) for p in path.rglob("*") if p.is_file()}
    runfiles.write_manifest(path.with_suffix(".json"), {"rounds_done": 1, "files": files})


def test_a_stray_file_does_not_replace_the_arrays_of_an_old_checkpoint(old: Path) -> None:
    tensor_file.write(old / checkpoint.ARRAYS, {"x": np.arange(3, 6, dtype=np.int32)})
    assert checkpoint.fault(old.parent, 1) is None
    assert checkpoint.restore(old.parent, 1, {"x": jnp.zeros(3, jnp.int32)})["x"].tolist() == [0, 1, 2]


@pytest.mark.parametrize("text", ["{}", "[]", "", "\x00"])
def test_a_damaged_old_checkpoint_is_one_line(old: Path, text: str) -> None:
    (old / "_METADATA").write_text(text)
    sign_old(old)
    with pytest.raises(RunError, match=r"^checkpoint [^\n]*: the arrays cannot be read \([^\n]*\)$"):
        checkpoint.restore(old.parent, 1, {"x": jnp.zeros(3, jnp.int32)})


def test_an_old_array_of_another_dtype_is_not_converted(old: Path) -> None:
    with pytest.raises(RunError, match="x: expected float32, got int32"):
        checkpoint.restore(old.parent, 1, {"x": jnp.zeros(3)})
