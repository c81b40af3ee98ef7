"""The library's surface: one's own environment, networks and criterion; policies, scores, configurations."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest

import nextpolicy
from nextpolicy.cli import main as cli
from nextpolicy.config import FIELDS, ConfigError, TrainConfig, presets
from nextpolicy.envs import build as envs
from nextpolicy.run.folder import RunError
from nextpolicy.run.job import make_job

from .helpers import SMALL, contents, environment

pytestmark = [pytest.mark.allow_rank_promotion, pytest.mark.allow_key_reuse, pytest.mark.quick_compilation]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> nextpolicy.Run:
    """Two algorithms, two seeds, continuous actions, normalised observations."""
    return nextpolicy.train(
        "gymnax/Pendulum-v1",
        algo=("ppo", "sv-static"),
        out=tmp_path_factory.mktemp("api") / "run",
        quiet=True,
        **{**SMALL, "seeds": 2, "static_k": 4, "block_rounds": 5, "env_options": {"max_steps_in_episode": 4}},
    )


COLUMNS = {
    "round",
    "env_steps",
    "member",
    "seed",
    "variant",
    "episode_return",
    "episode_length",
    "episodes",
    "diff",
    "diff_scale",
    "diff_over_threshold",
    "stable_rounds",
    "rounds_held",
    "accepted",
    "k_min",
    "k_max",
    "kl_target",
    "kl_behaviour",
    "kl_drift",
    "ratio_max",
    "ratio_ess",
    "rho_clipped",
    "value_loss",
    "policy_loss",
    "entropy",
    "explained_variance",
    "approx_kl",
    "clip_fraction",
    "grad_norm",
    "learning_rate",
    "steps_per_second",
}


def test_metrics_have_the_columns_of_the_specification(run: nextpolicy.Run) -> None:
    frame = run.metrics
    assert set(frame.columns) == COLUMNS
    assert len(frame) == 4 * 10
    assert list(frame["variant"].unique()) == ["ppo", "sv-static"]
    one = frame[frame["member"] == 2]
    np.testing.assert_array_equal(one["round"], np.arange(10))
    np.testing.assert_array_equal(one["env_steps"], 32 * np.arange(1, 11))
    assert one["accepted"].sum() == 2
    assert (frame["episode_length"] == 4).all()
    assert (frame["episodes"] == 8).all()


def test_scores_are_the_last_tenth(run: nextpolicy.Run) -> None:
    scores = run.scores()
    assert list(scores.columns) == ["member", "variant", "seed", "score"]
    last = run.metrics[run.metrics["round"] == 9]
    np.testing.assert_allclose(scores["score"], last["episode_return"].to_numpy(), rtol=1e-5)


def test_policy_takes_one_observation_or_a_batch(run: nextpolicy.Run) -> None:
    act = run.policy("behaviour", member=1)
    obs = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)
    assert act(obs[0]).shape == (1,)
    assert act(obs).shape == (5, 1)
    np.testing.assert_allclose(act(obs)[2], act(obs[2]), rtol=1e-5)
    key = jax.random.key(0)
    np.testing.assert_array_equal(act(obs, key), act(obs, key))
    assert (act(obs, key) != act(obs, jax.random.key(1))).any()
    assert (act(obs) != run.policy("behaviour", member=0)(obs)).any()
    with pytest.raises(ValueError, match=r"^obs: expected shape \(3,\), or a batch, .*shape \(5, 4\)$"):
        act(np.zeros((5, 4), np.float32))
    with pytest.raises(ConfigError, match=r"member: expected a whole number of at least 0 and at most 3.*, got 4"):
        run.policy(member=4)


def test_policy_brings_its_normaliser(run: nextpolicy.Run) -> None:
    """The network by hand on the observation normalised by hand."""
    snapshot = run.snapshot("behaviour")
    obs = np.asarray([0.5, -0.5, 2.0], np.float32)
    stats = snapshot.obs_stats
    assert stats is not None
    assert float(stats.samples) == 320
    x = (obs - np.asarray(stats.mean)) / np.sqrt(np.asarray(stats.m2) / 320 + 1e-8)
    layers = snapshot.params["params"]
    hidden = np.tanh(x @ layers["torso"]["Dense_0"]["kernel"] + layers["torso"]["Dense_0"]["bias"])
    mean = hidden @ layers["head"]["Dense_0"]["kernel"] + layers["head"]["Dense_0"]["bias"]
    np.testing.assert_allclose(run.policy("behaviour")(obs), mean, rtol=1e-4, atol=1e-6)


def test_target_and_behaviour_are_two_policies(run: nextpolicy.Run) -> None:
    obs = np.ones((1, 3), np.float32)
    same = [bool((run.policy("target", m)(obs) == run.policy("behaviour", m)(obs)).all()) for m in range(4)]
    assert same == [True, True, False, False]


def test_evaluate(run: nextpolicy.Run) -> None:
    table = run.evaluate(episodes=6, num_envs=3)
    assert len(table) == 4
    assert (table["episodes"] == 6).all()
    assert (table["unfinished"] == 0).all()
    assert (table["length"] == 4).all()
    pd.testing.assert_frame_equal(table, run.evaluate(episodes=6, num_envs=3))
    assert (table["mean"] != run.evaluate(episodes=6, num_envs=3, seed=1)["mean"]).any()


def test_load_reads_and_writes_nothing(run: nextpolicy.Run) -> None:
    before = contents(run.path)
    again = nextpolicy.load(run.path)
    pd.testing.assert_frame_equal(again.metrics, run.metrics)
    np.testing.assert_array_equal(again.policy()(np.ones(3, np.float32)), run.policy()(np.ones(3, np.float32)))
    assert again.config == run.config
    assert contents(run.path) == before
    assert not [name for name in before if name.endswith((".pkl", ".pickle"))]


def test_loading_runs_no_code(run: nextpolicy.Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is unpickled, whatever the files say."""
    import pickle

    def forbidden(*_: Any, **__: Any) -> Any:
        raise AssertionError("unpickled")

    for name in ("load", "loads", "Unpickler"):
        monkeypatch.setattr(pickle, name, forbidden)
    again = nextpolicy.load(run.path)
    assert len(again.metrics) == 40
    assert again.snapshot().params


