"""One battery over every environment inside XLA: what training relies on, whatever the backend.

Episodes are cut short by option, so that a short stream sees several of them end.
"""

from __future__ import annotations

import functools
import importlib.util
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nextpolicy.envs import brax, build, craftax, gymnax, probes
from nextpolicy.envs.base import Box, DeviceEnv, Discrete

pytestmark = [pytest.mark.allow_rank_promotion, pytest.mark.allow_key_reuse]

LIMIT, STEPS, ENVS = 11, 30, 4
FAST = [
    "four-rooms",
    "probe/discount",
    "probe/endless",
    "probe/action-observation-continuous",
    "gymnax/CartPole-v1",
    "gymnax/Pendulum-v1",
    "gymnax/Breakout-MinAtar",
    "gymnax/FrozenLake-misc",
    "brax/fast",
]
ALL = [env_id for backend in (probes, gymnax, brax) for env_id in backend.BACKEND.ids() if env_id != "probe/nan"]
CASES = FAST + [pytest.param(name, marks=pytest.mark.slow) for name in ALL if name not in FAST]
# Two compilations of the same physics each: one robot that terminates and one that need not stand for all.
POPULATION_CASES = [case for case in CASES if isinstance(case, str) or not case.values[0].startswith("brax/")] + [
    pytest.param("brax/inverted_pendulum", marks=pytest.mark.slow)
]
needs_playground = pytest.mark.skipif(
    importlib.util.find_spec("mujoco_playground") is None, reason="the extra `playground` is not installed"
)
needs_craftax = pytest.mark.skipif(
    importlib.util.find_spec("craftax") is None, reason="the extra `craftax` is not installed"
)
needs_navix = pytest.mark.skipif(importlib.util.find_spec("navix") is None, reason="the extra `navix` is not installed")
PENDULUM = "playground/PendulumSwingup"  # the fastest to compile
ROBOTS = [  # a task of each model of the control suite; the others take as long to compile
    pytest.param(PENDULUM, marks=[needs_playground, pytest.mark.quick_compilation]),
    *(
        pytest.param(f"playground/{name}", marks=[needs_playground, pytest.mark.slow])
        for name in (
            "AcrobotSwingup",
            "BallInCup",
            "CartpoleBalance",
            "CheetahRun",
            "FingerSpin",
            "FishSwim",
            "HopperHop",
            "HumanoidWalk",
            "PointMass",
            "ReacherEasy",
            "SwimmerSwimmer6",
            "WalkerWalk",
        )
    ),
]
CRAFTAX = [pytest.param(f"craftax/{name}", marks=[needs_craftax, pytest.mark.slow]) for name in craftax.NAMES]
WORLDS = [  # a maze of each kind
    pytest.param("navix/Navix-Empty-Random-5x5-v0", marks=[needs_navix, pytest.mark.quick_compilation]),
    *(
        pytest.param(f"navix/Navix-{name}-v0", marks=[needs_navix, pytest.mark.slow])
        for name in (
            "DoorKey-Random-5x5",
            "FourRooms",
            "KeyCorridorS3R2",
            "LavaGapS5",
            "SimpleCrossingS9N2",
            "Dynamic-Obstacles-5x5-Random",
            "DistShift1",
            "GoToDoor-5x5",
        )
    ),
    *CRAFTAX,
]
CASES += ROBOTS + WORLDS
POPULATION_CASES += [
    pytest.param(PENDULUM, marks=[needs_playground, pytest.mark.slow]),
    WORLDS[0],
    pytest.param("craftax/Craftax-Classic-Symbolic-v1", marks=[needs_craftax, pytest.mark.slow]),
]


class Stream(NamedTuple):
    """T steps of N environments, as NumPy."""

    first_obs: np.ndarray
    action: np.ndarray  # [T, N, ...]
    step: Any  # Step of [T, N, ...]
    traces: int  # how often JAX traced the step


@functools.lru_cache
def make(env_id: str) -> DeviceEnv:
    option = {"four-rooms": "time_limit", "gymnax": "max_steps_in_episode", "brax": "episode_length"}
    option |= {"playground": "episode_length", "craftax": "max_timesteps", "navix": "max_steps"}
    prefix = env_id.partition("/")[0]
    return build.make(env_id, **({option[prefix]: LIMIT} if prefix in option else {}))


@functools.lru_cache
def programs(env_id: str) -> tuple[Any, Any, list[int]]:
    """Jitted reset and step, and a list that grows by one whenever the step is traced."""
    env, traced = make(env_id), []

    def step(key, state, action):
        traced.append(1)
        return env.step(key, state, action)

    return jax.jit(env.reset, static_argnums=1), jax.jit(step), traced


def random_actions(env: DeviceEnv, key: jax.Array, num_envs: int = ENVS) -> jax.Array:
    if isinstance(env.spec.action, Discrete):
        return jax.random.randint(key, (num_envs,), 0, env.spec.action.n)
    return 3.0 * jax.random.normal(key, (num_envs, *env.spec.action.shape))


def play(env_id: str, seed: int) -> Stream:
    env = make(env_id)
    reset, step, traced = programs(env_id)
    key = jax.random.key(seed)
    state, obs = reset(jax.random.fold_in(key, 0), ENVS)
    actions, steps = [], []
    for t in range(STEPS):
        key_action, key_env = jax.random.split(jax.random.fold_in(key, t + 1))
        actions.append(random_actions(env, key_action))
        state, out = step(key_env, state, actions[-1])
        steps.append(jax.device_get(out))
    stacked = jax.tree.map(lambda *leaves: np.stack(leaves), *steps)
    return Stream(np.asarray(obs), np.stack([np.asarray(a) for a in actions]), stacked, len(traced))


