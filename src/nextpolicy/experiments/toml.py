"""Suites from TOML files. Every field is validated on reading, before anything is trained."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nextpolicy.algos import VARIANTS
from nextpolicy.config import nearest, shown, whole
from nextpolicy.envs import registry
from nextpolicy.experiments.suite import DEFAULT_ALGOS, Suite, SuiteError, slug

KEYS = ("name", "about", "environments", "preset", "algo", "seeds", "evaluate_episodes", "fields", "environment")
MAX_EPISODES = 1_000_000

Table = Mapping[str, Any]


def from_toml(path: Path) -> Suite:
    """The suite in a TOML file; every error is one line that names the file."""
    try:
        with open(path, "rb") as file:
            raw = tomllib.load(file)
    except OSError as error:
        raise SuiteError(f"suite: {path} cannot be read ({error.strerror})") from None
    except (ValueError, RecursionError) as error:  # not TOML, not UTF-8, or an integer with too many digits
        raise SuiteError(f"suite: {path} is not TOML ({error})") from None
    try:
        return _suite(raw, path.stem)
    except ValueError as error:
        raise SuiteError(f"suite: {path}: {error}") from None


def _suite(raw: Table, stem: str) -> Suite:
    for key in raw:
        if key not in KEYS:
            raise SuiteError(f"unknown key {key!r}{nearest(key, KEYS) or '; expected one of ' + ', '.join(KEYS)}")
    environments = _environments(raw)
    fields, environment_fields = _fields(raw, environments)
    seeds = raw.get("seeds", 8)
    suite = Suite(
        name=_name(raw, stem),
        about=str(raw.get("about", "")),
        environments=environments,
        preset=_preset(raw),
        algo=_algo(raw),
        seeds=tuple(seeds) if isinstance(seeds, list) else seeds,
        evaluate_episodes=whole("evaluate_episodes", raw.get("evaluate_episodes", 32), 0, MAX_EPISODES),
        fields=fields,
        environment_fields=environment_fields,
    )
    for env in suite.environments:
        suite.config(env)  # raises for a wrong field or value
    return suite


def _environments(raw: Table) -> tuple[str, ...]:
    environments = raw.get("environments")
    if not isinstance(environments, list) or not environments or not all(isinstance(e, str) for e in environments):
        raise SuiteError(f"environments: expected a list of environment ids, got {shown(environments)}")
    if len(set(map(slug, environments))) != len(environments):
        raise SuiteError("environments: expected each environment once, got a duplicate")
    for env in environments:
        _check_prefix(env)
    return tuple(environments)


def _check_prefix(env: str) -> None:
    """Raise if the id belongs to no backend. The backend need not be installed."""
    if registry.find(env) is None or not slug(registry.name_of(env) or env):
        expected = ", ".join(backend.form for backend in registry.backends().values())
        raise SuiteError(f"environments: expected ids such as {expected}, got {env!r}")


def _name(raw: Table, stem: str) -> str:
    name = raw.get("name", stem)
    if not isinstance(name, str) or not re.fullmatch(r"[^/\\\0]*[^/\\\0.][^/\\\0]*", name):
        raise SuiteError(f"name: expected a valid folder name, got {shown(name)}")
    return name


def _preset(raw: Table) -> str | None:
    preset = raw.get("preset")
    if not isinstance(preset, str | None):
        raise SuiteError(f"preset: expected a name, got {shown(preset)}")
    return preset


def _algo(raw: Table) -> tuple[str, ...]:
    algo = raw.get("algo", list(DEFAULT_ALGOS))
    if not isinstance(algo, str | list) or not algo:
        raise SuiteError(f"algo: expected one or a list of {', '.join(VARIANTS)}, got {shown(algo)}")
    return (algo,) if isinstance(algo, str) else tuple(algo)


def _fields(raw: Table, environments: tuple[str, ...]) -> tuple[Table, Mapping[str, Table]]:
    """The fields shared by all environments, and the fields of single environments."""
    for table in ("fields", "environment"):
        if not isinstance(raw.get(table, {}), dict):
            raise SuiteError(f"{table}: expected a table, got {shown(raw[table])}")
    shared, own = raw.get("fields", {}), raw.get("environment", {})
    for env, fields in own.items():
        if env not in environments:
            raise SuiteError(f"environment.{env!r}: expected one of `environments`{nearest(env, environments)}")
        if not isinstance(fields, dict):
            raise SuiteError(f"environment.{env!r}: expected a table of fields, got {shown(fields)}")
    for fields in (shared, *own.values()):
        for key in ("algo", "seeds", "preset", "env"):
            if key in fields:
                raise SuiteError(f"{key}: expected as a key of the suite, got it in a table of fields")
    return shared, own
