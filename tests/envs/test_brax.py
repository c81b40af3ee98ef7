"""Restarts, ages and remedies of the Brax adapter.

The ring of start states is tested on a stand-in for a Brax environment that ends when told to and whose start states
are random numbers, so that each can be recognised; the physics is compared with Brax stepped by hand.
"""

from __future__ import annotations

import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nextpolicy.envs import brax, build

pytestmark = [pytest.mark.allow_rank_promotion, pytest.mark.allow_key_reuse, pytest.mark.quick_compilation]


class _OnDemand:
    """Terminates where the action is positive; the observation is (start, age), a start being two random numbers.

    One float32 would not do: of 500 draws out of 2^23 two agree once in seventy trials.
    """

    action_size = 1

    def reset(self, rng):
        brax.import_brax()
        from brax.envs.base import State

        pipeline_state = {"start": jax.random.uniform(rng, (2,)), "age": jnp.zeros(())}
        return State(pipeline_state, self._obs(pipeline_state), jnp.zeros(()), jnp.zeros(()), {}, {"kept": jnp.ones(2)})

    def step(self, state, action):
        pipeline_state = {**state.pipeline_state, "age": state.pipeline_state["age"] + 1}
        state.metrics.update(noted=action[0])
        done = jnp.where(action[0] > 0, 1.0, 0.0)
        return state.replace(pipeline_state=pipeline_state, obs=self._obs(pipeline_state), reward=done, done=done)

    def _obs(self, pipeline_state):
        return jnp.append(pipeline_state["start"], pipeline_state["age"])


def on_demand(limit=1000, cached=False, random_start=False):
    return brax.BraxEnv(_OnDemand(), "brax/on-demand", limit, cached=cached, random_start=random_start)


def start_number(obs):
    """Both numbers of a start as one float64."""
    return np.asarray(obs[..., 0], np.float64) * 2**24 + np.asarray(obs[..., 1], np.float64)


def starts_used(env, finish, key=0):
    """Start numbers at reset [N], and [T, N] after each step of `finish` [T, N] bool (NaN where none was taken)."""

    @jax.jit
    def run(finish):
        def step(state, inputs):
            t, ends = inputs
            key_step = jax.random.fold_in(jax.random.key(key + 1), t)
            return env.step(key_step, state, jnp.where(ends, 1.0, -1.0)[:, None])

        state, obs = env.reset(jax.random.key(key), finish.shape[1])
        return obs, jax.lax.scan(step, state, (jnp.arange(len(finish)), finish))[1]

    obs, out = run(jnp.asarray(finish))
    return start_number(obs), np.where(out.terminated | out.truncated, start_number(out.obs), np.nan)


