"""What several processes of one run share: decisions of process 0, and arrays from all of them."""

from __future__ import annotations

import jax
import numpy as np
from jax.experimental import multihost_utils

from nextpolicy.types import PyTree


def agreed(number: int) -> int:
    """What process 0 says, on all of them: where their clocks or folders decide, they must not decide apart."""
    return number if jax.process_count() == 1 else int(multihost_utils.broadcast_one_to_all(np.int32(number)))


def fetch(tree: PyTree) -> PyTree:
    """Arrays on the host; from all processes where there are several."""
    if jax.process_count() > 1:
        tree = multihost_utils.process_allgather(tree, tiled=True)
    return jax.tree.map(np.asarray, tree)
