"""Traced programs kept on disk beside JAX's compiled ones: the second start of a configuration traces nothing twice.

JAX's own cache holds what the compiler made, found by the program's text; to know the text, a start must trace the
program, which for a physics simulator takes longer than all the rest. Here the text itself is kept, found by a
fingerprint of everything it follows from: configuration, shapes, JAX's settings, versions, and the code of every
function that could have taken part, as it is in memory, so that a changed or replaced function is never overlooked.

Files hold StableHLO and are read as `program_cache` reads them. `NEXTPOLICY_KEEP_TRACED=0` turns all of this off.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import sys
import types
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import jax
import numpy as np

from nextpolicy.envs import registry
from nextpolicy.run import program_cache

# Parts of this package whose functions and tables end up in the program, or decide what does.
_PARTS = ("algos", "config", "core", "criteria", "envs", "loop", "nets", "settings", "tabular", "types", "run.job")
_DEEPEST = 6  # functions within tables within classes that are looked into
_CONSTANTS = (str, bytes, int, float, complex, type(None), type(...))
_VERSIONS = ("nextpolicy", "jax", "jaxlib", "flax", "optax", "chex", "numpy")
_SETTINGS_THAT_DO_NOT_MATTER = ("cache", "log", "traceback", "xla_flags", "dump", "profiler", "coordination")


@dataclass(frozen=True)
class Keeper:
    """Lowers programs of one configuration, from disk where it can; `about` is what the caller knows of them."""

    folder: Path
    about: str

    def lower(self, function: Any, arguments: tuple[Any, ...], donated: int) -> Any:
        """As `function.lower(*arguments)`, with the argument numbered `donated` given away.

        `function` gives (what the donated argument becomes, dicts and tuples of arrays...). Whatever goes wrong with
        keeping it, and some programs cannot be kept, it is lowered as ever.
        """
        if not program_cache.usable(self.folder):
            return function.lower(*arguments)
        try:
            return self._lower(function, arguments, donated)
        except Exception:  # an error of the function's own comes again
            return function.lower(*arguments)

    def _lower(self, function: Any, arguments: tuple[Any, ...], donated: int) -> Any:
        leaves, tree = jax.tree.flatten(arguments)
        shapes = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in leaves]
        path = self.folder / fingerprint(self.about, str(tree), [f"{s.dtype}{s.shape}" for s in shapes])
        if kept := program_cache.read(path):
            exported = jax.export.deserialize(bytearray(kept))
        else:

            def flat(*leaves: Any) -> Any:
                first, *rest = function(*jax.tree.unflatten(tree, leaves))
                return jax.tree.leaves(first), *rest

            exported = jax.export.export(jax.jit(flat), disabled_checks=_kernel_checks())(*shapes)
            program_cache.write(path, bytes(exported.serialize()))
        sizes = [len(jax.tree.leaves(argument)) for argument in arguments]
        first = sum(sizes[:donated])
        call = lambda *leaves: exported.call(*leaves)  # noqa: E731
        call.__name__ = function.__name__  # by which profilers and memory reports know it
        call = jax.jit(call, donate_argnums=tuple(range(first, first + sizes[donated])))
        placed = [jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=getattr(x, "sharding", None)) for x in leaves]
        return _Flat(call.lower(*placed), jax.tree.structure(arguments[donated]))


@dataclass(frozen=True)
class _Flat:
    """A lowered function of leaves; compiled, it is one of trees."""

    lowered: Any
    first: Any  # structure of the first result

    def compile(self) -> Callable[..., Any]:
        compiled = self.lowered.compile()

        def call(*arguments: Any) -> Any:
            first, *rest = compiled(*jax.tree.leaves(arguments))
            return jax.tree.unflatten(self.first, first), *rest

        return call


def keeper(about: str) -> Keeper | None:
    """A keeper beside JAX's cache; None where there is none, or where it is turned off."""
    folder = jax.config.values["jax_compilation_cache_dir"]
    if folder is None or os.environ.get("NEXTPOLICY_KEEP_TRACED", "1") == "0" or jax.process_count() > 1:
        return None
    try:
        import flatbuffers  # noqa: F401  # what jax.export writes with
    except ImportError:
        return None
    return Keeper(Path(folder) / "traced", about)


