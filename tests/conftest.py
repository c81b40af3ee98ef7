"""House rules for every test: no silent broadcasting, no key used twice, no warning overlooked.

Third-party environments do not all keep these rules. A test that runs one of them says which rule it lifts:

    pytestmark = [pytest.mark.allow_rank_promotion, pytest.mark.allow_key_reuse]

`allow_rank_promotion`  Brax adds [3] to [2, 3] and the like in its physics
`allow_key_reuse`       for environment code that consumes one key twice

Both markers work on a test, a class or (as `pytestmark`) a module. Warnings are errors by `pyproject.toml`; the
few exceptions, all raised inside other people's packages, stand in `_THIRD_PARTY_WARNINGS`.

Compiling is what takes time. Compiled programs are kept between tests and between runs of the tests. What tests the
things around them, or compares numbers to a tolerance, and compares no two different programs bit for bit, says

    pytestmark = pytest.mark.quick_compilation

for a module, or has that marker on a test; `quick_compilation(False)` takes it back for one test of such a module.
XLA then compiles with few optimisations, two to four times as fast. Slow tests, which train for long, are optimised.
"""

from __future__ import annotations

import os
import signal
import threading

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("NEXTPOLICY_KEEP_TRACED", "0")  # what tracing checks, it must check in every run
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # thousands of tiny solves: threads only wait for each other

from collections.abc import Iterator
from functools import partialmethod

import hypothesis
import jax
import pytest
from tests.compiling import FEW_FUSIONS

# One device unless a test asks for more: `nextpolicy.train` takes all cores where nobody has chosen.
jax.config.update("jax_num_cpu_devices", 1)

# Under nohup, or in the background of a script, these are ignored, and children inherit that.
for _signum, _usual in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    if threading.current_thread() is threading.main_thread() and signal.getsignal(_signum) is signal.SIG_IGN:
        signal.signal(_signum, _usual)

_THIRD_PARTY_WARNINGS = (
    # Brax imports JAXopt, which announces on import that it is no longer maintained.
    "ignore:JAXopt is no longer maintained:DeprecationWarning",
    # Brax says so of itself whenever it loads a system.
    "ignore:Brax System, piplines and environments are not actively being maintained:UserWarning",
    # JAX does not write its cache atomically: a process killed in a write leaves half a file, which is compiled again.
    "ignore:Error reading persistent compilation cache entry:UserWarning",
    # From JAX 0.11 on, when a kernel is lowered. Our kernels are written for it; the bound jax<0.12 keeps it.
    "ignore:The Pallas Triton backend is deprecated:DeprecationWarning",
)

# The same examples on every machine and every run: a red test is red for everybody. Fixtures here only set JAX
# options, which hold no state that one example could leave behind for the next.
hypothesis.settings.register_profile(
    "nextpolicy",
    derandomize=True,
    deadline=None,
    database=None,
    max_examples=40,
    suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture],
)
hypothesis.settings.load_profile("nextpolicy")


def pytest_configure(config: pytest.Config) -> None:
    """Register the markers of this file and the exceptions to warnings-are-errors."""
    config.addinivalue_line("markers", "allow_rank_promotion: runs third-party code that broadcasts ranks silently")
    config.addinivalue_line("markers", "allow_key_reuse: runs third-party code that consumes a PRNG key twice")
    config.addinivalue_line("markers", "quick_compilation: compiles with few optimisations")
    config.addinivalue_line("markers", "no_cover: left out of the coverage figure; known also without pytest-cov")
    for rule in _THIRD_PARTY_WARNINGS:
        config.addinivalue_line("filterwarnings", rule)


def _quick(item: pytest.Item) -> bool:
    marker = item.get_closest_marker("quick_compilation")
    return marker is not None and marker.args != (False,) and item.get_closest_marker("slow") is None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that compile alike follow one another: a change empties what is compiled in memory."""
    items.sort(key=lambda item: not _quick(item))


_compile = jax.stages.Lowered.compile
_compile_quickly = partialmethod(_compile, FEW_FUSIONS)  # training's, compiled by hand


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Compile as in production, unless the test lifts the rule; before fixtures of any scope compile something."""
    if jax.config.values["jax_disable_most_optimizations"] and not _quick(item):
        jax.clear_caches()  # no test of production's programs is served one compiled with few optimisations
    jax.config.update("jax_disable_most_optimizations", _quick(item))
    jax.stages.Lowered.compile = _compile_quickly if _quick(item) else _compile  # type: ignore[assignment]


@pytest.fixture(scope="session", autouse=True)
def _compiled_programs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Kept where all workers, the processes that tests start, and the next run of the tests find them."""
    cache = getattr(request.config, "cache", None)
    folder = tmp_path_factory.mktemp("xla") if cache is None else cache.mkdir("xla")  # pytest -p no:cacheprovider
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.2)


@pytest.fixture(autouse=True)
def _strict_jax(request: pytest.FixtureRequest) -> Iterator[None]:
    """Broadcasting across ranks and using a key twice are errors, unless the test's markers lift the rule."""
    broadcasting = "allow" if request.node.get_closest_marker("allow_rank_promotion") else "raise"
    check_keys = request.node.get_closest_marker("allow_key_reuse") is None
    with jax.numpy_rank_promotion(broadcasting), jax.debug_key_reuse(check_keys):
        yield


@pytest.fixture
def x64(_strict_jax: None) -> Iterator[None]:
    """Double precision for one test."""
    with jax.enable_x64(True):
        yield
