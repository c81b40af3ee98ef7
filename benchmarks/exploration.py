"""Does exploration in the behavioural policy alone help? Four Rooms, PPO and static and dynamic SV-PPO.

    python benchmarks/exploration.py run [--seeds 32] [--rounds 195] [--mlp] [--only temperature] --out FILE
    python benchmarks/exploration.py table results/exploration/rows.csv     # made with --mlp

    temperature   beta = softmax(z / tau) collects data and is improved; the target is pi = softmax(z)
    count         the actor's advantage includes that of a bonus c / sqrt(n(s')); the critic sees the true reward alone
    entropy       a larger entropy_coef, which changes both policies: exploration without separation

Two tasks: with the time limit of 500 steps, a uniformly random policy finds the goal about once a round of 1024 steps;
with one of 40 steps, about once in 28 rounds. The first value of each experiment is the plain algorithm. An experiment
on one task is one program. `run` skips programs whose rows are in the file, and writes after each.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # members are already solved in parallel

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pandas as pd

from nextpolicy import algos
from nextpolicy.algos.base import Pace
from nextpolicy.algos.evidence import Targets
from nextpolicy.algos.ppo import PPO, Learner
from nextpolicy.algos.ppo_settings import PPOSettings
from nextpolicy.config import TrainConfig, presets
from nextpolicy.core import losses, returns
from nextpolicy.settings import Settings, pytree, setting
from nextpolicy.studies.criteria.study import outcome
from nextpolicy.studies.criteria.tables import interval
from nextpolicy.studies.four_rooms import group
from nextpolicy.tabular import four_rooms_mdp, solve
from nextpolicy.tabular.mdp import FloatArray
from nextpolicy.types import Array, Evidence, Metrics, Params, PolicySnapshot, Rollout, RunningStats

# Experiment -> prefix of its algorithms, its field, and the values compared, the plain one first.
EXPERIMENTS: dict[str, tuple[str, str, tuple[float, ...]]] = {
    "temperature": ("softened-", "temperature", (1.0, 1.25, 1.5, 2.0, 3.0)),
    "count": ("counting-", "bonus", (0.0, 0.01, 0.1, 1.0)),
    "entropy": ("", "entropy_coef", (0.01, 0.03, 0.1)),
}
TASKS: dict[str, dict[str, Any]] = {"limit-500": {}, "limit-40": {"time_limit": 40}}
ALGOS = ("sv-static", "sv-dynamic", "ppo")  # a program must not begin with PPO alone
STATES, START = len(four_rooms_mdp.cells), four_rooms_mdp.state_index(*four_rooms_mdp.START)
RATE = 0.5  # step size of the intrinsic critic, per round


@pytree
@dataclass(frozen=True)
class SoftenedSettings(PPOSettings):
    """Settings of `Softened`."""

    temperature: float = setting(1.0, "beta = softmax(z / temperature), pi = softmax(z).", traced=True, low=1e-3)


@pytree
@dataclass(frozen=True)
class CountingSettings(PPOSettings):
    """Settings of `Counting`."""

    bonus: float = setting(0.0, "c of the bonus c / sqrt(n(s')).", traced=True, low=0, high=1e6)


def scaled(params: Params, factor: Array | float) -> Params:
    """The parameters, with the actor's logits multiplied by `factor`: its head is one dense layer."""
    actor = params["actor"]["params"]
    return {**params, "actor": {"params": {**actor, "head": jax.tree.map(lambda x: x * factor, actor["head"])}}}


