"""Record an episode as an animated GIF or an MP4, for environments that can render."""

from __future__ import annotations

import importlib.util
import math
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

_MAX_FRAMES = 1000
_MILLISECONDS = 60  # per frame, if an environment has no time
_FASTEST = 40  # milliseconds per frame


def check_target(path: str) -> None:
    """Raise if the file cannot be written. Call it before any work is done."""
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
        raise RunError(f"video: expected a file in an existing folder, got {path}")


def check_drawable(run: Run) -> None:
    """Raise if the environment cannot render. Call it before any work is done."""
    env, on_host = run._job.env, run._job.on_host
    if not getattr(env, "can_render", on_host or hasattr(env, "render")):
        advice = "set its render mode to 'rgb_array' or omit --video" if on_host else "omit --video"
        if getattr(env, "needs_pygame", False):
            advice = "`pip install gymnasium pygame` draws it"
        raise RunError(
            f"video: expected an environment that can render, got {run._job.setup.spec.id}, which cannot; {advice}"
        )


def record(run: Run, path: str, policy: str, member: int, greedy: bool, seed: int) -> float:
    """Write the first `_MAX_FRAMES` frames of an episode and return the sum of their rewards."""
    check_drawable(run)
    job = run._job
    snapshot, key = run.snapshot(policy, member), jax.random.key(seed)
    frames, total, ended = film(job.env, job.setup.networks, snapshot, key, greedy=greedy, max_steps=_MAX_FRAMES)
    kept, milliseconds = pace(getattr(job.env, "seconds_per_step", None))
    frames = frames[::kept]
    (write_mp4 if Path(path).suffix.lower() == ".mp4" else write_gif)(path, frames, milliseconds)
    cut = ", the first of a longer episode" if not ended else ""
    print(f"video: {len(frames)} frames{cut}", file=sys.stderr)
    return total


def pace(seconds_per_step: float | None) -> tuple[int, int]:
    """Which frames to keep, every n-th, and for how many milliseconds to show each.

    Simulated time passes as in reality, at no more than 25 frames per second.
    """
    if seconds_per_step is None:
        return 1, _MILLISECONDS
    kept = max(1, math.ceil(_FASTEST / (1000 * seconds_per_step) - 1e-6))
    return kept, round(1000 * seconds_per_step * kept)


def write_gif(path: str, frames: list[np.ndarray], milliseconds: int = _MILLISECONDS) -> None:
    """Write frames, uint8 [H, W, 3], as a looping GIF."""
    from PIL import Image

    images = [Image.fromarray(frame) for frame in frames]
    images[0].save(path, save_all=True, append_images=images[1:], duration=milliseconds, loop=0)


def write_mp4(path: str, frames: list[np.ndarray], milliseconds: int = _MILLISECONDS) -> None:
    """Write frames, uint8 [H, W, 3], as an H.264 video, cropped to an even height and width."""
    import imageio_ffmpeg

    height, width = (side // 2 * 2 for side in frames[0].shape[:2])  # H.264 stores colour for every second pixel
    film = imageio_ffmpeg.write_frames(path, (width, height), fps=1000 / milliseconds, macro_block_size=2)
    with warnings.catch_warnings():
        # JAX warns about forking a process with threads; this child executes ffmpeg immediately.
        warnings.filterwarnings("ignore", message=r"os\.fork\(\) was called", category=RuntimeWarning)
        film.send(None)  # starts ffmpeg
    for frame in frames:
        film.send(np.ascontiguousarray(frame[:height, :width]))
    film.close()
