"""The benchmark of exploration: its two algorithms by hand, and its files and tables from a training made up."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
from tests.studies.helpers import made_up_study

import exploration
from nextpolicy import algos
from nextpolicy.algos.ppo import PPO
from nextpolicy.config import presets
from nextpolicy.criteria.stable_values import StableValues
from nextpolicy.envs.four_rooms import FourRooms
from nextpolicy.loop.state import Setup, population_hypers
from nextpolicy.nets import build as nets
from nextpolicy.nets.heads import Categorical
from nextpolicy.studies.four_rooms import exact, group
from nextpolicy.tabular import solve
from nextpolicy.types import PolicySnapshot, Rollout

SMALL = {"num_envs": 4, "rollout_length": 16, "minibatch_size": 32, "torso": "mlp", "hidden": (8,), "epochs": 2}


@pytest.fixture(autouse=True)
def _registered(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Both algorithms are registered during a test; `main` may do it again."""
    before = dict(algos.ALGORITHMS), dict(algos.VARIANTS)
    for algorithm in (exploration.Softened, exploration.Counting):
        algos.register(algorithm)
    monkeypatch.setattr(algos, "register", lambda algorithm: None)
    yield
    for registry, content in zip((algos.ALGORITHMS, algos.VARIANTS), before, strict=True):
        registry.clear()
        registry.update(content)


@functools.cache
def algorithm_of(algo: str) -> Any:
    config = presets.build("four-rooms", algo=algo, **SMALL)
    spec = FourRooms().spec
    return Setup(config, spec, nets.build(spec, config.net), StableValues()).algorithm


@functools.cache
def compiled(algo: str) -> Callable[..., Any]:
    return jax.jit(algorithm_of(algo).learn)


@functools.cache
def learned(algo: str, rounds: int = 2, **fields: float) -> tuple[Any, list[tuple[Any, ...]]]:
    """The algorithm, and before and after each round: (learner, target, rollout, (learner, evidence, metrics))."""
    algorithm, config = algorithm_of(algo), presets.build("four-rooms", algo=algo, **SMALL, **fields)
    settings = jax.tree.map(lambda x: x[0], population_hypers(config)).algorithm
    learner = algorithm.init(jax.random.key(0))
    # Logits far from 0, so that a temperature matters.
    learner = learner._replace(params=exploration.scaled(learner.params, 50.0))
    pi = algorithm.behaviour(algorithm.init(jax.random.key(1)))
    target = pi._replace(params=exploration.scaled({"actor": pi.params}, 40.0)["actor"])
    learn = compiled(algo)
    found = []
    for k in range(rounds):
        rollout = made_up_rollout(algorithm.networks.policy(algorithm.behaviour(learner)), seed=k)
        after = learn(settings, learner, target, rollout, jax.random.key(k), jnp.asarray(0.0))
        found.append((settings, learner, target, rollout, after))
        learner = after[0]
    return algorithm, found


def made_up_rollout(policy: Callable[[jax.Array], Any], seed: int) -> Rollout:
    """Random states and actions, a few of them rewarded and ended."""
    rng = np.random.default_rng(seed)
    shape = (SMALL["rollout_length"], SMALL["num_envs"])
    obs, next_obs = (jnp.asarray(rng.integers(104, size=shape), jnp.int32) for _ in range(2))
    action, ended = jnp.asarray(rng.integers(4, size=shape), jnp.int32), jnp.asarray(rng.integers(8, size=shape))
    dist = policy(obs)
    reward = (ended == 0).astype(jnp.float32)
    log_prob = dist.log_prob(action)
    return Rollout(obs, next_obs, action, reward, ended == 0, ended == 1, log_prob, dist, jnp.zeros(shape))


def test_without_a_bonus_it_is_ppo_bit_for_bit() -> None:
    _, plain = learned("sv-static")
    _, counting = learned("counting-sv-static", bonus=0.0)
    for (*_, (a, *ours)), (*_, (b, *theirs)) in zip(plain, counting, strict=True):
        jax.tree.map(np.testing.assert_array_equal, (a, *ours), (type(a)(*b[:4]), *theirs))
        assert not b.intrinsic.any()


def test_at_temperature_one_it_is_ppo() -> None:
    """To rounding: a product with 1 in the gradient makes XLA add in another order."""
    _, plain = learned("sv-static")
    _, softened = learned("softened-sv-static", temperature=1.0)
    close = lambda x, y: np.testing.assert_allclose(x, y, rtol=2e-4, atol=1e-6)  # noqa: E731
    for (*_, ours), (*_, theirs) in zip(plain, softened, strict=True):
        jax.tree.map(close, ours, theirs)


