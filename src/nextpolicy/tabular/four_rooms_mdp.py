"""Four Rooms (Sutton, Precup and Singh, 1999) as an exact MDP: 13 x 13, 104 free cells, one absorbing goal.

State i is the free cell `cells[i]` = (row, col), numbered row by row from the top left. The goal is one of the 104
states. Entering it has reward 1; it is absorbing.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numpy.typing import ArrayLike

from nextpolicy.core import check
from nextpolicy.tabular import solve
from nextpolicy.tabular.mdp import FloatArray, TabularMDP, as_policy

_MAP = """\
#############
#.....#.....#
#.....#.....#
#...........#
#.....#.....#
#.....#.....#
##.####.....#
#.....###.###
#.....#.....#
#.....#.....#
#...........#
#.....#.....#
#############"""

WALLS: npt.NDArray[np.bool_] = np.array([[symbol == "#" for symbol in line] for line in _MAP.splitlines()])
"""[13, 13] bool, indexed [row, col]: True for walls."""

cells: npt.NDArray[np.int64] = np.argwhere(~WALLS)
"""[104, 2]: (row, col) of each state."""

ACTIONS = ("up", "right", "down", "left")
MOVES: npt.NDArray[np.int64] = np.array([[-1, 0], [0, 1], [1, 0], [0, -1]])
"""[4, 2]: change of (row, col) by each action."""

START = (4, 1)
GOAL = (8, 9)
DOORWAYS = {"top": (3, 6), "left": (6, 2), "right": (7, 9), "bottom": (10, 6)}

ROOMS = ("top-left", "top-right", "bottom-left", "bottom-right", "doorway")

NOISES = ("fail", "third", "success", "none")
_INDEX: npt.NDArray[np.int64] = np.full(WALLS.shape, -1)
_INDEX[~WALLS] = np.arange(len(cells))


def _rooms() -> npt.NDArray[np.int64]:
    """Room index of each cell. The wall between top and bottom is in row 6 on the left and row 7 on the right."""
    rows, columns = cells.T
    right = columns > 6
    bottom = np.where(right, rows > 7, rows > 6)
    room = 2 * bottom + right
    room[[state_index(*doorway) for doorway in DOORWAYS.values()]] = ROOMS.index("doorway")
    return np.asarray(room)


def state_index(row: int, col: int, name: str = "cell") -> int:
    """The state at [row, col]. Raises ValueError for walls and cells off the map."""
    inside = 0 <= row < WALLS.shape[0] and 0 <= col < WALLS.shape[1]
    if not inside or WALLS[row, col]:
        raise ValueError(f"{name}: expected a free cell, got ({row}, {col}), {'a wall' if inside else 'off the map'}")
    return int(_INDEX[row, col])


room_of: npt.NDArray[np.int64] = _rooms()
"""[104]: the room of each state, as an index into ROOMS."""


def four_rooms(
    noise: str = "fail", gamma: float = 0.99, *, start: tuple[int, int] = START, goal: tuple[int, int] = GOAL
) -> TabularMDP:
    """Four Rooms as a `TabularMDP` with 104 states and 4 actions.

    noise `fail`     the intended move with probability 0.8, each other move with 0.2 / 3
    noise `success`  with probability 0.8 a move drawn uniformly from all four, otherwise the intended move
    noise `none`     always the intended move

    A move into a wall leaves the state unchanged. R(s, a) is the probability of entering the goal.
    """
    successor = np.empty((len(cells), len(MOVES)), dtype=np.int64)
    for state, cell in enumerate(cells):
        for action, (row, col) in enumerate(cell + MOVES):
            successor[state, action] = state if WALLS[row, col] else _INDEX[row, col]
    # reached[s, m, t] = 1 if move m leads from s to t.
    reached = np.eye(len(cells))[successor]
    goal_state = state_index(*goal, name="goal")
    start_state = state_index(*start, name="start")
    if start_state == goal_state:
        raise ValueError(f"start: expected a free cell other than the goal, got {start}, the goal")
    P = np.einsum("am,smt->sat", move_probabilities(noise), reached)
    P[goal_state] = np.eye(len(cells))[goal_state]
    R = P[:, :, goal_state].copy()
    R[goal_state] = 0.0
    return TabularMDP(P=P, R=R, gamma=gamma, start=np.eye(len(cells))[start_state])


