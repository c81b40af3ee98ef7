"""A suite is data: environments x algorithms x seeds on a preset. Each environment is one population in one folder.

`load` takes the name of a suite below or a TOML file of one's own; `tasks` turns it into what engines run; `state_of`
reads from a task's folder how far it is, whoever ran it and however that ended.
"""

from __future__ import annotations

import contextlib
import re
import time
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from nextpolicy import presets
from nextpolicy.config import ALGOS, TrainConfig, nearest, whole
from nextpolicy.envs import registry
from nextpolicy.run.folder import RunError, RunFolder, is_held

EVALUATION = "evaluation.json"  # in a run folder: the target policy over whole episodes, written once a run is finished


class SuiteError(ValueError):
    """A suite that cannot be run as asked: one line."""


@dataclass(frozen=True)
class Suite:
    """`fields` go to every environment by their flat names, `environment_fields[env]` to one, later ones winning."""

    name: str
    about: str
    environments: tuple[str, ...]
    preset: str | None = None
    algo: tuple[str, ...] = ALGOS
    seeds: int | tuple[int, ...] = 8
    evaluate_episodes: int = 32
    fields: Mapping[str, Any] = field(default_factory=dict)
    environment_fields: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def config(self, env: str, seeds: int | None = None) -> TrainConfig:
        """The configuration of one environment's population."""
        fields = {**self.fields, **self.environment_fields.get(env, {})}
        own = {"algo": self.algo, "seeds": self.seeds if seeds is None else seeds}
        return presets.build(env, preset=self.preset, **own, **fields)


_MINATAR = tuple(f"gymnax/{name}-MinAtar" for name in ("Asterix", "Breakout", "Freeway", "Seaquest", "SpaceInvaders"))
_BRAX = (
    "inverted_pendulum humanoidstandup walker2d inverted_double_pendulum swimmer halfcheetah fast pusher hopper ant "
    "humanoid reacher"
)
_ATARI = (
    "Amidar Asterix BattleZone Bowling Breakout DoubleDunk Freeway Frostbite KungFuMaster MsPacman NameThisGame "
    "Phoenix Qbert Riverraid Seaquest SpaceInvaders"
)

