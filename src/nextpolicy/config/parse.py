"""Conversion of Python values, JSON and command-line text to the types of fields."""

from __future__ import annotations

import itertools
import math
import operator
import typing
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, Literal

import numpy as np

from nextpolicy.algos import VARIANTS
from nextpolicy.config.fields import FIELDS, known_field, nearest
from nextpolicy.criteria import CRITERIA
from nextpolicy.settings import ConfigError, FieldInfo, shown

MAX_MEMBERS = 10_000  # per population; checked first, so that a large number of seeds cannot fill the memory
MAX_SEED = 2**32 - 1


def convert(info: FieldInfo, raw: Any) -> Any:
    """`raw`, from Python, JSON or the command line, converted to the field's type."""
    try:
        return _convert(info.annotation, raw, info)
    except ConfigError:
        raise
    except (ValueError, TypeError, OverflowError):
        raise ConfigError(f"{info.name}: expected {describe(info)}, got {shown(raw)}") from None


def whole(name: str, got: Any, low: int, high: int) -> int:
    """`got` as a whole number from `low` to `high`. Raises `ConfigError` otherwise."""
    try:
        number = _whole(got)
    except (ValueError, TypeError, OverflowError):
        number = low - 1
    if not low <= number <= high:
        raise ConfigError(f"{name}: expected a whole number of at least {low} and at most {high}, got {shown(got)}")
    return number


def choices(info: FieldInfo) -> tuple[str, ...]:
    """The values that a field accepts, if they can be listed."""
    named = {"algo": tuple(VARIANTS), "criterion": tuple(CRITERIA)}
    if info.name in named:
        return named[info.name]
    if info.annotation is bool:
        return ("true", "false")
    return info.names


def written(name: str, value: Any) -> str:
    """The value of a field as it is typed on the command line; empty for no text or no pairs."""
    if name == "seeds" and value == tuple(range(len(value))):
        return str(len(value))  # a number of seeds, which counts from the seed 0
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        return " ".join(f"{key}={each}" for key, each in value.items())
    return f"{value:.12g}" if isinstance(value, float) else str(value)


def describe(info: FieldInfo) -> str:
    """A phrase for the values that a field accepts."""
    if info.name == "seeds":
        return "a number of seeds or several seeds"
    if info.annotation is bool:
        return "true or false"
    if known := choices(info):
        return f"one {'or several ' * (info.name == 'algo')}of {', '.join(known)}"
    if typing.get_origin(info.annotation) is tuple:
        return "whole numbers separated by commas"
    if typing.get_origin(info.annotation) is dict:
        return "name=value pairs separated by spaces"
    return {int: "a whole number", float: "a number", str: "text"}[info.annotation]


def _convert(annotation: Any, raw: Any, info: FieldInfo) -> Any:
    origin = typing.get_origin(annotation)
    if info.name == "seeds":
        return _seeds(raw)
    if info.name == "sweep":
        return _sweep(raw)
    if origin is Literal:
        choices = list(typing.get_args(annotation))
        if raw not in choices:
            hint = nearest(raw, choices) if isinstance(raw, str) else ""
            raise ConfigError(f"{info.name}: expected {describe(info)}, got {shown(raw)}{hint}")
        return raw
    if origin is tuple:
        inner = typing.get_args(annotation)[0]
        items = raw.split(",") if isinstance(raw, str) else raw if isinstance(raw, (list, tuple)) else [raw]
        return tuple(_convert(inner, item, info) for item in items)
    if origin is dict:
        return {name: _plain(value) for name, value in _pairs(raw).items()}
    if annotation is bool:
        return _boolean(raw)
    if annotation is int:
        return _whole(raw)
    if annotation is float:
        number = math.nan if isinstance(raw, (bool, np.bool_)) else float(raw)
        if isinstance(raw, (bool, np.bool_)) or (math.isinf(number) and "inf" not in str(raw).lower()):
            raise ValueError  # Python parses 1e400 as infinity
        return number
    if not isinstance(raw, str):
        raise TypeError
    return raw


def _whole(raw: Any) -> int:
    """A whole number of any size, exactly; `1e6` and 8.0 are accepted."""
    if isinstance(raw, (bool, np.bool_)):
        raise TypeError
    try:
        return int(raw) if isinstance(raw, str) else operator.index(raw)
    except (ValueError, TypeError):
        number = float(raw)
    if not number.is_integer():
        raise ValueError
    return int(number)


def _plain(value: Any, depth: int = 0) -> Any:
    """An environment option, which must be representable in JSON, since the run folder records it."""
    if isinstance(value, Mapping) and depth < 8:
        return {str(name): _plain(inner, depth + 1) for name, inner in value.items()}
    if isinstance(value, (list, tuple)) and depth < 8:
        items = [_plain(inner, depth + 1) for inner in value]
        return items if isinstance(value, list) else tuple(items)
    number = isinstance(value, (int, float)) and -(2**63) <= value < 2**63  # False for NaN and infinities
    if not number and not isinstance(value, (str, bool, type(None))):
        raise ConfigError(
            f"env_options: expected text, finite numbers, true, false or lists of them, got {shown(value)}"
        )
    return value


def _boolean(raw: Any) -> bool:
    table = {"true": True, "false": False, "yes": True, "no": False, "1": True, "0": False}
    text = str(raw).lower()
    if text not in table:
        raise ValueError
    return table[text]


def _seeds(raw: Any) -> tuple[int, ...]:
    if isinstance(raw, str) and "," in raw:
        raw = raw.split(",")
    if not isinstance(raw, (str, bytes, Mapping)) and isinstance(raw, Iterable):
        return tuple(_whole(seed) for seed in itertools.islice(raw, MAX_MEMBERS + 1))
    number = _whole(raw)
    if not 1 <= number <= MAX_MEMBERS:
        raise ConfigError(
            f"seeds: expected a number of seeds of at least 1 and at most {MAX_MEMBERS}, or several seeds separated "
            f"by commas, got {shown(number)}"
        )
    return tuple(range(number))


def _pairs(raw: Any) -> dict[str, Any]:
    if isinstance(raw, Mapping):
        return {str(k): v for k, v in raw.items()}
    items = [raw] if isinstance(raw, str) else list(raw)
    if not all(isinstance(item, str) for item in items):
        raise TypeError
    pairs = [part.split("=", 1) for item in items for part in item.split()]
    for name, count in Counter(name for name, _ in pairs).items():
        if count > 1:
            raise ConfigError(f"{name}: expected it once, got it {count} times")
    return {name: _literal(value) for name, value in pairs}


def _literal(text: str) -> Any:
    """The number, boolean or None that the text of an option denotes, else the text."""
    for parse in (int, float):
        try:
            return parse(text)
        except ValueError:
            continue
    return {"true": True, "false": False, "none": None}.get(text.lower(), text)


def _sweep(raw: Any) -> dict[str, tuple[float, ...]]:
    swept: dict[str, tuple[float, ...]] = {}
    for name, values in _pairs(raw).items():
        info = known_field(name)
        if not info.traced:
            names = ", ".join(n for n, i in FIELDS.items() if i.traced)
            raise ConfigError(f"sweep: expected fields that members may differ in ({names}), got {name!r}")
        parts = (
            values.split(",") if isinstance(values, str) else values if isinstance(values, (list, tuple)) else [values]
        )
        swept[name] = tuple(convert(info, v) for v in parts)
        if not swept[name]:
            raise ConfigError(f"sweep: expected one or more values of {name}, got none")
    return swept