def fingerprint(about: str, tree: str, shapes: list[str]) -> str:
    """A name for the program that follows from all of this, and from the code and settings there are."""
    settings = {
        name: repr(value)
        for name, value in sorted(jax.config.values.items())
        if not any(part in name for part in _SETTINGS_THAT_DO_NOT_MATTER)
    }
    device = jax.devices()[0]
    place = [device.platform, device.device_kind, sys.version]
    parts = [about, tree, shapes, settings, place, _versions(), code_digest()]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def code_digest() -> str:
    """Of every loaded function, constant and table that can take part in a program, as it is now."""
    backends = registry.backends().values()
    parts = (*(f"nextpolicy.{part}" for part in _PARTS), *(module for backend in backends for module in backend.code))
    prefixes = tuple(f"{part}." for part in parts)
    digest = hashlib.sha256()
    for name in sorted(sys.modules):
        if f"{name}.".startswith(prefixes):
            for attribute, value in sorted(vars(sys.modules[name]).items()):
                if not attribute.startswith("__"):  # not where its file lies
                    digest.update(f"{name}.{attribute}:{_text(value, name)}\n".encode())
    return digest.hexdigest()


def _text(value: Any, module: str, depth: int = 0) -> str:
    """Of a function's code, a class's methods, constants and tables of these, the same in every process.

    Nothing for any other object, whose text may hold its address.
    """
    if depth > _DEEPEST:  # a function may hold itself
        return ""
    inner = lambda *values: str([_text(v, module, depth + 1) for v in values])  # noqa: E731
    if isinstance(value, _CONSTANTS):
        return repr(value)
    if isinstance(value, types.CodeType):  # not where in the file it stands; functions in it are no deeper than it is
        constants = [_text(c, module, depth) for c in value.co_consts]
        return repr((value.co_code.hex(), value.co_names, constants))
    if isinstance(value, types.FunctionType):
        cells = [cell.cell_contents for cell in value.__closure__ or () if cell != types.CellType()]
        defaults = (value.__defaults__, value.__kwdefaults__)
        return f"{value.__module__}.{value.__qualname__}{inner(value.__code__, *defaults, *cells)}"
    if isinstance(value, functools.partial):
        return inner(value.func, value.args, value.keywords)
    if isinstance(value, classmethod | staticmethod | types.MethodType):
        return inner(value.__func__)
    if isinstance(value, property):
        return inner(value.fget)
    if isinstance(value, type):  # others are told of where they stand
        own = vars(value) if value.__module__ == module and depth == 0 else {}
        return f"{value.__module__}.{value.__qualname__}{inner(*sorted(own), *(own[name] for name in sorted(own)))}"
    if isinstance(wrapped := getattr(value, "__wrapped__", None), types.FunctionType):  # under jit and the like
        return inner(wrapped)
    if isinstance(value, dict):
        return str(sorted(inner(name, entry) for name, entry in value.items()))
    if isinstance(value, set | frozenset):
        return str(sorted(inner(entry) for entry in value))
    if isinstance(value, list | tuple):
        return inner(*value)
    if isinstance(value, np.ndarray) and value.dtype.kind != "O":
        return f"{value.dtype}{value.shape}{hashlib.sha256(value.tobytes()).hexdigest()}"
    return ""


def _versions() -> dict[str, str]:
    found = {}
    for package in (*_VERSIONS, *registry.packages()):
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = ""
    return found


def _kernel_checks() -> list[Any]:
    """Our Triton kernels are custom calls whose form JAX does not promise to keep; the version is in the name."""
    names = ("__gpu$xla.gpu.triton", "triton_kernel_call", "mosaic_gpu_v2")
    return [jax.export.DisabledSafetyCheck.custom_call(name) for name in names]
