"""Brax's own PPO, in this process. Its training is one call, so it runs in a thread that is let go turn by turn."""

from __future__ import annotations

import threading
import time
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from nextpolicy.bench.contenders import Contender
from nextpolicy.config import ConfigError, TrainConfig, presets
from nextpolicy.envs.brax import make

_TURNS = 1000  # more than will ever be asked for


class _StopError(Exception):
    """Raised inside Brax's call-back to end its training."""


def check(env: str) -> None:
    """Raise where the work is not Brax's."""
    if not env.startswith("brax/"):
        raise ConfigError(f"brax: expected environments of brax/, got {env}")


def brax(env: str, members: int, fields: dict[str, Any]) -> Contender:
    """`brax.training.agents.ppo.train`; one seed, since it has no other way: its rate is the same for any number.

    Brax cuts a batch into minibatches by environments, so their number must divide that of environments: the nearest
    divisor is taken, and the row says which.
    """
    config = presets.build(env, **fields)
    wanted = config.batch_size // config.algorithm.minibatch_size
    minibatches = nearest_divisor(config.environment.num_envs, wanted)
    training = _Turns(config, env.split("/", 1)[1], minibatches)
    note = "" if minibatches == wanted else f", {minibatches} minibatches"
    alone = "" if members == 1 else ", one seed at a time"
    contender = Contender(f"brax{note}{alone}", config.batch_size, training.run, one_length=True, close=training.stop)

    def run(rounds: int) -> None:
        started = time.perf_counter()
        if training.run(rounds):
            training.run(rounds)  # Brax compiles a second time for what its first turn gives back
            contender.compile_seconds = time.perf_counter() - started

    contender.run = run
    return contender


def nearest_divisor(whole: int, wanted: int) -> int:
    """The divisor of `whole` that is nearest to `wanted` by ratio; the larger of two."""
    divisors = [d for d in range(1, whole + 1) if whole % d == 0]
    return min(divisors, key=lambda d: (max(d / wanted, wanted / d), -d))


class _OldJax:
    """`jax`, with the `device_put_replicated` that it no longer has, for the one device that is used here."""

    def __getattr__(self, name: str) -> Any:
        return getattr(jax, name)

    @staticmethod
    def device_put_replicated(tree: Any, devices: Any) -> Any:
        return jax.device_put(jax.tree.map(lambda x: jnp.asarray(x)[None], tree), devices[0])


class _Turns:
    """A training that does so many rounds whenever it is let go, always as many as the first time."""

    def __init__(self, config: TrainConfig, name: str, minibatches: int) -> None:
        self.config, self.name, self.minibatches = config, name, minibatches
        self.go, self.done = threading.Semaphore(0), threading.Semaphore(0)
        self.rounds, self.stopping = 0, False
        self.error: Exception | None = None
        self.thread: threading.Thread | None = None

    def run(self, rounds: int) -> bool:
        """Do `rounds` rounds and wait for them; True where this was the start, which compiles."""
        first = self.thread is None
        if first:
            self.rounds = rounds
            self.thread = threading.Thread(target=self._train, daemon=True)
            self.thread.start()
        elif rounds != self.rounds:
            raise ValueError(f"brax: expected {self.rounds}, which it was started with, got {rounds} rounds")
        self.go.release()
        self.done.acquire()
        if self.error is not None:
            raise RuntimeError(f"brax: {type(self.error).__name__}: {self.error}")
        return first

    def stop(self) -> None:
        """End the training."""
        self.stopping = True
        self.go.release()
        if self.thread is not None:
            self.thread.join()

    def _turn(self, *_: Any) -> None:
        """Brax calls this after each stretch of rounds."""
        self.done.release()
        self.go.acquire()
        if self.stopping:
            raise _StopError

    def _train(self) -> None:
        self.go.acquire()
        try:
            self._call()
        except _StopError:
            return
        except Exception as error:  # told where `run` waits
            self.error = error
            self.done.release()

    def _call(self) -> None:
        environment = make(self.name, **self.config.environment.env_options)  # the same physics as ours
        from brax.training.agents.ppo import networks, train
        from flax import linen as nn

        if not hasattr(jax, "device_put_replicated"):
            train.jax = _OldJax()  # brax 0.14.2 calls it, and newer JAX has dropped it
        config, ppo = self.config, self.config.algorithm
        num_envs, hidden = config.environment.num_envs, config.net.hidden
        activation = {"tanh": nn.tanh, "relu": nn.relu, "silu": nn.silu}[config.net.activation]
        train.train(
            environment=environment.env,
            num_timesteps=self.rounds * config.batch_size * _TURNS,
            max_devices_per_host=1,
            num_envs=num_envs,
            episode_length=environment.spec.time_limit,
            learning_rate=ppo.learning_rate,
            entropy_cost=ppo.entropy_coef,
            discounting=ppo.gamma,
            unroll_length=config.environment.rollout_length,
            batch_size=num_envs // self.minibatches,
            num_minibatches=self.minibatches,
            num_updates_per_batch=ppo.epochs,
            normalize_observations=ppo.normalise_obs,
            clipping_epsilon=ppo.clip,
            gae_lambda=ppo.lam,
            max_grad_norm=ppo.max_grad_norm,
            vf_loss_coefficient=ppo.value_coef,
            network_factory=partial(
                networks.make_ppo_networks,
                policy_hidden_layer_sizes=hidden,
                value_hidden_layer_sizes=hidden,
                activation=activation,
            ),
            num_evals=_TURNS + 1,
            run_evals=False,
            progress_fn=self._turn,
        )