class Softened(PPO):
    """The behavioural policy is beta = softmax(z / tau), the target pi = softmax(z).

    The learner holds the parameters of beta, i.e. of z / tau, so that beta_0 is the same for every tau. Gradient steps
    are taken on the parameters of z. A snapshot of beta is also one of pi, whose logits are tau times as large.
    """

    name: ClassVar[str] = "softened"
    settings: ClassVar[type[Settings]] = SoftenedSettings
    variants: ClassVar[dict[str, Pace]] = {f"softened-{name}": pace for name, pace in PPO.variants.items()}

    def learn(
        self,
        settings: PPOSettings,
        learner: Learner,
        target: PolicySnapshot | None,
        rollout: Rollout,
        key: Array,
        progress: Array,
    ) -> tuple[Learner, Evidence, Metrics]:
        pi = self._sharpened(settings, self.behaviour(learner) if target is None else target)
        learned, evidence, metrics = super().learn(settings, learner, pi, rollout, key, progress)
        before, after = (self.networks.policy(p) for p in (pi, self._sharpened(settings, self.behaviour(learned))))
        jump = self.shards.mean(before(rollout.obs).kl(after(rollout.obs)), rollout.valid)
        return learned, evidence._replace(kl_jump=jump), metrics

    def improve(
        self,
        settings: PPOSettings,
        learner: Learner,
        rollout: Rollout,
        targets: Targets,
        learning_rate: Array,
        key: Array,
    ) -> tuple[Params, optax.OptState, Metrics]:
        sharp = learner._replace(params=scaled(learner.params, temperature(settings)))
        params, opt_state, fit = super().improve(settings, sharp, rollout, targets, learning_rate, key)
        return scaled(params, 1.0 / temperature(settings)), opt_state, fit

    def objective(
        self, settings: PPOSettings, learner: Learner, params: Params, obs: Array, sample: Any
    ) -> tuple[Array, Metrics]:
        """The loss of beta as a function of the parameters of z."""
        return super().objective(settings, learner, scaled(params, 1.0 / temperature(settings)), obs, sample)

    def _sharpened(self, settings: PPOSettings, beta: PolicySnapshot) -> PolicySnapshot:
        return beta._replace(params=scaled({"actor": beta.params}, temperature(settings))["actor"])


def temperature(settings: PPOSettings) -> float:
    """tau of `Softened`, inside a program an array []."""
    assert isinstance(settings, SoftenedSettings)
    return settings.temperature


class Counted(NamedTuple):
    """A `Learner` with visits n(s) and the intrinsic critic w(s), both [104]."""

    params: Params
    obs_stats: RunningStats | None
    opt_state: optax.OptState
    reward_stats: RunningStats | None
    visits: Array
    intrinsic: Array


class Counting(PPO):
    """PPO whose actor is also rewarded with b(s') = c / sqrt(n(s')); value targets and critic do not see b.

    n counts all visits of the member, this round's included. w(s) is learned from the lambda-returns of b under beta,
    which go on from the start when an episode ends (Burda et al., 2018). Otherwise the goal would be worth avoiding.
    """

    name: ClassVar[str] = "counting"
    settings: ClassVar[type[Settings]] = CountingSettings
    variants: ClassVar[dict[str, Pace]] = {f"counting-{name}": pace for name, pace in PPO.variants.items()}

    def init(self, key: Array) -> Any:
        return Counted(*super().init(key), jnp.zeros(STATES), jnp.zeros(STATES))

    def learn(
        self,
        settings: PPOSettings,
        learner: Any,
        target: PolicySnapshot | None,
        rollout: Rollout,
        key: Array,
        progress: Array,
    ) -> tuple[Any, Evidence, Metrics]:
        ones = jnp.ones_like(rollout.reward)
        learner = learner._replace(visits=learner.visits + self.sums(rollout.next_obs, ones))
        learned: Any
        learned, evidence, metrics = super().learn(settings, learner, target, rollout, key, progress)
        error = self.sums(rollout.obs, self.intrinsic_advantage(settings, learner, rollout))
        w = learner.intrinsic + RATE * error / jnp.maximum(self.sums(rollout.obs, ones), 1.0)
        return learned._replace(intrinsic=w), evidence, metrics

    def evaluate_target(
        self, settings: PPOSettings, learner: Any, rollout: Rollout, target_log_prob: Array | None
    ) -> Targets:
        """Those of the target without the bonus, except `advantage`: the normalised sum of both advantages."""
        targets = self._estimates(settings, learner, learner.params, rollout, target_log_prob)
        total = targets.advantage + self.intrinsic_advantage(settings, learner, rollout)
        normalised = losses.normalise_advantage(total, settings.advantage_norm, self.shards, rollout.valid)
        return targets._replace(advantage=normalised)

    def intrinsic_advantage(self, settings: PPOSettings, learner: Any, rollout: Rollout) -> Array:
        """GAE of b with the critic w, [T, N]."""
        assert isinstance(settings, CountingSettings)
        reward = settings.bonus / jnp.sqrt(learner.visits[rollout.next_obs])
        following = jnp.where(rollout.terminated | rollout.truncated, START, rollout.next_obs)
        discount, never, w = jnp.full_like(reward, settings.gamma), jnp.zeros(reward.shape, bool), learner.intrinsic
        return returns.gae(reward, discount, never, w[rollout.obs], w[following], lam=settings.lam)

    def sums(self, states: Array, x: Array) -> Array:
        """The sum of x [T, N] over the visits of each state, [104]; not by a scatter, whose order is random on GPUs."""
        here = states.reshape(-1, 1) == jnp.arange(STATES)[None]
        return jnp.asarray(self.shards.total(jnp.sum(jnp.where(here, x.reshape(-1, 1), 0.0), axis=0)))


