"""Atari on one machine: how fast, at what cost over the emulators, and what is learned in minutes.

    python benchmarks/atari.py --out results/atari            both parts, within --minutes
    python benchmarks/atari.py --out results/atari --part speed
    python benchmarks/atari.py --out results/atari --part learn

speed   emulator-only steps/s, end-to-end agent steps/s with one and two groups (overlap off and on), PPO against
        SV-PPO, all in one process, rounds of the contenders taken in turn; medians over rounds, in speed.json
learn   PPO and SV-PPO on each game one after the other in one program each, for an equal number of steps that fills the
        time left, beside a random policy; curves.csv and scores.json
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import platform
import statistics
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np

from nextpolicy import presets
from nextpolicy.run.training import make_job
from nextpolicy.train.host_loop import HostLoop

# The paper's settings are for 5e7 steps. A run of minutes has a hundredth of that: a shorter horizon, a higher learning
# rate, clipped rewards and a gate that opens within a few rounds.
SHORT_RUN: dict[str, Any] = {
    "learning_rate": 5e-4,
    "gamma": 0.99,
    "advantage_kind": "next",
    "delta_v": 0.05,
    "k_min": 1,
    "k_max": 8,
    "decay_fraction": 0.0,
    "env_options": {"clip_reward": True},
}


def main() -> None:
    options = parse()
    started = time.monotonic()
    out = Path(options.out)
    out.mkdir(parents=True, exist_ok=True)
    about = {
        "device": jax.devices()[0].device_kind,
        "cores": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        "jax": jax.__version__,
        "settings": {name: value for name, value in vars(options).items() if name != "out"},
    }
    if options.part in ("both", "speed"):
        write(out / "speed.json", {**about, **speed(options)})
    if options.part in ("both", "learn"):
        learn(options, about, out, started + 60 * options.minutes)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", required=True)
    parser.add_argument("--part", choices=("both", "speed", "learn"), default="both")
    parser.add_argument("--minutes", type=float, default=8.0, help="for everything, compilation included")
    parser.add_argument("--games", nargs="+", default=["Breakout", "Pong"])
    parser.add_argument("--torso", default="nature", help="of the learning part and of the speed part's main rows")
    parser.add_argument(
        "--also",
        nargs="*",
        default=["nature:bfloat16", "impala:bfloat16"],
        help="further torso:dtype rows of the speed part",
    )
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--num-envs", type=int, default=64)
    parser.add_argument("--rollout-length", type=int, default=128)
    parser.add_argument("--minibatch-size", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=5, help="timed rounds of each contender")
    parser.add_argument("--learn-rollout-length", type=int, default=32, help="shorter rounds: more of them fit")
    parser.add_argument("--learn-minibatch-size", type=int, default=512)
    parser.add_argument("--random-games", type=int, default=16, help="whole games of the random policy")
    parser.add_argument("--image-size", type=int, default=84)
    return parser.parse_args()


def config(options: argparse.Namespace, game: str, total: int, **fields: Any) -> Any:
    """The paper's Atari settings with a network and a length that fit the time."""
    env_options = {"image_size": options.image_size, **fields.pop("env_options", {})}
    sizes = {"nature": (512,), "impala": (256,), "mlp": (64,)}
    defaults = {
        "torso": options.torso,
        "hidden": sizes[fields.get("torso", options.torso)],
        "compute_dtype": options.dtype,
        "num_envs": options.num_envs,
        "rollout_length": options.rollout_length,
        "minibatch_size": options.minibatch_size,
        "total_env_steps": total,
        "env_options": env_options,
    }
    return presets.build(f"atari/{game}", **{**defaults, **fields})


# Speed.


