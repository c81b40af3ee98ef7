"""The gymnax adapter against gymnax stepped by hand."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nextpolicy.envs import build, gymnax, registry
from nextpolicy.envs.base import Box, Discrete

pytestmark = [pytest.mark.allow_rank_promotion, pytest.mark.allow_key_reuse]

FAST = ["CartPole-v1", "Pendulum-v1"]
CASES = FAST + [pytest.param(name, marks=pytest.mark.slow) for name in gymnax.names() if name not in FAST]


@pytest.mark.parametrize("name", CASES)
def test_steps_are_those_of_gymnax_stepped_by_hand(name):
    """Successor, reward and kind of end as gymnax gives them one by one; after an end, a reset as gymnax does it."""
    env = build.make(f"gymnax/{name}", max_steps_in_episode=6)
    raw, params, num_envs = env.env, env.params, 3
    raw_step = jax.jit(lambda key, state, action: raw.step_env(key, state, action, params))
    raw_reset = jax.jit(lambda key: raw.reset_env(key, params))
    state, _ = env.reset(jax.random.key(0), num_envs)
    step, ends = jax.jit(env.step), 0
    for t in range(8):
        key = jax.random.key(100 + t)
        actions = jnp.stack([raw.action_space(params).sample(jax.random.key(10 * t + i)) for i in range(num_envs)])
        key_step, key_reset = jax.random.split(key)
        keys_step, keys_reset = jax.random.split(key_step, num_envs), jax.random.split(key_reset, num_envs)
        before = state
        state, out = step(key, state, actions)
        for i in range(num_envs):
            one = jax.tree.map(lambda leaf: leaf[i], before)  # noqa: B023 - used at once
            obs, after, reward, terminated, _ = raw_step(keys_step[i], one, actions[i])
            truncated = bool(raw.is_truncated(after, params)) and not terminated
            np.testing.assert_allclose(out.next_obs[i], obs, rtol=1e-4, atol=1e-5)
            np.testing.assert_allclose(out.reward[i], reward, rtol=1e-4, atol=1e-5)
            assert (bool(out.terminated[i]), bool(out.truncated[i])) == (bool(terminated), truncated)
            if terminated or truncated:
                ends += 1
                np.testing.assert_allclose(out.obs[i], raw_reset(keys_reset[i])[0], rtol=1e-5, atol=1e-6)
    assert ends >= 1


@pytest.mark.parametrize("env_id", gymnax.BACKEND.ids())
def test_what_is_registered_can_be_made_or_is_excluded_with_a_reason(env_id):
    spec = build.make(env_id).spec
    assert len(spec.obs_shape) >= 1
    assert isinstance(spec.action, Discrete | Box)
    assert hash(spec) is not None
    assert spec.time_limit is not None


def test_nothing_is_left_out_silently():
    offered = {registry.name_of(env_id) for env_id in gymnax.BACKEND.ids()}
    assert offered | set(gymnax.BACKEND.excluded) == set(gymnax.import_gymnax().registered_envs)
    assert not offered & set(gymnax.BACKEND.excluded)


MINATAR = {"Asterix": 4, "Breakout": 4, "Freeway": 7, "Seaquest": 10, "SpaceInvaders": 6}


@pytest.mark.slow
@pytest.mark.parametrize("game", MINATAR)
def test_minatar_observations_are_binary_so_one_byte_loses_nothing(game):
    env = build.make(f"gymnax/{game}-MinAtar")
    assert env.spec.obs_shape == (10, 10, MINATAR[game])
    assert env.spec.obs_dtype == np.bool_
    raw, params = env.env, env.params

    def step(state, key):
        key_action, key_step = jax.random.split(key)
        obs, state, *_ = raw.step_env(key_step, state, raw.action_space(params).sample(key_action), params)
        return state, obs

    def play(key):
        key_reset, key_steps = jax.random.split(key)
        return jax.lax.scan(step, raw.reset_env(key_reset, params)[1], jax.random.split(key_steps, 300))[1]

    values = np.unique(jax.jit(jax.vmap(play))(jax.random.split(jax.random.key(0), 8)))
    assert values.tolist() == [0.0, 1.0]


def test_time_limits_without_end_are_none():
    from types import SimpleNamespace

    for limit, expected in ((500, 500), (100.0, 100), (np.inf, None), (2**31 - 1, None), (None, None)):
        assert gymnax._time_limit(SimpleNamespace(max_steps_in_episode=limit)) == expected
    assert gymnax._time_limit(SimpleNamespace()) is None


def test_bounds_that_differ_by_element_stay_apart():
    assert gymnax._bound(np.array([1.0, 1.0])) == 1.0
    np.testing.assert_array_equal(gymnax._bound(np.array([1.0, 2.0])), [1.0, 2.0])
    box = Box(shape=(2,), low=-1.0, high=np.array([1.0, 2.0]))
    np.testing.assert_array_equal(box.clip(jnp.array([9.0, 9.0])), [1.0, 2.0])
    np.testing.assert_array_equal(box.clip(jnp.array([-9.0, 0.5])), [-1.0, 0.5])
