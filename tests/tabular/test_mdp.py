"""The MDP refuses what is not one, and the random generators give what they say."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from nextpolicy.tabular.mdp import TabularMDP, as_policy, as_table, as_visitation, random_mdp, random_policy


def good() -> dict:
    """Two states, two actions: action 0 stays, action 1 swaps."""
    stay, swap = np.eye(2), np.eye(2)[::-1]
    return {"P": np.stack([stay, swap], axis=1), "R": np.array([[0.0, 1.0], [0.5, 0.0]]), "gamma": 0.9, "start": [1, 0]}


def test_arrays_are_float64_read_only_copies():
    arguments = good()
    mdp = TabularMDP(**arguments)
    arguments["R"][0, 0] = 7.0
    assert mdp.R[0, 0] == 0.0
    assert mdp.start.dtype == np.float64
    assert (mdp.states, mdp.actions) == (2, 2)
    with pytest.raises(ValueError, match="read-only"):
        mdp.P[0, 0, 0] = 0.5
    with pytest.raises(dataclasses.FrozenInstanceError):
        mdp.gamma = 0.5  # type: ignore[misc]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"P": np.ones((2, 2))}, r"P: expected \[S, A, S\].*, got shape \(2, 2\)"),
        ({"P": np.ones((2, 2, 3)) / 3}, r"P: expected .*, got shape \(2, 2, 3\)"),
        ({"P": np.zeros((0, 2, 0))}, r"P: expected .*, got shape \(0, 2, 0\)"),
        ({"P": np.full((2, 2, 2), 0.5 + 1e-8)}, r"P: expected sums of 1.*, got probabilities that sum to 1\.00000002"),
        ({"P": np.broadcast_to([1.5, -0.5], (2, 2, 2))}, r"P: expected .*, got a negative probability, -0\.5"),
        ({"P": np.full((2, 2, 2), np.nan)}, "P: expected finite numbers, got nan"),
        ({"P": "table"}, "P: expected an array of real numbers, got str"),
        ({"R": np.zeros((2, 3))}, r"R: expected \[S, A\] = \(2, 2\).*, got shape \(2, 3\)"),
        ({"R": np.array([[0.0, np.inf], [0.0, 0.0]])}, "R: expected finite numbers, got inf"),
        ({"gamma": 1.0}, r"gamma: expected a number in \[0, 1\).*, got 1.0"),
        ({"gamma": -0.1}, "gamma: expected .*, got -0.1"),
        ({"gamma": float("nan")}, "gamma: expected .*, got nan"),
        ({"gamma": "0.9"}, "gamma: expected .*, got '0.9'"),
        ({"start": [0.5, 0.4]}, "start: expected .*, got probabilities that sum to 0.9"),
        ({"start": [1.5, -0.5]}, "start: expected .*, got a negative probability"),
        ({"start": [1.0]}, r"start: expected \[S\] = \(2,\).*, got shape \(1,\)"),
    ],
)
def test_bad_arguments_are_named(change, message):
    with pytest.raises(ValueError, match=message):
        TabularMDP(**(good() | change))


def test_rows_within_tolerance_pass():
    P = good()["P"]
    P[0, 0] = [0.5, 0.5 + 5e-10]
    TabularMDP(**(good() | {"P": P}))


def test_terminal_states_are_those_that_stay_and_pay_nothing():
    P = np.zeros((3, 2, 3))
    P[0, :, 1] = P[1, :, 1] = P[2, :, 2] = 1.0
    R = np.array([[0.0, 0.0], [0.0, 0.0], [0.0, 1.0]])
    assert TabularMDP(P, R, 0.5, [1, 0, 0]).terminal.tolist() == [False, True, False]


def test_policies_from_float32_are_renormalised_and_others_refused():
    mdp = TabularMDP(**good())
    nearly = np.array([[0.3, 0.7], [1 / 3, 2 / 3]], np.float32) * np.float32(1 + 2e-6)
    assert np.abs(as_policy(mdp, nearly).sum(-1) - 1.0).max() < 1e-15
    with pytest.raises(ValueError, match=r"pi: expected .* got probabilities that sum to 1\.01"):
        as_policy(mdp, [[0.5, 0.51], [0.5, 0.5]])
    with pytest.raises(ValueError, match=r"beta: expected .*, got a negative probability"):
        as_policy(mdp, [[1.1, -0.1], [0.5, 0.5]], "beta")
    with pytest.raises(ValueError, match=r"pi: expected \[..., S, A\] = \[..., 2, 2\].*, got shape \(2, 3\)"):
        as_policy(mdp, np.ones((2, 3)) / 3)
    with pytest.raises(ValueError, match=r"q: expected .*, got nan"):
        as_table(mdp, np.full((2, 2), np.nan))
    with pytest.raises(ValueError, match=r"mu: expected .*, got probabilities that sum to 4"):
        as_visitation(mdp, np.ones((2, 2)))
    assert as_visitation(mdp, np.full((2, 2), 0.25 * (1 + 2e-6))).sum() == pytest.approx(1.0, abs=1e-15)


def test_random_mdp_is_reproducible_and_as_sparse_as_asked():
    first = random_mdp(np.random.default_rng(3), 6, 2, 0.9, sparsity=0.5)
    second = random_mdp(np.random.default_rng(3), 6, 2, 0.9, sparsity=0.5)
    np.testing.assert_array_equal(first.P, second.P)
    deterministic = random_mdp(np.random.default_rng(0), 6, 2, 0.9, sparsity=1.0)
    assert set(np.unique(deterministic.P)) == {0.0, 1.0}
    assert (random_mdp(np.random.default_rng(0), 40, 3, 0.9).P > 0).all()
    share = np.mean(random_mdp(np.random.default_rng(0), 40, 3, 0.9, sparsity=0.5).P == 0)
    assert 0.4 < share < 0.55
    shifted = random_mdp(np.random.default_rng(0), 40, 3, 0.9, reward_range=(-2.0, -1.0)).R
    assert -2.0 <= shifted.min() < shifted.max() <= -1.0


def test_random_policies():
    rng, mdp = np.random.default_rng(1), random_mdp(np.random.default_rng(0), 5, 3, 0.9)
    drawn = random_policy(rng, mdp, batch=(4,))
    assert drawn.shape == (4, 5, 3)
    np.testing.assert_allclose(drawn.sum(-1), 1.0)
    assert set(np.unique(random_policy(rng, mdp, kind="deterministic"))) == {0.0, 1.0}
    np.testing.assert_array_equal(random_policy(rng, mdp, kind="uniform"), np.full((5, 3), 1 / 3))


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        ((0, 2, 0.9), {}, "states: expected .*, got 0"),
        ((2, 1.5, 0.9), {}, "actions: expected .*, got 1.5"),
        ((2, 2, 1.0), {}, "gamma: expected .*, got 1.0"),
        ((2, 2, 0.9), {"sparsity": 1.5}, "sparsity: expected .*, got 1.5"),
        ((2, 2, 0.9), {"reward_range": (1.0, 0.0)}, "reward_range: expected .*, got"),
    ],
)
def test_bad_random_mdps(arguments, options, message):
    with pytest.raises(ValueError, match=message):
        random_mdp(np.random.default_rng(0), *arguments, **options)


def test_bad_random_policy():
    mdp = TabularMDP(**good())
    with pytest.raises(ValueError, match=r"kind: expected one of 'dirichlet'.*, got 'gaussian'"):
        random_policy(np.random.default_rng(0), mdp, kind="gaussian")
