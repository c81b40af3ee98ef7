"""What a run is made of: frozen, validated dataclasses whose field names are unique, so that one flat set of
names serves Python (`train(..., num_envs=64)`), the command line (`--num-envs 64`) and the JSON in a run folder.
"""

from __future__ import annotations

import dataclasses
import difflib
import json
import math
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from nextpolicy.core.gate import GateParams

ALGOS = ("ppo", "sv-static", "sv-dynamic")


class ConfigError(ValueError):
    """A setting that cannot be: one line saying what was wrong, what was got and what is taken."""


def _field(default: Any, help_text: str, *, traced: bool = False) -> Any:
    """A field with its one-sentence explanation; `traced` ones may differ between members of one population."""
    metadata = {"help": help_text, "traced": traced}
    if isinstance(default, dict):
        return field(default_factory=lambda: dict(default), metadata=metadata)
    return field(default=default, metadata=metadata)


@dataclass(frozen=True)
class EnvConfig:
    """Which environment, and how many of it."""

    env: str = _field(
        "four-rooms", "Environment id with its suite, e.g. gymnax/CartPole-v1; `nextpolicy envs` lists them."
    )
    env_options: dict[str, Any] = _field({}, "Options of the environment, e.g. backend=spring or noise=success.")
    num_envs: int = _field(64, "Environments stepped side by side by each member.")
    warmup_steps: int = _field(
        0, "Random-action steps before training that spread episodes out and fill the statistics."
    )


@dataclass(frozen=True)
class NetConfig:
    """Actor and critic."""

    torso: Literal["auto", "mlp", "small-cnn", "nature", "impala"] = _field(
        "auto", "Network that reads observations; auto goes by their shape."
    )
    policy: Literal["auto", "categorical", "gaussian"] = _field(
        "auto", "Distribution of actions; auto goes by the environment, and another than it needs is refused."
    )
    hidden: tuple[int, ...] = _field((64, 64), "Widths of the dense layers.")
    activation: Literal["tanh", "relu", "silu"] = _field("tanh", "Activation of the dense layers.")
    layer_norm: bool = _field(
        False,
        "LayerNorm after each dense layer and after small-cnn's convolution; those of impala and nature have none.",
    )
    shared_torso: bool = _field(False, "Whether the critic reads the actor's torso instead of its own.")
    log_std_init: float = _field(0.0, "Initial log standard deviation of continuous actions.")
    compute_dtype: Literal["auto", "float32", "bfloat16"] = _field(
        "auto",
        "Type of activations; auto is bfloat16 in the fused MLP of NVIDIA GPUs, else float32, as parameters are.",
    )


@dataclass(frozen=True)
class PPOConfig:
    """Collection, estimation and the PPO objective."""

    rollout_length: int = _field(128, "Steps each environment takes per round.")
    epochs: int = _field(4, "Passes over a round's batch.")
    minibatch_size: int = _field(1024, "Samples per gradient step; must divide num_envs * rollout_length.")
    learning_rate: float = _field(3e-4, "Adam's learning rate at the start.", traced=True)
    learning_rate_final: float = _field(
        0.0, "Learning rate at the end; it falls linearly with the rounds.", traced=True
    )
    gamma: float = _field(0.99, "Discount factor.", traced=True)
    lam: float = _field(0.95, "Trace decay of GAE, Retrace and V-trace.", traced=True)
    clip: float = _field(0.2, "Clip range of the ratio of successive behavioural policies.", traced=True)
    value_clip: float = _field(
        0.2, "How far a value may move per round before its loss is clipped; inf for no clip.", traced=True
    )
    value_coef: float = _field(0.5, "Weight of the value loss.", traced=True)
    entropy_coef: float = _field(0.01, "Weight of the entropy bonus.", traced=True)
    max_grad_norm: float = _field(0.5, "Global norm that gradients are clipped to.", traced=True)
    rho_min: float = _field(0.0, "Lower clip of the importance ratio in V-trace.", traced=True)
    rho_max: float = _field(5.0, "Upper clip of the importance ratio in V-trace.", traced=True)
    adam_eps: float = _field(1e-5, "Adam's epsilon.")
    advantage_kind: Literal["printed", "next", "vtrace"] = _field(
        "printed",
        "Off-policy advantage: the paper's equation, the same with the next step's trace (Retrace on state values, "
        "biased too), or V-trace.",
    )
    advantage_norm: Literal["scale", "standardise", "none"] = _field(
        "scale", "Divide advantages by their standard deviation, also centre them, or neither."
    )
    truncation: Literal["bootstrap", "terminal"] = _field(
        "bootstrap", "Whether a time limit bootstraps from the true successor or counts as death."
    )
    diff_kind: Literal["target", "network"] = _field("target", "What the gate watches: |y - v_k| or |v_{k+1} - v_k|.")
    normalise_obs: bool = _field(False, "Whether observations are normalised by running statistics.")
    normalise_reward: bool = _field(
        False, "Whether rewards are divided by the running deviation of the discounted return."
    )


