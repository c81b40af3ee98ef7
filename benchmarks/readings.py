"""Which reading of the paper reproduces the fingerprints in its tables?

    python benchmarks/readings.py run brax/hopper,brax/reacher --seeds 8 --out D      trains, writes D/readings-ENV.json
    python benchmarks/readings.py run brax/hopper --only terminal,round --out D       one reading more, by its levels
    python benchmarks/readings.py table results/readings                              prints the tables

A reading is a level of each factor in doubt; the first level of each is that of f100efb:

    truncation   bootstrap | terminal      what a time limit is
    warm-up      each | round | none       1000 random steps of each environment; one round of them; none
    centring     scale | standardise       advantages divided by their standard deviation, or centred too
    log-std      half | zero               initial log standard deviation .5 or 0
    resets       fresh | cached            new start states, or the first one of each environment again (PureJaxRL)

Trained are eight of the 2^5 combinations: a 2^(5-2) fraction in which log-std and resets are the products of
truncation with warm-up and with centring, so that every main effect is a difference of two means of four. On MinAtar,
factors are the kind of diff (target | network) and centring, all four combinations.

Fingerprints of each member: mean entropy and value loss over the last tenth of training, median and standard deviation
over rounds of diff / threshold for both kinds of diff, KL(beta_k, beta_{k+1}), share of rounds that updated the target,
and score. Readings are complete one by one; a reading that is in the file already is skipped.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import readings_table
from nextpolicy import criteria
from nextpolicy.config import presets
from nextpolicy.criteria.bounds import GateState
from nextpolicy.criteria.stable_values import GateParams, StableValues
from nextpolicy.run.job import make_job
from nextpolicy.types import Array, Evidence, Metrics

BRAX: dict[str, dict[str, dict[str, Any]]] = {  # factor -> level -> config fields
    "truncation": {"bootstrap": {"truncation": "bootstrap"}, "terminal": {"truncation": "terminal"}},
    "warm-up": {"each": {"warmup_steps": 1000}, "round": {"warmup_steps": 10}, "none": {"warmup_steps": 0}},
    "centring": {"scale": {"advantage_norm": "scale"}, "standardise": {"advantage_norm": "standardise"}},
    "log-std": {"half": {"log_std_init": 0.5}, "zero": {"log_std_init": 0.0}},
    "resets": {"fresh": {"env_options": {"reset": "fresh"}}, "cached": {"env_options": {"reset": "cached"}}},
}
MINATAR: dict[str, dict[str, dict[str, Any]]] = {
    "diff": {"target": {"diff_kind": "target"}, "network": {"diff_kind": "network"}},
    "centring": BRAX["centring"],
}


class BothDiffs(StableValues):
    """The paper's gate, which also records diff / threshold of the kind of diff that it does not use."""

    name = "both-diffs"

    def update(
        self, state: GateState, evidence: Evidence, params: GateParams, progress: Any
    ) -> tuple[GateState, Array, Metrics]:
        state, accept, metrics = super().update(state, evidence, params, progress)
        threshold = jnp.asarray(params.delta_v) * jnp.asarray(evidence.scale)
        kinds = {"target": evidence.diff_target, "network": evidence.diff_network}
        return state, accept, metrics | {f"{kind}_over_threshold": diff / threshold for kind, diff in kinds.items()}


def factors(env: str) -> dict[str, dict[str, dict[str, Any]]]:
    return BRAX if env.startswith("brax/") else MINATAR


def fraction(env: str) -> list[tuple[str, ...]]:
    """The readings to train: a level of each factor, in the order of the factors."""
    levels = [list(levels) for levels in factors(env).values()]
    free = [(a, b, c) for a in (0, 1) for b in (0, 1) for c in (0, 1)]
    if len(levels) == 2:
        return [(levels[0][a], levels[1][b]) for a in (0, 1) for b in (0, 1)]
    chosen = [(a, b, c, a ^ b, a ^ c) for a, b, c in free]
    return [tuple(level[i] for level, i in zip(levels, row, strict=True)) for row in chosen]


def completed(env: str, named: Sequence[str]) -> tuple[str, ...]:
    """The reading with these levels, and the first level of all other factors."""
    own = factors(env)
    unknown = [name for name in named if not any(name in levels for levels in own.values())]
    if unknown:
        known = ", ".join(name for levels in own.values() for name in levels)
        raise ValueError(f"only: expected levels among {known}, got {unknown[0]}")
    return tuple(next((name for name in levels if name in named), next(iter(levels))) for levels in own.values())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = parser.add_subparsers(dest="part", required=True)
    run = parts.add_parser("run")
    run.add_argument("env", help="ENV[,ENV...]")
    run.add_argument("--algo", default="sv-dynamic", help="ALGO[,ALGO...]")
    run.add_argument("--seeds", type=int, default=8)
    run.add_argument("--steps", type=float, help="steps of each seed; by default the preset's")
    run.add_argument("--only", action="append", metavar="LEVEL[,LEVEL...]", help="this reading; may be repeated")
    run.add_argument("--compile-threads", type=int, default=1, help="programs compiled while others train")
    run.add_argument("--minutes", type=float, default=math.inf, help="start no reading after this time")
    run.add_argument("--out", required=True, help="folder for the results; must exist")
    table = parts.add_parser("table")
    table.add_argument("folder", help="folder with readings-ENV.json")
    options = parser.parse_args()
    if options.part == "table":
        print(readings_table.markdown(Path(options.folder)))
        return
    if not Path(options.out).is_dir():
        parser.error(f"out: expected an existing folder, got {options.out}")
    criteria.register(BothDiffs)
    try:
        train_all(options)
    except ValueError as error:
        parser.error(str(error))


