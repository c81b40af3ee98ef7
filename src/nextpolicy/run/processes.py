"""Use all CPU cores, share decisions of process 0, and gather arrays from all processes."""

from __future__ import annotations

import contextlib
import os
import resource
import sys

import jax
import numpy as np
from jax.experimental import multihost_utils

from nextpolicy.types import PyTree


def use_all_cores() -> None:
    """Create one XLA device per CPU core, so that the members of a population train in parallel.

    Does nothing if the caller has set the number of devices or JAX is already initialised.
    """
    if jax.config.values["jax_num_cpu_devices"] not in (None, -1):
        return
    if "host_platform_device_count" not in os.environ.get("XLA_FLAGS", ""):
        with contextlib.suppress(RuntimeError):
            jax.config.update("jax_num_cpu_devices", _cores())


def idle_cores(members: int) -> str:
    """A warning if several members must share one core because JAX is already initialised; otherwise empty."""
    if members == 1 or _cores() == 1 or jax.config.values["jax_num_cpu_devices"] not in (None, -1):
        return ""
    if jax.default_backend() != "cpu" or len(jax.devices()) > 1:
        return ""
    call = f'jax.config.update("jax_num_cpu_devices", {_cores()})'
    return f"training on 1 of {_cores()} cores because JAX was already initialised; to use all, call `{call}` first"


def _cores() -> int:
    return max(1, len(os.sched_getaffinity(0)))


def agreed(number: int) -> int:
    """The number of process 0, in all processes: clocks and folders may differ between them."""
    return number if jax.process_count() == 1 else int(multihost_utils.broadcast_one_to_all(np.int32(number)))


def fetch(tree: PyTree) -> PyTree:
    """Copy arrays to the host, gathered from all processes."""
    if jax.process_count() > 1:
        tree = multihost_utils.process_allgather(tree, tiled=True)
    return jax.tree.map(np.asarray, tree)


def peak_memory() -> int:
    """Peak bytes in use so far: of the device if it reports them, else of this process."""
    stats = jax.local_devices()[0].memory_stats()
    if stats and "peak_bytes_in_use" in stats:
        return int(stats["peak_bytes_in_use"])
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
