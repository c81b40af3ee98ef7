"""Scores of PPO and SV-PPO on Atari games after minutes of training."""

from __future__ import annotations

import argparse
import csv
import math
import signal
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from atari_settings import SHORT_RUN, config, write
from nextpolicy.envs.base import is_host_env
from nextpolicy.loop.host_loop import HostLoop
from nextpolicy.run.job import make_job

ALGOS = ("ppo", "sv-dynamic")
COLUMNS = ("game", "variant", "round", "env_steps", "seconds", "episode_return", "episodes", "accepted")
WRITE_EVERY = 10.0  # seconds between writes of scores.json
RESERVE = 12.0  # seconds reserved for the last files and figures


class Player:
    """One game with two members (PPO and SV-PPO) and the rows of their learning curves."""

    def __init__(self, options: argparse.Namespace, game: str) -> None:
        self.game, self.batch = game, options.num_envs * options.learn_rollout_length
        fields: dict[str, Any] = {"algo": ALGOS, **SHORT_RUN, "compute_dtype": options.dtype}
        fields |= {"rollout_length": options.learn_rollout_length, "minibatch_size": options.learn_minibatch_size}
        env_options = {"clip_reward": True, "groups": options.groups, "threads": options.threads}
        # Learning rate and gate are constant, so that training does not depend on the length of the run.
        self.job = make_job(config(options, game, 10**9, env_options=env_options, **fields))
        assert is_host_env(self.job.env)
        self.random = random_games(self.job.env, options.random_games)
        self.loop = HostLoop(self.job.setup, self.job.hypers, self.job.env, self.job.seeds)
        self.state = self.loop.init(self.job.seeds)
        self.rows: list[dict[str, Any]] = []
        self.done = 0

    def round(self, began: float) -> list[dict[str, Any]]:
        """One round of both members."""
        self.state, metrics, _ = self.loop.block(self.state, 1)
        self.done += 1
        place = {"game": self.game, "round": self.done - 1, "env_steps": self.done * self.batch}
        place["seconds"] = round(time.monotonic() - began, 1)
        new = [
            {**place, "variant": algo, **{k: float(metrics[k][m, 0]) for k in COLUMNS[5:]}}
            for m, algo in enumerate(ALGOS)
        ]
        if not all(metrics["finite"].ravel()):
            print(f"{self.game}: not finite in round {self.done - 1}", file=sys.stderr, flush=True)
        self.rows += new
        return new

    def scores(self) -> dict[str, Any]:
        result: dict[str, Any] = {"random": self.random, "env_steps": self.done * self.batch, "rounds": self.done}
        for algo in ALGOS:
            own = [row for row in self.rows if row["variant"] == algo]
            result[algo] = {
                "score": mean_return([row for row in own if row["round"] >= 0.9 * self.done]),
                "first_tenth": mean_return([row for row in own if row["round"] < max(1.0, 0.1 * self.done)]),
                "target_updates": sum(row["accepted"] for row in own) / max(1, len(own)),
            }
        return result


