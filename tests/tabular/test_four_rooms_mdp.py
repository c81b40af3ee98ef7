"""Four Rooms: its geometry, its noise and the values the specification gives for it."""

from __future__ import annotations

from collections import deque

import numpy as np
import pytest

from nextpolicy.tabular import four_rooms_mdp as rooms
from nextpolicy.tabular import solve
from nextpolicy.tabular.mdp import TabularMDP, random_mdp

UNIFORM = np.full((104, 4), 0.25)


def walled_off(mdp: TabularMDP, doorway: tuple[int, int]) -> TabularMDP:
    """The same task with one doorway closed: a move into it stays."""
    door = rooms.state_index(*doorway)
    P = mdp.P.copy()
    outside = np.arange(mdp.states) != door
    P[outside, :, np.flatnonzero(outside)] += P[outside, :, door]
    P[outside, :, door] = 0.0
    return TabularMDP(P, mdp.R, mdp.gamma, mdp.start)


def shortest_path(closed: tuple[int, int]) -> int:
    """Steps from start to goal by breadth-first search over the map, with one doorway closed."""
    distance = {rooms.START: 0}
    queue = deque([rooms.START])
    while queue:
        row, col = queue.popleft()
        for step in rooms.MOVES:
            cell = (int(row + step[0]), int(col + step[1]))
            if not rooms.WALLS[cell] and cell != closed and cell not in distance:
                distance[cell] = distance[row, col] + 1
                queue.append(cell)
    return distance[rooms.GOAL]


def test_geometry():
    assert rooms.WALLS.shape == (13, 13)
    assert len(rooms.cells) == 104
    assert np.bincount(rooms.room_of).tolist() == [25, 30, 25, 20, 4]
    assert [rooms.state_index(*cell) for cell in rooms.cells] == list(range(104))
    room = lambda cell: rooms.ROOMS[rooms.room_of[rooms.state_index(*cell)]]  # noqa: E731
    assert room(rooms.START) == "top-left"
    assert room(rooms.GOAL) == "bottom-right"
    assert room((6, 7)) == "top-right"
    assert room((7, 1)) == "bottom-left"
    assert all(room(cell) == "doorway" for cell in rooms.DOORWAYS.values())
    # Closing all four doorways would leave no way out of a room: each joins two different rooms.
    for cell in rooms.DOORWAYS.values():
        beside = [tuple(np.add(cell, step)) for step in rooms.MOVES]
        assert len({room(other) for other in beside if not rooms.WALLS[other]}) == 2


def test_map_is_that_of_gymnax():
    gymnax_rooms = pytest.importorskip("gymnax.environments.misc.rooms")
    free = np.array([[symbol == " " for symbol in line] for line in gymnax_rooms.four_rooms_map.split("\n")[1:]])
    np.testing.assert_array_equal(rooms.WALLS, ~free)
    np.testing.assert_array_equal(rooms.MOVES, np.asarray(gymnax_rooms.FourRooms().directions))


def test_shortest_paths_over_the_top_and_the_bottom():
    assert shortest_path(closed=rooms.DOORWAYS["bottom"]) == 14
    assert shortest_path(closed=rooms.DOORWAYS["top"]) == 16


@pytest.mark.parametrize(("noise", "value"), [("fail", 0.8305), ("success", 0.4515), ("none", 0.8775)])
def test_optimal_values(noise, value):
    mdp = rooms.four_rooms(noise)
    assert solve.optimal(mdp).V @ mdp.start == pytest.approx(value, abs=5e-5)


def test_deterministic_value_is_gamma_to_the_thirteenth():
    mdp = rooms.four_rooms("none", gamma=0.9)
    assert solve.optimal(mdp).V @ mdp.start == pytest.approx(0.9**13, rel=1e-12)


def test_uniform_policy_value_does_not_depend_on_the_noise():
    values = [solve.start_value(rooms.four_rooms(noise), UNIFORM) for noise in rooms.NOISES]
    assert values == pytest.approx([0.0531] * 4, abs=5e-5)


@pytest.mark.parametrize(
    ("noise", "intended", "other"),
    [("fail", 0.8, 0.2 / 3), ("third", 2 / 3, 1 / 9), ("success", 0.4, 0.2), ("none", 1, 0)],
)
def test_noise_and_walls(noise, intended, other):
    mdp = rooms.four_rooms(noise)
    corner, right, below = (rooms.state_index(*cell) for cell in ((1, 1), (1, 2), (2, 1)))
    up, east = rooms.ACTIONS.index("up"), rooms.ACTIONS.index("right")
    assert mdp.P[corner, east, right] == pytest.approx(intended)
    assert mdp.P[corner, east, below] == pytest.approx(other)
    assert mdp.P[corner, east, corner] == pytest.approx(2 * other)  # up and left are walls
    assert mdp.P[corner, up, corner] == pytest.approx(intended + other)


