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
        return after._replace(learner=without_replay(after.learner)), metrics

    return light


def with_replay_of(agent: Agent, after: Agent) -> Agent:
    """`after` with the replay buffer of `agent`."""
    return after._replace(learner=_with_replay(after.learner, getattr(agent.learner, "replay", None)))


def without_replay(learner: PyTree) -> PyTree:
    """`learner` with None in place of its replay buffer, if it has one."""
    return _with_replay(learner, None)


def _with_replay(learner: PyTree, replay: PyTree) -> PyTree:
    return learner._replace(replay=replay) if hasattr(learner, "replay") else learner
