"""An algorithm names the networks it needs."""

from __future__ import annotations

import pytest

from nextpolicy.algos.sac import SAC
from nextpolicy.config import ConfigError, presets
from nextpolicy.envs.base import Box, EnvSpec
from nextpolicy.nets import kinds


def test_an_unknown_kind_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    config, spec = presets.build("gymnax/Pendulum-v1", algo="sac"), EnvSpec("mine", (3,), Box((1,), -1.0, 1.0))
    assert kinds.make(config, spec).action_value is not None
    monkeypatch.setattr(SAC, "networks_kind", "sof")
    with pytest.raises(ConfigError, match="networks_kind: expected one of actor-critic, soft, greedy, got 'sof'"):
        kinds.make(config, spec)