SUITES: dict[str, Suite] = {
    suite.name: suite
    for suite in (
        Suite("minatar", "five MinAtar games, 10M steps", _MINATAR, preset="paper"),
        Suite(
            "minatar-tuning",
            "the gate's threshold and bounds on MinAtar; report it beside `minatar`, which has PPO",
            _MINATAR,
            preset="paper",
            algo=("sv-dynamic",),
            seeds=3,
            fields={"sweep": {"delta_v": (0.003, 0.01, 0.03, 0.1), "k_max": (9, 17, 33)}},
        ),
        Suite(
            "brax",
            "twelve continuous-control tasks, 50M steps, 12 seeds",
            tuple(f"brax/{name}" for name in _BRAX.split()),
            preset="paper",
            seeds=12,
        ),
        Suite(
            "atari",
            "sixteen Atari games, 200M frames, 5 seeds",
            tuple(f"atari/{name}" for name in _ATARI.split()),
            preset="paper",
            seeds=5,
        ),
        Suite(
            "classic",
            "classic control, 500k steps",
            tuple(f"gymnax/{name}" for name in ("CartPole-v1", "Acrobot-v1", "Pendulum-v1", "MountainCar-v0")),
            preset="default",
        ),
        Suite(
            "smoke",
            "three tiny environments: does everything work together? seconds of training",
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
    """The suite of this name, or of this TOML file."""
    if name.endswith(".toml"):
        return from_toml(Path(name))
    if name not in SUITES:
        hint = nearest(name, SUITES) or f"; takes one of {', '.join(SUITES)} or a .toml file"
        raise SuiteError(f"unknown suite {name!r}{hint}")
    return SUITES[name]


_KEYS = ("name", "about", "environments", "preset", "algo", "seeds", "evaluate_episodes", "fields", "environment")


def from_toml(path: Path) -> Suite:
    """A user's suite; every fault is one line that names the file."""
    try:
        with open(path, "rb") as file:
            raw = tomllib.load(file)
    except OSError as error:
        raise SuiteError(f"suite: {path} cannot be read ({error.strerror})") from None
    except (ValueError, RecursionError) as error:  # what is not TOML or UTF-8, or has a number of too many digits
        raise SuiteError(f"suite: {path} is not TOML ({error})") from None
    try:
        return _validated(raw, path.stem)
    except ValueError as error:
        raise SuiteError(f"suite: {path}: {error}") from None


def _validated(raw: dict[str, Any], stem: str) -> Suite:
    for key in raw:
        if key not in _KEYS:
            raise SuiteError(f"unknown key {key!r}{nearest(key, list(_KEYS)) or '; takes ' + ', '.join(_KEYS)}")
    environments = raw.get("environments")
    if not isinstance(environments, list) or not environments or not all(isinstance(e, str) for e in environments):
        raise SuiteError(f"environments: got {environments!r}, takes a list of one or more environment ids")
    if len(set(map(slug, environments))) != len(environments):
        raise SuiteError("environments: got one twice, takes each once")
    for env in environments:
        _check_prefix(env)
    name = raw.get("name", stem)
    if not isinstance(name, str) or not re.fullmatch(r"[^/\\\0]*[^/\\\0.][^/\\\0]*", name):
        raise SuiteError(f"name: got {name!r}, takes a word that can be a folder's name")
    episodes = raw.get("evaluate_episodes", 32)
    episodes = whole("evaluate_episodes", episodes, 0, 1_000_000)
    for table in ("fields", "environment"):
        if not isinstance(raw.get(table, {}), dict):
            raise SuiteError(f"{table}: got {raw[table]!r}, takes a table")
    own = raw.get("environment", {})
    for env, fields in own.items():
        if env not in environments:
            raise SuiteError(f"environment.{env!r}: not among the environments{nearest(env, environments)}")
        if not isinstance(fields, dict):
            raise SuiteError(f"environment.{env!r}: got {fields!r}, takes a table of fields")
    for where in (raw.get("fields", {}), *own.values()):
        for key in ("algo", "seeds", "preset", "env"):
            if key in where:
                raise SuiteError(f"{key}: is a key of the suite itself, not of its fields")
    algo, seeds, preset = raw.get("algo", list(ALGOS)), raw.get("seeds", 8), raw.get("preset")
    if not isinstance(algo, str | list) or not algo:
        raise SuiteError(f"algo: got {algo!r}, takes one or a list of {', '.join(ALGOS)}")
    if not isinstance(preset, str | None):
        raise SuiteError(f"preset: got {preset!r}, takes a name")
    suite = Suite(
        name=name,
        about=str(raw.get("about", "")),
        environments=tuple(environments),
        preset=preset,
        algo=(algo,) if isinstance(algo, str) else tuple(algo),
        seeds=tuple(seeds) if isinstance(seeds, list) else seeds,
        evaluate_episodes=episodes,
        fields=raw.get("fields", {}),
        environment_fields=own,
    )
    for env in suite.environments:  # a wrong field or value is said now, not hours into the suite
        suite.config(env)
    return suite


def _check_prefix(env: str) -> None:
    """An id that fits no backend is no environment, whatever is installed."""
    if registry.find(env) is None or not slug(registry.name_of(env) or env):
        takes = ", ".join(backend.form for backend in registry.backends().values())
        raise SuiteError(f"environments: got {env!r}, takes ids such as {takes}")


def slug(env: str) -> str:
    """The folder name of an environment: brax/ant -> brax-ant."""
    return re.sub(r"[^A-Za-z0-9._]+", "-", env).strip("-.")


@dataclass(frozen=True)
class Task:
    """One environment's population and where it goes."""

    env: str
    config: TrainConfig
    path: str
    evaluate_episodes: int


def tasks(suite: Suite, out: str | Path, *, seeds: int | None = None, only: tuple[str, ...] = ()) -> list[Task]:
    """What there is to run, in the suite's order; a folder that holds something else is refused at once."""
    for env in only:
        if env not in suite.environments:
            raise SuiteError(f"only: got {env!r}, takes one of {suite.name}'s{nearest(env, [*suite.environments])}")
    chosen = [env for env in suite.environments if not only or env in only]
    made = [Task(e, suite.config(e, seeds), str(Path(out) / slug(e)), suite.evaluate_episodes) for e in chosen]
    for task in made:
        check_folder(task)
    return made


def check_folder(task: Task) -> None:
    """Refuse a folder whose run has another configuration: its rows would be of two kinds."""
    if not (Path(task.path) / "config.json").is_file():
        return
    there, wanted = RunFolder.open(task.path).config().flat(), task.config.flat()
    for name, value in wanted.items():
        if there[name] != value:
            raise SuiteError(
                f"suite: {task.path} holds a run with {name} = {there[name]}, this suite asks for {value}; "
                f"take another --out"
            )


def check_environments(suite: Suite) -> None:
    """Find unknown ids before anything runs, as far as the installed packages tell."""
    from nextpolicy.envs import build

    for env in suite.environments:
        with contextlib.suppress(ImportError):
            build.check_id(env)


class State(NamedTuple):
    """done | running | stopped (by a budget) | cut off | failed | left; `reason` says why, or what is left."""

    state: str
    rounds_done: int
    rounds: int
    reason: str = ""


def state_of(task: Task) -> State:
    """How far a task is, from its folder alone."""
    rounds = task.config.num_rounds
    folder = RunFolder(Path(task.path))
    if not (folder.path / "config.json").is_file():
        return State("left", 0, rounds)
    status = folder.status()
    state, reason, done = status.get("state"), str(status.get("reason", "")), status.get("rounds_done")
    done = done if isinstance(done, int) and 0 <= done <= rounds else 0
    if is_held(folder.path):
        return State("running", done, rounds)
    if state == "finished" and is_evaluated(task):
        return State("done", rounds, rounds)
    if state == "failed" or (state == "finished" and reason):  # the evaluation failed
        return State("failed", done, rounds, reason)
    if state == "finished":
        return State("stopped", rounds, rounds, "trained, not evaluated yet")
    return State("stopped" if state == "stopped" else "cut off", done, rounds)


def is_trained(task: Task) -> bool:
    """Whether the last round is done."""
    return RunFolder(Path(task.path)).status().get("state") == "finished"


def is_evaluated(task: Task) -> bool:
    """Whether the target policy has been evaluated, where the suite asks for it."""
    return not task.evaluate_episodes or (Path(task.path) / EVALUATION).is_file()


def hold(path: Path) -> RunFolder:
    """The run folder, held. Whoever asks `is_held` has the lock for an instant, so one refusal does not count."""
    for _ in range(4):
        try:
            return RunFolder.open(path).locked()
        except RunError:
            time.sleep(0.05)
    return RunFolder.open(path).locked()


def open_folder(task: Task) -> tuple[RunFolder, bool]:
    """The task's folder, held, and whether there is a run in it to go on with."""
    path = Path(task.path)
    if (path / "config.json").is_file():
        return hold(path), True
    return RunFolder.create(path, task.config, {"custom": []}), False
