"""The fused MLP against a float64 reference, and against what Flax computes: its kernels interpreted on the CPU."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.compiling import abstract_gpu

from nextpolicy.config import NetConfig
from nextpolicy.core import running_stats
from nextpolicy.envs.base import Box, Discrete, EnvSpec
from nextpolicy.nets import build, fused, fusion, kernels
from nextpolicy.types import PolicySnapshot

pytestmark = pytest.mark.quick_compilation


@pytest.fixture(autouse=True)
def interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "INTERPRET", True)


def run(layers: Any, x: Any, activation: str = "tanh") -> Any:
    return fused.bind([layers], activation)(x)[0]


def network(sizes: tuple[int, ...], members: int | None = None) -> Any:
    """Random layers, each with a leading member axis if asked."""
    rng, lead = np.random.default_rng(0), () if members is None else (members,)
    return [
        (
            jnp.asarray(rng.normal(size=(*lead, a, b)) / np.sqrt(a), jnp.float32),
            jnp.asarray(0.3 * rng.normal(size=(*lead, b)), jnp.float32),
        )
        for a, b in pairwise(sizes)
    ]


def reference(layers: Any, x: np.ndarray, weight: np.ndarray, activation: str) -> tuple[np.ndarray, Any, np.ndarray]:
    """Outputs, and the gradients of sum(weight * outputs): float64, by hand."""
    inputs, h = [], np.float64(x)
    for i, (w, b) in enumerate(layers):
        inputs.append(h)
        h = h @ np.float64(w) + np.float64(b)
        if i < len(layers) - 1:
            h = np.tanh(h) if activation == "tanh" else np.maximum(h, 0.0)
    gradients, d = [], np.float64(weight)
    for i in reversed(range(len(layers))):
        gradients.append((inputs[i].T @ d, d.sum(0)))
        d = d @ np.float64(layers[i][0]).T
        if i:
            d = d * (1.0 - inputs[i] ** 2) if activation == "tanh" else d * (inputs[i] > 0)
    return h, gradients[::-1], d


def close(got: Any, expected: np.ndarray, tolerance: float = 0.02) -> None:
    """Equal up to the rounding of bfloat16, relative to the size of the whole array."""
    error = np.linalg.norm(np.asarray(got, np.float64) - expected) / np.linalg.norm(expected)
    assert error < tolerance, f"relative error {error:.3g}"


@pytest.mark.parametrize(
    ("sizes", "samples"),
    [((11, 256, 256, 3), 64), ((27, 64, 64, 1), 65), ((90, 32, 128, 16, 17), 130), ((5, 16, 2), 1), ((70, 64, 80), 64)],
)
def test_outputs_and_gradients_follow_the_equations(sizes: tuple[int, ...], samples: int) -> None:
    layers, rng = network(sizes), np.random.default_rng(1)
    x = rng.normal(size=(samples, sizes[0])).astype(np.float32)
    weight = rng.normal(size=(samples, sizes[-1])).astype(np.float32)

    def total(layers: Any, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        out = run(layers, x)
        return jnp.sum(out * weight), out

    (_, out), (d_layers, d_x) = jax.jit(jax.value_and_grad(total, argnums=(0, 1), has_aux=True))(layers, x)
    expected, expected_layers, expected_x = reference(layers, x, weight, "tanh")
    assert out.dtype == jnp.float32
    close(out, expected)
    close(d_x, expected_x)
    for got, right in zip(jax.tree.leaves(d_layers), jax.tree.leaves(expected_layers), strict=True):
        assert got.dtype == jnp.float32
        close(got, right)


def test_relu_passes_gradients_where_it_passed_values() -> None:
    layers = network((6, 16, 32, 2))
    x = np.random.default_rng(2).normal(size=(40, 6)).astype(np.float32)
    total = lambda layers: (lambda out: (jnp.sum(out), out))(run(layers, x, "relu"))  # noqa: E731
    got_gradients, out = jax.jit(jax.grad(total, has_aux=True))(layers)
    expected, gradients, _ = reference(layers, x, np.ones((40, 2)), "relu")
    close(out, expected)
    # A unit near zero may fall on either side in bfloat16: its gradient is then all there or not at all.
    for got, right in zip(jax.tree.leaves(got_gradients), jax.tree.leaves(gradients), strict=True):
        close(got, right, 0.15)


@pytest.mark.quick_compilation(False)
def test_members_keep_to_themselves() -> None:
    layers = network((11, 32, 32, 3), members=3)
    x = jnp.asarray(np.random.default_rng(3).normal(size=(3, 2, 40, 11)), jnp.float32)
    together = jax.jit(jax.vmap(run))(layers, x)
    assert together.shape == (3, 2, 40, 3)
    for member in range(3):
        alone = jax.jit(run)(jax.tree.map(lambda a, m=member: a[m], layers), x[member])
        np.testing.assert_array_equal(together[member], alone)


@pytest.mark.parametrize("width", [11, 40], ids=["narrower than the first layer", "wider"])
def test_several_networks_side_by_side_are_what_each_is_alone(width: int) -> None:
    networks = [network((width, 32, 16, 5)), jax.tree.map(lambda a: -0.7 * a, network((width, 32, 16, 1)))]
    x = jnp.asarray(np.random.default_rng(4).normal(size=(3, 30, width)), jnp.float32)
    weights = [jnp.asarray(np.random.default_rng(5).normal(size=(3, 30, n)), jnp.float32) for n in (5, 1)]

    def together(networks: Any) -> Any:
        outs = fused.bind(networks, "tanh")(x)
        return sum(jnp.sum(w * out) for w, out in zip(weights, outs, strict=True)), outs

    def apart(networks: Any) -> Any:
        outs = [run(layers, x) for layers in networks]
        return sum(jnp.sum(w * out) for w, out in zip(weights, outs, strict=True)), outs

    (_, outs), gradients = jax.jit(jax.value_and_grad(together, has_aux=True))(networks)
    (_, expected), expected_gradients = jax.jit(jax.value_and_grad(apart, has_aux=True))(networks)
    for got, right in zip(
        jax.tree.leaves((outs, gradients)), jax.tree.leaves((expected, expected_gradients)), strict=True
    ):
        assert got.shape == right.shape
        np.testing.assert_allclose(got, right, rtol=1e-4, atol=1e-4)


def test_it_says_which_networks_it_can_do(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not fused.supported((64, 64), "tanh", False), "this is not an NVIDIA GPU"
    monkeypatch.setattr(kernels, "tensor_cores", lambda: True)
    assert fused.supported((64, 256), "tanh", False)
    for hidden, activation, norm in [((48,), "tanh", False), ((512,), "tanh", False), ((), "tanh", False)]:
        assert not fused.supported(hidden, activation, norm)
    assert not fused.supported((64,), "silu", False)
    assert not fused.supported((64,), "tanh", True)


ARM = Box((2,), -1.0, 1.0)


@pytest.mark.parametrize(
    ("action", "policy"),
    [(Discrete(3), "auto"), (ARM, "auto"), (ARM, "squashed")],
    ids=["discrete", "real", "squashed"],
)
def test_the_built_networks_are_those_flax_builds(action: Any, policy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = EnvSpec("x", (2, 3), action, np.float32)
    config = NetConfig(torso="mlp", hidden=(32, 32), policy=policy)
    plain = build.build(spec, config)
    monkeypatch.setattr(fusion, "on_gpu", lambda: True)
    monkeypatch.setattr(kernels, "tensor_cores", lambda: True)
    quick = build.build(spec, config)
    params = jax.jit(plain.init)(jax.random.key(0))
    obs = jax.random.normal(jax.random.key(1), (4, 5, 2, 3))
    stats = running_stats.of_batch(2.0 + 3.0 * jax.random.normal(jax.random.key(2), (50, 2, 3)))
    snapshot = PolicySnapshot(params["actor"], stats)
    pairs = [jax.jit(lambda n=n: (n.policy(snapshot)(obs), n.value(params, stats)(obs)))() for n in (plain, quick)]
    for a, b in zip(jax.tree.leaves(pairs[0]), jax.tree.leaves(pairs[1]), strict=True):
        assert a.shape == b.shape
        np.testing.assert_allclose(a, b, atol=0.03)
        assert not np.array_equal(a, b) or float(jnp.ptp(a)) == 0, "the fused network was not used"
    assert plain.fused_actor_critic is None
    assert quick.fused_actor_critic is not None
    for n, pair in ((plain, pairs[0]), (quick, pairs[1])):
        both = jax.jit(n.actor_critic(params, stats))(obs)
        for a, b in zip(jax.tree.leaves(both), jax.tree.leaves(pair), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    for own in ({"critic": nn.Dense(1)}, {"actor": nn.Dense(3)}):
        assert build.build(spec, config, **own).fused_actor_critic is None, "a caller's module is not ours to fuse"


def test_the_kernels_lower_for_nvidia_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "INTERPRET", False)
    layers, x = network((11, 256, 256, 3), members=2), jnp.zeros((2, 128, 11))
    loss = lambda layers, x: sum(map(jnp.sum, fused.bind([layers, layers], "tanh")(x)))  # noqa: E731
    with abstract_gpu():
        text = jax.jit(jax.vmap(jax.grad(loss))).trace(layers, x).lower(lowering_platforms=("cuda",)).as_text()
    assert text.count("mlp_forward") == text.count("mlp_backward") > 0