def move_probabilities(noise: str = "fail") -> FloatArray:
    """[action, move]: the probability of each move given the intended action."""
    check.one_of("noise", noise, NOISES)
    moves = len(MOVES)
    failure = {"fail": 0.2, "third": 1 / 3, "success": 0.6, "none": 0.0}[noise]  # a failed move takes another direction
    return np.asarray(np.where(np.eye(moves, dtype=bool), 1.0 - failure, failure / (moves - 1)))


def observations() -> npt.NDArray[np.float32]:
    """[104, 13, 13, 2]: the observation of each state, with one channel for walls and one for the agent's cell."""
    seen = np.zeros((len(cells), *WALLS.shape, 2), np.float32)
    seen[..., 0] = WALLS
    seen[np.arange(len(cells)), cells[:, 0], cells[:, 1], 1] = 1.0
    return seen


def as_grid(values: ArrayLike, fill: float = np.nan) -> FloatArray:
    """Values per state [..., 104] on the grid [..., 13, 13], with `fill` in walls."""
    table = np.asarray(values, dtype=np.float64)
    if table.shape[-1:] != (len(cells),):
        raise ValueError(f"values: expected [..., {len(cells)}], got shape {table.shape}")
    grid = np.full((*table.shape[:-1], *WALLS.shape), fill)
    grid[..., cells[:, 0], cells[:, 1]] = table
    return grid


def top_route_probability(mdp: TabularMDP, pi: ArrayLike, from_state: int | None = None) -> FloatArray:
    """The probability that the first entry into the bottom-right room, which has the default goal, is from the top.

    Starts from `from_state`, or from every state ([..., 104]) if it is None. An entry is a step into the room from the
    doorway (7, 9) (top) or (10, 6) (left). States inside the room give NaN. The probabilities of the two routes sum to
    less than 1 if the policy may never enter the room.
    """
    if mdp.states != len(cells):
        raise ValueError(f"mdp: expected the {len(cells)} states of Four Rooms, got {mdp.states} states")
    if from_state is not None and not 0 <= from_state < len(cells):
        raise ValueError(f"from_state: expected a state index in [0, {len(cells) - 1}], got {from_state}")
    policy = as_policy(mdp, pi)
    batch = policy.shape[:-2]
    inside = room_of == ROOMS.index("bottom-right")
    outside = np.flatnonzero(~inside)
    doorway = int(np.searchsorted(outside, state_index(*DOORWAYS["right"])))
    chance = np.full((int(np.prod(batch)), len(cells)), np.nan)
    for row, one in zip(chance, policy.reshape(-1, *policy.shape[-2:])):
        moves = solve.transition_matrix(mdp, one)
        row[outside] = _chance_of_entering(moves[np.ix_(outside, outside)], moves[outside][:, inside].sum(1), doorway)
    chance = chance.reshape(*batch, len(cells))
    return chance if from_state is None else np.asarray(chance[..., from_state])


def _chance_of_entering(moves: FloatArray, entering: FloatArray, doorway: int) -> FloatArray:
    """Probability, per outside state, that the first entry is from `doorway`; 0 if entry is impossible."""
    possible = entering > 0
    for _ in range(len(moves)):
        possible = possible | (moves @ possible > 0)
    # States that cannot reach the room would make the system singular; their probability is 0.
    matrix = np.where(possible[:, None], np.eye(len(moves)) - moves, np.eye(len(moves)))
    right = np.where(np.arange(len(moves)) == doorway, entering, 0.0)
    return np.asarray(np.linalg.solve(matrix, right))
