"""The environment backends, and lookups by id that import none of their packages.

An id is `prefix/name`, such as `gymnax/CartPole-v1`; a backend with a single environment has its prefix as the id, such
as `four-rooms`. To add a backend, write one file beside this one that exports a `Backend` called `BACKEND`, and add one
line to `_MODULES`. Its optional packages, if any, become an extra in pyproject.toml.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nextpolicy.envs.base import DeviceEnv, HostEnv

# Modules of this package that export `BACKEND`, in the order in which `nextpolicy envs` lists their environments.
_MODULES = (
    "four_rooms",
    "gymnax",
    "brax",
    "playground",
    "craftax",
    "navix",
    "probes",
    "atari",
    "gymnasium",
)


@dataclass(frozen=True, kw_only=True)
class Backend:
    """A family of environments whose ids share a prefix.

    Its module imports optional packages inside functions only: reading a record must not need them.
    """

    prefix: str
    make: Callable[..., DeviceEnv | HostEnv]
    """Called as `make(name, **options)`; `name` is empty if `names` is None."""
    names: Callable[[], Iterable[str]] | None = None
    """Lists all names, also those in `excluded`; None if there is one environment, whose id is the prefix."""
    excluded: Mapping[str, str] = field(default_factory=dict)
    """Names that cannot be used, with the reason as a clause: "downloads a data set"."""
    runs_on_host: bool = False
    """Whether `make` returns a `HostEnv` (NumPy in, NumPy out) rather than a `DeviceEnv` (inside XLA)."""
    imports_modules: bool = False
    """Whether a name may be `module:Name`, which imports `module`; `names` does not list these."""
    checks_options: bool = False
    """Whether `make` finds every wrong option; otherwise a device environment is traced once to find the rest."""
    extra: str | None = None
    """The extra in pyproject.toml that installs its packages."""
    packages: tuple[str, ...] = ()
    """Distributions whose versions can change results: recorded with a run, and part of a cached program's name."""
    traced_modules: tuple[str, ...] = ()
    """Importable packages whose functions JAX traces: their code is part of a cached program's name."""
    presets: Mapping[str, str] = field(default_factory=dict)
    """Presets of its environments: pattern of names -> preset. The first match wins; without one it is `default`."""

    @property
    def form(self) -> str:
        """The form of its ids: `gymnax/...` or `four-rooms`."""
        return self.prefix if self.names is None else f"{self.prefix}/..."

    @property
    def code(self) -> tuple[str, ...]:
        """Modules and packages whose functions JAX may trace, with the one that defines `make`."""
        return (self.make.__module__, *self.traced_modules)

    def ids(self) -> list[str]:
        """All ids except the excluded ones. Raises ImportError if its packages are not installed."""
        if self.names is None:
            return [self.prefix]
        return [f"{self.prefix}/{name}" for name in self.names() if name not in self.excluded]

    def preset(self, name: str) -> str:
        """The preset of the environment `name`."""
        return next((preset for pattern, preset in self.presets.items() if fnmatchcase(name, pattern)), "default")


@cache
def _table() -> dict[str, Backend]:
    records = [import_module(f"nextpolicy.envs.{module}").BACKEND for module in _MODULES]
    return {record.prefix: record for record in records}


def backends() -> Mapping[str, Backend]:
    """All backends by prefix."""
    return _table()


def register(backend: Backend) -> None:
    """Add a backend for this process. Resuming its runs elsewhere needs the same call."""
    if backend.prefix in _table():
        raise ValueError(f"prefix: expected one that no backend has, got {backend.prefix!r}; choose another")
    _table()[backend.prefix] = backend


def packages() -> list[str]:
    """The packages of all backends, each once."""
    return list(dict.fromkeys(package for backend in backends().values() for package in backend.packages))


def name_of(env_id: str) -> str:
    """The name behind the prefix; empty if there is none."""
    return env_id.partition("/")[2]


def find(env_id: str) -> Backend | None:
    """The backend that an id belongs to by its form. Whether the environment exists is not checked."""
    backend = backends().get(env_id.partition("/")[0])
    if backend is None:
        return None
    fits = env_id == backend.prefix if backend.names is None else name_of(env_id) != ""
    return backend if fits else None


def is_host(env_id: str) -> bool:
    """Whether the environment steps on the host rather than inside XLA."""
    backend = find(env_id)
    return backend is not None and backend.runs_on_host


def module_of(env_id: str) -> str | None:
    """The Python module that making this environment imports: `my_envs` for `gym/my_envs:Maze-v0`."""
    backend = find(env_id)
    module, colon, _ = name_of(env_id).rpartition(":")
    return module if backend is not None and backend.imports_modules and colon else None


def preset_of(env_id: str) -> str:
    """The preset of an environment; `default` if there is none for it."""
    backend = find(env_id)
    return "default" if backend is None else backend.preset(name_of(env_id))


_ATARI = re.compile(r"/(?:ALE/(\w+)-v\d|(\w+)NoFrameskip-v\d)$")  # ids of ale_py


def unknown(env_id: str, known: Iterable[str]) -> str:
    """An error message with the nearest known ids; the search ignores case and a wrong or missing prefix."""
    by_spelling: dict[str, list[str]] = {}
    for each in known:
        for spelling in filter(None, (each, name_of(each))):
            by_spelling.setdefault(spelling.lower(), []).append(each)
    wanted = dict.fromkeys([env_id.lower(), name_of(env_id).lower() or env_id.lower()])
    near = [match for word in wanted for match in difflib.get_close_matches(word, by_spelling, n=3, cutoff=0.6)]
    nearest = list(dict.fromkeys(each for match in near for each in by_spelling[match]))[:3]
    hint = f"nearest: {', '.join(nearest)}" if nearest else "`nextpolicy envs` lists them"
    if atari := _ATARI.search(env_id):
        hint = f"Atari games have ids such as atari/{atari[1] or atari[2]}"
    return f"environment: expected a known id, got {env_id!r}; {hint}"
