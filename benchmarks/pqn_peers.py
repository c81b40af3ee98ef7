"""Our PQN beside PureJaxQL's on MinAtar: environment steps per second and returns, at equal settings, on one machine.

    python benchmarks/pqn_peers.py run Breakout --purejaxql CHECKOUT --out results/pqn/peer-Breakout.json
    python benchmarks/pqn_peers.py table results/pqn/peer-*.json

CHECKOUT is a clone of mttga/purejaxql; its script `pqn_minatar.py` runs unmodified on this version of gymnax. Both have
the settings of our preset, all seeds in one program, and schedules over the steps that are run. What differs:
PureJaxQL divides observations by 255, draws other initial weights, takes time limits as ends, and bootstraps the last
but one step of a rollout from the value after the last. A score is the mean return of the episodes that ended in the
last tenth of the rounds; rates are of training alone, after compilation.
"""

from __future__ import annotations

import time
import types
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from nextpolicy.bench.peers import legacy_gymnax, load_script, stand_in
from nextpolicy.config import ConfigError, TrainConfig
from peer_table import Turn, check_new, ours, parsers, save, table, work_of

PEER = "PureJaxQL"


class Logged(NamedTuple):
    """State of an environment with the return of its episode so far."""

    env_state: Any
    total: jax.Array


class Returns:
    """Stands in for PureJaxQL's LogWrapper, whose means do not say how many episodes ended."""

    def __init__(self, env: Any) -> None:
        self.env = env

    def __getattr__(self, name: str) -> Any:
        return getattr(self.env, name)

    def reset(self, key: Any, params: Any) -> tuple[Any, Logged]:
        obs, state = self.env.reset(key, params)
        return obs, Logged(state, jnp.float32(0.0))

    def step(self, key: Any, logged: Logged, action: Any, params: Any) -> tuple[Any, Logged, Any, Any, dict[str, Any]]:
        obs, state, reward, done, _ = self.env.step(key, logged.env_state, action, params)
        total = logged.total + reward
        return obs, Logged(state, total * (1 - done)), reward, done, {"ended": 1.0 * done, "ended_return": total * done}


def theirs(config: TrainConfig, checkout: Path, seeds: int) -> Turn:
    train = jax.jit(jax.vmap(make_train(checkout)(their_settings(config))))
    keys = jax.random.split(jax.random.PRNGKey(0), seeds)
    compiled = train.lower(keys).compile()
    begin = time.perf_counter()
    metrics = jax.block_until_ready(compiled(keys))["metrics"]
    rate = seeds * config.num_rounds * config.batch_size / (time.perf_counter() - begin)
    last = slice(-max(1, config.num_rounds // 10), None)
    ended, total = (np.asarray(metrics[name])[:, last].sum(axis=1) for name in ("ended", "ended_return"))
    return {"who": "purejaxql", "steps_per_second": rate, "score": (total / ended).tolist()}


def script_of(checkout: Path) -> Path:
    """The script of the checkout that trains on MinAtar."""
    script = checkout / "purejaxql" / "pqn_minatar.py"
    if not script.is_file():
        raise ConfigError(f"purejaxql: expected a checkout that has purejaxql/pqn_minatar.py, got {checkout}")
    return script


def make_train(checkout: Path) -> Any:
    """`make_train` of the script, with stubs for imports that it does not need here."""
    stand_in("wandb")
    stand_in("hydra").main = lambda **_: lambda function: function
    stand_in("omegaconf").OmegaConf = None
    chex = stand_in("chex")
    chex.dataclass, chex.Array, chex.ndarray = lambda **_: struct.dataclass, jax.Array, jax.Array
    module = load_script("purejaxql_pqn_minatar", script_of(checkout))
    module.gymnax, module.LogWrapper = types.SimpleNamespace(make=legacy_gymnax), Returns
    return module.make_train


def their_settings(config: TrainConfig) -> dict[str, Any]:
    settings = config.algorithm
    steps = config.num_rounds * config.batch_size
    return {
        "TOTAL_TIMESTEPS": steps,
        "TOTAL_TIMESTEPS_DECAY": steps,
        "NUM_ENVS": config.environment.num_envs,
        "NUM_STEPS": config.environment.rollout_length,
        "EPS_START": settings.epsilon_init,
        "EPS_FINISH": settings.epsilon_final,
        "EPS_DECAY": settings.epsilon_fraction,
        "NUM_MINIBATCHES": config.batch_size // settings.minibatch_size,
        "NUM_EPOCHS": settings.epochs,
        "NORM_TYPE": "layer_norm",
        "LR": settings.learning_rate,
        "MAX_GRAD_NORM": settings.max_grad_norm,
        "LR_LINEAR_DECAY": True,
        "GAMMA": settings.gamma,
        "LAMBDA": settings.lam,
        "ENV_NAME": config.environment.env.removeprefix("gymnax/"),
        "WANDB_MODE": "disabled",
    }


def main() -> None:
    parser, runner = parsers(__doc__, "a game of MinAtar, such as Breakout", seeds=8, steps=1e6)
    runner.add_argument("--purejaxql", type=Path, required=True)
    options = parser.parse_args()
    try:
        if options.part == "table":
            print(table(options.files, PEER))
            return
        script_of(options.purejaxql)
        check_new(options.out)
        fields, config = work_of(f"gymnax/{options.env}-MinAtar", "pqn", options)
    except (OSError, ValueError) as error:
        parser.error(str(error))
    turns = [ours(config, fields, options.seeds, lambda run: run.scores()["score"].tolist())]
    save(options.out, config, fields, turns)
    save(options.out, config, fields, [*turns, theirs(config, options.purejaxql, options.seeds)])
    print(table([options.out], PEER))


if __name__ == "__main__":
    main()
