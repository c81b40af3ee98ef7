"""Converts Gymnasium's observation and action spaces; unsupported ones are an error."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from nextpolicy.envs import nested
from nextpolicy.envs.base import ActionSpace, Box, Discrete
from nextpolicy.envs.nested import Tree
from nextpolicy.envs.space_trees import MOST_NUMBERS, TRANSFORM, is_nested, nested_actions, tree_of

if TYPE_CHECKING:
    from gymnasium import spaces

_SUPPORTED = "Box, Discrete, MultiDiscrete, MultiBinary, Dict or Tuple"


def observation(
    env_id: str, space: spaces.Space | None, channels_first: bool
) -> tuple[tuple[int, ...], type[np.uint8 | np.float32], Tree | None]:
    """Shape and type of one network input, and the tree of a space whose samples are flattened."""
    from gymnasium import spaces

    if isinstance(space, spaces.Discrete):
        return (_count(env_id, "observations", space),), np.float32, None
    if space is None:
        raise ValueError(f"{env_id}: expected an observation space, got none; set self.observation_space")
    if (odd := _unsupported(space)) is not None:
        flattens = isinstance(odd, (spaces.Text, spaces.OneOf))
        wrapper = "FlattenObservation" if flattens else "TransformObservation with a Box"
        raise ValueError(
            f"{env_id}: expected observations of {_SUPPORTED}, got {_within(odd, space)}; "
            f"wrap it in gymnasium.wrappers.{wrapper} and give that as env_fn"
        )
    tree = tree_of(space, bits_are_choices=False) if is_nested(space) else None
    shape = (nested.width(tree),) if tree is not None else tuple(space.shape or (1,))
    if not all(shape):
        got = f"a Box of shape {space.shape}" if tree is None else f"{type(space).__name__} without any"
        raise ValueError(f"{env_id}: expected observations of one number or more, got {got}")
    if shape[0] > MOST_NUMBERS and tree is not None:
        raise ValueError(f"{env_id}: expected observations of at most {MOST_NUMBERS} numbers, got {shape[0]}")
    if channels_first:
        if len(shape) != 3:
            raise ValueError(f"{env_id} channels_first: expected images [C, H, W], got observations of shape {shape}")
        shape = (*shape[1:], shape[0])
    if tree is not None:
        return shape, nested.flat_dtype(tree), tree
    return shape, np.uint8 if space.dtype == np.uint8 else np.float32, None


def _count(env_id: str, what: str, space: spaces.Discrete) -> int:
    """The size of a Discrete space; networks have one input or output for each element."""
    count = int(space.n)
    if count > MOST_NUMBERS:
        raise ValueError(f"{env_id}: expected {what} of Discrete(n) with n at most {MOST_NUMBERS}, got {count}")
    return count


def _unsupported(space: spaces.Space) -> spaces.Space | None:
    """The first space within `space`, or itself, that cannot be flattened; None if there is none."""
    from gymnasium import spaces

    if isinstance(space, (spaces.Dict, spaces.Tuple)):
        inner = space.spaces.values() if isinstance(space, spaces.Dict) else space.spaces
        return next((odd for part in inner if (odd := _unsupported(part)) is not None), None)
    supported = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)
    return None if isinstance(space, supported) else space


def _within(odd: spaces.Space, space: spaces.Space) -> str:
    return type(odd).__name__ if odd is space else f"{type(odd).__name__} in a {type(space).__name__}"


def action_space(env_id: str, space: spaces.Space | None) -> ActionSpace:
    """The action space with its bounds and type."""
    from gymnasium import spaces

    if isinstance(space, spaces.Discrete):
        return Discrete(_count(env_id, "actions", space), int(space.start), np.dtype(space.dtype))
    if space is None:
        raise ValueError(f"{env_id}: expected an action space, got none; set self.action_space")
    if isinstance(space, spaces.Box) and np.issubdtype(space.dtype, np.floating):
        return Box(tuple(space.shape), space.low, space.high, np.dtype(space.dtype))
    odd = space if isinstance(space, spaces.Box) else _unsupported(space)
    if odd is not None:
        got = f"a Box of {space.dtype}" if isinstance(space, spaces.Box) else _within(odd, space)
        wanted = f"Discrete, a Box of real numbers, {_SUPPORTED.removeprefix('Box, Discrete, ')}"
        raise ValueError(f"{env_id}: expected actions of {wanted}, got {got}; {TRANSFORM}")
    return nested_actions(env_id, space)
