"""Check what environments on the host return, before it is taken for data."""

from __future__ import annotations

from typing import Any

import numpy as np

from nextpolicy.envs.base import HostEnvError

KINDS = {"numbers": "fiub", "integers": "iub", "booleans": "biu"}  # what is expected -> NumPy kinds accepted


def step_of(env_id: str, returned: Any, num_envs: int) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray, Any]:
    """The five values of a vector environment's step, with rewards as float32 [N] and both ends as bool [N].

    Observations and info are returned as they are.
    """
    if not isinstance(returned, tuple) or len(returned) != 5:
        got = f"{len(returned)} values" if isinstance(returned, tuple) else type(returned).__name__
        raise HostEnvError(f"{env_id}: expected step to return (obs, reward, terminated, truncated, info), got {got}")
    obs, reward, terminated, truncated, info = returned
    reward = array_of(env_id, "reward", reward, (num_envs,)).astype(np.float32)
    ends = [("terminated", terminated), ("truncated", truncated)]
    terminated, truncated = (array_of(env_id, name, x, (num_envs,), "booleans").astype(bool) for name, x in ends)
    return obs, reward, terminated, truncated, info


def array_of(env_id: str, name: str, value: Any, shape: tuple[int, ...], expected: str = "numbers") -> np.ndarray:
    """`value` as an array, if it has this shape and holds what is `expected`."""
    try:
        array = np.asarray(value)
    except ValueError:  # rows of different lengths
        array = np.empty((), object)
    if array.shape == shape and array.dtype.kind in KINDS[expected]:
        return array
    got = "None" if value is None else f"{array.dtype} {list(array.shape)}"
    raise HostEnvError(f"{env_id}: expected {name} to be {expected} {list(shape)}, got {got}")
