"""A population whose members are all plain evaluates no target, and learns what it would learn from one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import numpy as np
import pytest

from nextpolicy.loop.keys import round_keys
from nextpolicy.loop.round import one_round
from nextpolicy.loop.state import Setup, init_agent
from nextpolicy.types import Rollout

from .helpers import assert_close, assert_same, member, tiny, train
from .test_round import NOTHING, N, T, hypers_of, make_rollout, setup_of

pytestmark = pytest.mark.quick_compilation
LONG = {"algo": ("ppo",), "normalise_obs": True, "normalise_reward": True, "epochs": 1}


def learned(setup: Setup, hypers: Any, agent: Any, data: Rollout, target: Any) -> Any:
    """What the algorithm returns: learner, evidence, metrics."""
    return setup.algorithm.learn(hypers.algorithm, agent.learner, target, data, jax.random.key(2), 0.25)


def both(setup: Setup, **changes: Any) -> tuple[Any, Any]:
    """What is learned without a target, and with one that equals the behavioural policy."""
    hypers, agent = hypers_of(setup), init_agent(setup, jax.random.key(1))
    data = make_rollout(setup, agent, seed=4)._replace(**changes)
    return tuple(learned(setup, hypers, agent, data, t) for t in (None, agent.target))  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("fields", "plain"),
    [
        ({"algo": ("ppo",), "seeds": 3}, True),
        ({"algo": ("ppo", "sv-static"), "static_k": 1}, True),
        ({"algo": ("ppo", "sv-static"), "static_k": 2}, False),
        ({"algo": ("sv-static",), "sweep": {"static_k": (1, 2)}}, False),
        ({"algo": ("sv-dynamic",), "k_min": 1, "k_max": 1}, False),
    ],
)
def test_a_population_is_plain_if_every_period_is_one(fields: dict[str, Any], plain: bool) -> None:
    assert setup_of(**fields).plain is plain


@pytest.mark.parametrize(("algo", "passes"), [(("ppo",), 1), (("ppo", "sv-dynamic"), 2)])
def test_a_plain_population_evaluates_one_policy_less(algo: tuple[str, ...], passes: int) -> None:
    setup, calls = setup_of(algo=algo), []

    def policy(snapshot: Any) -> Any:
        apply = setup.networks.policy(snapshot)

        def counted(obs: Any) -> Any:
            calls.append(obs.shape[:-1])
            return apply(obs)

        return counted

    hypers, agent = hypers_of(setup), init_agent(setup, jax.random.key(1))
    data = make_rollout(setup, agent, seed=4)
    counting = replace(setup, networks=setup.networks._replace(policy=policy))
    jax.eval_shape(lambda a: one_round(counting, hypers, a, data, NOTHING, round_keys(a.key, setup.shards)), agent)
    assert calls.count((T, N)) == passes  # beta_{k+1} for the metrics, and pi
    assert set(calls) == {(T, N), (16,)}  # and gradient steps


@pytest.mark.parametrize("kind", ["categorical", "gaussian"])
@pytest.mark.parametrize("advantage_kind", ["paper", "retrace", "vtrace"])
def test_without_a_target_the_same_is_learned_bit_for_bit(kind: str, advantage_kind: str) -> None:
    """Operation by operation: XLA's fusions round differently, but not the mathematics."""
    setup = setup_of(kind, advantage_kind=advantage_kind, **LONG)
    with jax.disable_jit():
        assert_same(*both(setup))


@pytest.mark.parametrize("advantage_kind", ["paper", "retrace", "vtrace"])
@pytest.mark.parametrize("rho", [{"rho_max": 0.7}, {"rho_min": 1.5}])
def test_clips_that_exclude_one_act_as_with_a_target(x64: None, advantage_kind: str, rho: dict[str, float]) -> None:
    setup = setup_of(advantage_kind=advantage_kind, **LONG, **rho)
    got, expected = both(setup, valid=np.random.default_rng(0).random((T, N)) < 0.7)
    assert_close(got, expected, rtol=1e-10, atol=1e-14)
    assert float(got[2]["rho_clipped"]) == 1.0
    assert float(both(setup_of(**LONG))[0][1].diff_target) != pytest.approx(float(got[1].diff_target), rel=1e-2)


def test_ppo_alone_equals_ppo_beside_sv_ppo() -> None:
    fields = {"env": "probe/endless", "normalise_obs": True}  # episodes of several steps, so that traces matter
    alone, mixed = (train(tiny(algo=algo, **fields), [6]) for algo in (("ppo",), ("ppo", "sv-dynamic")))
    assert_close(member(alone[1], 0), member(mixed[1], 0), rtol=1e-4, atol=1e-6)
    assert_close(member(alone[0].agent, 0), member(mixed[0].agent, 0), rtol=1e-4, atol=1e-6)
    assert not mixed[1]["accepted"].all()
