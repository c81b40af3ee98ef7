"""Our SAC beside Brax's: environment steps per second and returns, at equal settings, in turns on one machine.

    python benchmarks/sac_peers.py run hopper --seeds 8 --steps 2e6 --out results/sac/hopper.json
    python benchmarks/sac_peers.py run hopper --steps 51200 --set num_envs=32 hidden=64,64 --out results/sac/hopper.json
    python benchmarks/sac_peers.py table results/sac/brax-*.json

Both have the settings of our preset or of `--set` (`SHARED`), and Brax's target entropy. What differs: Brax resets to
cached start states, draws other initial weights, computes the actor's gradient with the critics of before the step,
steps its temperature with a rate of 3e-4, and follows its actor in the bootstrap at every gradient step. Rates are of
training alone, after compilation: ours the median over blocks, Brax's as it reports them. `run` writes after each turn
and goes on where it stopped.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jax
import numpy as np

from nextpolicy.bench.brax_peer import OldJax
from nextpolicy.config import ConfigError, TrainConfig
from nextpolicy.envs.brax import make
from peer_table import EPISODES, compared, evaluated, ours, parsers, read, work_of

ENTROPY = -0.5  # Brax's, in agents/sac/losses.py
SHARED = {"num_envs", "rollout_length", "updates_per_step", "minibatch_size", "learning_rate", "gamma", "tau"}
SHARED |= {"reward_scale", "hidden", "replay_size", "normalise_obs", "warmup_steps"}


def theirs(env: str, seed: int, config: TrainConfig) -> dict[str, Any]:
    """Brax's training of one seed."""
    made = make(env)  # the same physics as ours
    from brax.training.agents.sac import networks, train

    if not hasattr(jax, "device_put_replicated"):
        train.jax = OldJax()  # brax 0.14.2 calls it, but newer versions of JAX do not have it
    settings, seen = config.algorithm, []
    train.train(
        environment=made.env,
        num_timesteps=config.run.total_env_steps,
        max_devices_per_host=1,
        episode_length=made.spec.time_limit,
        num_envs=config.environment.num_envs,
        learning_rate=settings.learning_rate,
        discounting=settings.gamma,
        seed=seed,
        batch_size=settings.minibatch_size,
        num_evals=5,
        num_eval_envs=EPISODES,
        normalize_observations=settings.normalise_obs,
        reward_scaling=settings.reward_scale,
        tau=settings.tau,
        min_replay_size=config.environment.num_envs * config.environment.warmup_steps,
        max_replay_size=settings.replay_size,
        grad_updates_per_step=settings.updates(config.environment.num_envs),
        network_factory=lambda *a, **k: networks.make_sac_networks(*a, hidden_layer_sizes=config.net.hidden, **k),
        progress_fn=lambda _, metrics: seen.append({name: float(x) for name, x in metrics.items()}),
    )
    rates = [row["training/sps"] for row in seen if "training/sps" in row][1:]  # the first has compiled
    score = [seen[-1]["eval/episode_reward"]]
    return {"who": "brax", "steps_per_second": float(np.median(rates)), "score": score}


def run(config: TrainConfig, fields: dict[str, Any], seeds: int, out: Path) -> None:
    """Brax's seeds one by one, ours in turns with them, and all of ours as one population."""
    env = config.environment.env.removeprefix("brax/")
    work = {"env": env, "steps": config.run.total_env_steps, "fields": fields}
    found: dict[str, Any] = read(out) if out.is_file() else {**work, "turns": []}
    if any(found.get(name) != value for name, value in work.items()):
        raise ConfigError(f"out: expected a new file or one with the same work, got {out}; name another one")
    found["device"] = jax.devices()[0].device_kind
    found["updates_per_step"] = config.algorithm.updates_per_step
    done = [(turn["who"], len(turn["seeds"]), turn["seeds"][0]) for turn in found["turns"]]
    turns: list[tuple[str, int, int]] = [("ours", seeds, 0)]
    turns += [(who, 1, seed) for seed in range(seeds) for who in ("ours", "brax") if who == "brax" or seed < 3]
    for who, count, seed in turns:
        if (who, count, seed) in done:
            continue
        own = list(range(seed, seed + count))
        one = ours(config, fields, own, evaluated) if who == "ours" else theirs(env, seed, config)
        found["turns"].append({**one, "seeds": own})
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps(found, indent=1))
        rate, score = one["steps_per_second"], np.mean(one["score"])
        print(f"{env} {who} x {count}: {rate:.0f} steps/s, score {score:.1f}", flush=True)


def table(files: list[Path]) -> str:
    """Rates and scores as Markdown; +- is the standard deviation over seeds, the interval Welch's at 95 %."""
    heads = ["", "steps/s, one seed: ours", "Brax", "ratio", "ours, all seeds at once"]
    heads += ["score: ours", "Brax", "difference"]
    lines = [f"| {' | '.join(heads)} |", "|" + "---|" * len(heads)]
    for found in map(read, files):
        kinds: dict[tuple[str, bool], list[dict[str, Any]]] = {}
        for turn in found["turns"]:
            kinds.setdefault((turn["who"], len(turn["seeds"]) > 1), []).append(turn)
        alone, peer, many = (_rate(kinds.get(kind, [])) for kind in (("ours", False), ("brax", False), ("ours", True)))
        cells = [found["env"], f"{alone:.0f}", f"{peer:.0f}", f"{alone / peer:.2f}", f"{many:.0f}"]
        mine, other = (_scores(kinds.get(kind, [])) for kind in (("ours", True), ("brax", False)))
        cells += compared(mine, other)
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _rate(turns: list[dict[str, Any]]) -> float:
    return float(np.median([turn["steps_per_second"] for turn in turns])) if turns else np.nan


def _scores(turns: list[dict[str, Any]]) -> list[float]:
    return [score for turn in turns for score in turn["score"]]


def main() -> None:
    parser, runner = parsers(__doc__, "a task of Brax, such as hopper", seeds=8, steps=2e6)
    runner.add_argument("--set", nargs="*", default=[], action="extend", metavar="NAME=VALUE", help="fields of both")
    options = parser.parse_args()
    try:
        if options.part == "table":
            print(table(options.files))
            return
        if options.out.is_dir():
            raise ConfigError(f"out: expected a JSON file, got the folder {options.out}")
        fields, config = work_of(f"brax/{options.env}", "sac", options, {"entropy_per_action": str(ENTROPY)}, SHARED)
    except (OSError, ValueError) as error:
        parser.error(str(error))
    try:
        run(config, fields, options.seeds, options.out)
    except ConfigError as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
