"""Settings as frozen dataclasses. Each field has a help text, bounds, and a flag for whether it can be swept.

Each algorithm and each criterion declares its own `Settings` class with `setting(...)`. The flat field names are used
in Python (`train(..., num_envs=64)`), on the command line (`--num-envs 64`) and in `config.json`.
"""

from __future__ import annotations

import dataclasses
import math
import os
import typing
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import jax
import numpy as np

FLOAT32_MAX = 3.4e38  # larger numbers are infinite in float32
INT32_MAX = 2**31 - 1  # compiled programs count samples in int32
EXACT_INTEGER = 2**24  # float32 represents every integer up to here

T = TypeVar("T")


class ConfigError(ValueError):
    """An invalid setting. The message is one line: `name: expected X, got Y`."""


def path_of(name: str, value: object) -> Path:
    """A path, or an error that names the argument."""
    if not isinstance(value, str | os.PathLike):
        raise ConfigError(f"{name}: expected a path, got {shown(value)}")
    return Path(value)


def is_text(path: Path) -> bool:
    """Whether an absolute path is UTF-8, which the C++ libraries that read and write runs need."""
    try:
        str(path.absolute()).encode()
    except UnicodeEncodeError:
        return False
    return True


def printable(text: str) -> str:
    """One line for a terminal: control characters, which could steer it, as Python writes them."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def shown(value: object) -> str:
    """A value formatted for an error message: one line of at most 80 characters."""
    try:
        text = f"{value:.12g}" if isinstance(value, float) else repr(value)
    except (ValueError, RecursionError):  # an integer of thousands of digits, or a deeply nested list
        return f"{type(value).__name__} too large to show"
    return short(" ".join(text.split()))


def short(text: str) -> str:
    """At most 80 characters of a text."""
    return text if len(text) <= 80 else f"{text[:77]}..."


def setting(
    default: Any,
    help_text: str,
    *,
    traced: bool = False,
    low: float | None = None,
    high: float = math.inf,
    interval: str = "",
) -> Any:
    """A dataclass field with metadata.

    traced     whether members of one population may have different values
    low, high  bounds of a number; `high=inf` allows infinity
    interval   how error messages describe the bounds, if not as "of at least ... and at most ..."
    """
    metadata = {"help": help_text, "traced": traced, "low": low, "high": high, "interval": interval}
    if isinstance(default, dict):
        return dataclasses.field(default_factory=lambda: dict(default), metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


class Settings:
    """Base class of settings. Subclasses are decorated with `@pytree` and `@dataclass(frozen=True)`."""

    divides_batch: typing.ClassVar[bool] = False  # whether `minibatch_size` must divide the batch size

    def check(self, batch_size: int) -> None:
        """Raise `ConfigError` for an invalid combination of values; called once per member."""

    def environment_shards(self, num_envs: int) -> int:
        """The environments can be split into any number of shards that divides the returned number."""
        return num_envs

    def periodic(self: T, period: int) -> T:
        """The criterion's settings if the target is updated every `period` rounds; only metrics depend on them."""
        return self


def pytree(cls: type[T]) -> type[T]:
    """Register a dataclass of settings as a pytree: traced fields are leaves, the others are static."""
    made: Any = cls
    traced = [f.name for f in dataclasses.fields(made) if f.metadata["traced"]]
    static = [f.name for f in dataclasses.fields(made) if not f.metadata["traced"]]

    def flatten(tree: Any) -> tuple[list[tuple[Any, Any]], tuple[Any, ...]]:
        leaves = [(jax.tree_util.GetAttrKey(name), getattr(tree, name)) for name in traced]
        return leaves, tuple(getattr(tree, name) for name in static)

    def unflatten(constants: tuple[Any, ...], leaves: Iterable[Any]) -> Any:
        tree = object.__new__(made)  # no validation, since JAX also uses axis numbers and shapes as leaves
        for name, value in zip((*traced, *static), (*leaves, *constants), strict=True):
            object.__setattr__(tree, name, value)
        return tree

    jax.tree_util.register_pytree_with_keys(made, flatten, unflatten)
    return cls


@dataclass(frozen=True)
class FieldInfo:
    """A field, described for the command line and error messages. `section` is the attribute of `TrainConfig`."""

    name: str
    section: str
    annotation: Any
    default: Any
    help: str
    traced: bool
    low: float | None  # None: not a bounded number
    high: float
    interval: str

    @property
    def names(self) -> tuple[str, ...]:
        """The values, if they have names."""
        return typing.get_args(self.annotation) if typing.get_origin(self.annotation) is typing.Literal else ()

    def number(self, value: Any) -> Any:
        """A value as compiled programs have it: a named one is its place among `names`."""
        return self.names.index(value) if self.names else value

    @property
    def number_type(self) -> type:
        """The type of `number`: bool, or float32 for all else, which holds every whole number that is allowed."""
        return bool if self.annotation is bool else np.float32


def field_infos(section: str, cls: type) -> Iterator[FieldInfo]:
    """The fields of a settings class."""
    hints = typing.get_type_hints(cls)
    for f in dataclasses.fields(cls):
        default = f.default if f.default_factory is dataclasses.MISSING else f.default_factory()
        yield FieldInfo(f.name, section, hints[f.name], default, **{n: f.metadata[n] for n in _METADATA})


_METADATA = ("help", "traced", "low", "high", "interval")


def check_number(info: FieldInfo, got: object) -> None:
    """Raise `ConfigError` unless `got` is a number of the field's type within its bounds."""
    assert info.low is not None
    kinds = (int,) if info.annotation is int else (int, float)
    fits = isinstance(got, kinds) and not isinstance(got, bool) and (abs(got) <= FLOAT32_MAX or got == math.inf)
    if not fits or not info.low <= typing.cast(float, got) <= info.high:
        kind = "whole number" if info.annotation is int else "number"
        top = f"{FLOAT32_MAX:g}, or inf" if info.high == math.inf else f"{info.high:.16g}"
        bounds = info.interval or f"of at least {info.low:.16g} and at most {top}"
        raise ConfigError(f"{info.name}: expected a {kind} {bounds}, got {shown(got)}")
