"""Exported squashed Gaussians, SAC's and PPO's, in NumPy and ONNX. `tests/algos/test_sac.py` exports a real run."""

from __future__ import annotations

import json
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from export.test_policies import IMAGE, MLP, VECTOR, assert_close, exported, observations, random_policy, run_onnx
from nextpolicy.config import NetConfig
from nextpolicy.envs.base import Box, EnvSpec
from nextpolicy.export import numpy_policy
from nextpolicy.nets import build, soft
from nextpolicy.nets.squashed import LOG_STD, MEAN_BOUND, SquashedGaussian
from nextpolicy.run.policy import Policy

pytestmark = [pytest.mark.allow_key_reuse, pytest.mark.quick_compilation]

PPO = replace(MLP, policy="squashed")
ARM = Box((3,), np.asarray([-1.0, 0.0, -7.0]), np.asarray([1.0, 0.1, -5.0]))
CASES: dict[str, tuple[EnvSpec, NetConfig]] = {
    "bounds of each element": (replace(VECTOR, action=ARM), MLP),
    "means that have bounds": (replace(VECTOR, action=ARM), PPO),
    "a table": (replace(VECTOR, action=Box((2, 2), -0.1, 0.1, np.float64)), MLP),
    "a number": (replace(VECTOR, action=Box((), -3.0, 1.0)), MLP),
    "half precision": (replace(VECTOR, action=Box((2,), -0.1, 0.1, np.float16)), MLP),
    "images": (replace(IMAGE, action=ARM), NetConfig(hidden=(8,), activation="relu", layer_norm=True)),
}


def squashed_policy(spec: EnvSpec, config: NetConfig, normalised: bool = False) -> Policy:
    networks = build.build if config.policy == "squashed" else soft.build
    return random_policy(spec, config, normalised=normalised, build=networks)


def distribution(policy: Policy, obs: np.ndarray) -> SquashedGaussian:
    dist = policy._networks.policy(policy.snapshot)(jnp.asarray(obs))
    assert isinstance(dist, SquashedGaussian)
    return dist


@pytest.mark.parametrize("name", CASES)
def test_numpy_and_onnx_equal_the_original(name: str) -> None:
    spec, config = CASES[name]
    policy, obs = squashed_policy(spec, config, normalised=True), observations(spec, 50)
    description, arrays = exported(policy, config)
    loaded = numpy_policy.Policy(json.loads(json.dumps(description, allow_nan=False)), arrays)
    dist, wanted, space = distribution(policy, obs), policy(obs), spec.action
    assert isinstance(space, Box)
    assert np.ptp(wanted, axis=0).min() > 0.01 * np.min(np.asarray(space.high) - np.asarray(space.low))
    assert np.ptp(np.asarray(dist.log_std), axis=0).min() > 0.01, "it does not depend on the observation"
    assert loaded.output(obs).dtype == np.float32
    assert_close(loaded.output(obs), np.concatenate([dist.mean, dist.log_std], -1))
    found = run_onnx(description, arrays, obs)
    for actions in (loaded(obs), found["action"]):
        assert actions.dtype == space.dtype
        assert_close(actions.astype(np.float64), wanted.astype(np.float64))
    assert_close(found["mean"], np.asarray(dist.mean).reshape(wanted.shape))
    assert_close(found["std"], np.exp(dist.log_std).reshape(wanted.shape))


def test_actions_far_outside_stay_within_their_bounds() -> None:
    spec = CASES["half precision"][0]
    config, obs = NetConfig(torso="mlp", hidden=()), 1e4 * observations(spec)
    description, arrays = exported(squashed_policy(spec, config), config)
    loaded, bound = numpy_policy.Policy(description, arrays), np.float16(0.1)
    for actions in (
        loaded(obs),
        loaded.sample(obs, np.random.default_rng(0)),
        run_onnx(description, arrays, obs)["action"],
    ):
        np.testing.assert_array_equal(np.abs(actions), bound)
    log_std = loaded.output(obs)[:, 2:]
    np.testing.assert_allclose(np.unique(log_std), LOG_STD, rtol=1e-6)


def test_means_of_ppo_far_outside_are_at_their_bounds() -> None:
    spec, config = CASES["half precision"][0], replace(PPO, hidden=())
    description, arrays = exported(squashed_policy(spec, config), config)
    obs = 1e4 * observations(spec)
    found = [
        numpy_policy.Policy(description, arrays).output(obs)[:, :2],
        run_onnx(description, arrays, obs)["mean"],
    ]
    for mean in found:
        np.testing.assert_allclose(np.unique(mean), [-MEAN_BOUND, MEAN_BOUND], rtol=1e-6)


def test_batch_axes_are_kept_and_may_be_absent() -> None:
    for name in ("a table", "a number"):
        spec, config = CASES[name]
        policy, obs = squashed_policy(spec, config), observations(spec)
        loaded, wanted = numpy_policy.Policy(*exported(policy, config)), policy(obs)
        own = wanted.shape[1:]
        cases = [(obs[0], wanted[0]), (obs.reshape(2, 3, 4), wanted.reshape(2, 3, *own)), (obs[:0], wanted[:0])]
        for some, actions in cases:
            assert_close(loaded(some), np.asarray(actions))
            assert np.shape(loaded.sample(some, np.random.default_rng(0))) == np.shape(actions)


def test_samples_have_the_distribution_of_the_policy() -> None:
    """Moments against those of JAX's samples, and shares below three quantiles."""
    spec, count = replace(VECTOR, action=ARM), 40_000
    policy = squashed_policy(spec, MLP)
    loaded, obs = numpy_policy.Policy(*exported(policy, MLP)), observations(spec, 1)
    drawn = loaded.sample(np.repeat(obs, count, 0), np.random.default_rng(0)).astype(np.float64)
    dist = distribution(policy, np.repeat(obs, count, 0))
    theirs = np.asarray(dist.sample(jax.random.key(0)), np.float64)
    half = (np.asarray(ARM.high) - np.asarray(ARM.low)) / 2
    np.testing.assert_allclose((drawn.mean(0) - theirs.mean(0)) / half, 0.0, atol=0.02)
    np.testing.assert_allclose(drawn.std(0) / theirs.std(0), 1.0, atol=0.03)
    np.testing.assert_allclose(np.corrcoef(drawn.T), np.eye(3), atol=0.03)
    quantile = lambda z: np.asarray(dist.perturbed(jnp.full_like(dist.mean, z)))[0]  # noqa: E731
    for z, share in ((-1.0, 0.1587), (0.0, 0.5), (1.0, 0.8413)):
        np.testing.assert_allclose((drawn < quantile(z)).mean(0), share, atol=0.01)