def learn(options: argparse.Namespace, about: dict[str, Any], out: Path, deadline: float) -> None:
    """Train all games in turns of one round until the deadline."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the `finally` block runs
    began = written = time.monotonic()
    players: list[Player] = []
    with open(out / "curves.csv", "w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        try:
            # The emulators of one game start while the program of another compiles.
            with ThreadPoolExecutor() as threads:
                players += threads.map(lambda game: first_round(options, game, began), options.games)
            fresh = [row for player in players for row in player.rows]
            longest = 0.0
            while True:
                writer.writerows({k: _plain(v) for k, v in row.items()} for row in fresh)
                file.flush()
                started = time.monotonic()
                if started + longest + RESERVE > deadline:
                    break
                fresh = [row for player in players for row in player.round(began)]
                longest = max(longest, time.monotonic() - started)
                if time.monotonic() - written > WRITE_EVERY:
                    written = time.monotonic()
                    save(players, about, out, written - began)
                    print(line(players, written - began), flush=True)
        finally:
            save(players, about, out, time.monotonic() - began)
            for player in players:
                player.loop.close()
    print(line(players, time.monotonic() - began), flush=True)
    try:
        figures(out)
    except ImportError as error:
        print(f"figures: skipped ({error}); draw them later with --part figures", flush=True)


def first_round(options: argparse.Namespace, game: str, began: float) -> Player:
    player = Player(options, game)
    player.round(began)
    return player


def save(players: list[Player], about: dict[str, Any], out: Path, seconds: float) -> None:
    scores = {player.game: player.scores() for player in players if player.done}
    write(out / "scores.json", {**about, "learning": SHORT_RUN, "seconds": round(seconds, 1), "games": scores})


def line(players: list[Player], seconds: float) -> str:
    parts = [f"{seconds:.0f} s"]
    for player in players:
        score = player.scores()
        found = ", ".join(f"{algo} {_show(score[algo]['score'])}" for algo in ALGOS)
        parts.append(f"{player.game} {score['env_steps']} steps: {found} (random {_show(score['random']['mean'])})")
    return "; ".join(parts)


def random_games(host: Any, games: int) -> dict[str, float]:
    """Mean score of whole games with uniformly random actions, and its standard error."""
    pool, rng = host.start(games), np.random.default_rng(0)
    try:
        pool.reset(seed=1)
        total, finished = np.zeros(games), np.zeros(games, bool)
        while not finished.all():
            pool.send(rng.integers(0, host.spec.action.n, games).astype(np.int32))
            step = pool.recv()
            total += np.where(finished, 0.0, step.score)
            finished |= step.episode_over
    finally:
        pool.close()
    error = float(total.std(ddof=1) / np.sqrt(games)) if games > 1 else math.nan
    return {"mean": float(total.mean()), "standard_error": error, "games": games}


def mean_return(rows: list[dict[str, Any]]) -> float | None:
    """Mean score of the games that ended in these rounds; None if there are none."""
    ended = [(row["episode_return"], row["episodes"]) for row in rows if row["episodes"] > 0]
    return sum(mean * count for mean, count in ended) / sum(count for _, count in ended) if ended else None


def _show(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"


def _plain(value: Any) -> Any:
    return f"{value:.6g}" if isinstance(value, float) else value


# Figures.


def read_curves(path: Path) -> dict[str, dict[str, np.ndarray]]:
    """Arrays [rounds, 3] of agent steps, mean return and episodes, by game and variant. Skips incomplete lines."""
    curves: dict[str, dict[str, list[Any]]] = {}
    with open(path, newline="") as file:
        for row in csv.DictReader(file):
            try:
                point = [float(row[name]) for name in ("env_steps", "episode_return", "episodes")]
            except (TypeError, ValueError):
                continue
            curves.setdefault(row["game"], {}).setdefault(row["variant"], []).append(point)
    return {game: {name: np.asarray(points) for name, points in both.items()} for game, both in curves.items()}


def smoothed(points: np.ndarray, share: float = 0.04) -> tuple[np.ndarray, np.ndarray]:
    """Agent steps, and the mean return of the games that ended in a window of rounds around each point."""
    half = max(1, int(share * len(points) / 2))
    ended = points[:, 2]
    total = np.concatenate([[0.0], np.cumsum(np.where(ended > 0, points[:, 1], 0.0) * ended)])
    count = np.concatenate([[0.0], np.cumsum(ended)])
    low = np.maximum(np.arange(len(points)) - half, 0)
    high = np.minimum(np.arange(len(points)) + half + 1, len(points))
    games = count[high] - count[low]
    some = games > 0
    return points[some, 0], (total[high] - total[low])[some] / games[some]


def figures(out: Path) -> None:
    """Draw learning.png and learning.svg from all curves.csv in `out` and its subfolders."""
    import json

    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    curves: dict[str, dict[str, np.ndarray]] = {}
    scores: dict[str, Any] = {}
    for path in sorted([out, *(folder for folder in out.iterdir() if folder.is_dir())]):
        if (path / "curves.csv").exists():
            curves |= read_curves(path / "curves.csv")
        if (path / "scores.json").exists():
            scores |= json.loads((path / "scores.json").read_text())["games"]
    if not curves:
        return print("figures: skipped, since no curves.csv has rounds", flush=True)
    plt.rcParams["svg.hashsalt"] = "atari"  # makes the SVG deterministic
    figure, axes = plt.subplots(1, len(curves), figsize=(5.2 * len(curves), 3.6), squeeze=False, layout="constrained")
    for axis, (game, both) in zip(axes[0], curves.items(), strict=True):
        for (name, points), colour in zip(sorted(both.items()), ("#0072b2", "#d55e00"), strict=False):
            axis.plot(*smoothed(points), color=colour, label={"ppo": "PPO", "sv-dynamic": "SV-PPO"}.get(name, name))
        if game in scores:
            axis.axhline(scores[game]["random"]["mean"], color="0.5", linestyle="--", linewidth=1, label="random")
        axis.set_title(game)
        axis.set_xlabel("agent steps")
        axis.ticklabel_format(axis="x", style="sci", scilimits=(0, 0))
        axis.grid(alpha=0.3)
    axes[0, 0].set_ylabel("score of whole games")
    axes[0, 0].legend(frameon=False)
    figure.savefig(out / "learning.png", dpi=150)
    figure.savefig(out / "learning.svg", metadata={"Date": None})
    plt.close(figure)
    print("wrote learning.png and learning.svg", flush=True)
    return None
