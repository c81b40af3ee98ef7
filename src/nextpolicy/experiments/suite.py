"""A suite is data: environments x algorithms x seeds on a preset. Each environment is one population in one folder."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from nextpolicy.config import TrainConfig, presets

DEFAULT_ALGOS = ("ppo", "sv-static", "sv-dynamic")


class SuiteError(ValueError):
    """A suite cannot be run. The message is one line."""


@dataclass(frozen=True)
class Suite:
    """`fields` apply to every environment, `environment_fields[env]` to one of them; the latter take precedence."""

    name: str
    about: str
    environments: tuple[str, ...]
    preset: str | None = None
    algo: tuple[str, ...] = DEFAULT_ALGOS
    seeds: int | tuple[int, ...] = 8
    evaluate_episodes: int = 32
    fields: Mapping[str, Any] = field(default_factory=dict)
    environment_fields: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def config(self, env: str, seeds: int | None = None) -> TrainConfig:
        """The configuration of one environment's population."""
        fields = {**self.fields, **self.environment_fields.get(env, {})}
        own = {"algo": self.algo, "seeds": self.seeds if seeds is None else seeds}
        return presets.build(env, preset=self.preset, **own, **fields)


def slug(env: str) -> str:
    """The folder name of an environment: brax/ant -> brax-ant."""
    return re.sub(r"[^A-Za-z0-9._]+", "-", env).strip("-.")


def check_environments(suite: Suite) -> None:
    """Raise for an unknown environment id. Ids of backends that are not installed are not checked."""
    from nextpolicy.envs import build

    for env in suite.environments:
        with contextlib.suppress(ImportError):
            build.check_id(env)
