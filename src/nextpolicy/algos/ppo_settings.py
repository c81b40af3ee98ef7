"""Settings of PPO and SV-PPO."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

from nextpolicy.settings import INT32_MAX, ConfigError, Settings, pytree, setting

BELOW_ONE = 1 - 2**-24  # the largest float32 below 1


def whole_minibatches(batch_size: int, minibatch_size: int) -> None:
    """Raise `ConfigError` unless the minibatch size divides the batch size."""
    if batch_size % minibatch_size:
        raise ConfigError(
            f"minibatch_size: expected a divisor of the batch size, num_envs * rollout_length = {batch_size}, "
            f"got {minibatch_size}"
        )


@pytree
@dataclass(frozen=True)
class PPOSettings(Settings):
    """Settings of PPO and SV-PPO."""

    divides_batch: ClassVar[bool] = True
    epochs: int = setting(4, "Passes over a round's batch.", low=1, high=10_000)
    minibatch_size: int = setting(
        1024,
        "Samples per gradient step, a divisor of num_envs * rollout_length; a preset's size is rescaled to be one.",
        low=1,
        high=INT32_MAX,
    )
    learning_rate: float = setting(3e-4, "Initial learning rate of Adam.", traced=True, low=0, high=1e6)
    learning_rate_final: float = setting(
        0.0, "Learning rate at the end of its linear decay over the rounds.", traced=True, low=0, high=1e6
    )
    gamma: float = setting(0.99, "Discount factor.", traced=True, low=0, high=BELOW_ONE, interval="in [0, 1)")
    lam: float = setting(
        0.95, "Trace decay of GAE, Retrace and V-trace.", traced=True, low=0, high=1, interval="in [0, 1]"
    )
    clip: float = setting(0.2, "Clip range of the probability ratio beta_theta / beta_k.", traced=True, low=0)
    value_clip: float = setting(
        0.2, "Change of a value per round beyond which its loss is clipped; inf for no clipping.", traced=True, low=0
    )
    value_coef: float = setting(0.5, "Weight of the value loss.", traced=True, low=0, high=1e6)
    entropy_coef: float = setting(0.01, "Weight of the entropy bonus.", traced=True, low=-1e6, high=1e6)
    max_grad_norm: float = setting(0.5, "Maximum global norm of the gradients.", traced=True, low=0)
    rho_min: float = setting(0.0, "Lower bound on the importance ratio in V-trace.", traced=True, low=0, high=1e6)
    rho_max: float = setting(5.0, "Upper bound on the importance ratio in V-trace.", traced=True, low=0)
    adam_eps: float = setting(1e-5, "Adam's epsilon.", low=0, high=1e6)
    advantage_kind: Literal["paper", "retrace", "vtrace"] = setting(
        "paper",
        "Off-policy advantage: paper (its equation) and retrace (traces on state values) are biased; or vtrace.",
    )
    advantage_norm: Literal["scale", "standardise", "none"] = setting(
        "scale", "scale divides advantages by their standard deviation, standardise also subtracts their mean."
    )
    truncation: Literal["bootstrap", "terminal"] = setting(
        "bootstrap", "At a time limit, bootstrap from the true successor or treat the step as terminal."
    )
    held_out: float = setting(
        0.0,
        "Fraction of the environments whose data the critic is not trained on, for the criterion held-out.",
        low=0,
        high=0.5,
        interval="in [0, 0.5]",
    )
    normalise_obs: bool = setting(
        False, "Whether observations are normalised by running statistics; numbers of states never are."
    )
    normalise_reward: bool = setting(
        False, "Whether rewards are divided by the running standard deviation of the discounted return."
    )

    def check(self, batch_size: int) -> None:
        """The minibatch size must divide the batch size, and rho_min must not exceed rho_max."""
        whole_minibatches(batch_size, self.minibatch_size)
        if self.rho_min > self.rho_max:
            raise ConfigError(f"rho_min: expected at most rho_max, {self.rho_max:g}, got {self.rho_min:g}")

    def environment_shards(self, num_envs: int) -> int:
        """The greatest number of shards with equal parts of the environments and of each minibatch."""
        return math.gcd(num_envs, self.minibatch_size)
