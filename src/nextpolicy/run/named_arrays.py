"""The leaves of a state by name, as arrays that a file can hold, and back."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from nextpolicy.run.folder import RunError
from nextpolicy.settings import short
from nextpolicy.types import PyTree


def _names(tree: PyTree) -> tuple[list[str], list[Any], Any]:
    leaves, structure = jax.tree_util.tree_flatten_with_path(tree)
    names = [jax.tree_util.keystr(path, simple=True, separator=".").replace("/", ".") for path, _ in leaves]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise RunError(f"state: expected different names for its arrays, got {short(twice)} twice; rename one of them")
    return names, [x for _, x in leaves], structure


def _is_key(x: Any) -> bool:
    return jnp.issubdtype(x.dtype, jax.dtypes.prng_key)


def flat(tree: PyTree) -> dict[str, Any]:
    """Leaves by path, with typed PRNG keys as their integer data and without empty arrays."""
    names, leaves, _ = _names(tree)

    def plain(x: Any) -> Any:
        if not _is_key(x):
            return x
        if isinstance(x, jax.ShapeDtypeStruct):
            data = jax.eval_shape(jax.random.key_data, x)
            return jax.ShapeDtypeStruct(data.shape, data.dtype, sharding=x.sharding)
        return jax.random.key_data(x)

    return {name: plain(x) for name, x in zip(names, leaves, strict=True) if x.size}


def unflat(template: PyTree, arrays: dict[str, Any]) -> PyTree:
    """The tree of such arrays, with the structure and keys of `template`."""
    names, leaves, structure = _names(template)

    def restored(name: str, like: Any) -> Any:
        if not like.size:
            return jnp.zeros(like.shape, like.dtype, device=like.sharding)
        if not _is_key(like):
            return arrays[name]
        # `jax.random.key_impl` takes arrays only, and `like` may be a ShapeDtypeStruct.
        return jax.random.wrap_key_data(arrays[name], impl=like.dtype._impl.name)

    return jax.tree_util.tree_unflatten(structure, [restored(*each) for each in zip(names, leaves, strict=True)])
