"""The configuration of a run: frozen, validated dataclasses. Field names are unique across sections.

The flat field names are used in Python (`train(..., num_envs=64)`), on the command line (`--num-envs 64`) and in
`config.json`. The settings of algorithms and criteria are defined in `algos` and `criteria`.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from nextpolicy.algos import VARIANTS
from nextpolicy.algos.base import Algorithm, Pace
from nextpolicy.config.fields import active_fields, known_field, owner, settings_classes
from nextpolicy.config.parse import convert
from nextpolicy.config.sections import EnvConfig, NetConfig, RunConfig
from nextpolicy.config.validate import validate
from nextpolicy.criteria import CRITERIA
from nextpolicy.settings import ConfigError, FieldInfo, check_number


def siblings(algo: str) -> dict[str, Pace]:
    """All variants of the algorithm that `algo` is a variant of, and when each updates its target."""
    return VARIANTS[algo][0].variants


@dataclass(frozen=True)
class Member:
    """One member of a population: a seed, an algorithm, and its values of the swept fields."""

    seed: int
    algo: str
    overrides: tuple[tuple[str, float | str], ...] = ()

    @property
    def variant(self) -> str:
        """The algorithm and its swept values, e.g. `sv-dynamic[lam=0.9]`."""
        swept = ",".join(
            f"{name}={value if isinstance(value, str) else f'{value:g}'}" for name, value in self.overrides
        )
        return f"{self.algo}[{swept}]" if swept else self.algo

    @property
    def pace(self) -> Pace:
        """When this member's target is updated."""
        return VARIANTS[self.algo][1]


@dataclass(frozen=True)
class TrainConfig:
    """The configuration of a run. `algorithm` and `criterion` are the settings of those named in `run`."""

    environment: EnvConfig = dataclasses.field(default_factory=EnvConfig)
    net: NetConfig = dataclasses.field(default_factory=NetConfig)
    algorithm: Any = dataclasses.field(default_factory=lambda: VARIANTS["ppo"][0].settings())
    criterion: Any = dataclasses.field(default_factory=lambda: CRITERIA["stable-values"].settings())
    run: RunConfig = dataclasses.field(default_factory=RunConfig)

    def __post_init__(self) -> None:
        validate(self)

    @property
    def batch_size(self) -> int:
        return self.environment.num_envs * self.environment.rollout_length

    @property
    def num_rounds(self) -> int:
        return self.run.total_env_steps // self.batch_size

    @property
    def warm_up_rounds(self) -> int:
        if self.run.init_from:  # its statistics are taken over
            return 0
        return -(-self.environment.warmup_steps // self.environment.rollout_length)

    @property
    def algorithm_class(self) -> type[Algorithm]:
        """The algorithm that all members share."""
        return VARIANTS[self.run.algo[0]][0]

    def fields(self) -> dict[str, FieldInfo]:
        """The fields of this configuration, including those of its algorithm and criterion, by flat name."""
        return active_fields(type(self.algorithm), type(self.criterion))

    def members(self) -> list[Member]:
        """Algorithms x combinations of swept values x seeds, in that order."""
        combinations: list[tuple[tuple[str, float | str], ...]] = [()]
        for name, values in self.run.sweep.items():
            combinations = [(*c, (name, v)) for c in combinations for v in values]
        return [Member(s, a, c) for a in self.run.algo for c in combinations for s in self.run.seeds]

    def value(self, name: str, member: Member | None = None) -> Any:
        """The value of a field by flat name, for `member` if given."""
        if member is not None and name in dict(member.overrides):
            return dict(member.overrides)[name]
        return getattr(getattr(self, self.fields()[name].section), name)

    def section_of(self, section: str, member: Member) -> Any:
        """A section with the member's swept values."""
        fields = self.fields()
        own = {name: value for name, value in member.overrides if fields[name].section == section}
        return dataclasses.replace(getattr(self, section), **own)

    def period(self, member: Member) -> int:
        """Rounds between target updates; 0 if the criterion decides."""
        return {"plain": 1, "static": int(self.value("static_k", member)), "dynamic": 0}[member.pace]

    def replace(self, /, **changes: Any) -> TrainConfig:
        """A copy with fields changed by flat name. Values may be strings, as on the command line."""
        algo, criterion = (
            convert(known_field(name), changes[name]) if name in changes else self.value(name)
            for name in ("algo", "criterion")
        )
        config = self._with_settings_of(algo, criterion)
        fields = active_fields(type(config["algorithm"]), type(config["criterion"]))
        sections: dict[str, dict[str, Any]] = {}
        for name, raw in changes.items():
            value = convert(fields.get(name) or known_field(name), raw)
            if name not in fields:
                raise ConfigError(f"{name}: expected a field of this algorithm and criterion, got one of {owner(name)}")
            if fields[name].low is not None:
                check_number(fields[name], value)
            sections.setdefault(fields[name].section, {})[name] = value
        return TrainConfig(**{s: dataclasses.replace(config[s], **sections.get(s, {})) for s in config})

    def _with_settings_of(self, algo: tuple[str, ...], criterion: str) -> dict[str, Any]:
        """The sections; if the algorithm or criterion changes, its settings are reset to defaults."""
        algorithm_settings, criterion_settings = settings_classes(algo, criterion)
        sections = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        if type(self.algorithm) is not algorithm_settings:
            sections["algorithm"] = algorithm_settings()
        if type(self.criterion) is not criterion_settings:
            sections["criterion"] = criterion_settings()
        return sections

    def flat(self) -> dict[str, Any]:
        """All fields by flat name."""
        return {name: self.value(name) for name in self.fields()}

    def to_json(self) -> str:
        """Flat JSON. Infinities are strings, since JSON has no infinity."""

        def plain(value: Any) -> Any:
            if isinstance(value, dict):
                return {k: plain(v) for k, v in value.items()}
            if isinstance(value, (tuple, list)):
                return [plain(v) for v in value]
            return str(value) if isinstance(value, float) and not math.isfinite(value) else value

        return json.dumps(plain(self.flat()), indent=2, allow_nan=False)

    @classmethod
    def from_flat(cls, values: Mapping[str, Any]) -> TrainConfig:
        """The configuration with these `flat()` values. Also accepts the spellings of older versions."""
        renamed = {name: _RENAMED.get((name, str(value)), value) for name, value in values.items()}
        return cls().replace(**renamed)


_RENAMED = {("advantage_kind", "printed"): "paper", ("advantage_kind", "next"): "retrace"}
