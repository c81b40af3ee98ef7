"""Peers: what is asked of them and how their answers are read, with stand-ins in their places."""

import json
import subprocess
import sys
import textwrap
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import pytest

from nextpolicy.bench import peers, process
from nextpolicy.bench.measure import take
from nextpolicy.config import ConfigError, presets
from nextpolicy.envs import gymnax
from nextpolicy.nets.build import build

WORK = {"num_envs": "4", "rollout_length": "8", "minibatch_size": "16", "total_env_steps": "320", "hidden": "8,8"}
PLAIN = {"normalise_obs": "false", "normalise_reward": "false", "hidden": "64,64"}


def interpreter(folder, body):
    """An executable in the place of a peer's Python; it is given the path of the worker and does not run it."""
    file = folder / "python"
    file.write_text(f"#!{sys.executable}\nimport json, sys\n{textwrap.dedent(body)}")
    file.chmod(0o755)
    return str(file)


ANSWERING = """
    work = json.loads(sys.stdin.readline())
    print(json.dumps({"compile_seconds": 1.5, "version": "x"}), flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        if "until_return" in asked:
            reply = {"seconds": asked["until_return"], "rounds": asked["rounds"], "there": work["members"]}
        else:
            took = asked["rounds"] * 0.5
            reply = {"steps": 1, "seconds": took, "cpu_seconds": 2 * took, "memory_bytes": 7, "memory_of": "process"}
        print(json.dumps(reply), flush=True)
"""


def test_a_peer_times_itself_and_waits_for_its_turn(tmp_path):
    made = process.contender("rejax", interpreter(tmp_path, ANSWERING), "gymnax/CartPole-v1", 3, WORK)
    assert (made.name, made.steps_per_round, made.compile_seconds) == ("rejax", 4 * 8 * 3, 1.5)
    assert take(made, 6) == (3.0, 6.0)
    assert made.memory() == (7, "process")
    assert made.until(475.0) == (475.0, 320, 3)  # ten rounds of 4 x 8 steps
    made.close()
    assert made.close() is None  # twice does no harm


def test_a_peer_of_one_seed_says_so(tmp_path):
    made = process.contender("sb3", interpreter(tmp_path, ANSWERING), "gymnax/CartPole-v1", 3, WORK)
    assert (made.name, made.steps_per_round) == ("sb3, one seed at a time", 4 * 8)
    made.close()


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("print(json.dumps({'error': 'OSError: no disk'}))", "rejax: OSError: no disk"),
        ("print(json.dumps({'error': \"ModuleNotFoundError: No module named 'rejax'\"}))", "is it installed there"),
        ("print('Segmentation fault')", "got 'Segmentation fault'"),
        ("sys.exit(3)", "got exit code 3"),
    ],
)
def test_a_peer_that_fails_is_told_in_one_line(tmp_path, body, words):
    with pytest.raises(process.PeerError) as caught:
        process.contender("rejax", interpreter(tmp_path, body), "gymnax/CartPole-v1", 1, WORK)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_networks_that_peers_do_not_have_are_refused(tmp_path):
    with pytest.raises(ConfigError, match="expected an MLP without layer_norm"):
        process.contender("sb3", "python", "gymnax/CartPole-v1", 1, {**WORK, "layer_norm": "true"})


# The worker itself, with packages of the peers' names that only look like them.

FAKE_SB3 = {
    "stable_baselines3/__init__.py": """
        class PPO:
            def __init__(self, policy, env, **settings):
                print("a peer may print what it likes")
                assert settings["batch_size"] == 16 and settings["policy_kwargs"]["net_arch"]["pi"] == [8, 8]
                assert settings["learning_rate"](1.0) == 1e-3 and settings["learning_rate"](0.0) == 1e-5
                self.env, self.steps = env, 0

            def learn(self, steps, reset_num_timesteps=True, callback=None):
                for round in range(steps // 32):
                    self.steps += 32
                    if callback is not None:
                        callback.locals = {"infos": [{"episode": {"r": self.steps}}, {}]}
                        if not callback._on_step():
                            return
                        callback._on_rollout_end()
    """,
    "stable_baselines3/common/__init__.py": "",
    "stable_baselines3/common/callbacks.py": "class BaseCallback: pass",
    "stable_baselines3/common/env_util.py": """
        def make_vec_env(name, n_envs, seed):
            if name != "CartPole-v1":
                raise ValueError(f"no such environment\\n{name}")
            return n_envs
    """,
    "stable_baselines3/common/vec_env.py": "class VecNormalize: pass",
    "torch/__init__.py": "",
    "torch/nn.py": "Tanh = 'tanh'",
    "torch-1.dist-info/METADATA": "Name: torch\nVersion: 1",
    "stable_baselines3-1.dist-info/METADATA": "Name: stable-baselines3\nVersion: 1",
}


def talk(folder, *questions):
    """What the worker answers, in an interpreter that finds the stand-ins."""
    for name, text in FAKE_SB3.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(textwrap.dedent(text))
    lines = "".join(json.dumps(q) + "\n" for q in questions)
    done = subprocess.run(
        [sys.executable, process.WORKER],
        input=lines,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={"PYTHONPATH": str(folder)},
    )
    return [json.loads(line) for line in done.stdout.splitlines()], done.stderr


