"""One round of approximate next policy sampling, for any algorithm and any criterion.

Algorithm 2 of Sandhu and Parr, "Approximate Next Policy Sampling: Replacing Conservative Target Policy Updates in Deep
RL" (arXiv 2605.05481). The behavioural policy beta_k has collected the rollout. The algorithm evaluates the frozen
target pi on it and improves beta_k to beta_{k+1}. The criterion decides whether pi becomes beta_{k+1} or is held. If
the criterion always accepts, this is the plain algorithm: PPO is SV-PPO with a gate that is always open.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from nextpolicy.core.shards import Shards
from nextpolicy.loop import checks
from nextpolicy.loop.keys import RoundKeys, learning_keys
from nextpolicy.loop.state import Agent, Hypers, Setup
from nextpolicy.nets.heads import Categorical
from nextpolicy.types import Array, Episodes, Evidence, Metrics, PolicySnapshot, Rollout


def one_round(
    setup: Setup, hypers: Hypers, agent: Agent, rollout: Rollout, episodes: Episodes, keys: RoundKeys
) -> tuple[Agent, Metrics]:
    """Evaluate the target, improve the behavioural policy, decide whether to update the target."""
    algorithm, criterion = setup.algorithm, setup.criterion
    progress = agent.round / setup.config.num_rounds
    key_next, key_learn = learning_keys(keys.key_rest)

    # 1. Evaluate pi and improve beta_k on this round's data. In a plain population pi is beta_k.
    pi = None if setup.plain else agent.target
    learner, evidence, fit = algorithm.learn(
        hypers.algorithm, agent.learner, pi, without_artefacts(rollout), key_learn, progress
    )

    # 2. Decide: a fixed period decides for plain and static members, the criterion for dynamic ones.
    rounds_held = agent.rounds_held + 1
    evidence = with_exact_values(setup, evidence, agent.target, algorithm.behaviour(learner))
    decided = criterion.update(agent.criterion, evidence, hypers.criterion, progress)
    state, wanted, why = checks.decision(type(criterion).__name__, decided, agent.criterion)
    accept = jnp.where(hypers.period > 0, rounds_held >= hypers.period, wanted)

    # 3. The target jumps to beta_{k+1}, or is held.
    target = algorithm.behaviour(learner)
    if not setup.plain:
        target = jax.tree.map(lambda new, old: jnp.where(accept, new, old), target, agent.target)
    after = Agent(learner, target, state, jnp.where(accept, 0, rounds_held), agent.round + 1, key_next)
    own = {
        **episode_metrics(setup.shards, episodes),
        **evidence_metrics(evidence, accept),
        "accepted": accept,
        "rounds_held": rounds_held,
    }
    return after, checks.merged({"finite": jnp.asarray(True), **fit}, why, own)


def with_exact_values(
    setup: Setup, evidence: Evidence, target: PolicySnapshot, behaviour_next: PolicySnapshot
) -> Evidence:
    """Add the exact values of both policies where the environment can solve for them. Unused, they cost nothing."""
    solve, table = setup.spec.start_value, setup.spec.obs_table
    if solve is None or table is None:
        return evidence
    rows = jnp.arange(len(table))

    def value(snapshot: PolicySnapshot) -> Array:
        dist = setup.networks.policy(snapshot)(rows)
        assert isinstance(dist, Categorical)
        return solve(jax.nn.softmax(dist.logits))

    return evidence._replace(start_value=value(target), next_start_value=value(behaviour_next))


def warm_up_round(setup: Setup, agent: Agent, rollout: Rollout, keys: RoundKeys) -> Agent:
    """A round of random actions: only statistics are updated, and the target stays equal to the behavioural policy."""
    learner = setup.algorithm.update_statistics(agent.learner, without_artefacts(rollout))
    return agent._replace(learner=learner, target=setup.algorithm.behaviour(learner), key=keys.key_rest)


def without_artefacts(rollout: Rollout) -> Rollout:
    """The rollout with all invalid steps set to zero.

    Masking the losses is not enough, since 0 * NaN is NaN in sums, traces and gradients.
    """
    if rollout.valid is None:
        return rollout
    valid = rollout.valid
    blank = lambda x: jnp.where(valid.reshape(valid.shape + (1,) * (x.ndim - 2)), x, jnp.zeros_like(x))  # noqa: E731
    return jax.tree.map(blank, rollout._replace(valid=None))._replace(valid=valid)


def episode_metrics(shards: Shards, episodes: Episodes) -> Metrics:
    """Means over the episodes that ended in this round; NaN if none did."""
    total, length, count = shards.total(tuple(episodes))
    some = jnp.where(count > 0, count, jnp.nan)
    return {"episode_return": total / some, "episode_length": length / some, "episodes": count.astype(jnp.int32)}


def evidence_metrics(evidence: Evidence, accept: Array) -> Metrics:
    """Scale of the value targets, divergences of the policies, and effective sample size."""
    return {
        "diff_scale": evidence.scale,
        "kl_target": jnp.where(accept, evidence.kl_jump, 0.0),
        "kl_behaviour": evidence.kl_step,
        "kl_drift": evidence.kl_drift,
        "ratio_ess": evidence.ratio_ess,
    }
