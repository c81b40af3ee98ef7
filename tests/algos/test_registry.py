"""A second algorithm: what it takes to register one, and that the loop asks nothing else of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import nextpolicy
from nextpolicy import algos
from nextpolicy.algos.base import Pace, Parts
from nextpolicy.cli import main as cli
from nextpolicy.config import FIELDS, ConfigError, presets
from nextpolicy.settings import Settings, pytree, setting
from nextpolicy.types import Array, Evidence, Metrics, Params, PolicySnapshot, Rollout

pytestmark = pytest.mark.quick_compilation

SMALL = {"num_envs": 4, "rollout_length": 8, "hidden": (8,), "total_env_steps": 32 * 6, "block_rounds": 3}


@pytree
@dataclass(frozen=True)
class CloneSettings(Settings):
    """Those of `Clone`."""

    gamma: float = setting(0.9, "Discount factor.", traced=True, low=0, high=0.999)
    pull: float = setting(0.5, "How far the actor moves towards zero each round.", traced=True, low=0, high=1)


class CloneLearner(NamedTuple):
    params: Params


class Clone:
    """Shrinks its actor every round: enough to see what the loop does with any algorithm."""

    name: ClassVar[str] = "clone"
    settings: ClassVar[type[Settings]] = CloneSettings
    variants: ClassVar[dict[str, Pace]] = {"clone": "plain", "sv-clone": "dynamic"}

    def __init__(self, settings: CloneSettings, parts: Parts) -> None:
        self.networks, self.shards = parts.networks, parts.shards

    def init(self, key: Array) -> CloneLearner:
        return CloneLearner(self.networks.init(key))

    def behaviour(self, learner: CloneLearner) -> PolicySnapshot:
        return PolicySnapshot(learner.params["actor"], None)

    def learn(
        self,
        settings: CloneSettings,
        learner: CloneLearner,
        target: PolicySnapshot,
        rollout: Rollout,
        key: Array,
        progress: Array,
    ) -> tuple[CloneLearner, Evidence, Metrics]:
        shrunk = jax.tree.map(lambda x: x * (1.0 - settings.pull), learner.params)
        size = self.shards.mean(jnp.abs(rollout.reward))
        evidence = Evidence(size * 0.0, size * 0.0, size, size * 0.0, size * 0.0, size * 0.0, size)
        return CloneLearner(shrunk), evidence, {"pulled": settings.pull, "finite": jnp.isfinite(size)}

    def update_statistics(self, learner: CloneLearner, rollout: Rollout) -> CloneLearner:
        return learner


@pytest.fixture
def clone() -> Iterator[None]:
    before = dict(algos.ALGORITHMS), dict(algos.VARIANTS)
    algos.register(Clone)
    yield
    for table, content in zip((algos.ALGORITHMS, algos.VARIANTS), before, strict=True):
        table.clear()
        table.update(content)


@pytest.mark.usefixtures("clone")
def test_an_algorithm_trains_sweeps_resumes_and_acts(tmp_path, capsys):
    sweep = {"pull": (0.5, 1.0)}
    run = nextpolicy.train(
        "probe/action", algo=("clone", "sv-clone"), sweep=sweep, k_min=2, out=tmp_path / "run", quiet=True, **SMALL
    )
    assert [m.variant for m in run.members] == [
        *("clone[pull=0.5]", "clone[pull=1]", "sv-clone[pull=0.5]", "sv-clone[pull=1]"),
    ]
    accepted = run.metrics.pivot(index="round", columns="member", values="accepted")
    assert accepted[0].all()
    assert accepted[2].tolist() == [False, True] * 3, "two stable rounds"
    assert run.metrics.groupby("member")["pulled"].first().tolist() == [0.5, 1.0, 0.5, 1.0]
    assert all((np.asarray(x) == 0).all() for x in jax.tree.leaves(run.snapshot(member=1)))
    assert "learning_rate" not in run.config.flat()
    assert nextpolicy.load(run.path).evaluate(episodes=2)["episodes"].tolist() == [2] * 4
    assert cli.main(["report", str(run.path), "--out", str(tmp_path / "r.html"), "--page-only"]) == 0, capsys


@pytest.mark.usefixtures("clone")
def test_fields_are_those_of_the_algorithm_in_use():
    assert "pull" in FIELDS
    config = presets.build("probe/action", algo="clone", **SMALL)
    assert (config.value("gamma"), config.value("pull")) == (0.99, 0.5) or config.value("gamma") == 0.9
    with pytest.raises(ConfigError, match="clip: expected a field of this algorithm and criterion, got one of alg"):
        presets.build("probe/action", algo="clone", clip=0.1)
    with pytest.raises(ConfigError, match="pull: expected a field of this algorithm and criterion, got one of alg"):
        presets.build("probe/action", algo="ppo", pull=0.1)
    with pytest.raises(ConfigError, match="algo: expected variants of one algorithm, got clone and ppo"):
        presets.build("probe/action", algo=("ppo", "clone"))
    with pytest.raises(ConfigError, match="sweep: expected fields of this algorithm and criterion, got 'lam'"):
        presets.build("probe/action", algo="clone", sweep={"lam": (0.1, 0.2)})


@pytest.mark.usefixtures("clone")
def test_a_name_belongs_to_one_algorithm():
    with pytest.raises(ValueError, match="name: expected a name that is not taken, got 'clone'"):
        algos.register(Clone)


@pytest.mark.usefixtures("clone")
def test_a_field_is_converted_by_the_algorithm_in_use():
    """`gamma` of PPO goes up to 1, that of `Clone` to .999."""
    assert presets.build("probe/action", gamma=0.9995, **SMALL).value("gamma") == 0.9995
    with pytest.raises(ConfigError, match=r"gamma: expected a number .*, got 0.9995"):
        presets.build("probe/action", algo="clone", gamma=0.9995, **SMALL)
