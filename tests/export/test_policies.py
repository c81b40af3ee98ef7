"""An exported policy equals the original: every network, every kind of observation and action."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nextpolicy.config import NetConfig
from nextpolicy.envs.base import Box, Discrete, EnvSpec, own_actions
from nextpolicy.export import describe, numpy_policy, onnx_graph
from nextpolicy.nets import build as nets
from nextpolicy.run.policy import Policy
from nextpolicy.types import PolicySnapshot, RunningStats

pytestmark = pytest.mark.quick_compilation

MADE_BY = {"nextpolicy": "0", "algo": "ppo", "seed": 0, "policy": "target", "env_steps": 0}
CHOICE, ARM = Discrete(5), Box((3,), -1.0, 1.0)
IMAGE, FRAMES = EnvSpec("toy", (7, 6, 3), CHOICE), EnvSpec("toy", (41, 38, 2), CHOICE, np.uint8)
VECTOR, SPRITE = EnvSpec("toy", (4,), CHOICE), EnvSpec("toy", (9, 8, 2), CHOICE, np.uint8)
MLP = NetConfig(torso="mlp", hidden=(8,))
NORMALISED = ("mlp-tanh", "mlp-relu-norm", "small-cnn-norm", "nature")  # nature: bytes are scaled instead
NETWORKS = {
    "mlp-tanh": (VECTOR, NetConfig(torso="mlp", hidden=(8, 7), activation="tanh")),
    "mlp-relu-norm": (
        replace(VECTOR, action=ARM),
        NetConfig(torso="mlp", hidden=(8,), activation="relu", layer_norm=True),
    ),
    "mlp-silu": (VECTOR, NetConfig(torso="mlp", hidden=(8,), activation="silu", shared_torso=True)),
    "mlp-no-layers": (VECTOR, NetConfig(torso="mlp", hidden=())),
    "mlp-image": (IMAGE, NetConfig(torso="mlp", hidden=(8,))),
    "small-cnn": (replace(IMAGE, obs_dtype=np.bool_), NetConfig(torso="small-cnn", hidden=(8,), activation="relu")),
    "small-cnn-norm": (replace(IMAGE, action=ARM), NetConfig(hidden=(8, 6), activation="tanh", layer_norm=True)),
    "nature": (FRAMES, NetConfig(hidden=(8,), activation="tanh")),
    "nature-norm": (replace(FRAMES, action=ARM), NetConfig(torso="nature", hidden=(8,), layer_norm=True)),
    "impala": (SPRITE, NetConfig(torso="impala", hidden=(8,))),
    "impala-norm": (replace(IMAGE, action=ARM), NetConfig(torso="impala", hidden=(8, 6), layer_norm=True)),
}


def random_policy(
    spec: EnvSpec, config: NetConfig, arrange: Any = None, normalised: bool = False, build: Any = nets.build
) -> Policy:
    """Random parameters, biases and scales too: initial ones are zeros and ones, which hide mistakes."""
    networks, rng = build(replace(spec, obs_table=None), config), np.random.default_rng(1)
    shapes = jax.eval_shape(networks.init, jax.random.key(0))["actor"]
    wide = lambda x: jnp.asarray(rng.normal(size=x.shape) / np.sqrt(max(1, x.size // x.shape[-1])), jnp.float32)  # noqa: E731
    stats = None
    if normalised:
        mean, m2 = rng.normal(size=spec.obs_shape), 9.0 * rng.uniform(0.0, 4.0, size=spec.obs_shape)
        stats = RunningStats(*(jnp.asarray(x, jnp.float32) for x in (9.0, mean, m2)))
    return Policy(spec, networks, PolicySnapshot(jax.tree.map(wide, shapes), stats), arrange)


def exported(policy: Policy, config: NetConfig, arrange: Any = None) -> tuple[dict[str, Any], numpy_policy.Arrays]:
    return describe.describe(policy.spec, config, policy.snapshot, arrange, MADE_BY)


def observations(spec: EnvSpec, count: int = 6) -> np.ndarray:
    rng = np.random.default_rng(2)
    shape = (count, *(spec.obs_shape if spec.own_obs_shape is None else spec.own_obs_shape))
    if np.dtype(spec.obs_dtype) != np.float32:
        return rng.integers(0, 256 if np.dtype(spec.obs_dtype) == np.uint8 else 2, shape).astype(spec.obs_dtype)
    return rng.normal(size=shape, scale=3.0).astype(np.float32)


def original(policy: Policy, obs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Log-probabilities or means, and greedy actions, from the networks themselves."""
    rows = jnp.asarray(obs) if policy._arrange is None else policy._arrange(jnp.asarray(obs))
    dist = jax.jit(lambda x: policy._networks.policy(policy.snapshot)(x))(rows)
    return np.asarray(dist[0]), own_actions(policy.spec.action, np.asarray(dist.mode()))


def assert_close(got: Any, wanted: np.ndarray) -> None:
    assert np.shape(got) == wanted.shape
    np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-5 * float(np.abs(wanted).max(initial=0.0)))


