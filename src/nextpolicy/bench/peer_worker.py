"""The worker process of a peer. It runs as a script in the peer's interpreter, which need not have nextpolicy.

It reads and writes one JSON object per line:

    in    the work: {"peer": "sb3", "env": "CartPole-v1", "num_envs": 16, "rollout_length": 128, ...}
    out   {"compile_seconds": 3.1, "version": "..."}       after one round
    in    {"rounds": 20}
    out   {"steps": 40960, "seconds": 4.2, "cpu_seconds": 4.1, "memory_bytes": 1234, "memory_of": "process"}
    in    {"until_return": 475.0, "rounds": 244}           a new training of at most this many rounds
    out   {"seconds": 21.4, "rounds": 61, "there": 1}      or "seconds": null
    out   {"error": "one line"}                            instead of any other output

The peer's own output goes to stderr.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from importlib import import_module, metadata
from pathlib import Path
from typing import Any


class StableBaselines:
    """PPO of Stable-Baselines3, or of SBX, which has the same interface: one seed, environments stepped in Python."""

    members = 1

    def __init__(self, work: dict[str, Any]) -> None:
        from stable_baselines3.common.callbacks import BaseCallback

        if work["peer"] == "sbx":
            from sbx import PPO

            activations = import_module("flax.linen")
        else:
            from stable_baselines3 import PPO

            activations = import_module("torch.nn")
        self.work, self.algorithm, self.callback = work, PPO, BaseCallback
        names = {"tanh": ("tanh", "Tanh"), "relu": ("relu", "ReLU"), "silu": ("silu", "SiLU")}[work["activation"]]
        self.activation = getattr(activations, names[work["peer"] == "sb3"])
        self.version = " ".join(f"{p} {metadata.version(p)}" for p in ("stable-baselines3", *self._own()))
        self.batch = work["num_envs"] * work["rollout_length"]
        self.model = self.fresh()

    def _own(self) -> tuple[str, ...]:
        return ("sbx-rl", "jax") if self.work["peer"] == "sbx" else ("torch",)

    def fresh(self) -> Any:
        from stable_baselines3.common.env_util import make_vec_env
        from stable_baselines3.common.vec_env import VecNormalize

        work = self.work
        envs: Any = make_vec_env(work["env"], n_envs=work["num_envs"], seed=0)
        if work["normalise_obs"] or work["normalise_reward"]:
            envs = VecNormalize(
                envs, norm_obs=work["normalise_obs"], norm_reward=work["normalise_reward"], gamma=work["gamma"]
            )
        final, fall = work["learning_rate_final"], work["learning_rate"] - work["learning_rate_final"]
        hidden = list(work["hidden"])
        return self.algorithm(
            "MlpPolicy",
            envs,
            n_steps=work["rollout_length"],
            batch_size=self.batch // work["minibatches"],
            n_epochs=work["epochs"],
            learning_rate=lambda left: final + left * fall,
            gamma=work["gamma"],
            gae_lambda=work["lam"],
            clip_range=work["clip"],
            ent_coef=work["entropy_coef"],
            vf_coef=work["value_coef"],
            max_grad_norm=work["max_grad_norm"],
            policy_kwargs={"net_arch": {"pi": hidden, "vf": hidden}, "activation_fn": self.activation},
            seed=0,
            device="cpu",
        )

    def run(self, rounds: int) -> None:
        self.model.learn(rounds * self.batch, reset_num_timesteps=False)

    def until(self, target: float, rounds: int) -> dict[str, Any]:
        class Watch(self.callback):  # type: ignore[name-defined]
            def __init__(self) -> None:
                super().__init__()
                self.returns: list[float] = []
                self.rounds = 0
                self.seconds: float | None = None

            def _on_step(self) -> bool:
                self.returns += [info["episode"]["r"] for info in self.locals["infos"] if "episode" in info]
                return self.seconds is None

            def _on_rollout_end(self) -> None:
                self.rounds += 1
                if self.returns and sum(self.returns) / len(self.returns) >= target:
                    self.seconds = time.perf_counter() - clock
                self.returns = []

        model, watch = self.fresh(), Watch()
        clock = time.perf_counter()
        model.learn(rounds * self.batch, callback=watch)
        return {"seconds": watch.seconds, "rounds": watch.rounds, "there": int(watch.seconds is not None)}


class Rejax:
    """PPO of rejax: all seeds in parallel in one program."""

    def __init__(self, work: dict[str, Any]) -> None:
        import jax
        from rejax import PPO

        self.jax, self.work, self.members = jax, work, work["members"]
        self.version = " ".join(f"{p} {metadata.version(p)}" for p in ("rejax", "gymnax", "jax"))
        env, params = _environment(work["env"], work["env_options"])
        algorithm = PPO.create(
            env=env,
            env_params=params,
            num_envs=work["num_envs"],
            num_steps=work["rollout_length"],
            num_epochs=work["epochs"],
            num_minibatches=work["minibatches"],
            learning_rate=work["learning_rate"],
            gamma=work["gamma"],
            gae_lambda=work["lam"],
            clip_eps=work["clip"],
            ent_coef=work["entropy_coef"],
            vf_coef=work["value_coef"],
            max_grad_norm=work["max_grad_norm"],
            normalize_observations=work["normalise_obs"],
            normalize_rewards=work["normalise_reward"],
            agent_kwargs={"hidden_layer_sizes": tuple(work["hidden"]), "activation": work["activation"]},
        )
        one = jax.vmap(algorithm.train_iteration)
        self.init = jax.jit(jax.vmap(algorithm.init_state))
        self.step = jax.jit(lambda state, rounds: jax.lax.fori_loop(0, rounds, lambda _, s: one(s), state))
        self.state = self.fresh()

    def fresh(self) -> Any:
        return self.init(self.jax.random.split(self.jax.random.PRNGKey(0), self.members))

    def run(self, rounds: int) -> None:
        self.state = self.jax.block_until_ready(self.step(self.state, rounds))

    def until(self, target: float, rounds: int) -> dict[str, Any]:
        import numpy as np

        state, there, before = self.fresh(), np.zeros(self.members, bool), np.zeros((2, self.members))
        clock = time.perf_counter()
        for done in range(1, rounds + 1):
            state = self.step(state, 1)
            sums = np.stack([np.asarray(x).sum(axis=1) for x in state.env_state[2:]])  # returns, episodes
            with np.errstate(invalid="ignore", divide="ignore"):
                there |= (sums - before)[0] / (sums - before)[1] >= target
            before = sums
            if 2 * there.sum() >= self.members:
                return {"seconds": time.perf_counter() - clock, "rounds": done, "there": int(there.sum())}
        return {"seconds": None, "rounds": rounds, "there": int(there.sum())}


def _environment(name: str, options: dict[str, Any]) -> tuple[Any, Any]:
    """A gymnax environment that sums up returns and whose step returns the five values that rejax expects."""
    import jax.numpy as jnp
    from rejax.compat import create

    env, params = create(name, **options)
    # Brax resets itself. The auto-reset of gymnax needs a time field, which Brax's states do not have.
    reset, step = (env.reset_env, env.step_env) if name.startswith("brax/") else (env.reset, env.step)

    class Counting:
        def __getattr__(self, attribute: str) -> Any:
            return getattr(env, attribute)

        def __deepcopy__(self, memo: Any) -> Any:
            return self  # rejax copies its settings, but some environments cannot be copied

        def reset(self, key: Any, params: Any = None) -> Any:
            obs, state = reset(key, params)
            return obs.astype(jnp.float32), (state, jnp.float32(0), jnp.float32(0), jnp.float32(0))

        def step(self, key: Any, state: Any, action: Any, params: Any = None) -> Any:
            inner, running, total, episodes = state
            obs, inner, reward, *ends, _ = step(key, inner, action, params)
            done = ends[0] if len(ends) == 1 else jnp.logical_or(*ends)
            running = running + reward
            counted = (inner, running * (1 - done), total + running * done, episodes + done)
            return obs.astype(jnp.float32), counted, reward, done, {}

    return Counting(), params


PEERS: dict[str, Any] = {"sb3": StableBaselines, "sbx": StableBaselines, "rejax": Rejax}
MODULES = {"sb3": "stable_baselines3", "sbx": "sbx", "rejax": "rejax"}


def _cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def _memory() -> dict[str, Any]:
    """Peak bytes: of the accelerator if there is one, else of this process."""
    if "jax" in sys.modules:
        stats = sys.modules["jax"].local_devices()[0].memory_stats()
        if stats and "peak_bytes_in_use" in stats:
            return {"memory_bytes": stats["peak_bytes_in_use"], "memory_of": "contender"}
    try:  # getrusage may return the peak of the parent process
        status = Path("/proc/self/status").read_text().split("VmHWM:")[1]
        return {"memory_bytes": int(status.split()[0]) * 1024, "memory_of": "process"}
    except (OSError, IndexError):
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return {"memory_bytes": peak * (1 if sys.platform == "darwin" else 1024), "memory_of": "process"}


def answer(peer: Any, work: dict[str, Any], question: dict[str, Any]) -> dict[str, Any]:
    """The output for one input line."""
    if "until_return" in question:
        return dict(peer.until(question["until_return"], question["rounds"]))
    cpu, clock = _cpu_seconds(), time.perf_counter()
    peer.run(question["rounds"])
    seconds, cpu_seconds = time.perf_counter() - clock, _cpu_seconds() - cpu
    steps = question["rounds"] * work["num_envs"] * work["rollout_length"] * peer.members
    return {"steps": steps, "seconds": seconds, "cpu_seconds": cpu_seconds, **_memory()}


def main() -> None:
    """Serve one work until the end of the input."""
    say = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)

    def reply(message: dict[str, Any]) -> None:
        say.write(json.dumps(message) + "\n")

    try:
        work = json.loads(sys.stdin.readline())
        import_module(MODULES[work["peer"]])
        clock = time.perf_counter()
        peer = PEERS[work["peer"]](work)
        peer.run(1)
        reply({"compile_seconds": time.perf_counter() - clock, "version": peer.version})
        for line in sys.stdin:
            reply(answer(peer, work, json.loads(line)))
    except Exception as error:  # any error of a peer is reported in one line
        lines = str(error).strip().splitlines()
        reply({"error": f"{type(error).__name__}: {lines[0] if lines else ''}"})
        sys.exit(1)


if __name__ == "__main__":
    main()
