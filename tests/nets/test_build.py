"""Torsos and their assembly into the functions training calls."""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nextpolicy.config import NetConfig
from nextpolicy.core import running_stats
from nextpolicy.envs.base import Box, Discrete, EnvSpec
from nextpolicy.nets import build, torsos
from nextpolicy.nets.heads import Categorical, DiagonalGaussian
from nextpolicy.nets.squashed import SquashedGaussian, action_range
from nextpolicy.tabular import four_rooms_mdp
from nextpolicy.types import PolicySnapshot

pytestmark = pytest.mark.quick_compilation

VECTOR = EnvSpec("vector", (6,), Discrete(3))
SMALL = EnvSpec("small", (10, 10, 4), Discrete(3), np.bool_)
LARGE = EnvSpec("large", (40, 40, 4), Discrete(3), np.uint8)
ROBOT = EnvSpec("robot", (6,), Box((2,), -1.0, 1.0))


def observations(spec: EnvSpec, lead: tuple[int, ...], seed: int = 0) -> jax.Array:
    draw = np.random.default_rng(seed)
    kind = np.dtype(spec.obs_dtype)
    if kind == np.uint8:
        return jnp.asarray(draw.integers(256, size=(*lead, *spec.obs_shape), dtype=np.uint8))
    values = draw.normal(size=(*lead, *spec.obs_shape)).astype(np.float32)
    return jnp.asarray(values > 0 if kind == np.bool_ else values)


def test_patches_and_a_matmul_are_a_convolution() -> None:
    x = jax.random.normal(jax.random.key(0), (2, 5, 13, 11, 3))
    kernel = jax.random.normal(jax.random.key(1), (3, 3, 3, 7))  # row, column, channel in, channel out
    got = torsos.patches_3x3(x) @ kernel.reshape(27, 7)
    flat = x.reshape(10, 13, 11, 3)
    expected = jax.lax.conv_general_dilated(flat, kernel, (1, 1), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC"))
    assert got.shape == (2, 5, 11, 9, 7)
    np.testing.assert_allclose(got.reshape(expected.shape), expected, rtol=1e-4, atol=1e-4)


def test_shared_patches_change_neither_features_nor_gradients() -> None:
    """On the table of all images a patch that many share is computed once; images one by one are the reference."""
    table = four_rooms_mdp.observations()
    torso = torsos.SmallCNN((8,))
    params = torso.init(jax.random.key(0), jnp.asarray(table, jnp.float32))
    weight = jax.random.normal(jax.random.key(1), (len(table), 8))

    def score(params: Any, images: Any) -> jax.Array:
        return jnp.sum(weight * torso.apply(params, images))

    got = jax.jit(jax.value_and_grad(lambda p: score(p, table.astype(np.float32))))(params)
    expected = jax.jit(jax.value_and_grad(score))(params, jnp.asarray(table, jnp.float32))
    for x, y in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-3, atol=1e-3)


CASES = [
    (VECTOR, {"torso": "mlp"}),
    (VECTOR, {"hidden": (16, 8), "layer_norm": True, "activation": "silu"}),
    (VECTOR, {"shared_torso": True}),
    (SMALL, {"torso": "auto", "hidden": (16,), "activation": "relu"}),
    (SMALL, {"torso": "mlp", "hidden": (16,)}),
    (LARGE, {"torso": "nature", "hidden": (16,)}),
    (LARGE, {"torso": "impala", "hidden": (16,), "layer_norm": True}),
    (ROBOT, {"log_std_init": 0.5}),
]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(("spec", "fields"), CASES)
def test_every_torso_builds(spec: EnvSpec, fields: dict[str, Any], dtype: str) -> None:
    networks = build.build(spec, NetConfig(**fields, compute_dtype=dtype))
    params = jax.jit(networks.init)(jax.random.key(0))
    assert {x.dtype for x in jax.tree.leaves(params)} == {jnp.dtype("float32")}
    obs = observations(spec, (2, 3))

    @jax.jit
    def both(obs: jax.Array) -> Any:
        return networks.policy(PolicySnapshot(params["actor"], None))(obs), networks.value(params, None)(obs)

    dist, value = both(obs)
    assert value.shape == (2, 3)
    assert value.dtype == jnp.float32
    width = 3 if isinstance(spec.action, Discrete) else 2
    assert isinstance(dist, Categorical if isinstance(spec.action, Discrete) else DiagonalGaussian)
    assert dist[0].shape == (2, 3, width)
    assert dist[0].dtype == jnp.float32
    # Leading axes are only that: a batch is its rows.
    row = both(obs[1, 2][None])
    tolerance = 1e-5 if dtype == "float32" else 3e-2
    np.testing.assert_allclose(value[1, 2], row[1][0], rtol=tolerance, atol=tolerance)
    assert float(jnp.std(value)) > 0, "the value does not read the observation"


