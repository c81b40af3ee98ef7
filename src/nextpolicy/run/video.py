"""One episode of a policy as an animated GIF, for environments that can draw themselves."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import jax
import numpy as np

from nextpolicy.run.folder import RunError
from nextpolicy.train.evaluate import trajectory
from nextpolicy.train.host_evaluate import actor, film_host

if TYPE_CHECKING:
    from nextpolicy.run.api import Run

_MOST_FRAMES = 1000


def check_target(path: str) -> None:
    """Refuse what cannot be written before any work is done."""
    if Path(path).suffix.lower() != ".gif":
        raise RunError(f"video: got {path}, takes a file name that ends in .gif")
    if Path(path).exists():
        raise RunError(f"video: {path} exists, takes a new file; nothing was written")


def record(run: Run, path: str, policy: str, member: int, greedy: bool, seed: int) -> float:
    """Write the episode and return what it earned."""
    setup = run._job.setup
    env, host = setup.env, run._job.host
    if host is not None and getattr(host, "can_render", True):
        act = actor(host, setup.networks, greedy)
        key = jax.random.key(seed)
        frames, total = film_host(host, act, run.snapshot(policy, member), key, max_steps=_MOST_FRAMES)
        write_gif(path, frames)
        return total
    if env is None or not hasattr(env, "render"):
        raise RunError(f"video: {setup.spec.id} cannot draw itself")
    snapshot = run.snapshot(policy, member)
    key = jax.random.key(seed)
    states, total = trajectory(env, setup.networks, snapshot, key, greedy=greedy, max_steps=_MOST_FRAMES)
    write_gif(path, [np.asarray(env.render(jax.device_get(s))) for s in states])
    return total


def write_gif(path: str, frames: list[np.ndarray], milliseconds: int = 60) -> None:
    """Frames uint8 [H, W, 3] as a looping GIF."""
    from PIL import Image

    images = [Image.fromarray(frame) for frame in frames]
    images[0].save(path, save_all=True, append_images=images[1:], duration=milliseconds, loop=0)
    print(f"video: {len(frames)} frames", file=sys.stderr)
