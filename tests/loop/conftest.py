"""Compiled programs of these tests are kept between tests and between runs of the tests."""

from __future__ import annotations

import jax
import pytest


@pytest.fixture(scope="session", autouse=True)
def _compiled_programs(request: pytest.FixtureRequest) -> None:
    cache = getattr(request.config, "cache", None)
    if cache is None:  # pytest -p no:cacheprovider
        return
    jax.config.update("jax_compilation_cache_dir", str(cache.mkdir("xla")))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.2)
