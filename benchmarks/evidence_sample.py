"""How far signals on part of a batch are from those on all of it: relative differences over rounds.

    python benchmarks/evidence_sample.py

Two populations of two seeds take the same 60 rounds, since neither signal decides; one compares critics on the whole
batch. Networks are MLPs of 64 x 64.
"""

from __future__ import annotations

import jax
import numpy as np

from nextpolicy.algos import ppo
from nextpolicy.config import presets
from nextpolicy.loop.population import build_program
from nextpolicy.run.job import make_job

ROUNDS = 60
WHOLE = (10**9, 10**9)  # `envs // 4` still bounds the environments in which signs are compared


def signals(env: str, samples: tuple[int, int]) -> dict[str, np.ndarray]:
    """Signal -> [members, rounds]."""
    ppo._COMPARED_VALUES, ppo._COMPARED_SIGNS = samples
    fields = {"criterion": "any-signal", "signal": "ess-floor", "k_min": 1, "k_max": 9}
    job = make_job(presets.build(env, algo="sv-dynamic", seeds=2, torso="mlp", hidden=(64, 64), **fields))
    program = build_program(job.setup, job.env, job.hypers, capacity=ROUNDS, devices=jax.devices()[:1])
    _, metrics, _ = program.block(program.init(job.seeds), ROUNDS)
    return {name: np.asarray(metrics[name]) for name in ("signal_network_change", "sign_changes")}


def main() -> None:
    part = ppo._COMPARED_VALUES, ppo._COMPARED_SIGNS
    for env in ("gymnax/Breakout-MinAtar", "brax/hopper"):
        few, every = signals(env, part), signals(env, WHOLE)
        for name in few:
            off = 100 * np.abs(few[name] / every[name] - 1)
            print(f"{env}, {name}: median {np.median(off):.1f} %, worst twentieth {np.quantile(off, 0.95):.1f} %")


if __name__ == "__main__":
    main()
