"""The sampled Four Rooms against the exact one, and against gymnax's."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from nextpolicy.envs import build
from nextpolicy.envs.four_rooms import FourRooms, FourRoomsState
from nextpolicy.tabular import four_rooms_mdp as exact
from nextpolicy.tabular import solve

SAMPLES = 100  # of each state and action
# The three-quarter rule of gymnax: it draws a uniform action with probability 4/3 fail_prob.
GYMNAX_FAIL_PROB = {"fail": 0.2, "success": 0.6}


def every_state_and_action():
    """[S * A * SAMPLES] states and actions, the goal left out."""
    goal = exact.state_index(*exact.GOAL)
    states = np.delete(np.arange(len(exact.cells)), goal)
    grid = np.stack(np.meshgrid(states, np.arange(4), np.arange(SAMPLES), indexing="ij"))
    return grid[0].ravel().astype(np.int32), grid[1].ravel().astype(np.int32)


def counts_of(states, actions, successors):
    counts = np.zeros((len(exact.cells), 4, len(exact.cells)))
    np.add.at(counts, (states, actions, successors), 1)
    return counts


def chi_square_p_value(counts, P):
    """Pearson's test over all (s, a) seen; impossible successors must have no count at all."""
    seen = counts.sum(-1) > 0
    expected = SAMPLES * P[seen]
    possible = expected > 0
    assert (counts[seen][~possible] == 0).all()
    statistic = ((counts[seen] - expected)[possible] ** 2 / expected[possible]).sum()
    freedom = (possible.sum(-1) - 1).sum()
    return 1.0 if freedom == 0 else stats.chi2.sf(statistic, freedom)


def sampled(noise):
    states, actions = every_state_and_action()
    env = build.make("four-rooms", noise=noise)
    state = FourRoomsState(position=jnp.asarray(states), age=jnp.zeros(len(states), jnp.int32))
    _, step = jax.jit(env.step)(jax.random.key(0), state, jnp.asarray(actions))
    return env, states, actions, jax.device_get(step)


@pytest.mark.parametrize("noise", exact.NOISES)
def test_transitions_rewards_and_ends_are_those_of_the_mdp(noise):
    env, states, actions, step = sampled(noise)
    assert chi_square_p_value(counts_of(states, actions, step.next_obs), env.mdp.P) > 1e-3
    entered = step.next_obs == exact.state_index(*exact.GOAL)
    assert entered.any()
    np.testing.assert_array_equal(step.reward, entered.astype(np.float32))
    np.testing.assert_array_equal(step.terminated, entered)
    np.testing.assert_array_equal(step.obs, np.where(entered, exact.state_index(*exact.START), step.next_obs))


def test_the_chi_square_test_can_tell_dynamics_apart():
    _, states, actions, step = sampled("fail")
    counts = counts_of(states, actions, step.next_obs)
    assert chi_square_p_value(counts, exact.four_rooms("success").P) < 1e-9


@pytest.mark.allow_rank_promotion
@pytest.mark.allow_key_reuse
@pytest.mark.parametrize("noise", ["fail", "success"])
def test_gymnax_samples_the_same_mdp(noise):
    env = build.make("gymnax/FourRooms-misc", fail_prob=GYMNAX_FAIL_PROB[noise])
    states, actions = every_state_and_action()
    place = jnp.asarray(exact.cells[states], jnp.int32)
    start = jax.jit(env.reset, static_argnums=1)(jax.random.key(0), len(states))[0]
    state = start.replace(pos=place, goal=jnp.broadcast_to(jnp.array(exact.GOAL), place.shape))
    _, step = jax.jit(env.step)(jax.random.key(1), state, jnp.asarray(actions))
    row_col = np.asarray(step.next_obs)[:, :2]
    index = np.full(exact.WALLS.shape, -1)
    index[tuple(exact.cells.T)] = np.arange(len(exact.cells))
    counts = counts_of(states, actions, index[tuple(row_col.T)])
    assert chi_square_p_value(counts, exact.four_rooms(noise).P) > 1e-3
    np.testing.assert_array_equal(step.reward, (row_col == exact.GOAL).all(1).astype(np.float32))


def test_start_goal_and_time_limit_are_arguments():
    env = build.make("four-rooms", noise="none", start=(1, 1), goal=(1, 3), time_limit=2)
    state, obs = env.reset(jax.random.key(0), 2)
    assert obs.tolist() == [exact.state_index(1, 1)] * 2
    right_and_down = jnp.array([1, 2])
    state, first = env.step(jax.random.key(1), state, right_and_down)
    state, second = env.step(jax.random.key(2), state, right_and_down)
    assert first.next_obs.tolist() == [exact.state_index(1, 2), exact.state_index(2, 1)]
    assert second.next_obs.tolist() == [exact.state_index(1, 3), exact.state_index(3, 1)]
    assert second.terminated.tolist() == [True, False]
    assert second.truncated.tolist() == [False, True]
    assert second.obs.tolist() == obs.tolist()
    assert state.age.tolist() == [0, 0]


def test_the_table_and_the_picture_show_the_agent_where_it_is():
    env = build.make("four-rooms")
    np.testing.assert_array_equal(env.spec.obs_table, exact.observations())
    state, obs = env.reset(jax.random.key(0), 3)
    assert np.argwhere(env.spec.obs_table[obs[0], :, :, 1]).tolist() == [list(exact.START)]
    image = env.render(jax.tree.map(lambda leaf: leaf[0], state))
    assert image.shape == (208, 208, 3)
    assert image.dtype == np.uint8
    cell = image[::16, ::16]
    agent, goal, wall, floor = cell[exact.START], cell[exact.GOAL], cell[0, 0], cell[1, 1]
    assert len({tuple(colour) for colour in (agent, goal, wall, floor)}) == 4
    assert ((cell == wall).all(-1) == exact.WALLS).all()


@pytest.mark.parametrize("noise", ["fail", "none"])
def test_the_start_value_of_a_policy_is_that_of_the_exact_solver(noise):
    env = FourRooms(noise=noise)
    pi = np.random.default_rng(0).dirichlet(np.ones(4), size=(3, 104))
    expected = solve.start_value(env.mdp, pi)
    found = jax.vmap(env.start_value)(jnp.asarray(pi, jnp.float32))
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-7)
    assert env.spec.start_value is not None
