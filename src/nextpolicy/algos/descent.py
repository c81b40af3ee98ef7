"""Epochs of minibatch gradient steps on one batch, with the gradient's norm bounded."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from nextpolicy.core import minibatch
from nextpolicy.core.shards import Shards
from nextpolicy.types import Array, Metrics, Params, PyTree

if TYPE_CHECKING:
    import optax

Loss = Callable[[Params, PyTree, PyTree], tuple[Array, Metrics]]  # (params, observations, samples) -> (loss, terms)


def descend(
    loss: Loss,
    optimiser: optax.GradientTransformation,
    shards: Shards,
    state: tuple[Params, Any],
    batch: tuple[PyTree, PyTree],
    index: Array,
    *,
    learning_rate: Array,
    max_grad_norm: float | Array,
    terms: tuple[str, ...],
) -> tuple[tuple[Params, Any], Metrics]:
    """Take one step on the minibatch of each row of `index` [epochs, minibatches, size].

    state  (parameters, optimiser state); the optimiser has no learning rate
    batch  (observations, other samples), leaves [B, ...]
    terms  metrics of the loss to return, as means over all steps, beside `grad_norm`
    """
    import optax  # importing it takes .3 s, which code that only reads configurations should not pay

    obs, samples = batch
    gradient = jax.grad(loss, has_aux=True)

    def one_step(carry: tuple[Params, Any], batch: tuple[Array, PyTree]) -> tuple[tuple[Params, Any], Array]:
        (params, opt_state), (index, sample) = carry, batch
        grads, found = shards.average(gradient(params, minibatch.take(obs, index), sample))
        norm = optax.tree.norm(grads)
        shrink = jnp.minimum(1.0, max_grad_norm / jnp.maximum(norm, 1e-12))
        direction, opt_state = optimiser.update(jax.tree.map(lambda g: g * shrink, grads), opt_state, params)
        params = jax.tree.map(lambda p, d: p - learning_rate * d, params, direction)
        return (params, opt_state), jnp.stack([*(found[name] for name in terms), norm])  # one write, not several

    def one_epoch(carry: tuple[Params, Any], index: Array) -> tuple[tuple[Params, Any], Array]:
        # Permute the small arrays once per epoch, so that gradient steps read them in order.
        return jax.lax.scan(one_step, carry, (index, minibatch.take(samples, index)))

    learned, found = jax.lax.scan(one_epoch, state, index)
    return learned, dict(zip((*terms, "grad_norm"), jnp.mean(found, axis=(0, 1)), strict=True))
