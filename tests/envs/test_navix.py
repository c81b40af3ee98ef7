"""The Navix adapter against Navix stepped by hand: kinds of ends, observations, options."""

from __future__ import annotations

import importlib.util

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nextpolicy.envs import build, navix

pytestmark = [
    pytest.mark.allow_rank_promotion,
    pytest.mark.allow_key_reuse,
    pytest.mark.quick_compilation,
    pytest.mark.skipif(importlib.util.find_spec("navix") is None, reason="the extra `navix` is not installed"),
]
ROOM = "navix/Navix-Empty-5x5-v0"
FORWARD, RIGHT = 2, 1


def play(env, actions):
    """State, first observations [N, ...] and the steps, each [N, ...], of actions [T, N]."""
    state, first = jax.jit(env.reset, static_argnums=1)(jax.random.key(0), len(actions[0]))
    take_step, steps = jax.jit(env.step), []
    for t, action in enumerate(actions):
        state, step = take_step(jax.random.key(t + 1), state, jnp.asarray(action))
        steps.append(jax.device_get(step))
    return state, np.asarray(first), steps


def test_the_goal_terminates_and_the_time_limit_truncates_both_with_the_true_successor():
    """Forward twice, right, forward twice reaches the goal of the 5 x 5 room."""
    to_goal = [FORWARD, FORWARD, RIGHT, FORWARD, FORWARD]
    env = build.make(ROOM, max_steps=5)
    _, first, steps = play(env, [[action, RIGHT] for action in to_goal])
    assert env.spec.time_limit == 5
    assert [step.terminated.tolist() for step in steps] == [[False] * 2] * 4 + [[True, False]]
    assert [step.truncated.tolist() for step in steps] == [[False] * 2] * 4 + [[False, True]]
    assert [step.reward.tolist() for step in steps] == [[0.0] * 2] * 4 + [[1.0, 0.0]]
    np.testing.assert_array_equal(steps[-1].obs, first)
    raw = navix.import_navix().make("Navix-Empty-5x5-v0")
    by_hand = jax.jit(raw.reset)(jax.random.key(0))
    step = jax.jit(raw.step)
    for t, action in enumerate(to_goal):
        by_hand = step(by_hand, jnp.int32(action))
        np.testing.assert_array_equal(steps[t].next_obs[0], by_hand.observation)
    assert by_hand.is_termination()
    assert (steps[-1].next_obs[1] != first[1]).any()


def test_names_are_those_of_the_package():
    assert list(navix.NAMES) == list(navix.import_navix().registry())


@pytest.mark.parametrize(
    ("observation", "shape", "dtype"),
    [
        ("symbolic", (5, 5, 3), np.int32),
        ("symbolic_first_person", (7, 7, 3), np.int32),
        ("categorical", (5, 5), np.int32),
        ("categorical_first_person", (7, 7), np.int32),
        ("rgb", (40, 40, 3), np.uint8),
        ("rgb_first_person", (56, 56, 3), np.uint8),
    ],
)
def test_observations_keep_their_shapes_and_only_pixels_are_bytes(observation, shape, dtype):
    env = build.make(ROOM, observation=observation)
    assert (env.spec.obs_shape, env.spec.obs_dtype) == (shape, dtype)
    _, step = jax.eval_shape(
        lambda key: env.step(key, env.reset(key, 1)[0], jnp.zeros(1, jnp.int32)), jax.random.key(0)
    )
    assert (step.next_obs.shape, step.next_obs.dtype) == ((1, *shape), dtype)


def test_a_picture_is_the_pixels_that_navix_shows():
    state, _, (step,) = play(build.make(ROOM, observation="rgb"), [[FORWARD]])
    one = jax.tree.map(lambda leaf: leaf[0], state)
    env = build.make(ROOM)
    seen = env.render(one._replace(state=one.state.replace(cache=None)))
    np.testing.assert_array_equal(seen, step.next_obs[0])
    assert (seen != env.render(jax.tree.map(lambda leaf: leaf[0], env.reset(jax.random.key(0), 1)[0]))).any()


WRONG = [
    ({"max_step": 5}, r"expected max_steps, .*, got option 'max_step'; did you mean 'max_steps'\?"),
    ({"max_steps": 0}, "max_steps: expected a whole number of at least 1, got 0"),
    ({"observation": "none"}, "observation: expected one of 'symbolic', .*, got 'none'"),
    ({"penality_coeff": "high"}, "penality_coeff: expected a number of at least 0, got 'high'"),
]


@pytest.mark.parametrize(("options", "message"), WRONG)
def test_wrong_options_are_one_line(options, message):
    with pytest.raises(ValueError, match=rf"^{ROOM}.*{message}") as caught:
        build.make(ROOM, **options)
    assert "\n" not in str(caught.value)


def test_a_wrong_id_names_the_nearest():
    with pytest.raises(ValueError, match=r"got 'navix/Empty-5x5-v0'; nearest: navix/Navix-Empty-5x5-v0"):
        build.make("navix/Empty-5x5-v0")
