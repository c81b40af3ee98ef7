"""Programs on disk are used only if they are whole, ours, and writable by nobody else."""

from __future__ import annotations

import os
import stat
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from jax._src import compilation_cache as jax_cache
from jax.experimental.compilation_cache import compilation_cache

from nextpolicy.run import program_cache

from . import flips

SETTINGS = (
    "jax_compilation_cache_dir",
    "jax_compilation_cache_max_size",
    "jax_persistent_cache_min_compile_time_secs",
    "jax_persistent_cache_enable_xla_caches",
)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A home without a cache, JAX as it is before anybody asked for one, and a user who was told nothing."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(program_cache, "_told", set())
    monkeypatch.setattr(jax_cache, "get_file_cache", jax_cache.get_file_cache)
    before = {name: jax.config.values[name] for name in SETTINGS}
    jax.config.update("jax_compilation_cache_dir", None)
    compilation_cache.reset_cache()
    yield tmp_path
    for name, value in before.items():
        jax.config.update(name, value)
    compilation_cache.reset_cache()


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def compiled_sum() -> float:
    """A program that JAX compiles anew or takes from its cache."""
    jax.clear_caches()
    return float(jax.jit(lambda x: jnp.sum(x * 3.0))(jnp.arange(4.0)))


def compiled_files() -> list[Path]:
    return sorted(program_cache.default_cache().glob("*-cache"))


def test_what_is_written_is_read(tmp_path: Path) -> None:
    path = tmp_path / "name"
    assert program_cache.read(path) is None
    for content in (b"", b"program", bytes(range(256)) * 50):
        program_cache.write(path, content)
        assert program_cache.read(path) == content
    assert [p.name for p in tmp_path.iterdir()] == ["name"]


def test_a_flip_of_any_bit_and_a_cut_anywhere_are_seen(tmp_path: Path) -> None:
    path = tmp_path / "name"
    program_cache.write(path, b"a program")
    whole = path.read_bytes()
    for place in range(len(whole)):
        for bit in range(8):
            path.write_bytes(whole[:place] + bytes([whole[place] ^ 1 << bit]) + whole[place + 1 :])
            assert program_cache.read(path) is None
        path.write_bytes(whole[:place])
        assert program_cache.read(path) is None
    path.write_bytes(whole + b"\0")
    assert program_cache.read(path) is None
    path.rename(tmp_path / "other")
    (tmp_path / "other").write_bytes(whole)
    assert program_cache.read(tmp_path / "other") is None, "a file for another program"


def test_a_disk_that_takes_nothing_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    program_cache.write(tmp_path / "name", b"a program")
    assert not list(tmp_path.iterdir())


def test_folders_and_files_are_made_for_the_user_alone(home: Path) -> None:
    before = os.umask(0)
    try:
        program_cache.enable_cache()
        compiled_sum()
    finally:
        os.umask(before)
    folder = program_cache.default_cache()
    assert Path(jax.config.jax_compilation_cache_dir) == folder
    assert mode(folder) == mode(folder.parent) == 0o700
    assert {mode(p) for p in compiled_files()} == {0o600}


def spoil_folder(fault: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if fault == "link":
        (folder.parent / "elsewhere").mkdir(mode=0o700)
        folder.symlink_to("elsewhere")
    elif fault == "file":
        folder.write_text("")
    elif fault == "owner":
        monkeypatch.setattr(os, "geteuid", lambda: folder.parent.stat().st_uid + 1)
    else:
        folder.mkdir()
        folder.chmod(0o770 if fault == "group" else 0o702)


@pytest.mark.parametrize("which", ["xla", "nextpolicy"])
@pytest.mark.parametrize("fault", ["link", "file", "owner", "group", "others"])
def test_a_folder_that_others_may_change_is_not_used(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], fault: str, which: str
) -> None:
    folder = program_cache.default_cache()
    folder = folder if which == "xla" else folder.parent
    folder.parent.mkdir(mode=0o700, parents=True)
    spoil_folder(fault, folder, monkeypatch)
    for _ in range(2):
        program_cache.enable_cache()
        assert jax.config.jax_compilation_cache_dir is None
        assert not program_cache.usable(folder)
    assert compiled_sum() == 18.0
    said = capsys.readouterr().err.splitlines()
    where = folder.parent if fault == "owner" and which == "xla" else folder
    assert len([line for line in said if str(where) + ":" in line]) == 1, said
    assert all("expected" in line and "programs are not cached" in line for line in said)
    assert not compiled_files()