def programs(seeds: int, rounds: int, **fields: Any) -> dict[str, dict[str, TrainConfig]]:
    """`experiment task` -> name of a setting -> its configuration, with further `fields` of all configurations."""
    found: dict[str, dict[str, TrainConfig]] = {}
    for task, options in TASKS.items():
        for experiment, (prefix, field, values) in EXPERIMENTS.items():
            configs = found.setdefault(f"{experiment} {task}", {})
            for algo in ALGOS:
                for value in values:
                    own: dict[str, Any] = {"algo": prefix + algo, field: value, "seeds": seeds, "env_options": options}
                    config = presets.build("four-rooms", **own, **fields)
                    name = f"{experiment}|{task}|{algo}|{value:g}"
                    configs[name] = config.replace(total_env_steps=rounds * config.batch_size)
    return found


def rows(configs: Mapping[str, TrainConfig]) -> list[dict[str, Any]]:
    """One row per member. Values and improvements are those of beta at temperature 1, which a user would deploy."""
    found = []
    for name, x in group.train(configs).items():
        experiment, task, algo, value = name.split("|")
        power, config = float(value) if experiment == "temperature" else 1.0, configs[name]
        best = float(solve.optimal(x.mdp).V @ x.mdp.start)
        for m, member in enumerate(x.members):
            one = {column: np.asarray(values[m], np.float64) for column, values in {**x.metrics, **x.exact}.items()}
            collecting = one["value_behaviour"]
            V, V_target = (
                solve.state_value(x.mdp, sharpened(p[m], power)) @ x.mdp.start for p in (x.run.behaviour, x.run.target)
            )
            one |= {"value_behaviour": V[1:], "improvement": V[1:] - V_target[:-1]}
            row = {"experiment": experiment, "task": task, "algo": algo, "value": float(value), "seed": member.seed}
            row |= {"torso": config.net.torso, "rounds": config.num_rounds, **outcome(best, one, config.batch_size)}
            row |= {"collecting_mean": float(collecting.mean()), "collecting_final": float(collecting[-1])}
            found.append(row | {column: float(one[column].mean()) for column in ("entropy", "kl_drift", "ratio_ess")})
    return found


def sharpened(policy: FloatArray, power: float) -> FloatArray:
    """policy^power, normalised over the last axis: softmax(power z) for softmax(z)."""
    return np.asarray(policy**power / (policy**power).sum(-1, keepdims=True))