def job(**changes):
    work = {"peer": "sb3", "env": "CartPole-v1", "members": 1, "minibatches": 2, "num_envs": 4, "rollout_length": 8}
    work |= {"epochs": 2, "hidden": [8, 8], "activation": "tanh", "learning_rate": 1e-3, "learning_rate_final": 1e-5}
    work |= dict.fromkeys(("gamma", "lam", "clip", "entropy_coef", "value_coef", "max_grad_norm"), 0.5)
    return work | {"normalise_obs": False, "normalise_reward": False} | changes


def test_the_worker_answers_in_its_own_stream_what_it_is_asked(tmp_path):
    asked = [job(), {"rounds": 3}, {"until_return": 70.0, "rounds": 10}, {"until_return": 700.0, "rounds": 10}]
    (hello, ran, reached, never), stderr = talk(tmp_path, *asked)
    assert hello["compile_seconds"] >= 0
    assert hello["version"] == "stable-baselines3 1 torch 1"
    assert ran["steps"] == 3 * 4 * 8
    assert 0 <= ran["seconds"] < 10
    assert ran["memory_bytes"] > 2**20
    assert (reached["rounds"], reached["there"]) == (3, 1)  # rounds end at 32, 64 and 96 steps, which are the returns
    assert reached["seconds"] > 0
    assert never == {"seconds": None, "rounds": 10, "there": 0}
    assert "a peer may print what it likes" in stderr


def test_the_worker_tells_what_a_peer_raised_in_one_line(tmp_path):
    assert talk(tmp_path, job(env="Carpole"))[0] == [{"error": "ValueError: no such environment"}]
    missing = talk(tmp_path, job(peer="rejax"))[0]
    assert missing == [{"error": "ModuleNotFoundError: No module named 'rejax'"}]


# PureJaxRL, with scripts of ours in the place of its checkout.

