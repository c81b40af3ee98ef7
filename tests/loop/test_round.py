"""One round of SV-PPO: with the gate open it is PPO; the target is frozen while it is held; masks hold."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.compiling import QUICK

from nextpolicy.algos import ppo
from nextpolicy.core import minibatch, one_vector
from nextpolicy.criteria.stable_values import GateParams, StableValues
from nextpolicy.envs.base import Discrete, EnvSpec
from nextpolicy.loop.keys import learning_keys, round_keys
from nextpolicy.loop.population import member_init, member_round
from nextpolicy.loop.round import one_round
from nextpolicy.loop.state import Setup, init_agent, population_hypers
from nextpolicy.nets import build as nets
from nextpolicy.nets.heads import Categorical, DiagonalGaussian
from nextpolicy.nets.squashed import SquashedGaussian
from nextpolicy.types import Episodes, Networks, PolicySnapshot, Rollout, Step

from .helpers import assert_close, assert_same, build, fetch, member, run, tiny, train

T, N, FEATURES, ACTIONS = 8, 4, 3, 3
BOUNDS = (-1.0, 0.0, -7.0), (1.0, 0.1, -5.0)  # of squashed actions
KINDS = ("categorical", "gaussian", "squashed")
quick = pytest.mark.quick_compilation


# --- an independent PPO in float64, and networks in float64 for both to use ---


def dense(layers: Any, x: Any) -> Any:
    for w, b in layers[:-1]:
        x = jnp.tanh(x @ w + b[(None,) * (x.ndim - 1)])
    w, b = layers[-1]
    return x @ w + b[(None,) * (x.ndim - 1)]


def random_layers(key: jax.Array, out: int) -> list[tuple[Any, Any]]:
    sizes = [FEATURES, 7, out]
    keys = jax.random.split(key, 2)
    return [(jax.random.normal(k, (i, o)), jnp.full((o,), 0.1)) for k, i, o in zip(keys, sizes, sizes[1:])]


def networks(kind: str) -> Networks:
    def init(key):
        key_actor, key_critic = jax.random.split(key)
        return {
            "actor": {"layers": random_layers(key_actor, ACTIONS), "log_std": jnp.full((ACTIONS,), -0.3)},
            "critic": random_layers(key_critic, 1),
        }

    def policy(snapshot):
        def dist(obs):
            out = dense(snapshot.params["layers"], obs)
            if kind == "categorical":
                return Categorical(jax.nn.log_softmax(out))
            log_std = jnp.broadcast_to(snapshot.params["log_std"], out.shape)
            return DiagonalGaussian(out, log_std) if kind == "gaussian" else SquashedGaussian(out, log_std, *BOUNDS)

        return dist

    return Networks(init, policy, lambda params, stats: lambda obs: dense(params["critic"], obs)[..., 0])


def setup_of(kind: str = "categorical", **fields: Any) -> Setup:
    config = tiny(**{"algo": ("ppo",), **fields})
    spec = EnvSpec("batch", (FEATURES,), Discrete(ACTIONS))
    return Setup(config, spec, networks(kind), StableValues())


def hypers_of(setup: Setup) -> Any:
    """The first member's numbers, in float64 where x64 is on."""
    return jax.tree.map(
        lambda x: jnp.asarray(np.float64(x[0]) if x.dtype == np.float32 else x[0]),
        population_hypers(setup.config),
    )


def make_rollout(setup: Setup, agent: Any, seed: int) -> Rollout:
    """Transitions of no environment at all, with episodes that die and episodes that are cut."""
    draw = np.random.default_rng(seed)
    obs, next_obs = jnp.asarray(draw.normal(size=(2, T, N, FEATURES)))
    dist = setup.networks.policy(setup.algorithm.behaviour(agent.learner))(obs)
    action = dist.sample(jax.random.key(seed))
    end = draw.choice(3, size=(T, N), p=[0.7, 0.15, 0.15])
    return Rollout(
        obs=obs,
        next_obs=next_obs,
        action=action,
        reward=jnp.asarray(draw.normal(size=(T, N))),
        terminated=jnp.asarray(end == 1),
        truncated=jnp.asarray(end == 2),
        behaviour_log_prob=dist.log_prob(action),
        behaviour_dist=dist,
        discounted_return=jnp.zeros((T, N), jnp.float32),
    )


