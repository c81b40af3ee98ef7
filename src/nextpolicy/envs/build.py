"""From an id to an environment. Ids carry their suite: `gymnax/CartPole-v1`, `brax/ant`, `four-rooms`."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Callable
from types import ModuleType
from typing import Any

from nextpolicy import extras
from nextpolicy.envs.base import DeviceEnv, HostEnv

# Suite -> the module that has `names()` and `make(name, **options)`; what it needs is imported by those, not before.
SUITES = {"four-rooms": "four_rooms", "gymnax": "gymnax", "brax": "brax", "probe": "probes"}
HOST_SUITES = {"atari": "atari", "gym": "gymnasium"}  # their environments step on the host
EXTRAS = {"gymnax": "gymnax", "brax": "brax", "atari": "atari", "gym": "gymnasium"}  # suite -> extra to install


def is_host(env_id: object) -> bool:
    """Whether the environment steps on the host (NumPy in, NumPy out) rather than inside XLA."""
    return isinstance(env_id, str) and env_id.startswith(tuple(f"{suite}/" for suite in HOST_SUITES))


def make(env: str | Any, **options: Any) -> DeviceEnv:
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
        made: DeviceEnv = module.make(name, **options)
    except ImportError as error:
        raise ValueError(_missing(suite, error)) from error
    return made


def make_host(env: str | Callable[[], Any], **options: Any) -> HostEnv:
    """The host environment of this id, or of a callable that makes one Gymnasium environment."""
    suite, _, name = ("gym", "", "") if callable(env) else env.partition("/")
    module = _module(suite)
    try:
        if callable(env):
            made: HostEnv = module.wrap(env, **options)
        elif suite == "atari" and name not in module.names() and name not in module.EXCLUDED:
            raise ValueError(_unknown(env, [_join(suite, known) for known in module.names()]))
        else:
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