def test_a_run_without_a_checkpoint_says_so(run: nextpolicy.Run, tmp_path: Path) -> None:
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "metrics").mkdir()
    (tmp_path / "config.json").write_bytes((run.path / "config.json").read_bytes())
    with pytest.raises(RunError, match="no intact checkpoint yet"):
        nextpolicy.load(tmp_path).policy()


# --- one's own parts ---


class Actor(nn.Module):
    @nn.compact
    def __call__(self, obs: jax.Array) -> jax.Array:
        return nn.Dense(2, name="mine")(obs)


class Critic(nn.Module):
    @nn.compact
    def __call__(self, obs: jax.Array) -> jax.Array:
        return nn.Dense(1, name="mine")(obs)[..., 0]


class CorridorState(NamedTuple):
    position: jax.Array
    time: jax.Array


class CorridorParams(NamedTuple):
    length: int = 3
    max_steps_in_episode: int = 7


class Space(NamedTuple):
    n: int | None = None
    shape: tuple[int, ...] = ()


class Corridor:
    """A gymnax-style environment: walk right to the end, for a reward of 1."""

    default_params = CorridorParams()

    def reset_env(self, key: Any, params: CorridorParams) -> tuple[Any, CorridorState]:
        return jnp.zeros(2), CorridorState(jnp.int32(0), jnp.int32(0))

    def step_env(self, key: Any, state: CorridorState, action: Any, params: CorridorParams) -> Any:
        position = jnp.maximum(state.position + 2 * action - 1, 0)
        done = position >= params.length
        obs = jnp.stack([position, jnp.int32(1)]).astype(jnp.float32)
        return obs, CorridorState(position, state.time + 1), done.astype(jnp.float32), done, {}

    def observation_space(self, params: Any) -> Space:
        return Space(shape=(2,))

    def action_space(self, params: Any) -> Space:
        return Space(n=2)


