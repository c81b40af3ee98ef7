"""A pytree of arrays as a file: leaf i is the array "i" of an .npz file. Reading it executes no code.

The array "about" holds what the tree is, as JSON, so that a file in another's place is noticed.
"""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from nextpolicy.run.folder import RunError
from nextpolicy.runfiles import check_regular, write_whole
from nextpolicy.types import PyTree


def save(path: Path, tree: PyTree, **about: int) -> None:
    """Write the leaves of a tree and what it is, atomically."""
    file = io.BytesIO()
    leaves: dict[str, Any] = {str(i): np.asarray(x) for i, x in enumerate(jax.tree.leaves(tree))}
    np.savez(file, about=np.frombuffer(json.dumps(about).encode(), np.uint8), **leaves)
    write_whole(path, file.getvalue())


def load(path: Path, template: PyTree, **about: int) -> PyTree:
    """The tree in a file. Raises unless it is this one, with the structure, shapes and dtypes of `template`."""
    try:
        check_regular(path)
        with np.load(io.BytesIO(path.read_bytes())) as found:  # of a path, it would leave a damaged file open
            names = [name for name in found.files if name != "about"]
            leaves = [jnp.asarray(found[str(i)]) for i in range(len(names))]
            saved = json.loads(found["about"].tobytes()) if "about" in found.files else about  # version 0.1 has none
        tree = jax.tree.unflatten(jax.tree.structure(template), leaves)
        odd = [f"{name} {saved.get(name)}, not {value}" for name, value in about.items() if saved.get(name) != value]
    except Exception as error:  # NumPy and zipfile raise many kinds of errors on damaged files
        raise RunError(f"run: {path} cannot be read ({' '.join(str(error).split())}); train a new run") from None
    if odd:
        raise RunError(f"run: {path} is of {odd[0]}; resume the run, or put the right file back")
    if shapes(tree) != shapes(template):
        raise RunError(f"run: {path} has arrays of other shapes; train a new run")
    return tree


def shapes(tree: PyTree) -> tuple[Any, list[tuple[Any, str]]]:
    """Structure, shapes and dtypes."""
    return jax.tree.structure(tree), [(tuple(x.shape), str(x.dtype)) for x in jax.tree.leaves(tree)]


def of_one(tree: PyTree) -> PyTree:
    """Shapes and dtypes without the leading member axis."""
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), tree)
