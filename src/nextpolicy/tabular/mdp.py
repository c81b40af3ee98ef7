"""Finite Markov decision processes as arrays, and random MDPs and policies.

Indices: s is the state, a the action, t (as an axis) the successor. All arrays are NumPy float64.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from numpy.typing import ArrayLike

from nextpolicy.core import check

FloatArray = npt.NDArray[np.float64]

PROBABILITY_TOLERANCE = 1e-9
# Policies often come from a float32 softmax. Rows whose sum is this close to 1 are divided by it.
POLICY_TOLERANCE = 1e-5

POLICY_KINDS = ("dirichlet", "deterministic", "uniform")


@dataclass(frozen=True, eq=False)
class TabularMDP:
    """P[s, a, t] = probability of s -> t under a; R[s, a] = expected reward; start[s] = P(s_0 = s).

    0 <= gamma < 1. In a terminal state, every action stays with reward 0. The arrays are stored as read-only float64
    copies. Invalid arrays raise ValueError.
    """

    P: FloatArray  # [S, A, S]
    R: FloatArray  # [S, A]
    gamma: float
    start: FloatArray  # [S]

    def __post_init__(self) -> None:
        P, R, start = (finite_array(name, getattr(self, name)) for name in ("P", "R", "start"))
        if P.ndim != 3 or P.shape[0] != P.shape[2] or 0 in P.shape:
            raise ValueError(f"P: expected [S, A, S] with at least one state and one action, got shape {P.shape}")
        if R.shape != P.shape[:2]:
            raise ValueError(f"R: expected [S, A] = {P.shape[:2]}, got shape {R.shape}")
        if start.shape != P.shape[:1]:
            raise ValueError(f"start: expected [S] = {P.shape[:1]}, got shape {start.shape}")
        _distribution("P", P)
        _distribution("start", start)
        gamma = np.asarray(self.gamma)
        if gamma.shape != () or gamma.dtype.kind not in "fiu" or not 0.0 <= gamma < 1.0:
            raise ValueError(f"gamma: expected a number in [0, 1), got {self.gamma!r}")
        for name, array in (("P", P), ("R", R), ("start", start)):
            array.setflags(write=False)
            object.__setattr__(self, name, array)
        object.__setattr__(self, "gamma", float(gamma))

    @property
    def states(self) -> int:
        """Number of states."""
        return self.P.shape[0]

    @property
    def actions(self) -> int:
        """Number of actions."""
        return self.P.shape[1]

    @property
    def terminal(self) -> npt.NDArray[np.bool_]:
        """[S] bool: every action stays with probability 1 and reward 0."""
        stays = self.P[np.arange(self.states), :, np.arange(self.states)] >= 1.0 - PROBABILITY_TOLERANCE
        return np.asarray((stays & (self.R == 0.0)).all(axis=1))


def finite_array(name: str, got: ArrayLike) -> FloatArray:
    """A float64 copy of `got`. Raises ValueError unless all entries are finite numbers."""
    try:
        array = np.array(got, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name}: expected an array of real numbers, got {type(got).__name__}") from error
    bad = array[~np.isfinite(array)]
    if bad.size:
        raise ValueError(f"{name}: expected finite numbers, got {bad[0]}")
    return array


def as_policy(mdp: TabularMDP, pi: ArrayLike, name: str = "pi") -> FloatArray:
    """`pi` [..., S, A] as float64 probabilities. Row sums must be within 1e-5 of 1; rows are divided by their sum."""
    return as_rows(as_table(mdp, pi, name), name)


def as_rows(table: ArrayLike, name: str) -> FloatArray:
    """`table` [..., A] as float64 probabilities, with the tolerance of `as_policy`; leading axes are not checked."""
    rows = finite_array(name, table)
    _distribution(name, rows, POLICY_TOLERANCE)
    return np.asarray(rows / rows.sum(-1, keepdims=True))


def as_table(mdp: TabularMDP, table: ArrayLike, name: str = "q") -> FloatArray:
    """`table` [..., S, A], e.g. action values, as finite float64."""
    array = finite_array(name, table)
    if array.shape[-2:] != (mdp.states, mdp.actions):
        raise ValueError(f"{name}: expected [..., S, A] = [..., {mdp.states}, {mdp.actions}], got shape {array.shape}")
    return array


def as_visitation(mdp: TabularMDP, mu: ArrayLike, name: str = "mu") -> FloatArray:
    """`mu` [..., S, A] as a distribution over state-action pairs, with the tolerance of `as_policy`."""
    array = as_table(mdp, mu, name)
    flat = array.reshape(*array.shape[:-2], -1)
    _distribution(name, flat, POLICY_TOLERANCE)
    return np.asarray(array / array.sum((-2, -1), keepdims=True))


def random_mdp(
    rng: np.random.Generator,
    states: int,
    actions: int,
    gamma: float,
    *,
    sparsity: float = 0.0,
    reward_range: tuple[float, float] = (0.0, 1.0),
) -> TabularMDP:
    """A random MDP: rows of P are Dirichlet(1) over a random subset of successors, rewards are uniform, s_0 is state 0.

    `sparsity` in [0, 1] is the probability that a successor is left out. At least one successor remains, so
    sparsity = 1 gives deterministic transitions.
    """
    for name, count in (("states", states), ("actions", actions)):
        check.whole(name, count)
    check.number("sparsity", sparsity, 0.0, 1.0)
    low, high = reward_range
    if not (np.isfinite(low) and np.isfinite(high) and low <= high):
        raise ValueError(f"reward_range: expected (low, high), finite, with low <= high, got {reward_range}")
    weight = rng.exponential(size=(states, actions, states))
    kept = rng.random(weight.shape) >= sparsity
    kept |= np.arange(states) == rng.integers(states, size=(states, actions, 1))
    weight = np.where(kept, weight, 0.0)
    start = np.zeros(states)
    start[0] = 1.0
    return TabularMDP(
        P=weight / weight.sum(-1, keepdims=True),
        R=rng.uniform(low, high, size=(states, actions)),
        gamma=gamma,
        start=start,
    )


def random_policy(
    rng: np.random.Generator, mdp: TabularMDP, *, kind: str = "dirichlet", batch: tuple[int, ...] = ()
) -> FloatArray:
    """Policies [*batch, S, A]: Dirichlet(1) rows, one random action per state (`deterministic`), or `uniform`."""
    check.one_of("kind", kind, POLICY_KINDS)
    shape = (*batch, mdp.states, mdp.actions)
    if kind == "uniform":
        return np.full(shape, 1.0 / mdp.actions)
    weight = rng.exponential(size=shape)
    if kind == "deterministic":
        weight = (np.arange(mdp.actions) == weight.argmax(-1)[..., None]).astype(np.float64)
    return np.asarray(weight / weight.sum(-1, keepdims=True))


def _distribution(name: str, array: FloatArray, tolerance: float = PROBABILITY_TOLERANCE) -> None:
    """Raise unless the entries are non-negative and sum to 1 along the last axis."""
    if array.size and array.min() < 0.0:
        raise ValueError(f"{name}: expected numbers of at least 0, got a negative probability, {array.min():g}")
    total = np.asarray(array.sum(-1))
    off = np.abs(total - 1.0)
    if (off > tolerance).any():
        worst = total.flat[off.argmax()]
        raise ValueError(
            f"{name}: expected sums of 1 (within {tolerance:g}), got probabilities that sum to {worst:.12g}"
        )
