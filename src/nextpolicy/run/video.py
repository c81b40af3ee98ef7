"""One episode of a policy as an animated GIF or an MP4, for environments that can draw themselves."""

from __future__ import annotations

import importlib.util
import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

import jax
import numpy as np

from nextpolicy.loop.evaluate import film
from nextpolicy.run.folder import RunError

if TYPE_CHECKING:
    from nextpolicy.run.run import Run

_MOST_FRAMES = 1000
_MILLISECONDS = 60  # of one frame


def check_target(path: str) -> None:
    """Refuse what cannot be written before any work is done."""
    target = Path(path)
    kind = target.suffix.lower()
    if kind not in (".gif", ".mp4"):
        raise RunError(f"video: expected a file name that ends in .gif or .mp4, got {path}")
    if kind == ".mp4" and importlib.util.find_spec("imageio_ffmpeg") is None:
        raise RunError(
            f"video: expected a file name that ends in .gif, got {path}, which needs `pip install imageio-ffmpeg`"
        )
    if target.exists():
        raise RunError(f"video: expected a new file, got {path}, which exists; nothing was written")
    if not target.absolute().parent.is_dir():
        raise RunError(f"video: expected a file in a folder that exists, got {path}")


def check_drawable(run: Run) -> None:
    """Refuse an environment that cannot draw itself before any work is done."""
    env, on_host = run._job.env, run._job.on_host
    if not (getattr(env, "can_render", True) if on_host else hasattr(env, "render")):
        advice = "give it the render mode 'rgb_array', or leave out --video" if on_host else "leave out --video"
        raise RunError(
            f"video: expected an environment that can draw itself, got {run._job.setup.spec.id}, which cannot; {advice}"
        )


def record(run: Run, path: str, policy: str, member: int, greedy: bool, seed: int) -> float:
    """Write the episode, or its start if it is long, and return what was earned in what is seen."""
    check_drawable(run)
    job = run._job
    snapshot, key = run.snapshot(policy, member), jax.random.key(seed)
    frames, total, ended = film(job.env, job.setup.networks, snapshot, key, greedy=greedy, max_steps=_MOST_FRAMES)
    (write_mp4 if Path(path).suffix.lower() == ".mp4" else write_gif)(path, frames)
    cut = ", the first of a longer episode" if not ended else ""
    print(f"video: {len(frames)} frames{cut}", file=sys.stderr)
    return total


def write_gif(path: str, frames: list[np.ndarray], milliseconds: int = _MILLISECONDS) -> None:
    """Frames uint8 [H, W, 3] as a looping GIF."""
    from PIL import Image

    images = [Image.fromarray(frame) for frame in frames]
    images[0].save(path, save_all=True, append_images=images[1:], duration=milliseconds, loop=0)


def write_mp4(path: str, frames: list[np.ndarray], milliseconds: int = _MILLISECONDS) -> None:
    """Frames uint8 [H, W, 3] as an H.264 film, less the last row or column where their number is odd."""
    import imageio_ffmpeg

    height, width = (side // 2 * 2 for side in frames[0].shape[:2])  # the format has colour for every second pixel
    film = imageio_ffmpeg.write_frames(path, (width, height), fps=1000 / milliseconds, macro_block_size=2)
    with warnings.catch_warnings():
        # JAX warns of every fork of a process with threads; this one becomes ffmpeg at once.
        warnings.filterwarnings("ignore", message=r"os\.fork\(\) was called", category=RuntimeWarning)
        film.send(None)  # starts it
    for frame in frames:
        film.send(np.ascontiguousarray(frame[:height, :width]))
    film.close()
