"""Networks side by side against each network alone."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nextpolicy.config import NetConfig
from nextpolicy.envs.base import Discrete, EnvSpec
from nextpolicy.nets import build, fusion, heads, side_by_side, torsos
from nextpolicy.types import PolicySnapshot

pytestmark = pytest.mark.quick_compilation
TORSO = torsos.Impala(channels=(2, 3), hidden=(5, 4), layer_norm=True)
HEADS = (heads.CategoricalHead(3), heads.ValueHead(), heads.CategoricalHead(2))


def stacks(count: int) -> list[Any]:
    made = []
    for i, head in enumerate(HEADS[:count]):
        stack = build.Stack(TORSO, head)
        params = stack.init(jax.random.key(i), jnp.zeros((1, 9, 8, 2)))
        moved = jax.tree.map(lambda x: x + 0.1 * jnp.sin(jnp.arange(x.size, dtype=x.dtype)).reshape(x.shape), params)
        made.append((stack, moved))
    return made


@pytest.mark.parametrize("count", [1, 2, 3])
def test_outputs_and_gradients_are_those_of_each_network_alone(count: int) -> None:
    made = stacks(count)
    x = jax.random.uniform(jax.random.key(9), (2, 4, 9, 8, 2))
    params = [params for _, params in made]

    def together(params: Any) -> Any:
        return side_by_side.bind(TORSO, list(zip(HEADS[:count], params, strict=True)))(x)

    def alone(params: Any) -> Any:
        return [stack.apply(own, x) for (stack, _), own in zip(made, params, strict=True)]

    def loss(run: Any) -> Any:
        return lambda params: sum(jnp.sum(jnp.cos(leaf)) for leaf in jax.tree.leaves(run(params)))

    for ours, theirs in zip(jax.tree.leaves(together(params)), jax.tree.leaves(alone(params)), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)
    ours, theirs = (jax.jit(jax.grad(loss(run)))(params) for run in (together, alone))
    for own, reference in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        np.testing.assert_allclose(own, reference, rtol=1e-4, atol=1e-4)
        assert float(jnp.abs(reference).max()) > 1e-3, "a parameter without influence tests nothing"


def test_built_on_a_gpu_in_bfloat16_only(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = EnvSpec("large", (9, 8, 2), Discrete(3), obs_dtype=jnp.uint8)
    config = NetConfig(torso="impala", hidden=(5,), layer_norm=True, compute_dtype="bfloat16")
    plain = build.build(spec, config)
    assert plain.fused_actor_critic is None
    monkeypatch.setattr(fusion, "on_gpu", lambda: True)
    fast = build.build(spec, config)
    assert fast.fused_actor_critic is not None
    assert build.build(spec, NetConfig(torso="impala", hidden=(5,))).fused_actor_critic is None
    params = plain.init(jax.random.key(0))
    obs = jax.random.randint(jax.random.key(1), (6, 9, 8, 2), 0, 256).astype(jnp.uint8)
    dist, value = fast.actor_critic(params, None)(obs)
    policy, critic = plain.policy(PolicySnapshot(params["actor"], None)), plain.value(params, None)
    np.testing.assert_allclose(dist.logits, policy(obs).logits, atol=1e-3)
    np.testing.assert_allclose(value, critic(obs), rtol=2e-2, atol=2e-2)
    assert float(jnp.std(value)) > 0
