"""The work to measure: environments, numbers of members and fields, and the parsing of their command-line form."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from nextpolicy.config import FIELDS, MAX_MEMBERS, ConfigError, nearest, shown


@dataclass(frozen=True)
class Work:
    """The work of all contenders: an environment, a number of members, and the fields that differ from its preset."""

    env: str
    members: int
    fields: dict[str, Any]

    @property
    def title(self) -> str:
        return " ".join([self.env, *(f"{k}={v}" for k, v in self.fields.items())])


def parse_works(texts: Sequence[str], members: str, num_envs: str, pairs: Sequence[str]) -> list[Work]:
    """Parse ENV[:MEMBERS[:NAME=VALUE...]], with one work for each number of members and of environments."""
    shared, works = _fields(pairs), []
    for text in texts:
        env, *rest = text.split(":")
        own = _fields(rest[1:])
        for count in _counts("members", rest[0] if rest else members):
            for envs in _counts("num-envs", num_envs) if num_envs else [None]:
                fields = {**shared, **own, **({} if envs is None else {"num_envs": envs})}
                works.append(Work(env, count, fields))
    return works


def _counts(name: str, text: str) -> list[int]:
    try:
        counts = [int(part) for part in text.split(",")]
    except ValueError:
        counts = [0]
    if min(counts) < 1 or (name == "members" and max(counts) > MAX_MEMBERS):
        most = f" and at most {MAX_MEMBERS}" if name == "members" else ""
        raise ConfigError(f"{name}: expected whole numbers of at least 1{most}, separated by commas, got {shown(text)}")
    return counts


def _fields(pairs: Sequence[str]) -> dict[str, Any]:
    for pair in pairs:
        if "=" not in pair or pair.split("=")[0] not in FIELDS:
            hint = "" if pair in FIELDS else nearest(pair.split("=")[0], FIELDS)
            raise ConfigError(f"set: expected NAME=VALUE with a field of the configuration, got {shown(pair)}{hint}")
    fields = dict(pair.split("=", 1) for pair in pairs)
    for name in fields:
        if sum(pair.split("=")[0] == name for pair in pairs) > 1:
            raise ConfigError(f"set: expected {name} once, got it more than once")
    for name, instead in {"algo": "--contenders", "seeds": "--members", "env": "the work"}.items():
        if name in fields:
            raise ConfigError(f"set: expected a field that contenders share, got {name}; use {instead} instead")
    return fields
