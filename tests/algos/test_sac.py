"""SAC and SV-SAC: a gradient step against NumPy in float64, the frozen target, and whole runs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest

import nextpolicy
from nextpolicy.algos.base import Parts
from nextpolicy.algos.sac import SAC, Forms, Trained, Transition
from nextpolicy.algos.sac_settings import SACSettings
from nextpolicy.config import presets
from nextpolicy.core import one_vector
from nextpolicy.core.shards import Shards
from nextpolicy.export import numpy_policy
from nextpolicy.loop import population
from nextpolicy.nets.squashed import SquashedGaussian
from nextpolicy.run.job import make_job
from nextpolicy.settings import ConfigError
from nextpolicy.types import Networks, PolicySnapshot

LOW, HIGH, OBS, ACTIONS, BATCH = (-2.0, 0.0), (2.0, 1.0), 3, 2, 5
SETTINGS = SACSettings(gamma=0.9, tau=0.1, learning_rate=0.01, reward_scale=2.0, entropy_per_action=-0.7)


def _features(obs: Any, action: Any, stack: Any) -> Any:
    """[B, 12]: what both critics are linear in."""
    products = [obs[:, i] * action[:, j] for i in range(OBS) for j in range(ACTIONS)]
    return stack([*(obs[:, i] for i in range(OBS)), *products, action[:, 0] ** 2, action[:, 1] ** 2, action[:, 0]], 1)


def _linear_networks() -> Networks:
    """Actor and critics that are linear in their parameters, so that NumPy can differentiate them."""

    def policy(snapshot: PolicySnapshot) -> Any:
        w = snapshot.params
        return lambda obs: SquashedGaussian(obs @ w["mean"], 0.3 * (obs @ w["log_std"]), LOW, HIGH)

    def action_value(critic: Any, stats: Any) -> Any:
        return lambda obs, action: jnp.stack([_features(obs, action, jnp.stack) @ w for w in critic])

    return Networks(lambda key: {}, policy, lambda params, stats: lambda obs: obs[:, 0], action_value=action_value)


def _algorithm(settings: SACSettings = SETTINGS) -> SAC:
    return SAC(settings, Parts(_linear_networks(), (OBS,), 4, Shards(), action_size=ACTIONS))


def _actor(rng: np.random.Generator) -> dict[str, Any]:
    return {name: jnp.asarray(rng.normal(size=(OBS, ACTIONS))) for name in ("mean", "log_std")}


def _case(seed: int = 0) -> tuple[Trained, PolicySnapshot, Transition]:
    rng = np.random.default_rng(seed)
    critics = lambda: tuple(jnp.asarray(rng.normal(size=OBS + OBS * ACTIONS + 3)) for _ in range(2))  # noqa: E731
    params = {"actor": _actor(rng), "critic": critics()}
    log_temperature = jnp.asarray(-0.4)
    adam = _algorithm()._optimiser()
    states = {"actor": params["actor"], "critic": params["critic"], "temperature": log_temperature}
    trained = Trained(params, critics(), log_temperature, {k: adam.init(v) for k, v in states.items()})
    batch = Transition(
        obs=jnp.asarray(rng.normal(size=(BATCH, OBS))),
        next_obs=jnp.asarray(rng.normal(size=(BATCH, OBS))),
        action=jnp.asarray(rng.uniform(LOW, HIGH, size=(BATCH, ACTIONS))),
        reward=jnp.asarray(rng.normal(size=BATCH)),
        terminated=jnp.asarray([False, True, False, False, True]),
        valid=jnp.asarray([True, True, False, True, True]),
    )
    return trained, PolicySnapshot(_actor(rng), None), batch


def _numpy_sample(w: Any, obs: np.ndarray, noise: np.ndarray) -> tuple[np.ndarray, ...]:
    """Actions, their log-densities on the unit scale, u and std."""
    mean, log_std = obs @ np.asarray(w["mean"]), 0.3 * (obs @ np.asarray(w["log_std"]))
    std = np.exp(log_std)
    u = mean + std * noise
    log_normal = -0.5 * noise**2 - log_std - 0.5 * np.log(2 * np.pi)
    half, middle = np.array([2.0, 0.5]), np.array([0.0, 0.5])
    return middle + half * np.tanh(u), (log_normal - np.log(1 - np.tanh(u) ** 2)).sum(-1), u, std


def _numpy_step(trained: Trained, pi: PolicySnapshot, batch: Transition, draws: np.ndarray) -> dict[str, Any]:
    """The step by hand: every derivative written out, Adam's first step in closed form."""
    s = SETTINGS
    noise_y, noise = draws
    b = jax.tree.map(np.asarray, batch)
    weight = b.valid / b.valid.sum()
    alpha = np.exp(float(trained.log_temperature))
    first = lambda g: g / (np.abs(g) + s.adam_eps)  # noqa: E731
    phi = lambda obs, action: _features(obs, action, np.stack)  # noqa: E731

    after, log_pi, _, _ = _numpy_sample(pi.params, b.next_obs, noise_y)
    bar = np.min([phi(b.next_obs, after) @ np.asarray(w) for w in trained.critic_average], axis=0)
    y = s.reward_scale * b.reward + s.gamma * (1 - b.terminated) * (bar - alpha * log_pi)
    critics = [np.asarray(w) for w in trained.params["critic"]]
    x = phi(b.obs, b.action)
    new = [w - s.learning_rate * first(x.T @ (weight * (x @ w - y))) for w in critics]

    actor = trained.params["actor"]
    action, log_beta, u, std = _numpy_sample(actor, b.obs, noise)
    q = np.stack([phi(b.obs, action) @ w for w in new])
    chosen = np.stack(new)[q.argmin(0)]  # [B, 12]
    dq = np.zeros((BATCH, ACTIONS))  # derivative of the smaller critic by the action
    for j in range(ACTIONS):
        for i in range(OBS):
            dq[:, j] += chosen[:, OBS + ACTIONS * i + j] * b.obs[:, i]
        dq[:, j] += 2 * action[:, j] * chosen[:, OBS + OBS * ACTIONS + j]
    dq[:, 0] += chosen[:, -1]
    slope = np.array([2.0, 0.5]) * (1 - np.tanh(u) ** 2)
    by_u = alpha * 2 * np.tanh(u) - dq * slope  # -log(1 - tanh^2 u) has the derivative 2 tanh u
    by_log_std = by_u * std * noise - alpha
    gradient = {"mean": b.obs.T @ (weight[:, None] * by_u), "log_std": 0.3 * b.obs.T @ (weight[:, None] * by_log_std)}
    log_beta_mean = (weight * log_beta).sum()
    by_temperature = -alpha * (log_beta_mean + s.entropy_per_action * ACTIONS)
    return {
        "critic": new,
        "actor": {k: np.asarray(actor[k]) - s.learning_rate * first(g) for k, g in gradient.items()},
        "log_temperature": float(trained.log_temperature) - s.learning_rate * first(by_temperature),
        "average": [w + s.tau * (n - w) for w, n in zip(map(np.asarray, trained.critic_average), new, strict=True)],
        "policy_loss": (weight * (alpha * log_beta - q.min(0))).sum(),
        "entropy": -log_beta_mean,
        "value_loss": 0.5 * sum((weight * (x @ w - y) ** 2).sum() for w in critics),
    }