@dataclass(frozen=True)
class GateConfig:
    """When the target policy follows the behavioural one."""

    algo: tuple[str, ...] = _field(
        ("sv-dynamic",), "Algorithm, or several to train side by side: ppo, sv-static, sv-dynamic."
    )
    delta_v: float = _field(
        0.05, "sv-dynamic: values are stable when their mean change is at most this share of their size.", traced=True
    )
    k_min: int = _field(2, "sv-dynamic: stable rounds in a row that open the gate.", traced=True)
    k_max: int = _field(16, "sv-dynamic: rounds after which the gate opens in any case.", traced=True)
    decay_fraction: float = _field(
        0.0, "sv-dynamic: share of training over which k_min falls to 1; 0 for no decay.", traced=True
    )
    decay_k_max: bool = _field(False, "sv-dynamic: whether k_max falls too.", traced=True)
    static_k: int = _field(8, "sv-static: rounds between target updates.", traced=True)


@dataclass(frozen=True)
class RunConfig:
    """How long, how many, where to."""

    total_env_steps: int = _field(1_000_000, "Environment steps per member; rounded down to whole rounds.")
    seeds: tuple[int, ...] = _field((0,), "Seeds: a number N means 0 to N-1; several numbers are taken as they are.")
    sweep: dict[str, tuple[float, ...]] = _field(
        {}, "Traced fields to vary, e.g. learning_rate=1e-4,3e-4; every combination becomes a member."
    )
    population: Literal["auto", "vmap", "map"] = _field(
        "auto", "Members side by side (vmap) or one after another (map); auto goes by the device."
    )
    devices: int = _field(0, "Local devices to spread over; 0 takes all of them.")
    block_rounds: int = _field(0, "Rounds between visits of the host; 0 aims at a few seconds.")
    tensorboard: bool = _field(False, "Whether metrics also go to TensorBoard files in the run folder.")
    wandb: str = _field("", "Weights & Biases project that metrics also go to; empty for none.")
    keep_checkpoints: int = _field(2, "Checkpoints kept; the newest whole one is resumed from.")


@dataclass(frozen=True)
class Member:
    """One of a population: a seed, an algorithm, and its values of the swept fields."""

    seed: int
    algo: str
    overrides: tuple[tuple[str, float], ...] = ()

    @property
    def variant(self) -> str:
        """The algorithm, with what was swept: `sv-dynamic[lam=0.9]`."""
        swept = ",".join(f"{name}={value:g}" for name, value in self.overrides)
        return f"{self.algo}[{swept}]" if swept else self.algo