class EveryOther:
    """Accepts in every `params`-th round; counts rounds, not values."""

    def init(self) -> jax.Array:
        return jnp.zeros((), jnp.int32)

    def update(self, state: Any, evidence: Any, params: Any, progress: Any) -> Any:
        count = state + 1
        accept = count >= params
        return jnp.where(accept, 0, count), accept, {"counted": count}


def test_ones_own_environment_networks_and_criterion(tmp_path: Path) -> None:
    own: dict[str, Any] = {
        "env_params": CorridorParams(length=2),
        "actor": Actor(),
        "critic": Critic(),
        "criterion": EveryOther(),
        "criterion_params": np.asarray([2, 5], np.int32),
    }
    fields = {**SMALL, "seeds": 2, "learning_rate": 0.05, "learning_rate_final": 0.05, "total_env_steps": 32 * 30}
    env = Corridor()
    run = nextpolicy.train(env, out=tmp_path / "run", quiet=True, **own, **{**fields, "block_rounds": 10})
    accepted = run.metrics.groupby("member")["accepted"].sum()
    assert accepted.tolist() == [15, 6]
    assert run.metrics["counted"].max() == 5, "a criterion's own metrics are recorded"
    assert "k_min" not in run.metrics, "and no fields that it does not have"
    assert set(run.snapshot().params["params"]) == {"mine"}
    last = run.metrics[run.metrics["round"] >= 25]
    assert last["episode_length"].mean() < 3.0, "it did not learn to walk right"
    assert run.policy()(np.asarray([0.0, 1.0], np.float32)) == 1
    # What was given as objects cannot be read from a folder: it must be given again.
    with pytest.raises(
        RunError, match="was trained with a custom actor, criterion, criterion_params, critic, env, env_params"
    ):
        nextpolicy.load(run.path).snapshot()
    with pytest.raises(TypeError, match=r"got actr"):
        nextpolicy.load(run.path, actr=Actor())
    again = nextpolicy.load(run.path, env=env, **own)
    assert again.policy()(np.asarray([0.0, 1.0], np.float32)) == 1


def test_something_that_is_no_environment_is_refused() -> None:
    with pytest.raises(ValueError, match="expected a gymnax-style environment"):
        nextpolicy.train(object())


# --- configurations ---


def random_configuration(seed: int) -> TrainConfig:
    draw = np.random.default_rng(seed)
    fields: dict[str, Any] = {
        "env": "gymnax/CartPole-v1",
        "env_options": {"max_steps_in_episode": 7, "noise": "fail", "flag": True, "nothing": None},
        "value_clip": float("inf") if seed % 2 else 0.3,
        "learning_rate": float(draw.random()),
        "hidden": tuple(int(x) for x in draw.integers(1, 99, size=3)),
        "algo": ("ppo", "sv-dynamic"),
        "seeds": (4, 2**32 - 1),
        "sweep": {"value_clip": (0.1, float("inf")), "k_min": (1, 2)},
        "layer_norm": bool(seed % 2),
    }
    return TrainConfig().replace(**fields)


@pytest.mark.parametrize("seed", range(4))
def test_configuration_round_trips_through_json(seed: int) -> None:
    config = random_configuration(seed)

    def strict(constant: str) -> Any:
        raise AssertionError(f"{constant} is not JSON")

    values = json.loads(config.to_json(), parse_constant=strict)
    assert TrainConfig.from_flat(values) == config
    assert set(values) == set(config.fields())