def test_softened_evaluates_the_sharper_policy_and_improves_the_softer() -> None:
    algorithm, found = learned("softened-sv-static", temperature=3.0)
    for _, _, target, rollout, (learner, evidence, metrics) in found:
        pi = sharp(algorithm, target, rollout.obs)
        after = sharp(algorithm, algorithm.behaviour(learner), rollout.obs)
        assert evidence.kl_drift == pytest.approx(float(pi.kl(rollout.behaviour_dist).mean()), rel=1e-4)
        assert evidence.kl_jump == pytest.approx(float(pi.kl(after).mean()), rel=1e-4)
        ratio = jnp.exp(pi.log_prob(rollout.action) - rollout.behaviour_log_prob)
        assert metrics["ratio_max"] == pytest.approx(float(ratio.max()), rel=1e-4)
        assert metrics["approx_kl"] > 0
    _, found = learned("softened-sv-static", temperature=3.0, learning_rate=0.0)
    for _, before, _, _, (after, _, metrics) in found:
        jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-6), before.params, after.params)
        assert abs(metrics["approx_kl"]) < 1e-6  # both sides of the ratio are softened


def sharp(algorithm: Any, beta: PolicySnapshot, obs: jax.Array) -> Categorical:
    return Categorical(jax.nn.log_softmax(3.0 * algorithm.networks.policy(beta)(obs).logits))


def test_visits_bonus_and_intrinsic_critic_by_hand() -> None:
    algorithm, found = learned("counting-sv-static", bonus=0.5)
    visits, w = np.zeros(104), np.zeros(104)
    for settings, before, target, rollout, (after, *_) in found:
        obs, next_obs = np.asarray(rollout.obs), np.asarray(rollout.next_obs)
        np.add.at(visits, next_obs, 1)
        np.testing.assert_array_equal(after.visits, visits)
        advantage, following = (
            np.zeros((17, 4)),
            np.where(rollout.terminated | rollout.truncated, exploration.START, next_obs),
        )
        for t in reversed(range(16)):
            error = 0.5 / np.sqrt(visits[next_obs[t]]) + 0.99 * w[following[t]] - w[obs[t]]
            advantage[t] = error + 0.99 * 0.95 * advantage[t + 1]
        with_counts = before._replace(visits=after.visits)
        log_prob = algorithm.networks.policy(target)(rollout.obs).log_prob(rollout.action)
        ours = algorithm.evaluate_target(settings, with_counts, rollout, log_prob)
        plain = PPO.evaluate_target(algorithm, settings, before, rollout, log_prob)
        total = plain.raw_advantage + advantage[:16]
        np.testing.assert_allclose(ours.advantage, total / np.std(total), rtol=1e-4, atol=1e-5)
        jax.tree.map(np.testing.assert_array_equal, ours._replace(advantage=0), plain._replace(advantage=0))
        w = w + [0.5 * advantage[:16][obs == s].mean() if (obs == s).any() else 0.0 for s in range(104)]
        np.testing.assert_allclose(after.intrinsic, w, rtol=1e-4)


