"""Run folders made by hand, without training, so that every number is known; and the command on them."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import numpy as np
import pandas as pd

from nextpolicy.cli import main as cli
from nextpolicy.config import presets

ALGOS = ("ppo", "sv-static", "sv-dynamic")


def write_run(
    folder: Path,
    env: str,
    *,
    seeds: int = 3,
    rounds: int = 20,
    state: str = "finished",
    reason: str = "",
    columns: dict | None = None,
    algo: tuple[str, ...] = ALGOS,
    parts: int = 2,
    **fields,
) -> Path:
    """A run whose metrics are `columns`: name -> f(algo, seed, round array) -> array; the rest is plain."""
    config = presets.build(env, algo=algo, seeds=seeds, **fields)
    config = config.replace(total_env_steps=rounds * config.batch_size)
    (folder / "metrics").mkdir(parents=True)
    about = {"nextpolicy": "0.1.0", "versions": {"jax": "0.0"}, "device": "1 x test"}
    (folder / "config.json").write_text(json.dumps({**json.loads(config.to_json()), "custom": [], "about": about}))
    status = {"state": state, "rounds_done": rounds, "rounds": rounds} | ({"reason": reason} if reason else {})
    (folder / "status.json").write_text(json.dumps(status))
    frames = [_member(i, m, rounds, config.batch_size, columns or {}) for i, m in enumerate(config.members())]
    table = pd.concat(frames, ignore_index=True)
    edges = np.linspace(0, rounds, parts + 1).astype(int)
    for first, end in itertools.pairwise(edges):
        part = table[(table["round"] >= first) & (table["round"] < end)]
        part.to_parquet(folder / "metrics" / f"part-{first:08d}-{end - 1:08d}.parquet", index=False)
    return folder


def _member(index, member, rounds, batch, columns) -> pd.DataFrame:
    k = np.arange(rounds)
    every = {"plain": 1, "static": 4, "dynamic": 2}[member.pace]
    accepted = (k + 1) % every == 0
    values = {
        "episode_return": np.full(rounds, 10.0, np.float32),
        "episodes": np.full(rounds, 2),
        "accepted": accepted,
        "diff_over_threshold": np.where(member.pace == "dynamic", 0.5, 0.0) * np.ones(rounds),
        "rounds_held": k % every + 1,
        "kl_target": np.where(accepted, 0.01 * every, 0.0),
        "kl_behaviour": np.full(rounds, 0.01),
        "value_loss": np.full(rounds, 0.5),
        "entropy": np.full(rounds, 1.5),
        "k_min": np.full(rounds, every),
        "k_max": np.full(rounds, every),
        "ratio_ess": np.full(rounds, 0.9),
        "kl_drift": np.full(rounds, 0.02),
    }
    for name, make in columns.items():
        values[name] = make(member.algo, member.seed, k)
    who = {"round": k, "env_steps": (k + 1) * batch, "member": index, "seed": member.seed, "variant": member.variant}
    return pd.DataFrame({**who, **values})


def lively(seed: int, base: float = 100.0) -> dict:
    """Columns that look like training: curves that rise with noise, a gate whose diff falls."""
    gain = {"ppo": 1.0, "sv-static": 0.95, "sv-dynamic": 1.1}

    def returns(algo, s, k):
        rng = np.random.default_rng([seed, s, len(algo)])
        rise = base * gain[algo] * (1 - np.exp(-4 * k / len(k)))
        return (rise + rng.normal(0, 0.05 * abs(base), len(k))).astype(np.float32)

    def diff(algo, s, k):
        rng = np.random.default_rng([seed, s, 1])
        return np.exp(rng.normal(0, 0.4, len(k)) - 3 * k / len(k)) * 3 if algo == "sv-dynamic" else np.zeros(len(k))

    return {"episode_return": returns, "diff_over_threshold": diff}


def report(*arguments: str | Path) -> int:
    """Exit code of `nextpolicy report`."""
    return cli.main(["report", *map(str, arguments)])


def complaint(capsys) -> str:
    """The one line on stderr."""
    said = capsys.readouterr().err.strip()
    assert len(said.splitlines()) == 1, said
    return said