@dataclass(frozen=True)
class TrainConfig:
    """Everything a run depends on."""

    environment: EnvConfig = field(default_factory=EnvConfig)
    net: NetConfig = field(default_factory=NetConfig)
    ppo: PPOConfig = field(default_factory=PPOConfig)
    gate: GateConfig = field(default_factory=GateConfig)
    run: RunConfig = field(default_factory=RunConfig)

    def __post_init__(self) -> None:
        _validate(self)

    @property
    def batch_size(self) -> int:
        return self.environment.num_envs * self.ppo.rollout_length

    @property
    def num_rounds(self) -> int:
        return self.run.total_env_steps // self.batch_size

    @property
    def minibatches(self) -> int:
        return self.batch_size // self.ppo.minibatch_size

    def members(self) -> list[Member]:
        """Algorithms x combinations of swept values x seeds, in that order."""
        combinations: list[tuple[tuple[str, float], ...]] = [()]
        for name, values in self.run.sweep.items():
            combinations = [(*c, (name, v)) for c in combinations for v in values]
        return [Member(s, a, c) for a in self.gate.algo for c in combinations for s in self.run.seeds]

    def value(self, name: str, member: Member | None = None) -> Any:
        """A field by its flat name, as `member` has it."""
        if member is not None and name in dict(member.overrides):
            return dict(member.overrides)[name]
        return getattr(getattr(self, FIELDS[name].group), name)

    def gate_params(self, member: Member) -> GateParams:
        """The numbers that make this member's algorithm."""
        if member.algo == "ppo":
            return GateParams.ppo()
        if member.algo == "sv-static":
            return GateParams.static(int(self.value("static_k", member)))
        names = ("delta_v", "k_min", "k_max", "decay_fraction", "decay_k_max")
        return GateParams(*(self.value(n, member) for n in names))

    def replace(self, **changes: Any) -> TrainConfig:
        """A copy with fields changed by their flat names; values may be strings as on a command line."""
        groups: dict[str, dict[str, Any]] = {}
        for name, raw in changes.items():
            info = known_field(name)
            groups.setdefault(info.group, {})[name] = convert(info, raw)
        return dataclasses.replace(self, **{g: dataclasses.replace(getattr(self, g), **c) for g, c in groups.items()})

    def flat(self) -> dict[str, Any]:
        """Every field by its flat name."""
        return {name: self.value(name) for name in FIELDS}

    def to_json(self) -> str:
        """Flat JSON; infinities as strings, since JSON has none."""

        def plain(value: Any) -> Any:
            if isinstance(value, dict):
                return {k: plain(v) for k, v in value.items()}
            if isinstance(value, (tuple, list)):
                return [plain(v) for v in value]
            return str(value) if isinstance(value, float) and not math.isfinite(value) else value

        return json.dumps(plain(self.flat()), indent=2, allow_nan=False)

    @classmethod
    def from_flat(cls, values: Mapping[str, Any]) -> TrainConfig:
        """The configuration whose `flat()` this is."""
        return cls().replace(**dict(values))


@dataclass(frozen=True)
class FieldInfo:
    """A field as the command line and error messages need it."""

    name: str
    group: str
    annotation: Any
    help: str
    traced: bool


def _fields() -> Iterator[FieldInfo]:
    for group in dataclasses.fields(TrainConfig):
        section = typing.get_type_hints(TrainConfig)[group.name]
        hints = typing.get_type_hints(section)
        for f in dataclasses.fields(section):
            yield FieldInfo(f.name, group.name, hints[f.name], f.metadata["help"], f.metadata["traced"])


FIELDS: dict[str, FieldInfo] = {info.name: info for info in _fields()}


def nearest(got: str, known: Mapping[str, Any] | list[str]) -> str:
    """`; did you mean 'x'?` where something is close, else nothing."""
    close = difflib.get_close_matches(got, list(known), n=3, cutoff=0.5)
    return f"; did you mean {' or '.join(map(repr, close))}?" if close else ""


def known_field(name: str) -> FieldInfo:
    """The field of this name, or an error that suggests the nearest."""
    if name not in FIELDS:
        raise ConfigError(f"unknown field {name!r}{nearest(name, FIELDS) or '; `nextpolicy train --help` lists them'}")
    return FIELDS[name]