@pytest.fixture
def rows_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The rows of trainings that all have the same made-up policies."""
    study = made_up_study(tmp_path, seeds=2, rounds=12)
    monkeypatch.setattr(group, "train", lambda configs: {name: last_two(study, c) for name, c in configs.items()})
    path = tmp_path / "new" / "rows.csv"
    main(monkeypatch, "run", "--seeds", "2", "--rounds", "12", "--out", str(path))
    return path


def last_two(study: Any, config: Any) -> group.Outcome:
    """Those of dynamic SV-PPO, whose target is held at times."""
    metrics = study.metrics | dict.fromkeys(("entropy", "kl_drift", "ratio_ess"), study.metrics["diff"])
    last = lambda columns: {name: x[-2:] for name, x in columns.items()}  # noqa: E731
    run = exact.Trajectory(*(x[-2:] for x in study.trajectory))
    return group.Outcome(study.mdp, config.members(), last(metrics), last(study.exact), run)


def main(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> None:
    monkeypatch.setattr(sys, "argv", ["exploration.py", *arguments])
    exploration.main()


def test_files_and_tables(
    rows_file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    frame = pd.read_csv(rows_file)
    assert len(frame) == 2 * 3 * (5 + 4 + 3) * 2
    assert not frame.duplicated(["experiment", "task", "algo", "value", "seed"]).any()
    study = made_up_study(tmp_path, seeds=2, rounds=12)
    cubed = study.trajectory.behaviour[-1] ** 3.0
    value = solve.state_value(study.mdp, cubed / cubed.sum(-1, keepdims=True)) @ study.mdp.start
    row = frame.query("experiment == 'temperature' and value == 3 and seed == 1").iloc[0]
    assert row["mean_value"] == pytest.approx(value[1:].mean(), rel=1e-5)
    assert row["collecting_mean"] == pytest.approx(study.exact["value_behaviour"][-1].mean(), rel=1e-5)
    assert row["mean_value"] != pytest.approx(row["collecting_mean"], rel=1e-3)
    accepted, held = study.metrics["accepted"][-1], study.trajectory.target[-1] ** 3.0
    before = solve.state_value(study.mdp, held / held.sum(-1, keepdims=True))[:-1] @ study.mdp.start
    assert row["improvement"] == pytest.approx((value[1:] - before)[accepted].mean(), rel=1e-4)
    assert row["harmful"] == pytest.approx((value[1:] < before)[accepted].mean())
    monkeypatch.setattr(group, "train", lambda configs: pytest.fail("it trains what the file has"))
    capsys.readouterr()
    main(monkeypatch, "run", "--seeds", "2", "--rounds", "12", "--out", str(rows_file))
    printed = capsys.readouterr().out
    main(monkeypatch, "table", str(rows_file))
    assert printed == capsys.readouterr().out


def test_one_experiment_with_small_networks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    study, torsos = made_up_study(tmp_path, seeds=2, rounds=12), set()

    def train(configs: Any) -> dict[str, group.Outcome]:
        torsos.update((config.net.torso, config.net.hidden) for config in configs.values())
        return {name: last_two(study, config) for name, config in configs.items()}

    monkeypatch.setattr(group, "train", train)
    path = tmp_path / "rows.csv"
    main(monkeypatch, "run", "--seeds", "2", "--rounds", "12", "--mlp", "--only", "count", "--out", str(path))
    assert set(pd.read_csv(path)["experiment"]) == {"count"}
    assert torsos == {("mlp", (64, 64))}


def test_the_committed_table_follows_from_its_rows(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    results = Path(__file__).parents[2] / "results" / "exploration"
    main(monkeypatch, "table", str(results / "rows.csv"))
    assert capsys.readouterr().out == (results / "table.md").read_text()


def test_differences_are_between_equal_seeds() -> None:
    columns = dict.fromkeys(("final_value", "steps_to_goal", "harmful", "collecting_mean", "collecting_final"), 0.5)
    columns |= {"failed": False, "entropy": 1.0, "kl_drift": 0.0}
    rows = [
        {"experiment": "count", "task": "limit-40", "algo": "ppo", "value": value, "seed": seed, **columns}
        | {"mean_value": seed + 0.25 * (value > 0)}
        for value, seeds in ((0.0, range(8)), (0.1, reversed(range(8))))
        for seed in seeds
    ]
    lines = exploration.table(pd.DataFrame(rows)).splitlines()
    plain, changed = [line.split(" | ") for line in lines if line.startswith("| limit-40")]
    assert plain[2:6] == ["0", "8", "3.5000 +- 0.8660", ""]
    assert changed[2:6] == ["0.1", "8", "3.7500 +- 0.8660", "+0.2500 [+0.2500, +0.2500]"]
    assert changed[9] == "50.0 +- 0.0 %"


def test_a_file_of_another_size_is_refused(
    rows_file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(monkeypatch, "run", "--seeds", "3", "--rounds", "12", "--out", str(rows_file))
    assert (
        "expected a file of (3, 12, 'small-cnn') seeds, rounds and torso, got one of (2, 12," in capsys.readouterr().err
    )
    with pytest.raises(SystemExit):
        main(monkeypatch, "run", "--seeds", "2", "--rounds", "12", "--mlp", "--out", str(rows_file))
    assert "expected a file of (2, 12, 'mlp')" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["table", "{}/no.csv"], "expected rows of `run`, got a file that cannot be read"),
        (["table", "{}/other.csv"], "expected rows of `run`, got no column"),
        (["run", "--seeds", "0", "--out", "{}/new.csv"], "seeds, rounds: expected at least 1, got 0 and 195"),
    ],
)
def test_wrong_files_and_sizes_are_refused_in_one_line(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    arguments: list[str],
    message: str,
) -> None:
    (tmp_path / "other.csv").write_text("env,variant\na,b\n")
    with pytest.raises(SystemExit):
        main(monkeypatch, *(word.format(tmp_path) for word in arguments))
    assert message in capsys.readouterr().err.splitlines()[-1]
