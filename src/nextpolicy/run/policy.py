"""A trained policy that maps an environment's own observations to its own actions."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from nextpolicy.envs.base import Discrete, EnvSpec, own_actions, plain
from nextpolicy.envs.nested import flatten, unflatten
from nextpolicy.types import Array, Networks, PolicySnapshot, PyTree


class Policy:
    """`policy(obs, key=None)` returns actions for one observation or a batch: greedy without a key, sampled with one.

    Observations and actions are NumPy arrays in the environment's own spaces, with their shapes, dtypes, bounds and
    first discrete values. Those of `Dict` and `Tuple` spaces are dicts and tuples of arrays, each with the axes of the
    batch, if any. If observations are state indices, the feature rows that the networks read are accepted too.
    `policy.apply` is a pure function for `jit` and `vmap`.
    """

    def __init__(
        self,
        spec: EnvSpec,
        networks: Networks,
        snapshot: PolicySnapshot,
        arrange: Callable[[Array], Array] | None = None,
    ) -> None:
        """`networks` take feature rows, not state indices. `arrange` is `HostEnv.arrange`; None inside XLA."""
        self.spec, self.snapshot = spec, snapshot
        self._networks, self._arrange = networks, arrange
        table = spec.obs_table
        self._table = None if table is None else jnp.asarray(table)
        self._states: range | None = None
        if table is not None:
            self._states = range(len(table))
        elif spec.first_state is not None:
            self._states = range(int(spec.first_state), int(spec.first_state) + spec.obs_shape[0])
        self._compiled = jax.jit(self._choose)

    def __repr__(self) -> str:
        action = self.spec.action
        kind = f"Discrete({action.n})" if isinstance(action, Discrete) else f"Box{action.shape}"
        kind = kind if action.tree is None else str(action.tree)
        return f"Policy({self.spec.id}: {self._one()} -> {kind})"

    def __call__(self, obs: Any, key: Array | None = None) -> Any:
        """Return the action or a batch of actions. A single discrete action is a NumPy integer."""
        if any(isinstance(x, jax.core.Tracer) for x in ([obs] if self.spec.obs_tree is None else jax.tree.leaves(obs))):
            raise TypeError("obs: expected a NumPy array, got a traced array; inside jit and vmap, call policy.apply")
        if key is not None and not isinstance(key, jax.Array):
            raise ValueError(f"key: expected jax.random.key(...), got {key!r}")
        obs = self._numbers(obs)
        self._check_states(obs)
        obs = plain(obs)
        lead = self._lead(obs)
        action = own_actions(self.spec.action, np.asarray(self._compiled(self.snapshot, obs, key)), lead)
        return action[()] if isinstance(self.spec.action, Discrete) else action

    def apply(self, obs: PyTree, key: Array | None = None) -> PyTree:
        """Return actions as JAX arrays, without conversion to the environment's dtype. Works under `jit` and `vmap`."""
        space, tree = self.spec.action, self.spec.obs_tree
        obs = jnp.asarray(obs) if tree is None else flatten(tree, obs, jnp)
        action = space.legal(self._choose(self.snapshot, obs, key))
        action = action.reshape((*self._lead(obs), *action.shape[1:]))
        return action if space.tree is None else unflatten(space.tree, action, own_dtypes=False)

    def _choose(self, snapshot: PolicySnapshot, obs: Array, key: Array | None) -> Array:
        """Actions before conversion, [N] or [N, A]: discrete ones start at 0, continuous ones are unbounded."""
        lead = self._lead(obs)
        rows, numbered = obs.reshape((math.prod(lead), *obs.shape[len(lead) :])), self._numbered(obs)
        rows = rows.astype(jnp.int32) if numbered else rows
        if numbered and self._table is not None:
            rows = self._table[rows]
        elif self._arrange is not None and (numbered or self._states is None):
            rows = self._arrange(rows)
        dist = self._networks.policy(snapshot)(rows)
        return dist.mode() if key is None else dist.sample(key)

    def _numbers(self, obs: Any) -> np.ndarray:
        """`obs` as a numeric array; a nested one is flattened. Raises if it is empty or not numeric."""
        if self.spec.obs_tree is not None:
            return np.asarray(flatten(self.spec.obs_tree, obs))
        try:
            array = np.asarray(obs)
        except ValueError:  # ragged, such as the (obs, info) that `env.reset()` returns
            hint = "; write `obs, info = env.reset()`" if isinstance(obs, tuple) else ""
            raise ValueError(
                f"obs: expected {self._one()}, got a {type(obs).__name__} of length {len(obs)}{hint}"
            ) from None
        if not array.size or array.dtype.kind not in "biuf":
            got = type(array.ravel().tolist()[0]).__name__ if array.size else f"an array of shape {array.shape}"
            raise ValueError(f"obs: expected numbers, {self._one()}, got {got}")
        return array.astype(np.int32) if array.dtype.kind == "b" and self._states is not None else array

    def _numbered(self, obs: Any) -> bool:
        """Whether `obs` contains state indices. Integers with three axes or more are images."""
        return self._states is not None and obs.dtype.kind in "iu" and obs.ndim < 3

    def _lead(self, obs: Any) -> tuple[int, ...]:
        """The batch shape of `obs`. Raises if the other axes do not match the environment."""
        shape = self.spec.obs_shape
        if self._numbered(obs):
            shape = ()
        elif self._states is None and self.spec.own_obs_shape is not None:
            shape = self.spec.own_obs_shape
        lead = obs.ndim - len(shape)
        if lead < 0 or obs.shape[lead:] != shape:
            got = f"{obs.dtype} of shape {obs.shape}"
            raise ValueError(f"obs: expected {self._one()}, or a batch, for {self.spec.id}, got {got}")
        return tuple(obs.shape[:lead])

    def _one(self) -> str:
        if self.spec.obs_tree is not None:
            return str(self.spec.obs_tree)
        if self._states is not None:
            return f"a whole number from {self._states[0]} to {self._states[-1]}"
        return f"shape {self.spec.obs_shape if self.spec.own_obs_shape is None else self.spec.own_obs_shape}"

    def _check_states(self, obs: np.ndarray) -> None:
        if self._states is not None and self._numbered(obs):
            wrong = obs[(obs < self._states[0]) | (obs > self._states[-1])]
            if wrong.size:
                raise ValueError(f"obs: expected {self._one()} for {self.spec.id}, got {wrong.flat[0]}")
