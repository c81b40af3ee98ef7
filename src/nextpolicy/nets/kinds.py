"""The networks that an algorithm asks for by its `networks_kind`."""

from __future__ import annotations

import flax.linen as nn

from nextpolicy.config import ConfigError, NetConfig, TrainConfig
from nextpolicy.envs.base import EnvSpec
from nextpolicy.nets import build, greedy, soft
from nextpolicy.types import Networks

_OURS = {"soft": soft.build, "greedy": greedy.build}  # kinds whose networks the caller cannot replace


def make(
    config: TrainConfig, spec: EnvSpec, actor: nn.Module | None = None, critic: nn.Module | None = None
) -> Networks:
    """The networks of the configuration's algorithm: ours, or the caller's Flax modules where it takes them."""
    kind, net = getattr(config.algorithm_class, "networks_kind", "actor-critic"), config.net
    if kind == "actor-critic":
        return build.build(spec, net, actor, critic)
    if kind not in _OURS:
        raise ConfigError(f"networks_kind: expected one of actor-critic, {', '.join(_OURS)}, got {kind!r}")
    _only_ours(config, net, actor, critic)
    return _OURS[kind](spec, net)


def _only_ours(config: TrainConfig, net: NetConfig, actor: nn.Module | None, critic: nn.Module | None) -> None:
    algo = config.run.algo[0]
    for name, module in (("actor", actor), ("critic", critic)):
        if module is not None:
            raise ConfigError(
                f"{name}: expected none for {algo}, got {type(module).__name__}; describe its networks by torso, "
                "hidden, activation and layer_norm"
            )
    if net.shared_torso:
        raise ConfigError(f"shared_torso: expected false for {algo}, got true")
