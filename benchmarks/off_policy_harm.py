"""How much does off-policy evaluation harm SV-PPO? Four Rooms, with parts of the evaluation replaced by the truth.

    python benchmarks/off_policy_harm.py run [--seeds 32] [--rounds 195] --out results/off-policy/harm.csv
    python benchmarks/off_policy_harm.py table results/off-policy/harm.csv

The critic, static SV-PPO and dynamic SV-PPO each:

    learned   as usual, from data of the behavioural policy
    fresh     trained on new data of the frozen target, as many steps again, without importance ratios
    exact     v = V^pi in the value targets and in the advantages

The advantage: the three kinds, V-trace with rho_max 1, 5, 100 and inf; and `true`, A^pi itself. Settings that differ
only in traced fields are one program. `run` skips programs whose rows are in the file, and writes after each.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path
from typing import Any, ClassVar

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # members are already solved in parallel

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd

from nextpolicy import algos
from nextpolicy.algos.base import Pace
from nextpolicy.algos.evidence import Targets
from nextpolicy.algos.ppo import PPO, Learner
from nextpolicy.algos.ppo_settings import PPOSettings
from nextpolicy.config import TrainConfig, presets
from nextpolicy.core import losses
from nextpolicy.envs.four_rooms import FourRooms
from nextpolicy.nets.heads import Categorical
from nextpolicy.studies.criteria.study import outcome
from nextpolicy.studies.criteria.tables import interval
from nextpolicy.studies.four_rooms import group
from nextpolicy.tabular import solve
from nextpolicy.types import Array, Evidence, Metrics, PolicySnapshot, Rollout

RHO_MAX = (1.0, 5.0, 100.0, np.inf)
KINDS = ("paper", "retrace", "vtrace")
ENV = FourRooms()


class FreshCritic(PPO):
    """The critic learns from new data of the frozen target; the actor from data of the behavioural policy, as usual."""

    name: ClassVar[str] = "fresh"
    variants: ClassVar[dict[str, Pace]] = {"fresh-static": "static", "fresh-dynamic": "dynamic"}

    def learn(
        self,
        settings: PPOSettings,
        learner: Learner,
        target: PolicySnapshot | None,
        rollout: Rollout,
        key: Array,
        progress: Array,
    ) -> tuple[Learner, Evidence, Metrics]:
        key_data, key_fit, key_rest = jax.random.split(key, 3)
        pi = self.behaviour(learner) if target is None else target
        fresh = self._collect(pi, rollout.reward.shape, key_data)
        learned, evidence, metrics = super().learn(settings, learner, target, rollout, key_rest, progress)
        on_policy = self.evaluate_target(settings, learner, fresh, None)
        rate = settings.learning_rate + progress * (settings.learning_rate_final - settings.learning_rate)
        params, opt_state, _ = self.improve(settings, learner, fresh, on_policy, rate, key_fit)
        swap = lambda new, old: {"actor": old["actor"], "critic": new["critic"]}  # noqa: E731
        state = learned.opt_state._replace(
            mu=swap(opt_state.mu, learned.opt_state.mu), nu=swap(opt_state.nu, learned.opt_state.nu)
        )
        return learned._replace(params=swap(params, learned.params), opt_state=state), evidence, metrics

    def _collect(self, pi: PolicySnapshot, shape: tuple[int, ...], key: Array) -> Rollout:
        """[T, N] steps of pi from new episodes."""
        steps, envs = shape
        key_reset, key_steps = jax.random.split(key)
        policy = self.networks.policy(pi)

        def step(carry: Any, key: Array) -> tuple[Any, Any]:
            state, obs = carry
            key_act, key_env = jax.random.split(key)
            dist = policy(obs)
            action = dist.sample(key_act)
            state, after = ENV.step(key_env, state, action)
            return (state, after.obs), (obs, action, after, dist, dist.log_prob(action))

        _, (obs, action, after, dist, log_prob) = jax.lax.scan(
            step, ENV.reset(key_reset, envs), jax.random.split(key_steps, steps)
        )
        return Rollout(
            obs,
            after.next_obs,
            action,
            after.reward,
            after.terminated,
            after.truncated,
            log_prob,
            dist,
            jnp.zeros(shape),
        )


class ExactCritic(PPO):
    """v = V^pi in value targets and advantages; the critic learns V^pi itself."""

    name: ClassVar[str] = "exact"
    variants: ClassVar[dict[str, Pace]] = {"exact-static": "static", "exact-dynamic": "dynamic"}

    def learn(
        self,
        settings: PPOSettings,
        learner: Learner,
        target: PolicySnapshot | None,
        rollout: Rollout,
        key: Array,
        progress: Array,
    ) -> tuple[Learner, Evidence, Metrics]:
        # One object per trace: what `evaluate_target` needs is kept beside it for the length of this call.
        self.pi = self.behaviour(learner) if target is None else target
        return super().learn(settings, learner, target, rollout, key, progress)

    def truth(self) -> tuple[Array, Array]:
        """V^pi [S] and A^pi [S, A]; the first is 0 in the goal."""
        dist = self.networks.policy(self.pi)(jnp.arange(ENV.mdp.states))
        assert isinstance(dist, Categorical)
        value = jnp.where(jnp.asarray(ENV.mdp.terminal), 0.0, ENV.state_value(jax.nn.softmax(dist.logits)))
        q = jnp.asarray(ENV.mdp.R, jnp.float32) + ENV.mdp.gamma * jnp.asarray(ENV.mdp.P, jnp.float32) @ value
        return value, q - value[:, None]

    def evaluate_target(
        self, settings: PPOSettings, learner: Learner, rollout: Rollout, target_log_prob: Array | None
    ) -> Targets:
        value, advantage = self.truth()
        exact = self._replace_critic(value)
        targets = exact._estimates(settings, learner, learner.params, rollout, target_log_prob)
        chosen = self.choose(targets.advantage, advantage[rollout.obs, rollout.action])
        normalised = losses.normalise_advantage(chosen, settings.advantage_norm, self.shards, rollout.valid)
        before = self.networks.value(learner.params, learner.obs_stats)(rollout.obs)
        return targets._replace(
            advantage=normalised, raw_advantage=chosen, value=before, value_target=value[rollout.obs]
        )

    def choose(self, estimate: Array, truth: Array) -> Array:
        """The advantage to learn from."""
        return estimate

    def _replace_critic(self, value: Array) -> PPO:
        """The same algorithm with a critic that is the table `value` [S]."""
        networks = self.networks._replace(value=lambda params, stats: lambda obs: value[obs])
        return PPO(self.static, self.parts._replace(networks=networks))


class TrueAdvantage(ExactCritic):
    """Learns from A^pi itself."""

    name: ClassVar[str] = "true"
    variants: ClassVar[dict[str, Pace]] = {"true-static": "static", "true-dynamic": "dynamic"}

    def choose(self, estimate: Array, truth: Array) -> Array:
        return truth


def programs(seeds: int, rounds: int) -> dict[str, dict[str, TrainConfig]]:
    """Program -> name of a setting -> its configuration."""
    found: dict[str, dict[str, TrainConfig]] = {}
    for critic in ("learned", "fresh", "exact", "true"):
        for kind in KINDS if critic != "true" else ("true",):
            for rho_max in RHO_MAX if kind == "vtrace" else (5.0,):
                prefix = {"learned": "sv"}.get(critic, critic)
                for pace in ("static", "dynamic"):
                    fields: dict[str, Any] = {"algo": f"{prefix}-{pace}", "seeds": seeds, "rho_max": rho_max}
                    config = presets.build(
                        "four-rooms", **fields, **({} if kind == "true" else {"advantage_kind": kind})
                    )
                    name = f"{critic}|{kind}|{rho_max:g}|{pace}"
                    found.setdefault(f"{critic} {kind}", {})[name] = config.replace(
                        total_env_steps=rounds * config.batch_size
                    )
    return found


def rows(configs: dict[str, TrainConfig]) -> list[dict[str, Any]]:
    """One row per member."""
    found = []
    for name, x in group.train(configs).items():
        critic, kind, rho_max, pace = name.split("|")
        best = float(solve.optimal(x.mdp).V @ x.mdp.start)
        for m, member in enumerate(x.members):
            one = {column: np.asarray(values[m], np.float64) for column, values in {**x.metrics, **x.exact}.items()}
            row = {"critic": critic, "advantage": kind, "rho_max": float(rho_max), "pace": pace, "seed": member.seed}
            drift = {"kl_drift": float(one["exact_kl_drift"].mean())}
            found.append(row | outcome(best, one, configs[name].batch_size) | drift)
    return found


def table(frame: pd.DataFrame) -> str:
    """Means over seeds with standard errors."""
    lines = ["| critic | advantage | rho_max | pace | seeds | mean value | final value | failures | harmful | drift |"]
    lines.append("|" + "---|" * 10)
    for keys, mine in frame.groupby(["critic", "advantage", "rho_max", "pace"], sort=False):
        error = mine["mean_value"].std() / np.sqrt(len(mine))
        cells = [*map(str, keys), str(len(mine)), f"{mine['mean_value'].mean():.4f} +- {error:.4f}"]
        cells += [f"{mine['final_value'].mean():.4f}", str(int(mine["failed"].sum()))]
        cells += [f"{100 * mine['harmful'].mean():.0f} %", f"{mine['kl_drift'].mean():.4f}"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


# Pairs (critic, advantage) whose mean values are compared over equal seeds, at rho_max 5.
PAIRS = (
    (("learned", "vtrace"), ("learned", "paper")),
    (("fresh", "vtrace"), ("learned", "vtrace")),
    (("exact", "vtrace"), ("learned", "vtrace")),
    (("exact", "vtrace"), ("exact", "paper")),
    (("true", "true"), ("exact", "vtrace")),
)


def differences(frame: pd.DataFrame) -> str:
    """Paired differences of the mean value over seeds, with 95 % bootstrap intervals."""
    values = (
        frame[frame["rho_max"] == 5.0].set_index(["critic", "advantage", "pace", "seed"])["mean_value"].sort_index()
    )
    lines = ["| mean value of | less that of | static | dynamic |", "|---|---|---|---|"]
    for one, other in PAIRS:
        gaps = [interval((values[(*one, p)] - values[(*other, p)]).to_numpy(), np.mean) for p in ("static", "dynamic")]
        lines.append(
            f"| {' '.join(one)} | {' '.join(other)} | {' | '.join(f'{a:.3f} [{b:.3f}, {c:.3f}]' for a, b, c in gaps)} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = parser.add_subparsers(dest="part", required=True)
    runner = parts.add_parser("run")
    runner.add_argument("--seeds", type=int, default=32)
    runner.add_argument("--rounds", type=int, default=195)
    runner.add_argument("--minutes", type=float, default=np.inf, help="start no program after this time")
    runner.add_argument("--out", type=Path, required=True)
    parts.add_parser("table").add_argument("rows", type=Path)
    options = parser.parse_args()
    if options.part == "table":
        frame = pd.read_csv(options.rows)
        print(f"{table(frame)}\n\n{differences(frame)}")
        return
    for algorithm in (FreshCritic, ExactCritic, TrueAdvantage):
        algos.register(algorithm)
    frame, started = pd.read_csv(options.out) if options.out.is_file() else pd.DataFrame(), time.monotonic()
    for name, configs in programs(options.seeds, options.rounds).items():
        done = set(frame["critic"] + " " + frame["advantage"]) if len(frame) else set()
        if name in done or time.monotonic() - started > 60 * options.minutes:
            continue
        frame = pd.concat([frame, pd.DataFrame(rows(configs))], ignore_index=True)
        frame.to_csv(options.out, index=False, float_format="%.6g")
        print(f"{name}: {len(configs)} settings, {time.monotonic() - started:.0f} s", flush=True)
    print(table(frame))


if __name__ == "__main__":
    main()
