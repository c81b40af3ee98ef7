"""A caller's own networks and images, checked by shapes alone: each complaint is one line that says what to do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import nextpolicy
from nextpolicy.config import ConfigError, NetConfig
from nextpolicy.envs.base import Box, Discrete, EnvSpec
from nextpolicy.nets import build

FLAGS = EnvSpec("flags", (6,), Discrete(3))
ROBOT = EnvSpec("robot", (6,), Box((2, 2), -1.0, 1.0))


class Head(nn.Module):
    """A dense layer of `width`, and whatever is to be done to it."""

    width: int
    finish: Any = lambda x: x

    @nn.compact
    def __call__(self, obs: jax.Array) -> Any:
        return self.finish(nn.Dense(self.width)(obs))


class Flattening(nn.Module):
    """Takes all axes but the first for the observation: wrong on a rollout."""

    @nn.compact
    def __call__(self, obs: jax.Array) -> jax.Array:
        return nn.Dense(3)(obs.reshape((obs.shape[0], -1)))


class Nnx(nnx.Module):
    """Of Flax's other kind."""

    def __init__(self) -> None:
        self.dense = nnx.Linear(6, 3, rngs=nnx.Rngs(0))


DISCRETE = r"^actor: expected logits of shape \(2, 3\) for observations of shape \(2, 6\).*, got "
PAIR = r"^actor: expected a pair \(mean, log_std\) of shapes \(2, 4\) and \(4,\) or \(2, 4\) for .*, got "
VALUE = r"^critic: expected values of shape \(2,\) for observations of shape \(2, 6\).*, got "


@pytest.mark.parametrize(
    ("spec", "modules", "words"),
    [
        (FLAGS, {"actor": Head(4)}, DISCRETE + r"shape \(2, 4\); end it with nn.Dense\(3\)$"),
        (FLAGS, {"actor": Head(3, lambda x: (x, x))}, DISCRETE + r"2 outputs \(shape \(2, 3\), shape \(2, 3\)\); end"),
        (FLAGS, {"actor": Head(3, lambda x: {"logits": x})}, DISCRETE + "dict; end"),
        (
            FLAGS,
            {"actor": Flattening()},
            r"^actor: expected a module that reads .* \(3, 2, 6\).*, got .*Error: .*; keep all",
        ),
        (FLAGS, {"critic": Head(5)}, VALUE + r"shape \(2, 5\); end it with nn.Dense\(1\)\(x\)\[..., 0\]$"),
        (FLAGS, {"critic": Head(1, lambda x: x.sum())}, VALUE + r"shape \(\); end"),
        (FLAGS, {"critic": Head(1, lambda x: (x[..., 0],))}, VALUE + r"1 outputs \(shape \(2,\)\); end"),
        (
            ROBOT,
            {"actor": Head(4)},
            PAIR + r"shape \(2, 4\); return nn.Dense\(4\)\(x\) and a parameter of shape \(4,\)$",
        ),
        (ROBOT, {"actor": Head(2, lambda x: (x, x))}, PAIR + r"2 outputs \(shape \(2, 2\)"),
        (ROBOT, {"actor": Head(4, lambda x: (x, x[..., :3]))}, PAIR + r"2 outputs \(shape \(2, 4\), shape \(2, 3\)\)"),
        (ROBOT, {"actor": Head(4, lambda x: (x, x[None]))}, PAIR + "2 outputs"),
        (ROBOT, {"actor": Head(4, lambda x: (x, x, x))}, PAIR + "3 outputs"),
        (ROBOT, {"actor": Head(4, lambda x: (x, None))}, PAIR + "2 outputs"),
        (
            FLAGS,
            {"actor": Nnx()},
            r"^actor: expected a Flax Linen module.*, got Nnx of flax.nnx; pass a flax.linen.Module$",
        ),
        (
            FLAGS,
            {"critic": Nnx},
            r"^critic: expected a Flax Linen module.*, got Nnx of flax.nnx; pass a flax.linen.Module$",
        ),
    ],
)
def test_a_wrong_module_is_one_line(spec: EnvSpec, modules: dict[str, Any], words: str) -> None:
    from nextpolicy.nets import check

    with pytest.raises(ConfigError, match=words) as caught:
        check.own_modules(spec, modules.get("actor"), modules.get("critic"))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("spec", "actor"),
    [
        (FLAGS, Head(3)),
        (ROBOT, Head(4, lambda x: (x, x))),
        (ROBOT, Head(4, lambda x: (x, jnp.zeros(4)))),
        (ROBOT, Head(4, lambda x: [x, jnp.zeros(())])),
    ],
)
def test_a_right_one_passes(spec: EnvSpec, actor: Any) -> None:
    from nextpolicy.nets import check

    for critic in (Head(1), Head(1, lambda x: x[..., 0])):
        check.own_modules(spec, actor, critic)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"actor": Head(3)}, r"^actor: expected logits of shape \(2, 4\)"),
        ({"critic": Head(2)}, r"^critic: expected values of shape \(2,\)"),
        ({"actor": Nnx()}, r"^actor: expected a Flax Linen module.*, got Nnx"),
    ],
)
def test_it_is_noticed_before_there_is_a_folder(tmp_path: Path, given: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        nextpolicy.train("four-rooms", out=tmp_path / "run", quiet=True, **given)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("shape", [(3, 84, 84), (12, 84, 84), (1, 84, 84), (2, 210, 160), (3, 16, 16)])
@pytest.mark.parametrize("torso", ["auto", "nature", "impala"])
def test_an_image_with_channels_first_is_one_line(shape: tuple[int, ...], torso: str) -> None:
    spec = EnvSpec("gym/Image", shape, Discrete(2), np.uint8)
    words = (
        r"^gym/Image: expected images \[H, W, C\], got shape .*; set env_options channels_first=true .* transpose them"
    )
    with pytest.raises(ConfigError, match=words) as caught:
        build.build(spec, NetConfig(torso=torso))
    assert "\n" not in str(caught.value)
    build.build(spec, NetConfig(torso="mlp"))


@pytest.mark.parametrize(
    "shape", [(84, 84, 3), (84, 84, 4), (10, 10, 4), (4, 4, 16), (4, 10, 10), (3, 99, 2), (2, 99, 2)]
)
def test_what_is_no_such_image_is_taken_as_it_is(shape: tuple[int, ...]) -> None:
    build.build(EnvSpec("image", shape, Discrete(2), np.uint8), NetConfig())
