"""The gate of the preset `default` on environments that it was not tuned on, beside PPO and the gate before it.

    python benchmarks/default_gate/held_out.py [--out results/default-gate/held_out.csv] [--seeds 16]

Writes one row per member: mean return over training and, on CartPole, environment steps until the return is 475 (the
mean over three rounds).
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import jax
import numpy as np
import pandas as pd
from scipy.stats import ttest_ind

import nextpolicy

ENVS = ("CartPole-v1", "FrozenLake-misc", "FourRooms-misc", "MountainCarContinuous-v0")
GATES = {
    "before": {"advantage_kind": "retrace", "delta_v": 0.05, "k_max": 8},
    "default": {"advantage_kind": "vtrace", "delta_v": 0.1, "k_max": 4},
}
SOLVED = 475.0


def rows(env: str, seeds: int) -> pd.DataFrame:
    """One row per member of PPO and both gates."""
    found = []
    for gate, fields in GATES.items():
        algo = ("ppo", "sv-dynamic") if gate == "default" else ("sv-dynamic",)
        with tempfile.TemporaryDirectory() as folder:
            run = nextpolicy.train(
                f"gymnax/{env}",
                algo=algo,
                seeds=seeds,
                total_env_steps=300_000,
                out=f"{folder}/run",
                quiet=True,
                **fields,
            )
            for (variant, seed), one in run.metrics.sort_values("round").groupby(["variant", "seed"]):
                smooth = one["episode_return"].ffill().rolling(3, min_periods=1).mean()
                solved = one["env_steps"][smooth >= SOLVED] if env.startswith("CartPole") else one["env_steps"][:0]
                name = "ppo" if variant == "ppo" else gate
                row = {"env": env, "variant": name, "seed": seed, "mean_return": one["episode_return"].mean()}
                found.append(row | {"steps_to_475": solved.min() if len(solved) else np.inf})
    return pd.DataFrame(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("results/default-gate/held_out.csv"))
    parser.add_argument("--seeds", type=int, default=16)
    options = parser.parse_args()
    jax.config.update("jax_num_cpu_devices", 2)
    table = pd.concat([rows(env, options.seeds) for env in ENVS])
    table.to_csv(options.out, index=False, float_format="%.6g")
    for (env, variant), mine in table.groupby(["env", "variant"], sort=False):
        ppo = table[(table["env"] == env) & (table["variant"] == "ppo")]
        p = ttest_ind(mine["mean_return"], ppo["mean_return"], equal_var=False).pvalue
        quartiles = np.quantile(mine["steps_to_475"], [0.5, 0.25, 0.75])
        print(f"{env} {variant}: mean return {mine['mean_return'].mean():.4g}, p {p:.2g}; steps to 475 {quartiles}")


if __name__ == "__main__":
    main()
