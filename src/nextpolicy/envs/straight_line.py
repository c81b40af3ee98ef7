"""Straight-line code for the step of an environment: the same operations in fewer kernels on a GPU.

A GPU pays for each kernel that it launches. Under `vmap`, each `x.at[i].set(y)` becomes a scatter or an update of a
slice, which often is a kernel of its own, and each loop launches its kernels once per iteration. A loop of unknown
length also makes the host wait for the device before each iteration. Selections and unrolled loops have no such limits:
XLA fuses them with what surrounds them.

XLA gives a reduction over 32 or more elements, or over a power of two, a kernel of its own in which the threads of a
warp share the work. Where a step has many results to reduce, folds let one thread compute each, as part of a fusion.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal
from jax.lax import GatherScatterMode, ScatterDimensionNumbers

from nextpolicy.types import Array, PyTree

UNROLLED = 8  # iterations, of loops of known length and of others
SHORT = 100  # equations of a loop's body; unrolling a longer one takes longer to compile than it saves
LARGEST = 4096  # elements of an array that a selection may rewrite
WARP = 32  # threads of a GPU that run together
_COMBINED: dict[str, Callable[[Array, Array], Array]] = {
    "scatter": lambda _, new: new,
    "scatter-add": jax.lax.add,
    "scatter-max": jax.lax.max,
    "scatter-min": jax.lax.min,
}
_FOLDED: dict[str, Callable[[Array, Array], Array]] = {
    "reduce_and": jax.lax.bitwise_and,
    "reduce_or": jax.lax.bitwise_or,
    "reduce_max": jax.lax.max,
    "reduce_min": jax.lax.min,
    "reduce_sum": jax.lax.add,
}


def straight_line(function: Callable[..., PyTree]) -> Callable[..., PyTree]:
    """`function` of arrays with short loops unrolled, selections instead of writes to one index, and folded reductions.

    The first `UNROLLED` iterations of a `while_loop` become conditional assignments; the loop follows for the rest.
    """

    def run(*arguments: PyTree) -> PyTree:
        closed, shapes = jax.make_jaxpr(function, return_shape=True)(*arguments)
        return jax.tree.unflatten(jax.tree.structure(shapes), _evaluate(closed, jax.tree.leaves(arguments)))

    return run


def _evaluate(closed: ClosedJaxpr, arguments: Sequence[Array]) -> list[Array]:
    jaxpr: Jaxpr = closed.jaxpr
    values: dict[Any, Any] = dict(zip(jaxpr.constvars, closed.consts, strict=True))
    values |= zip(jaxpr.invars, arguments, strict=True)
    read = lambda v: v.val if isinstance(v, Literal) else values[v]  # noqa: E731
    for eqn in jaxpr.eqns:
        values |= zip(eqn.outvars, _apply(eqn, [read(v) for v in eqn.invars]), strict=True)
    return [read(v) for v in jaxpr.outvars]


def _apply(eqn: JaxprEqn, inputs: list[Array]) -> Sequence[Array]:
    name, params = eqn.primitive.name, eqn.params
    inlined = params["jaxpr"] if name in ("jit", "pjit") else params.get("call_jaxpr")
    if isinstance(inlined, ClosedJaxpr):
        return _evaluate(inlined, inputs)
    if name == "scan" and params["length"] <= UNROLLED and _short(params["jaxpr"]):
        params = {**params, "unroll": max(params["length"], 1)}
    elif name == "while" and not eqn.effects and _short(params["body_jaxpr"]):
        inputs = _first_iterations(params, inputs)
    elif name in _COMBINED and not _applies(eqn) and _writes_one_index(params["dimension_numbers"], *inputs):
        return [_select(eqn, *inputs)]
    elif name == "argmax" and inputs[0].dtype == bool:
        return [straight_line(functools.partial(_first, params))(*inputs)]
    elif name in _FOLDED and len(params["axes"]) == 1:
        inputs = [_fold(eqn, *inputs)]
    bound = eqn.primitive.get_bind_params(params)
    functions, params = bound if isinstance(bound, tuple) else ((), bound)  # depends on the version of JAX
    outputs = eqn.primitive.bind(*functions, *inputs, **params)
    return outputs if eqn.primitive.multiple_results else [outputs]


def _short(body: ClosedJaxpr) -> bool:
    """Whether the body of a loop is short, has no loop of its own, and carries little."""
    inner = list(_equations(body))
    loops = any(eqn.primitive.name in ("while", "scan") for eqn in inner)
    return len(inner) <= SHORT and not loops and sum(aval.size for aval in body.out_avals) <= LARGEST


def _equations(value: object) -> Iterator[JaxprEqn]:
    """The equations of a program, including those of inner functions and branches."""
    if isinstance(value, tuple | list):
        for each in value:
            yield from _equations(each)
    program = value.jaxpr if isinstance(value, ClosedJaxpr) else value
    for eqn in program.eqns if isinstance(program, Jaxpr) else ():
        yield eqn
        yield from _equations(list(eqn.params.values()))


def _applies(eqn: JaxprEqn) -> bool:
    """Whether a scatter applies a function to the old value, as `x.at[i].apply(f)` does."""
    update = eqn.params["update_jaxpr"]
    return eqn.primitive.name == "scatter" and update is not None and bool(update.eqns)


def _first_iterations(params: dict[str, Any], inputs: list[Array]) -> list[Array]:
    """The inputs of a `while` after up to `UNROLLED` iterations."""
    first, last = params["cond_nconsts"], params["cond_nconsts"] + params["body_nconsts"]
    of_cond, of_body, carry = inputs[:first], inputs[first:last], inputs[last:]
    for _ in range(UNROLLED):
        (going,) = _evaluate(params["cond_jaxpr"], [*of_cond, *carry])
        after = _evaluate(params["body_jaxpr"], [*of_body, *carry])
        carry = [jnp.where(going, new, old) for new, old in zip(after, carry, strict=True)]
    return [*of_cond, *of_body, *carry]


def _writes_one_index(numbers: ScatterDimensionNumbers, operand: Array, indices: Array, updates: Array) -> bool:
    """Whether a scatter writes all of the dimensions that it does not index, and one index of the others."""
    indexed = numbers.scatter_dims_to_operand_dims
    rest = tuple(size for d, size in enumerate(operand.shape) if d not in indexed)
    return (
        indices.ndim == 1
        and np.size(operand) <= LARGEST
        and set(numbers.inserted_window_dims) == set(indexed)
        and jnp.shape(updates) == rest
    )


def _select(eqn: JaxprEqn, operand: Array, indices: Array, updates: Array) -> Array:
    """operand [...], with the update where all indexed dimensions equal their index, e.g. x.at[i, :, j].set(y).

    The combinations of indexed dimensions are numbered, so that each element needs only one comparison.
    """
    indexed = eqn.params["dimension_numbers"].scatter_dims_to_operand_dims
    numbers, written, inside = np.int32(0), jnp.int32(0), jnp.array(True)
    for i, d in enumerate(indexed):
        size, index = operand.shape[d], indices[i]
        if eqn.params["mode"] == GatherScatterMode.CLIP:
            index = jnp.clip(index, 0, size - 1)
        along = np.arange(size, dtype=np.int32).reshape([-1 if e == d else 1 for e in range(operand.ndim)])
        numbers, written = numbers * size + along, written * size + index.astype(jnp.int32)
        inside &= (index >= 0) & (index < size)
    wide = jnp.broadcast_to(jnp.expand_dims(updates, sorted(indexed)), operand.shape)
    here = numbers == jnp.where(inside, written, -1)
    return jnp.where(here, _COMBINED[eqn.primitive.name](operand, wide), operand)


def _first(params: dict[str, Any], operand: Array) -> Array:
    """The first index that holds true, or 0: the argmax of truth values, without pairs of a value and an index."""
    (axis,) = params["axes"]
    index = jax.lax.broadcasted_iota(jnp.int32, operand.shape, axis)
    first = jnp.where(operand, index, operand.shape[axis]).min(axis)
    return jnp.where(first < operand.shape[axis], first, 0).astype(params["index_dtype"])


def _fold(eqn: JaxprEqn, operand: Array) -> Array:
    """The operand [.., n, ..] of a reduction over n, as [.., m, ..] with the same result, where one thread reduces m.

    Sums of floats stay as they are, since their order matters.
    """
    (axis,) = eqn.params["axes"]
    n, m = operand.shape[axis], operand.shape[axis]
    if n == 0 or (eqn.primitive.name == "reduce_sum" and not jnp.issubdtype(operand.dtype, jnp.integer)):
        return operand
    if n <= UNROLLED:
        m = 1
    elif n >= WARP and operand.size > LARGEST:
        m = max((m for m in range(2, WARP) if n % m == 0 and WARP % m and n <= m * UNROLLED), default=n)
    parts = [jax.lax.slice_in_dim(operand, start, start + m, axis=axis) for start in range(0, n, m)]
    return functools.reduce(_FOLDED[eqn.primitive.name], parts)