def convert(info: FieldInfo, raw: Any) -> Any:
    """`raw` as the field's type, from Python, JSON or command-line text."""
    try:
        return _convert(info.annotation, raw, info)
    except ConfigError:
        raise
    except (ValueError, TypeError, OverflowError):
        raise ConfigError(f"{info.name}: got {raw!r}, takes {describe(info)}") from None


def describe(info: FieldInfo) -> str:
    """The values a field takes, in words."""
    if info.name == "seeds":
        return "a number of seeds or several seeds"
    if info.name == "algo":
        return f"one or several of {', '.join(ALGOS)}"
    if typing.get_origin(info.annotation) is Literal:
        return "one of " + ", ".join(typing.get_args(info.annotation))
    if info.annotation is bool:
        return "true or false"
    if typing.get_origin(info.annotation) is tuple:
        return "whole numbers separated by commas"
    if typing.get_origin(info.annotation) is dict:
        return "name=value pairs separated by spaces"
    return {int: "a whole number", float: "a number", str: "text"}[info.annotation]


def _convert(annotation: Any, raw: Any, info: FieldInfo) -> Any:
    origin = typing.get_origin(annotation)
    if info.name == "seeds":
        return _seeds(raw)
    if info.name == "sweep":
        return _sweep(raw)
    if origin is Literal:
        choices = list(typing.get_args(annotation))
        if raw not in choices:
            raise ConfigError(f"{info.name}: got {raw!r}, takes {describe(info)}{nearest(str(raw), choices)}")
        return raw
    if origin is tuple:
        inner = typing.get_args(annotation)[0]
        items = raw.split(",") if isinstance(raw, str) else raw if isinstance(raw, (list, tuple)) else [raw]
        return tuple(_convert(inner, item, info) for item in items)
    if origin is dict:
        return _pairs(raw)
    if annotation is bool:
        return _boolean(raw)
    if annotation is int:
        if isinstance(raw, bool) or float(raw) != int(float(raw)):
            raise ValueError
        return int(raw) if isinstance(raw, int) else int(float(raw))
    if annotation is float:
        if isinstance(raw, bool):
            raise ValueError
        return float(raw)
    return str(raw)


def _boolean(raw: Any) -> bool:
    table = {"true": True, "false": False, "yes": True, "no": False, "1": True, "0": False}
    text = str(raw).lower()
    if text not in table:
        raise ValueError
    return table[text]


def _seeds(raw: Any) -> tuple[int, ...]:
    if isinstance(raw, str):
        raw = [int(x) for x in raw.split(",")] if "," in raw else int(raw)
    if isinstance(raw, int) and not isinstance(raw, bool):
        if raw < 1:
            raise ConfigError(f"seeds: got {raw}, takes a number of seeds of at least 1, or several seeds")
        return tuple(range(raw))
    return tuple(int(x) for x in raw)


def _pairs(raw: Any) -> dict[str, Any]:
    if isinstance(raw, Mapping):
        return {str(k): v for k, v in raw.items()}
    items = [raw] if isinstance(raw, str) else list(raw)
    pairs = [part.split("=", 1) for item in items for part in item.split()]
    return {name: _literal(value) for name, value in pairs}


def _literal(text: str) -> Any:
    """Numbers and true/false in an option's text as what they are."""
    for parse in (int, float):
        try:
            return parse(text)
        except ValueError:
            continue
    return {"true": True, "false": False, "none": None}.get(text.lower(), text)


def _sweep(raw: Any) -> dict[str, tuple[float, ...]]:
    swept: dict[str, tuple[float, ...]] = {}
    for name, values in _pairs(raw).items():
        info = known_field(name)
        if not info.traced:
            names = ", ".join(n for n, i in FIELDS.items() if i.traced)
            raise ConfigError(f"sweep: got {name!r}, takes fields that may differ inside one program: {names}")
        parts = (
            values.split(",") if isinstance(values, str) else values if isinstance(values, (list, tuple)) else [values]
        )
        swept[name] = tuple(_convert(info.annotation, v, info) for v in parts)
    return swept