@pytest.mark.parametrize("packs", [False, True], ids=["trees", "vectors"])
@pytest.mark.parametrize("seed", range(3))
def test_a_gradient_step_is_that_of_numpy(x64: None, seed: int, packs: bool) -> None:
    trained, pi, batch = _case(seed)
    forms = Forms(*(one_vector.like(trained.params[name]) for name in ("actor", "critic"))) if packs else Forms()
    held = forms.pack(trained)
    assert len(jax.tree.leaves(held)) < len(jax.tree.leaves(trained)) if packs else held == trained
    draws = np.random.default_rng(seed + 100).normal(size=(2, BATCH, ACTIONS))
    algorithm, noise = _algorithm(), jnp.asarray(draws)
    successor = algorithm.successors(pi, batch.next_obs, noise[0])
    after, terms = algorithm.gradient_step(SETTINGS, held, None, batch, successor, noise[1], forms)
    after = forms.unpack(after)
    expected = _numpy_step(trained, pi, batch, draws)
    for ours, theirs in (
        (after.params["critic"], expected["critic"]),
        (after.critic_average, expected["average"]),
        (jax.tree.leaves(after.params["actor"]), jax.tree.leaves(expected["actor"])),
        ([after.log_temperature], [expected["log_temperature"]]),
        *(([terms[name]], [expected[name]]) for name in ("policy_loss", "entropy", "value_loss")),
    ):
        for a, b in zip(ours, theirs, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-8, atol=1e-10)


