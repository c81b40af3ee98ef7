"""Chooses faster ways to run the configured networks on a GPU, and passes their parameters on."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import flax.linen as nn
import jax

from nextpolicy.config import NetConfig
from nextpolicy.envs.base import EnvSpec
from nextpolicy.nets import side_by_side, torsos
from nextpolicy.types import Array, Params

Head = Any  # a module of `heads`, whose `read` converts outputs of the last layer
Bound = Callable[[Array], list[Any]]  # prepared observations -> the output of each network


def binder(torso: nn.Module, spec: EnvSpec, config: NetConfig) -> Callable[[list[tuple[Head, Params]]], Bound] | None:
    """A function that binds networks with this torso to their parameters; None if Flax runs them as fast.

    Bound networks run side by side. Binding casts the weights, so bind outside a loop over steps.
    """
    tabular = spec.obs_table is not None  # few rows, whose common patches the torso computes once
    if config.compute_dtype == "float32" or tabular or not on_gpu():
        return None
    if isinstance(torso, torsos.Impala):
        return partial(side_by_side.bind, torso) if config.compute_dtype == "bfloat16" else None
    from nextpolicy.nets import fused, fused_cnn  # importing Pallas takes .5 s: skip it on CPUs

    hidden, activation, norm = tuple(config.hidden), config.activation, config.layer_norm
    rank = len(spec.obs_shape)

    def mlps(networks: list[tuple[Head, Params]]) -> Bound:
        run = fused.bind([_dense(params, len(hidden)) for _, params in networks], activation)
        return lambda x: _read(networks, run(x.reshape((*x.shape[: x.ndim - rank], -1))))

    def cnns(networks: list[tuple[Head, Params]]) -> Bound:
        image = (spec.obs_shape[0], spec.obs_shape[1], spec.obs_shape[2])
        run = fused_cnn.bind([_cnn(params, len(hidden), norm) for _, params in networks], image, activation)
        return lambda x: _read(networks, run(x))

    if isinstance(torso, torsos.MLP) and fused.supported(hidden, activation, norm):
        return mlps
    fits = isinstance(torso, torsos.SmallCNN)
    if fits and fused_cnn.supported(spec.obs_shape, hidden, _outputs(spec, config), activation):
        return cnns
    return None


def _outputs(spec: EnvSpec, config: NetConfig) -> int:
    """The width of the actor's last layer."""
    return spec.action.outputs * (2 if config.policy == "squashed" else 1)


def on_gpu() -> bool:
    """Whether JAX runs on a GPU."""
    return jax.default_backend() == "gpu"


def _read(networks: list[tuple[Head, Params]], outs: list[Array]) -> list[Any]:
    return [head.read(out, params["params"]["head"]) for (head, params), out in zip(networks, outs, strict=True)]


def _dense(params: Params, depth: int) -> list[tuple[Array, Array]]:
    """Weights and biases of an MLP with `depth` hidden layers and its head."""
    torso, head = params["params"]["torso"], params["params"]["head"]
    dense = [*(torso[f"Dense_{i}"] for i in range(depth)), head["Dense_0"]]
    return [(layer["kernel"], layer["bias"]) for layer in dense]


def _cnn(params: Params, depth: int, norm: bool) -> Any:
    """The layers of a `SmallCNN` with `depth` dense layers and its head."""
    from nextpolicy.nets.fused_cnn import CNN, Layer

    torso, head = params["params"]["torso"], params["params"]["head"]

    def layer(i: int) -> Layer:
        dense, affine = torso[f"Dense_{i}"], torso[f"LayerNorm_{i}"] if norm else {}
        return Layer(dense["kernel"], dense["bias"], affine.get("scale"), affine.get("bias"))

    conv, *dense = (layer(i) for i in range(depth + 1))
    return CNN(conv, [*dense, Layer(head["Dense_0"]["kernel"], head["Dense_0"]["bias"])])
