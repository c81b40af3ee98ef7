"""The scripts of benchmarks/ that train a peer beside us say what they compare, and complain in one line."""

from __future__ import annotations

import json
import runpy
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pandas as pd
import pytest
from scipy import stats

import nextpolicy
from nextpolicy.config import presets

from .scripts import SCRIPTS, complaint, run

pytestmark = [pytest.mark.quick_compilation, pytest.mark.allow_rank_promotion, pytest.mark.allow_key_reuse]

PEERS = [("ours", [0, 1, 2], 30.0, [1.0, 2.0, 6.0])]
PEERS += [("ours", [seed], rate, [9.0]) for seed, rate in enumerate([10.0, 12.0, 20.0])]
PEERS += [("brax", [seed], rate, [score]) for seed, (rate, score) in enumerate([(6.0, 4.0), (8.0, 5.0), (9.0, 9.0)])]


def test_sac_beside_brax_compares_medians_of_rates_and_means_of_seeds(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    turns = [dict(zip(("who", "seeds", "steps_per_second", "score"), turn)) for turn in PEERS]
    (tmp_path / "one.json").write_text(json.dumps({"env": "hopper", "turns": turns}))
    run(monkeypatch, "sac_peers.py", "table", str(tmp_path / "one.json"))
    *_, row = capsys.readouterr().out.splitlines()
    welch = stats.ttest_ind([1.0, 2.0, 6.0], [4.0, 5.0, 9.0], equal_var=False)
    low, high = welch.confidence_interval(0.95)
    expected = ["hopper", "12", "8", "1.50", "30", "3 +- 2.65 (3)", "6 +- 2.65 (3)"]
    assert [cell.strip() for cell in row.strip("|").split("|")] == [
        *expected,
        f"-3 [{low:.3g}, {high:.3g}], p {welch.pvalue:.2g}",
    ]


def test_sac_beside_brax_has_its_target_entropy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    class SeenError(Exception):
        pass

    def train(env: str, **fields: object) -> None:
        raise SeenError(env, fields)

    monkeypatch.setattr(nextpolicy, "train", train)
    words = ["run", "hopper", "--seeds", "2", "--steps", "4096", "--set", "tau=.1", "--out"]
    with pytest.raises(SeenError) as caught:
        run(monkeypatch, "sac_peers.py", *words, str(tmp_path / "out.json"))
    env, fields = caught.value.args
    assert env == "brax/hopper"
    assert {name: str(fields[name]) for name in ("entropy_per_action", "tau", "total_env_steps", "seeds")} == {
        "entropy_per_action": "-0.5",
        "tau": ".1",
        "total_env_steps": "4096",
        "seeds": "[0, 1]",
    }


def test_sac_beside_brax_names_files_it_cannot_use(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    folder, missing = str(tmp_path), str(tmp_path / "missing.json")
    said = complaint(monkeypatch, capsys, "sac_peers.py", "run", "hopper", "--out", folder)
    assert said == f"sac_peers.py: error: out: expected a JSON file, got the folder {folder}"
    assert missing in complaint(monkeypatch, capsys, "sac_peers.py", "table", missing)


def test_sac_beside_sbx_compares_medians_of_turns(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    rates = {"sbx": (10.0, 20.0, 90.0), "sbx, its own rounds": (5.0, 8.0, 9.0)}
    rates |= {"gym/Pendulum-v1": (30.0, 10.0, 28.0), "gymnax/Pendulum-v1": (40.0, 1.0, 60.0)}
    turns = [{"who": who, "rate": rate, "score": -rate} for who, found in rates.items() for rate in found]
    file = tmp_path / "sbx.json"
    file.write_text(json.dumps({"steps": 3, "turns": turns}))
    run(monkeypatch, "sac_sbx.py", "table", str(file))
    *_, row = capsys.readouterr().out.splitlines()
    assert row == "| gymnax/Pendulum-v1 | 3 | 40 (1, 60) | 2.00, 5.00 | -34 (-60 to -1) |"
    for rate in (None, 0.0, float("nan"), "3"):
        file.write_text(json.dumps({"turns": [*turns, {"who": "sbx", "rate": rate, "score": 1.0}]}))
        assert complaint(monkeypatch, capsys, "sac_sbx.py", "table", str(file)).endswith(f"`run` wrote, got {file}")
    file.write_text(json.dumps({"turns": turns[:-3]}))
    for wrong in (file, tmp_path / "missing.json", tmp_path):
        said = complaint(monkeypatch, capsys, "sac_sbx.py", "table", str(wrong))
        assert said == f"sac_sbx.py: error: table: expected a file that `run` wrote, got {wrong}"


def write_pqn_script(checkout: Path) -> None:
    """A peer that needs all stubs. Two episodes end in each round; in the last tenth their mean is 1 + key[1] % 7."""
    (checkout / "purejaxql").mkdir()
    (checkout / "purejaxql" / "pqn_minatar.py").write_text(
        """
import chex, gymnax, hydra, jax, jax.numpy as jnp, wandb
from gymnax.wrappers.purerl import LogWrapper
from omegaconf import OmegaConf

@chex.dataclass(frozen=True)
class Transition:
    obs: chex.Array
    reward: chex.ndarray

def make_train(config):
    env, params = gymnax.make(config["ENV_NAME"])
    env = LogWrapper(env)
    rounds = config["TOTAL_TIMESTEPS"] // config["NUM_STEPS"] // config["NUM_ENVS"]
    assert (config["NUM_MINIBATCHES"], config["NUM_EPOCHS"], config["LAMBDA"]) == (32, 2, 0.65)

    def train(key):
        obs, state = env.reset(key, params)
        _, _, reward, done, info = env.step(key, state, 0, params)
        Transition(obs=obs, reward=reward)
        late = jnp.arange(rounds) >= rounds - rounds // 10
        ended = jnp.ones(rounds) * 2 / 4096 + info["ended"] * 0
        return {"metrics": {"ended": ended, "ended_return": (2 + 2 * (key[1] % 7)) * late / 4096}}

    return train

@hydra.main(version_base=None)
def main(config):
    raise SystemExit
""",
        encoding="utf-8",
    )


@pytest.mark.parametrize(
    ("peer", "arguments", "message"),
    [
        ("sac", ["hoper"], "environment: expected a known id, got 'brax/hoper'; nearest: brax/hopper"),
        ("sac", ["hopper", "--set", "hiden=3"], "set: expected one of gamma, hidden, "),
        (
            "sac",
            ["hopper", "--set", "entropy_per_action=-1", "--set", "tau=.1"],
            "set: expected one of gamma, hidden, ",
        ),
        ("sac", ["hopper", "--set", "tau=2", "--set", "gamma=.9"], "tau: expected"),
        ("sac", ["hopper", "--set", "num_envs=0"], "num_envs: expected"),
        ("sac", ["hopper", "--seeds", "0"], "seeds: expected a whole number from 1 to 10000, got 0"),
        ("sac", ["hopper", "--steps", "999"], "out: expected a new file or one with the same work, got"),
        (
            "pqn",
            ["Breakut"],
            "environment: expected a known id, got 'gymnax/Breakut-MinAtar'; nearest: gymnax/Breakout-",
        ),
        ("pqn", ["Breakout", "--seeds", "0"], "seeds: expected a whole number from 1 to 10000, got 0"),
        ("pqn", ["Breakout", "--steps", "0"], "total_env_steps: expected"),
        ("pqn", ["Breakout", "--purejaxql", "."], "purejaxql: expected a checkout that has purejaxql/pqn_minatar.py"),
        (
            "playground",
            ["ReacherEas"],
            "environment: expected a known id, got 'playground/ReacherEas'; nearest: playgro",
        ),
        ("playground", ["CheetahRun", "--seeds", "20000"], "seeds: expected a whole number from 1 to 10000, got 20000"),
        ("playground", ["Go1Handstand"], "env: expected a task of the control suite, got Go1Handstand, a robot"),
        ("playground", ["ReacherEasy", "--steps", "60000"], "steps: expected at least 3 rounds of 30720, the last"),
        ("playground", ["ReacherEasy", "--steps", "nan"], "total_env_steps: expected"),
        (
            "playground",
            ["ReacherEasy", "--set", "gamma=.9"],
            "set: expected one of hidden, minibatch_size, num_envs, got",
        ),
        (
            "playground",
            ["ReacherEasy", "--set", "hidden"],
            "set: expected NAME=VALUE with a field of the configuration",
        ),
        ("playground", ["ReacherEasy", "--set", "hidden=8", "hidden=9"], "set: expected hidden once, got it more than"),
        (
            "playground",
            ["ReacherEasy", "--set", "minibatch_size=64"],
            "minibatch_size: expected a multiple of 30, Brax",
        ),
    ],
)
def test_a_peer_script_says_what_it_takes(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    peer: str,
    arguments: list[str],
    message: str,
) -> None:
    out = tmp_path / "out.json"
    if peer == "sac":
        out.write_text(json.dumps({"env": "hopper", "steps": 100, "turns": []}))
    if peer == "pqn":
        write_pqn_script(tmp_path)
        arguments = ["--purejaxql", str(tmp_path), *arguments]
    before = {path: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()}
    said = complaint(monkeypatch, capsys, f"{peer}_peers.py", "run", "--out", str(out), *arguments)
    assert said.startswith(f"{peer}_peers.py: error: {message}")
    assert {path: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()} == before


def test_pqn_beside_purejaxql_scores_the_episodes_of_the_last_tenth(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    class Ours:
        metrics = pd.DataFrame({"round": [0, 0, 1, 1, 2, 2], "steps_per_second": [8.0, 8, 30, 30, 10, 10]})

        def scores(self) -> pd.DataFrame:
            return pd.DataFrame({"score": [6.0, 8.0]})

    def train(env: str, **fields: object) -> Ours:
        assert (env, fields["algo"], fields["seeds"]) == ("gymnax/Breakout-MinAtar", "pqn", 2)
        return Ours()

    monkeypatch.setattr(nextpolicy, "train", train)
    write_pqn_script(tmp_path)
    out = tmp_path / "new" / "found.json"
    words = ["run", "Breakout", "--purejaxql", str(tmp_path), "--seeds", "2", "--steps", "90112", "--out", str(out)]
    run(monkeypatch, "pqn_peers.py", *words)
    *_, row = capsys.readouterr().out.splitlines()
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    theirs = [1.0 + int(key[1]) % 7 for key in jax.random.split(jax.random.PRNGKey(0), 2)]
    spread = f"{np.mean(theirs):.3g} +- {np.std(theirs, ddof=1):.3g} (2)"
    assert cells[:2] + cells[4:6] == ["Breakout-MinAtar", "10", "7 +- 1.41 (2)", spread]
    welch = stats.ttest_ind([6.0, 8.0], theirs, equal_var=False)
    low, high = welch.confidence_interval(0.95)
    assert cells[6] == f"{7 - np.mean(theirs):.3g} [{low:.3g}, {high:.3g}], p {welch.pvalue:.2g}"
    stored = json.loads(out.read_text())
    assert (stored["env"], stored["seeds"]) == ("gymnax/Breakout-MinAtar", 2)
    assert (stored["fields"], stored["about"]["platform"]) == ({"total_env_steps": "90112"}, "cpu")
    assert f"out: expected a new file, got {out}" in complaint(monkeypatch, capsys, "pqn_peers.py", *words)
    out.write_text(json.dumps({**stored, "turns": stored["turns"][:1]}))
    said = complaint(monkeypatch, capsys, "pqn_peers.py", "table", str(out))
    assert f"table: expected a turn of ours and one of PureJaxQL, got other turns in {out}" in said


def test_pqn_beside_purejaxql_has_its_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(SCRIPTS)
    settings = runpy.run_path(str(SCRIPTS / "pqn_peers.py"))["their_settings"]
    fields = {"num_envs": 64, "rollout_length": 16, "minibatch_size": 128, "epochs": 3, "total_env_steps": 10_000}
    fields |= {"gamma": 0.98, "lam": 0.7, "learning_rate": 0.002, "max_grad_norm": 5.0}
    fields |= {"epsilon_init": 0.9, "epsilon_final": 0.04, "epsilon_fraction": 0.3}
    assert settings(presets.build("gymnax/Asterix-MinAtar", algo="pqn", **fields)) == {
        "TOTAL_TIMESTEPS": 9 * 1024,
        "TOTAL_TIMESTEPS_DECAY": 9 * 1024,
        "NUM_ENVS": 64,
        "NUM_STEPS": 16,
        "EPS_START": 0.9,
        "EPS_FINISH": 0.04,
        "EPS_DECAY": 0.3,
        "NUM_MINIBATCHES": 8,
        "NUM_EPOCHS": 3,
        "NORM_TYPE": "layer_norm",
        "LR": 0.002,
        "MAX_GRAD_NORM": 5.0,
        "LR_LINEAR_DECAY": True,
        "GAMMA": 0.98,
        "LAMBDA": 0.7,
        "ENV_NAME": "Asterix-MinAtar",
        "WANDB_MODE": "disabled",
    }


@pytest.mark.parametrize("script", ["sac", "pqn", "playground"])
@pytest.mark.parametrize("content", ["", "{}", "[]", '{"turns": [{"who": "ours"}]}'])
def test_a_table_is_of_files_that_its_script_wrote(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path, script: str, content: str
) -> None:
    file = tmp_path / "one.json"
    file.write_text(content)
    said = complaint(monkeypatch, capsys, f"{script}_peers.py", "table", str(file))
    assert f"table: expected a file that the script's `run` wrote, got {file}" in said


def test_returns_of_pqns_peer_are_of_whole_episodes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(SCRIPTS)
    wrap = runpy.run_path(str(SCRIPTS / "pqn_peers.py"))["Returns"]

    class Countdown:
        """Rewards 1, 2, 3; then the episode ends."""

        def reset(self, key: object, params: object) -> tuple[int, int]:
            return 0, 0

        def step(self, key: object, state: int, action: object, params: object) -> tuple[int, int, float, float, dict]:
            step = state % 3 + 1
            return step, step, float(step), float(step == 3), {}

    env = wrap(Countdown())
    _, state = env.reset(None, None)
    found = []
    for _ in range(6):
        *_, info = stepped = env.step(None, state, 0, None)
        state = stepped[1]
        found.append((float(info["ended"]), float(info["ended_return"])))
    assert found == [(0, 0), (0, 0), (1, 6)] * 2


def test_playground_beside_its_trainer_has_the_same_rounds(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    class Ours:
        metrics = pd.DataFrame({"round": [0, 1, 2], "steps_per_second": [8.0, 30, 10]})

        def evaluate(self, episodes: int, policy: str, num_envs: int) -> pd.DataFrame:
            assert (episodes, policy, num_envs) == (128, "behaviour", 128)
            return pd.DataFrame({"mean": [6.0, 8.0]})

    seen: list[dict[str, Any]] = []

    def train(**settings: Any) -> None:
        seen.append(settings)
        last = {"eval/episode_reward": 3.0 + 2 * settings["seed"], "training/sps": 15.0}
        for metrics in ({"eval/episode_reward": 0.0}, last):
            settings["progress_fn"](0, metrics)

    from brax.training.agents.ppo import train as brax_train
    from mujoco_playground import wrapper

    monkeypatch.setattr(nextpolicy, "train", lambda *_, **__: Ours())
    monkeypatch.setattr(brax_train, "train", train)
    out = str(tmp_path / "out.json")
    words = ["run", "CartpoleBalance", "--seeds", "2", "--steps", "46080", "--set", "num_envs=32", "--out", out]
    run(monkeypatch, "playground_peers.py", *words)
    row = capsys.readouterr().out.splitlines()[-1]
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert cells[:6] == ["CartpoleBalance", "10", "5", "2.00", "7 +- 1.41 (2)", "4 +- 1.41 (2)"]
    assert [settings.pop("seed") for settings in seen] == [0, 1]
    made = seen[0]
    assert made.pop("wrap_env_fn") is wrapper.wrap_for_brax_training
    assert made.pop("network_factory").keywords == {
        "policy_hidden_layer_sizes": (64, 64),
        "value_hidden_layer_sizes": (64, 64),
    }
    assert {name: value for name, value in made.items() if name not in ("environment", "progress_fn")} == {
        "num_timesteps": 3 * 15_360,
        "episode_length": 1000,
        "num_envs": 32,
        "batch_size": 32,
        "num_minibatches": 16,
        "unroll_length": 30,
        "num_updates_per_batch": 16,
        "learning_rate": 0.001,
        "discounting": 0.995,
        "clipping_epsilon": 0.3,
        "gae_lambda": 0.95,
        "entropy_cost": 0.01,
        "reward_scaling": 10.0,
        "normalize_observations": True,
        "num_evals": 2,
        "num_eval_envs": 128,
        "num_resets_per_eval": 3,
    }
    assert f"out: expected a new file, got {out}" in complaint(monkeypatch, capsys, "playground_peers.py", *words)