def test_a_minibatch_without_a_valid_sample_changes_nothing(x64: None) -> None:
    trained, pi, batch = _case()
    algorithm, noise = _algorithm(), jnp.zeros((BATCH, ACTIONS))
    successor = algorithm.successors(pi, batch.next_obs, noise)
    step = lambda valid: algorithm.gradient_step(  # noqa: E731
        SETTINGS, trained, None, batch._replace(valid=jnp.full(BATCH, valid)), successor, noise
    )[0]
    assert step(False).log_temperature == trained.log_temperature
    assert jax.tree.all(jax.tree.map(lambda a, b: jnp.array_equal(a, b), step(False).params, trained.params))
    assert step(True).log_temperature != trained.log_temperature


def test_the_bootstrap_is_of_the_frozen_target_and_of_nothing_else(x64: None) -> None:
    trained, pi, batch = _case()
    other = PolicySnapshot(_actor(np.random.default_rng(9)), None)
    noise = jnp.asarray(np.random.default_rng(7).normal(size=(BATCH, ACTIONS)))
    successors = lambda pi: _algorithm().successors(pi, batch.next_obs, noise)  # noqa: E731
    y = lambda trained, pi: _algorithm().bootstrap(SETTINGS, trained, None, batch, successors(pi))  # noqa: E731
    before = y(trained, pi)
    moved = y(trained, other)
    assert (jnp.abs(moved - before)[~batch.terminated] > 1e-3).all()
    np.testing.assert_array_equal(moved[batch.terminated], SETTINGS.reward_scale * batch.reward[batch.terminated])
    # Neither the actor nor the critics that are being trained have a part in it.
    live = trained._replace(params={"actor": other.params, "critic": trained.critic_average})
    np.testing.assert_array_equal(y(live, pi), before)


COMMON: dict[str, Any] = {
    "seeds": 2,
    "num_envs": 2,
    "rollout_length": 4,
    "updates_per_step": 0.5,
    "hidden": (8, 8),
    "minibatch_size": 16,
    "replay_size": 80,  # ten rounds: wraps around
    "warmup_steps": 8,
    "total_env_steps": 8 * 24,
    "normalise_obs": True,
}


def _train(path: Path, **fields: Any) -> nextpolicy.Run:
    return nextpolicy.train("gymnax/Pendulum-v1", out=path, quiet=True, **{**COMMON, **fields})


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> nextpolicy.Run:
    return _train(tmp_path_factory.mktemp("sac") / "plain", algo="sac")


@pytest.mark.parametrize(
    "gate", [{"algo": "sv-sac-static", "static_k": 1}, {"algo": "sv-sac", "delta_v": 1e30, "k_min": 1}]
)
def test_with_a_gate_that_is_always_open_it_is_sac_bit_for_bit(
    plain: nextpolicy.Run, tmp_path: Path, gate: dict[str, Any]
) -> None:
    run = _train(tmp_path / "open", **gate)
    same = ["value_loss", "policy_loss", "entropy", "temperature", "kl_behaviour", "kl_target", "accepted", "q"]
    np.testing.assert_array_equal(run.metrics[same], plain.metrics[same])
    assert (
        run.evaluate(episodes=2)["mean"].tolist() == nextpolicy.load(plain.path).evaluate(episodes=2)["mean"].tolist()
    )


def test_a_held_target_changes_what_is_learned(plain: nextpolicy.Run, tmp_path: Path) -> None:
    run = _train(tmp_path / "held", algo="sv-sac-static", static_k=6)
    accepted = run.metrics[run.metrics["member"] == 0]["accepted"].to_numpy()
    assert np.flatnonzero(accepted).tolist() == [5, 11, 17, 23]
    losses = [r.metrics[r.metrics["member"] == 0]["value_loss"].to_numpy() for r in (run, plain)]
    assert losses[0][0] == losses[1][0]  # in the first round, the target is the actor
    assert losses[0][1] != losses[1][1]
    drift = run.metrics[run.metrics["member"] == 0]["kl_drift"].to_numpy()
    assert drift[0] == 0.0 == drift[6]
    assert (drift[1:6] > 0).all()