def test_a_squashed_policy_starts_as_configured() -> None:
    spread = {}
    for dtype in ("float32", "bfloat16"):
        networks = build.build(ROBOT, NetConfig(policy="squashed", log_std_init=-0.37, compute_dtype=dtype))
        params = networks.init(jax.random.key(0))
        dist = networks.policy(PolicySnapshot(params["actor"], None))(observations(ROBOT, (8,)))
        assert isinstance(dist, SquashedGaussian)
        assert dist.mean.dtype == dist.log_std.dtype == jnp.float32
        np.testing.assert_allclose(dist.mean, 0.0, atol=0.1)
        np.testing.assert_allclose(dist.log_std, -0.37, atol=0.2)
        assert float(jnp.median(dist.log_std)) == pytest.approx(-0.37, abs=0.02)
        spread[dtype] = dist.mean
    assert 0 < float(jnp.abs(spread["float32"] - spread["bfloat16"]).max()) < 0.01


def test_an_actor_of_the_caller_may_compute_in_bfloat16() -> None:
    class Half(nn.Module):
        @nn.compact
        def __call__(self, obs: jax.Array) -> Any:
            mean = nn.Dense(2, dtype=jnp.bfloat16)(obs)
            return mean, 0.5 * mean

    for policy in ("gaussian", "squashed"):
        networks = build.build(ROBOT, NetConfig(policy=policy), Half())
        params = networks.init(jax.random.key(0))
        dist: Any = networks.policy(PolicySnapshot(params["actor"], None))(observations(ROBOT, (4,)))
        assert dist.mean.dtype == dist.log_std.dtype == jnp.float32


def test_bfloat16_computes_in_bfloat16() -> None:
    values = {}
    for dtype in ("float32", "bfloat16"):
        networks = build.build(VECTOR, NetConfig(compute_dtype=dtype))
        params = jax.jit(networks.init)(jax.random.key(0))
        values[dtype] = networks.value(params, None)(observations(VECTOR, (8,)))
    difference = np.abs(values["float32"] - values["bfloat16"])
    assert 0 < difference.max() < 0.1


def test_auto_goes_by_the_observations_shape() -> None:
    kinds = {spec.id: build.torso_kind(spec, NetConfig()) for spec in (VECTOR, SMALL, LARGE)}
    assert kinds == {"vector": "mlp", "small": "small-cnn", "large": "nature"}
    with pytest.raises(ValueError, match=r"torso: expected images.*, got 'nature' for observations of shape \(6,\)"):
        build.torso_kind(VECTOR, NetConfig(torso="nature"))


@pytest.mark.parametrize(("torso", "least"), [("small-cnn", 3), ("nature", 36), ("impala", 1)])
def test_an_image_too_small_for_its_torso_is_refused_and_the_smallest_is_not(torso: str, least: int) -> None:
    def spec(height: int, width: int) -> EnvSpec:
        return EnvSpec("image", (height, width, 2), Discrete(2), np.uint8)

    config = NetConfig(torso=torso, hidden=(4,))
    params = jax.eval_shape(build.build(spec(least, least), config).init, jax.random.key(0))
    assert all(leaf.size > 0 for leaf in jax.tree.leaves(params))
    for small in (spec(least - 1, 99), spec(99, least - 1)):
        with pytest.raises(ValueError, match=rf"torso: expected images .* at least {least} x {least}, got '{torso}'"):
            build.build(small, config)
    assert build.torso_kind(spec(2, 99), NetConfig()) == "mlp"
    assert build.torso_kind(spec(3, 99), NetConfig()) == "small-cnn"


def test_actor_and_critic_share_nothing_unless_asked() -> None:
    apart, shared = (build.build(VECTOR, NetConfig(shared_torso=s)).init(jax.random.key(0)) for s in (False, True))
    size = lambda tree: sum(x.size for x in jax.tree.leaves(tree))  # noqa: E731
    assert size(shared["critic"]) == 64 + 1
    assert size(apart["critic"]) == size(apart["actor"]) - 3 * 65 + 65


