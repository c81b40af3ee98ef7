"""Traced programs kept on disk beside JAX's compiled ones: the second start of a configuration traces nothing twice.

JAX's own cache holds what the compiler made, found by the program's text; to know the text, a start must trace the
program, which for a physics simulator takes longer than all the rest. Here the text itself is kept, found by a
fingerprint of everything it follows from: configuration, shapes, JAX's settings, versions, and the code of every
function that could have taken part, as it is in memory, so that a changed or replaced function is never overlooked.

Files hold StableHLO, which XLA runs as it runs any program; reading one executes nothing. `NEXTPOLICY_KEEP_TRACED=0`
turns all of this off.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import sys
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import jax
import numpy as np

# Packages whose functions and tables end up in the program, or decide what does.
_PARTS = ("config", "core", "envs", "nets", "tabular", "train", "types", "run.training")
_CODE = (*(f"nextpolicy.{part}" for part in _PARTS), "brax", "gymnax")
_DEEPEST = 4  # functions within functions that are looked into
_VERSIONS = (
    *("nextpolicy", "jax", "jaxlib", "flax", "optax", "chex", "numpy"),
    *("brax", "gymnax", "jaxopt", "mujoco", "mujoco-mjx"),
)
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
        try:
            return self._lower(function, arguments, donated)
        except Exception:  # an error of the function's own comes again
            return function.lower(*arguments)

    def _lower(self, function: Any, arguments: tuple[Any, ...], donated: int) -> Any:
        leaves, tree = jax.tree.flatten(arguments)
        shapes = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in leaves]
        path = self.folder / fingerprint(self.about, str(tree), [f"{s.dtype}{s.shape}" for s in shapes])
        exported = _read(path)
        if exported is None:

            def flat(*leaves: Any) -> Any:
                first, *rest = function(*jax.tree.unflatten(tree, leaves))
                return jax.tree.leaves(first), *rest

            exported = jax.export.export(jax.jit(flat), disabled_checks=_kernel_checks())(*shapes)
            _write(path, exported.serialize())
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
    folder = jax.config.jax_compilation_cache_dir
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
    """Of every function, constant and table of the packages in `_CODE` that is loaded, as it is now."""
    digest = hashlib.sha256()
    for name in sorted(sys.modules):
        if f"{name}.".startswith(tuple(f"{package}." for package in _CODE)):
            for attribute, value in sorted(vars(sys.modules[name]).items()):
                for piece in () if attribute.startswith("__") else _pieces(value, name):  # not where its file lies
                    digest.update(f"{name}.{attribute}:{piece}\n".encode())
    return digest.hexdigest()


def _pieces(value: Any, module: str, depth: int = 0) -> Iterator[str]:
    """Text of a function's code, of a class's methods, of constants and tables of these; nothing for anything else."""
    if depth > _DEEPEST:  # a function may hold itself
        return
    if isinstance(value, functools.partial):
        yield from _pieces(value.func, module, depth + 1)
        yield repr([_constant(a) for a in (*value.args, value.keywords)])
    elif isinstance(value, classmethod | staticmethod | types.MethodType):
        yield from _pieces(value.__func__, module, depth + 1)
    elif isinstance(value, property):
        yield from _pieces(value.fget, module, depth + 1)
    elif isinstance(value, types.FunctionType):
        yield f"{value.__module__}.{value.__qualname__}"
        yield _code(value.__code__)
        yield repr([_constant(d) for d in (*(value.__defaults__ or ()), value.__kwdefaults__)])
        for cell in value.__closure__ or ():
            with contextlib.suppress(ValueError):  # a cell that is empty
                yield from _pieces(cell.cell_contents, module, depth + 1)
    elif isinstance(value, type):
        yield f"{value.__module__}.{value.__qualname__}"
        if value.__module__ == module and depth == 0:  # others are told of where they stand
            for name, member in sorted(vars(value).items()):
                yield from (f"{name}:{piece}" for piece in _pieces(member, module, 1))
    elif isinstance(inner := getattr(value, "__wrapped__", None), types.FunctionType):  # under jit and the like
        yield from _pieces(inner, module, depth + 1)
    elif isinstance(value, list | tuple):
        for part in value:
            yield from _pieces(part, module, depth + 1)
    elif isinstance(value, dict):
        for name in sorted(value, key=repr):
            yield str(_constant(name))
            yield from _pieces(value[name], module, depth + 1)
    elif isinstance(value, np.ndarray) and value.dtype.kind != "O":
        yield f"{value.dtype}{value.shape}{hashlib.sha256(value.tobytes()).hexdigest()}"
    elif (constant := _constant(value)) is not None:
        yield constant


def _code(code: types.CodeType) -> str:
    """Bytecode, names and constants, those of inner functions included; not where in the file it stands."""
    return repr((code.co_code.hex(), code.co_names, [_constant(c) for c in code.co_consts]))


def _constant(value: Any) -> str | None:
    """Text of a constant, the same in every process; None for an object, whose text may hold its address."""
    if isinstance(value, types.CodeType):
        return _code(value)
    if isinstance(value, dict):
        return str({str(_constant(name)): _constant(value[name]) for name in sorted(value, key=repr)})
    if isinstance(value, tuple | list | set | frozenset):
        parts = [str(_constant(part)) for part in value]
        return str(parts if isinstance(value, tuple | list) else sorted(parts))
    simple = (str, bytes, int, float, complex, type(None), type(...))
    return repr(value) if isinstance(value, simple) else None


def _versions() -> dict[str, str]:
    found = {}
    for package in _VERSIONS:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = ""
    return found


def _kernel_checks() -> list[Any]:
    """Our Triton kernels are custom calls whose form JAX does not promise to keep; the version is in the name."""
    names = ("__gpu$xla.gpu.triton", "triton_kernel_call", "mosaic_gpu_v2")
    return [jax.export.DisabledSafetyCheck.custom_call(name) for name in names]


def _read(path: Path) -> Any:
    """The program in `path`; None if there is none that is whole."""
    try:
        return jax.export.deserialize(bytearray(path.read_bytes()))
    except Exception:  # a torn or foreign file can fail in any way; it is then written anew
        return None


def _write(path: Path, data: bytes) -> None:
    """Whole or not at all; a disk that takes nothing costs the next start its time, and nothing else."""
    part = path.with_suffix(f".{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part.write_bytes(data)
        part.replace(path)
    except OSError:
        part.unlink(missing_ok=True)