FAKE_PUREJAXRL = """
    import jax, jax.numpy as jnp

    traced = []

    class ActorCritic:
        pass

    def make_train(config):
        updates = config["TOTAL_TIMESTEPS"] // config["NUM_STEPS"] // config["NUM_ENVS"]
        traced.append(updates)

        def train(key):
            def update(total, _):
                total = total + 1.0
                shape = (config["NUM_STEPS"], config["NUM_ENVS"])
                over = jnp.zeros(shape, bool).at[0, 0].set(total > 1)
                return total, {"returned_episode": over, "returned_episode_returns": jnp.full(shape, total)}

            total, metrics = jax.lax.scan(update, jnp.float32(0), None, updates)
            return {"runner_state": (total, key), "metrics": metrics}

        return train
"""


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    for name, text in {"ppo.py": FAKE_PUREJAXRL, "wrappers.py": ""}.items():
        (tmp_path / name).write_text(textwrap.dedent(text))
    for name in ("wrappers", "purejaxrl_ppo", "chex", "distrax", "navix"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    yield str(tmp_path)
    for name in ("wrappers", "purejaxrl_ppo", "chex", "distrax", "navix"):
        sys.modules.pop(name, None)


def test_purejaxrl_compiles_one_program_of_no_rounds_and_one_for_the_rounds_asked(checkout):
    made = peers.purejaxrl(checkout, "gymnax/CartPole-v1", 2, {**WORK, **PLAIN})
    for _ in range(3):
        assert float(made.run(7)["runner_state"][0][1]) == 7.0
        assert float(made.overhead()["runner_state"][0][1]) == 0.0
    assert sys.modules["purejaxrl_ppo"].traced == [0, 7]
    assert made.steps_per_round == 4 * 8 * 2
    assert made.one_length
    assert made.memory()[1] == "contender"


def test_purejaxrl_tells_the_time_to_a_return_from_its_metrics(checkout):
    made = peers.purejaxrl(checkout, "gymnax/CartPole-v1", 2, {**WORK, **PLAIN})
    assert made.until(4.0)[1:] == (4 * 32, 2)  # the return of round i is i, in both members
    assert made.until(0.0)[1:] == (2 * 32, 2)  # the first round finishes no episode
    assert made.until(11.0)[0] is None  # ten rounds are the budget


def test_purejaxrl_is_given_the_same_settings():
    numbers = {"epochs": 3, "gamma": 0.9, "lam": 0.8, "clip": 0.3, "entropy_coef": 0.02, "value_coef": 0.7}
    numbers |= {"max_grad_norm": 0.6, "learning_rate": 2e-3}
    config = presets.build("gymnax/CartPole-v1", **{**WORK, **PLAIN, **numbers})
    given = peers._purejaxrl_settings(config, "CartPole-v1")
    wanted = {"UPDATE_EPOCHS": 3, "GAMMA": 0.9, "GAE_LAMBDA": 0.8, "CLIP_EPS": 0.3, "ENT_COEF": 0.02, "VF_COEF": 0.7}
    wanted |= {"MAX_GRAD_NORM": 0.6, "LR": 2e-3, "NUM_ENVS": 4, "NUM_STEPS": 8, "NUM_MINIBATCHES": 2}
    assert {name: given[name] for name in wanted} == wanted


def test_peers_run_the_physics_that_we_run(monkeypatch):
    backend = lambda env, **options: peers.brax_backend(presets.build(env, env_options=options))  # noqa: E731
    assert (backend("brax/hopper"), backend("brax/hopper", backend="spring")) == ("positional", "spring")
    assert (backend("brax/swimmer"), backend("brax/fast")) == ("generalized", None)
    assert backend("gymnax/CartPole-v1") is None
    small, sent = {**WORK, "torso": "mlp", "layer_norm": "false"}, []
    monkeypatch.setattr(process, "Contender", lambda *_, **__: None)
    for env, options in ("swimmer", {}), ("hopper", {}), ("hopper", {"backend": "spring"}):
        stand_in = SimpleNamespace(hello={"compile_seconds": 0.0}, close=None)
        monkeypatch.setattr(process, "PeerProcess", lambda peer, python, work, s=stand_in: sent.append(work) or s)
        process.contender("rejax", "python", f"brax/{env}", 1, {**small, "env_options": options})
    assert [work["env_options"]["backend"] for work in sent] == ["generalized", "positional", "spring"]
    with pytest.raises(ConfigError, match=r"expected no env_options besides backend, got episode_length"):
        process.contender("rejax", "python", "brax/hopper", 1, {**small, "env_options": {"episode_length": 9}})


MINATAR_NETWORKS = [{}, {"torso": "mlp", "hidden": "8", "layer_norm": "false"}, {"shared_torso": "true"}]


@pytest.mark.parametrize("changes", MINATAR_NETWORKS)
@pytest.mark.quick_compilation
def test_purejaxrl_trains_our_network_on_flattened_observations(checkout, changes):
    fields = {"num_envs": "4", "rollout_length": "8", "minibatch_size": "16", "hidden": "8", **changes}
    config = presets.build("gymnax/Breakout-MinAtar", **fields)
    peers.purejaxrl(checkout, "gymnax/Breakout-MinAtar", 1, fields, probe=False)
    env = gymnax.make("Breakout-MinAtar")
    ours = build(env.spec, config.net)
    theirs = sys.modules["purejaxrl_ppo"].ActorCritic(env.spec.action.n, activation="tanh")
    obs = jax.random.bernoulli(jax.random.key(1), 0.3, (5, 10, 10, 4))
    flat = obs.reshape(5, -1).astype("float32")
    params = theirs.init(jax.random.key(0), flat[0])
    want = ours.init(jax.random.key(2))
    assert jax.tree.map(jnp.shape, params["params"]["networks"]) == jax.tree.map(jnp.shape, want)
    policy, value = theirs.apply({"params": {"networks": want}}, flat)
    own_policy, own_value = ours.actor_critic(want, None)(obs)
    assert (value == own_value).all()
    assert (policy.dist.logits == own_policy.logits).all()
    assert (policy.sample(seed=jax.random.key(3)) == own_policy.sample(jax.random.key(3))).all()


def test_purejaxrl_keeps_its_network_where_ours_is_the_same(checkout):
    assert peers.own_network(presets.build("gymnax/CartPole-v1", **PLAIN)) is None
    peers.purejaxrl(checkout, "gymnax/CartPole-v1", 1, {**WORK, **PLAIN}, probe=False)
    assert sys.modules["purejaxrl_ppo"].ActorCritic.__module__ == "purejaxrl_ppo"
    for other in {"hidden": "64"}, {"activation": "relu"}, {"layer_norm": "true"}, {"shared_torso": "true"}:
        assert peers.own_network(presets.build("gymnax/CartPole-v1", **{**PLAIN, **other})) is not None


def test_work_that_purejaxrl_does_otherwise_is_refused(checkout):
    peers.check_purejaxrl(checkout, "gymnax/CartPole-v1", PLAIN)
    peers.check_purejaxrl(checkout, "gymnax/Breakout-MinAtar", {})
    with pytest.raises(ConfigError, match=r"add --set normalise_obs=False normalise_reward=False$"):
        peers.check_purejaxrl(checkout, "gymnax/CartPole-v1", {})
    with pytest.raises(ConfigError, match=r"expected discrete actions and Box observations on gymnax/, got .*Pend"):
        peers.check_purejaxrl(checkout, "gymnax/Pendulum-v1", PLAIN)
    (Path(checkout) / "ppo_continuous_action.py").touch()
    given = {"hidden": "32", "layer_norm": "true", "shared_torso": "true"}
    with pytest.raises(ConfigError, match=r"add --set layer_norm=False shared_torso=False hidden=256,256$"):
        peers.check_purejaxrl(checkout, "brax/hopper", given)
    with pytest.raises(ConfigError, match="expected an environment of gymnax/ or brax/"):
        peers.check_purejaxrl(checkout, "four-rooms", {})
    with pytest.raises(ConfigError, match=r"expected no env_options besides backend, got max_steps_in_episode"):
        peers.check_purejaxrl(checkout, "gymnax/CartPole-v1", {"env_options": {"max_steps_in_episode": 9}})
