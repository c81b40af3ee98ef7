"""Four Rooms, sampled from the exact MDP in `nextpolicy.tabular.four_rooms_mdp`, with a time limit.

Observations are state numbers, rows of `spec.obs_table` [104, 13, 13, 2]. Entering the goal gives reward 1 and
terminates.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from nextpolicy.envs.base import Discrete, EnvSpec, at_least_one, auto_reset, check_options
from nextpolicy.envs.registry import Backend
from nextpolicy.tabular import four_rooms_mdp as exact
from nextpolicy.types import Array, Step

_PIXELS = 16  # side of a drawn cell
_COLOURS = {"floor": (240, 240, 240), "wall": (60, 60, 60), "goal": (60, 160, 90), "agent": (50, 90, 200)}


class FourRoomsState(NamedTuple):
    """The agent's position and the age of the episode."""

    position: Array  # [N] int32, state of the MDP
    age: Array  # [N] int32, steps of this episode


class FourRooms:
    """Steps are sampled from the exact MDP, `self.mdp`; only the MDP uses `gamma`."""

    def __init__(
        self,
        noise: str = "fail",
        time_limit: int = 500,
        start: tuple[int, int] = exact.START,
        goal: tuple[int, int] = exact.GOAL,
        gamma: float = 0.99,
    ):
        at_least_one("four-rooms", "time_limit", time_limit)
        start, goal = (start[0], start[1]), (goal[0], goal[1])
        self.mdp = exact.four_rooms(noise, gamma, start=start, goal=goal)
        table = exact.observations()
        self.spec = EnvSpec(
            id="four-rooms",
            obs_shape=table.shape[1:],
            action=Discrete(self.mdp.actions),
            obs_dtype=table.dtype,
            time_limit=time_limit,
            obs_table=table,
            start_value=self.start_value,
        )
        self._time_limit = time_limit
        self._start = exact.state_index(*start, name="start")
        self._goal = exact.state_index(*goal, name="goal")
        self._successor, self._cdf = _inverse_cdf(self.mdp.P)

    def _reset_one(self, key: Array) -> tuple[FourRoomsState, Array]:
        position = jnp.asarray(self._start, jnp.int32)
        return FourRoomsState(position=position, age=jnp.zeros((), jnp.int32)), position

    def reset(self, key: Array, num_envs: int) -> tuple[FourRoomsState, Array]:
        return jax.vmap(self._reset_one)(jax.random.split(key, num_envs))

    def step(self, key: Array, state: FourRoomsState, action: Array) -> tuple[FourRoomsState, Step[Array]]:
        key_move, key_reset = jax.random.split(key)
        draw = jax.random.uniform(key_move, action.shape)
        passed = draw[:, None] >= jnp.asarray(self._cdf)[state.position, action]
        branch = jnp.sum(passed, axis=1, dtype=jnp.int32)
        position = jnp.asarray(self._successor)[state.position, action, branch]
        terminated = position == self._goal
        successor = FourRoomsState(position=position, age=state.age + 1)
        truncated = successor.age >= self._time_limit
        reward = terminated.astype(jnp.float32)
        fresh = self.reset(key_reset, len(position))
        return auto_reset(fresh, successor, position, reward, terminated, truncated)

    def state_value(self, policy: Array) -> Array:
        """V^pi = (I - gamma P_pi)^-1 R_pi [S] of a policy [S, A], with the `gamma` of the MDP."""
        P = jnp.einsum("sa,sat->st", policy, jnp.asarray(self.mdp.P, policy.dtype))
        reward = jnp.sum(policy * jnp.asarray(self.mdp.R, policy.dtype), axis=-1)
        return jnp.linalg.solve(jnp.eye(len(P), dtype=P.dtype) - self.mdp.gamma * P, reward)

    def start_value(self, policy: Array) -> Array:
        """V^pi(s_0) of a policy [S, A]."""
        return self.state_value(policy)[self._start]

    def render(self, state: FourRoomsState) -> np.ndarray:
        """The map seen from above, uint8 [208, 208, 3], for the state of one environment."""
        image = np.where(exact.WALLS[..., None], _COLOURS["wall"], _COLOURS["floor"]).astype(np.uint8)
        image[tuple(exact.cells[self._goal])] = _COLOURS["goal"]
        image[tuple(exact.cells[int(state.position)])] = _COLOURS["agent"]
        return image.repeat(_PIXELS, axis=0).repeat(_PIXELS, axis=1)


def _inverse_cdf(P: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Successors [S, A, K] (int32), most likely first, and their cumulative probabilities (float32).

    K is the largest number of successors of any (s, a). A draw u in [0, 1) selects branch #{k: u >= cdf[k]}. The cdf is
    exactly 1 from the last possible successor on, so rounding never selects an impossible one.
    """
    branches = int((P > 0).sum(-1).max())
    successor = np.argsort(-P, axis=-1, kind="stable")[..., :branches]
    probability = np.take_along_axis(P, successor, axis=-1)
    cdf = probability.cumsum(-1)
    remaining = probability[..., ::-1].cumsum(-1)[..., ::-1] - probability
    return successor.astype(np.int32), np.where(remaining > 0, cdf, 1.0).astype(np.float32)


def make(name: str = "", **options: Any) -> FourRooms:
    """Four Rooms; `name` is empty."""
    check_options("four-rooms", options, {"noise", "time_limit", "start", "goal", "gamma"})
    return FourRooms(**options)


BACKEND = Backend(prefix="four-rooms", make=make, presets={"*": "four-rooms"})
