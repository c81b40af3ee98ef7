"""Rounds of algorithms with a replay buffer, `learner.replay`; nothing changes for algorithms that have none."""

from __future__ import annotations

from collections.abc import Callable

from nextpolicy.loop.round import without_artefacts
from nextpolicy.loop.state import Agent, Setup
from nextpolicy.types import Metrics, PyTree, Rollout

Branch = Callable[[Agent, Rollout], tuple[Agent, Metrics]]


def remember(setup: Setup, agent: Agent, rollout: Rollout) -> Agent:
    """Add the rollout to the replay buffer. Every round does this before it learns or warms up."""
    add = getattr(setup.algorithm, "remember", None)
    return agent if add is None else agent._replace(learner=add(agent.learner, without_artefacts(rollout)))


def reads_replay(branch: Branch) -> Branch:
    """`branch` of a conditional that does not return the replay buffer: XLA copies all that a branch returns."""

    def light(agent: Agent, rollout: Rollout) -> tuple[Agent, Metrics]:
        after, metrics = branch(agent, rollout)
        return _with_replay(after, None), metrics

    return light


def with_replay_of(agent: Agent, after: Agent) -> Agent:
    """`after` with the replay buffer of `agent`."""
    return _with_replay(after, getattr(agent.learner, "replay", None))


def _with_replay(agent: Agent, replay: PyTree) -> Agent:
    learner = agent.learner
    return agent._replace(learner=learner._replace(replay=replay)) if hasattr(learner, "replay") else agent
