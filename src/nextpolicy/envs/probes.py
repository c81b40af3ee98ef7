"""Tiny environments with known values; each isolates one part of learning.

Observations have shape (1,); the discrete ones have 2 actions, the `-continuous` ones actions in [-1, 1] of shape (1,).
`gamma` is the discount used in training. Unless stated otherwise, an episode is one step and terminates.

    constant             obs 0, reward 1                          v(0) = 1
    observation          obs -1 or +1, p = 1/2; reward = obs      v(s) = s
    discount             obs 0 then 1; reward 0 then 1            v(0) = gamma, v(1) = 1
    action               obs 0; reward +1 for action 1, else -1   v(0) = 2 p(1) - 1; optimal 1, uniform 0
      -continuous        reward 1 - (a - 0.5)^2                   optimal v(0) = 1 at a = 0.5
    action-observation   obs -1 or +1; reward +1 for the action   v(s) = 2 p(right | s) - 1; optimal 1, uniform 0
                         (s > 0), -1 for the other
      -continuous        reward 1 - (a - s / 2)^2                 optimal v(s) = 1 at a = s / 2
    endless              obs 0, reward 1, no termination;         v(0) = 1 / (1 - gamma); treating the time limit as
                         truncated every `time_limit` (8) steps   termination gives at most (1 - gamma^8) / (1 - gamma)
    nan                  as `endless`, but the reward is NaN      none: training must stop with an error
                         from step `after` (64) on, counted
                         over all episodes
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from nextpolicy.envs.base import Box, Discrete, EnvSpec, at_least_one, auto_reset, check_options
from nextpolicy.envs.registry import Backend
from nextpolicy.types import Array, Step


class ProbeState(NamedTuple):
    """N probes; only `steps_ever` survives the end of an episode."""

    obs: Array  # [N, 1] float32
    age: Array  # [N] int32, steps of this episode
    steps_ever: Array  # [N] int32, steps since `reset`


# Of one environment: (observation scalar, action scalar) -> (next observation, reward, terminated).
Rule = Callable[[Array, Array], tuple[Array, Array, Array]]


def _zero(key: Array) -> Array:
    return jnp.zeros(())


def _sign(key: Array) -> Array:
    return jax.random.rademacher(key, (), jnp.float32)


def _last_step(reward: Callable[[Array, Array], Array]) -> Rule:
    """An episode of one step. The successor repeats the observation, so that wrongly bootstrapping from it shows."""
    return lambda obs, action: (obs, reward(obs, action), jnp.array(True))


def _discount(obs: Array, action: Array) -> tuple[Array, Array, Array]:
    return jnp.ones(()), obs, obs > 0.5


def _endless(obs: Array, action: Array) -> tuple[Array, Array, Array]:
    return obs, jnp.ones(()), jnp.array(False)


def _plus_minus(right: Array) -> Array:
    return jnp.where(right, 1.0, -1.0)


# name -> (first observation, rule with discrete actions, rule with continuous actions or None)
_ONE, _OBS = _last_step(lambda s, a: jnp.ones(())), _last_step(lambda s, a: s)
_PROBES: dict[str, tuple[Callable[[Array], Array], Rule, Rule | None]] = {
    "constant": (_zero, _ONE, _ONE),
    "observation": (_sign, _OBS, _OBS),
    "discount": (_zero, _discount, _discount),
    "action": (
        _zero,
        _last_step(lambda s, a: _plus_minus(a == 1)),
        _last_step(lambda s, a: 1.0 - (a - 0.5) ** 2),
    ),
    "action-observation": (
        _sign,
        _last_step(lambda s, a: _plus_minus((a == 1) == (s > 0))),
        _last_step(lambda s, a: 1.0 - (a - 0.5 * s) ** 2),
    ),
    "endless": (_zero, _endless, None),
    "nan": (_zero, _endless, None),
}


class Probe:
    """A probe as a `DeviceEnv`."""

    def __init__(
        self,
        env_id: str,
        first: Callable[[Array], Array],
        rule: Rule,
        action: Discrete | Box,
        time_limit: int | None = None,
        nan_after: int | None = None,
    ):
        self.spec = EnvSpec(id=env_id, obs_shape=(1,), action=action, obs_dtype=np.float32, time_limit=time_limit)
        self._first, self._rule, self._nan_after = first, rule, nan_after

    def _reset_one(self, key: Array) -> tuple[ProbeState, Array]:
        obs = self._first(key)[None]
        zero = jnp.zeros((), jnp.int32)
        return ProbeState(obs=obs, age=zero, steps_ever=zero), obs

    def reset(self, key: Array, num_envs: int) -> tuple[ProbeState, Array]:
        return jax.vmap(self._reset_one)(jax.random.split(key, num_envs))

    def _step_one(self, state: ProbeState, action: Array) -> tuple[Array, Array, Array]:
        if isinstance(self.spec.action, Box):
            action = self.spec.action.clip(action)[0]
        next_obs, reward, terminated = self._rule(state.obs[0], action)
        if self._nan_after is not None:
            reward = jnp.where(state.steps_ever >= self._nan_after, jnp.nan, reward)
        return next_obs[None], reward, terminated

    def step(self, key: Array, state: ProbeState, action: Array) -> tuple[ProbeState, Step[Array]]:
        next_obs, reward, terminated = jax.vmap(self._step_one)(state, action)
        age, steps_ever = state.age + 1, state.steps_ever + 1
        limit = self.spec.time_limit
        truncated = jnp.zeros_like(terminated) if limit is None else age >= limit
        successor = ProbeState(obs=next_obs, age=age, steps_ever=steps_ever)
        state, step = auto_reset(self.reset(key, len(age)), successor, next_obs, reward, terminated, truncated)
        return state._replace(steps_ever=steps_ever), step


def names() -> list[str]:
    """All probes, discrete ones first."""
    return list(_PROBES) + [f"{name}-continuous" for name, probe in _PROBES.items() if probe[2]]


def make(name: str, **options: int) -> Probe:
    """The probe `name`, one of `names()`."""
    env_id = f"probe/{name}"
    taken = {"endless": {"time_limit": 8}, "nan": {"time_limit": 8, "after": 64}}.get(name, {})
    check_options(env_id, options, taken)
    values = {**taken, **options}
    for option, value in values.items():
        at_least_one(env_id, option, value)
    continuous = name.endswith("-continuous")
    first, discrete_rule, continuous_rule = _PROBES[name.removesuffix("-continuous")]
    rule = continuous_rule if continuous and continuous_rule else discrete_rule
    action = Box(shape=(1,), low=-1.0, high=1.0) if continuous else Discrete(2)
    return Probe(env_id, first, rule, action, values.get("time_limit"), values.get("after"))


BACKEND = Backend(prefix="probe", make=make, names=names)