def test_goal_pays_once_and_absorbs():
    mdp = rooms.four_rooms()
    goal = rooms.state_index(*rooms.GOAL)
    assert np.flatnonzero(mdp.terminal).tolist() == [goal]
    assert mdp.R[rooms.state_index(7, 9), rooms.ACTIONS.index("down")] == pytest.approx(0.8)
    assert mdp.R[goal].tolist() == [0.0] * 4
    assert abs(solve.state_value(mdp, UNIFORM)[goal]) < 1e-12


def test_start_and_goal_are_arguments():
    mdp = rooms.four_rooms("none", gamma=0.9, start=(1, 1), goal=(1, 4))
    assert solve.optimal(mdp).V @ mdp.start == pytest.approx(0.9**2)


def test_observations_show_the_agent_at_row_column():
    seen = rooms.observations()
    assert seen.shape == (104, 13, 13, 2)
    assert seen.dtype == np.float32
    state = rooms.state_index(4, 1)
    np.testing.assert_array_equal(seen[state, :, :, 0], rooms.WALLS)
    assert np.argwhere(seen[state, :, :, 1]).tolist() == [[4, 1]]
    assert seen[..., 1].sum() == 104


def test_grid_layout():
    grid = rooms.as_grid(np.arange(104.0))
    assert grid[1, 1] == 0.0
    assert grid[4, 1] == rooms.state_index(4, 1)
    np.testing.assert_array_equal(np.isnan(grid), rooms.WALLS)


def test_route_of_the_optimal_policy():
    mdp = rooms.four_rooms()
    best = solve.optimal(mdp)
    chance = rooms.top_route_probability(mdp, best.pi)
    assert chance[rooms.state_index(*rooms.START)] == pytest.approx(0.879, abs=5e-4)
    # Once in the doorway to the bottom-left room the optimal policy goes on through it.
    assert chance[rooms.state_index(6, 2)] == pytest.approx(0.0122, abs=5e-5)
    assert np.isnan(chance[rooms.state_index(*rooms.GOAL)])
    assert chance[rooms.state_index(7, 9)] > 0.999


def test_always_going_over_the_top_costs_almost_nothing_at_the_start():
    mdp = rooms.four_rooms()
    best, top = solve.optimal(mdp), solve.optimal(walled_off(mdp, rooms.DOORWAYS["bottom"])).pi
    assert rooms.top_route_probability(mdp, top, rooms.state_index(6, 2)) > 0.999
    assert best.V @ mdp.start - solve.start_value(mdp, top) == pytest.approx(0.0004, abs=5e-5)


def test_route_probability_agrees_with_walks_and_takes_batches():
    mdp, rng = rooms.four_rooms(), np.random.default_rng(0)
    start = rooms.state_index(6, 2)
    exact = rooms.top_route_probability(mdp, np.stack([UNIFORM, solve.optimal(mdp).pi]), start)
    assert exact.shape == (2,)
    moves = solve.transition_matrix(mdp, UNIFORM).cumsum(-1)
    walkers = np.full(4000, start)
    previous = walkers.copy()
    outside = np.ones(4000, bool)
    while outside.any():
        previous[outside] = walkers[outside]
        drawn = rng.random((outside.sum(), 1))
        walkers[outside] = np.minimum((moves[walkers[outside]] < drawn).sum(-1), 103)
        outside = rooms.room_of[walkers] != rooms.ROOMS.index("bottom-right")
    share = np.mean(previous == rooms.state_index(7, 9))
    assert abs(share - exact[0]) < 4 * np.sqrt(exact[0] * (1 - exact[0]) / 4000)


def test_a_policy_that_never_arrives_has_no_route():
    always_up = np.eye(4)[np.zeros(104, int)]
    chance = rooms.top_route_probability(rooms.four_rooms("none"), always_up)
    assert np.nanmax(chance) == 0.0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"noise": "some"}, "noise: expected one of 'fail', 'third', 'success', 'none', got 'some'"),
        ({"goal": (0, 0)}, r"goal: expected a free cell.*, got \(0, 0\), a wall"),
        ({"start": (13, 1)}, r"start: expected .*, got \(13, 1\), off the map"),
        ({"start": (-1, 1)}, r"start: expected .*, got \(-1, 1\), off the map"),
        ({"start": (8, 9)}, "start: expected .*, got .*, the goal"),
        ({"gamma": 1.0}, "gamma: expected .*, got 1.0"),
    ],
)
def test_bad_tasks(options, message):
    with pytest.raises(ValueError, match=message):
        rooms.four_rooms(**options)


def test_bad_questions():
    mdp = rooms.four_rooms()
    with pytest.raises(ValueError, match=r"from_state: expected .*, got 104"):
        rooms.top_route_probability(mdp, UNIFORM, 104)
    with pytest.raises(ValueError, match=r"mdp: expected .*, got 3 states"):
        rooms.top_route_probability(random_mdp(np.random.default_rng(0), 3, 4, 0.9), UNIFORM)
    with pytest.raises(ValueError, match=r"pi: expected .*, got shape \(4,\)"):
        rooms.top_route_probability(mdp, np.ones(4) / 4)
    with pytest.raises(ValueError, match=r"values: expected .*, got shape"):
        rooms.as_grid(np.ones(103))
