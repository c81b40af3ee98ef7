"""The probes give exactly the rewards their table promises."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nextpolicy.envs import build, probes


def run(env_id, action, steps=1, num_envs=64, **options):
    env = build.make(env_id, **options)
    key = jax.random.key(0)
    state, obs = jax.jit(env.reset, static_argnums=1)(jax.random.fold_in(key, 0), num_envs)
    shown, out = [np.asarray(obs)], []
    step = jax.jit(env.step)
    for t in range(steps):
        state, result = step(jax.random.fold_in(key, t + 1), state, action(jnp.asarray(shown[-1])))
        shown.append(np.asarray(result.obs))
        out.append(jax.device_get(result))
    return np.stack(shown)[..., 0], jax.tree.map(lambda *leaves: np.stack(leaves), *out)


def always(value):
    return lambda obs: jnp.full(obs.shape[0], value, jnp.int32)


def real(function):
    return lambda obs: function(obs).astype(jnp.float32)


SUFFIXES = [("", always(1)), ("-continuous", real(jnp.ones_like))]


@pytest.mark.parametrize(("suffix", "action"), SUFFIXES)
def test_constant(suffix, action):
    obs, step = run(f"probe/constant{suffix}", action)
    assert (obs == 0).all()
    assert (step.reward == 1).all()
    assert step.terminated.all()


@pytest.mark.parametrize(("suffix", "action"), SUFFIXES)
def test_observation(suffix, action):
    obs, step = run(f"probe/observation{suffix}", action, steps=4)
    assert set(obs.ravel()) == {-1.0, 1.0}
    np.testing.assert_array_equal(step.reward, obs[:-1])
    assert step.terminated.all()
    assert abs(obs.mean()) < 0.25


@pytest.mark.parametrize(("suffix", "action"), SUFFIXES)
def test_discount(suffix, action):
    obs, step = run(f"probe/discount{suffix}", action, steps=4)
    assert (obs == np.array([0, 1, 0, 1, 0])[:, None]).all()
    assert (step.reward == np.array([0, 1, 0, 1])[:, None]).all()
    assert (step.terminated == np.array([False, True, False, True])[:, None]).all()


def test_action():
    assert (run("probe/action", always(1))[1].reward == 1).all()
    assert (run("probe/action", always(0))[1].reward == -1).all()
    best = run("probe/action-continuous", real(lambda obs: jnp.full_like(obs, 0.5)))[1].reward
    beyond = run("probe/action-continuous", real(lambda obs: jnp.full_like(obs, -7.0)))[1].reward
    assert (best == 1).all()
    assert (beyond == 1 - 1.5**2).all()


def test_action_observation():
    right = run("probe/action-observation", lambda obs: (obs[:, 0] > 0).astype(jnp.int32))[1].reward
    wrong = run("probe/action-observation", lambda obs: (obs[:, 0] < 0).astype(jnp.int32))[1].reward
    assert (right == 1).all()
    assert (wrong == -1).all()
    assert set(run("probe/action-observation", always(1))[1].reward.ravel()) == {-1.0, 1.0}
    assert (run("probe/action-observation-continuous", real(lambda obs: obs / 2))[1].reward == 1).all()
    assert (run("probe/action-observation-continuous", real(jnp.zeros_like))[1].reward == 0.75).all()


@pytest.mark.parametrize(("options", "limit"), [({}, 8), ({"time_limit": 3}, 3)])
def test_endless(options, limit):
    obs, step = run("probe/endless", always(0), steps=20, **options)
    assert (obs == 0).all()
    assert (step.reward == 1).all()
    assert not step.terminated.any()
    assert (step.truncated == (np.arange(1, 21) % limit == 0)[:, None]).all()


def test_nan_comes_after_so_many_steps_whatever_the_episodes():
    _, step = run("probe/nan", always(0), steps=15, after=10)
    assert (step.reward[:10] == 1).all()
    assert np.isnan(step.reward[10:]).all()
    assert (step.truncated == (np.arange(1, 16) % 8 == 0)[:, None]).all()


def test_every_probe_of_the_table_is_offered():
    for name in probes.names():
        assert name.removesuffix("-continuous") in probes.__doc__
    assert len(probes.names()) == 12
