"""The fused small CNN against a float64 reference and against Flax, with its kernels interpreted on the CPU."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.compiling import abstract_gpu

from nextpolicy.config import NetConfig
from nextpolicy.envs.base import Box, Discrete, EnvSpec
from nextpolicy.nets import build, cnn_kernels, fused_cnn, fusion, kernels
from nextpolicy.nets.fused_cnn import CNN, Layer
from nextpolicy.types import PolicySnapshot

Image = tuple[int, int, int]


@pytest.fixture(autouse=True)
def interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "INTERPRET", True)


def network(image: Image, hidden: tuple[int, ...], actions: int, norm: bool, seed: int = 0) -> CNN:
    """Random layers. The shifts are positive, so that few units are near the kink of relu."""
    rng = np.random.default_rng(seed)
    draw = lambda *shape: rng.normal(size=shape).astype(np.float32)  # noqa: E731

    def layer(a: int, b: int, norm: bool) -> Layer:
        affine = (1.0 + 0.3 * draw(b), 0.5 + 0.3 * draw(b)) if norm else ()
        return Layer(*map(jnp.asarray, (draw(a, b) / a**0.5, 0.3 * draw(b), *affine)))

    height, width, channels = image
    sizes = ((height - 2) * (width - 2) * 16, *hidden)
    dense = [layer(a, b, norm) for a, b in pairwise(sizes)]
    return CNN(layer(9 * channels, 16, norm), [*dense, layer(sizes[-1], actions, False)])


def images(image: Image, samples: int, seed: int = 1) -> jax.Array:
    return jnp.asarray(np.random.default_rng(seed).random((samples, *image)) < 0.3)


def reference(net: CNN, x: np.ndarray, activation: str) -> jax.Array:
    """Outputs in float64: a loop over the nine offsets of the kernel, and LayerNorm by its definition."""
    act = (lambda z: jnp.maximum(z, 0.0)) if activation == "relu" else jnp.tanh

    def after(z: jax.Array, layer: Layer) -> jax.Array:
        if layer.scale is None or layer.shift is None:
            return act(z)
        centred = z - z.mean(-1, keepdims=True)
        variance = (centred**2).mean(-1, keepdims=True)
        return act(centred / jnp.sqrt(variance + 1e-6) * layer.scale + layer.shift)

    height, width, channels = x.shape[-3:]
    kernel = net.conv.kernel.reshape(3, 3, channels, 16)
    z = sum(x[:, i : i + height - 2, j : j + width - 2] @ kernel[i, j] for i in range(3) for j in range(3))
    h = after(z + net.conv.bias, net.conv).reshape(x.shape[0], -1)
    for layer in net.dense[:-1]:
        h = after(h @ layer.kernel + layer.bias, layer)
    return h @ net.dense[-1].kernel + net.dense[-1].bias


def close(got: Any, expected: Any, tolerance: float) -> None:
    """Equal up to the rounding of bfloat16, relative to the size of the whole array."""
    error = np.linalg.norm(np.float64(got) - np.float64(expected)) / np.linalg.norm(np.float64(expected))
    assert error < tolerance, f"relative error {error:.3g}"


CASES = {
    "MinAtar": ((10, 10, 4), (128,), True, "tanh", 16),
    "ten channels, three pieces of the band": ((4, 10, 10), (32,), True, "tanh", 80),
    "no LayerNorm": ((6, 6, 4), (64,), False, "tanh", 20),
    "two dense layers": ((6, 6, 2), (64, 32), True, "tanh", 40),
    "a row that is no multiple of the window": ((5, 9, 3), (16,), True, "tanh", 33),
    "an image narrower than a window": ((4, 4, 2), (16,), True, "tanh", 16),
    "relu, many samples": ((6, 7, 2), (32,), True, "relu", 600),
}


@pytest.mark.quick_compilation
@pytest.mark.parametrize(("image", "hidden", "norm", "activation", "samples"), CASES.values(), ids=CASES)
def test_outputs_and_gradients_follow_the_equations(
    image: Image, hidden: tuple[int, ...], norm: bool, activation: str, samples: int
) -> None:
    net, x = network(image, hidden, 5, norm), images(image, samples)
    weight = np.random.default_rng(2).normal(size=(samples, 5)).astype(np.float32)

    def total(net: CNN) -> tuple[jax.Array, jax.Array]:
        (out,) = fused_cnn.bind([net], image, activation)(x)
        return jnp.sum(out * weight), out

    (_, out), gradients = jax.jit(jax.value_and_grad(total, has_aux=True))(net)
    with jax.enable_x64(True), jax.numpy_rank_promotion("allow"):
        wide = jax.tree.map(np.float64, net)
        exact = lambda net: (lambda out: (jnp.sum(out * weight), out))(reference(net, np.float64(x), activation))  # noqa: E731
        (_, expected), expected_gradients = jax.jit(jax.value_and_grad(exact, has_aux=True))(wide)
    assert out.dtype == jnp.float32
    close(out, expected, 0.01)
    # A relu unit near zero may fall on either side in bfloat16: its gradient is then all there or not at all.
    tolerance = 0.1 if activation == "relu" else 0.02
    for got, right in zip(jax.tree.leaves(gradients), jax.tree.leaves(expected_gradients), strict=True):
        assert got.dtype == jnp.float32
        close(got, right, tolerance)


def test_networks_and_members_keep_to_themselves() -> None:
    image, members = (5, 6, 2), 2
    nets = [[network(image, (16,), actions, True, seed=7 * m + actions) for actions in (3, 1)] for m in range(members)]
    x = jnp.stack([images(image, 20, seed=m) for m in range(members)])
    stacked = jax.tree.map(lambda *leaves: np.stack(leaves), *nets)

    def loss(nets: list[CNN], x: jax.Array) -> tuple[jax.Array, list[jax.Array]]:
        outs = fused_cnn.bind(nets, image, "relu")(x)
        return sum(jnp.sum(out**2) for out in outs), outs

    gradient = jax.grad(loss, has_aux=True)
    run = jax.jit(gradient)
    gradients, together = jax.jit(jax.vmap(gradient))(stacked, x)
    for m in range(members):
        for i in range(2):
            (own,), (alone,) = run([nets[m][i]], x[m])
            assert together[i][m].shape == alone.shape == (20, (3, 1)[i])
            np.testing.assert_array_equal(together[i][m], alone)
            mine = jax.tree.map(lambda a, m=m: a[m], gradients[i])
            for a, b in zip(jax.tree.leaves(mine), jax.tree.leaves(own), strict=True):
                np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)


def test_leading_axes_and_observations_without_gradient() -> None:
    image = (5, 6, 2)
    net, x = network(image, (16,), 3, True), images(image, 12).astype(jnp.float32)
    run = jax.jit(lambda x: fused_cnn.bind([net], image, "relu")(x)[0])
    np.testing.assert_array_equal(run(x.reshape(3, 4, *image)).reshape(12, 3), run(x))
    assert np.isnan(jax.jit(jax.grad(lambda x: jnp.sum(run(x))))(x)).all(), "a wrong gradient would pass unnoticed"


def test_windows_cover_each_pixel_once_and_stay_within_the_padded_sample() -> None:
    for image in ((10, 10, 4), (10, 10, 7), (13, 13, 3), (3, 3, 1), (7, 11, 5)):
        windows = cnn_kernels.Windows(*image)
        starts = [int(windows.start(jnp.int32(u))) for u in range(windows.number)]
        first = {
            (row * image[1] + column) * image[2] for row in range(image[0] - 2) for column in range(0, image[1] - 2, 4)
        }
        assert set(starts) == first
        assert len(starts) == len(first)
        assert starts[-1] + sum(windows.pieces[-1]) == windows.end
        assert [a + n for a, n in windows.pieces[:-1]] == [a for a, _ in windows.pieces[1:]]
        assert windows.inputs >= windows.reach


def test_it_says_which_networks_it_supports(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not fused_cnn.supported((10, 10, 4), (128,), 6, "relu"), "this is not an NVIDIA GPU"
    monkeypatch.setattr(kernels, "large_shared_memory", lambda: True)
    assert fused_cnn.supported((10, 10, 4), (128,), 6, "relu")
    assert fused_cnn.supported((10, 10, 10), (128, 64), 128, "tanh")
    for image, hidden, actions, activation in [
        ((10, 10, 20), (128,), 6, "relu"),
        ((10, 10, 4), (), 6, "relu"),
        ((10, 10, 4), (100,), 6, "relu"),
        ((10, 10, 4), (256,), 6, "relu"),
        ((10, 10, 4), (128,), 129, "relu"),
        ((10, 10, 4), (128,), 6, "silu"),
    ]:
        assert not fused_cnn.supported(image, hidden, actions, activation)


@pytest.mark.parametrize(
    ("actions", "policy", "fits"),
    [(70, "gaussian", True), (64, "squashed", True), (65, "squashed", False)],
)
def test_a_squashed_policy_has_two_outputs_per_element(
    actions: int, policy: Any, fits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fusion, "on_gpu", lambda: True)
    monkeypatch.setattr(kernels, "large_shared_memory", lambda: True)
    spec = EnvSpec("x", (10, 10, 4), Box((actions,), -1.0, 1.0), np.dtype(bool))
    config = NetConfig(torso="small-cnn", hidden=(128,), activation="relu", policy=policy)
    assert (fusion.binder(build.make_torso(spec, config), spec, config) is not None) == fits


@pytest.mark.quick_compilation
@pytest.mark.parametrize("norm", [True, False], ids=["LayerNorm", "no LayerNorm"])
def test_the_built_networks_are_those_flax_builds(norm: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = EnvSpec("x", (6, 7, 2), Discrete(3), np.dtype(bool))
    config = NetConfig(torso="small-cnn", hidden=(32,), activation="relu", layer_norm=norm)
    plain = build.build(spec, config)
    monkeypatch.setattr(fusion, "on_gpu", lambda: True)
    monkeypatch.setattr(kernels, "large_shared_memory", lambda: True)
    quick = build.build(spec, config)
    params = jax.tree.map(lambda p: np.asarray(p) + np.float32(0.1), jax.jit(plain.init)(jax.random.key(0)))
    obs = images((6, 7, 2), 20).reshape(4, 5, 6, 7, 2)
    for name, run in {
        "policy": lambda n: n.policy(PolicySnapshot(params["actor"], None))(obs).logits,
        "value": lambda n: n.value(params, None)(obs),
        "both": lambda n: n.actor_critic(params, None)(obs)[1],
    }.items():
        slow, fast = (jax.jit(lambda run=run, n=n: run(n))() for n in (plain, quick))
        assert slow.shape == fast.shape, name
        close(fast, slow, 0.02)
        assert not np.array_equal(slow, fast), "the fused network was not used"
    assert quick.fused_actor_critic is not None


@pytest.mark.parametrize(("channels", "actions"), [(4, 6), (10, 40)])
def test_the_kernels_lower_for_nvidia_gpus(channels: int, actions: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "INTERPRET", False)
    image = (10, 10, channels)
    nets = [network(image, (128,), n, True) for n in (actions, 1)]
    stacked = jax.tree.map(lambda a: jnp.stack([a, a]), nets)
    loss = lambda nets, x: sum(map(jnp.sum, fused_cnn.bind(nets, image, "relu")(x)))  # noqa: E731
    x = jnp.zeros((2, 128, *image), bool)
    with abstract_gpu():
        text = jax.jit(jax.vmap(jax.grad(loss))).trace(stacked, x).lower(lowering_platforms=("cuda",)).as_text()
    for name in ("cnn_forward", "cnn_backward_dense", "cnn_backward_conv"):
        assert text.count(name) > 0
