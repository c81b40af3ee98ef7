"""From an id to an environment. Ids carry their suite: `gymnax/CartPole-v1`, `brax/ant`, `four-rooms`."""

from __future__ import annotations

import contextlib
import difflib
import importlib
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp

from nextpolicy import extras
from nextpolicy.envs.base import DeviceEnv, Discrete, HostEnv

# Suite -> the module that has `names()` and `make(name, **options)`; what it needs is imported by those, not before.
SUITES = {"four-rooms": "four_rooms", "gymnax": "gymnax", "brax": "brax", "probe": "probes"}
HOST_SUITES = {"atari": "atari", "gym": "gymnasium"}  # their environments step on the host
EXTRAS = {"gymnax": "gymnax", "brax": "brax", "atari": "atari", "gym": "gymnasium"}  # suite -> extra to install


def is_host(env_id: object) -> bool:
    """Whether the environment steps on the host (NumPy in, NumPy out) rather than inside XLA."""
    return isinstance(env_id, str) and env_id.startswith(tuple(f"{suite}/" for suite in HOST_SUITES))


def module_of(env_id: str) -> str | None:
    """The Python module that making this environment imports: `my_envs` of `gym/my_envs:Maze-v0`."""
    suite, _, name = env_id.partition("/")
    module, colon, _ = name.rpartition(":")
    return module if suite == "gym" and colon else None


def make(env: str | Any, /, **options: Any) -> DeviceEnv:
    """The environment of this id, or a user's own gymnax-style environment object wrapped."""
    if not isinstance(env, str):
        from nextpolicy.envs import gymnax

        return gymnax.wrap(env, **options)
    if is_host(env):
        raise ValueError(f"environment: got {env!r}, which runs on the host; takes one that runs inside XLA")
    suite, slash, name = env.partition("/")
    if suite not in SUITES or bool(slash) == (suite == "four-rooms"):
        raise ValueError(_unknown(env, _installed_names()))
    module = _module(suite)
    try:
        known = [_join(suite, known) for known in module.names()]
        if env not in known and name not in getattr(module, "EXCLUDED", {}):
            raise ValueError(_unknown(env, known))
        with _options_in_one_line(env, options):
            made: DeviceEnv = module.make(name, **options)
            if options and suite != "brax":  # which takes seconds to trace, and checks its options itself
                _check_step(made)
    except ImportError as error:
        raise ValueError(_missing(suite, error)) from error
    return made


@contextlib.contextmanager
def _options_in_one_line(env: Any, options: dict[str, Any]) -> Iterator[None]:
    """What an environment raises over options that it cannot be made with, as one line that names them."""
    try:
        yield
    except (TypeError, LookupError, AttributeError, ArithmeticError) as error:
        if not options or not isinstance(env, str):
            raise
        given = ", ".join(f"{name}={value!r}"[:80] for name, value in options.items())
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0][:160]
        raise ValueError(f"env_options: {env} cannot be made with {given} ({reason})") from error


def _check_step(env: DeviceEnv) -> None:
    """Trace a reset and a step: an option of the wrong type or size is not always noticed before."""
    kind = env.spec.action
    action = jnp.zeros((1,), jnp.int32) if isinstance(kind, Discrete) else jnp.zeros((1, *kind.shape))
    key_reset, key_step = jax.random.split(jax.random.key(0))
    jax.eval_shape(lambda: env.step(key_step, env.reset(key_reset, 1)[0], action))


def make_host(env: str | Callable[[], Any], /, **options: Any) -> HostEnv:
    """The host environment of this id, or of a callable that makes one Gymnasium environment."""
    suite, _, name = ("gym", "", "") if callable(env) else env.partition("/")
    module = _module(suite)
    try:
        if callable(env):
            made: HostEnv = module.wrap(env, **options)
        elif suite == "atari" and name not in module.names() and name not in module.EXCLUDED:
            raise ValueError(_unknown(env, [_join(suite, known) for known in module.names()]))
        else:
            with _options_in_one_line(env, options):
                made = module.make(name, **options)
    except ImportError as error:
        raise ValueError(_missing(suite, error)) from error
    return made


def names(suite: str | None = None) -> list[str]:
    """All ids (of one suite); a suite that cannot be imported is one entry that says what to install."""
    known = {**SUITES, **HOST_SUITES}
    if suite is not None and suite not in known:
        raise ValueError(f"suite: got {suite!r}, takes one of {', '.join(map(repr, known))}")
    listed: list[str] = []
    for each in known if suite is None else (suite,):
        try:
            listed += [_join(each, name) for name in _module(each).names()]
        except ImportError as error:
            listed.append(f"{each}/... ({_missing(each, error)})")
    return listed


def _module(suite: str) -> ModuleType:
    return importlib.import_module(f"nextpolicy.envs.{(SUITES | HOST_SUITES)[suite]}")


def _join(suite: str, name: str) -> str:
    return f"{suite}/{name}" if name else suite


def _installed_names() -> list[str]:
    return [name for name in names() if "..." not in name]


def _missing(suite: str, error: ImportError) -> str:
    if suite not in EXTRAS:
        return f"{suite}: {error}"
    return f"{suite}: cannot import {error.name or 'its package'}; {extras.advice(EXTRAS[suite])}"


def _unknown(env: str, known: list[str]) -> str:
    """The complaint, with the ids nearest to what was written: case is ignored, and so is a wrong or absent suite."""
    by_spelling: dict[str, list[str]] = {}
    for name in known:
        for spelling in (name, name.partition("/")[2]):
            if spelling:
                by_spelling.setdefault(spelling.lower(), []).append(name)
    wanted = dict.fromkeys([env.lower(), env.partition("/")[2].lower() or env.lower()])
    near = [match for word in wanted for match in difflib.get_close_matches(word, by_spelling, n=3, cutoff=0.6)]
    nearest = list(dict.fromkeys(name for match in near for name in by_spelling[match]))[:3]
    hint = f"nearest: {', '.join(nearest)}" if nearest else "`nextpolicy envs` lists them"
    return f"environment: got {env!r}, takes a known id; {hint}"
