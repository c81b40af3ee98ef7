"""Trees of nested spaces, for Gymnasium's classes, gymnax's and those that look like them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from nextpolicy.envs.base import Box
from nextpolicy.envs.nested import Leaf, MultiDiscrete, Nest, Tree, width

MOST_NUMBERS = 1_000_000  # inputs or outputs of a network
TRANSFORM = "wrap it in gymnasium.wrappers.TransformAction with a Discrete or Box and give that as env_fn"


def is_nested(space: object) -> bool:
    """Whether samples are flattened: Dict, Tuple, MultiDiscrete and MultiBinary."""
    return hasattr(space, "spaces") or hasattr(space, "nvec") or _is_multi_binary(space)


def parts(space: Any) -> Iterator[Any]:
    """The spaces of the arrays of a sample, in the order of `nested.leaves`."""
    inner = getattr(space, "spaces", None)
    if inner is None:
        yield space
    else:
        for part in inner.values() if isinstance(inner, Mapping) else inner:
            yield from parts(part)


def tree_of(space: Any, *, bits_are_choices: bool) -> Tree:
    """The tree of a space. Elements of MultiBinary are numbers in observations and choices in actions."""
    inner = getattr(space, "spaces", None)
    if inner is not None:
        keys = tuple(inner) if isinstance(inner, Mapping) else None
        children = inner.values() if isinstance(inner, Mapping) else inner
        return Nest(keys, tuple(tree_of(child, bits_are_choices=bits_are_choices) for child in children))
    shape = getattr(space, "shape", ())
    if shape is None:
        raise ValueError(f"expected parts of Box, Discrete, MultiDiscrete or MultiBinary, got {type(space).__name__}")
    shape = tuple(shape)
    if hasattr(space, "nvec"):
        starts = np.broadcast_to(getattr(space, "start", 0), shape)
        return _choices(space, shape, np.ravel(space.nvec).tolist(), starts.ravel().tolist())
    if _is_multi_binary(space):
        count = math.prod(shape)
        return _choices(space, shape, [2] * count, [0] * count) if bits_are_choices else Leaf(shape, np.int8)
    if hasattr(space, "n"):
        return _choices(space, (), [int(space.n)], [int(getattr(space, "start", 0))])
    return Leaf(shape, np.dtype(getattr(space, "dtype", np.float32)))


def observation_tree(env_id: str, space: Any) -> Tree:
    """The tree of a nested observation space that a network can read."""
    try:
        tree = tree_of(space, bits_are_choices=False)
    except ValueError as error:
        raise ValueError(f"{env_id}: {error} in observations") from None
    numbers = width(tree)
    if not 1 <= numbers <= MOST_NUMBERS:
        raise ValueError(f"{env_id}: expected observations of 1 to {MOST_NUMBERS} numbers, got {numbers}")
    return tree


def nested_actions(env_id: str, space: Any, advice: str = TRANSFORM) -> MultiDiscrete | Box:
    """A nested action space: a product of choices, or a vector of real numbers. `advice` ends an error message."""
    name, each = type(space).__name__, list(parts(space))
    try:
        tree = tree_of(space, bits_are_choices=True)
    except ValueError as error:
        raise ValueError(f"{env_id}: {error} in actions; {advice}") from None
    if not sum(math.prod(getattr(part, "shape", ())) for part in each):
        raise ValueError(f"{env_id}: expected actions of one number or more, got {name} without any; {advice}")
    real = [hasattr(part, "low") for part in each]
    if all(real) and all(np.issubdtype(getattr(part, "dtype", np.float32), np.floating) for part in each):
        low, high = (
            np.concatenate([np.broadcast_to(np.asarray(getattr(part, b)), part.shape).ravel() for part in each])
            for b in ("low", "high")
        )
        return Box(low.shape, low, high, tree=tree)
    if any(real):
        got = f"{name} of both" if not all(real) else f"{name} with a Box of whole numbers"
        raise ValueError(f"{env_id}: expected actions that are all discrete or all real, got {got}; {advice}")
    made = MultiDiscrete(tree)
    if len(made.sizes) * max(made.sizes) > MOST_NUMBERS:
        got = f"{len(made.sizes)} with at most {max(made.sizes)}"
        raise ValueError(
            f"{env_id}: expected components times values of at most {MOST_NUMBERS} in actions, got {got}; {advice}"
        )
    return made


def _is_multi_binary(space: object) -> bool:
    return hasattr(space, "n") and not hasattr(space, "nvec") and bool(getattr(space, "shape", ()))


def _choices(space: object, shape: tuple[int, ...], sizes: list[int], starts: list[int]) -> Leaf:
    return Leaf(shape, np.dtype(getattr(space, "dtype", np.int32)), tuple(sizes), tuple(starts))
