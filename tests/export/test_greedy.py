"""Exported policies of PQN: epsilon-greedy in action values, in NumPy and ONNX."""

from __future__ import annotations

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from export.test_policies import MLP, SPRITE, VECTOR, assert_close, exported, observations, run_onnx
from nextpolicy.config import NetConfig
from nextpolicy.envs.base import EnvSpec
from nextpolicy.export import numpy_policy
from nextpolicy.nets import greedy
from nextpolicy.run.policy import Policy
from nextpolicy.types import PolicySnapshot

pytestmark = [pytest.mark.allow_key_reuse, pytest.mark.quick_compilation]

CNN = NetConfig(torso="small-cnn", hidden=(8,), activation="relu", layer_norm=True)


@pytest.mark.parametrize(("spec", "config"), [(VECTOR, MLP), (SPRITE, CNN)], ids=["vector", "image"])
@pytest.mark.parametrize("epsilon", [0.0, 0.2])
def test_numpy_and_onnx_equal_the_original(spec: EnvSpec, config: NetConfig, epsilon: float) -> None:
    networks = greedy.build(spec, config)
    params = {**networks.init(jax.random.key(3)), "epsilon": jnp.float32(epsilon)}
    policy, obs = Policy(spec, networks, PolicySnapshot(params, None)), observations(spec, 40)
    description, arrays = exported(policy, config)
    loaded = numpy_policy.Policy(json.loads(json.dumps(description, allow_nan=False)), arrays)
    wanted = policy(obs)
    assert len(np.unique(wanted)) > 1
    np.testing.assert_array_equal(loaded(obs), wanted)
    found = run_onnx(description, arrays, obs)
    np.testing.assert_array_equal(found["action"], wanted)
    assert networks.action_value is not None
    assert_close(found["values"], networks.action_value(params["critic"], None)(jnp.asarray(obs)))
    logits = networks.policy(policy.snapshot)(jnp.asarray(obs)).logits  # type: ignore[attr-defined]
    assert_close(np.exp(loaded.output(obs)), np.exp(logits))
    many = np.stack([loaded.sample(obs[:1], np.random.default_rng(i)) for i in range(400)])[:, 0]
    taken = np.mean(many == wanted[0])
    share = 1.0 - epsilon + epsilon / description["action"]["n"]
    assert abs(taken - share) < 5 * np.sqrt(share * (1 - share) / 400) + 1e-9
