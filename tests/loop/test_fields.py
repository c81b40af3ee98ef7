"""No dead flags: changing any field changes what is learned, or the field is on a list that says why not."""

from __future__ import annotations

import functools
import json
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.compiling import QUICK

from nextpolicy.config import FIELDS, TrainConfig
from nextpolicy.loop.population import member_init, member_round
from nextpolicy.run.job import make_job

from .helpers import build, differ, fetch, run, tiny

pytestmark = [pytest.mark.allow_rank_promotion, pytest.mark.allow_key_reuse, pytest.mark.quick_compilation]

ROUNDS = 6
# Continuous actions, rewards and observations that vary, episodes that are cut: everything has something to act on.
BASE: dict[str, Any] = {
    "env": "gymnax/Pendulum-v1",
    "env_options": {"max_steps_in_episode": 5},
    "total_env_steps": 32 * ROUNDS,
    "algo": ("sv-static",),
    "static_k": 3,
}
REWARDED: dict[str, Any] = {"env": "probe/action-observation", "env_options": {}}  # what it learns has a gain
HELD: dict[str, Any] = {"algo": ("sv-dynamic",), "k_min": 1, "k_max": 6}
DYNAMIC: dict[str, Any] = {"algo": ("sv-dynamic",), "delta_v": 0.0, "k_min": 3, "k_max": 6}
SAC: dict[str, Any] = {"algo": ("sv-sac-static",)}
PQN: dict[str, Any] = {**REWARDED, "algo": ("sv-pqn-static",)}

# field: (its other value, what must hold beside it for the field to have something to do)
TRACED: dict[str, tuple[Any, dict[str, Any]]] = {
    "learning_rate": (2e-2, {}),
    "learning_rate_final": (5e-3, {}),
    "gamma": (0.9, {}),
    "lam": (0.5, {}),
    "clip": (1e-3, {}),
    "value_clip": (1e-3, {}),
    "value_coef": (0.1, {}),
    "entropy_coef": (0.1, {}),
    "max_grad_norm": (1e-4, {}),
    "rho_min": (0.99, {}),
    "rho_max": (1.0001, {}),
    "delta_v": (1e9, DYNAMIC),
    "k_min": (1, {**DYNAMIC, "delta_v": 1e9}),
    "k_max": (3, DYNAMIC),
    "decay_fraction": (0.5, {**DYNAMIC, "delta_v": 1e9}),
    "decay_k_max": (True, {**DYNAMIC, "decay_fraction": 0.9}),
    "static_k": (2, {}),
    "algo": (("ppo",), {}),
    "delta_tv": (1.0, {**HELD, "criterion": "policy-step", "delta_tv": 0.0}),
    "least_ess": (1.0, {**HELD, "criterion": "ess-floor", "least_ess": 0.0}),
    "error_weight": (0.0, {**HELD, **REWARDED, "criterion": "certificate", "error_weight": 1e9}),
    "tau": (0.5, SAC),
    "epsilon_final": (0.9, PQN),
    "epsilon_fraction": (0.9, PQN),
    "entropy_per_action": (1.0, SAC),
    "reward_scale": (3.0, SAC),
    "signal": ("ess-floor", {**HELD, "criterion": "any-signal", "least_ess": 1.0, "delta_v": 0.0}),
}
FOUR_ROOMS: dict[str, Any] = {"env": "four-rooms", "env_options": {}}
STATIC: dict[str, tuple[Any, dict[str, Any]]] = {
    "env": ("gymnax/MountainCarContinuous-v0", {}),
    "env_options": ({"max_steps_in_episode": 3}, {}),
    "num_envs": (8, {}),
    "torso": ("mlp", FOUR_ROOMS),
    "hidden": ((8, 8), {}),
    "activation": ("relu", {}),
    "layer_norm": (True, {}),
    "shared_torso": (True, {}),
    "log_std_init": (-1.0, {}),
    "compute_dtype": ("bfloat16", {}),
    "rollout_length": (16, {}),
    "epochs": (1, {}),
    "minibatch_size": (32, {}),
    "adam_eps": (1e-2, {}),
    "reward_clip": (0.5, {}),
    "temperature_init": (0.1, SAC),
    "epsilon_init": (0.1, PQN),
    "trace": ("watkins", {**PQN, "env": "gymnax/CartPole-v1"}),
    "updates_per_step": (0.5, SAC),
    "replay_size": (32, SAC),
    "advantage_kind": ("retrace", {}),
    "advantage_norm": ("standardise", {}),
    "truncation": ("terminal", {}),
    "diff_kind": ("network", {**DYNAMIC, "delta_v": 0.05, "k_min": 1}),
    "held_out": (0.25, {}),
    "normalise_obs": (True, {}),
    "normalise_reward": (True, {}),
}
NOT_HERE = {
    "policy": "auto is the one distribution an environment takes; any other is refused (tests/run/test_cli.py)",
    "warmup_steps": "its own test below: the warm-up comes before the rounds",
}


