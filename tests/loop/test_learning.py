"""Learning itself: probes whose values are known by hand, and the benchmarks of each suite (slow)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import nextpolicy
from nextpolicy.config import TrainConfig
from nextpolicy.nets.heads import Categorical
from nextpolicy.types import PolicySnapshot

from .helpers import build, member

pytestmark = [pytest.mark.allow_rank_promotion, pytest.mark.allow_key_reuse, pytest.mark.quick_compilation]

GAMMA = 0.9
PROBE: dict[str, Any] = {
    "algo": ("ppo", "sv-dynamic"),
    "num_envs": 16,
    "rollout_length": 16,
    "minibatch_size": 64,
    "epochs": 4,
    "hidden": (16,),
    "learning_rate": 1e-2,
    "learning_rate_final": 1e-4,
    "value_clip": float("inf"),
    "entropy_coef": 0.0,
    "advantage_kind": "retrace",
    "gamma": GAMMA,
    "delta_v": 0.2,
    "k_min": 1,
    "k_max": 4,
    "total_env_steps": 256 * 150,
}


def learned(env: str, obs: list[float], **fields: Any) -> list[tuple[np.ndarray, Any]]:
    """(values, policy) at these observations for PPO and for SV-PPO, after training."""
    config = TrainConfig().replace(env=env, **{**PROBE, **fields})
    job, program = build(config, capacity=config.num_rounds)
    state, metrics, _ = program.block(program.init(job.seeds), config.num_rounds)
    assert metrics["finite"].all()
    at = jnp.asarray(obs)[:, None]
    results = []
    for i in range(2):
        agent = member(state.agent, i)
        policy = job.setup.networks.policy(PolicySnapshot(agent.learner.params["actor"], agent.learner.obs_stats))(at)
        results.append(
            (np.asarray(job.setup.networks.value(agent.learner.params, agent.learner.obs_stats)(at)), policy)
        )
    return results


def probability_of_right(policy: Categorical) -> np.ndarray:
    return np.exp(np.asarray(policy.logits))[:, 1]


# probe, observations, their values
VALUES: list[tuple[str, list[float], list[float]]] = [
    ("constant", [0.0], [1.0]),
    ("observation", [-1.0, 1.0], [-1.0, 1.0]),
    ("discount", [0.0, 1.0], [GAMMA, 1.0]),
]


def probes(fast: str) -> list[Any]:
    cases = [(f"probe/{n}{kind}", obs, v) for n, obs, v in VALUES for kind in ("", "-continuous")]
    return [pytest.param(*c, id=c[0], marks=[] if c[0] == fast else pytest.mark.slow) for c in cases]


@pytest.mark.parametrize(("env", "obs", "values"), probes(fast="probe/discount"))
def test_probe_values(env: str, obs: list[float], values: list[float]) -> None:
    for got, _ in learned(env, obs):
        np.testing.assert_allclose(got, values, atol=0.05)


@pytest.mark.parametrize(
    ("env", "obs"),
    [pytest.param("probe/action", [0.0], marks=pytest.mark.slow), ("probe/action-observation", [-1.0, 1.0])],
)
def test_probe_policies(env: str, obs: list[float]) -> None:
    wanted = [1.0] if len(obs) == 1 else [0.0, 1.0]
    for value, policy in learned(env, obs):
        np.testing.assert_allclose(probability_of_right(policy), wanted, atol=0.1)
        np.testing.assert_allclose(value, 1.0, atol=0.25)


@pytest.mark.parametrize(
    ("env", "obs"),
    [
        pytest.param("probe/action-continuous", [0.0], marks=pytest.mark.slow),
        ("probe/action-observation-continuous", [-1.0, 1.0]),
    ],
)
def test_continuous_probe_policies(env: str, obs: list[float]) -> None:
    """The mean finds a = 0.5, or s / 2; the value is the optimum less the variance of the exploration left."""
    wanted = [0.5] if len(obs) == 1 else [-0.5, 0.5]
    for value, policy in learned(env, obs, log_std_init=-1.0):
        np.testing.assert_allclose(np.asarray(policy.mean)[:, 0], wanted, atol=0.1)
        spread = np.exp(2 * np.asarray(policy.log_std)[:, 0])
        np.testing.assert_allclose(value, 1.0 - spread, atol=0.1)


def test_an_endless_episode_is_worth_its_whole_future() -> None:
    """v = 1 / (1 - gamma) with bootstrapping; the control, a time limit read as death, must miss it."""
    whole, of_eight = 1 / (1 - GAMMA), (1 - GAMMA**8) / (1 - GAMMA)
    for value, _ in learned("probe/endless", [0.0]):
        np.testing.assert_allclose(value, whole, rtol=0.05)
    for value, _ in learned("probe/endless", [0.0], truncation="terminal"):
        assert value[0] < 1.02 * of_eight
        assert value[0] < 0.7 * whole


# --- benchmarks: the target of each suite, with the preset it comes with ---

BOTH = ("ppo", "sv-dynamic")


def scores(tmp: Any, env: str, **fields: Any) -> dict[str, np.ndarray]:
    run = nextpolicy.train(env, algo=BOTH, out=tmp / "run", quiet=True, **fields)
    return {variant: rows["score"].to_numpy() for variant, rows in run.scores().groupby("variant")}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("env", "target", "enough", "fields"),
    [
        ("gymnax/CartPole-v1", 475.0, 7, {"seeds": 8, "total_env_steps": 500_000}),
        ("gymnax/Acrobot-v1", -100.0, 4, {"seeds": 4, "total_env_steps": 500_000}),
        ("gymnax/Pendulum-v1", -300.0, 4, {"seeds": 4, "total_env_steps": 1_000_000}),
        ("gymnax/Breakout-MinAtar", 8.0, 2, {"seeds": 2, "total_env_steps": 2_000_000}),
        ("brax/inverted_pendulum", 990.0, 2, {"seeds": 2, "total_env_steps": 5_000_000}),
    ],
)
def test_benchmark(tmp_path: Any, env: str, target: float, enough: int, fields: dict[str, Any]) -> None:
    got = scores(tmp_path, env, **fields)
    assert set(got) == set(BOTH)
    for variant, score in got.items():
        assert (score >= target).sum() >= enough, (variant, score)


@pytest.mark.slow
def test_both_policies_of_a_trained_run_are_good(tmp_path: Any) -> None:
    """The target, which never acted, is as good as the policy that did."""
    run = nextpolicy.train(
        "gymnax/CartPole-v1", algo="sv-static", seeds=2, total_env_steps=500_000, out=tmp_path / "run", quiet=True
    )
    for policy in ("target", "behaviour"):
        table = run.evaluate(episodes=32, policy=policy, greedy=True)
        assert (table["mean"] >= 475).all(), table


@pytest.mark.slow
def test_sac_solves_pendulum(tmp_path: Path) -> None:
    run = nextpolicy.train(
        "gymnax/Pendulum-v1", algo="sac", seeds=2, total_env_steps=12_000, out=tmp_path / "run", quiet=True
    )
    scores = run.evaluate(100, num_envs=100)["mean"]
    assert len(scores) == 2
    assert scores.min() > -200
