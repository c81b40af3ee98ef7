"""What a criterion and an algorithm return from a round is checked while it is traced."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import pytest

from nextpolicy.loop import checks

STATE = (jnp.zeros(()), jnp.zeros(3))
RIGHT = (STATE, jnp.asarray(True), {"diff": jnp.zeros(())})


def test_a_decision_is_returned_as_it_is() -> None:
    state, accept, metrics = checks.decision("Mine", RIGHT, STATE)
    assert (state, accept, metrics) == RIGHT
    assert checks.decision("Mine", (0, True, {}), 0)[1] is True


@pytest.mark.parametrize(
    ("returned", "said"),
    [
        ((STATE, True), r"\(state, accept, metrics\), got 2 values"),
        (None, r"\(state, accept, metrics\), got NoneType"),
        ((STATE, jnp.ones(2, bool), {}), r"one boolean as accept, got bool of shape \(2,\)"),
        ((STATE, 0.3, {}), r"one boolean as accept, got float32 of shape \(\)"),
        ((STATE, True, None), "a dict of metrics, got NoneType"),
        ((STATE[:1], True, {}), "a state with the structure, shapes and types of init's"),
        (((STATE[0], jnp.zeros(4)), True, {}), "a state with the structure, shapes and types of init's"),
        (((STATE[0], jnp.zeros(3, int)), True, {}), "a state with the structure, shapes and types of init's"),
    ],
)
def test_other_decisions_are_named(returned: Any, said: str) -> None:
    with pytest.raises(ValueError, match=rf"^criterion Mine: expected update to return {said}$"):
        checks.decision("Mine", returned, STATE)


def test_metrics_of_all_parts_are_kept() -> None:
    one = jnp.ones(())
    assert checks.merged({"a": one}, {"b": 2 * one}, {"c": 3 * one}) == {"a": 1, "b": 2, "c": 3}


@pytest.mark.parametrize(
    ("algorithm", "criterion", "said"),
    [
        ({"episodes": 1.0}, {}, "expected different names, got 'episodes' twice; rename it in your own code"),
        ({}, {"episodes": 1.0}, "expected different names, got 'episodes' twice; rename it in your own code"),
        ({"x": 1.0}, {"x": 1.0}, "expected different names, got 'x' twice; rename it in your own code"),
        ({"seed": 1.0}, {}, "expected names other than the table's own columns, got 'seed'"),
        ({}, {"x": jnp.zeros(2)}, r"expected scalars, got 'x' of shape \(2,\)"),
    ],
)
def test_other_metrics_are_named(algorithm: Any, criterion: Any, said: str) -> None:
    with pytest.raises(ValueError, match=rf"^metrics: {said}$"):
        checks.merged(algorithm, criterion, {"episodes": 1.0})