def configuration(**fields: Any) -> TrainConfig:
    return tiny(**{**BASE, **fields})


@functools.cache
def compiled(config_json: str) -> Any:
    """hypers -> agent after all rounds; numbers that are traced share one compilation."""
    job = make_job(TrainConfig.from_flat(json.loads(config_json)))
    setup, env = job.setup, job.env

    def learn(hypers: Any) -> Any:
        state = member_init(setup, env, jnp.uint32(0))
        return jax.lax.fori_loop(0, ROUNDS, lambda _, s: member_round(setup, env, hypers, s)[0], state).agent

    # How fast the answer comes does not matter here, how fast it compiles does: this is three times as fast.
    return jax.jit(learn, compiler_options=QUICK)


def outcome(config: TrainConfig) -> Any:
    job = make_job(config)
    hypers = jax.tree.map(lambda x: jnp.asarray(x[0]), job.hypers)
    own = config.fields()
    shared = [name for name in TRACED if name in own and (name != "algo" or config.algorithm_class.name == "ppo")]
    static = config.replace(**{name: FIELDS[name].default for name in shared})
    agent = fetch(compiled(static.to_json())(hypers))
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(agent.learner.params))
    return agent.learner.params, agent.target.params


def test_every_field_is_listed_once() -> None:
    sections = {"environment", "net", "algorithm", "criterion"}
    fields = {name for name, info in FIELDS.items() if info.section in sections} | {"algo", "static_k"}
    listed = [*TRACED, *STATIC, *NOT_HERE]
    assert sorted(listed) == sorted(fields)
    assert {n for n in TRACED if n != "algo"} == {n for n, info in FIELDS.items() if info.traced}


@pytest.mark.parametrize("name", TRACED)
def test_traced_field_matters(name: str) -> None:
    value, beside = TRACED[name]
    assert differ(outcome(configuration(**beside)), outcome(configuration(**{**beside, name: value})))


@pytest.mark.slow  # a program of its own to compile for each
@pytest.mark.parametrize("name", STATIC)
def test_static_field_matters(name: str) -> None:
    value, beside = STATIC[name]
    assert differ(outcome(configuration(**beside)), outcome(configuration(**{**beside, name: value})))


def test_a_run_repeats_itself() -> None:
    """The control: without a change nothing differs."""
    assert not differ(outcome(configuration()), outcome(configuration()))


def test_warm_up_rounds_are_not_learned_from() -> None:
    """After one round, the agent has learned in one round."""
    for steps in (0, 8, 24):
        state, _ = run(*build(configuration(warmup_steps=steps, normalise_obs=True)), [1])
        assert np.unique(state.agent.round) == [1], steps


def test_warm_up_matters() -> None:
    states = {}
    for steps in (0, 8):
        states[steps], _ = run(*build(configuration(warmup_steps=steps, normalise_obs=True)), [1])
    assert differ(states[0].agent.learner.params, states[8].agent.learner.params)
    # One round of 32 steps, and 8 steps of 4 environments before it.
    assert states[0].agent.learner.obs_stats.samples == 32
    assert states[8].agent.learner.obs_stats.samples == 64