def emulator_speed(options: argparse.Namespace, groups: int, steps: int) -> float:
    """Steps/s of the emulators alone under random actions: all of them at once, or groups in turn."""
    made = make_job(config(options, options.games[0], 10**9)).host
    assert made is not None
    size = options.num_envs // groups
    pools = [made.start(size) for _ in range(groups)]
    actions = np.random.default_rng(0).integers(0, made.spec.action.n, (steps, size)).astype(np.int32)
    for pool in pools:
        pool.reset(seed=0)
        pool.send(actions[0])
    started = time.perf_counter()
    for t in range(1, steps):
        for pool in pools:
            pool.recv()
            pool.send(actions[t])
    seconds = time.perf_counter() - started
    for pool in pools:
        pool.recv()
        pool.close()
    return (steps - 1) * options.num_envs / seconds


class Contender:
    """One member with its own loop, advanced a round at a time."""

    def __init__(self, options: argparse.Namespace, algo: str, groups: int, torso: str, dtype: str) -> None:
        fields = {"algo": algo, "torso": torso, "compute_dtype": dtype, "env_options": {"groups": groups}}
        job = make_job(config(options, options.games[0], 10**9, **fields))
        assert job.host is not None
        self.name = f"{algo} {torso} {dtype} groups={groups}"
        self.loop = HostLoop(job.setup, job.hypers, job.host, job.seeds)
        self.state = self.loop.init(job.seeds)
        self.steps, self.seconds = job.config.batch_size, []

    def round(self, timed: bool = True) -> None:
        started = time.perf_counter()
        self.state, _, _ = self.loop.block(self.state, 1)
        jax.block_until_ready(self.state)
        if timed:
            self.seconds.append(time.perf_counter() - started)

    @property
    def rate(self) -> float:
        return self.steps / statistics.median(self.seconds)


def race(options: argparse.Namespace, torso: str, dtype: str, kinds: list[tuple[str, int]]) -> dict[str, float]:
    """Median steps/s of contenders whose rounds are taken in turn, so that a slow minute slows all of them."""
    contenders = [Contender(options, algo, groups, torso, dtype) for algo, groups in kinds]
    for contender in contenders:  # the algorithm and the groups are data: one program for all
        contender.loop.compiled = contenders[0].loop.compiled
    for contender in contenders:  # the first round compiles, the second meets warm caches
        contender.round(timed=False)
        contender.round(timed=False)
    for _ in range(options.rounds):
        for contender in contenders:
            contender.round()
    rates = {contender.name: contender.rate for contender in contenders}
    for contender in contenders:
        contender.loop.close()
    return rates


