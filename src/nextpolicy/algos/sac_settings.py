"""Settings of SAC and SV-SAC."""

from __future__ import annotations

from dataclasses import dataclass

from nextpolicy.algos.ppo_settings import BELOW_ONE
from nextpolicy.settings import INT32_MAX, ConfigError, Settings, pytree, setting


@pytree
@dataclass(frozen=True)
class SACSettings(Settings):
    """Settings of SAC and SV-SAC."""

    updates_per_step: float = setting(
        1.0, "Gradient steps per environment step; a round must have a whole number of them.", low=0, high=1000
    )
    minibatch_size: int = setting(256, "Transitions per gradient step.", low=1, high=INT32_MAX)
    replay_size: int = setting(
        1_000_000, "Transitions in the replay buffer, rounded down to whole rounds.", low=1, high=INT32_MAX
    )
    learning_rate: float = setting(3e-4, "Learning rate of Adam.", traced=True, low=0, high=1e6)
    gamma: float = setting(0.99, "Discount factor.", traced=True, low=0, high=BELOW_ONE, interval="in [0, 1)")
    tau: float = setting(
        0.005, "Weight of the new critics in their running average.", traced=True, low=0, high=1, interval="in [0, 1]"
    )
    temperature_init: float = setting(1.0, "Initial weight of the entropy.", low=1e-6, high=1e6)
    entropy_per_action: float = setting(
        -1.0,
        "Entropy that the temperature is adjusted to, per element of the action scaled to [-1, 1].",
        traced=True,
        low=-1e6,
        high=1e6,
    )
    reward_scale: float = setting(1.0, "Factor of rewards in the critic's targets.", traced=True, low=0, high=1e6)
    adam_eps: float = setting(1e-8, "Adam's epsilon.", low=0, high=1e6)
    normalise_obs: bool = setting(False, "Whether observations are normalised by running statistics.")

    def updates(self, batch_size: int) -> int:
        """Gradient steps per round."""
        return round(self.updates_per_step * batch_size)

    def check(self, batch_size: int) -> None:
        """A round has a whole number of gradient steps, at least one, and the buffer holds at least one round."""
        steps = self.updates_per_step * batch_size
        if self.updates(batch_size) < 1 or abs(steps - self.updates(batch_size)) > 1e-6 * steps:
            raise ConfigError(
                "updates_per_step: expected a whole number of gradient steps per round, at least 1 (updates_per_step * "
                f"num_envs * rollout_length), got {self.updates_per_step:g} * {batch_size} = {steps:g}"
            )
        if self.replay_size < batch_size:
            raise ConfigError(
                f"replay_size: expected at least one round, num_envs * rollout_length = {batch_size}, "
                f"got {self.replay_size}"
            )

    def environment_shards(self, num_envs: int) -> int:
        """The environments of a member stay together, since they share one replay buffer."""
        return 1
