"""Run folders for tests: small runs, and how to compare two of them."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pandas as pd
from tests.compiling import FLAGS

import nextpolicy

SMALL: dict[str, Any] = {
    "num_envs": 4,
    "rollout_length": 8,
    "minibatch_size": 16,
    "epochs": 2,
    "torso": "mlp",
    "hidden": (8,),
    "block_rounds": 1,
    "devices": 1,
    "total_env_steps": 32 * 10,
}
FOUR_ROOMS: dict[str, Any] = {**SMALL, "env": "four-rooms", "quiet": True}  # of the fixture `whole`
COMMAND = [sys.executable, "-m", "nextpolicy"]


def options(**fields: Any) -> list[str]:
    """Fields as command-line options."""
    text = lambda v: ",".join(map(str, v)) if isinstance(v, tuple) else str(v)  # noqa: E731
    return [word for name, value in fields.items() for word in (f"--{name.replace('_', '-')}", text(value))]


def environment(**variables: str) -> dict[str, str]:
    """For a process of its own: one CPU device, and the compiled programs of these tests."""
    few = jax.config.values["jax_disable_most_optimizations"]  # as in the process of the test
    cache = {"JAX_COMPILATION_CACHE_DIR": jax.config.jax_compilation_cache_dir or ""}
    cache["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0.2"
    cache["PYTHONWARNINGS"] = "ignore:Error reading persistent compilation cache entry"  # half of one
    cache["JAX_DISABLE_MOST_OPTIMIZATIONS"] = str(int(few))
    flags = "--xla_force_host_platform_device_count=1" + f" {FLAGS}" * few
    one = {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags}
    # Importing JAX takes seconds where its byte code may not be kept.
    kept = jax.config.jax_compilation_cache_dir
    code = {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": f"{kept}/../pycache"} if kept else {}
    return {**os.environ, **one, **cache, **code, **variables}


def assert_same_run(a: nextpolicy.Run, b: nextpolicy.Run) -> None:
    """The same metrics, except how fast they came, and the same agents, bit for bit."""
    assert a.status["state"] == b.status["state"] == "finished"
    drop = ["steps_per_second"]
    pd.testing.assert_frame_equal(a.metrics.drop(columns=drop), b.metrics.drop(columns=drop), check_exact=True)
    assert len(a.metrics) == a.config.num_rounds * len(a.members)
    leaves_a, leaves_b = (jax.tree.leaves(run._agents) for run in (a, b))
    assert len(leaves_a) == len(leaves_b)
    for x, y in zip(leaves_a, leaves_b, strict=True):
        if jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key):
            x, y = jax.random.key_data(x), jax.random.key_data(y)
        np.testing.assert_array_equal(x, y)


def contents(folder: Path) -> dict[str, bytes]:
    """Every file in a folder and what it holds."""
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}