def table(frame: pd.DataFrame) -> str:
    """Means over seeds +- standard errors, medians of steps, and differences from the plain value of equal seeds."""
    names = "task | algo | value | seeds | mean value | difference of means [95 %] | final value | steps to V* - .01 | "
    names += "failures | harmful | collecting: mean | final | entropy | drift"
    lines: list[str] = []
    for experiment, (_, field, (plain, *_)) in EXPERIMENTS.items():
        if not (frame["experiment"] == experiment).any():
            continue
        lines += [f"\n{experiment}: {field}\n", f"| {names} |", "|" + "---|" * 14]
        for (task, algo), ours in frame[frame["experiment"] == experiment].groupby(["task", "algo"], sort=False):
            theirs = ours[ours["value"] == plain].set_index("seed")["mean_value"]
            for value, mine in ours.groupby("value"):
                gap = interval((mine.set_index("seed")["mean_value"] - theirs).to_numpy(), np.mean)
                cells = [task, algo, f"{value:g}", str(len(mine)), _mean(mine["mean_value"])]
                cells.append("" if value == plain else f"{gap.estimate:+.4f} [{gap.low:+.4f}, {gap.high:+.4f}]")
                cells += [_mean(mine["final_value"]), f"{mine['steps_to_goal'].median():.0f}"]
                cells += [str(int(mine["failed"].sum())), _mean(100 * mine["harmful"], 1) + " %"]
                cells += [f"{mine[column].mean():.4f}" for column in ("collecting_mean", "collecting_final")]
                cells += [f"{mine['entropy'].mean():.3f}", f"{mine['kl_drift'].mean():.4f}"]
                lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines).strip()


def _mean(values: pd.Series[float], digits: int = 4) -> str:
    return f"{values.mean():.{digits}f} +- {values.sem():.{digits}f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = parser.add_subparsers(dest="part", required=True)
    runner = parts.add_parser("run")
    runner.add_argument("--seeds", type=int, default=32)
    runner.add_argument("--rounds", type=int, default=195)
    runner.add_argument("--minutes", type=float, default=np.inf, help="start no program after this time")
    runner.add_argument("--mlp", action="store_true", help="MLPs instead of CNNs: a tenth of the time on a CPU")
    runner.add_argument("--only", nargs="+", choices=EXPERIMENTS, default=EXPERIMENTS, help="experiments to train")
    runner.add_argument("--out", type=Path, required=True)
    parts.add_parser("table").add_argument("rows", type=Path)
    options = parser.parse_args()
    if options.part == "table":
        print(table(_read(parser, options.rows)))
        return
    if min(options.seeds, options.rounds) < 1:
        parser.error(f"seeds, rounds: expected at least 1, got {options.seeds} and {options.rounds}")
    for algorithm in (Softened, Counting):
        algos.register(algorithm)
    frame, started = _read(parser, options.out) if options.out.is_file() else pd.DataFrame(), time.monotonic()
    size = options.seeds, options.rounds, "mlp" if options.mlp else presets.FOUR_ROOMS["torso"]
    if len(frame) and (got := (frame["seed"].nunique(), int(frame["rounds"][0]), frame["torso"][0])) != size:
        parser.error(f"out: expected a file of {size} seeds, rounds and torso, got one of {got}; name another file")
    options.out.parent.mkdir(parents=True, exist_ok=True)
    fields = {"torso": "mlp", "hidden": (64, 64)} if options.mlp else {}
    for name, configs in programs(options.seeds, options.rounds, **fields).items():
        done = len(frame) and name in set(frame["experiment"] + " " + frame["task"])
        if done or name.split()[0] not in options.only or time.monotonic() - started > 60 * options.minutes:
            continue
        frame = pd.concat([frame, pd.DataFrame(rows(configs))], ignore_index=True)
        frame.to_csv(options.out, index=False, float_format="%.6g")
        print(f"{name}: {len(configs)} settings, {time.monotonic() - started:.0f} s", flush=True)
    print(table(frame) if len(frame) else "nothing was trained")


def _read(parser: argparse.ArgumentParser, path: Path) -> pd.DataFrame:
    try:
        frame = pd.read_csv(path)
    except (OSError, ValueError) as error:  # pandas' own errors are ValueErrors
        parser.error(f"{path}: expected rows of `run`, got a file that cannot be read ({error})")
    if missing := {"experiment", "task", "algo", "torso", "mean_value"} - set(frame):
        parser.error(f"{path}: expected rows of `run`, got no column {min(missing)}")
    return frame


if __name__ == "__main__":
    main()