def test_configuration_round_trips_through_the_command_line() -> None:
    from nextpolicy.cli.train import parser

    words = ["x", "--hidden", "8,9", "--value-clip", "inf", "--seeds", "3", "--sweep", "lam=0.9,0.95", "gamma=0.5"]
    parsed = vars(parser().parse([*words, "--env-options", "a=1", "b=two", "--layer-norm", "yes"]))
    config = TrainConfig().replace(**{k: v for k, v in parsed.items() if k in FIELDS})
    assert config.net.hidden == (8, 9)
    assert config.algorithm.value_clip == float("inf")
    assert config.run.seeds == (0, 1, 2)
    assert config.run.sweep == {"lam": (0.9, 0.95), "gamma": (0.5,)}
    assert config.environment.env_options == {"a": 1, "b": "two"}
    assert config.net.layer_norm is True


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        ("four-rooms", {"num_envs": 8, "k_min": 4, "k_max": 33, "delta_v": 0.1, "learning_rate": 2.5e-4}),
        ("gymnax/Breakout-MinAtar", {"total_env_steps": 10_000_000, "clip": 0.1, "decay_fraction": 0.2, "k_min": 9}),
        ("brax/ant", {"num_envs": 2048, "rollout_length": 10, "hidden": (256, 256), "rho_max": 100.0, "k_max": 8}),
        ("atari/Pong", {"gamma": 0.995, "value_coef": 0.25, "torso": "impala", "minibatch_size": 1024}),
    ],
)
def test_presets_are_the_papers(env: str, expected: dict[str, Any]) -> None:
    for preset in (None, "corrected", "paper"):
        config = presets.build(env, preset=preset)
        assert {name: config.value(name) for name in expected} == expected
    assert presets.build(env) == presets.build(env, preset="corrected")


def test_the_readings_differ_in_what_the_paper_leaves_open() -> None:
    def differing(env: str) -> dict[str, tuple[Any, Any]]:
        ours, theirs = (presets.build(env, preset=preset).flat() for preset in ("corrected", "paper"))
        return {name: (ours[name], theirs[name]) for name in ours if ours[name] != theirs[name]}

    assert differing("brax/hopper") == {
        "truncation": ("bootstrap", "terminal"),
        "warmup_steps": (10, 1000),
        "advantage_norm": ("none", "scale"),
    }
    assert differing("gymnax/Breakout-MinAtar") == {"truncation": ("bootstrap", "terminal")}
    assert differing("four-rooms") == {}
    assert presets.build("custom/mine", preset="brax").value("warmup_steps") == 10


def test_playground_has_its_own_settings_which_are_not_the_papers() -> None:
    expected = {"gamma": 0.995, "learning_rate": 1e-3, "learning_rate_final": 1e-3, "entropy_coef": 0.01, "clip": 0.3}
    expected |= {"num_envs": 2048, "rollout_length": 16 * 30, "minibatch_size": 30 * 1024, "epochs": 16}
    expected |= {"normalise_reward": False, "policy": "squashed"}
    config = presets.build("playground/CheetahRun")
    assert {name: config.value(name) for name in expected} == expected
    sac = presets.build("playground/CheetahRun", algo=("sac",))
    assert (sac.batch_size, sac.value("updates_per_step"), sac.value("gamma")) == (128, 8 / 128, 0.99)
    assert sac.net.policy == "auto"  # SAC refuses others
    for reading in presets.READINGS:
        with pytest.raises(
            ConfigError, match="expected 'playground' for playground/CheetahRun, which the paper does not cover"
        ):
            presets.build("playground/CheetahRun", preset=reading)


