"""Statistics over a batch that is masked and split over devices, against NumPy on the whole batch."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nextpolicy.core.shards import Shards

ONE, FOUR = Shards(), Shards("devices", 4)


def drawn(kind: str, size: int = 400) -> np.ndarray:
    rng = np.random.default_rng(3)
    samples = {
        "uniform": rng.uniform(size=size),
        "heavy tail": np.exp(3 * rng.normal(size=size)),
        "tied": rng.integers(0, 4, size).astype(float),
        "tiny": 1e-12 * rng.uniform(size=size),
        "all equal": np.full(size, 0.3),
        "rounded": np.full(size, 0.1) * (1 + 1e-7 * rng.integers(0, 3, size)),
        "zero": np.zeros(size),
    }
    return samples[kind].astype(np.float32)


@pytest.mark.parametrize("share", [0.5, 0.77, 0.95])
@pytest.mark.parametrize("kind", ["uniform", "heavy tail", "tied", "tiny", "all equal", "rounded", "zero"])
def test_a_quantile_is_that_of_all_valid_samples_of_all_shards(kind: str, share: float) -> None:
    x = drawn(kind)
    valid = np.arange(x.size) % 3 != 1
    expected = np.quantile(x[valid], share, method="inverted_cdf")
    tolerance = 2e-6 * x[valid].max()
    found = ONE.quantile(jnp.asarray(x.reshape(20, 20)), share, jnp.asarray(valid.reshape(20, 20)))
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=tolerance)
    split = jax.vmap(lambda x, valid: FOUR.quantile(x, share, valid), axis_name="devices")
    np.testing.assert_allclose(split(x.reshape(4, -1), valid.reshape(4, -1)), [expected] * 4, rtol=1e-6, atol=tolerance)
    whole = np.quantile(x, share, method="inverted_cdf")
    np.testing.assert_allclose(ONE.quantile(jnp.asarray(x), share), whole, rtol=1e-6, atol=2e-6 * x.max())


def test_a_quantile_of_nothing_or_of_nan_is_nan() -> None:
    x = jnp.asarray(drawn("uniform"))
    assert np.isnan(ONE.quantile(x, 0.95, jnp.zeros_like(x, bool)))
    assert np.isnan(ONE.quantile(x.at[7].set(jnp.nan), 0.95))
    split = jax.vmap(lambda x: FOUR.quantile(x, 0.95), axis_name="devices")
    assert np.isnan(split(x.at[7].set(jnp.nan).reshape(4, -1))).all()
    assert np.isfinite(ONE.quantile(x.at[7].set(jnp.nan), 0.95, jnp.ones_like(x, bool).at[7].set(False)))
