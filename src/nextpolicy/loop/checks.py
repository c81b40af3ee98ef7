"""Check what algorithms and criteria, which may be a user's, return from a round. Only shapes are read: no cost."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from nextpolicy.types import Array, Metrics, PyTree

COLUMNS = ("round", "env_steps", "member", "seed", "variant", "steps_per_second")  # of the table of metrics


def decision(name: str, returned: Any, before: PyTree) -> tuple[PyTree, Array, Metrics]:
    """The (state, accept, metrics) that `update` of the criterion `name` returned for the state `before`."""
    what = f"criterion {name}: expected update to return"
    if not isinstance(returned, tuple) or len(returned) != 3:
        got = f"{len(returned)} values" if isinstance(returned, tuple) else type(returned).__name__
        raise ValueError(f"{what} (state, accept, metrics), got {got}")
    state, accept, metrics = returned
    if jnp.shape(accept) != () or jnp.result_type(accept) != jnp.bool_:
        got = f"{jnp.result_type(accept)} of shape {jnp.shape(accept)}"
        raise ValueError(f"{what} one boolean as accept, got {got}")
    if not isinstance(metrics, dict):
        raise ValueError(f"{what} a dict of metrics, got {type(metrics).__name__}")
    if _described(state) != _described(before):
        raise ValueError(f"{what} a state with the structure, shapes and types of init's")
    return state, accept, metrics


def merged(algorithm: Metrics, criterion: Metrics, own: Metrics) -> Metrics:
    """All metrics of a round. Raises unless they are scalars whose names differ and are no columns of the table."""
    found: Metrics = {}
    for part in (own, algorithm, criterion):
        for name, value in part.items():
            if name in COLUMNS:
                raise ValueError(f"metrics: expected names other than the table's own columns, got {name!r}")
            if name in found:
                raise ValueError(f"metrics: expected different names, got {name!r} twice; rename it in your own code")
            if jnp.shape(value) != ():
                raise ValueError(f"metrics: expected scalars, got {name!r} of shape {jnp.shape(value)}")
            found[name] = value
    return found


def _described(tree: PyTree) -> tuple[Any, list[tuple[Any, Any]]]:
    return jax.tree.structure(tree), [(jnp.shape(x), jnp.result_type(x)) for x in jax.tree.leaves(tree)]
