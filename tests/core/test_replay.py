"""The replay buffer against a list of Python objects."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nextpolicy.core import replay


def _batch(first: int, rows: int = 3) -> dict[str, jax.Array]:
    number = jnp.arange(first, first + rows)
    return {"number": number, "pair": jnp.stack([number, -number], axis=1).astype(jnp.float32)}


@pytest.mark.parametrize("batches", [0, 1, 3, 4, 5, 11])
def test_it_holds_the_newest_transitions_before_and_after_it_wraps_around(batches: int) -> None:
    held = replay.init(11, _batch(0))  # room for three batches of three; two places are given up
    for i in range(batches):
        held = replay.add(held, _batch(3 * i))
    expected = list(range(3 * batches))[-9:]
    assert int(held.size) == len(expected)
    assert int(held.cursor) == 3 * batches % 9
    rows = np.asarray(held.data["number"])[: len(expected)]
    assert sorted(rows.tolist()) == expected
    np.testing.assert_array_equal(held.data["pair"][: len(expected)], np.stack([rows, -rows], axis=1))


def test_indices_are_uniform_over_what_is_held() -> None:
    held = replay.add(replay.add(replay.init(12, _batch(0)), _batch(0)), _batch(3))
    index = np.asarray(replay.indices(held, jax.random.key(0), (60_000,)))
    counts = np.bincount(index, minlength=12)
    assert (counts[6:] == 0).all()
    assert (np.abs(counts[:6] / 60_000 - 1 / 6) < 5 * np.sqrt(5 / 36 / 60_000)).all()
    np.testing.assert_array_equal(replay.take(held, jnp.asarray([[4, 1]]))["number"], [[4, 1]])


def test_a_buffer_that_cannot_hold_a_batch_is_refused() -> None:
    with pytest.raises(ValueError, match="capacity: expected at least one batch of 3 transitions, got 2"):
        replay.init(2, _batch(0))