def run_onnx(description: dict[str, Any], arrays: numpy_policy.Arrays, obs: np.ndarray) -> dict[str, np.ndarray]:
    """Outputs of the ONNX model by name, from onnxruntime, or else from ONNX's own evaluator."""
    pytest.importorskip("onnx")
    model = onnx_graph.model(description, arrays)
    names = [output.name for output in model.graph.output]
    try:
        import onnxruntime
    except ImportError:
        from onnx.reference import ReferenceEvaluator

        return dict(zip(names, ReferenceEvaluator(model).run(None, {"obs": obs}), strict=True))
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return dict(zip(names, session.run(None, {"obs": obs}), strict=True))


@pytest.mark.parametrize("name", NETWORKS)
def test_every_network_is_equal_to_rounding(name: str) -> None:
    spec, config = NETWORKS[name]
    policy = random_policy(spec, config, normalised=name in NORMALISED)
    description, arrays = exported(policy, config)
    assert all(array.dtype == np.float32 for array in arrays.values())
    obs = observations(spec)
    wanted, actions = original(policy, obs)
    assert np.ptp(wanted, axis=0).max() > 0.01, "it does not read the observation"
    loaded = numpy_policy.Policy(json.loads(json.dumps(description)), arrays)
    assert loaded.output(obs).dtype == np.float32
    assert_close(loaded.output(obs), wanted)
    assert_close(loaded(obs), actions)
    assert loaded(obs).dtype == actions.dtype
    assert description["network"]["torso"] == name.split("-norm")[0].split("-")[0].replace("small", "small-cnn")

    found = run_onnx(description, arrays, obs)
    assert_close(found["action"], actions)
    assert found["action"].dtype == actions.dtype
    assert_close(found["log_probs" if "log_probs" in found else "mean"], wanted)
    if "std" in found:
        assert_close(found["std"], np.exp(policy.snapshot.params["params"]["head"]["log_std"]))


def test_batch_axes_are_kept_and_may_be_absent() -> None:
    for spec in (VECTOR, replace(VECTOR, action=Box((2, 2), -1.0, 1.0)), replace(VECTOR, action=Box((), -1.0, 1.0))):
        policy = random_policy(spec, MLP)
        loaded = numpy_policy.Policy(*exported(policy, MLP))
        obs, own = observations(spec), () if isinstance(spec.action, Discrete) else spec.action.shape
        wanted = policy(obs)
        cases = [(obs[0], wanted[0]), (obs.reshape(2, 3, 4), wanted.reshape(2, 3, *own)), (obs[:0], wanted[:0])]
        for some, actions in cases:
            assert_close(loaded(some), np.asarray(actions))
            assert np.shape(loaded.sample(some, np.random.default_rng(0))) == np.shape(actions)
    assert isinstance(numpy_policy.Policy(*exported(random_policy(VECTOR, MLP), MLP))(obs[0]), np.int32)


ACTIONS = [
    Discrete(3, -1, np.int64),
    Discrete(3, 250, np.uint8),
    Discrete(3, 2**40, np.int64),
    Box((2, 2), -0.1, 0.1, np.float64),
    Box((2,), -0.1, 0.1, np.float16),
    Box((3,), np.asarray([-1.0, 0.0, -np.inf]), np.asarray([1.0, np.inf, 0.0])),
]


@pytest.mark.parametrize("space", ACTIONS, ids=repr)
def test_actions_are_those_of_the_environment(space: Discrete | Box) -> None:
    spec = replace(VECTOR, action=space)
    policy = random_policy(spec, MLP)
    description, arrays = exported(policy, MLP)
    text = json.dumps(description, allow_nan=False)
    loaded, obs = numpy_policy.Policy(json.loads(text), arrays), observations(spec, 200)
    for actions in (loaded(obs), run_onnx(description, arrays, obs)["action"]):
        assert actions.dtype == space.dtype
        assert_close(actions.astype(np.float64), policy(obs).astype(np.float64))
    drawn = loaded.sample(obs, np.random.default_rng(0))
    assert drawn.dtype == space.dtype
    if isinstance(space, Discrete):
        assert set(drawn.tolist()) == set(range(space.start, space.start + 3))
    else:
        assert (drawn >= np.asarray(space.low, space.dtype)).all()
        assert (drawn <= np.asarray(space.high, space.dtype)).all()


@pytest.mark.parametrize("action", [CHOICE, Box((2,), -np.inf, np.inf)], ids=["discrete", "continuous"])
def test_samples_have_the_distribution_of_the_policy(action: Discrete | Box) -> None:
    spec, count = replace(VECTOR, action=action), 20_000
    policy = random_policy(spec, MLP)
    loaded, obs = numpy_policy.Policy(*exported(policy, MLP)), observations(spec, 1)
    drawn = loaded.sample(np.repeat(obs, count, 0), np.random.default_rng(0))
    dist = policy._networks.policy(policy.snapshot)(jnp.asarray(obs))
    if isinstance(action, Discrete):
        np.testing.assert_allclose(np.bincount(drawn) / count, np.exp(dist.logits[0]), atol=0.015)
    else:
        std = np.exp(dist.log_std[0])
        np.testing.assert_allclose((drawn.mean(0) - dist.mean[0]) / std, 0.0, atol=0.03)
        np.testing.assert_allclose(drawn.std(0) / std, 1.0, atol=0.03)


