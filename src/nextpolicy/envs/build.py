"""Makes environments from ids; the error for an unknown id names the closest known ones."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import cast

import jax
import jax.numpy as jnp

from nextpolicy import extras
from nextpolicy.envs import registry
from nextpolicy.envs.base import Box, DeviceEnv, Discrete, HostEnv
from nextpolicy.envs.registry import Backend


def make(env: object, /, **options: object) -> DeviceEnv:
    """The environment with this id, or a wrapper around a user's gymnax-style environment."""
    if isinstance(env, str):
        return cast(DeviceEnv, _make(env, options, on_host=False))
    from nextpolicy.envs import gymnax

    return gymnax.wrap(env, **options)


def make_host(env: str | Callable[[], object], /, **options: object) -> HostEnv:
    """The host environment with this id, or one built from a callable that makes a Gymnasium environment."""
    if isinstance(env, str):
        return cast(HostEnv, _make(env, options, on_host=True))
    from nextpolicy.envs import gymnasium

    with _needs_packages(gymnasium.BACKEND):
        return gymnasium.wrap(env, **options)


def _make(env_id: str, options: dict[str, object], *, on_host: bool) -> DeviceEnv | HostEnv:
    backend = _backend_of(env_id)
    if backend.runs_on_host != on_host:
        wanted, got = ("on the host", "inside XLA") if on_host else ("inside XLA", "on the host")
        raise ValueError(f"environment: expected one that runs {wanted}, got {env_id!r}, which runs {got}")
    with _needs_packages(backend):
        check_id(env_id)
        with _options_in_one_line(env_id, options):
            made = backend.make(registry.name_of(env_id), **options)
            if options and not on_host and not backend.checks_options:
                _check_step(cast(DeviceEnv, made))
    return made


def check_id(env_id: str) -> None:
    """Raise ValueError for an unknown or excluded id, ImportError if its backend's packages are missing.

    An id that names a module is not checked, since the module may register it only when it is imported.
    """
    backend = _backend_of(env_id)
    reason = backend.excluded.get(registry.name_of(env_id))
    if reason is not None:
        raise ValueError(f"environment: expected an id that `nextpolicy envs` lists, got {env_id!r}, which {reason}")
    if registry.module_of(env_id) is None and env_id not in (known := backend.ids()):
        raise ValueError(registry.unknown(env_id, known))


def names(prefix: str | None = None) -> list[str]:
    """All ids, or those of one backend. If its packages are not installed, a line says what to install."""
    known = registry.backends()
    if prefix is not None and prefix not in known:
        raise ValueError(f"backend: expected one of {', '.join(map(repr, known))}, got {prefix!r}")
    listed: list[str] = []
    for backend in known.values() if prefix is None else (known[prefix],):
        try:
            listed += backend.ids()
        except ImportError as error:
            listed.append(f"{backend.form} ({_missing(backend, error)})")
    return listed


def _backend_of(env_id: str) -> Backend:
    if (backend := registry.find(env_id)) is not None:
        return backend
    installed: list[str] = []
    for each in registry.backends().values():
        with contextlib.suppress(ImportError):
            installed += each.ids()
    raise ValueError(registry.unknown(env_id, installed))


@contextlib.contextmanager
def _needs_packages(backend: Backend) -> Iterator[None]:
    """Turn a missing package into one line that says how to install it."""
    try:
        yield
    except ImportError as error:
        raise ValueError(_missing(backend, error)) from error


def _missing(backend: Backend, error: ImportError) -> str:
    if backend.extra is None:
        return f"{backend.prefix}: {error}"
    return f"{backend.prefix}: cannot import {error.name or 'its package'}; {extras.advice(backend.extra)}"


@contextlib.contextmanager
def _options_in_one_line(env_id: str, options: Mapping[str, object]) -> Iterator[None]:
    """Turn an environment's errors about its options into one line that names the options."""
    try:
        yield
    except (TypeError, LookupError, AttributeError, ArithmeticError) as error:
        if not options:
            raise
        given = ", ".join(f"{name}={value!r}"[:80] for name, value in options.items())
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0][:160]
        raise ValueError(f"env_options: {env_id} cannot be made with {given} ({reason})") from error


def _check_step(env: DeviceEnv) -> None:
    """Trace a reset and a step: some options of the wrong type or size fail only there."""
    kind = env.spec.action
    shape = () if isinstance(kind, Discrete) else kind.shape
    action = jnp.zeros((1, *shape), jnp.float32 if isinstance(kind, Box) else jnp.int32)
    key_reset, key_step = jax.random.split(jax.random.key(0))
    jax.eval_shape(lambda: env.step(key_step, env.reset(key_reset, 1)[0], action))
