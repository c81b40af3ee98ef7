"""Timed training rounds: time spent on emulators, acting, transfers and learning."""

from __future__ import annotations

import argparse
import resource
import statistics
import time
from typing import Any

import jax
import numpy as np

from atari_settings import config
from nextpolicy.envs.base import is_host_env
from nextpolicy.loop.host_collect import Worker
from nextpolicy.loop.host_loop import HostLoop
from nextpolicy.run.job import make_job


def start_worker(options: argparse.Namespace, groups: int) -> Worker:
    """Start the emulators of the first game in `groups` groups."""
    job = make_job(config(options, options.games[0], 10**9, env_options={"groups": groups}))
    assert is_host_env(job.env)
    worker = Worker(job.setup, job.env, 0, 0.99)
    worker.start(0)
    return worker


class Contender:
    """One member with its own loop, advanced round by round. Contenders may share emulators."""

    def __init__(
        self, options: argparse.Namespace, algo: str, torso: str, dtype: str, worker: Worker, compiled: Any
    ) -> None:
        job = make_job(config(options, options.games[0], 10**9, algo=algo, torso=torso, compute_dtype=dtype))
        assert is_host_env(job.env)
        self.name = f"{algo} {torso} {dtype} groups={len(worker.pools)}"
        self.loop = HostLoop(job.setup, job.hypers, job.env, job.seeds)
        self.loop.workers = [worker]
        self.loop.compiled = compiled or self.loop.compiled
        self.state = self.loop.init(job.seeds)
        self.steps = job.config.batch_size
        self.rounds: list[Stopwatch] = []

    def round(self, timed: bool = True) -> None:
        watch = Stopwatch(self.loop)
        with watch:
            self.state, _, _ = self.loop.block(self.state, 1)
            jax.block_until_ready(self.state)
        if timed:
            self.rounds.append(watch)

    def row(self) -> dict[str, Any]:
        """Medians over the timed rounds."""
        parts = [watch.parts() for watch in self.rounds]
        medians = {name: statistics.median(part[name] for part in parts) for name in parts[0]}
        emulators = {name: medians.pop(name) for name in list(medians) if not name.startswith("s ")}
        seconds = {name.removeprefix("s "): value for name, value in medians.items()}
        return {"steps_per_second": self.steps / seconds["round"], "seconds": seconds, "emulators": emulators}


class Stopwatch:
    """Context manager that times one round of a loop's first member by wrapping its functions."""

    def __init__(self, loop: HostLoop) -> None:
        self.loop, self.worker = loop, loop.workers[0]
        self.waited = self.acted = 0.0
        self.at_work: list[tuple[float, float]] = []  # (sent, finished) of every group and step

    def __enter__(self) -> None:
        self.loop._round = self._round  # type: ignore[method-assign]
        self.begin = self.began = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        del self.loop._round  # restores the method
        self.end = time.perf_counter()

    def _round(self, member: int, agent: Any) -> Any:
        collect, pools = self.worker.collect, list(self.worker.pools)

        def timed(compiled: Any, *arguments: Any) -> Any:
            self.began, cpu = time.perf_counter(), _cpu()
            result = collect(compiled._replace(act=self._acting(compiled.act)), *arguments)
            self.collected = time.perf_counter()
            self.cores = (_cpu() - cpu) / (self.collected - self.began)
            return result

        self.worker.collect = timed  # type: ignore[method-assign]
        self.worker.pools = [Watched(pool, self) for pool in pools]  # type: ignore[misc]
        try:
            result = HostLoop._round(self.loop, member, agent)
            cpu = _cpu()
            jax.block_until_ready(result)
            self.learned = time.perf_counter()
            self.learning_cores = (_cpu() - cpu) / (self.learned - self.collected)
        finally:
            del self.worker.collect
            self.worker.pools = pools
        return result

    def _acting(self, act: Any) -> Any:
        def timed(*arguments: Any, **static: Any) -> Any:
            started = time.perf_counter()
            result = act(*arguments, **static)
            self.acted += time.perf_counter() - started
            return result

        return timed

    def parts(self) -> dict[str, float]:
        collect = self.collected - self.began
        union, last = 0.0, self.began
        for start, stop in sorted(self.at_work):
            union += max(0.0, stop - max(start, last))
            last = max(last, stop)
        return {
            "s round": self.end - self.begin,
            "s collect": collect,
            "s wait for emulators": self.waited,  # part of collect: the main thread is idle
            "s start acting, upload": self.acted,  # part of collect: dispatch of the policy, with observations
            "s fetch, send, note": collect - self.waited - self.acted,
            "s no emulator at work": collect - union,  # part of collect: all emulators wait for actions
            "s learn": self.learned - self.collected,
            "s other": self.end - self.begin - collect - (self.learned - self.collected),
            "groups at work": sum(stop - start for start, stop in self.at_work) / collect,
            "cores busy collecting": self.cores,
            "cores busy learning": self.learning_cores,
        }


class Watched:
    """A pool that records the times of sends and receives."""

    def __init__(self, pool: Any, watch: Stopwatch) -> None:
        self.pool, self.watch, self.num_envs, self.sent = pool, watch, pool.num_envs, 0.0

    def send(self, action: np.ndarray) -> None:
        self.sent = time.perf_counter()
        self.pool.send(action)

    def recv(self) -> Any:
        started = time.perf_counter()
        step = self.pool.recv()
        self.watch.waited += time.perf_counter() - started
        self.watch.at_work.append((self.sent, self.pool._thread.finished_at))
        return step


def act_seconds(contender: Contender, repeats: int = 30) -> dict[str, float]:
    """Milliseconds from observations to actions of one group while emulators are idle, with and without upload."""
    loop, worker = contender.loop, contender.loop.workers[0]
    agent = jax.tree.map(lambda x: x[0], contender.state.agent)
    _, snapshot, noise = loop.compiled.begin(agent, explore=False)
    on_host = np.array(worker.seen[0])
    on_device = jax.device_put(on_host)
    times: dict[str, list[float]] = {"act": [], "act without upload": []}
    for _ in range(repeats):
        for name, obs in (("act", on_host), ("act without upload", on_device)):
            started = time.perf_counter()
            loop.buffer, _, action = loop.compiled.act(
                snapshot, loop.buffer, obs, noise, worker.places[0], explore=False
            )
            np.asarray(action)
            times[name].append(time.perf_counter() - started)
    return {f"ms {name}": 1e3 * statistics.median(values) for name, values in times.items()}


def _cpu() -> float:
    """CPU seconds of this process, all threads."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime
