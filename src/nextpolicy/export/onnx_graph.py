"""An exported policy as an ONNX model: raw observations to greedy actions, and what they were chosen by.

Input `obs` [N, *shape]. Outputs `action`, in the environment's type, and `log_probs` [N, n] of discrete actions, or
`mean` [N, *shape] and `std` of continuous ones before clipping or tanh; `std` is [*shape] of a Gaussian, [N, *shape] of
a squashed one. Images are [N, H, W, C] between layers, as in
`numpy_policy`; convolution and pooling transpose to [N, C, H, W] and back.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from nextpolicy import extras
from nextpolicy.config import ConfigError
from nextpolicy.export.numpy_policy import Arrays, Layer

if TYPE_CHECKING:
    import numpy.typing as npt
    from onnx import ModelProto, NodeProto, TensorProto

OPSET, IR_VERSION = 17, 8  # old enough for runtimes of 2022; LayerNormalization came with opset 17
Output = tuple[str, str, list[str | int]]  # name, dtype, shape
_FIRST, _LAST = [0, 3, 1, 2], [0, 2, 3, 1]  # axes of images with channels first, and with channels last again


def check_installed() -> None:
    """Raise unless onnx can be imported."""
    try:
        import onnx  # noqa: F401
    except ImportError:
        raise ConfigError(f"onnx: onnx is not installed; {extras.advice('onnx')}") from None


def model(description: dict[str, Any], arrays: Arrays) -> ModelProto:
    """The model of a description, checked by ONNX."""
    import onnx
    from onnx import helper

    graph, about = _Graph(arrays), description["observation"]
    x = graph.run(description["network"]["layers"], _read(graph, description))
    head = {"categorical": _discrete, "epsilon_greedy": _greedy}
    head |= {"gaussian": _continuous, "squashed_gaussian": _squashed}
    tensor = lambda name, dtype, shape: helper.make_tensor_value_info(name, _type(dtype), shape)  # noqa: E731
    outputs = [tensor(*each) for each in head[description["distribution"]["kind"]](graph, description, x)]
    made = helper.make_model(
        helper.make_graph(
            graph.nodes, "policy", [tensor("obs", about["dtype"], ["N", *about["shape"]])], outputs, graph.constants
        ),
        producer_name="nextpolicy",
        opset_imports=[helper.make_opsetid("", OPSET)],
        ir_version=IR_VERSION,
    )
    onnx.checker.check_model(made, full_check=True)
    return made


class _Graph:
    """Nodes and constants of a graph, and the arrays of the policy."""

    def __init__(self, arrays: Arrays) -> None:
        self.arrays = arrays
        self.nodes: list[NodeProto] = []
        self.constants: list[TensorProto] = []

    def constant(self, value: npt.ArrayLike, dtype: npt.DTypeLike = np.float32) -> str:
        """The name of a new constant."""
        from onnx import numpy_helper

        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.array(value, dtype, order="C"), name))
        return name

    def add(self, op: str, *inputs: str, output: str | None = None, **attributes: Any) -> str:
        """Append a node and return the name of its output."""
        from onnx import helper

        output = output or f"x{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, inputs, [output], **attributes))
        return output

    def run(self, layers: list[Layer], x: str) -> str:
        """Append the layers and return the name of their output."""
        for layer in layers:
            x = _LAYERS[layer["kind"]](self, layer, x)
        return x

    def of(self, layer: Layer, part: str) -> np.ndarray:
        """An array of a layer: its kernel, bias or scale."""
        return self.arrays[f"{layer['name']}.{part}"]


def _type(dtype: str) -> int:
    """ONNX's number of a NumPy type."""
    from onnx import helper

    return helper.np_dtype_to_tensor_dtype(np.dtype(dtype))


def _read(graph: _Graph, description: dict[str, Any]) -> str:
    """From `obs` to the network's input: float32 [N, *input_shape], scaled or normalised."""
    about, normaliser, x = description["observation"], description["normaliser"], "obs"
    if about["kind"] == "states":
        x = graph.add("Sub", x, graph.constant(about["first"], np.int64))
        if about["table"]:
            x = graph.add("Gather", graph.constant(graph.arrays[about["table"]]), x)
        else:
            x = graph.add("OneHot", x, graph.constant(about["count"], np.int64), graph.constant([0.0, 1.0]))
    if about["layout"] == "channels_first":
        x = graph.add("Transpose", x, perm=_LAST)
    x = graph.add("Reshape", x, graph.constant([-1, *about["input_shape"]], np.int64))
    x = graph.add("Cast", x, to=_type("float32"))
    if about["divisor"] != 1:
        x = graph.add("Div", x, graph.constant(about["divisor"]))
    if normaliser is None:
        return x
    std = np.sqrt(graph.arrays[normaliser["variance"]] + np.float32(normaliser["epsilon"]))
    x = graph.add("Sub", x, graph.constant(graph.arrays[normaliser["mean"]]))
    x = graph.add("Div", x, graph.constant(std))
    return graph.add("Clip", x, graph.constant(-normaliser["clip"]), graph.constant(normaliser["clip"]))


def _discrete(graph: _Graph, description: dict[str, Any], logits: str) -> list[Output]:
    """Append `action` and `log_probs`."""
    space = description["action"]
    log_probs = graph.add("LogSoftmax", logits, output="log_probs", axis=-1)
    _best(graph, space, log_probs)
    return [("action", space["dtype"], ["N"]), ("log_probs", "float32", ["N", space["n"]])]


def _best(graph: _Graph, space: dict[str, Any], scores: str) -> None:
    """Append `action`, the one with the largest score [N, n]."""
    best = graph.add("ArgMax", scores, axis=-1, keepdims=0)
    action = graph.add("Add", best, graph.constant(space["start"], np.int64))
    graph.add("Cast", action, output="action", to=_type(space["dtype"]))


