"""Validation of a configuration before the environment is created."""

from __future__ import annotations

import math
import typing
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from nextpolicy.config.fields import settings_classes
from nextpolicy.config.parse import MAX_MEMBERS, MAX_SEED, convert, describe
from nextpolicy.settings import INT32_MAX, ConfigError, check_number, shown

if TYPE_CHECKING:
    from nextpolicy.config.schema import TrainConfig

_MAX_ROUNDS = 99_999_999  # file names of metrics have eight digits


def validate(config: TrainConfig) -> None:
    """Raise `ConfigError` if the configuration is invalid."""
    _check_types(config)
    _check_settings(config)
    for name, info in config.fields().items():
        if info.low is not None:
            for got in (config.value(name), *config.run.sweep.get(name, ())):
                check_number(info, got)
    hidden, seeds = config.net.hidden, config.run.seeds
    if not 1 <= len(hidden) <= 100 or min(hidden) < 1 or max(hidden) > 100_000:
        raise ConfigError(f"hidden: expected 1 to 100 widths of at least 1 and at most 100000, got {shown(hidden)}")
    if not seeds or min(seeds) < 0 or max(seeds) > MAX_SEED:
        raise ConfigError(f"seeds: expected one or more whole numbers from 0 to 2^32 - 1, got {shown(seeds)}")
    _check_members(config)
    _check_rounds(config)
    for member in config.members():
        config.section_of("algorithm", member).check(config.batch_size)
        if member.pace == "dynamic":
            config.section_of("criterion", member).check(config.batch_size)


def _check_types(config: TrainConfig) -> None:
    """Check types, since `TrainConfig(...)` does not convert its arguments. Numbers are checked with their bounds."""
    for name, info in config.fields().items():
        if info.low is None:
            got, kind = config.value(name), typing.get_origin(info.annotation) or info.annotation
            convert(info, got)
            kinds: Any = {tuple: (tuple, list), dict: Mapping, bool: bool, int: int, float: (int, float)}.get(kind, str)
            if not isinstance(got, kinds):
                raise ConfigError(f"{name}: expected {describe(info)}, got {shown(got)}")


def _check_settings(config: TrainConfig) -> None:
    """Settings and swept fields must belong to the algorithm and the criterion that `run` names."""
    expected = settings_classes(config.run.algo, config.run.criterion)
    got = (type(config.algorithm), type(config.criterion))
    if got != expected:
        names = [" and ".join(cls.__name__ for cls in pair) for pair in (expected, got)]
        raise ConfigError(f"algorithm, criterion: expected {names[0]}, got {names[1]}")
    for name in config.run.sweep:
        if name not in config.fields():
            raise ConfigError(f"sweep: expected fields of this algorithm and criterion, got {name!r}")
        if not config.fields()[name].traced:
            raise ConfigError(f"sweep: expected fields that members may differ in, got {name!r}")


def _check_members(config: TrainConfig) -> None:
    """Check the number of members before creating them, and that no two are equal."""
    swept = math.prod(len(values) for values in config.run.sweep.values())
    count = len(config.run.seeds) * len(config.run.algo) * swept
    if not 1 <= count <= MAX_MEMBERS:
        raise ConfigError(
            f"seeds, algo, sweep: expected at least 1 and at most {MAX_MEMBERS} members, got {count}: "
            f"{len(config.run.seeds)} seeds x {len(config.run.algo)} algorithms x {swept} swept values"
        )
    members = config.members()
    if len(set(members)) != len(members):
        raise ConfigError("seeds, algo, sweep: expected each value once, got a repeated value")


def _check_rounds(config: TrainConfig) -> None:
    batch, steps = config.batch_size, config.run.total_env_steps
    if batch > INT32_MAX:
        raise ConfigError(f"num_envs, rollout_length: expected a batch of at most {INT32_MAX} samples, got {batch}")
    if config.num_rounds < 1:
        raise ConfigError(
            f"total_env_steps: expected at least one round of num_envs * rollout_length = {batch} steps, got {steps}"
        )
    if config.num_rounds > _MAX_ROUNDS:
        raise ConfigError(f"total_env_steps: expected at most {_MAX_ROUNDS} rounds of {batch} steps, got {steps}")
