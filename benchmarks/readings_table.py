"""Tables of `readings.py`: fingerprints of each reading beside the paper's, main effects, and distances."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from pandas.api.types import is_numeric_dtype

from nextpolicy.report.aggregate import paper_tables

ACTIONS = {"hopper": 3, "inverted_pendulum": 1, "inverted_double_pendulum": 1, "reacher": 2, "ant": 8, "fast": 1}
ACTIONS |= {"halfcheetah": 6, "walker2d": 6, "swimmer": 2, "pusher": 7, "humanoid": 17, "humanoidstandup": 17}
COLUMNS = ("entropy_late", "target_median_pct", "target_std_pct", "network_median_pct", "network_std_pct")
COLUMNS += ("updates_pct", "value_loss_late", "score")
NAMES = ("env", "reading", "algo", "seed")
RESAMPLES = 1000


def members(folder: Path) -> pd.DataFrame:
    """One row per member: env, reading (levels joined by spaces), algo, seed and fingerprints."""
    rows = []
    for file in sorted(folder.glob("readings-*.json")):
        content = json.loads(file.read_text())
        for each in content["readings"]:
            own = {"env": content["env"], "reading": " ".join(each["reading"])}
            own |= dict(zip(content["factors"], each["reading"], strict=True))
            rows += [{**own, **member} for member in each["members"]]
    if not rows:
        raise SystemExit(f"folder: expected readings-ENV.json, got none in {folder}")
    return pd.DataFrame(rows)


def printed(env: str) -> dict[str, float]:
    """The paper's fingerprints of a Brax task; empty for other environments."""
    table = paper_tables()["brax_dynamic"].set_index("env")
    name = env.partition("/")[2]
    if not env.startswith("brax/") or name not in table.index:
        return {}
    row = table.loc[name]
    median, spread = float(row["diff_over_threshold_median_pct"]), float(row["diff_std_pct_of_threshold"])
    found = {"entropy_late": float(row["ppo_entropy"]), "updates_pct": float(row["updates_pct_of_ppo"])}
    for kind in ("target", "network"):
        found |= {f"{kind}_median_pct": median, f"{kind}_std_pct": spread}
    return found


def dynamic(table: pd.DataFrame) -> pd.DataFrame:
    """The rows of dynamic SV-PPO, which has a threshold."""
    return table[table["algo"] == "sv-dynamic"]


def errors(mean: dict[str, np.ndarray], env: str, kind: str) -> np.ndarray:
    """Distances [3, ...] of mean fingerprints [...] on one task from the paper's, for a kind of diff.

    The paper's entropy is PPO's, ours that of dynamic SV-PPO, which updates its target in 97 % of the rounds on Brax.
    Entropy in nats per dimension of the action; median and standard deviation of diff / threshold in factors of two.
    """
    paper = printed(env)
    entropy = np.abs(mean["entropy_late"] - paper["entropy_late"]) / ACTIONS[env.partition("/")[2]]
    names = (f"{kind}_median_pct", f"{kind}_std_pct")
    return np.stack([entropy, *(np.abs(np.log2(mean[name] / paper[name])) for name in names)])


def distances(table: pd.DataFrame) -> pd.DataFrame:
    """One row per reading and kind of diff: mean errors over tasks, and their mean with a 95 % interval over seeds."""
    rng = np.random.default_rng(0)
    ours = dynamic(table)
    ours = ours[[bool(printed(env)) for env in ours["env"]]]
    found = []
    for reading, rows in ours.groupby("reading", sort=False):
        samples = []  # (env, fingerprints [1 + RESAMPLES]): the means over seeds, and those of resampled seeds
        for env, own in rows.groupby("env", sort=False):
            chosen = rng.integers(len(own), size=(RESAMPLES, len(own)))
            values = {name: own[name].to_numpy(np.float64) for name in COLUMNS}
            means = {name: np.append(x.mean(), x[chosen].mean(axis=1)) for name, x in values.items()}
            samples.append((str(env), means))
        for kind in ("target", "network"):
            by_task = np.mean([errors(mean, env, kind) for env, mean in samples], axis=0)  # [3, 1 + RESAMPLES]
            low, high = np.quantile(by_task[:, 1:].mean(axis=0), (0.025, 0.975))
            row = {"reading": reading, "diff": kind, "tasks": len(samples)}
            row |= dict(zip(("entropy", "median", "spread"), by_task[:, 0], strict=True))
            found.append({**row, "distance": by_task[:, 0].mean(), "low": low, "high": high})
    made = pd.DataFrame(found)
    return made.sort_values("distance", ignore_index=True) if len(made) else made


def effects(table: pd.DataFrame, factors: list[str], env: str) -> pd.DataFrame:
    """Main effects on one environment: for each factor, the mean of each level over all readings that have it."""
    ours = dynamic(table[table["env"] == env])
    rows = []
    for factor in factors:
        for level, own in ours.groupby(factor, sort=False):
            rows.append({"factor": factor, "level": level, "members": len(own), **own[list(COLUMNS)].mean()})
    return pd.DataFrame(rows)


def markdown(folder: Path) -> str:
    table = members(folder)
    parts = []
    for env, own in table.groupby("env", sort=False):
        grouped = dynamic(own).groupby("reading", sort=False)[list(COLUMNS)]
        shown = grouped.mean()
        paper = printed(str(env))
        if paper:
            shown.loc["paper"] = pd.Series(paper)
        used = [c for c in own if c not in NAMES and own[c].notna().all() and not is_numeric_dtype(own[c])]
        parts += [f"### {env}", text(shown.reset_index()), text(effects(own, used, str(env)))]
    far = distances(table)
    return "\n\n".join([*parts, *(["### Distance from the paper", text(far)] if len(far) else [])])


def text(table: pd.DataFrame) -> str:
    """A Markdown table with three significant digits."""
    cell: Any = lambda x: "" if x != x else f"{x:.3g}" if isinstance(x, float) else str(x)  # noqa: E731
    lines = [list(table), ["---"] * table.shape[1], *([cell(x) for x in row] for row in table.itertuples(index=False))]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
