"""Trains PPO, static SV-PPO and dynamic SV-PPO with every criterion on Four Rooms, one program per kind of noise.

    members.csv   one row per member: its updates, their true improvements, and how fast it learned; for members of
                  REFERENCE also rank correlations of each signal with exact quantities

Rows of a kind of noise are written when it is done; a stopped study goes on with the next.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from nextpolicy.config import TrainConfig, presets, whole
from nextpolicy.run.folder import RunError
from nextpolicy.runfiles import STUDY, write_json, write_whole
from nextpolicy.studies.four_rooms import group
from nextpolicy.studies.four_rooms.proxy import rank_correlation
from nextpolicy.studies.four_rooms.summary import CLOSE, FAILED
from nextpolicy.studies.theory.study import claim
from nextpolicy.tabular import four_rooms_mdp, solve

ROUNDS, SEEDS = 195, 32
NOISES = ("fail", "third", "success")
HELD_OUT = 0.125  # one of eight environments
REFERENCE = ("paper", "sv-static", "ppo")  # variants on whose rounds all signals are compared
# Signal -> the field of its threshold, and the values compared.
THRESHOLDS: dict[str, tuple[str, tuple[float, ...]]] = {
    "stable-values": ("delta_v", (0.02, 0.05, 0.2)),
    "network-change": ("delta_v", (0.003, 0.01, 0.05)),
    "noise-corrected": ("delta_v", (0.003, 0.01, 0.05)),
    "held-out": ("delta_v", (0.003, 0.01, 0.05)),
    "policy-step": ("delta_tv", (0.04, 0.07, 0.1)),
    "ess-floor": ("least_ess", (0.9, 0.97, 0.99)),
    "certificate": ("error_weight", (0.3, 1.0, 3.0)),
}
SIGNALS = tuple(f"signal_{name.replace('-', '_')}" for name in THRESHOLDS)
SIGNALS += ("kl_behaviour", "tv_step", "kl_drift", "sign_changes")
QUANTITIES = {  # column of `exact` -> description
    "epsilon_train": "value error on the data, epsilon",
    "tv_visitation_alive": "distance to the next visitation",
    "tv_policy_max": "largest step of the policy, delta",
    "improvement": "true improvement",
}


def variants(rounds: int) -> dict[str, dict[str, Any]]:
    """Name -> fields. `paper` is the preset's gate; the others accept after one stable round."""
    found: dict[str, dict[str, Any]] = {
        "paper": {"algo": "sv-dynamic", "signal": "stable-values"},
        "ppo": {"algo": "ppo"},
        "sv-static": {"algo": "sv-static"},
        "oracle": {"algo": "sv-dynamic", "signal": "oracle", "k_min": 1, "k_max": max(rounds, 2)},
    }
    for signal, (threshold, values) in THRESHOLDS.items():
        for value in values:
            found[f"{signal} {value:g}"] = {"algo": "sv-dynamic", "signal": signal, "k_min": 1, threshold: value}
    return found


def configurations(noise: str, plan: Plan) -> dict[str, TrainConfig]:
    """One configuration per variant; they differ only in traced fields."""
    common: dict[str, Any] = {
        "criterion": "any-signal",
        "held_out": HELD_OUT,
        "seeds": plan.seeds,
        "env_options": {"noise": noise},
    }
    own = variants(plan.rounds).items()
    made = {name: presets.build("four-rooms", **common, **plan.fields, **fields) for name, fields in own}
    return {name: c.replace(total_env_steps=plan.rounds * c.batch_size) for name, c in made.items()}


@dataclass(frozen=True)
class Plan:
    """What a study trains."""

    noises: tuple[str, ...] = NOISES
    seeds: int = SEEDS
    rounds: int = ROUNDS
    fields: Mapping[str, Any] = field(default_factory=dict)  # of the configuration, the same for all variants

    @classmethod
    def checked(cls, noises: Sequence[str] | None, seeds: int | None, rounds: int | None) -> Plan:
        """A plan from options, of which None are left to their defaults. Raises `ConfigError`."""
        for noise in noises or ():
            four_rooms_mdp.move_probabilities(noise)
        plan = cls(
            tuple(dict.fromkeys(noises or NOISES)),
            whole("seeds", SEEDS if seeds is None else seeds, 1, 10_000),
            whole("rounds", ROUNDS if rounds is None else rounds, 4, 100_000),
        )
        configurations(plan.noises[0], plan)
        return plan


