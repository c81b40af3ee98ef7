"""A trained policy in NumPy alone.

    import numpy as np
    from load_policy import load

    policy = load("folder")                        # the folder with policy.json and policy.npz
    policy(obs)                                    # greedy action for one observation, or for a batch
    policy.sample(obs, np.random.default_rng(0))   # sampled actions
    policy.output(obs)                             # log-probabilities of discrete actions, means of continuous ones;
                                                   # of a squashed Gaussian, means and log standard deviations

Observations and actions are those of the environment, with any number of batch axes in front. `policy.json` describes
the network as a list of layers, `policy.npz` holds their arrays. Images are [N, H, W, C] between layers.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

FORMAT = 1  # of policy.json

_DISCRETE = ("categorical", "epsilon_greedy")

Arrays = dict[str, np.ndarray]
Layer = dict[str, Any]


def load(folder: str | Path) -> Policy:
    """The policy in a folder. Reading it executes no code. Raises ValueError if a file is damaged or no policy's."""
    files = [Path(folder) / name for name in ("policy.json", "policy.npz")]
    for file in files:
        if file.exists() and not (file.is_file() or file.is_dir()):
            raise ValueError(f"{folder}: expected a regular file, got {file.name}, which is a pipe or a device")
    text, data = (file.read_bytes() for file in files)
    try:
        policy = _policy(text, data)
        with np.errstate(all="ignore"):
            policy(policy._example())
    except Exception as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else ""
        kind = "" if type(error) is ValueError else f"{type(error).__name__}: "
        raise ValueError(f"{folder}: {kind}{reason}; export the policy again") from error
    return policy


def _policy(text: bytes, data: bytes) -> Policy:
    description = json.loads(text)
    if not isinstance(description, dict):
        raise ValueError(f"expected an object in policy.json, got {type(description).__name__}")
    digest = description.pop("digest", None)  # version 0.1 wrote none
    if digest not in (None, digest_of(json.dumps(description, sort_keys=True).encode())):
        raise ValueError("policy.json has changed since it was written")
    if description.get("arrays") not in (None, digest_of(data)):
        raise ValueError("policy.npz has changed since it was written")
    with np.load(io.BytesIO(data), allow_pickle=False) as file:
        return Policy(description, {name: file[name] for name in file.files})


def digest_of(data: bytes) -> str:
    """What policy.json records of itself (`digest`) and of policy.npz (`arrays`)."""
    return hashlib.blake2b(data).hexdigest()


