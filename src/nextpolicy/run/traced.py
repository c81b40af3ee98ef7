"""Cache of traced programs on disk, so that a configuration is traced only at its first start.

JAX's compilation cache is keyed by the text of the program, so JAX must trace the program before it can look it up.
For a physics simulator, tracing takes longer than the rest of the start. This cache stores the text of the program
under a fingerprint of everything that determines it: configuration, shapes, JAX settings, versions, and the code of
every function that could be part of it. The code is taken from memory, so replacing a function at run time changes
the fingerprint too.

Files contain StableHLO and are verified by `program_cache`. `NEXTPOLICY_KEEP_TRACED=0` disables this cache.
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

# Modules of this package whose functions and tables can affect the program.
_PARTS = ("algos", "config", "core", "criteria", "envs", "loop", "nets", "settings", "tabular", "types", "run.job")
_DEEPEST = 6  # maximum nesting of functions, tables and classes
_CONSTANTS = (str, bytes, int, float, complex, type(None), type(...))
_VERSIONS = ("nextpolicy", "jax", "jaxlib", "flax", "optax", "chex", "numpy")
_SETTINGS_THAT_DO_NOT_MATTER = ("cache", "log", "traceback", "xla_flags", "dump", "profiler", "coordination")


@dataclass(frozen=True)
class Keeper:
    """Lowers the programs of one configuration, from disk if possible. `about` describes the configuration."""

    folder: Path
    about: str

    def lower(self, function: Any, arguments: tuple[Any, ...], donated: int) -> Any:
        """Like `function.lower(*arguments)`, with the argument at index `donated` donated.

        `function` returns (new value of the donated argument, dicts and tuples of arrays...). A program that cannot be
        cached is lowered by JAX directly.
        """
        if not program_cache.usable(self.folder):
            return function.lower(*arguments)
        try:
            return self._lower(function, arguments, donated)
        except Exception:  # an error of the function itself is raised again
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
        call.__name__ = function.__name__  # the name in profiles and memory reports
        call = jax.jit(call, donate_argnums=tuple(range(first, first + sizes[donated])))
        placed = [jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=getattr(x, "sharding", None)) for x in leaves]
        return _Flat(call.lower(*placed), jax.tree.structure(arguments[donated]))


@dataclass(frozen=True)
class _Flat:
    """A lowered function of flat leaves; `compile()` restores the pytree structure."""

    lowered: Any
    first: Any  # pytree structure of the first result

    def compile(self) -> Callable[..., Any]:
        compiled = self.lowered.compile()

        def call(*arguments: Any) -> Any:
            first, *rest = compiled(*jax.tree.leaves(arguments))
            return jax.tree.unflatten(self.first, first), *rest

        return call


def keeper(about: str) -> Keeper | None:
    """A keeper in JAX's cache folder; None if the cache is disabled or not supported."""
    folder = jax.config.values["jax_compilation_cache_dir"]
    if folder is None or os.environ.get("NEXTPOLICY_KEEP_TRACED", "1") == "0" or jax.process_count() > 1:
        return None
    try:
        import flatbuffers  # noqa: F401  # required by jax.export
    except ImportError:
        return None
    return Keeper(Path(folder) / "traced", about)


def fingerprint(about: str, tree: str, shapes: list[str]) -> str:
    """Digest of the arguments and of the JAX settings, device, versions and code in use."""
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
    """Digest of every loaded function, constant and table that can affect a program."""
    backends = registry.backends().values()
    parts = (*(f"nextpolicy.{part}" for part in _PARTS), *(module for backend in backends for module in backend.code))
    prefixes = tuple(f"{part}." for part in parts)
    digest = hashlib.sha256()
    for name in sorted(sys.modules):
        if f"{name}.".startswith(prefixes):
            for attribute, value in sorted(vars(sys.modules[name]).items()):
                if not attribute.startswith("__"):  # paths, loaders and the like
                    digest.update(f"{name}.{attribute}:{_text(value, name)}\n".encode())
    return digest.hexdigest()


def _text(value: Any, module: str, depth: int = 0) -> str:
    """A text that identifies a function, class, constant or container of these, equal in every process.

    Empty for any other object, because its `repr` may contain its address.
    """
    if depth > _DEEPEST:  # a function may refer to itself
        return ""
    inner = lambda *values: str([_text(v, module, depth + 1) for v in values])  # noqa: E731
    if isinstance(value, _CONSTANTS):
        return repr(value)
    if isinstance(value, types.CodeType):  # without line numbers; nested functions do not add depth
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
    if isinstance(value, type):  # classes of other modules are hashed in those modules
        own = vars(value) if value.__module__ == module and depth == 0 else {}
        return f"{value.__module__}.{value.__qualname__}{inner(*sorted(own), *(own[name] for name in sorted(own)))}"
    if isinstance(wrapped := getattr(value, "__wrapped__", None), types.FunctionType):  # wrapped by jit or similar
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
    """Allow the custom calls of our Triton kernels. JAX may change their format; the fingerprint has its version."""
    names = ("__gpu$xla.gpu.triton", "triton_kernel_call", "mosaic_gpu_v2")
    return [jax.export.DisabledSafetyCheck.custom_call(name) for name in names]