def test_a_resumed_run_with_a_wrapped_buffer_is_the_undisturbed_one(plain: nextpolicy.Run, tmp_path: Path) -> None:
    late = lambda end: end.rounds_done >= 16  # more rounds than fit into the buffer  # noqa: E731
    stopped = _train(tmp_path / "run", algo="sac", block_rounds=4, callback=late)
    assert stopped.metrics["round"].max() == 15
    again = nextpolicy.resume(tmp_path / "run")
    held = plain.metrics["replay_held"].to_numpy().reshape(-1)
    assert held.max() == 80
    frames = [run.metrics.drop(columns="steps_per_second") for run in (again, plain)]
    pd.testing.assert_frame_equal(*frames, check_exact=True)


@pytest.mark.parametrize(
    ("env", "fields", "message"),
    [
        ("gymnax/CartPole-v1", {}, "whose actions are discrete"),
        ("gymnax/Pendulum-v1", {"updates_per_step": 0.3}, r"updates_per_step: .*got 0.3 \* 8 = 2.4"),
        ("gymnax/Pendulum-v1", {"replay_size": 7}, "replay_size: expected at least one round, .* = 8, got 7"),
        ("gymnax/Pendulum-v1", {"shared_torso": True}, "shared_torso: expected false for sac, got true"),
        ("gymnax/Pendulum-v1", {"algo": "ppo,sac"}, "algo: expected variants of one algorithm, got ppo and sac"),
        ("gymnax/Pendulum-v1", {"algo": "sv-sac", "criterion": "noise-corrected"}, "criterion: expected"),
    ],
)
def test_wrong_settings_are_refused_before_a_folder_is_made(
    env: str, fields: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=message):
        nextpolicy.train(env, out=tmp_path / "run", **{**COMMON, "algo": "sac", **fields})
    assert not (tmp_path / "run").exists()


@pytest.mark.allow_key_reuse
def test_exported_policies_are_those_of_the_run(plain: nextpolicy.Run, tmp_path: Path) -> None:
    obs = np.random.default_rng(0).normal(size=(50, 3)).astype(np.float32)
    own = [plain.policy("target", member)(obs) for member in range(2)]
    assert np.abs(own[0] - own[1]).max() > 1e-3
    for member in range(2):
        loaded = numpy_policy.load(plain.export(tmp_path / str(member), member=member))
        np.testing.assert_allclose(loaded(obs), own[member], rtol=1e-5, atol=1e-5)
        assert loaded.description["distribution"]["kind"] == "squashed_gaussian"
        assert loaded.description["made_by"]["algo"] == "sac"


def test_buffers_that_exceed_the_memory_are_refused_before_a_folder_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nextpolicy.run.memory._memory", lambda: 100_000)
    row = 2 * 3 * 4 + 4 + 4 + 2  # observations, action, reward, two flags
    drawn = round(0.5 * 8) * COMMON["minibatch_size"]  # half a gradient step for each of 8 environment steps
    most = int(0.8 * 100_000 / row / 2) - drawn
    with pytest.raises(ConfigError, match=f"replay_size: expected at most {most} for 2 members of {row} bytes .* got"):
        _train(tmp_path / "run", algo="sac", replay_size=most + 8)
    assert not (tmp_path / "run").exists()
    assert len(_train(tmp_path / "run", algo="sac", replay_size=most, total_env_steps=8).metrics) == 2
    monkeypatch.setattr("nextpolicy.run.memory._memory", lambda: 2 * 2 * row * drawn // 4)
    with pytest.raises(ConfigError, match=rf"updates_per_step: expected at most \d+ transitions .*, got {drawn}$"):
        _train(tmp_path / "less", algo="sac", replay_size=most)


def test_no_round_copies_the_replay_buffer() -> None:
    """XLA copies what branches and loops cannot update in place; a copy of a large buffer takes as long as a round."""
    about = {"replay_size": 4112, "hidden": (8,), "minibatch_size": 8, "total_env_steps": 1600}
    job = make_job(presets.build("gymnax/Pendulum-v1", algo="sac,sv-sac", seeds=1, **about))
    init, block = population._functions(job.setup, job.env, 4, None)
    state = jax.eval_shape(init, job.seeds)
    compiled = jax.jit(block, donate_argnums=1).lower(job.hypers, state, np.int32(4), np.bool_(False)).compile()
    text = compiled.as_text()
    assert re.search(r"\w+\[4112", text)
    assert not re.findall(r"= \w+\[4112[^(]*copy\(", text)
