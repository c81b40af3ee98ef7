"""Checks of image shapes and of a caller's networks before compilation. Errors are one line."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from nextpolicy.config import ConfigError
from nextpolicy.envs.base import Box, EnvSpec

_MOST_CHANNELS, _LEAST_SIDE, _SQUARE = 4, 16, 36  # shapes that look like an image [C, H, W]


def channels_last(spec: EnvSpec) -> None:
    """Raise if observations look like images [C, H, W], since convolutions expect channels last."""
    shape = spec.obs_shape
    few = len(shape) == 3 and shape[0] <= _MOST_CHANNELS and min(shape[1:]) >= _LEAST_SIDE
    stack = len(shape) == 3 and shape[0] < shape[1] == shape[2] >= _SQUARE  # stacked frames with several channels each
    if few or stack:
        raise ConfigError(
            f"{spec.id}: expected images [H, W, C], got shape {shape}, which looks like [C, H, W]; set env_options "
            "channels_first=true (gym/... and env_fn), transpose them in the environment, or use torso=mlp"
        )


def own_modules(spec: EnvSpec, actor: Any, critic: Any) -> None:
    """Raise unless the outputs of the caller's modules have the right shapes. Shapes only; nothing is computed."""
    for name, module in (("actor", actor), ("critic", critic)):
        if module is None:
            continue
        _is_linen(name, module)
        # Training applies networks to minibatches [B, ...] and rollouts [T, N, ...]; with a table, only to its rows.
        for lead in ((2,),) if spec.obs_table is not None else ((2,), (3, 2)):
            out = _shapes(name, module, spec, lead)
            right, wanted, advice = _policy(spec, lead, out) if name == "actor" else _value(lead, out)
            if not right:
                seen = f"observations of shape {(*lead, *spec.obs_shape)}"
                raise ConfigError(f"{name}: expected {wanted} for {seen}, got {_describe(out)}; {advice}")


def _is_linen(name: str, module: Any) -> None:
    if isinstance(module, nnx.Module) or (isinstance(module, type) and issubclass(module, nnx.Module)):
        got = module.__name__ if isinstance(module, type) else type(module).__name__
        raise ConfigError(f"{name}: expected a Flax Linen module, got {got} of flax.nnx; pass a flax.linen.Module")
    if isinstance(module, type) or not hasattr(module, "apply"):
        raise ConfigError(f"{name}: expected a Flax module, such as MyModule(), got {module!r}")


def _shapes(name: str, module: Any, spec: EnvSpec, lead: tuple[int, ...]) -> Any:
    """Shapes of a module's outputs for observations with leading axes `lead`."""
    zeros = lambda lead: jnp.zeros((*lead, *spec.obs_shape), jnp.float32)  # noqa: E731
    try:
        return jax.eval_shape(lambda key: module.apply(module.init(key, zeros((1,))), zeros(lead)), jax.random.key(0))
    except Exception as error:  # the caller's code may raise anything
        reason = f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0]}"
        raise ConfigError(
            f"{name}: expected a module that reads observations of shape {(*lead, *spec.obs_shape)}, got {reason}; "
            + (
                "keep all axes before those of one observation"
                if len(lead) > 1
                else "it must need no other input, such as rngs or state"
            )
        ) from error


def _policy(spec: EnvSpec, lead: tuple[int, ...], out: Any) -> tuple[bool, str, str]:
    """(whether an actor's output is right, what is expected, how to fix it)."""
    size = spec.action.outputs
    if not isinstance(spec.action, Box):
        wanted = (*lead, size)
        return getattr(out, "shape", None) == wanted, f"logits of shape {wanted}", f"end it with nn.Dense({size})"
    mean, spread = out if isinstance(out, (tuple, list)) and len(out) == 2 else (None, None)
    right = getattr(mean, "shape", None) == (*lead, size) and _spreads(getattr(spread, "shape", None), (*lead, size))
    pair = f"a pair (mean, log_std) of shapes {(*lead, size)} and ({size},) or {(*lead, size)}"
    return right, pair, f"return nn.Dense({size})(x) and a parameter of shape ({size},)"


def _value(lead: tuple[int, ...], out: Any) -> tuple[bool, str, str]:
    """(whether a critic's output is right, what is expected, how to fix it)."""
    right = getattr(out, "shape", None) in (lead, (*lead, 1))
    return right, f"values of shape {lead}", "end it with nn.Dense(1)(x)[..., 0]"


def _spreads(shape: tuple[int, ...] | None, wanted: tuple[int, ...]) -> bool:
    """Whether `shape` broadcasts to exactly `wanted`."""
    if shape is None:
        return False
    padded = (1,) * (len(wanted) - len(shape)) + shape
    return len(padded) == len(wanted) and all(a in (1, b) for a, b in zip(padded, wanted, strict=True))


def _describe(out: Any) -> str:
    if isinstance(out, (tuple, list)):
        return f"{len(out)} outputs ({', '.join(_describe(x) for x in out)})"
    return f"shape {out.shape}" if hasattr(out, "shape") else type(out).__name__
