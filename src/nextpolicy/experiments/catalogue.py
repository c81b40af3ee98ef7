"""Built-in suites, and `load`, which returns one of them or reads a TOML file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from nextpolicy.config import nearest
from nextpolicy.experiments.suite import Suite, SuiteError
from nextpolicy.experiments.toml import from_toml

_MINATAR = tuple(f"gymnax/{name}-MinAtar" for name in ("Asterix", "Breakout", "Freeway", "Seaquest", "SpaceInvaders"))
_BRAX = tuple(
    f"brax/{name}"
    for name in (
        *("inverted_pendulum", "humanoidstandup", "walker2d", "inverted_double_pendulum", "swimmer", "halfcheetah"),
        *("fast", "pusher", "hopper", "ant", "humanoid", "reacher"),
    )
)
_CHEAP = tuple(f"brax/{name}" for name in ("hopper", "inverted_pendulum", "inverted_double_pendulum", "reacher"))
_CRITERIA: dict[str, Any] = {  # the best of `nextpolicy study criteria`, with the advantages that are least biased
    "criterion": "any-signal",
    "advantage_kind": "vtrace",
    "k_min": 1,
    "least_ess": 0.97,
    "delta_tv": 0.07,
    "sweep": {"signal": ("stable-values", "ess-floor", "policy-step")},
}
_ATARI = tuple(
    f"atari/{name}"
    for name in (
        *("Amidar", "Asterix", "BattleZone", "Bowling", "Breakout", "DoubleDunk", "Freeway", "Frostbite"),
        *("KungFuMaster", "MsPacman", "NameThisGame", "Phoenix", "Qbert", "Riverraid", "Seaquest", "SpaceInvaders"),
    )
)

SUITES: dict[str, Suite] = {
    suite.name: suite
    for suite in (
        Suite("minatar", "five MinAtar games, 10M steps", _MINATAR, preset="corrected", seeds=16),
        Suite("minatar-paper", "the same with time limits as the paper reads them", _MINATAR, preset="paper", seeds=16),
        Suite(
            "minatar-tuning",
            "the gate's threshold and bounds on MinAtar; report it together with `minatar`, which has PPO",
            _MINATAR,
            preset="corrected",
            algo=("sv-dynamic",),
            seeds=3,
            fields={"sweep": {"delta_v": (0.003, 0.01, 0.03, 0.1), "k_max": (9, 17, 33)}},
        ),
        Suite("brax", "twelve continuous-control tasks, 50M steps, 12 seeds", _BRAX, preset="corrected", seeds=12),
        Suite("brax-paper", "the same with time limits and warm-up as in the paper", _BRAX, preset="paper", seeds=12),
        Suite(
            "brax-gate",
            "the gate without decay, and its upper bound, on four cheap tasks; report it with `brax`, which has PPO",
            _CHEAP,
            preset="corrected",
            algo=("sv-dynamic",),
            seeds=8,
            fields={"sweep": {"decay_fraction": (0.0,), "k_max": (8, 32)}},
        ),
        Suite(
            "minatar-criteria",
            "three criteria with V-trace advantages on MinAtar; report it together with `minatar`, which has PPO",
            _MINATAR,
            preset="corrected",
            algo=("sv-dynamic",),
            seeds=8,
            fields={**_CRITERIA, "decay_fraction": 0.0},
        ),
        Suite(
            "brax-criteria",
            "the same on four cheap tasks of Brax; report it together with `brax`, which has PPO",
            _CHEAP,
            preset="corrected",
            algo=("sv-dynamic",),
            seeds=8,
            fields={**_CRITERIA, "decay_fraction": 0.0, "k_max": 32},
        ),
        Suite(
            "brax-sac",
            "SAC and SV-SAC on four tasks, 400k steps, 8 seeds",
            tuple(f"brax/{name}" for name in ("reacher", "ant", "hopper", "halfcheetah")),
            preset="corrected",
            algo=("sac", "sv-sac-static", "sv-sac"),
            seeds=8,
            # A decay would make sv-sac plain SAC after the first 5 %; a round has 64 gradient steps.
            fields={"total_env_steps": 400_000, "replay_size": 400_000, "decay_fraction": 0.0, "k_max": 32},
        ),
        Suite(
            "minatar-pqn",
            "PQN and SV-PQN on five MinAtar games, 10M steps, 8 seeds",
            _MINATAR,
            preset="corrected",
            algo=("pqn", "sv-pqn-static", "sv-pqn"),
            seeds=8,
        ),
        Suite("atari", "sixteen Atari games, 200M frames, 5 seeds", _ATARI, preset="corrected", seeds=5),
        Suite(
            "classic",
            "classic control, 500k steps",
            tuple(f"gymnax/{name}" for name in ("CartPole-v1", "Acrobot-v1", "Pendulum-v1", "MountainCar-v0")),
            preset="default",
        ),
        Suite(
            "smoke",
            "three tiny environments as an end-to-end check; trains in seconds",
            ("probe/action-observation", "probe/action-continuous", "gymnax/CartPole-v1"),
            preset="default",
            seeds=3,
            evaluate_episodes=8,
            fields={
                "total_env_steps": 48 * 256,
                "num_envs": 8,
                "rollout_length": 32,
                "minibatch_size": 128,
                "hidden": (16, 16),
                "block_rounds": 8,
            },
        ),
    )
}


def load(name: str) -> Suite:
    """Return the built-in suite with this name, or read a TOML file."""
    if name.endswith(".toml"):
        return from_toml(Path(name))
    if name not in SUITES:
        hint = nearest(name, SUITES) or f"; expected one of {', '.join(SUITES)} or a .toml file"
        raise SuiteError(f"unknown suite {name!r}{hint}")
    return SUITES[name]
