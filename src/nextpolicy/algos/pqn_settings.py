"""Settings of PQN and SV-PQN."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from nextpolicy.algos.ppo_settings import BELOW_ONE, whole_minibatches
from nextpolicy.settings import INT32_MAX, Settings, pytree, setting


@pytree
@dataclass(frozen=True)
class PQNSettings(Settings):
    """Settings of PQN and SV-PQN."""

    divides_batch: ClassVar[bool] = True
    epochs: int = setting(2, "Passes over a round's batch.", low=1, high=10_000)
    minibatch_size: int = setting(
        128, "Samples per gradient step, a divisor of num_envs * rollout_length.", low=1, high=INT32_MAX
    )
    learning_rate: float = setting(5e-4, "Initial learning rate of RAdam.", traced=True, low=0, high=1e6)
    learning_rate_final: float = setting(
        0.0, "Learning rate at the end of its linear decay over the rounds.", traced=True, low=0, high=1e6
    )
    gamma: float = setting(0.99, "Discount factor.", traced=True, low=0, high=BELOW_ONE, interval="in [0, 1)")
    lam: float = setting(0.65, "Trace decay of Q(lambda).", traced=True, low=0, high=1, interval="in [0, 1]")
    max_grad_norm: float = setting(10.0, "Maximum global norm of the gradients.", traced=True, low=0)
    epsilon_init: float = setting(
        1.0, "Initial share of uniform actions of the behavioural policy.", low=0, high=1, interval="in [0, 1]"
    )
    epsilon_final: float = setting(
        0.05, "Share of uniform actions after its linear decay.", traced=True, low=0, high=1, interval="in [0, 1]"
    )
    epsilon_fraction: float = setting(
        0.1, "Fraction of the rounds over which it decays.", traced=True, low=0, high=1, interval="in [0, 1]"
    )
    trace: Literal["peng", "watkins"] = setting(
        "peng", "peng follows all actions; watkins cuts the trace at actions that the target would not take."
    )
    normalise_obs: bool = setting(
        False, "Whether observations are normalised by running statistics; numbers of states never are."
    )

    def check(self, batch_size: int) -> None:
        """The minibatch size must divide the batch size."""
        whole_minibatches(batch_size, self.minibatch_size)

    def environment_shards(self, num_envs: int) -> int:
        """The environments of a member stay on one device."""
        return 1
