"""What the gradient steps of SAC change, and in which form they hold it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from nextpolicy.core import one_vector
from nextpolicy.types import Array, Params, PyTree

if TYPE_CHECKING:
    import optax


class Trained(NamedTuple):
    """What a gradient step changes."""

    params: Params  # {"actor", "critic"}; the latter is a pair
    critic_average: Params  # Qbar
    log_temperature: Array  # log alpha
    opt_state: dict[str, optax.OptState]  # of "actor", "critic", "temperature"


class Forms(NamedTuple):
    """How gradient steps hold the parameters of the actor and of the critics: as trees, or each as one vector."""

    actor: one_vector.Form = one_vector.identity()
    critic: one_vector.Form = one_vector.identity()

    def pack(self, trained: Trained) -> Trained:
        return _mapped(self.actor.pack, self.critic.pack, trained)

    def unpack(self, trained: Trained) -> Trained:
        return _mapped(self.actor.unpack, self.critic.unpack, trained)


def _mapped(actor: Callable[[PyTree], PyTree], critic: Callable[[PyTree], PyTree], trained: Trained) -> Trained:
    params, states = trained.params, trained.opt_state
    return Trained(
        {"actor": actor(params["actor"]), "critic": critic(params["critic"])},
        critic(trained.critic_average),
        trained.log_temperature,
        {**states, "actor": actor(states["actor"]), "critic": critic(states["critic"])},
    )
