"""Brax's PPO in this process. Its training is a single call, so it runs in a thread that pauses between turns."""

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

_TURNS = 1000  # more than any benchmark uses


class _StopError(Exception):
    """Raised inside Brax's call-back to end its training."""


def check(env: str) -> None:
    """Raise unless the environment is a Brax environment."""
    if not env.startswith("brax/"):
        raise ConfigError(f"brax: expected an environment of brax/, got {env}")


def brax(env: str, members: int, fields: dict[str, Any]) -> Contender:
    """`brax.training.agents.ppo.train` with one seed, since it trains one seed at a time at the same rate.

    Brax splits a batch into minibatches by environment, so the number of minibatches must divide the number of
    environments. The nearest divisor is used and shown in the row.
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
            training.run(rounds)  # Brax compiles again for the outputs of its first turn
            contender.compile_seconds = time.perf_counter() - started

    contender.run = run
    return contender


def nearest_divisor(whole: int, wanted: int) -> int:
    """The divisor of `whole` that is nearest to `wanted` by ratio; of two equally near, the larger."""
    divisors = [d for d in range(1, whole + 1) if whole % d == 0]
    return min(divisors, key=lambda d: (max(d / wanted, wanted / d), -d))


class OldJax:
    """`jax` with the removed function `device_put_replicated`, for a single device."""

    def __getattr__(self, name: str) -> Any:
        return getattr(jax, name)

    @staticmethod
    def device_put_replicated(tree: Any, devices: Any) -> Any:
        return jax.device_put(jax.tree.map(lambda x: jnp.asarray(x)[None], tree), devices[0])


class _Turns:
    """A training that runs a fixed number of rounds per turn and pauses in between."""

    def __init__(self, config: TrainConfig, name: str, minibatches: int) -> None:
        self.config, self.name, self.minibatches = config, name, minibatches
        self.go, self.done = threading.Semaphore(0), threading.Semaphore(0)
        self.rounds, self.stopping = 0, False
        self.error: Exception | None = None
        self.thread: threading.Thread | None = None

    def run(self, rounds: int) -> bool:
        """Run `rounds` rounds and wait for them. Returns True on the first call, which compiles."""
        first = self.thread is None
        if first:
            self.rounds = rounds
            self.thread = threading.Thread(target=self._train, daemon=True)
            self.thread.start()
        elif rounds != self.rounds:
            raise ValueError(f"brax: expected {self.rounds} rounds, as in the first turn, got {rounds}")
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
        """Brax calls this after each turn."""
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
        except Exception as error:  # re-raised in `run`
            self.error = error
            self.done.release()

    def _call(self) -> None:
        environment = make(self.name, **self.config.environment.env_options)  # the same physics as in nextpolicy
        from brax.training.agents.ppo import networks, train
        from flax import linen as nn

        if not hasattr(jax, "device_put_replicated"):
            train.jax = OldJax()  # brax 0.14.2 calls it, but newer versions of JAX do not have it
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
