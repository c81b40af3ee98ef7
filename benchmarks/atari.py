"""Atari on one machine: speed, overhead relative to the emulators alone, and scores after minutes of training.

    python benchmarks/atari.py --out results/atari --part speed     within --seconds (150)
    python benchmarks/atari.py --out results/atari --part learn     within --minutes (9)
    python benchmarks/atari.py --out results/atari --part figures   from curves.csv in the folder and its subfolders
    python benchmarks/atari.py --out results/atari --part kernels   equivalent ways to compute the networks' gradients

speed   steps/s of the emulators alone, then end-to-end agent steps/s of PPO and SV-PPO by network, precision and number
        of groups. Contenders run in one process and take turns. Reports medians over rounds and the time of each part.
        speed.json is rewritten after every network.
learn   PPO and SV-PPO on each game, in turns until the time is up, and a random policy. curves.csv is extended after
        every round and scores.json is rewritten every few seconds, so results remain usable if the run is stopped.

Both time limits include compilation.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np

import atari_learning
from atari_rounds import Contender, act_seconds, start_worker
from atari_settings import write
from nextpolicy.loop.host_collect import Worker
from nextpolicy.run.program_cache import enable_cache

# Network, precision, and rows of (algorithm, groups), most important first. Rows that exceed the time are left out.
ROWS: list[tuple[str, str, list[tuple[str, int]]]] = [
    ("nature", "float32", [("ppo", 2), ("sv-dynamic", 2), ("ppo", 1), ("ppo", 4)]),
    ("nature", "bfloat16", [("ppo", 2), ("sv-dynamic", 2)]),
    ("impala", "bfloat16", [("ppo", 2), ("sv-dynamic", 2), ("ppo", 4)]),
]


def main() -> None:
    started = time.monotonic()
    options = parse()
    out = Path(options.out)
    if options.part == "figures":
        return atari_learning.figures(out)
    out.mkdir(parents=True, exist_ok=True)
    enable_cache()
    about = {
        "device": jax.devices()[0].device_kind,
        "cores": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        "jax": jax.__version__,
        "settings": {name: value for name, value in vars(options).items() if name != "out"},
    }
    if options.part == "speed":
        speed(options, about, out, started + options.seconds)
    if options.part == "learn":
        atari_learning.learn(options, about, out, started + 60 * options.minutes)
    if options.part == "kernels":
        import atari_kernels

        result = atari_kernels.compare(options.networks, options.minibatch_size, options.kernels)
        write(out / "kernels.json", {**about, **result})
    return None


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", required=True)
    parser.add_argument("--part", choices=("speed", "learn", "figures", "kernels"), required=True)
    parser.add_argument(
        "--seconds", type=float, default=150.0, help="time limit of the speed part, including compilation"
    )
    parser.add_argument(
        "--minutes", type=float, default=9.0, help="time limit of the learning part, including compilation"
    )
    parser.add_argument("--games", nargs="+", default=["Breakout", "Pong"], help="the speed part uses the first")
    known = [f"{torso}:{dtype}" for torso, dtype, _ in ROWS]
    parser.add_argument(
        "--networks", nargs="+", default=known, choices=known, help="networks of the parts speed and kernels"
    )
    parser.add_argument("--kernels", type=int, default=0, help="slowest kernels to list in the kernels part")
    parser.add_argument("--num-envs", type=int, default=64)
    parser.add_argument("--rollout-length", type=int, default=128)
    parser.add_argument("--minibatch-size", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=3, help="maximum number of timed rounds of each contender")
    parser.add_argument("--threads", type=int, default=0, help="emulator threads per group; 0 for one per core")
    parser.add_argument("--torso", default="nature", help="network of the learning part")
    parser.add_argument("--dtype", default="float32", help="precision of the learning part")
    parser.add_argument("--groups", type=int, default=4, help="emulator groups of the learning part")
    parser.add_argument("--learn-rollout-length", type=int, default=32, help="steps per round of the learning part")
    parser.add_argument("--learn-minibatch-size", type=int, default=256)
    parser.add_argument("--random-games", type=int, default=16, help="number of games of the random policy")
    parser.add_argument("--image-size", type=int, default=84)
    options = parser.parse_args()
    for name in ("seconds", "minutes", "num_envs", "rollout_length", "minibatch_size", "rounds", "random_games"):
        if getattr(options, name) <= 0:
            parser.error(f"--{name.replace('_', '-')}: expected a number above 0, got {getattr(options, name)}")
    return options


def speed(options: argparse.Namespace, about: dict[str, Any], out: Path, deadline: float) -> None:
    """Measure the rows of ROWS until the deadline, between two measurements of the emulators alone."""
    chosen = [row for row in ROWS if f"{row[0]}:{row[1]}" in options.networks]
    # Starting an emulator takes .1 s of one core, so contenders with the same number of groups share emulators.
    workers = {g: start_worker(options, g) for g in sorted({groups for row in chosen for _, groups in row[2]})}
    steps = 2 * options.rollout_length
    emulator_speed(workers[2], 32)  # warm-up: the first frames are slower
    emulators = {g: [emulator_speed(worker, steps)] for g, worker in workers.items()}
    best = max(rate for rates in emulators.values() for rate in rates)
    print(f"emulators started and measured at {options.seconds - deadline + time.monotonic():.0f} s", flush=True)
    result: dict[str, Any] = {**about, "rows": {}, "left_out": [], "sv_ppo_overhead": {}, "overlap_gain": {}}
    longest = 0.0
    try:
        for torso, dtype, kinds in chosen:
            began = time.monotonic()
            if began + longest > deadline:
                result["left_out"].append(f"{torso} {dtype}")
                continue
            rows = race(options, torso, dtype, kinds, workers, deadline)
            longest = max(longest, time.monotonic() - began)
            result["rows"] |= rows
            summarise(result, f"{torso} {dtype}", rows, emulators, best)
            write(out / "speed.json", result)
            print(f"{torso} {dtype}: {time.monotonic() - began:.0f} s", flush=True)
        for groups, rates in emulators.items():
            rates.append(emulator_speed(workers[groups], steps))
    finally:
        for worker in workers.values():
            worker.close()
    best = max(statistics.mean(rates) for rates in emulators.values())
    summarise(result, None, result["rows"], emulators, best)
    write(out / "speed.json", result)
    if not result["rows"]:
        raise SystemExit(f"seconds: expected time for at least one network, got {options.seconds:g}; try 150")
    show(result)


def emulator_speed(worker: Worker, steps: int) -> float:
    """Steps/s of the emulators alone with random actions, group by group."""
    number = worker.env.spec.action.n
    actions = np.random.default_rng(0).integers(0, number, (steps, worker.num_envs)).astype(np.int32)
    size = worker.num_envs // len(worker.pools)
    for pool in worker.pools:
        pool.send(actions[0, :size])
    started = time.perf_counter()
    for t in range(1, steps):
        for pool in worker.pools:
            pool.recv()
            pool.send(actions[t, :size])
    seconds = time.perf_counter() - started
    worker.seen = [pool.recv().obs for pool in worker.pools]
    return (steps - 1) * worker.num_envs / seconds


def race(
    options: argparse.Namespace,
    torso: str,
    dtype: str,
    kinds: list[tuple[str, int]],
    workers: dict[int, Worker],
    deadline: float,
) -> dict[str, dict[str, Any]]:
    """Rows of contenders that take turns, so that a slow phase of the machine affects all of them."""
    contenders: list[Contender] = []
    programs: dict[str, Any] = {}  # plain PPO evaluates no target, so it is another program than SV-PPO
    for algo, groups in kinds:
        contender = Contender(options, algo, torso, dtype, workers[groups], programs.get(algo))
        programs.setdefault(algo, contender.loop.compiled)
        contenders.append(contender)
    for contender in contenders:  # the first round compiles
        contender.round(timed=False)
    for i in range(options.rounds):
        if i > 1 and time.monotonic() > deadline:
            break
        for contender in contenders:
            contender.round()
    rows = {contender.name: contender.row() for contender in contenders}
    for contender in contenders:
        rows[contender.name]["one act, ms"] = act_seconds(contender)
    return rows


def summarise(
    result: dict[str, Any], network: str | None, rows: dict[str, Any], emulators: dict[int, list[float]], best: float
) -> None:
    """Add ratios between rows to the result."""
    result["emulator_steps_per_second"] = {f"groups={g}": statistics.mean(r) for g, r in emulators.items()}
    for row in rows.values():
        row["over_emulator"] = row["steps_per_second"] / best
    if network is None:
        return
    rate = {name: row["steps_per_second"] for name, row in rows.items()}
    ppo, sv = rate[f"ppo {network} groups=2"], rate[f"sv-dynamic {network} groups=2"]
    result["sv_ppo_overhead"][network] = ppo / sv - 1.0
    alone = rate.get(f"ppo {network} groups=1")
    if alone is not None:
        result["overlap_gain"] |= {f"{network} groups={g}": rate[f"ppo {network} groups={g}"] / alone for g in (2, 4)}


def show(result: dict[str, Any]) -> None:
    print(f"{result['device']}, {result['cores']} cores; emulators alone, steps/s:", end=" ")
    print(", ".join(f"{name} {rate:.0f}" for name, rate in result["emulator_steps_per_second"].items()))
    columns = ["steps_per_second", "over_emulator", *next(iter(result["rows"].values()))["seconds"]]
    print(f"{'':42s}" + " ".join(f"{name.split(',')[0][:16]:>16s}" for name in columns))
    for name, row in result["rows"].items():
        cells = {**row, **row["seconds"]}
        print(f"{name:42s}" + " ".join(f"{cells[column]:16.3f}" for column in columns))
        busy = ", ".join(f"{k} {v:.2f}" for k, v in {**row["emulators"], **row["one act, ms"]}.items())
        print(f"{'':6s}{busy}")
    for key in ("overlap_gain", "sv_ppo_overhead", "left_out"):
        print(key, json.dumps(result[key]), flush=True)


if __name__ == "__main__":
    main()