def _greedy(graph: _Graph, description: dict[str, Any], values: str) -> list[Output]:
    """Append `action`, the best one, and `values` of all actions."""
    space = description["action"]
    values = graph.add("Identity", values, output="values")
    action = graph.add(
        "Add", graph.add("ArgMax", values, axis=-1, keepdims=0), graph.constant(space["start"], np.int64)
    )
    graph.add("Cast", action, output="action", to=_type(space["dtype"]))
    return [("action", space["dtype"], ["N"]), ("values", "float32", ["N", space["n"]])]


def _continuous(graph: _Graph, description: dict[str, Any], mean: str) -> list[Output]:
    """Append `action`, `mean` and `std`."""
    space = description["action"]
    shape = space["shape"]
    mean = graph.add("Reshape", mean, graph.constant([-1, *shape], np.int64), output="mean")
    std = np.exp(graph.arrays[description["distribution"]["log_std"]]).reshape(shape)
    graph.add("Identity", graph.constant(std), output="std")
    _clipped(graph, space, graph.add("Cast", mean, to=_type("float64")))
    return [("action", space["dtype"], ["N", *shape]), ("mean", "float32", ["N", *shape]), ("std", "float32", shape)]


def _squashed(graph: _Graph, description: dict[str, Any], x: str) -> list[Output]:
    """Append `action`, `mean` and `std` from outputs [N, 2 A]."""
    space, distribution = description["action"], description["distribution"]
    (least, most), bound = distribution["log_std_bounds"], distribution["mean_bound"]
    size, batch = len(space["low"]), ["N", *space["shape"]]
    shape, axis = graph.constant([-1, *space["shape"]], np.int64), graph.constant([1], np.int64)
    at = [graph.constant([edge], np.int64) for edge in (0, size, 2 * size)]
    mean = graph.add("Slice", x, at[0], at[1], axis)
    if bound is not None:
        share = graph.add("Tanh", graph.add("Mul", mean, graph.constant(1 / bound)))
        mean = graph.add("Mul", share, graph.constant(bound))
    mean = graph.add("Reshape", mean, shape, output="mean")
    raw = graph.add("Reshape", graph.add("Slice", x, at[1], at[2], axis), shape)
    spread = graph.add("Mul", graph.add("Tanh", raw), graph.constant((most - least) / 2))
    graph.add("Exp", graph.add("Add", spread, graph.constant((most + least) / 2)), output="std")
    low, high = (np.reshape(space[name], space["shape"]) for name in ("low", "high"))
    unit = graph.add("Cast", graph.add("Tanh", mean), to=_type("float64"))
    action = graph.add("Mul", unit, graph.constant((high - low) / 2, np.float64))
    _clipped(graph, space, graph.add("Add", action, graph.constant((high + low) / 2, np.float64)))
    return [("action", space["dtype"], batch), ("mean", "float32", batch), ("std", "float32", batch)]


def _clipped(graph: _Graph, space: dict[str, Any], x: str) -> None:
    """Append `action` from float64 actions. Clipping in 64 bits keeps the bounds: rounding preserves order."""
    for op, name, free in (("Max", "low", -np.inf), ("Min", "high", np.inf)):
        bound = np.reshape([free if b is None else b for b in space[name]], space["shape"])
        x = graph.add(op, x, graph.constant(bound, np.float64))
    graph.add("Cast", x, output="action", to=_type(space["dtype"]))


def _dense(graph: _Graph, layer: Layer, x: str) -> str:
    return graph.add("Gemm", x, graph.constant(graph.of(layer, "kernel")), graph.constant(graph.of(layer, "bias")))


def _layer_norm(graph: _Graph, layer: Layer, x: str) -> str:
    scale, bias = (graph.constant(graph.of(layer, part)) for part in ("scale", "bias"))
    return graph.add("LayerNormalization", x, scale, bias, axis=-1, epsilon=layer["epsilon"])


def _conv(graph: _Graph, layer: Layer, x: str) -> str:
    kernel = graph.constant(graph.of(layer, "kernel").transpose(3, 2, 0, 1))
    x = graph.add("Transpose", x, perm=_FIRST)
    strides, pads = _placement(layer)
    x = graph.add("Conv", x, kernel, graph.constant(graph.of(layer, "bias")), strides=strides, pads=pads)
    return graph.add("Transpose", x, perm=_LAST)


def _max_pool(graph: _Graph, layer: Layer, x: str) -> str:
    x = graph.add("Transpose", x, perm=_FIRST)
    strides, pads = _placement(layer)
    x = graph.add("MaxPool", x, kernel_shape=[layer["size"]] * 2, strides=strides, pads=pads)
    return graph.add("Transpose", x, perm=_LAST)


def _placement(layer: Layer) -> tuple[list[int], list[int]]:
    """Strides and padding of windows, in ONNX's order."""
    (top, bottom), (left, right) = layer["padding"]
    return [layer["stride"]] * 2, [top, left, bottom, right]


_LAYERS: dict[str, Callable[[_Graph, Layer, str], str]] = {
    "dense": _dense,
    "conv": _conv,
    "max_pool": _max_pool,
    "layer_norm": _layer_norm,
    "flatten": lambda graph, _, x: graph.add("Flatten", x),
    "residual": lambda graph, layer, x: graph.add("Add", x, graph.run(layer["layers"], x)),
    "tanh": lambda graph, _, x: graph.add("Tanh", x),
    "relu": lambda graph, _, x: graph.add("Relu", x),
    "silu": lambda graph, _, x: graph.add("Mul", x, graph.add("Sigmoid", x)),
}
