"""Backends as records: what a new one takes, and what the shipped ones say of themselves."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import nextpolicy
from nextpolicy.cli import main as cli
from nextpolicy.config import presets
from nextpolicy.envs import build, registry
from nextpolicy.envs.base import Discrete, EnvSpec, auto_reset, check_options
from nextpolicy.envs.registry import Backend
from nextpolicy.run import folder, traced

ROOT = Path(__file__).parents[2]
TINY = {"num_envs": 4, "rollout_length": 8, "minibatch_size": 16, "hidden": (8,), "total_env_steps": 64}


class TwoState:
    """Two states; the reward is 1 for the action that names the state, and the state flips."""

    def __init__(self, env_id: str, length: int) -> None:
        self.spec = EnvSpec(id=env_id, obs_shape=(1,), action=Discrete(2), time_limit=length)

    def _reset_one(self, key: jax.Array) -> tuple[Any, jax.Array]:
        return (jnp.zeros((), jnp.int32), jnp.zeros((), jnp.int32)), jnp.zeros(1)

    def reset(self, key: jax.Array, num_envs: int) -> tuple[Any, jax.Array]:
        return jax.vmap(self._reset_one)(jax.random.split(key, num_envs))

    def step(self, key: jax.Array, state: Any, action: jax.Array) -> tuple[Any, Any]:
        at, age = state
        at, age, reward = 1 - at, age + 1, jnp.float32(action == at)
        never = jnp.zeros(at.shape, bool)
        obs = at[:, None].astype(jnp.float32)
        fresh = self.reset(key, at.shape[0])
        return auto_reset(fresh, (at, age), obs, reward, never, age >= self.spec.time_limit)


def make(name: str, **options: int) -> TwoState:
    check_options(f"twostate/{name}", options, {"length"})
    return TwoState(f"twostate/{name}", options.get("length", 5))


BACKEND = Backend(
    prefix="twostate",
    make=make,
    names=lambda: ["flip", "odd", "hard"],
    excluded={"hard": "is too hard"},
    extra="twostate",
    packages=("pytest",),
    presets={"odd*": "minatar"},
)


@pytest.fixture
def twostate(monkeypatch: pytest.MonkeyPatch) -> None:
    shipped = dict(registry.backends())
    monkeypatch.setattr(registry, "_table", lambda table=shipped: table)
    registry.register(BACKEND)


@pytest.mark.usefixtures("twostate")
def test_one_record_is_all_that_a_backend_takes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert build.names("twostate") == ["twostate/flip", "twostate/odd"]
    assert build.names()[-1] == "twostate/odd"
    assert cli.main(["envs", "twostate"]) == 0
    assert capsys.readouterr().out.split() == ["twostate/flip", "twostate/odd"]
    assert build.make("twostate/flip", length=3).spec.time_limit == 3
    with pytest.raises(ValueError, match="nearest: twostate/flip"):
        build.make("twostate/flop")
    with pytest.raises(ValueError, match="'twostate/hard', which is too hard"):
        build.make("twostate/hard")
    with pytest.raises(ValueError, match=r"twostate/flip: expected length.*, got option 'width'"):
        build.make("twostate/flip", width=3)
    with pytest.raises(ValueError, match="cannot be made with length='long'"):
        build.make("twostate/flip", length="long")
    assert (presets.preset_for("twostate/flip"), presets.preset_for("twostate/odd")) == ("default", "minatar")
    run = nextpolicy.train("twostate/flip", algo="ppo", seeds=1, out=tmp_path / "run", **TINY)
    assert len(run.metrics) == 2


@pytest.mark.usefixtures("twostate")
def test_its_packages_and_code_name_cached_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    assert folder.describe_machine()["versions"]["pytest"] == metadata.version("pytest")
    assert traced._versions()["pytest"] == metadata.version("pytest")
    before = traced.code_digest()
    monkeypatch.setattr(TwoState, "step", lambda *_: None)
    assert traced.code_digest() != before


@pytest.mark.usefixtures("twostate")
def test_a_prefix_belongs_to_one_backend() -> None:
    with pytest.raises(ValueError, match=r"prefix: expected one that no backend has.*, got 'twostate'"):
        registry.register(BACKEND)


@pytest.mark.usefixtures("twostate")
def test_a_missing_package_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def names() -> list[str]:
        raise ModuleNotFoundError("No module named 'two'", name="two")

    registry._table()["twostate"] = Backend(prefix="twostate", make=make, names=names, extra="twostate")
    hint = "twostate: cannot import two; pip install -e '.[twostate]'"
    with pytest.raises(ValueError, match=hint.replace("[", r"\[")):
        build.make("twostate/flip")
    (listed,) = build.names("twostate")
    assert listed.startswith(f"twostate/... ({hint}")


BACKENDS = registry.backends().values()


@pytest.mark.parametrize("backend", BACKENDS, ids=lambda backend: backend.prefix)
def test_records_agree_with_the_rest_of_the_package(backend: Backend) -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert backend.extra is None or backend.extra in extras
    assert set(backend.presets.values()) <= set(presets.PRESETS)
    try:
        names = set(backend.names() if backend.names else ())
    except ImportError:
        pytest.skip(f"the extra `{backend.extra}` is not installed")
    assert set(backend.packages) <= set(folder.describe_machine()["versions"])
    assert set(backend.excluded) <= names


@pytest.mark.parametrize(
    ("env_id", "prefix", "on_host", "module", "preset"),
    [
        ("four-rooms", "four-rooms", False, None, "four-rooms"),
        ("four-rooms/", None, False, None, "default"),
        ("gymnax/CartPole-v1", "gymnax", False, None, "default"),
        ("gymnax/Breakout-MinAtar", "gymnax", False, None, "minatar"),
        ("gymnax/a:CartPole-v1", "gymnax", False, None, "default"),
        ("gymnax", None, False, None, "default"),
        ("brax/ant", "brax", False, None, "brax"),
        ("playground/WalkerRun", "playground", False, None, "playground"),
        ("craftax/Craftax-Symbolic-v1", "craftax", False, None, "craftax"),
        ("navix/Navix-Empty-5x5-v0", "navix", False, None, "default"),
        ("atari/Pong", "atari", True, None, "atari"),
        ("gym/CartPole-v1", "gym", True, None, "default"),
        ("gym/a.b:Mine/Maze-v0", "gym", True, "a.b", "default"),
        ("gym/", None, False, None, "default"),
        ("custom/Mine", None, False, None, "default"),
    ],
)
def test_what_an_id_says(env_id: str, prefix: str | None, on_host: bool, module: str | None, preset: str) -> None:
    backend = registry.find(env_id)
    assert (backend and backend.prefix) == prefix
    assert registry.is_host(env_id) == on_host
    assert registry.module_of(env_id) == module
    assert registry.preset_of(env_id) == preset


def test_the_registry_is_imported_without_jax_and_read_without_any_backends_package() -> None:
    code = (
        "import sys; from nextpolicy.envs import registry; print('jax' in sys.modules); registry.preset_of('brax/ant');"
        "packages = {'gymnax', 'brax', 'mujoco_playground', 'mujoco', 'craftax', 'navix', 'gymnasium', 'ale_py'};"
        "print(*packages & set(sys.modules))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    assert result.stdout.split() == ["False"]
