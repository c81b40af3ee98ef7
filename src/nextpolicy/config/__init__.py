"""The configuration of a run: schema, parsing, validation, presets."""

from nextpolicy.config.fields import FIELDS, known_field, nearest, owner
from nextpolicy.config.parse import MAX_MEMBERS, MAX_SEED, choices, convert, describe, whole, written
from nextpolicy.config.schema import Member, TrainConfig, siblings
from nextpolicy.config.sections import EnvConfig, NetConfig, RunConfig
from nextpolicy.settings import ConfigError, FieldInfo, shown

__all__ = [
    "FIELDS",
    "MAX_MEMBERS",
    "MAX_SEED",
    "ConfigError",
    "EnvConfig",
    "FieldInfo",
    "Member",
    "NetConfig",
    "RunConfig",
    "TrainConfig",
    "choices",
    "convert",
    "describe",
    "known_field",
    "nearest",
    "owner",
    "shown",
    "siblings",
    "whole",
    "written",
]
