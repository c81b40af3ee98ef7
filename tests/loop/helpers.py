"""Small runs for tests: a configuration that compiles in a second, and training without a run folder."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import partialmethod
from typing import Any

import jax
import numpy as np
import pytest
from tests.compiling import QUICK

from nextpolicy.config import TrainConfig
from nextpolicy.config.fields import active_fields, settings_classes
from nextpolicy.loop.population import Program, build_program
from nextpolicy.run.job import Job, make_job

TINY: dict[str, Any] = {
    "env": "probe/action-observation",
    "num_envs": 4,
    "rollout_length": 8,
    "minibatch_size": 16,
    "epochs": 2,
    "hidden": (8,),
    "learning_rate": 1e-2,
    "total_env_steps": 32 * 40,
}

CAPACITY = 24  # the same everywhere, so that runs which differ in numbers alone share a compiled program


def tiny(**fields: Any) -> TrainConfig:
    algo, criterion = fields.get("algo", ("ppo",)), fields.get("criterion", "stable-values")
    own = active_fields(*settings_classes((algo,) if isinstance(algo, str) else tuple(algo), criterion))
    return TrainConfig().replace(**{**{name: value for name, value in TINY.items() if name in own}, **fields})


def build(config: TrainConfig, capacity: int = CAPACITY, **custom: Any) -> tuple[Job, Program]:
    """The program on one device, with its own room for metrics."""
    job = make_job(config, **custom)
    return job, build_program(job.setup, job.env, job.hypers, capacity=capacity, devices=jax.devices()[:1])


@contextlib.contextmanager
def compiled_quickly() -> Iterator[None]:
    """Programs whose first `init` falls in here are compiled with QUICK."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jax.stages.Lowered, "compile", partialmethod(jax.stages.Lowered.compile, QUICK))
        yield


def run(job: Job, program: Program, blocks: list[int]) -> tuple[Any, dict[str, np.ndarray]]:
    """The state, fetched, and the metrics [M, rounds] after blocks of these lengths."""
    state = program.init(job.seeds)
    rows = []
    for rounds in blocks:
        state, metrics, _ = program.block(state, rounds)
        rows.append(jax.tree.map(lambda x, n=rounds: np.asarray(x)[:, :n], metrics))
    joined = jax.tree.map(lambda *parts: np.concatenate(parts, axis=1), *rows)
    return fetch(state), joined


def train(config: TrainConfig, blocks: list[int], **custom: Any) -> tuple[Any, dict[str, np.ndarray]]:
    return run(*build(config, **custom), blocks)


def fetch(tree: Any) -> Any:
    """On the host, with typed keys as the numbers they hold."""

    def plain(x: Any) -> np.ndarray:
        return np.asarray(jax.random.key_data(x) if jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key) else x)

    return jax.tree.map(plain, tree)


def member(tree: Any, i: int) -> Any:
    return jax.tree.map(lambda x: x[i], tree)


def assert_same(a: Any, b: Any) -> None:
    """Equal bit for bit, NaN included, leaf by leaf."""
    leaves_a, leaves_b = (jax.tree_util.tree_leaves_with_path(t) for t in (a, b))
    assert [p for p, _ in leaves_a] == [p for p, _ in leaves_b]
    for (path, x), (_, y) in zip(leaves_a, leaves_b, strict=True):
        np.testing.assert_array_equal(np.asarray(x), np.asarray(y), err_msg=jax.tree_util.keystr(path))


def assert_close(a: Any, b: Any, **tolerance: float) -> None:
    """Equal to rounding, leaf by leaf."""
    assert jax.tree.structure(a) == jax.tree.structure(b)
    for (path, x), y in zip(jax.tree_util.tree_leaves_with_path(a), jax.tree.leaves(b), strict=True):
        np.testing.assert_allclose(x, y, err_msg=jax.tree_util.keystr(path), **tolerance)


def differ(a: Any, b: Any) -> bool:
    """Whether anything at all is different."""
    if jax.tree.structure(a) != jax.tree.structure(b):
        return True
    pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    return any(x.shape != y.shape or not np.array_equal(x, y, equal_nan=x.dtype.kind == "f") for x, y in pairs)
