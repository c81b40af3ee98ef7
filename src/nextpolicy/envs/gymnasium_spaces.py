"""Converts Gymnasium's observation and action spaces; unsupported ones are an error."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from nextpolicy.envs.base import Box, Discrete

if TYPE_CHECKING:
    from gymnasium import spaces

_MOST_NUMBERS = 1_000_000  # of a Discrete space


def observation(
    env_id: str, space: spaces.Space | None, channels_first: bool
) -> tuple[tuple[int, ...], type[np.uint8 | np.float32]]:
    """Shape and type of one network input."""
    from gymnasium import spaces

    if isinstance(space, spaces.Discrete):
        return (_count(env_id, "observations", space),), np.float32
    if space is None:
        raise ValueError(f"{env_id}: expected an observation space, got none; set self.observation_space")
    if isinstance(space, spaces.Box) and not all(space.shape):
        raise ValueError(f"{env_id}: expected observations of one number or more, got a Box of shape {space.shape}")
    if not isinstance(space, spaces.Box):
        flat = "wrap it in gymnasium.wrappers.FlattenObservation and give that as env_fn"
        odd = isinstance(space, (spaces.Graph, spaces.Sequence))  # of no fixed length
        advice = "make them a Box in a gymnasium.ObservationWrapper and give that as env_fn" if odd else flat
        raise ValueError(f"{env_id}: expected observations of Box or Discrete, got {type(space).__name__}; {advice}")
    shape = tuple(space.shape) or (1,)
    if channels_first:
        if len(shape) != 3:
            raise ValueError(f"{env_id} channels_first: expected images [C, H, W], got observations of shape {shape}")
        shape = (*shape[1:], shape[0])
    return shape, np.uint8 if space.dtype == np.uint8 else np.float32


def _count(env_id: str, what: str, space: spaces.Discrete) -> int:
    """The size of a Discrete space; networks have one input or output for each element."""
    count = int(space.n)
    if count > _MOST_NUMBERS:
        raise ValueError(f"{env_id}: expected {what} of Discrete(n) with n at most {_MOST_NUMBERS}, got {count}")
    return count


def action_space(env_id: str, space: spaces.Space | None) -> Discrete | Box:
    """The action space with its bounds and type."""
    from gymnasium import spaces

    if isinstance(space, spaces.Discrete):
        return Discrete(_count(env_id, "actions", space), int(space.start), np.dtype(space.dtype))
    if space is None:
        raise ValueError(f"{env_id}: expected an action space, got none; set self.action_space")
    if isinstance(space, spaces.Box) and np.issubdtype(space.dtype, np.floating):
        return Box(tuple(space.shape), space.low, space.high, np.dtype(space.dtype))
    got = f"a Box of {space.dtype}" if isinstance(space, spaces.Box) else type(space).__name__
    advice = "wrap it in gymnasium.wrappers.TransformAction with a Discrete or Box and give that as env_fn"
    raise ValueError(f"{env_id}: expected actions of Discrete or a Box of real numbers, got {got}; {advice}")