def test_pixels_are_scaled_and_flags_are_not() -> None:
    pixels, flags = (EnvSpec("x", (2,), Discrete(2), kind) for kind in (np.uint8, np.bool_))
    seen = lambda spec, obs: np.asarray(build.reader(spec)(jnp.asarray(obs), None))  # noqa: E731
    np.testing.assert_allclose(seen(pixels, np.array([0, 255], np.uint8)), [0.0, 1.0])
    np.testing.assert_array_equal(seen(flags, np.array([False, True])), [0.0, 1.0])


def test_statistics_are_part_of_the_policy() -> None:
    networks = build.build(VECTOR, NetConfig())
    params = networks.init(jax.random.key(0))
    obs = 5.0 + 3.0 * observations(VECTOR, (64,))
    stats = running_stats.update(running_stats.init((6,)), obs)
    by_hand = (obs - obs.mean(0, keepdims=True)) / obs.std(0, keepdims=True)
    plain = networks.policy(PolicySnapshot(params["actor"], None))(by_hand)
    normalised = networks.policy(PolicySnapshot(params["actor"], stats))(obs)
    np.testing.assert_allclose(normalised.logits, plain.logits, rtol=1e-4, atol=1e-5)


def test_a_table_is_looked_up() -> None:
    table = np.random.default_rng(0).normal(size=(9, 6)).astype(np.float32)
    tabulated = EnvSpec("table", (6,), Discrete(3), obs_table=table)
    networks, plain = (build.build(s, NetConfig()) for s in (tabulated, VECTOR))
    params = networks.init(jax.random.key(0))
    index = jnp.asarray([[3, 1], [8, 0]])
    got = networks.value(params, None)(index)
    np.testing.assert_allclose(got, plain.value(params, None)(jnp.asarray(table)[index]), rtol=1e-5)


class Actor(nn.Module):
    continuous: bool

    @nn.compact
    def __call__(self, obs: jax.Array) -> Any:
        out = nn.Dense(2 if self.continuous else 3)(obs)
        return (out, self.param("spread", nn.initializers.constant(-1.0), (2,))) if self.continuous else 10.0 + out


class Critic(nn.Module):
    keep_axis: bool

    @nn.compact
    def __call__(self, obs: jax.Array) -> jax.Array:
        out = nn.Dense(1)(obs)
        return out if self.keep_axis else out[..., 0]


@pytest.mark.parametrize("keep_axis", [True, False])
@pytest.mark.parametrize("spec", [VECTOR, ROBOT])
def test_a_callers_own_modules(spec: EnvSpec, keep_axis: bool) -> None:
    networks = build.build(spec, NetConfig(), Actor(spec is ROBOT), Critic(keep_axis))
    params = networks.init(jax.random.key(0))
    obs = observations(spec, (4,))
    dist = networks.policy(PolicySnapshot(params["actor"], None))(obs)
    if spec is ROBOT:
        assert isinstance(dist, DiagonalGaussian)
        np.testing.assert_array_equal(dist.log_std, -1.0)
        squashed = build.build(spec, NetConfig(policy="squashed"), Actor(True)).policy(
            PolicySnapshot(params["actor"], None)
        )(obs)
        assert isinstance(squashed, SquashedGaussian)
        np.testing.assert_allclose(squashed.mean, 5 * np.tanh(dist.mean / 5), rtol=1e-6)
        np.testing.assert_array_equal(squashed.log_std, -1.0)
        assert (squashed.low, squashed.high) == action_range(spec)
        narrow = jax.tree.map(lambda x: x - 12.0, params["actor"])
        for policy, least in (("squashed", -5.0), ("gaussian", -13.0)):
            own = build.build(spec, NetConfig(policy=policy), Actor(True)).policy(PolicySnapshot(narrow, None))
            np.testing.assert_array_equal(own(obs).log_std, least)
    else:
        np.testing.assert_allclose(np.exp(dist.logits).sum(-1), 1.0, rtol=1e-5)
    assert networks.value(params, None)(obs).shape == (4,)


def test_with_both_networks_from_the_caller_images_may_have_any_layout() -> None:
    class Flat(nn.Module):
        width: int

        @nn.compact
        def __call__(self, obs: jax.Array) -> jax.Array:
            return nn.Dense(self.width)(obs.reshape((*obs.shape[:-3], -1)))

    spec = EnvSpec("channels first", (4, 84, 84), Discrete(3), obs_dtype=jnp.uint8)
    networks = build.build(spec, NetConfig(), actor=Flat(3), critic=Flat(1))
    params = networks.init(jax.random.key(0))
    assert networks.value(params, None)(jnp.zeros((2, 4, 84, 84), jnp.uint8)).shape == (2,)
    with pytest.raises(ValueError, match=r"C, H, W"):
        build.build(spec, NetConfig(), actor=Flat(3))