def learner(setup: Setup, hypers: Any) -> Any:
    def learn(agent: Any, data: Rollout) -> Any:
        return one_round(setup, hypers, agent, data, NOTHING, round_keys(agent.key, setup.shards))

    return jax.jit(learn, compiler_options=QUICK)


NOTHING = Episodes(*(np.float32(0),) * 3)


def evaluate_target(setup: Setup, hypers: Any, agent: Any, data: Rollout, log_prob: Any) -> ppo.Targets:
    return setup.algorithm.evaluate_target(hypers.algorithm, agent.learner, data, log_prob)


def objective(setup: Setup, hypers: Any, agent: Any, params: Any, obs: Any, sample: Any) -> Any:
    return setup.algorithm.objective(hypers.algorithm, agent.learner, params, obs, sample)


def written_gae(c: Any, params: Any, data: Rollout) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(v, A, A + v) by a loop over time; a cut episode bootstraps, a dead one does not."""
    v, next_v = (np.asarray(dense(params["critic"], o)[..., 0]) for o in (data.obs, data.next_obs))
    reward, dead, cut = (np.asarray(x) for x in (data.reward, data.terminated, data.terminated | data.truncated))
    advantage = np.zeros((T + 1, N))
    for t in reversed(range(T)):
        delta = reward[t] + c.gamma * np.where(dead[t], 0.0, next_v[t]) - v[t]
        advantage[t] = delta + c.gamma * c.lam * np.where(cut[t], 0.0, advantage[t + 1])
    return v, advantage[:T], advantage[:T] + v


def unsquashed(action: Any) -> tuple[Any, Any]:
    """u and da/du of a = low + (high - low) sigmoid(2 u)."""
    low, high = (np.asarray([bound]) for bound in BOUNDS)
    share = (action - low) / (high - low)
    return 0.5 * jnp.log(share / (1 - share)), 2 * (high - low) * share * (1 - share)


def written_loss(c: Any, kind: str, params: Any, obs: Any, action: Any, old: Any, v_old: Any, y: Any, a: Any) -> Any:
    """The PPO loss of one minibatch, written out."""
    out = dense(params["actor"]["layers"], obs)
    if kind == "categorical":
        p = jnp.exp(out) / jnp.sum(jnp.exp(out), axis=-1, keepdims=True)
        log_p = jnp.log(p[jnp.arange(len(p)), action])
        entropy = -jnp.sum(p * jnp.log(p), axis=-1)
    else:
        std = jnp.exp(params["actor"]["log_std"])[None]
        u, slope = (action, 1.0) if kind == "gaussian" else unsquashed(action)
        density = jnp.exp(-0.5 * ((u - out) / std) ** 2) / (std * np.sqrt(2 * np.pi)) / slope
        log_p = jnp.sum(jnp.log(density), axis=-1)
        entropy = jnp.sum(0.5 * jnp.log(2 * np.pi * np.e * std**2), axis=-1)
    ratio = jnp.exp(log_p - old)
    policy_loss = jnp.maximum(-a * ratio, -a * jnp.clip(ratio, 1 - c.clip, 1 + c.clip))
    v = dense(params["critic"], obs)[..., 0]
    v_clipped = v_old + jnp.clip(v - v_old, -c.value_clip, c.value_clip)
    value_loss = 0.5 * jnp.maximum((v - y) ** 2, (v_clipped - y) ** 2)
    return jnp.mean(policy_loss) + c.value_coef * jnp.mean(value_loss) - c.entropy_coef * jnp.mean(entropy)


class WrittenPPO:
    """Adam with bias correction after a clip of the global norm, in NumPy."""

    def __init__(self, config: Any, kind: str, params: Any, rounds: int) -> None:
        self.c, self.rounds, self.steps = config, rounds, 0
        self.params = jax.tree.map(np.asarray, params)
        self.m = jax.tree.map(np.zeros_like, self.params)
        self.v = jax.tree.map(np.zeros_like, self.params)
        self.grads: list[Any] = []
        self.gradient = jax.jit(jax.grad(partial(written_loss, config, kind)))

    def round(self, index: int, data: Rollout, order: np.ndarray) -> None:
        c = self.c
        value, advantage, y = written_gae(c, self.params, data)
        advantage = advantage / (advantage.std() + 1e-8)
        flat = [
            np.asarray(x).reshape(T * N, *x.shape[2:])
            for x in (data.obs, data.action, data.behaviour_log_prob, value, y, advantage)
        ]
        # Progress is a float32 in any precision.
        rate = c.learning_rate + float(np.float32(index / self.rounds)) * (c.learning_rate_final - c.learning_rate)
        for samples in order:
            self.step(jax.tree.map(np.asarray, self.gradient(self.params, *(x[samples] for x in flat))), rate)

    def step(self, grads: Any, rate: float) -> None:
        self.grads.append(grads)
        norm = np.sqrt(sum(np.sum(g**2) for g in jax.tree.leaves(grads)))
        grads = jax.tree.map(lambda g: g * (self.c.max_grad_norm / norm if norm > self.c.max_grad_norm else 1.0), grads)
        self.steps += 1
        self.m = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, self.m, grads)
        self.v = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g**2, self.v, grads)
        fix_m, fix_v = 1 - 0.9**self.steps, 1 - 0.999**self.steps
        self.params = jax.tree.map(
            lambda p, m, v: p - rate * (m / fix_m) / (np.sqrt(v / fix_v) + 1e-5), self.params, self.m, self.v
        )


def assert_alike(got: Any, expected: Any) -> None:
    """The same tree, the same shapes and types: a checkpoint of one is read as one of the other."""
    assert jax.tree.structure(got) == jax.tree.structure(expected)
    shapes = [[(x.shape, x.dtype) for x in jax.tree.leaves(tree)] for tree in (got, expected)]
    assert shapes[0] == shapes[1]


@quick
@pytest.mark.parametrize("as_one_vector", [False, True], ids=["as-it-is", "one-vector"])
@pytest.mark.parametrize("kind", KINDS)
def test_with_the_gate_open_a_round_is_ppo(
    x64: None, monkeypatch: pytest.MonkeyPatch, kind: str, as_one_vector: bool
) -> None:
    monkeypatch.setattr(one_vector, "_FEW", 0)  # as with more parameters
    # The entropy of squashed actions has no closed form; `tests/nets/test_squashed.py` compares it with an integral.
    bonus = {"entropy_coef": 0.0} if kind == "squashed" else {}
    setup = setup_of(kind, learning_rate_final=1e-4, value_clip=0.15, max_grad_norm=0.4, **bonus)
    if as_one_vector:  # as where the networks run fused
        setup = replace(setup, networks=setup.networks._replace(fused_actor_critic=setup.networks.actor_critic))
    hypers = hypers_of(setup)
    agent = init_agent(setup, jax.random.key(3))
    numbers = hypers.algorithm  # which reach training as float32
    exact = replace(numbers, **{k: float(v) for k, v in vars(numbers).items() if isinstance(v, jax.Array)})
    written = WrittenPPO(exact, kind, agent.learner.params, setup.config.num_rounds)
    learn = learner(setup, hypers)
    clipped = []
    for index in range(3):
        data = make_rollout(setup, agent, seed=index)
        shuffle = learning_keys(round_keys(jax.random.clone(agent.key), setup.shards).key_rest)[1]
        order = minibatch.indices(shuffle, T * N, 2, 2)
        before = agent
        agent, metrics = learn(agent, data)
        assert_alike(agent, before)
        assert bool(metrics["accepted"])
        written.round(index, data, np.asarray(order).reshape(4, -1))
        assert_close(agent.learner.params, written.params, rtol=1e-10, atol=1e-12)
        norms = [np.sqrt(sum(np.sum(g**2) for g in jax.tree.leaves(g))) for g in written.grads[-4:]]
        np.testing.assert_allclose(metrics["grad_norm"], np.mean(norms), rtol=1e-10)
        clipped.append(float(metrics["clip_fraction"]))
    assert max(clipped) > 0, "no ratio was ever clipped: the test says nothing about the clip"
    assert max(norms) > 0.4, "no gradient was ever clipped"


@quick
@pytest.mark.parametrize("kind", ["categorical", "gaussian"])
def test_the_gradient_is_ppos(x64: None, kind: str) -> None:
    setup = setup_of(kind, minibatch_size=32, epochs=1)
    hypers, agent = hypers_of(setup), init_agent(setup, jax.random.key(5))
    data = make_rollout(setup, agent, seed=7)
    moved = jax.tree.map(
        lambda x: x + 0.05 * jnp.cos(jnp.arange(x.size, dtype=x.dtype)).reshape(x.shape), agent.learner.params
    )
    targets = evaluate_target(setup, hypers, agent, data, data.behaviour_log_prob)
    obs, sample = minibatch.flatten(
        (data.obs, ppo._Sample(data.action, data.behaviour_log_prob, *targets[:3], data.valid))
    )
    grads, _ = jax.jit(jax.grad(lambda p: objective(setup, hypers, agent, p, obs, sample), has_aux=True))(moved)
    value, advantage, y = written_gae(hypers.algorithm, agent.learner.params, data)
    flat = [np.asarray(x).reshape(T * N, *np.shape(x)[2:]) for x in (*data[:1], data.action, data.behaviour_log_prob)]
    flat += [x.reshape(-1) for x in (value, y, advantage / (advantage.std() + 1e-8))]
    expected = jax.jit(jax.grad(lambda p: written_loss(hypers.algorithm, kind, p, *flat)))(moved)
    assert_close(grads, expected, rtol=1e-9, atol=1e-12)


# --- the first ratios are 1 ---


@pytest.mark.parametrize(
    ("env", "fields"),
    [
        pytest.param("four-rooms", {"torso": "mlp"}, marks=quick),  # the layers of the other, without its convolution
        ("four-rooms", {"torso": "small-cnn", "layer_norm": True, "activation": "relu"}),
    ],
)
def test_first_ratios_are_exactly_one_on_tabulated_observations(env: str, fields: dict[str, Any]) -> None:
    """With clip = 0 the clip fraction is the share of ratios that are not 1 to the last bit."""
    _, metrics = train(tiny(env=env, clip=0.0, epochs=1, minibatch_size=32, algo=("ppo",), **fields), [5])
    np.testing.assert_array_equal(metrics["clip_fraction"], 0.0)
    np.testing.assert_array_equal(metrics["approx_kl"], 0.0)


@quick
@pytest.mark.parametrize("env", ["probe/action-observation", "probe/action-observation-continuous"])
def test_first_ratios_are_one_to_rounding(env: str) -> None:
    config = tiny(env=env, clip=1e-5, epochs=1, minibatch_size=32, normalise_obs=True)
    _, metrics = train(config, [5])
    np.testing.assert_array_equal(metrics["clip_fraction"], 0.0)


# --- one program, three algorithms ---

OPEN = {"static_k": 1, "delta_v": float("inf"), "k_min": 1, "k_max": 33}


# The key checker loses track of keys that vmap moves through a scan; the unmapped program passes it.
@quick
@pytest.mark.parametrize("population", ["map", pytest.param("force-vmap", marks=pytest.mark.allow_key_reuse)])
def test_open_gates_are_one_algorithm_in_one_population(population: str) -> None:
    config = tiny(algo=("ppo", "sv-static", "sv-dynamic"), population=population, normalise_obs=True, **OPEN)
    state, metrics = train(config, [20])
    for other in (1, 2):
        assert_same(member(state, 0), member(state, other))
        skip = ("k_max",)
        assert_same(*({k: v[i] for k, v in metrics.items() if k not in skip} for i in (0, other)))
    assert metrics["accepted"].all()


def test_open_gates_are_one_algorithm_in_separate_programs() -> None:
    states = [train(tiny(algo=(algo,), **OPEN), [20])[0] for algo in ("ppo", "sv-static", "sv-dynamic")]
    assert_same(states[0], states[1])
    assert_same(states[0], states[2])


def test_gate_params_of_the_three_names() -> None:
    config = tiny(algo=("ppo", "sv-static", "sv-dynamic"), **OPEN)
    hypers = population_hypers(config)
    assert hypers.period.tolist() == [1, 1, 0]
    expected = [GateParams.ppo(), GateParams.static(1), GateParams.dynamic(delta_v=float("inf"), k_min=1, k_max=33)]
    for i, params in enumerate(expected):
        assert member(hypers.criterion, i) == params


# --- the frozen target ---


def test_the_held_target_is_frozen_to_the_last_bit_while_statistics_move() -> None:
    config = tiny(env="probe/action-observation-continuous", algo=("sv-static",), static_k=4, normalise_obs=True)
    job, program = build(config)
    policy = jax.jit(lambda snapshot, obs: job.setup.networks.policy(snapshot)(obs))
    obs = jnp.linspace(-2.0, 2.0, 9)[:, None]
    outputs = lambda snapshot: fetch(policy(member(snapshot, 0), obs))  # noqa: E731
    state = program.init(job.seeds)
    target, seen = outputs(state.agent.target), []
    for index in range(12):
        mean_before = np.asarray(state.agent.learner.obs_stats.mean)
        state, metrics, _ = program.block(state, 1)
        behaviour = outputs(job.setup.algorithm.behaviour(state.agent.learner))
        assert (mean_before != np.asarray(state.agent.learner.obs_stats.mean)).any()
        accepted = bool(metrics["accepted"][0, 0])
        assert accepted == (index % 4 == 3)
        assert (metrics["kl_target"][0, 0] == 0.0) != accepted
        if accepted:
            assert_same(outputs(state.agent.target), behaviour)
        else:
            assert_same(outputs(state.agent.target), target)
            assert (behaviour.mean != target.mean).any()
        target = outputs(state.agent.target)
        seen.append(float(metrics["kl_drift"][0, 0]))
    assert [d == 0.0 for d in seen] == [i % 4 == 0 for i in range(12)]


@quick
@pytest.mark.parametrize(("k", "rounds"), [(8, 20), (8, 24), (3, 20)])
def test_static_k_accepts_once_in_k_rounds(k: int, rounds: int) -> None:
    _, metrics = train(tiny(algo=("sv-static",), static_k=k), [rounds])
    assert metrics["accepted"].sum() == rounds // k
    np.testing.assert_array_equal(np.flatnonzero(metrics["accepted"][0]), np.arange(k - 1, rounds, k))


# --- estimation ---


def off_policy(setup: Setup) -> tuple[Any, Any, Rollout]:
    """An agent whose target is not its behaviour, and data of the behaviour."""
    agent = init_agent(setup, jax.random.key(1))
    other = setup.networks.init(jax.random.key(2))["actor"]
    agent = agent._replace(target=PolicySnapshot(other, agent.learner.obs_stats))
    return hypers_of(setup), agent, make_rollout(setup, agent, seed=11)


def target_log_prob(setup: Setup, agent: Any, data: Rollout) -> Any:
    return setup.networks.policy(agent.target)(data.obs).log_prob(data.action)


@quick
@pytest.mark.parametrize("kind", ["none", "scale", "standardise"])
def test_advantage_norm(x64: None, kind: str) -> None:
    got = {}
    for name in ("none", kind):
        setup = setup_of(advantage_norm=name)
        hypers, agent, data = off_policy(setup)
        got[name] = np.asarray(
            evaluate_target(setup, hypers, agent, data, target_log_prob(setup, agent, data)).advantage
        )
    raw = got["none"]
    expected = {
        "none": raw,
        "scale": raw / (raw.std() + 1e-8),
        "standardise": (raw - raw.mean()) / (raw.std() + 1e-8),
    }[kind]
    np.testing.assert_allclose(got[kind], expected, rtol=1e-12)
    assert abs(raw.mean()) > 1e-3
    assert abs(raw.std() - 1) > 1e-3


@quick
def test_truncation_bootstraps_or_counts_as_death(x64: None) -> None:
    got = {}
    for kind in ("bootstrap", "terminal"):
        setup = setup_of(truncation=kind, advantage_norm="none")
        hypers, agent, data = off_policy(setup)
        log_prob = target_log_prob(setup, agent, data)
        got[kind] = evaluate_target(setup, hypers, agent, data, log_prob)
    next_value = setup.networks.value(agent.learner.params, None)(data.next_obs)
    truncated = np.asarray(data.truncated)
    rho = np.minimum(np.asarray(got["bootstrap"].ratio), hypers.algorithm.rho_max)
    expected = rho * hypers.algorithm.gamma * np.asarray(next_value)
    difference = np.asarray(got["bootstrap"].value_target - got["terminal"].value_target)
    assert truncated.any()
    # At a truncated step the two differ by the bootstrap alone: the trace is cut in both.
    np.testing.assert_allclose(difference[truncated], expected[truncated], rtol=1e-9)
    after_last_cut = np.cumsum(truncated[::-1], axis=0)[::-1] == 0
    np.testing.assert_array_equal(difference[after_last_cut], 0.0)


@quick
def test_diff_is_the_change_towards_the_target_or_of_the_network(x64: None) -> None:
    for kind in ("target", "network"):
        setup = setup_of(diff_kind=kind, algo=("sv-dynamic",))
        hypers, agent, data = off_policy(setup)
        targets = evaluate_target(setup, hypers, agent, data, target_log_prob(setup, agent, data))
        after, metrics = learner(setup, hypers)(agent, data)
        before, now = (setup.networks.value(a.learner.params, None)(data.obs) for a in (agent, after))
        towards = targets.value_target if kind == "target" else now
        np.testing.assert_allclose(metrics["diff"], np.mean(np.abs(towards - before)), rtol=1e-12)
        np.testing.assert_allclose(metrics["diff_scale"], np.mean(np.abs(targets.value_target)), rtol=1e-12)


@quick
def test_metrics_of_ratios_and_divergences(x64: None) -> None:
    setup = setup_of(rho_min=0.5, rho_max=1.5, algo=("sv-dynamic",), k_min=1, k_max=1)
    hypers, agent, data = off_policy(setup)
    after, metrics = learner(setup, hypers)(agent, data)
    ratio = np.exp(target_log_prob(setup, agent, data) - data.behaviour_log_prob)
    target, behaviour, following = (
        jax.nn.softmax(dense(p["layers"], data.obs))
        for p in (agent.target.params, agent.learner.params["actor"], after.learner.params["actor"])
    )
    kl = lambda p, q: float(np.mean(np.sum(p * np.log(p / q), axis=-1)))  # noqa: E731
    expected = {
        "ratio_max": ratio.max(),
        "ratio_ess": ratio.sum() ** 2 / (ratio.size * np.sum(ratio**2)),
        "rho_clipped": np.mean((ratio < 0.5) | (ratio > 1.5)),
        "kl_target": kl(target, following),
        "kl_behaviour": kl(behaviour, following),
        "kl_drift": kl(target, behaviour),
    }
    assert 0 < expected["rho_clipped"] < 1
    for name, value in expected.items():
        np.testing.assert_allclose(metrics[name], value, rtol=1e-9, err_msg=name)


# --- masked steps ---


def poisoned(data: Rollout, valid: np.ndarray, poison: float) -> Rollout:
    def spoil(x: Any) -> Any:
        if not jnp.issubdtype(x.dtype, jnp.floating):
            return x
        return jnp.where(valid.reshape(valid.shape + (1,) * (x.ndim - 2)), x, poison)

    return jax.tree.map(spoil, data)._replace(valid=jnp.asarray(valid))


@quick
def test_masked_steps_reach_nothing() -> None:
    setup = setup_of("gaussian", algo=("sv-dynamic",), normalise_obs=True, normalise_reward=True)
    hypers, agent, data = off_policy(setup)
    valid = np.random.default_rng(0).random((T, N)) < 0.7
    # What comes before an artefact is the end of an episode.
    data = data._replace(terminated=data.terminated | jnp.asarray(np.roll(~valid, -1, axis=0)))
    learn = learner(setup, hypers)
    results = [
        learn(agent._replace(key=jax.random.clone(agent.key)), poisoned(data, valid, poison))
        for poison in (0.0, 1e6, np.nan, np.inf)
    ]
    plain = fetch(results[0])
    assert all(np.isfinite(v) for k, v in plain[1].items() if not k.startswith("episode_")), plain[1]
    assert plain[0].learner.obs_stats.samples == valid.sum()
    np.testing.assert_allclose(
        plain[0].learner.obs_stats.mean, np.asarray(data.obs)[valid].mean(axis=0), rtol=1e-4, atol=1e-6
    )
    for result in results[1:]:
        assert_same(plain, fetch(result))
    assert float(results[0][1]["diff"]) != float(learn(agent, data._replace(valid=jnp.ones((T, N), bool)))[1]["diff"])


@quick
def test_the_masked_gradient_is_that_of_the_valid_samples(x64: None) -> None:
    setup = setup_of("gaussian", minibatch_size=32, epochs=1)
    hypers, agent, data = off_policy(setup)
    valid = np.random.default_rng(0).random((T, N)) < 0.7
    targets = evaluate_target(setup, hypers, agent, data, data.behaviour_log_prob)
    sample = minibatch.flatten(
        (data.obs, ppo._Sample(data.action, data.behaviour_log_prob, *targets[:3], jnp.asarray(valid)))
    )
    obs, kept = jax.tree.map(lambda x: x[valid.reshape(-1)], sample)
    kept = (obs, kept._replace(valid=None))
    gradient = jax.jit(jax.grad(lambda p, batch: objective(setup, hypers, agent, p, *batch), has_aux=True))
    assert_close(gradient(agent.learner.params, sample), gradient(agent.learner.params, kept), rtol=1e-10, atol=1e-14)


class NextStepReset:
    """Counts to 3 and dies; the step after that is an artefact of its reset, and poisoned."""

    spec = EnvSpec("next-step", (1,), Discrete(2))

    def reset(self, key: Any, num_envs: int) -> tuple[Any, Any]:
        age = jnp.arange(num_envs, dtype=jnp.int32) % 3
        return age, age[:, None].astype(jnp.float32)

    def step(self, key: Any, state: Any, action: Any) -> tuple[Any, Step]:
        artefact = state == 3
        age = jnp.where(artefact, 0, state + 1)
        obs = age[:, None].astype(jnp.float32)
        step = Step(
            obs=obs,
            next_obs=jnp.where(artefact[:, None], jnp.nan, obs),
            reward=jnp.where(artefact, jnp.nan, 1.0),
            terminated=age == 3,
            truncated=jnp.zeros_like(artefact),
            valid=~artefact,
        )
        return age, step


@quick
def test_artefacts_of_an_environment_reach_no_metric() -> None:
    config = tiny(algo=("sv-dynamic",), normalise_obs=True, normalise_reward=True, warmup_steps=5)
    env = NextStepReset()
    setup = Setup(config, env.spec, nets.build(env.spec, config.net), StableValues())
    hypers = hypers_of(setup)
    state = jax.jit(lambda: member_init(setup, env, jnp.uint32(0)), compiler_options=QUICK)()
    step = jax.jit(lambda s: member_round(setup, env, hypers, s), compiler_options=QUICK)
    for _ in range(3):
        state, metrics = step(state)
        assert all(np.isfinite(np.asarray(v)).all() for v in metrics.values()), metrics
    assert float(metrics["episode_return"]) == 3.0
    assert float(metrics["episode_length"]) == 3.0
    # Observations 0, 1 and 2 are acted in; 3, the one of the dead, is not.
    assert 0.5 < float(state.agent.learner.obs_stats.mean[0]) < 1.5
    assert all(np.isfinite(np.asarray(x)).all() for x in jax.tree.leaves(fetch(state.agent.learner.params)))


@quick
def test_blocks_report_the_round_they_belong_to() -> None:
    job, program = build(tiny(algo=("ppo",), learning_rate=1.0, learning_rate_final=0.0))
    state, metrics = run(job, program, [3, 5])
    np.testing.assert_allclose(metrics["learning_rate"][0], 1.0 - np.arange(8) / 40, rtol=1e-6)
    assert state.agent.round.tolist() == [8]