class Policy:
    """A function from observations [..., *shape] to actions: greedy when called, random with `sample`."""

    def __init__(self, description: dict[str, Any], arrays: Arrays) -> None:
        if description.get("format") != FORMAT:
            raise ValueError(f"format: expected {FORMAT}, got {description.get('format')}; use the loader beside it")
        self.description, self.arrays = description, arrays
        self._kind = description["distribution"]["kind"]

    def __call__(self, obs: Any) -> Any:
        """The most probable discrete actions, or those of the mean. A single discrete action is a NumPy integer."""
        out = self.output(obs)
        return self._actions(out if self._kind in _DISCRETE else self._gaussian(out)[0])

    def sample(self, obs: Any, rng: np.random.Generator) -> Any:
        """Random actions: by the Gumbel-max trick, or mean + std * noise."""
        out = self.output(obs)
        if self._kind in _DISCRETE:
            return self._actions(out + rng.gumbel(size=out.shape))
        mean, std = self._gaussian(out)
        return self._actions(mean + std * rng.standard_normal(mean.shape))

    def output(self, obs: Any) -> np.ndarray:
        """What actions are chosen by.

        categorical        log-probabilities [..., n]
        epsilon_greedy     log-probabilities [..., n], -inf for an action that is never taken
        gaussian           means [..., size] before clipping
        squashed_gaussian  means, then log standard deviations [..., 2 size], before tanh
        """
        try:
            obs = np.asarray(obs)
        except ValueError:
            raise ValueError("obs: expected an array, got parts of unlike shapes; reset returns (obs, info)") from None
        lead = self._lead(obs)
        x = self._read(obs.reshape((math.prod(lead), *obs.shape[len(lead) :])))
        x = _run(self.description["network"]["layers"], x, self.arrays)
        if self._kind == "categorical":
            x = x - x.max(-1, keepdims=True)
            x = x - np.log(np.exp(x).sum(-1, keepdims=True))
        elif self._kind == "epsilon_greedy":
            epsilon = self.description["distribution"]["epsilon"]
            best = x.argmax(-1)[..., None] == np.arange(x.shape[-1])
            with np.errstate(divide="ignore"):
                x = np.log(np.where(best, 1 - epsilon, 0.0) + epsilon / x.shape[-1])
        elif self._kind == "squashed_gaussian":
            mean, raw = np.split(x, 2, axis=-1)
            bound = self.description["distribution"].get("mean_bound")
            mean = mean if bound is None else bound * np.tanh(mean / bound)
            least, most = self.description["distribution"]["log_std_bounds"]
            x = np.concatenate([mean, least + (most - least) / 2 * (np.tanh(raw) + 1)], axis=-1)
        return x.reshape((*lead, x.shape[-1]))

    def _example(self) -> np.ndarray:
        """An observation that the policy can read."""
        about = self.description["observation"]
        return np.full(about["shape"], about["first"] if about["kind"] == "states" else 0, np.int64)

    def _lead(self, obs: np.ndarray) -> tuple[int, ...]:
        """The batch axes of `obs`. Raises if it does not fit the environment."""
        about = self.description["observation"]
        shape, numbered = tuple(about["shape"]), about["kind"] == "states"
        split = obs.ndim - len(shape)
        if split < 0 or obs.shape[split:] != shape or obs.dtype.kind not in ("iu" if numbered else "biuf"):
            what = "whole numbers" if numbered else f"shape {shape}, or a batch"
            raise ValueError(f"obs: expected {what}, got {obs.dtype} of shape {obs.shape}")
        if numbered:
            first, last = about["first"], about["first"] + about["count"] - 1
            wrong = obs[(obs < first) | (obs > last)]
            if wrong.size:
                raise ValueError(f"obs: expected whole numbers from {first} to {last}, got {wrong.flat[0]}")
        return obs.shape[:split]

    def _read(self, obs: np.ndarray) -> np.ndarray:
        """Observations [N, *shape] as the network reads them: float32 [N, *input_shape], scaled or normalised."""
        about, normaliser = self.description["observation"], self.description["normaliser"]
        if about["kind"] == "states":
            index = obs.astype(np.int64) - about["first"]
            obs = self.arrays[about["table"]][index] if about["table"] else index[:, None] == np.arange(about["count"])
        if about["layout"] == "channels_first":
            obs = np.moveaxis(obs, 1, -1)
        x = obs.reshape((len(obs), *about["input_shape"])).astype(np.float32) / np.float32(about["divisor"])
        if normaliser is None:
            return x
        std = np.sqrt(self.arrays[normaliser["variance"]] + np.float32(normaliser["epsilon"]))
        return np.clip((x - self.arrays[normaliser["mean"]]) / std, -normaliser["clip"], normaliser["clip"])

    def _gaussian(self, out: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Mean and standard deviation of continuous actions, before their bounds."""
        if self._kind == "gaussian":
            return out, np.exp(self.arrays[self.description["distribution"]["log_std"]])
        mean, log_std = np.split(out, 2, axis=-1)
        return mean, np.exp(log_std)

    def _actions(self, out: np.ndarray) -> Any:
        """Actions of the environment: the largest of n entries, or numbers squashed or clipped to the bounds."""
        space = self.description["action"]
        if space["kind"] == "discrete":
            return (np.argmax(out, axis=-1) + space["start"]).astype(space["dtype"])
        bound = lambda name, free: np.asarray([free if b is None else b for b in space[name]])  # noqa: E731
        low, high = bound("low", -np.inf), bound("high", np.inf)
        if self._kind == "squashed_gaussian":
            out = (high + low) / 2 + (high - low) / 2 * np.tanh(out)
        # Clipping to float64 bounds keeps them: rounding to the environment's type preserves order.
        clipped = out.clip(low, high)
        return clipped.reshape((*out.shape[:-1], *space["shape"])).astype(space["dtype"])


def _run(layers: list[Layer], x: np.ndarray, arrays: Arrays) -> np.ndarray:
    for layer in layers:
        x = _LAYERS[layer["kind"]](layer, x, arrays)
    return x


def _dense(layer: Layer, x: np.ndarray, arrays: Arrays) -> np.ndarray:
    return x @ arrays[f"{layer['name']}.kernel"] + arrays[f"{layer['name']}.bias"]


def _conv(layer: Layer, x: np.ndarray, arrays: Arrays) -> np.ndarray:
    """Kernel [height, width, in, out]."""
    kernel = arrays[f"{layer['name']}.kernel"]
    windows = _windows(x, layer, kernel.shape[0], 0.0)
    return np.tensordot(windows, kernel, ((3, 4, 5), (2, 0, 1))) + arrays[f"{layer['name']}.bias"]


def _max_pool(layer: Layer, x: np.ndarray, _: Arrays) -> np.ndarray:
    return _windows(x, layer, layer["size"], -np.inf).max((4, 5))


def _windows(x: np.ndarray, layer: Layer, size: int, padding: float) -> np.ndarray:
    """Windows [N, H', W', C, size, size] of padded images."""
    x = np.pad(x, [(0, 0), *layer["padding"], (0, 0)], constant_values=padding)
    step = layer["stride"]
    return np.lib.stride_tricks.sliding_window_view(x, (size, size), (1, 2))[:, ::step, ::step]


def _layer_norm(layer: Layer, x: np.ndarray, arrays: Arrays) -> np.ndarray:
    """Over the last axis."""
    centred = x - x.mean(-1, keepdims=True)
    std = np.sqrt(np.square(centred).mean(-1, keepdims=True) + np.float32(layer["epsilon"]))
    return centred / std * arrays[f"{layer['name']}.scale"] + arrays[f"{layer['name']}.bias"]


_LAYERS: dict[str, Callable[[Layer, np.ndarray, Arrays], np.ndarray]] = {
    "dense": _dense,
    "conv": _conv,
    "max_pool": _max_pool,
    "layer_norm": _layer_norm,
    "flatten": lambda _, x, __: x.reshape((len(x), math.prod(x.shape[1:]))),
    "residual": lambda layer, x, arrays: x + _run(layer["layers"], x, arrays),
    "tanh": lambda _, x, __: np.tanh(x),
    "relu": lambda _, x, __: np.maximum(x, 0),
    "silu": lambda _, x, __: x * np.exp(-np.logaddexp(0, -x)),
}