_RANGES: dict[str, tuple[float, float, str]] = {
    "num_envs": (1, math.inf, "at least 1"),
    "rollout_length": (1, math.inf, "at least 1"),
    "epochs": (1, math.inf, "at least 1"),
    "minibatch_size": (1, math.inf, "at least 1"),
    "warmup_steps": (0, math.inf, "at least 0"),
    "total_env_steps": (1, math.inf, "at least 1"),
    "learning_rate": (0, math.inf, "at least 0"),
    "learning_rate_final": (0, math.inf, "at least 0"),
    "gamma": (0, math.nextafter(1, 0), "in [0, 1)"),
    "lam": (0, 1, "in [0, 1]"),
    "clip": (0, math.inf, "at least 0"),
    "value_clip": (0, math.inf, "at least 0"),
    "value_coef": (0, math.inf, "at least 0"),
    "max_grad_norm": (0, math.inf, "at least 0"),
    "rho_min": (0, math.inf, "at least 0"),
    "rho_max": (0, math.inf, "at least 0"),
    "adam_eps": (0, math.inf, "at least 0"),
    "delta_v": (0, math.inf, "at least 0"),
    "k_min": (1, math.inf, "at least 1"),
    "k_max": (1, math.inf, "at least 1"),
    "static_k": (1, math.inf, "at least 1"),
    "decay_fraction": (0, 1, "in [0, 1]"),
    "devices": (0, math.inf, "at least 0"),
    "block_rounds": (0, math.inf, "at least 0"),
    "keep_checkpoints": (1, math.inf, "at least 1"),
}


def _validate(config: TrainConfig) -> None:
    """Everything that can be known to be wrong before an environment is made."""
    for name, (low, high, words) in _RANGES.items():
        for got in (config.value(name), *config.run.sweep.get(name, ())):
            if not low <= got <= high:
                raise ConfigError(f"{name}: got {got:g}, takes a number {words}")
    if not config.net.hidden or min(config.net.hidden) < 1:
        raise ConfigError(f"hidden: got {config.net.hidden}, takes one or more widths of at least 1")
    if not config.run.seeds or min(config.run.seeds) < 0 or max(config.run.seeds) >= 2**32:
        raise ConfigError(f"seeds: got {config.run.seeds}, takes one or more whole numbers from 0 to 2^32 - 1")
    for algo in config.gate.algo:
        if algo not in ALGOS:
            raise ConfigError(
                f"algo: got {algo!r}, takes one or several of {', '.join(ALGOS)}{nearest(algo, list(ALGOS))}"
            )
    if len(set(config.members())) != len(config.members()):
        raise ConfigError("seeds, algo, sweep: got a repeated value, takes each once")
    if config.batch_size % config.ppo.minibatch_size:
        raise ConfigError(
            f"minibatch_size: got {config.ppo.minibatch_size}, takes a divisor of the batch, "
            f"num_envs {config.environment.num_envs} x rollout_length {config.ppo.rollout_length} = {config.batch_size}"
        )
    if config.num_rounds < 1:
        raise ConfigError(
            f"total_env_steps: got {config.run.total_env_steps}, takes at least one round of "
            f"num_envs x rollout_length = {config.batch_size} steps"
        )
    for member in config.members():
        k_min, k_max = config.value("k_min", member), config.value("k_max", member)
        if member.algo == "sv-dynamic" and k_min > k_max:
            raise ConfigError(f"k_min: got {k_min:g} with k_max {k_max:g}, takes a number of at most k_max")
        rho_min, rho_max = config.value("rho_min", member), config.value("rho_max", member)
        if rho_min > rho_max:
            raise ConfigError(f"rho_min: got {rho_min:g} with rho_max {rho_max:g}, takes a number of at most rho_max")
