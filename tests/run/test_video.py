"""Films: what is refused before any work is done, and what ends up in the file."""

from __future__ import annotations

import importlib.machinery
import sys
import types
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image

from nextpolicy.run import video
from nextpolicy.run.folder import RunError

pytestmark = pytest.mark.quick_compilation


def moving_square(count: int = 12, height: int = 34, width: int = 50) -> list[np.ndarray]:
    frames = np.zeros((count, height, width, 3), np.uint8)
    for i, frame in enumerate(frames):
        frame[4:20, 2 * i : 2 * i + 16] = (255, 128, 0)
    return list(frames)


@pytest.fixture
def no_ffmpeg(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(video.importlib.util, "find_spec", lambda name: None)


@pytest.fixture
def ffmpeg(monkeypatch: pytest.MonkeyPatch) -> list:
    """A stand-in for imageio-ffmpeg that notes what it is asked to write."""
    got: list = []

    def write_frames(path, size, **options):
        got.append((path, size, options))
        while (frame := (yield)) is not None:
            got.append(frame)

    fake = types.ModuleType("imageio_ffmpeg")
    fake.write_frames = write_frames
    fake.__spec__ = importlib.machinery.ModuleSpec("imageio_ffmpeg", None)
    monkeypatch.setitem(sys.modules, "imageio_ffmpeg", fake)
    return got


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("film.avi", "expected a file name that ends in .gif or .mp4"),
        ("film", "expected a file name that ends in .gif or .mp4"),
        (
            "film.mp4",
            "expected a file name that ends in .gif, got .*film.mp4, which needs `pip install imageio-ffmpeg`",
        ),
        ("nowhere/film.gif", "expected a file in an existing folder"),
        ("there.gif", "which exists; nothing was written"),
    ],
)
def test_what_cannot_be_written_is_one_line(tmp_path: Path, no_ffmpeg: None, name: str, words: str) -> None:
    (tmp_path / "there.gif").write_bytes(b"mine")
    with pytest.raises(RunError, match=words) as caught:
        video.check_target(str(tmp_path / name))
    assert "\n" not in str(caught.value)
    assert (tmp_path / "there.gif").read_bytes() == b"mine"


def test_both_kinds_are_taken_where_they_can_be_written(tmp_path: Path, ffmpeg: list) -> None:
    for name in ("a.gif", "b.mp4", "C.MP4"):
        video.check_target(str(tmp_path / name))


def test_a_gif_has_every_frame_and_loops(tmp_path: Path) -> None:
    frames = moving_square()
    video.write_gif(str(tmp_path / "film.gif"), frames)
    with Image.open(tmp_path / "film.gif") as image:
        assert (image.n_frames, image.size, image.info["duration"], image.info["loop"]) == (12, (50, 34), 60, 0)
        image.seek(7)
        shown = np.asarray(image.convert("RGB"), int)
    assert np.abs(shown - frames[7]).mean() < 3


def test_an_mp4_is_given_every_frame(ffmpeg: list) -> None:
    frames = moving_square()
    video.write_mp4("film.mp4", [frame[:, ::-1] for frame in frames])
    path, size, options = ffmpeg[0]
    assert (path, size) == ("film.mp4", (50, 34))
    assert options["fps"] == pytest.approx(1000 / 60)
    assert len(ffmpeg) == 1 + len(frames)
    assert all(frame.flags["C_CONTIGUOUS"] for frame in ffmpeg[1:])
    np.testing.assert_array_equal(ffmpeg[8], frames[7][:, ::-1])


def filmed(monkeypatch: pytest.MonkeyPatch, frames: int, path: str, **host: Any) -> list:
    """What is written for an episode of so many frames."""
    written: list = []
    run = SimpleNamespace(snapshot=lambda policy, member: (policy, member))
    setup = SimpleNamespace(networks=None, spec=SimpleNamespace(id="atari/Toy"))
    run._job = SimpleNamespace(setup=setup, env=SimpleNamespace(**host), on_host=True)
    monkeypatch.setattr(video, "film", lambda *_, **__: (moving_square(frames), 3.5, frames < 1000))
    monkeypatch.setattr(video, "write_mp4", lambda path, frames, ms: written.append(("mp4", path, len(frames), ms)))
    monkeypatch.setattr(video, "write_gif", lambda path, frames, ms: written.append(("gif", path, len(frames), ms)))
    written.append(video.record(run, path, "target", 0, True, 0))
    return written


def test_the_name_says_how_a_film_is_written(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    assert filmed(monkeypatch, 5, "a.GIF") == [("gif", "a.GIF", 5, 60), 3.5]
    assert capsys.readouterr().err == "video: 5 frames\n"
    assert filmed(monkeypatch, 1000, "a.Mp4") == [("mp4", "a.Mp4", 1000, 60), 3.5]
    assert "1000 frames, the first of a longer episode" in capsys.readouterr().err
    assert filmed(monkeypatch, 1000, "a.gif", seconds_per_step=0.008) == [("gif", "a.gif", 200, 40), 3.5]


def test_what_cannot_draw_itself_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RunError, match=r"^video: expected .* that can render.*, got atari/Toy, which cannot; "):
        filmed(monkeypatch, 5, "a.gif", can_render=False)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # it leaves pipes to be collected
def test_a_real_mp4_can_be_read_again(tmp_path: Path) -> None:
    imageio_ffmpeg = pytest.importorskip("imageio_ffmpeg")
    frames = moving_square(height=35)  # an odd side
    video.write_mp4(str(tmp_path / "film.mp4"), frames)
    read = imageio_ffmpeg.read_frames(str(tmp_path / "film.mp4"))
    assert next(read)["size"] == (50, 34)
    assert sum(1 for _ in read) == len(frames)
