"""Traced programs kept on disk beside JAX's compiled ones: the second start of a configuration traces nothing twice.

JAX's own cache holds what the compiler made, found by the program's text; to know the text, a start must trace the
program, which for a physics simulator takes longer than all the rest. Here the text itself is kept, found by a
fingerprint of everything it follows from: configuration, JAX's settings, versions, and the code of every
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
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import jax

# Packages whose functions end up in the program.
_CODE = (*(f"nextpolicy.{part}" for part in ("core", "envs", "nets", "train", "types")), "brax", "gymnax")
_DEEPEST = 4  # functions within functions that are looked into
_VERSIONS = ("jax", "jaxlib", "flax", "optax", "chex", "brax", "gymnax", "mujoco", "numpy")
_SETTINGS_THAT_DO_NOT_MATTER = ("cache", "log", "traceback", "xla_flags", "dump", "profiler", "coordination")


@dataclass(frozen=True)
class Keeper:
    """Makes the program of one configuration, from disk where it can; `about` says all that the caller knows of it."""

    folder: Path
    about: str

    def begin(self, device: Any) -> Callable[[Any, tuple[Any, ...]], Callable[[], Callable[..., Any]]]:
        """`lower(function, arguments)`, which gives `compile()`, which gives the compiled function.

        A program found on disk is compiled from now on, while the caller finds out what its arguments are. `function`
        gives (what its second argument becomes, dicts and tuples of arrays...); that argument is given away. Whatever
        goes wrong with keeping it, and some programs cannot be kept, it is traced and lowered as ever.
        """
        path = self.folder / fingerprint(self.about)
        found = _read(path)
        early = None if found is None else _in_background(lambda: _compile(found, device))

        def lower(function: Any, arguments: tuple[Any, ...]) -> Callable[[], Callable[..., Any]]:
            as_ever = lambda: function.lower(*arguments).compile()  # noqa: E731
            try:
                if early is not None and _fits(found, arguments):
                    ready = early
                else:
                    exported = _export(function, arguments)
                    _write(path, exported.serialize())
                    ready = lambda: _compile(exported, device)  # noqa: E731
            except Exception:  # an error of the function's own comes again
                return function.lower(*arguments).compile

            def compile_it() -> Callable[..., Any]:
                try:
                    return _of_trees(ready(), jax.tree.structure(arguments[1]))
                except Exception:
                    return as_ever()

            return compile_it

        return lower


def _export(function: Any, arguments: tuple[Any, ...]) -> Any:
    """The traced program, as a function of the lists of its arguments' leaves: files know of no other containers."""
    trees = [jax.tree.structure(argument) for argument in arguments]

    def of_leaves(*lists: list[Any]) -> Any:
        first, *rest = function(*map(jax.tree.unflatten, trees, lists))
        return jax.tree.leaves(first), *rest

    of_leaves.__name__ = function.__name__  # by which profilers and memory reports know it
    return jax.export.export(jax.jit(of_leaves), disabled_checks=_kernel_checks())(*_shapes(arguments))


def _shapes(arguments: tuple[Any, ...]) -> tuple[list[Any], ...]:
    return tuple([jax.ShapeDtypeStruct(x.shape, x.dtype) for x in jax.tree.leaves(a)] for a in arguments)


def _fits(exported: Any, arguments: tuple[Any, ...]) -> bool:
    """Whether it is a program for such arguments; anything else would be one that `about` does not tell apart."""
    leaves, tree = jax.tree.flatten((_shapes(arguments), {}))
    known = [(x.shape, x.dtype) for x in exported.in_avals]
    return tree == exported.in_tree and known == [(x.shape, x.dtype) for x in leaves]


def _compile(exported: Any, device: Any) -> Callable[..., Any]:
    """A function of lists of leaves; the second is given away."""
    place = jax.sharding.SingleDeviceSharding(device)
    leaves = [jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=place) for x in exported.in_avals]
    shapes, _ = jax.tree.unflatten(exported.in_tree, leaves)
    call = lambda *lists: exported.call(*lists)  # noqa: E731
    call.__name__ = exported.fun_name
    return jax.jit(call, donate_argnums=1).lower(*shapes).compile()


def _of_trees(compiled: Callable[..., Any], first: Any) -> Callable[..., Any]:
    """A compiled function of lists of leaves as one of trees; `first` is the structure of its first result."""

    def call(*arguments: Any) -> Any:
        leaves, *rest = compiled(*map(jax.tree.leaves, arguments))
        return jax.tree.unflatten(first, leaves), *rest

    return call


def _in_background(work: Callable[[], Any]) -> Callable[[], Any]:
    """Start `work`; the function that is given waits for its result."""
    pool = ThreadPoolExecutor(1)
    result = pool.submit(work).result
    pool.shutdown(wait=False)
    return result


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


def fingerprint(about: str) -> str:
    """A name for the program that follows from this, and from the code and settings there are."""
    settings = {
        name: repr(value)
        for name, value in sorted(jax.config.values.items())
        if not any(part in name for part in _SETTINGS_THAT_DO_NOT_MATTER)
    }
    device = jax.devices()[0]
    place = [device.platform, device.device_kind, sys.version]
    parts = [about, settings, place, _versions(), code_digest()]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def code_digest() -> str:
    """Of every function of the packages in `_CODE` that is loaded, as it is now."""
    digest = hashlib.sha256()
    for name in sorted(sys.modules):
        if f"{name}.".startswith(tuple(f"{package}." for package in _CODE)):
            for attribute, value in sorted(vars(sys.modules[name]).items()):
                for piece in _pieces(value, name):
                    digest.update(f"{name}.{attribute}:{piece}\n".encode())
    return digest.hexdigest()


def _pieces(value: Any, module: str, depth: int = 0) -> Iterator[str]:
    """Text of a function's code, of a class's methods, of a plain constant; nothing for anything else."""
    if depth > _DEEPEST:  # a function may hold itself
        return
    if isinstance(value, functools.partial):
        yield from _pieces(value.func, module, depth + 1)
        yield repr([_constant(a) for a in value.args])
    elif isinstance(value, classmethod | staticmethod | types.MethodType):
        yield from _pieces(value.__func__, module, depth + 1)
    elif isinstance(value, property):
        yield from _pieces(value.fget, module, depth + 1)
    elif isinstance(value, types.FunctionType):
        yield f"{value.__module__}.{value.__qualname__}"
        yield _code(value.__code__)
        yield repr([_constant(d) for d in value.__defaults__ or ()])
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
    elif (constant := _constant(value)) is not None:
        yield constant


def _code(code: types.CodeType) -> str:
    """Bytecode, names and constants, those of inner functions included; not where in the file it stands."""
    return repr((code.co_code.hex(), code.co_names, [_constant(c) for c in code.co_consts]))


def _constant(value: Any) -> str | None:
    """Text of a constant, the same in every process; None for an object, whose text may hold its address."""
    if isinstance(value, types.CodeType):
        return _code(value)
    if isinstance(value, tuple | frozenset):
        parts = [str(_constant(part)) for part in value]
        return str(parts if isinstance(value, tuple) else sorted(parts))
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