def create(path: str | Path, plan: Plan) -> Path:
    """A new folder for the study."""
    path = Path(path)
    claim(path)
    write_json(path / STUDY, {"study": "criteria", **asdict(plan)})
    return path


def run(path: Path, say: Callable[[str], None]) -> pd.DataFrame:
    """Train what the folder does not have yet. Returns the rows of all members."""
    plan = _plan(path)
    rows = pd.read_csv(path / "members.csv") if (path / "members.csv").is_file() else pd.DataFrame()
    for noise in plan.noises:
        if len(rows) and noise in set(rows["noise"]):
            continue
        configs = configurations(noise, plan)
        say(f"criteria: noise {noise}, {len(configs)} variants x {plan.seeds} seeds x {plan.rounds} rounds")
        found = group.train(configs)
        new = pd.DataFrame([row for name, x in found.items() for row in member_rows(noise, name, x, configs[name])])
        text = pd.concat([rows, new], ignore_index=True).to_csv(index=False, float_format="%.6g")
        write_whole(path / "members.csv", text.encode())
        rows = pd.read_csv(io.StringIO(text))  # as a later run would read them
    return rows


def _plan(path: Path) -> Plan:
    try:
        content = json.loads((path / STUDY).read_text())
        if content.pop("study") != "criteria":
            raise KeyError
        return Plan(**content | {"noises": tuple(content["noises"])})
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        raise RunError(f"resume: expected the folder of a study of criteria, got {path}") from None


def member_rows(noise: str, variant: str, found: group.Outcome, config: TrainConfig) -> list[dict[str, Any]]:
    """One row per member of a variant."""
    best = float(solve.optimal(found.mdp).V @ found.mdp.start)
    rows = []
    for m, member in enumerate(found.members):
        one = {name: np.asarray(x[m], np.float64) for name, x in {**found.metrics, **found.exact}.items()}
        row = {"noise": noise, "variant": variant, "seed": member.seed, "batch_size": config.batch_size}
        rows.append(row | outcome(best, one, config.batch_size) | (tracking(one) if variant in REFERENCE else {}))
    return rows


def outcome(best: float, one: Mapping[str, np.ndarray], batch_size: int) -> dict[str, Any]:
    """What the updates of a member were worth, and how fast it learned; its columns are [K], `best` is V*(s_0)."""
    value, accepted = one["value_behaviour"], one["accepted"] > 0
    gains = one["improvement"][accepted]
    near = np.flatnonzero(value >= best - CLOSE)
    return {
        "updates": int(accepted.sum()),
        "improvement": float(gains.mean()) if len(gains) else np.nan,
        "harmful": float((gains < 0).mean()) if len(gains) else np.nan,
        "loss": float(-np.minimum(gains, 0).sum()),
        "steps_to_goal": float((near[0] + 1) * batch_size) if len(near) else np.inf,
        "mean_value": float(value.mean()),
        "final_value": float(value[-1]),
        "failed": not value[-1] >= FAILED * best,
    }


def tracking(one: Mapping[str, np.ndarray]) -> dict[str, float]:
    """`SIGNAL~QUANTITY` and, with ranks without their trend over rounds, `SIGNAL~QUANTITY~detrended`."""
    found = {}
    for signal in SIGNALS:
        x = np.nan_to_num(one[signal], nan=np.inf, posinf=np.finfo(np.float64).max)  # nothing measured: not stable
        x = np.minimum(x, np.finfo(np.float64).max)
        for quantity in QUANTITIES:
            found[f"{signal}~{quantity}"] = rank_correlation(x, one[quantity])
            found[f"{signal}~{quantity}~detrended"] = rank_correlation(x, one[quantity], detrend=True)
    return found