def test_no_home_is_no_cache(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def nowhere() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", nowhere)
    program_cache.enable_cache()
    assert jax.config.jax_compilation_cache_dir is None


def spoil_file(fault: str, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if fault == "link":
        path.rename(path.with_name("elsewhere"))
        path.symlink_to("elsewhere")
    elif fault == "pipe":  # reading one waits for ever
        path.unlink()
        os.mkfifo(path)
    elif fault == "owner":
        theirs = path.stat().st_uid + 1
        monkeypatch.setattr(os, "geteuid", lambda: theirs)
    else:
        path.chmod(0o660 if fault == "group" else 0o602)


@pytest.mark.parametrize("fault", ["link", "pipe", "owner", "group", "others"])
def test_a_file_that_others_may_change_is_not_used(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], fault: str
) -> None:
    for name in ("one", "two"):
        program_cache.write(home / name, b"a program")
        with monkeypatch.context() as patch:
            spoil_file(fault, home / name, patch)
            assert program_cache.read(home / name) is None
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 1, "once for a folder"
    assert "one: expected a regular file" in said[0]
    assert "it will be replaced" in said[0]
    program_cache.write(home / "one", b"a good program")
    assert program_cache.read(home / "one") == b"a good program"


@pytest.mark.parametrize("checksum", [True, False])
def test_a_damaged_compiled_program_is_compiled_anew(
    home: Path, monkeypatch: pytest.MonkeyPatch, checksum: bool
) -> None:
    if not checksum:  # as where the package zstandard is installed
        monkeypatch.setattr(jax_cache, "compress_executable", bytes)
        monkeypatch.setattr(jax_cache, "decompress_executable", bytes)
    program_cache.enable_cache()
    assert compiled_sum() == 18.0
    files = compiled_files()
    assert files
    whole = {path: path.read_bytes() for path in files}
    loaded = []
    load = jax_cache.extract_executable_and_time
    monkeypatch.setattr(jax_cache, "extract_executable_and_time", lambda data: loaded.append(1) or load(data))
    assert compiled_sum() == 18.0
    assert len(loaded) == len(files)
    for path, data in whole.items():
        path.write_bytes(data[:-20] + bytes([data[-20] ^ 4]) + data[-19:])
    assert compiled_sum() == 18.0
    assert len(loaded) == len(files), "nothing of the damaged files was looked at"
    assert compiled_files() == files
    assert all(program_cache.read(path) is not None for path in files)
    assert compiled_sum() == 18.0
    assert len(loaded) == 2 * len(files)


def test_a_users_own_choice_is_left_alone(home: Path) -> None:
    own = home / "own"
    jax.config.update("jax_compilation_cache_dir", str(own))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    program_cache.enable_cache()
    assert compiled_sum() == 18.0
    assert jax.config.jax_compilation_cache_dir == str(own)
    assert list(own.glob("*-cache"))
    assert not any(p.read_bytes().startswith(program_cache._MAGIC.encode()) for p in own.glob("*-cache"))
    assert not program_cache.default_cache().exists()

    jax.config.update("jax_compilation_cache_dir", None)
    compilation_cache.reset_cache()
    program_cache.enable_cache()  # ours, and then the user's after all
    jax.config.update("jax_compilation_cache_dir", str(own / "second"))
    compilation_cache.reset_cache()
    compiled_sum()
    assert list((own / "second").glob("*-cache"))
    assert not compiled_files()

    jax.config.update("jax_compilation_cache_dir", None)
    jax.config.update("jax_compilation_cache_max_size", 10_000)
    program_cache.enable_cache()
    assert jax.config.jax_compilation_cache_dir is None, "a bound is kept by JAX, in a folder of the user's own"


def test_xla_keeps_no_files_of_its_own_there(home: Path) -> None:
    program_cache.enable_cache()
    assert jax.config.jax_persistent_cache_enable_xla_caches == "none"


def test_a_jax_whose_cache_cannot_be_checked_has_none(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delattr(jax_cache, "get_file_cache")
    program_cache.enable_cache()
    assert jax.config.jax_compilation_cache_dir is None
    assert jax.__version__ in capsys.readouterr().err


def flipped(home: Path, numbers: range) -> None:
    found = list(flips.outcomes(home, list(numbers)))
    kinds = Counter(line.split(":")[0] for line in found)
    assert kinds == {"same": len(numbers)}, [line for line in found if not line.startswith("same")]


def test_flipped_bits_change_nothing(tmp_path: Path) -> None:
    flipped(tmp_path, range(0, flips.ALL, 22))


@pytest.mark.slow
def test_all_flipped_bits_change_nothing(tmp_path: Path) -> None:
    flipped(tmp_path, range(flips.ALL))
