"""Replaces the scatter-adds of a function by sums in a fixed order.

On a GPU, a scatter-add uses atomic additions. Their order changes from run to run, and so do the last bits of the sums:
results are not reproducible. It is also a separate kernel. If few rows are added to few rows, as in a simulator that
adds contact forces to links, a masked sum gives the same result, and the compiler fuses it with other operations:

    out[s] = operand[s] + sum_k [index[k] = s] updates[k],    operand [S, ...], index [K], updates [K, ...]
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.extend import core
from jax.extend.core.primitives import scatter_add_p

from nextpolicy.types import Array, PyTree

LARGEST = 4096  # S x K; above it, masks cost more than they save


def ordered(function: Callable[..., PyTree]) -> Callable[..., PyTree]:
    """`function` with all its scatter-adds replaced, including those in loops, branches and inner jits."""

    def in_order(*arguments: PyTree) -> PyTree:
        program, shapes = jax.make_jaxpr(function, return_shape=True)(*arguments)
        results = core.jaxpr_as_fun(_rewritten(program))(*jax.tree.leaves(arguments))
        return jax.tree.unflatten(jax.tree.structure(shapes), results)

    return in_order


def _rewritten(program: core.ClosedJaxpr) -> core.ClosedJaxpr:
    """The same program with scatter-adds replaced where possible."""
    if not _scatters(program):
        return program
    return jax.make_jaxpr(lambda *inputs: _run(program, inputs))(*program.in_avals)


def _scatters(value: object) -> bool:
    """Whether a parameter of an equation is or contains a program with a scatter-add."""
    if isinstance(value, tuple | list):
        return any(map(_scatters, value))
    program = value.jaxpr if isinstance(value, core.ClosedJaxpr) else value
    if not isinstance(program, core.Jaxpr):
        return False
    return any(e.primitive is scatter_add_p or _scatters(list(e.params.values())) for e in program.eqns)


def _run(program: core.ClosedJaxpr, inputs: tuple[Array, ...]) -> list[Array]:
    """Evaluate a program's equations one by one, with masked sums for scatter-adds and inner programs rewritten."""
    values = dict(zip([*program.jaxpr.constvars, *program.jaxpr.invars], [*program.consts, *inputs], strict=True))
    read = lambda atom: atom.val if isinstance(atom, core.Literal) else values[atom]  # noqa: E731
    for equation in program.jaxpr.eqns:
        arguments = [read(atom) for atom in equation.invars]
        total = _masked_sum(*arguments, **equation.params) if equation.primitive is scatter_add_p else None
        results = [total] if total is not None else _apply(equation, arguments)
        values.update(zip(equation.outvars, results, strict=True))
    return [read(atom) for atom in program.jaxpr.outvars]


def _apply(equation: core.JaxprEqn, arguments: list[Array]) -> list[Array]:
    primitive = equation.primitive
    bound = primitive.get_bind_params({name: _inside(value) for name, value in equation.params.items()})
    functions, params = bound if isinstance(bound, tuple) else ((), bound)  # depends on the version of JAX
    result = primitive.bind(*functions, *arguments, **params)
    return list(result) if primitive.multiple_results else [result]


def _inside(value: object) -> object:
    """A parameter of an equation, rewritten if it is a program or a tuple of programs."""
    if isinstance(value, core.ClosedJaxpr):
        return _rewritten(value)
    if not isinstance(value, tuple) or not _scatters(value):
        return value
    parts = tuple(map(_inside, value))
    make = getattr(value, "_make", tuple)  # of a named tuple
    return make(parts)


def _masked_sum(
    operand: Array,
    index: Array,
    updates: Array,
    *,
    dimension_numbers: jax.lax.ScatterDimensionNumbers,
    mode: jax.lax.GatherScatterMode,
    **_: object,
) -> Array | None:
    """The result of the scatter-add; None unless it adds whole rows along one axis."""
    axes, window = dimension_numbers.scatter_dims_to_operand_dims, dimension_numbers.update_window_dims
    along_one_axis = len(axes) == 1 and tuple(dimension_numbers.inserted_window_dims) == tuple(axes)
    if not along_one_axis or dimension_numbers.operand_batching_dims or not jnp.issubdtype(operand.dtype, jnp.inexact):
        return None
    rows = jnp.moveaxis(operand, axes[0], 0)
    count, width = rows.shape[0], rows.shape[1:]
    if tuple(updates.shape[a] for a in window) != width or not operand.size or count * index.size > LARGEST:
        return None
    scattered = [a for a in range(updates.ndim) if a not in window]
    added = jnp.transpose(updates, (*scattered, *window)).reshape(-1, *width)
    index = index.reshape(-1).astype(jnp.int32)
    if mode == jax.lax.GatherScatterMode.CLIP:
        index = jnp.clip(index, 0, count - 1)
    mask = (index[None, :] == jnp.arange(count, dtype=jnp.int32)[:, None]).reshape(count, -1, *[1] * len(width))
    total = rows + jnp.sum(jnp.where(mask, added[None], jnp.zeros((), added.dtype)), axis=1)
    return jnp.moveaxis(total, 0, axes[0])
