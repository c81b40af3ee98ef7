"""The configured actor as a list of layers and named arrays, which `numpy_policy` and `onnx_graph` run.

Arrays have the names of Flax's parameters, e.g. `torso.Dense_0.kernel`.
"""

from __future__ import annotations

import math
from typing import Any

import flax.linen as nn
import jax
import numpy as np

from nextpolicy.config import NetConfig
from nextpolicy.envs.base import EnvSpec
from nextpolicy.export.numpy_policy import Arrays, Layer
from nextpolicy.nets import torsos
from nextpolicy.nets.build import torso_kind
from nextpolicy.nets.pooling import placement
from nextpolicy.types import Params

_NONE = [[0, 0], [0, 0]]  # padding


def describe(spec: EnvSpec, config: NetConfig, params: Params) -> tuple[dict[str, Any], Arrays]:
    """The network from prepared observations [N, *obs_shape] to logits, means, or means and spreads, and its arrays.

    Computation is in float32, whatever `compute_dtype` is.
    """
    kind, depth = torso_kind(spec, config), len(config.hidden)
    activation = config.activation if kind in ("mlp", "small-cnn") else "relu"
    norm = config.layer_norm
    if kind == "mlp":
        layers = [_flatten(), *_dense(0, depth, norm, activation)]
    elif kind == "small-cnn":  # its first dense layer is the convolution
        norms = [_layer_norm(0)] if norm else []
        conv = [_conv("torso.Dense_0", 1, _NONE), *norms, {"kind": activation}, _flatten()]
        layers = [*conv, *_dense(1, depth, norm, activation)]
    else:
        conv = _nature() if kind == "nature" else _impala(spec.obs_shape)
        layers = [*conv, _flatten(), *_dense(0, depth, norm, activation)]
    arrays = _arrays(params)
    if kind == "small-cnn":
        patches = arrays["torso.Dense_0.kernel"]  # [9 C, 16]
        arrays["torso.Dense_0.kernel"] = patches.reshape(3, 3, spec.obs_shape[-1], patches.shape[-1])
    layers = _with_shapes([*layers, {"kind": "dense", "name": "head.Dense_0"}], arrays)
    about = {"torso": kind, "hidden": list(config.hidden), "activation": activation, "layer_norm": norm}
    return {**about, "layers": layers}, arrays


def _arrays(params: Params) -> Arrays:
    leaves, _ = jax.tree.flatten_with_path(params["params"])
    return {".".join(part.key for part in path): np.asarray(leaf, np.float32) for path, leaf in leaves}


def _with_shapes(layers: list[Layer], arrays: Arrays) -> list[Layer]:
    """Dense and convolutional layers with the shapes of their kernels."""
    shaped = []
    for layer in layers:
        inner = {"layers": _with_shapes(layer["layers"], arrays)} if "layers" in layer else {}
        kernel = arrays.get(f"{layer.get('name')}.kernel")
        shaped.append({**layer, **inner} if kernel is None else {**layer, "shape": list(kernel.shape)})
    return shaped


def _dense(first: int, count: int, norm: bool, activation: str) -> list[Layer]:
    """`count` dense layers of the torso, from number `first` on, with LayerNorm if `norm`, and activations."""
    layers: list[Layer] = []
    for i in range(first, first + count):
        layers += [{"kind": "dense", "name": f"torso.Dense_{i}"}, *([_layer_norm(i)] if norm else [])]
        layers.append({"kind": activation})
    return layers


def _nature() -> list[Layer]:
    convs = [_conv(f"torso.Conv_{i}", stride, _NONE) for i, (_, _, stride) in enumerate(torsos.NATURE)]
    return [layer for conv in convs for layer in (conv, {"kind": "relu"})]


def _impala(shape: tuple[int, ...]) -> list[Layer]:
    """Three stages: convolution, max-pool, two residual blocks, of which Flax numbers the second first."""
    layers: list[Layer] = []
    sides = list(shape[:2])
    for i in range(len(torsos.Impala.channels)):
        pads = [list(placement(side)[1:]) for side in sides]
        sides = [math.ceil(side / 2) for side in sides]
        layers += [_conv(f"torso.Conv_{i}", 1, [[1, 1], [1, 1]])]
        layers += [{"kind": "max_pool", "size": 3, "stride": 2, "padding": pads}]
        layers += [_residual(f"torso.ResidualBlock_{k}") for k in (2 * i + 1, 2 * i)]
    return [*layers, {"kind": "relu"}]


def _residual(name: str) -> Layer:
    convs = [_conv(f"{name}.Conv_{i}", 1, [[1, 1], [1, 1]]) for i in (0, 1)]
    return {"kind": "residual", "layers": [layer for conv in convs for layer in ({"kind": "relu"}, conv)]}


def _conv(name: str, stride: int, padding: list[list[int]]) -> Layer:
    return {"kind": "conv", "name": name, "stride": stride, "padding": padding}


def _layer_norm(number: int) -> Layer:
    return {"kind": "layer_norm", "name": f"torso.LayerNorm_{number}", "epsilon": nn.LayerNorm.epsilon}


def _flatten() -> Layer:
    return {"kind": "flatten"}