def train_all(options: argparse.Namespace) -> None:
    """Train the readings that are not in the files yet; compilation runs ahead in threads."""
    deadline = time.monotonic() + 60 * options.minutes
    work = []
    for env in options.env.split(","):
        chosen = [completed(env, only.split(",")) for only in options.only] if options.only else fraction(env)
        done = {tuple(each["reading"]) for each in stored(options, env)["readings"] if same_work(options, each)}
        work += [(env, reading) for reading in chosen if reading not in done]
    with ThreadPoolExecutor(options.compile_threads) as pool:
        ready = [(env, reading, pool.submit(prepare, options, env, reading)) for env, reading in work]
        for env, reading, future in ready:
            if time.monotonic() > deadline:
                future.cancel()
                continue
            job, program, state = future.result()
            started = time.perf_counter()
            metrics = trained(job, program, state)
            seconds = time.perf_counter() - started
            members = [
                {"algo": member.algo, "seed": member.seed, **fingerprints({k: v[i] for k, v in metrics.items()})}
                for i, member in enumerate(job.config.members())
            ]
            content = stored(options, env)
            content["readings"] = [each for each in content["readings"] if tuple(each["reading"]) != reading]
            row = {"reading": reading, **work_of(options), "seconds": round(seconds, 1), "members": members}
            content["readings"].append(row)
            file_of(options, env).write_text(json.dumps(content, indent=1) + "\n")
            print(f"{env} {' '.join(reading)}: {seconds:.0f} s", flush=True)


def work_of(options: argparse.Namespace) -> dict[str, Any]:
    return {"algo": options.algo, "seeds": options.seeds, "steps": options.steps}


def same_work(options: argparse.Namespace, row: dict[str, Any]) -> bool:
    """Whether a stored reading was trained as asked; a shorter trial is trained again."""
    return {name: row.get(name) for name in ("algo", "seeds", "steps")} == work_of(options)


def file_of(options: argparse.Namespace, env: str) -> Path:
    return Path(options.out) / f"readings-{env.replace('/', '-')}.json"


def stored(options: argparse.Namespace, env: str) -> dict[str, Any]:
    """The results so far."""
    file = file_of(options, env)
    if file.is_file():
        content: dict[str, Any] = json.loads(file.read_text())
        return content
    return {"env": env, "factors": list(factors(env)), "readings": []}


def prepare(options: argparse.Namespace, env: str, reading: Sequence[str]) -> tuple[Any, Any, Any]:
    fields: dict[str, Any] = {}
    for levels, level in zip(factors(env).values(), reading, strict=True):
        fields |= levels[level]
    if options.steps is not None:
        fields["total_env_steps"] = int(options.steps)
    algo = tuple(options.algo.split(","))
    config = presets.build(env, algo=algo, seeds=options.seeds, criterion=BothDiffs.name, **fields)
    job = make_job(config)
    program = job.program()
    return job, program, program.init(job.seeds)


def trained(job: Any, program: Any, state: Any) -> dict[str, np.ndarray]:
    """Metrics [members, rounds]."""
    rows, left = [], job.config.num_rounds
    while left:
        now = min(left, program.capacity)
        state, metrics, _ = program.block(state, now)
        rows.append({name: np.asarray(value)[:, :now] for name, value in jax.device_get(metrics).items()})
        left -= now
    return {name: np.concatenate([row[name] for row in rows], axis=1) for name in rows[0]}


def fingerprints(metrics: Mapping[str, np.ndarray]) -> dict[str, float | None]:
    """The fingerprints of one member from its metrics [rounds]; None if there is no number."""
    late = slice(-max(1, len(metrics["entropy"]) // 10), None)
    accepted = metrics["accepted"].astype(bool)
    ended = metrics["episodes"][late] > 0
    found = {
        "entropy": metrics["entropy"].mean(),
        "entropy_late": metrics["entropy"][late].mean(),
        "value_loss": metrics["value_loss"].mean(),
        "value_loss_late": metrics["value_loss"][late].mean(),
        "kl_target": metrics["kl_target"][accepted].mean() if accepted.any() else math.nan,
        "kl_behaviour": metrics["kl_behaviour"].mean(),
        "updates_pct": 100 * accepted.mean(),
        "score": np.average(metrics["episode_return"][late][ended], weights=metrics["episodes"][late][ended])
        if ended.any()
        else math.nan,
    }
    for kind in ("target", "network"):
        share = 100 * metrics[f"{kind}_over_threshold"].astype(np.float64)
        share = share[np.isfinite(share)]
        found |= {f"{kind}_median_pct": np.median(share) if len(share) else math.nan}
        found |= {f"{kind}_std_pct": share.std(ddof=1) if len(share) > 1 else math.nan}
    return {name: float(f"{value:.6g}") if math.isfinite(value) else None for name, value in found.items()}


if __name__ == "__main__":
    main()
