"""Means over a batch that may be masked and split over devices."""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from nextpolicy.types import Array, PyTree


@dataclass(frozen=True)
class Shards:
    """How the environments of a member are split: into `count` equal parts over the mapped axis `axis_name`."""

    axis_name: str | None = None  # None: all on one device
    count: int = 1

    def key(self, key: Array) -> Array:
        """A different key for each shard."""
        return key if self.axis_name is None else jax.random.fold_in(key, jax.lax.axis_index(self.axis_name))

    def share_of_mean(self, x: Array, valid: Array | None = None) -> Array:
        """This shard's contribution to the mean over valid samples; averaged over shards, it is that mean."""
        if valid is None:
            return jnp.mean(x)
        count = self.average(jnp.sum(valid))
        return jnp.sum(jnp.where(valid, x, 0.0)) / jnp.where(count > 0, count, 1)

    def mean(self, x: Array, valid: Array | None = None) -> Array:
        """Mean over the valid samples of all shards."""
        return self.average(self.share_of_mean(x, valid))

    def variance(self, x: Array, valid: Array | None = None) -> Array:
        """Variance over the valid samples of all shards."""
        return self.mean(jnp.square(x - self.mean(x, valid)), valid)

    def average(self, tree: PyTree) -> PyTree:
        """The mean of each leaf over shards."""
        return tree if self.axis_name is None else jax.lax.pmean(tree, self.axis_name)

    def total(self, tree: PyTree) -> PyTree:
        """The sum of each leaf over shards."""
        return tree if self.axis_name is None else jax.lax.psum(tree, self.axis_name)

    def quantile(self, x: Array, share: float, valid: Array | None = None) -> Array:
        """The quantile of the valid samples; with several shards, the largest of theirs."""
        found = jnp.quantile(x, share) if valid is None else jnp.nanquantile(jnp.where(valid, x, jnp.nan), share)
        return found if self.axis_name is None else jax.lax.pmax(found, self.axis_name)

    def largest(self, x: Array) -> Array:
        """The maximum over all samples of all shards."""
        return jnp.max(x) if self.axis_name is None else jax.lax.pmax(jnp.max(x), self.axis_name)
