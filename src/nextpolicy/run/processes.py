"""Devices and processes: all cores of a CPU, decisions of process 0, and arrays from all processes."""

from __future__ import annotations

import contextlib
import os

import jax
import numpy as np
from jax.experimental import multihost_utils

from nextpolicy.types import PyTree


def use_all_cores() -> None:
    """On a CPU, one XLA device per core, so that members of a population train in parallel.

    A choice of the caller's stands, and JAX keeps the devices it has once it has been used.
    """
    if jax.config.values["jax_num_cpu_devices"] not in (None, -1):
        return
    if "host_platform_device_count" not in os.environ.get("XLA_FLAGS", ""):
        with contextlib.suppress(RuntimeError):
            jax.config.update("jax_num_cpu_devices", _cores())


def idle_cores(members: int) -> str:
    """One line if JAX was used before it could be told of all cores, and members could use them; else nothing."""
    if members == 1 or _cores() == 1 or jax.config.values["jax_num_cpu_devices"] not in (None, -1):
        return ""
    if jax.default_backend() != "cpu" or len(jax.devices()) > 1:
        return ""
    call = f'jax.config.update("jax_num_cpu_devices", {_cores()})'
    return f"training on 1 of {_cores()} cores, since JAX was in use already; `{call}` before that uses all of them"


def _cores() -> int:
    return max(1, len(os.sched_getaffinity(0)))


def agreed(number: int) -> int:
    """What process 0 says, on all of them: where their clocks or folders decide, they must not decide apart."""
    return number if jax.process_count() == 1 else int(multihost_utils.broadcast_one_to_all(np.int32(number)))


def fetch(tree: PyTree) -> PyTree:
    """Arrays on the host; from all processes where there are several."""
    if jax.process_count() > 1:
        tree = multihost_utils.process_allgather(tree, tiled=True)
    return jax.tree.map(np.asarray, tree)
