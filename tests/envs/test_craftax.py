"""The Craftax adapter: kinds of ends, new worlds, options. A stand-in, which dies when told to, needs no package."""

from __future__ import annotations

import functools
import importlib.util
from types import SimpleNamespace

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nextpolicy.envs import build, craftax

pytestmark = [pytest.mark.allow_rank_promotion, pytest.mark.allow_key_reuse, pytest.mark.quick_compilation]
needs_craftax = pytest.mark.skipif(
    importlib.util.find_spec("craftax") is None, reason="the extra `craftax` is not installed"
)


@flax.struct.dataclass
class _Params:
    max_timesteps: int = 100


@flax.struct.dataclass
class _State:
    world: jax.Array
    dead: jax.Array
    timestep: int
    key: jax.Array


class _Toy:
    """Action 1 kills. The observation is (the world's number, which is random, and the time)."""

    num_actions = 2

    def observation_space(self, params):
        return SimpleNamespace(shape=(2,), dtype=jnp.float32)

    def reset_env(self, key, params):
        state = _State(jax.random.uniform(key), jnp.array(False), 0, key)
        return self.obs(state), state

    def obs(self, state):
        return jnp.stack([state.world, state.timestep * 1.0])

    def step_env(self, key, state, action, params):
        state = state.replace(dead=action == 1, timestep=state.timestep + 1, key=key)
        return self.obs(state), state, state.timestep * 10, self.is_terminal(state, params), {}

    def is_terminal(self, state, params):
        return state.dead | (state.timestep >= params.max_timesteps)


def toy(limit):
    return craftax.CraftaxEnv(_Toy(), _Params(limit), "craftax/toy")


@functools.lru_cache
def programs(limit):
    env = toy(limit)
    return jax.jit(env.reset, static_argnums=1), jax.jit(env.step)


def play(limit, actions):
    """First observations [N, 2], and the steps, each [N, ...], of actions [T, N]."""
    reset, take_step = programs(limit)
    (state, first), steps = reset(jax.random.key(0), len(actions[0])), []
    for t, action in enumerate(actions):
        state, step = take_step(jax.random.key(t + 1), state, jnp.asarray(action))
        steps.append(jax.device_get(step))
    return np.asarray(first), steps


def test_the_time_limit_truncates_and_death_terminates_also_at_the_limit():
    first, steps = play(3, [[0, 0, 0], [0, 1, 0], [0, 0, 1]])
    assert [step.terminated.tolist() for step in steps] == [[False] * 3, [False, True, False], [False, False, True]]
    assert [step.truncated.tolist() for step in steps] == [[False] * 3, [False] * 3, [True, False, False]]
    assert [step.reward.tolist() for step in steps] == [[10.0] * 3, [20.0] * 3, [30.0, 10.0, 30.0]]
    np.testing.assert_array_equal(steps[-1].next_obs[[0, 2]], [[first[0, 0], 3.0], [first[2, 0], 3.0]])
    assert steps[-1].obs[:, 1].tolist() == [0.0, 1.0, 0.0]
    assert steps[1].obs[1, 0] == steps[2].next_obs[1, 0], "the new world stays"


@pytest.mark.parametrize("finished", [0, 1, 2, 5, 40])
def test_every_finished_environment_gets_its_own_new_world_and_the_others_keep_theirs(finished):
    """40 environments: chunks of 2 worlds."""
    action = np.zeros(40, np.int32)
    action[np.random.default_rng(0).permutation(40)[:finished]] = 1
    first, (step, after) = play(100, [action, np.zeros(40, np.int32)])
    done = action == 1
    np.testing.assert_array_equal(step.terminated, done)
    np.testing.assert_array_equal(step.next_obs[:, 0], first[:, 0])
    np.testing.assert_array_equal(step.obs[~done], step.next_obs[~done])
    assert len(np.unique(np.concatenate([first[:, 0], step.obs[done, 0]]))) == 40 + finished
    np.testing.assert_array_equal(after.next_obs[:, 0], step.obs[:, 0])
    np.testing.assert_array_equal(after.next_obs[:, 1], np.where(done, 1.0, 2.0))


def test_members_of_a_population_restart_as_they_do_alone():
    env, actions = toy(100), jnp.array([[0, 1, 0], [1, 1, 1]])
    keys = jax.random.split(jax.random.key(5), 2)

    def reset_and_step(key, action):
        return env.step(key, env.reset(key, 3)[0], action)[1]

    together = jax.jit(jax.vmap(reset_and_step))(keys, actions)
    for member in range(2):
        alone = jax.jit(reset_and_step)(keys[member], actions[member])
        jax.tree.map(lambda a, b: np.testing.assert_array_equal(a[member], b), together, alone)  # noqa: B023


WRONG = [
    ({"max_timestep": 5}, r"expected always_diamond, .*, got option 'max_timestep'; did you mean 'max_timesteps'\?"),
    ({"max_timesteps": 0}, "max_timesteps: expected a whole number of at least 1, got 0"),
    ({"day_length": 0}, "day_length: expected a whole number of at least 1, got 0"),
    ({"max_timesteps": 2**31}, "max_timesteps: expected at most 2147483647, got 2147483648"),
    ({"always_diamond": 1}, "always_diamond: expected true or false, got 1"),
    ({"fractal_noise_angles": 1}, "got option 'fractal_noise_angles'"),
]


@needs_craftax
@pytest.mark.parametrize(("options", "message"), WRONG)
def test_wrong_options_are_one_line(options, message):
    with pytest.raises(ValueError, match=rf"^craftax/Craftax-Classic-Symbolic-v1.*{message}") as caught:
        build.make("craftax/Craftax-Classic-Symbolic-v1", **options)
    assert "\n" not in str(caught.value)


@needs_craftax
def test_a_wrong_id_names_the_nearest():
    with pytest.raises(ValueError, match=r"got 'craftax/Craftax-Symbolic'; nearest: craftax/Craftax-Symbolic-v1"):
        build.make("craftax/Craftax-Symbolic")


@needs_craftax
def test_parameters_and_limits_are_the_packages_unless_given():
    env = build.make("craftax/Craftax-Classic-Symbolic-v1", day_length=50)
    assert (env.params.day_length, env.spec.time_limit, env.spec.obs_shape) == (50, 10_000, (1345,))
    assert build.make("craftax/Craftax-Symbolic-v1", max_timesteps=7).spec.time_limit == 7


@needs_craftax
@pytest.mark.slow
def test_steps_are_those_of_craftax_stepped_by_hand():
    env = build.make("craftax/Craftax-Classic-Symbolic-v1", max_timesteps=6)
    raw_step = jax.jit(lambda key, state, action: env.game.step_env(key, state, action, env.params))
    state, _ = jax.jit(env.reset, static_argnums=1)(jax.random.key(0), 2)
    step, ends = jax.jit(env.step), 0
    for t in range(8):
        key, action = jax.random.key(t), jnp.array([t % 17, 5])
        keys = jax.random.split(jax.random.split(key)[0], 2)
        before = state
        state, out = step(key, state, action)
        for i in range(2):
            one = jax.tree.map(lambda leaf: leaf[i], before)  # noqa: B023 - used at once
            obs, _, reward, done, _ = raw_step(keys[i], one, action[i])
            np.testing.assert_allclose(out.next_obs[i], obs, rtol=1e-5, atol=1e-6)
            np.testing.assert_allclose(out.reward[i], reward, rtol=1e-5, atol=1e-6)
            assert bool(out.terminated[i] | out.truncated[i]) == bool(done)
            ends += int(done)
    assert ends >= 2