def test_craftax_has_the_settings_of_its_authors_which_are_not_the_papers() -> None:
    expected = {"num_envs": 1024, "rollout_length": 64, "minibatch_size": 1024 * 64 // 8, "epochs": 4}
    expected |= {"learning_rate": 2e-4, "learning_rate_final": 0.0, "gamma": 0.99, "lam": 0.8, "max_grad_norm": 1.0}
    expected |= {"clip": 0.2, "value_clip": 0.2, "entropy_coef": 0.01, "value_coef": 0.5, "adam_eps": 1e-5}
    expected |= {"hidden": (512, 512, 512), "activation": "tanh", "normalise_obs": False, "normalise_reward": False}
    config = presets.build("craftax/Craftax-Symbolic-v1")
    assert {name: config.value(name) for name in expected} == expected
    with pytest.raises(ConfigError, match="expected 'craftax' for craftax/Craftax-Symbolic-v1, which the paper"):
        presets.build("craftax/Craftax-Symbolic-v1", preset="paper")


def test_every_preset_is_valid_on_its_environment() -> None:
    for env in ("four-rooms", "gymnax/Breakout-MinAtar", "gymnax/CartPole-v1"):
        config = presets.build(env, algo=("ppo", "sv-static", "sv-dynamic"))
        assert config.num_rounds > 1
        assert envs.make(env).spec.id == env


# --- import ---


def test_importing_the_package_imports_no_suite() -> None:
    """Environments, checkpoints, plots and loggers are imported when they are needed."""
    heavy = ["gymnax", "brax", "gymnasium", "ale_py", "orbax.checkpoint", "matplotlib", "wandb", "tensorboardX", "ray"]
    code = f"import sys, nextpolicy; print([m for m in {heavy!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment())
    assert done.stdout.strip() == "[]"


def test_importing_the_package_starts_no_device() -> None:
    code = "import nextpolicy, jax._src.xla_bridge as b; print(b.backends_are_initialized())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment())
    assert done.stdout.strip() == "False"


@pytest.mark.parametrize("name", ["actor", "critic"])
@pytest.mark.parametrize("given", [3, "mlp", nn.Dense])
def test_a_network_that_is_none_is_refused_before_there_is_a_folder(tmp_path: Path, name: str, given: Any) -> None:
    with pytest.raises(ConfigError, match=rf"^{name}: expected a Flax module, such as MyModule\(\).*, got .*$"):
        nextpolicy.train("four-rooms", out=tmp_path / "run", **{name: given})
    assert not (tmp_path / "run").exists()


@pytest.mark.quick_compilation
def test_swept_values_are_columns(tmp_path: Path) -> None:
    fields = {**SMALL, "total_env_steps": 64, "seeds": 2, "sweep": {"learning_rate": (1e-3, 1e-4), "lam": (0.5,)}}
    run = nextpolicy.train("probe/action", algo="ppo", quiet=True, out=tmp_path / "run", **fields)
    table = run.metrics.groupby("variant")[["sweep_learning_rate", "sweep_lam"]].agg(["min", "max"])
    assert table.loc["ppo[learning_rate=0.001,lam=0.5]"].tolist() == [1e-3, 1e-3, 0.5, 0.5]
    assert table.loc["ppo[learning_rate=0.0001,lam=0.5]"].tolist() == [1e-4, 1e-4, 0.5, 0.5]
    assert run.metrics["learning_rate"].iloc[0] == pytest.approx(1e-3), "the metric of the same name is still there"
    assert run.scores()["sweep_learning_rate"].tolist() == [1e-3, 1e-3, 1e-4, 1e-4]
    assert run.partial_metrics().equals(run.metrics)


@pytest.mark.quick_compilation
def test_a_dry_run_says_what_would_happen_and_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    words = "train probe/action --dry-run --algo ppo,sv-static --seeds 3 --num-envs 4 --rollout-length 8 --hidden 8"
    more = "--minibatch-size 16 --total-env-steps 100 --warmup-steps 16 --sweep lam=0.9,0.95"
    assert cli.main([*words.split(), *more.split()]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[0] == "members: 12 (2 algorithms x 2 swept x 3 seeds) on probe/action"
    expected = "rounds: 3 of 4 environments x 8 steps = 96 steps of each member, after 2 rounds of warm-up"
    assert said[1] == expected
    assert re.fullmatch(r"memory: [\d.]+ GB.*; a checkpoint takes about [\d.]+ MB", said[2])
    assert re.fullmatch(r"time: .* to compile, then .* at [\d,]+ steps/s, without evaluation and saving", said[3])
    assert "  warmup_steps = 16" in said
    assert not list(tmp_path.iterdir())
    assert cli.main(["train", "probe/action", "--dry-run", "--num-envs", "0"]) == 2


def test_every_environment_trains_with_its_own_preset() -> None:
    """Built and traced, not compiled; those of the first hour, without the optional packages of others."""
    for env in [*envs.names("gymnax"), *envs.names("probe"), "four-rooms"]:
        job = make_job(presets.build(env))
        assert jax.tree.leaves(job.template()), env
