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
from nextpolicy.types import Array, PyTree

# Modules of this package whose functions and tables can affect the program.
_PARTS = ("algos", "config", "core", "criteria", "envs", "loop", "nets", "settings", "tabular", "types", "run.job")
_DEEPEST = 6  # maximum nesting of functions, tables and classes
_CONSTANTS = (str, bytes, int, float, complex, type(None), type(...))
_VERSIONS = ("nextpolicy", "jax", "jaxlib", "flax", "optax", "chex", "numpy")
_SETTINGS_THAT_DO_NOT_MATTER = ("cache", "log", "traceback", "xla_flags", "dump", "profiler", "coordination")


@dataclass(frozen=True)
class Keeper:
    """Keeps the two programs of a configuration on disk. `about` describes the configuration.

    They are `init(seeds) -> state` and `block(hypers, state, rounds, warming) -> (state, metrics, observed)`. The
    structure of a state is not stored, so programs from disk take and return it as the list of its leaves.
    """

    folder: Path
    about: str

    def recall(self, hypers: PyTree, seeds: Array) -> tuple[Any, Any] | None:
        """Both programs of an earlier start, lowered; None if there are none."""
        if not program_cache.usable(self.folder):
            return None
        kept = [program_cache.read(path) for path in self._paths(hypers, seeds)]
        try:
            return _lowered([jax.export.deserialize(bytearray(text)) for text in kept if text], hypers, seeds)
        except Exception:  # a file is missing, or this JAX cannot use it
            return None

    def lower(self, init: Any, block: Any, arguments: tuple[Any, ...], seeds: Array) -> tuple[Any, Any]:
        """Both programs, lowered and written to disk. If that is impossible, JAX lowers them directly."""
        if not program_cache.usable(self.folder):
            return init.lower(seeds), block.lower(*arguments)
        try:
            paths = self._paths(arguments[0], seeds)  # before tracing, which may import modules
            exported = [_exported(init, (seeds,)), _exported(block, arguments)]
            for path, each in zip(paths, exported, strict=True):
                program_cache.write(path, bytes(each.serialize()))
            return _lowered(exported, arguments[0], seeds)
        except Exception:  # an error of the functions themselves is raised again
            return init.lower(seeds), block.lower(*arguments)

    def _paths(self, hypers: PyTree, seeds: Array) -> list[Path]:
        leaves, tree = jax.tree.flatten((hypers, seeds))
        name = fingerprint(self.about, str(tree), [f"{x.dtype}{x.shape}" for x in leaves])
        return [self.folder / f"{name}-{program}" for program in ("init", "block")]


def _exported(function: Any, arguments: tuple[Any, ...]) -> Any:
    """`init` or `block` as a function of the leaves of its arguments, which returns a state as leaves."""
    leaves, tree = jax.tree.flatten(arguments)

    def flat(*leaves: Array) -> Any:
        result = function(*jax.tree.unflatten(tree, leaves))
        if len(arguments) == 1:  # init returns only a state
            return jax.tree.leaves(result)
        first, *rest = result
        return jax.tree.leaves(first), *rest

    shapes = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in leaves]
    return jax.export.export(jax.jit(flat), disabled_checks=_kernel_checks())(*shapes)


def _lowered(exported: list[Any], hypers: PyTree, seeds: Array) -> tuple[Any, Any]:
    """`init` and `block`, lowered for the device of `seeds`; `block` donates the state."""
    init, block = exported
    given = jax.tree.leaves(hypers)
    place = lambda aval, sharding: jax.ShapeDtypeStruct(aval.shape, aval.dtype, sharding=sharding)  # noqa: E731
    state = [place(aval, seeds.sharding) for aval in block.in_avals[len(given) : -2]]
    numbers = [place(aval, None) for aval in block.in_avals[-2:]]  # rounds, warming
    donated = tuple(range(len(given), len(given) + len(state)))
    lowered_init = jax.jit(_named(init, "init")).lower(seeds)
    lowered_block = jax.jit(_named(block, "block"), donate_argnums=donated).lower(*given, *state, *numbers)
    return _OnLeaves(lowered_init), _OnLeaves(lowered_block)


def _named(exported: Any, name: str) -> Callable[..., Any]:
    """`exported.call`, by the name that profiles and memory reports show."""
    call = lambda *leaves: exported.call(*leaves)  # noqa: E731
    call.__name__ = name
    return call


@dataclass(frozen=True)
class _OnLeaves:
    """A lowered function of leaves. Compiled, it accepts pytrees."""

    lowered: Any

    def compile(self) -> Callable[..., Any]:
        compiled = self.lowered.compile()
        return lambda *arguments: compiled(*jax.tree.leaves(arguments))


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