@functools.lru_cache
def stream(env_id: str) -> Stream:
    return play(env_id, seed=7)


@pytest.mark.parametrize("env_id", CASES)
def test_stream_has_the_shapes_and_types_the_spec_says(env_id):
    spec, seen = make(env_id).spec, stream(env_id)
    shape, dtype = (spec.obs_shape, spec.obs_dtype) if spec.obs_table is None else ((), np.int32)
    for obs in (seen.first_obs[None], seen.step.obs, seen.step.next_obs):
        assert obs.shape[1:] == (ENVS, *shape)
        assert obs.dtype == dtype
    if spec.obs_table is not None:
        assert spec.obs_table.shape[1:] == spec.obs_shape
        assert spec.obs_table.dtype == spec.obs_dtype
        assert 0 <= seen.step.next_obs.min() <= seen.step.next_obs.max() < len(spec.obs_table)
    assert seen.step.reward.shape == (STEPS, ENVS)
    assert seen.step.reward.dtype == np.float32
    assert seen.step.terminated.dtype == seen.step.truncated.dtype == bool
    assert spec.id == env_id


@pytest.mark.parametrize("env_id", CASES)
def test_numbers_are_finite(env_id):
    seen = stream(env_id)
    for array in (seen.first_obs, seen.step.obs, seen.step.next_obs, seen.step.reward):
        assert np.isfinite(array).all()


@pytest.mark.parametrize("env_id", CASES)
def test_episodes_end_once_and_are_truncated_exactly_at_the_limit(env_id):
    spec, step = make(env_id).spec, stream(env_id).step
    assert not (step.terminated & step.truncated).any()
    age = np.zeros(ENVS, int)
    for terminated, truncated in zip(step.terminated, step.truncated):
        age += 1
        expected = (age == spec.time_limit) & ~terminated
        np.testing.assert_array_equal(truncated, expected)
        age[terminated | truncated] = 0
    assert (step.terminated | step.truncated).any(), "no episode ended: this stream shows nothing"


# No number of Craftax's worlds has everything everywhere; tests/envs/test_craftax.py checks its restarts.
@pytest.mark.parametrize("env_id", [case for case in CASES if case not in CRAFTAX])
def test_only_the_end_of_an_episode_parts_obs_from_the_successor(env_id):
    env, step = make(env_id), stream(env_id).step
    done = step.terminated | step.truncated
    np.testing.assert_array_equal(step.obs[~done], step.next_obs[~done])
    # What is seen after an end lies among what resets give, element by element.
    number = 4096 if env_id.startswith("navix/") else 256  # a goal in every cell of a maze takes many
    starts = np.asarray(programs(env_id)[0](jax.random.key(3), number)[1]).astype(float)
    low, high = starts.min(0), starts.max(0)
    slack = 0.1 * (high - low) + 1e-6
    assert (step.obs[done] >= low - slack).all()
    assert (step.obs[done] <= high + slack).all()
    assert starts.shape[0] == number
    assert env.spec.obs_table is None or step.obs[done].dtype == np.int32


@pytest.mark.parametrize("env_id", CASES)
def test_the_same_key_gives_the_same_stream_and_one_trace(env_id):
    once, again = stream(env_id), play(env_id, seed=7)
    for a, b in zip(jax.tree.leaves(once[:3]), jax.tree.leaves(again[:3])):
        np.testing.assert_array_equal(a, b)
    assert again.traces == 1


@pytest.mark.parametrize("env_id", POPULATION_CASES)
def test_a_population_is_its_members_side_by_side(env_id):
    env = make(env_id)
    key_reset, key_step, key_action = (jax.random.split(jax.random.key(i), 2) for i in range(3))
    actions = jax.vmap(lambda key: random_actions(env, key))(key_action)

    def reset_and_step(key_reset, key_step, action):
        state, obs = env.reset(key_reset, ENVS)
        return obs, env.step(key_step, state, action)[1]

    together = jax.jit(jax.vmap(reset_and_step))(key_reset, key_step, actions)
    reset, step, _ = programs(env_id)
    for member in range(2):
        state, obs = reset(key_reset[member], ENVS)
        alone = obs, step(key_step[member], state, actions[member])[1]
        for a, b in zip(jax.tree.leaves(together), jax.tree.leaves(alone)):
            np.testing.assert_allclose(np.asarray(a[member], float), np.asarray(b, float), rtol=1e-4, atol=1e-5)


BOXED = [
    "probe/action-continuous",
    "gymnax/Pendulum-v1",
    "brax/fast",
    *(
        pytest.param(name, marks=pytest.mark.slow)
        for name in (*(f"brax/{n}" for n in brax.NAMES if n != "fast"), "gymnax/MountainCarContinuous-v0")
    ),
    *ROBOTS,
]


@pytest.mark.parametrize("env_id", BOXED)
def test_actions_out_of_bounds_are_clipped_to_them(env_id):
    env = make(env_id)
    assert isinstance(env.spec.action, Box)
    reset, step, _ = programs(env_id)
    state, _ = reset(jax.random.key(0), ENVS)

    def outcome(scale):
        action = jnp.full((ENVS, *env.spec.action.shape), scale, jnp.float32) * env.spec.action.high
        return jax.tree.leaves(jax.device_get(step(jax.random.key(1), state, action)[1]))

    for beyond, at in ((50.0, 1.0), (-50.0, -1.0)):
        for a, b in zip(outcome(beyond), outcome(at)):
            np.testing.assert_array_equal(a, b)
    # `fast` only reads whether the action is above 0, and the same action at both bounds would prove nothing.
    assert any(np.any(a != b) for a, b in zip(outcome(1.0), outcome(-1.0)))
