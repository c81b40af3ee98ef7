"""Peers that run in another Python interpreter: one process each, which is idle while others are measured."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nextpolicy.bench.contenders import Contender, Reached, Timing
from nextpolicy.bench.peers import brax_backend, check_env_options
from nextpolicy.config import ConfigError, presets

WORKER = Path(__file__).with_name("peer_worker.py")
PACKAGES = {"sb3": "stable-baselines3", "sbx": "sbx-rl", "rejax": "rejax"}


class PeerError(RuntimeError):
    """A peer's process failed. The message is one line."""


class PeerProcess:
    """A process that runs `peer_worker.py`."""

    def __init__(self, peer: str, python: str, work: dict[str, Any]) -> None:
        self.peer = peer
        # By default, JAX preallocates most of the accelerator's memory, which other contenders need.
        environment = {**os.environ, "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
        self.process = subprocess.Popen(
            [python, str(WORKER)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=environment,
        )
        self.hello = self.ask({"peer": peer, **work})

    def ask(self, question: dict[str, Any]) -> dict[str, Any]:
        """Send a question and wait for the answer."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        line = ""
        try:
            self.process.stdin.write(json.dumps(question) + "\n")
            self.process.stdin.flush()
            line = self.process.stdout.readline()
            reply: dict[str, Any] = json.loads(line)
        except (BrokenPipeError, json.JSONDecodeError):
            self.close()
            got = repr(line.strip()[:80]) if line.strip() else f"exit code {self.process.returncode}"
            raise PeerError(f"{self.peer}: expected an answer from its process, got {got}") from None
        if "error" in reply:
            self.close()
            missing = " (is it installed there?)" if "ModuleNotFoundError" in reply["error"] else ""
            raise PeerError(f"{self.peer}: {reply['error']}{missing}")
        return reply

    def close(self) -> None:
        """End the process by closing its input; kill it if it does not stop."""
        for stream in (self.process.stdin, self.process.stdout):
            assert stream is not None
            with contextlib.suppress(OSError):  # closing flushes, which fails if the process has already exited
                stream.close()
        try:
            self.process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def check(peer: str, env: str, pythons: Mapping[str, str]) -> None:
    """Raise if the peer is not available or does not support the environment, before a process is started."""
    if peer not in pythons:
        how = f"python -m venv DIR && DIR/bin/pip install {PACKAGES[peer]}"
        raise ConfigError(f"{peer}: expected --peer-python {peer}=DIR/bin/python, got none; to get one: {how}")
    if not os.access(pythons[peer], os.X_OK):
        raise ConfigError(f"{peer}: expected the Python interpreter of its virtual environment, got {pythons[peer]}")
    backends = ("gymnax/", "brax/") if peer == "rejax" else ("gymnax/", "gym/")
    if not env.startswith(backends):
        raise ConfigError(f"{peer}: expected an environment of {' or '.join(backends)}, got {env}")


def contender(peer: str, python: str, env: str, members: int, fields: dict[str, Any]) -> Contender:
    """A contender that runs a peer with our workload.

    Peers that train one seed at a time run a single seed, since their rate does not depend on the number of seeds.
    """
    config = presets.build(env, **fields)
    check_env_options(peer, config)
    backend, name = env.split("/", 1)
    side_by_side = members if peer == "rejax" else 1
    work = {
        "env": env if backend == "brax" else name,
        "env_options": {"backend": brax_backend(config) or "positional"} if backend == "brax" else {},
        "members": side_by_side,
        "minibatches": config.batch_size // config.algorithm.minibatch_size,
        **{k: config.value(k) for k in _FIELDS},
    }
    if config.net.torso not in ("auto", "mlp") or config.net.layer_norm:
        got = f"torso {config.net.torso}, layer_norm {config.net.layer_norm}"
        raise ConfigError(f"{peer}: expected an MLP without layer_norm, got {got}")
    process = PeerProcess(peer, python, work)
    last: dict[str, Any] = {}

    def clock(rounds: int) -> Timing:
        last.update(process.ask({"rounds": rounds}))
        return Timing(last["seconds"], last["cpu_seconds"])

    def until(target: float) -> Reached:
        got = process.ask({"until_return": target, "rounds": config.num_rounds})
        return Reached(got["seconds"], got["rounds"] * config.batch_size, got["there"])

    return Contender(
        peer if side_by_side == members else f"{peer}, one seed at a time",
        config.batch_size * side_by_side,
        clock,
        process.hello["compile_seconds"],
        clock=clock,
        memory=lambda: (last["memory_bytes"], last["memory_of"]),
        until=until,
        close=process.close,
    )


_FIELDS = (
    *("num_envs", "rollout_length", "epochs", "hidden", "activation", "learning_rate", "learning_rate_final", "gamma"),
    *("lam", "clip", "entropy_coef", "value_coef", "max_grad_norm", "normalise_obs", "normalise_reward"),
)