def speed(options: argparse.Namespace) -> dict[str, Any]:
    steps = 4 * options.rollout_length
    emulator_speed(options, 1, steps // 8 + 2)  # the first frames of a process are slower
    before = {g: emulator_speed(options, g, steps) for g in (1, 2)}
    kinds = [("ppo", 1), ("ppo", 2), ("ppo", 4), ("sv-dynamic", 2)]
    rates = race(options, options.torso, options.dtype, kinds)
    for extra in options.also:
        torso, _, dtype = extra.partition(":")
        rates |= race(options, torso, dtype or "float32", [("ppo", 2), ("sv-dynamic", 2)])
    after = {g: emulator_speed(options, g, steps) for g in (1, 2)}
    emulator = {g: (before[g] + after[g]) / 2 for g in (1, 2)}
    best = max(emulator.values())
    main_row = f"{options.torso} {options.dtype}"
    ppo, sv, alone = (rates[f"{n} {main_row} groups={g}"] for n, g in (("ppo", 2), ("sv-dynamic", 2), ("ppo", 1)))
    result: dict[str, Any] = {
        "emulator_steps_per_second": {f"groups={g}": rate for g, rate in emulator.items()},
        "end_to_end_steps_per_second": rates,
        "end_to_end_over_emulator": {name: rate / best for name, rate in rates.items()},
        "overlap_gain": ppo / alone,
        "sv_ppo_overhead": ppo / sv - 1.0,
    }
    for extra in options.also:
        torso, _, dtype = extra.partition(":")
        row = f"{torso} {dtype or 'float32'} groups=2"
        result[f"sv_ppo_overhead {row}"] = rates[f"ppo {row}"] / rates[f"sv-dynamic {row}"] - 1.0
    print(json.dumps(result, indent=2), flush=True)
    return result


# Learning.


def random_score(options: argparse.Namespace, game: str) -> float:
    """Mean score of whole games under uniformly random actions."""
    host = make_job(config(options, game, 10**9)).host
    assert host is not None
    episodes = options.random_games
    pool, rng = host.start(episodes), np.random.default_rng(0)
    pool.reset(seed=1)
    total, finished = np.zeros(episodes), np.zeros(episodes, bool)
    while not finished.all():
        pool.send(rng.integers(0, host.spec.action.n, episodes).astype(np.int32))
        step = pool.recv()
        total += np.where(finished, 0.0, step.score)
        finished |= step.episode_over
    pool.close()
    return float(total.mean())


def learn(options: argparse.Namespace, about: dict[str, Any], out: Path, deadline: float) -> None:
    scores: dict[str, Any] = {**about, "games": {}}
    with open(out / "curves.csv", "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["game", "variant", "round", "env_steps", "seconds", "episode_return", "episodes", "accepted"])
        for i, game in enumerate(options.games):
            budget = (deadline - time.monotonic()) / (len(options.games) - i)
            scores["games"][game] = learn_game(options, game, budget, writer)
            file.flush()
            write(out / "scores.json", scores)
            print(game, json.dumps(scores["games"][game]), flush=True)


def learn_game(options: argparse.Namespace, game: str, budget: float, writer: Any) -> dict[str, Any]:
    """PPO and SV-PPO side by side: as many rounds as, by the speed of the first, fit into `budget` seconds."""
    began = time.monotonic()
    chance = random_score(options, game)
    batch = options.num_envs * options.learn_rollout_length
    algos = ("ppo", "sv-dynamic")
    fields: dict[str, Any] = {"algo": algos, **SHORT_RUN}
    fields |= {"rollout_length": options.learn_rollout_length, "minibatch_size": options.learn_minibatch_size}
    trial = make_job(config(options, game, 3 * batch, **fields))
    seconds = timed_rounds(trial)
    left = budget - (time.monotonic() - began)
    rounds = max(4, int((left - 1.5 * seconds["compile"]) / seconds["round"] * 0.92))
    job = make_job(config(options, game, rounds * batch, **fields))
    assert job.host is not None
    loop = HostLoop(job.setup, job.hypers, job.host, job.seeds)
    state, rows = loop.init(job.seeds), []
    first = time.monotonic()
    try:
        for index in range(rounds):
            state, metrics, _ = loop.block(state, 1)
            for m, algo in enumerate(algos):
                values = [float(metrics[k][m, 0]) for k in ("episode_return", "episodes", "accepted")]
                rows.append((game, algo, index, (index + 1) * batch, time.monotonic() - first, *values))
                writer.writerow([*rows[-1][:4], f"{rows[-1][4]:.1f}", *(f"{v:.6g}" for v in values)])
            if time.monotonic() - began > budget:
                break  # never past the promised time, even if the machine has become slower
    finally:
        loop.close()
    done = rows[-1][2] + 1
    result = {"random": chance, "env_steps": done * batch, "rounds": done, "planned_rounds": rounds}
    return result | {algo: last_tenth(rows, algo, done) for algo in algos}


def timed_rounds(job: Any) -> dict[str, float]:
    """Seconds of compilation and of one round of all members."""
    loop = HostLoop(job.setup, job.hypers, job.host, job.seeds)
    marks = [time.monotonic()]
    state = loop.init(job.seeds)
    for _ in range(3):
        state, _, _ = loop.block(state, 1)
        marks.append(time.monotonic())
    loop.close()
    return {"compile": marks[1] - marks[0], "round": (marks[3] - marks[1]) / 2}


def last_tenth(rows: list[Any], algo: str, rounds: int) -> float | None:
    """Mean return of the games that ended in the last tenth of training; None if none did."""
    late = [(r[5], r[6]) for r in rows if r[1] == algo and r[2] >= 0.9 * rounds and r[6] > 0]
    return sum(mean * count for mean, count in late) / sum(count for _, count in late) if late else None


def write(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=2, default=str) + "\n")


if __name__ == "__main__":
    main()
