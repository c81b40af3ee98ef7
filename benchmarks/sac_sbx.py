"""Our SAC beside SBX's on Pendulum on a CPU: steps per second and returns at equal settings, in turns on one machine.

    python benchmarks/sac_sbx.py run --python OTHER/bin/python --turns 3 --out results/sac/sbx.json
    python benchmarks/sac_sbx.py table results/sac/sbx.json

SBX (Stable-Baselines3 in JAX) needs packages that this library does not, so it runs in another environment: OTHER is
one with `pip install sbx-rl`. All have one gradient step per environment step on 256 transitions, two layers of 256
units and a learning rate of 3e-4. `sbx` has the rounds of our preset, 4 environments and 16 gradient steps at a time;
`sbx, its own rounds` has SBX's defaults, one environment and one gradient step at a time. Ours runs Gymnasium's
environment (`gym/Pendulum-v1`), and the compiled one (`gymnax/Pendulum-v1`). Rates are of training alone, after
compilation.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

EPISODES, FIRST = 100, 1000  # of the evaluation; random steps that fill the buffer first
OURS = ("gym/Pendulum-v1", "gymnax/Pendulum-v1")
SBX = {"sbx": (4, 4, 16), "sbx, its own rounds": (1, 1, 1)}  # environments, steps of each per round, gradient steps


def ours(env: str, seed: int, steps: int) -> dict[str, Any]:
    """One seed of ours."""
    import numpy as np

    import nextpolicy

    with tempfile.TemporaryDirectory() as folder:
        run = nextpolicy.train(env, algo="sac", seeds=[seed], total_env_steps=steps, out=folder, quiet=True)
        rates = run.metrics.groupby("round")["steps_per_second"].first().to_numpy()
        score = run.evaluate(EPISODES, policy="behaviour", num_envs=20)["mean"].tolist()
    return {"rate": float(np.median(rates)), "score": score[0]}


def theirs(who: str, seed: int, steps: int) -> dict[str, Any]:
    """One seed of SBX's; runs where SBX is installed."""
    from sbx import SAC
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.evaluation import evaluate_policy

    envs, train_freq, gradient_steps = SBX[who]
    model = SAC(
        "MlpPolicy",
        make_vec_env("Pendulum-v1", n_envs=envs, seed=seed),
        learning_rate=3e-4,
        batch_size=256,
        learning_starts=FIRST,
        train_freq=train_freq,
        gradient_steps=gradient_steps,
        seed=seed,
        policy_kwargs={"net_arch": [256, 256]},
    )
    model.learn(FIRST + 160)  # compiles
    begin, done = time.perf_counter(), model.num_timesteps
    model.learn(FIRST + steps - done, reset_num_timesteps=False)
    rate = (model.num_timesteps - done) / (time.perf_counter() - begin)
    score, _ = evaluate_policy(model, make_vec_env("Pendulum-v1", n_envs=20, seed=1000 + seed), EPISODES, False)
    return {"rate": rate, "score": float(score)}


def run(python: str, turns: int, steps: int, out: Path) -> None:
    """In turns; writes after each."""
    found: dict[str, Any] = {"steps": steps, "turns": []}
    for seed in range(turns):
        for who in SBX:
            command = [python, __file__, "peer", who, "--seed", str(seed), "--steps", str(steps)]
            peer = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()[-1]
            found["turns"].append({"who": who, "seed": seed, **json.loads(peer)})
        found["turns"] += [{"who": env, "seed": seed, **ours(env, seed, steps)} for env in OURS]
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps(found, indent=1) + "\n")
        for turn in found["turns"][-len((*SBX, *OURS)) :]:
            print(f"{turn['who']}, seed {seed}: {turn['rate']:.0f} steps/s, score {turn['score']:.0f}", flush=True)


def read(file: Path) -> list[dict[str, Any]]:
    """The turns of a file that `run` wrote."""
    try:
        turns: list[dict[str, Any]] = json.loads(file.read_text())["turns"]
        numbers = [turn[name] for turn in turns for name in ("rate", "score")]
        finite = all(type(x) in (int, float) and math.isfinite(x) for x in numbers)
        if finite and {turn["who"] for turn in turns} == {*SBX, *OURS} and all(turn["rate"] > 0 for turn in turns):
            return turns
    except (OSError, ValueError, KeyError, TypeError, ArithmeticError, RecursionError):
        pass
    raise ValueError(f"table: expected a file that `run` wrote, got {file}")


def table(file: Path) -> str:
    """Medians over turns, and scores as mean with the least and the largest."""
    turns = read(file)
    lines = [
        "| | turns | steps/s (least, largest) | ratio to `sbx`, to its own rounds | score |",
        "|---|---|---|---|---|",
    ]
    rates = {who: [t["rate"] for t in turns if t["who"] == who] for who in (*SBX, *OURS)}
    median = {who: statistics.median(found) for who, found in rates.items()}
    for who, found in rates.items():
        scores = [t["score"] for t in turns if t["who"] == who]
        score = f"{sum(scores) / len(scores):.0f} ({min(scores):.0f} to {max(scores):.0f})"
        rate = f"{median[who]:.0f} ({min(found):.0f}, {max(found):.0f})"
        ratios = ", ".join(f"{median[who] / median[peer]:.2f}" for peer in SBX)
        lines.append(f"| {who} | {len(found)} | {rate} | {ratios} | {score} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = parser.add_subparsers(dest="part", required=True)
    runner, peer = parts.add_parser("run"), parts.add_parser("peer")
    runner.add_argument("--python", required=True)
    peer.add_argument("who", choices=SBX)
    runner.add_argument("--turns", type=int, default=3)
    runner.add_argument("--out", type=Path, required=True)
    peer.add_argument("--seed", type=int, required=True)
    for one in (runner, peer):
        one.add_argument("--steps", type=int, default=6000)
    parts.add_parser("table").add_argument("file", type=Path)
    options = parser.parse_args()
    if options.part == "peer":
        print(json.dumps(theirs(options.who, options.seed, options.steps)))
        return
    if options.part == "run":
        if options.out.exists():
            parser.error(f"out: expected a new file, got {options.out}; name another one")
        run(options.python, options.turns, options.steps, options.out)
    try:
        print(table(options.out if options.part == "run" else options.file))
    except ValueError as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
