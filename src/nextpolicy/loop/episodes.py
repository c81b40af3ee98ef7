"""Episode accounting, for JAX arrays on the device and NumPy arrays on the host."""

from __future__ import annotations

from typing import Any, NamedTuple

from nextpolicy.types import Episodes, Step


class Running(NamedTuple):
    """The unfinished episodes of N environments, each [N]."""

    discounted_return: Any  # sum of discounted `reward`
    episode_return: Any  # sum of `score`
    episode_length: Any


def clip_reward(step: Step[Any], reward_clip: float) -> Step[Any]:
    """The step with `reward` clipped to [-reward_clip, reward_clip] and the unclipped reward in `score`."""
    if reward_clip == float("inf"):
        return step
    score = step.reward if step.score is None else step.score
    return step._replace(reward=step.reward.clip(-reward_clip, reward_clip), score=score)


def account(running: Running, step: Step[Any], gamma: Any) -> tuple[Running, Any, Episodes]:
    """(episodes after the step, discounted return [N] including this step, sums over the episodes that ended).

    Invalid steps are ignored.
    """
    xp = step.reward.__array_namespace__()
    cut = step.terminated | step.truncated
    over = cut if step.episode_over is None else step.episode_over
    valid = xp.ones_like(cut) if step.valid is None else step.valid
    reward = xp.where(valid, step.reward, 0.0)
    score = reward if step.score is None else xp.where(valid, step.score, 0.0)
    discounted = running.discounted_return * gamma + reward
    returns, lengths = running.episode_return + score, running.episode_length + valid
    after = Running(
        discounted_return=xp.where(cut, 0.0, discounted),
        episode_return=xp.where(over, 0.0, returns),
        episode_length=xp.where(over, 0, lengths),
    )
    ended = Episodes(
        returns=xp.sum(xp.where(over, returns, 0.0)),
        lengths=xp.sum(xp.where(over, lengths, 0), dtype=xp.float32),
        finished=xp.sum(over, dtype=xp.float32),
    )
    return after, discounted, ended


class Tally(NamedTuple):
    """The first episodes of N environments: the number that ended [N], and returns and lengths [N, episodes]."""

    done: Any
    returns: Any
    lengths: Any


def count(tally: Tally, step: Step[Any]) -> Tally:
    """The tally after a step. Episodes beyond the first `episodes` of an environment are not counted."""
    xp = step.reward.__array_namespace__()
    over = step.terminated | step.truncated if step.episode_over is None else step.episode_over
    score = step.reward if step.score is None else step.score
    current = xp.arange(tally.returns.shape[1])[None, :] == tally.done[:, None]
    current = current if step.valid is None else current & step.valid[:, None]
    return Tally(
        done=tally.done + over,
        returns=tally.returns + xp.where(current, score[:, None], 0.0),
        lengths=tally.lengths + current,
    )