@pytest.mark.parametrize("num_envs", [1, 15, 32, 50])
def test_no_start_is_used_twice_while_few_finish(num_envs):
    rng = np.random.default_rng(0)
    per_step = max(1, num_envs // 16)
    finish = np.zeros((150, num_envs), bool)
    for row in finish:
        row[rng.choice(num_envs, per_step, replace=False)] = True
    first, taken = starts_used(on_demand(), finish)
    used = np.concatenate([first, taken[finish]])
    assert np.isnan(taken[~finish]).all()
    assert len(np.unique(used)) == len(used) == num_envs + 150 * per_step


def test_all_finishing_at_once_take_different_starts():
    finish = np.zeros((40, 48), bool)
    finish[[3, 20, 39]] = True
    first, taken = starts_used(on_demand(), finish)
    used = np.concatenate([first, taken[finish]])
    assert len(np.unique(used)) == len(used) == 4 * 48


def test_all_finishing_at_every_step_still_differ_and_are_refreshed():
    steps, num_envs = 40, 32
    first, taken = starts_used(on_demand(), np.ones((steps, num_envs), bool))
    assert all(len(np.unique(row)) == num_envs for row in taken)
    # The ring's first 32, and the 2 refilled before each later step: every one of them has been handed out.
    assert len(np.unique(taken)) == num_envs + 2 * (steps - 1)
    assert not np.isin(taken, first).any()


def test_cached_restarts_return_to_the_first_state():
    finish = np.random.default_rng(1).random((30, 5)) < 0.3
    first, taken = starts_used(on_demand(cached=True), finish)
    np.testing.assert_array_equal(taken, np.where(finish, first, np.nan))


@pytest.mark.quick_compilation(False)
def test_members_of_a_population_move_their_own_rings():
    env, finish = on_demand(), np.random.default_rng(2).random((20, 2, 17)) < 0.2

    def run(key, finish):
        state, _ = env.reset(key, 17)

        def step(state, inputs):
            t, ends = inputs
            state, out = env.step(jax.random.fold_in(key, t), state, jnp.where(ends, 1.0, -1.0)[:, None])
            return state, out

        return jax.lax.scan(step, state, (jnp.arange(20), finish))

    keys = jax.random.split(jax.random.key(5), 2)
    together = jax.jit(jax.vmap(run, in_axes=(0, 1)))(keys, jnp.asarray(finish))
    for member in range(2):
        alone = jax.jit(run)(keys[member], jnp.asarray(finish[:, member]))
        for a, b in zip(jax.tree.leaves(together), jax.tree.leaves(alone)):
            np.testing.assert_array_equal(a[member], b)
    assert together[0].read_at[0] != together[0].read_at[1]


def test_restarted_environment_is_whole_and_keeps_its_true_successor():
    env = on_demand(limit=3)
    state, first = jax.jit(env.reset, static_argnums=1)(jax.random.key(0), 2)
    take_step = jax.jit(env.step)
    for t in range(3):
        state, step = take_step(jax.random.key(t), state, -jnp.ones((2, 1)))
    assert step.truncated.all()
    np.testing.assert_array_equal(step.next_obs, first.at[:, 2].set(3.0))
    np.testing.assert_array_equal(step.obs[:, 2], 0.0)
    assert (step.obs[:, :2] != first[:, :2]).all()
    np.testing.assert_array_equal(state.current.pipeline_state["start"], step.obs[:, :2])
    np.testing.assert_array_equal(state.current.pipeline_state["age"], 0.0)
    np.testing.assert_array_equal(state.current.info["kept"], 1.0)
    np.testing.assert_array_equal(state.age, 0)


def test_termination_at_the_limit_is_not_truncation():
    env = on_demand(limit=1)
    state, _ = jax.jit(env.reset, static_argnums=1)(jax.random.key(0), 2)
    _, step = jax.jit(env.step)(jax.random.key(1), state, jnp.array([[1.0], [-1.0]]))
    assert step.terminated.tolist() == [True, False]
    assert step.truncated.tolist() == [False, True]


@pytest.mark.parametrize("at_reset", [True, False])
def test_desynchronised_clocks_run_out_at_different_steps(at_reset):
    env = on_demand(limit=20, random_start=at_reset)
    state, _ = jax.jit(env.reset, static_argnums=1)(jax.random.key(0), 400)
    if not at_reset:
        assert (state.age == 0).all()
        state = env.desynchronise(jax.random.key(1), state)
    age = np.asarray(state.age)
    assert age.dtype == np.int32
    assert set(age) == set(range(20))
    _, step = jax.jit(env.step)(jax.random.key(2), state, -jnp.ones((400, 1)))
    np.testing.assert_array_equal(step.truncated, age == 19)


PHYSICS = ["fast", *(pytest.param(name, marks=pytest.mark.slow) for name in brax.NAMES if name != "fast")]


@pytest.mark.filterwarnings("ignore:Accessing `:DeprecationWarning")  # Brax by hand is not quietened
@pytest.mark.parametrize("name", PHYSICS)
def test_steps_are_those_of_brax_stepped_by_hand(name):
    """Brax's own complete state, metrics and all, against the part of it that the adapter carries."""
    env = build.make(f"brax/{name}")
    raw, num_envs = env.env, 2
    state, obs = jax.jit(env.reset, static_argnums=1)(jax.random.key(0), num_envs)
    key_current = jax.random.split(jax.random.key(0), 3)[0]
    by_hand = jax.jit(jax.vmap(raw.reset))(jax.random.split(key_current, num_envs))
    np.testing.assert_allclose(obs, by_hand.obs, rtol=1e-5, atol=1e-6)
    step, raw_step = jax.jit(env.step), jax.jit(jax.vmap(raw.step))
    for t in range(4):
        action = jax.random.uniform(jax.random.key(t), (num_envs, *env.spec.action.shape), minval=-1.0, maxval=1.0)
        by_hand = raw_step(by_hand, action)
        state, out = step(jax.random.key(t), state, action)
        np.testing.assert_allclose(out.next_obs, by_hand.obs, rtol=1e-3, atol=1e-4)
        np.testing.assert_allclose(out.reward, by_hand.reward, rtol=1e-3, atol=1e-4)
        np.testing.assert_array_equal(out.terminated, by_hand.done.astype(bool))
        if np.any(out.terminated):
            break


SIZES = {  # name: (action size, observation size)
    "inverted_pendulum": (1, 4),
    "humanoidstandup": (17, 244),
    "walker2d": (6, 17),
    "inverted_double_pendulum": (1, 8),
    "swimmer": (2, 8),
    "halfcheetah": (6, 17),
    "fast": (1, 2),
    "pusher": (7, 23),
    "hopper": (3, 11),
    "ant": (8, 27),
    "humanoid": (17, 244),
    "reacher": (2, 11),
}


@pytest.mark.parametrize(
    "name", ["fast", "inverted_pendulum", *(pytest.param(n, marks=pytest.mark.slow) for n in brax.NAMES[1:])]
)
def test_sizes_and_default_backend(name):
    env = build.make(f"brax/{name}")
    assert (*env.spec.action.shape, *env.spec.obs_shape) == SIZES[name]
    assert env.spec.time_limit == 1000
    if name != "fast":
        assert env.env.backend == ("generalized" if name == "swimmer" else "positional")


def test_the_fluid_remedy_lets_swimmer_be_traced():
    """Brax's fluid forces call jnp.clip(a_min=), gone from JAX: without the remedy making swimmer is a TypeError."""
    env = build.make("brax/swimmer")
    assert env.spec.obs_shape == (8,)
    from brax import fluid

    np.testing.assert_array_equal(fluid.jp.clip(jnp.array([-1.0, 2.0]), a_min=1e-12), np.array([1e-12, 2.0], "f4"))
    assert fluid.jp.sqrt is jnp.sqrt


def test_options_of_the_environment_itself_are_passed_on():
    env = build.make("brax/ant", ctrl_cost_weight=0.25, backend="generalized", n_frames=3)
    assert env.env._ctrl_cost_weight == 0.25
    assert env.env._n_frames == 3
    assert env.env.backend == "generalized"


@pytest.mark.slow
def test_making_an_environment_says_nothing_and_leaves_no_file(tmp_path):
    code = "from nextpolicy.envs import build; build.make('brax/halfcheetah')"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout == ""
    assert "settotalmass" not in done.stderr
    assert "Brax System" not in done.stderr
    assert list(tmp_path.iterdir()) == []