def host_cases() -> dict[str, tuple[EnvSpec, Any, np.ndarray]]:
    """Observations of environments on the host: description, what pools make of them, and some of them."""
    shape = FRAMES.obs_shape
    first = replace(FRAMES, own_obs_shape=(shape[2], *shape[:2]))
    scalar = replace(VECTOR, obs_shape=(1,), own_obs_shape=())
    states = replace(VECTOR, own_obs_shape=(), first_state=3)
    cast = lambda spec: lambda x: x.reshape((-1, *spec.obs_shape)).astype(spec.obs_dtype)  # noqa: E731
    return {
        "channels first": (first, lambda x: jnp.moveaxis(x, 1, -1), observations(first)),
        "one number": (scalar, cast(scalar), observations(scalar)),
        "channels last": (replace(FRAMES, own_obs_shape=shape), cast(FRAMES), observations(FRAMES)),
        "states": (states, lambda x: jax.nn.one_hot(x - 3, 4, dtype=jnp.float32), np.arange(3, 7)),
    }


@pytest.mark.parametrize("name", host_cases())
def test_observations_are_those_of_the_environment(name: str) -> None:
    spec, arrange, obs = host_cases()[name]
    policy = random_policy(spec, MLP, arrange)
    description, arrays = exported(policy, MLP, arrange)
    loaded, wanted = numpy_policy.Policy(description, arrays), original(policy, obs)[0]
    assert_close(loaded.output(obs), wanted)
    np.testing.assert_array_equal(loaded(obs), policy(obs))
    assert_close(run_onnx(description, arrays, obs)["log_probs"], wanted)


def test_state_numbers_are_rows_of_a_table() -> None:
    table = np.random.default_rng(0).normal(size=(9, 4)).astype(np.float32)
    policy = random_policy(replace(VECTOR, obs_table=table), MLP)
    description, arrays = exported(policy, MLP)
    states, wanted = np.arange(9), original(policy, table)[0]
    assert_close(numpy_policy.Policy(description, arrays).output(states.reshape(3, 3)), wanted.reshape(3, 3, 5))
    assert_close(run_onnx(description, arrays, states)["log_probs"], wanted)


def test_large_logits_stay_finite() -> None:
    config = NetConfig(torso="mlp", hidden=())
    policy, obs = random_policy(VECTOR, config), 1000 * observations(VECTOR)
    wanted, _ = original(policy, obs)
    assert wanted.min() < -1000
    assert_close(numpy_policy.Policy(*exported(policy, config)).output(obs), wanted)


def test_silu_of_very_negative_numbers_is_zero() -> None:
    with np.errstate(all="raise", under="ignore"):
        values = numpy_policy._run([{"kind": "silu"}], np.asarray([-1e4, -200.0, 0.0, 200.0], np.float32), {})
    np.testing.assert_array_equal(values, [0.0, 0.0, 0.0, 200.0])


@pytest.mark.parametrize(
    ("spec", "obs", "words"),
    [
        (VECTOR, np.zeros(3), r"^obs: expected shape \(4,\), or a batch, got float64 of shape \(3,\)$"),
        (VECTOR, 1.0, r"^obs: expected shape \(4,\), or a batch, got float64 of shape \(\)$"),
        (VECTOR, ["a"] * 4, r"^obs: expected shape \(4,\), or a batch, got <U1 of shape \(4,\)$"),
        (
            VECTOR,
            (np.zeros(4), {}),
            r"^obs: expected an array, got parts of unlike shapes; reset returns \(obs, info\)$",
        ),
        (replace(VECTOR, first_state=3), 2.5, r"^obs: expected whole numbers, got float64 of shape \(\)$"),
        (replace(VECTOR, first_state=3), [3, 7], r"^obs: expected whole numbers from 3 to 6, got 7$"),
        (replace(VECTOR, first_state=3), 2, r"^obs: expected whole numbers from 3 to 6, got 2$"),
    ],
)
def test_other_observations_are_one_line(spec: EnvSpec, obs: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        numpy_policy.Policy(*exported(random_policy(spec, MLP), MLP))(obs)


def test_what_cannot_be_exported_is_one_line() -> None:
    policy = random_policy(VECTOR, MLP)
    with pytest.raises(ValueError, match=r"^format: expected 1, got 2; "):
        numpy_policy.Policy({"format": 2}, {})
    mirrored = replace(policy.spec, own_obs_shape=(4,))
    with pytest.raises(ValueError, match=r"^export: expected observations of a Box or Discrete space, .* jax\.export$"):
        describe.describe(mirrored, MLP, policy.snapshot, lambda x: x[:, ::-1], MADE_BY)
    odd = replace(policy.spec, action="dance")
    with pytest.raises(ValueError, match=r"^export: expected Discrete or Box actions, got str; .* jax\.export$"):
        describe.describe(odd, MLP, policy.snapshot, None, MADE_BY)
