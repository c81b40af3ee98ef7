"""Our PPO beside the one of MuJoCo Playground's authors on its control suite, at equal size, on one machine.

    python benchmarks/playground_peers.py run ReacherEasy --out results/playground-peers/ReacherEasy.json
    python benchmarks/playground_peers.py table results/playground-peers/*.json

Playground trains with Brax's PPO. Both have the settings of the preset `playground`, which are the authors', and the
same torsos, in a size for a CPU or that of `--set`. Brax resets all environments after each round; so does the authors'
training, which has more resets than rounds. docs/playground.md lists what else differs. A score is the mean return of
128 episodes of the final policy, with sampled actions. Rates are of training alone: ours of all seeds in one program,
the median over rounds; Brax's of one seed after another, the median of their last rounds, without the resets.
"""

from __future__ import annotations

from functools import partial

import jax
import numpy as np

from nextpolicy.bench.brax_peer import OldJax
from nextpolicy.config import ConfigError, TrainConfig
from nextpolicy.envs.playground import ROBOTS, make
from peer_table import EPISODES, Turn, check_new, evaluated, ours, parsers, save, table, work_of

UNROLL, REWARD_SCALE = 30, 10.0
PEER = "Brax's PPO"
SIZE = {"num_envs": "64", "minibatch_size": "960", "hidden": "64,64"}


def theirs(config: TrainConfig, seeds: int) -> Turn:
    found = [trained(config, seed) for seed in range(seeds)]
    # Brax takes the steps of all rounds, but the time of the last.
    rates = [row["training/sps"] / config.num_rounds for row in found]
    score = [row["eval/episode_reward"] for row in found]
    return {"who": "brax", "steps_per_second": float(np.median(rates)), "score": score}


def trained(config: TrainConfig, seed: int) -> dict[str, float]:
    """Brax's metrics at the end of a training."""
    name = config.environment.env.removeprefix("playground/")
    env = make(name, **config.environment.env_options)  # the same physics as ours
    from brax.training.agents.ppo import networks, train
    from mujoco_playground import wrapper
    from mujoco_playground.config.dm_control_suite_params import brax_ppo_config

    if not hasattr(jax, "device_put_replicated"):
        train.jax = OldJax()  # brax 0.14.2 calls it, but newer versions of JAX do not have it
    settings, seen = config.algorithm, []
    hidden = config.net.hidden
    train.train(
        environment=env.env,
        wrap_env_fn=wrapper.wrap_for_brax_training,
        num_timesteps=config.num_rounds * config.batch_size,
        episode_length=brax_ppo_config(name).episode_length,
        num_envs=config.environment.num_envs,
        batch_size=settings.minibatch_size // UNROLL,
        num_minibatches=config.batch_size // settings.minibatch_size,
        unroll_length=UNROLL,
        num_updates_per_batch=settings.epochs,
        learning_rate=settings.learning_rate,
        discounting=settings.gamma,
        clipping_epsilon=settings.clip,
        gae_lambda=settings.lam,
        entropy_cost=settings.entropy_coef,
        reward_scaling=REWARD_SCALE,
        normalize_observations=settings.normalise_obs,
        network_factory=partial(
            networks.make_ppo_networks, policy_hidden_layer_sizes=hidden, value_hidden_layer_sizes=hidden
        ),
        seed=seed,
        num_evals=2,
        num_eval_envs=EPISODES,
        num_resets_per_eval=config.num_rounds,
        progress_fn=lambda _, metrics: seen.append({key: float(value) for key, value in metrics.items()}),
    )
    print(f"{name}, seed {seed}: {seen[-1]['eval/episode_reward']:.1f}", flush=True)
    return seen[-1]


def main() -> None:
    parser, runner = parsers(__doc__, "a task of the control suite, such as CartpoleBalance", seeds=5, steps=3e6)
    runner.add_argument("--set", nargs="*", default=[], action="extend", metavar="NAME=VALUE", help="fields of both")
    options = parser.parse_args()
    try:
        if options.part == "table":
            print(table(options.files, PEER))
            return
        if options.env in ROBOTS:
            raise ConfigError(f"env: expected a task of the control suite, got {options.env}, a robot")
        check_new(options.out)
        fields, config = work_of(f"playground/{options.env}", "ppo", options, SIZE, SIZE)
        if config.algorithm.minibatch_size % UNROLL:
            raise ConfigError(
                f"minibatch_size: expected a multiple of {UNROLL}, Brax's unroll, got {config.algorithm.minibatch_size}"
            )
        if config.num_rounds < 3:
            raise ConfigError(
                f"steps: expected at least 3 rounds of {config.batch_size}, the last of which is timed, got "
                f"{config.num_rounds}"
            )
    except (OSError, ValueError) as error:
        parser.error(str(error))
    turns = [ours(config, fields, options.seeds, evaluated)]
    save(options.out, config, fields, turns)
    save(options.out, config, fields, [*turns, theirs(config, options.seeds)])
    print(table([options.out], PEER))


if __name__ == "__main__":
    main()
