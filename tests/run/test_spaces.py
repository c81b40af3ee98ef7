"""Training on nested observations and several choices per action, from `train` to a policy in a Gymnasium loop."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import numpy as np
import pytest
from gymnasium import spaces

import nextpolicy
from nextpolicy.envs import build as envs
from nextpolicy.envs.base import EnvSpec
from nextpolicy.envs.space_trees import nested_actions
from nextpolicy.export import describe
from nextpolicy.loop.actions import action_noise, random_actions

from .test_policy import Toy, of_spaces, policy_of

sys.path.insert(0, str(Path(__file__).parents[1] / "envs"))
from host_toys import Matching
from test_nested import Nested, Reach, batch, same

pytestmark = [pytest.mark.quick_compilation, pytest.mark.allow_key_reuse, pytest.mark.allow_rank_promotion]
FIELDS: dict[str, Any] = {
    "quiet": True,
    "num_envs": 16,
    "rollout_length": 16,
    "minibatch_size": 64,
    "epochs": 4,
    "hidden": (32,),
    "learning_rate": 1e-2,
    "entropy_coef": 0.0,
    "gamma": 0.9,
    "block_rounds": 5,
}


@pytest.fixture(scope="module")
def matched(tmp_path_factory: pytest.TempPathFactory) -> nextpolicy.Run:
    """PPO and SV-PPO, stopped after the first of three blocks and resumed; each episode is one step."""
    out, algo = tmp_path_factory.mktemp("runs") / "matching", ("ppo", "sv-dynamic")
    steps = 15 * 256
    stopped = nextpolicy.train(
        env_fn=Matching,
        out=out,
        algo=algo,
        total_env_steps=steps,
        callback=lambda block: True,
        warmup_steps=16,
        **FIELDS,
    )
    assert stopped.status["rounds_done"] == 5
    return nextpolicy.resume(out, env_fn=Matching, quiet=True)


def test_several_choices_from_a_nested_observation_are_learned(matched: nextpolicy.Run) -> None:
    table = matched.metrics
    assert matched.status["state"] == "finished"
    for _, member in table.groupby("variant"):
        assert member["episode_return"].iloc[0] < 0.7
        assert member["episode_return"].iloc[-1] > 0.97
        # Of 3 x 2 x 2 joint actions: all equally likely at first, nearly one in the end.
        assert member["entropy"].iloc[0] == pytest.approx(np.log(12), abs=0.2)
        assert 0 <= member["entropy"].iloc[-1] < 0.5
        for name in ("kl_behaviour", "kl_drift", "kl_target", "approx_kl"):
            assert np.isfinite(member[name]).all()
        assert (member["kl_behaviour"] > 0).all()
        assert member["kl_behaviour"].max() < 1.0
    assert matched.evaluate(20, greedy=True)["mean"].min() == 1.0


@pytest.mark.parametrize("member", [0, 1])
def test_its_policy_plays_in_a_gymnasium_loop(matched: nextpolicy.Run, member: int) -> None:
    env, policy = Matching(), matched.policy(member=member)
    total = 0.0
    for seed in range(10):
        obs, _ = env.reset(seed=seed)
        action = policy(obs)
        assert (action.shape, action.dtype) == ((3,), np.int64)
        total += env.step(action)[1]
    assert total == 10.0
    many = [env.reset(seed=seed)[0] for seed in range(6)]
    together = policy(batch(env.observation_space, many), jax.random.key(0))
    assert together.shape == (6, 3)
    np.testing.assert_array_equal(policy(batch(env.observation_space, many)), [policy(one) for one in many])
    shown = "{'more': (a whole number from 0 to 2, shape (2,)), 'position': shape (2,)} -> MultiDiscrete(3, 2, 2)"
    assert repr(policy) == f"Policy(custom/Matching: {shown})"
    with pytest.raises(ValueError, match=r"obs: expected a dict, .*write `obs, info = env.reset\(\)`"):
        policy(env.reset())


def test_what_cannot_be_exported_is_refused(matched: nextpolicy.Run, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"^export: expected observations of a Box or Discrete space, .* jax\.export$"):
        matched.export(tmp_path / "policy")
    real = nested_actions("toy", spaces.Tuple([spaces.Box(-1, 1, (2,))]))
    for action, kind in ((envs.make_host(Matching).spec.action, "MultiDiscrete"), (real, "nested ones")):
        with pytest.raises(ValueError, match=rf"^export: expected Discrete or Box actions, got {kind}; .*jax\.export$"):
            describe._action(EnvSpec("toy", (2,), action))


@pytest.mark.slow  # envs/test_nested.py steps such environments, and the choices above are learned as bits are
def test_bits_are_learned_in_processes_of_their_own(tmp_path: Path) -> None:
    make, options = partial(Matching, bits=True), {"vectorization": "async", "groups": 1}
    fields = {**FIELDS, "num_envs": 4, "rollout_length": 64}
    run = nextpolicy.train(
        env_fn=make, out=tmp_path / "run", algo=("ppo",), total_env_steps=256 * 8, env_options=options, **fields
    )
    assert run.metrics["episode_return"].iloc[-1] > 0.9
    action = run.policy()(make().reset(seed=0)[0])
    assert (action.shape, action.dtype) == ((2,), np.int8)


class Logits(nn.Module):
    outputs: int

    @nn.compact
    def __call__(self, obs: Any) -> Any:
        return nn.Dense(self.outputs)(obs)


def test_a_callers_actor_returns_the_logits_of_all_choices(tmp_path: Path) -> None:
    fields = {**FIELDS, "total_env_steps": 256}
    with pytest.raises(ValueError, match=r"actor: expected logits of shape \(2, 7\) .*; end it with nn.Dense\(7\)"):
        nextpolicy.train(env_fn=Matching, actor=Logits(3), out=tmp_path / "run", **fields)
    with pytest.raises(
        ValueError, match="policy: expected 'categorical' for custom/Matching, whose actions are discrete"
    ):
        nextpolicy.train(env_fn=Matching, policy="gaussian", out=tmp_path / "run", **fields)


def test_warm_up_tries_every_joint_action() -> None:
    spec = envs.make_host(Matching).spec
    drawn = np.asarray(random_actions(spec, jax.random.key(0), (40, 10)))
    assert drawn.shape == (40, 10, 3)
    counts = np.bincount(np.ravel_multi_index(tuple(drawn.reshape(-1, 3).T), (3, 2, 2)), minlength=12)
    assert counts.min() > 15
    # Noise of its own for every value of every choice; with shared noise, choices would be correlated.
    assert action_noise(spec, jax.random.key(0), (40, 10)).shape == (40, 10, 3, 3)


def test_policies_give_nested_actions_in_the_order_of_the_space() -> None:
    seen, acted = Nested.observation_space, Nested.action_space
    _, policy = of_spaces(seen, acted)
    many = batch(seen, [seen.sample() for _ in range(50)])
    toy = Toy(seen, acted)
    drawn = policy(many, jax.random.key(0))
    assert list(drawn) == list(acted.spaces)
    for i in range(50):
        toy.step({name: value[i] for name, value in drawn.items()})
    assert [drawn["m"].min(axis=0).tolist(), drawn["m"].max(axis=0).tolist()] == [[0, 1], [2, 4]]
    toy.step(policy(seen.sample()))
    assert same(policy.apply(many, jax.random.key(0)), drawn)
    traced = jax.jit(policy.apply)(many, jax.random.key(0))
    assert all(np.array_equal(traced[name], drawn[name]) for name in drawn)
    with pytest.raises(TypeError, match=r"got a traced array; inside jit and vmap, call policy\.apply"):
        jax.jit(policy)(many)


def test_gymnax_environments_take_and_give_nested_samples_too() -> None:
    pytest.importorskip("gymnax")
    obs = {"goal": 1, "parts": (np.full(2, 0.5), np.asarray([7]))}
    policy = policy_of(envs.make(Reach()).spec)
    action = policy(obs)
    assert [*action, len(action["b"]), action["a"].dtype] == ["b", "a", 1, np.int32]
    assert same(action, policy.apply(obs))


@pytest.mark.slow  # the adapter and its policy are tested alone
def test_gymnax_environments_train_and_act_alike(tmp_path: Path) -> None:
    pytest.importorskip("gymnax")
    run = nextpolicy.train(env=Reach(), out=tmp_path / "run", algo=("ppo",), total_env_steps=256 * 12, **FIELDS)
    assert run.metrics["episode_return"].iloc[-1] > 15.0  # of 22
    assert np.isfinite(run.metrics["kl_behaviour"]).all()
    action = run.policy()({"goal": 1, "parts": (np.full(2, 0.5), np.asarray([7]))})
    assert same(action, {"b": (1,), "a": 1})
