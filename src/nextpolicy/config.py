"""What a run is made of: frozen, validated dataclasses whose field names are unique, so that one flat set of
names serves Python (`train(..., num_envs=64)`), the command line (`--num-envs 64`) and the JSON in a run folder.
"""

from __future__ import annotations

import dataclasses
import difflib
import itertools
import json
import math
import operator
import typing
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from nextpolicy.core.gate import GateParams

ALGOS = ("ppo", "sv-static", "sv-dynamic")
MOST_MEMBERS = 10_000  # of one population; counted before any is made, so that no number of seeds fills the memory
MOST_SEED = 2**32 - 1


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
    minibatch_size: int = _field(
        1024,
        "Samples per gradient step; must divide num_envs * rollout_length. Where a preset's does not, the number of "
        "minibatches is kept instead.",
    )
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
    population: Literal["auto", "vmap", "map", "force-vmap"] = _field(
        "auto",
        "Members side by side (vmap) or one after another (map); auto goes by the device. "
        "vmap is an error on a CPU, where it can hang; force-vmap takes the risk.",
    )
    devices: int = _field(0, "Local devices to spread over; 0 takes all of them.")
    block_rounds: int = _field(
        0, "Rounds between visits of the host, which comes after 512 of them at the latest; 0 aims at a few seconds."
    )
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

    def replace(self, /, **changes: Any) -> TrainConfig:
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


# Our field for what Stable-Baselines3, CleanRL, PureJaxRL, rejax and Brax call it.
OTHER_NAMES: dict[str, str] = {
    theirs: ours
    for ours, names in {
        "env": "env_id env_name",
        "env_options": "env_kwargs env_params",
        "num_envs": "n_envs",
        "hidden": "policy_kwargs net_arch agent_kwargs network_factory",
        "activation": "activation_fn",
        "rollout_length": "n_steps num_steps unroll_length",
        "epochs": "n_epochs num_epochs update_epochs num_updates_per_batch",
        "minibatch_size": "batch_size num_minibatches",
        "learning_rate": "lr",
        "learning_rate_final": "anneal_lr",
        "gamma": "discount discounting",
        "lam": "gae_lambda lambda lambda_",
        "clip": "clip_range clip_coef clip_eps clip_epsilon clipping_epsilon",
        "value_clip": "clip_range_vf clip_vloss",
        "value_coef": "vf_coef value_loss_coef",
        "entropy_coef": "ent_coef entropy_cost",
        "advantage_norm": "normalize_advantage norm_adv",
        "normalise_obs": "normalize_obs normalize_observations",
        "normalise_reward": "normalize_reward normalize_rewards",
        "total_env_steps": "total_timesteps total_steps num_timesteps",
        "seeds": "seed",
        "devices": "device cuda max_devices_per_host",
        "tensorboard": "tensorboard_log",
        "wandb": "wandb_project_name track",
        "block_rounds": "log_interval",
        "quiet": "verbose",
        "out": "exp_name",
        "episodes": "n_eval_episodes",
        "greedy": "deterministic",
        "video": "capture_video",
    }.items()
    for theirs in names.split()
}


def nearest(got: str, known: Iterable[str]) -> str:
    """`; did you mean 'x'?` where something is close, or is our name for `got`; else nothing."""
    known, bare = list(known), lambda name: name.lstrip("-").replace("-", "_").lower()
    ours = OTHER_NAMES.get(bare(got), "")
    same = [name for name in known if bare(name) == (ours or bare(got))]
    close = same or difflib.get_close_matches(got[:200], known, n=3, cutoff=0.5)
    # A name of another library may stand for something else, as a number of minibatches does for their size.
    meaning = f" ({FIELDS[ours].help})" if same and ours in FIELDS else ""
    return f"; did you mean {' or '.join(map(repr, close))}?{meaning}" if close else ""


def known_field(name: str) -> FieldInfo:
    """The field of this name, or an error that suggests the nearest."""
    if name not in FIELDS:
        hint = nearest(name, FIELDS) or "; `nextpolicy train --help` lists them"
        raise ConfigError(f"unknown field {shown(name)}{hint}")
    return FIELDS[name]


def convert(info: FieldInfo, raw: Any) -> Any:
    """`raw` as the field's type, from Python, JSON or command-line text."""
    try:
        return _convert(info.annotation, raw, info)
    except ConfigError:
        raise
    except (ValueError, TypeError, OverflowError):
        raise ConfigError(f"{info.name}: got {shown(raw)}, takes {describe(info)}") from None


def shown(value: Any) -> str:
    """A value as a message shows it: one line, not longer than it needs."""
    try:
        text = f"{value:.12g}" if isinstance(value, float) else repr(value)
    except (ValueError, RecursionError):  # a number of thousands of digits, or a list in a list in a list ...
        return f"{type(value).__name__} too large to show"
    text = " ".join(text.split())
    return text if len(text) <= 80 else f"{text[:77]}..."


def whole(name: str, got: Any, low: int, high: int) -> int:
    """`got` as a whole number from `low` to `high`, or an error that names both."""
    try:
        number = _whole(got)
    except (ValueError, TypeError, OverflowError):
        number = low - 1
    if not low <= number <= high:
        raise ConfigError(f"{name}: got {shown(got)}, takes a whole number of at least {low} and at most {high}")
    return number


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
            hint = nearest(raw, choices) if isinstance(raw, str) else ""
            raise ConfigError(f"{info.name}: got {shown(raw)}, takes {describe(info)}{hint}")
        return raw
    if origin is tuple:
        inner = typing.get_args(annotation)[0]
        items = raw.split(",") if isinstance(raw, str) else raw if isinstance(raw, (list, tuple)) else [raw]
        return tuple(_convert(inner, item, info) for item in items)
    if origin is dict:
        return {name: _plain(value) for name, value in _pairs(raw).items()}
    if annotation is bool:
        return _boolean(raw)
    if annotation is int:
        return _whole(raw)
    if annotation is float:
        number = math.nan if isinstance(raw, (bool, np.bool_)) else float(raw)
        if isinstance(raw, (bool, np.bool_)) or (math.isinf(number) and "inf" not in str(raw).lower()):
            raise ValueError  # 1e400 is not infinity, though Python reads it so
        return number
    if not isinstance(raw, str):
        raise TypeError
    return raw


def _whole(raw: Any) -> int:
    """A whole number, exact however large; `1e6` and 8.0 are whole too."""
    if isinstance(raw, (bool, np.bool_)):
        raise TypeError
    try:
        return int(raw) if isinstance(raw, str) else operator.index(raw)
    except (ValueError, TypeError):
        number = float(raw)
    if not number.is_integer():
        raise ValueError
    return int(number)


def _plain(value: Any, depth: int = 0) -> Any:
    """An option's value if JSON can hold it: the run folder must give back what the environment was made with."""
    if isinstance(value, Mapping) and depth < 8:
        return {str(name): _plain(inner, depth + 1) for name, inner in value.items()}
    if isinstance(value, (list, tuple)) and depth < 8:
        items = [_plain(inner, depth + 1) for inner in value]
        return items if isinstance(value, list) else tuple(items)
    number = isinstance(value, (int, float)) and -(2**63) <= value < 2**63  # NaN and infinities are not
    if not number and not isinstance(value, (str, bool, type(None))):
        raise ConfigError(f"env_options: got {shown(value)}, takes text, finite numbers, true, false or lists of them")
    return value


def _boolean(raw: Any) -> bool:
    table = {"true": True, "false": False, "yes": True, "no": False, "1": True, "0": False}
    text = str(raw).lower()
    if text not in table:
        raise ValueError
    return table[text]


def _seeds(raw: Any) -> tuple[int, ...]:
    if isinstance(raw, str) and "," in raw:
        raw = raw.split(",")
    if not isinstance(raw, (str, bytes, Mapping)) and isinstance(raw, Iterable):
        return tuple(_whole(seed) for seed in itertools.islice(raw, MOST_MEMBERS + 1))
    number = _whole(raw)
    if not 1 <= number <= MOST_MEMBERS:
        raise ConfigError(
            f"seeds: got {shown(number)}, takes a number of seeds of at least 1 and at most {MOST_MEMBERS}, "
            "or several seeds separated by commas"
        )
    return tuple(range(number))


def _pairs(raw: Any) -> dict[str, Any]:
    if isinstance(raw, Mapping):
        return {str(k): v for k, v in raw.items()}
    items = [raw] if isinstance(raw, str) else list(raw)
    if not all(isinstance(item, str) for item in items):
        raise TypeError
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
        swept[name] = tuple(convert(info, v) for v in parts)
        if not swept[name]:
            raise ConfigError(f"sweep: got no value for {name}, takes one or more")
    return swept


_INT32 = 2**31 - 1  # samples of a batch and the like are int32 in compiled programs
_MOST_ROUNDS = 99_999_999  # names of metrics files have eight digits
_EXACT = 2**24  # whole numbers up to here are themselves as float32, which the gate compares
_FLOAT32 = 3.4e38  # what else is finite would be infinite there
# The last float32 below 1: one nearer to it would be 1 in the compiled program.
_BELOW_ONE = 1 - 2**-24

# Every number has bounds; `math.inf` as the upper one says that infinity itself is taken and has a meaning.
_RANGES: dict[str, tuple[float, float, str]] = {
    "num_envs": (1, 1_000_000, ""),
    "warmup_steps": (0, _INT32, ""),
    "log_std_init": (-20, 20, ""),
    "rollout_length": (1, 1_000_000, ""),
    "epochs": (1, 10_000, ""),
    "minibatch_size": (1, _INT32, ""),
    "learning_rate": (0, 1e6, ""),
    "learning_rate_final": (0, 1e6, ""),
    "gamma": (0, _BELOW_ONE, "in [0, 1)"),
    "lam": (0, 1, "in [0, 1]"),
    "clip": (0, math.inf, ""),
    "value_clip": (0, math.inf, ""),
    "value_coef": (0, 1e6, ""),
    "entropy_coef": (-1e6, 1e6, ""),
    "max_grad_norm": (0, math.inf, ""),
    "rho_min": (0, 1e6, ""),
    "rho_max": (0, math.inf, ""),
    "adam_eps": (0, 1e6, ""),
    "delta_v": (0, math.inf, ""),
    "k_min": (1, _EXACT, ""),
    "k_max": (1, _EXACT, ""),
    "decay_fraction": (0, 1, "in [0, 1]"),
    "static_k": (1, _EXACT, ""),
    "total_env_steps": (1, 10**15, ""),
    "devices": (0, 1_000_000, ""),
    "block_rounds": (0, _INT32, ""),
    "keep_checkpoints": (1, 1_000_000, ""),
}


def _check_number(name: str, got: Any) -> None:
    """`got` is a number of the field's type and inside its bounds."""
    low, high, words = _RANGES[name]
    kinds: Any = int if FIELDS[name].annotation is int else (int, float)
    finite_enough = isinstance(got, kinds) and (abs(got) <= _FLOAT32 or got == math.inf)
    if isinstance(got, bool) or not finite_enough or not low <= got <= high:
        top = f"{_FLOAT32:g}, or inf" if high == math.inf else f"{high:.16g}"
        kind = "whole number" if kinds is int else "number"
        words = words or f"of at least {low:.16g} and at most {top}"
        raise ConfigError(f"{name}: got {shown(got)}, takes a {kind} {words}")


def _check_types(config: TrainConfig) -> None:
    """What comes from `TrainConfig(...)` itself has not been converted; numbers are checked by their bounds."""
    for name, info in FIELDS.items():
        if name not in _RANGES:
            got, kind = config.value(name), typing.get_origin(info.annotation) or info.annotation
            convert(info, got)
            kinds: Any = {tuple: (tuple, list), dict: Mapping, bool: bool}.get(kind, str)
            if not isinstance(got, kinds):
                raise ConfigError(f"{name}: got {shown(got)}, takes {describe(info)}")


def _check_members(config: TrainConfig) -> None:
    """How many members there would be, counted before any is made."""
    swept = math.prod(len(values) for values in config.run.sweep.values())
    count = len(config.run.seeds) * len(config.gate.algo) * swept
    if not 1 <= count <= MOST_MEMBERS:
        raise ConfigError(
            f"seeds, algo, sweep: got {count} members, seeds {len(config.run.seeds)} x algorithms "
            f"{len(config.gate.algo)} x swept values {swept}, takes at least 1 and at most {MOST_MEMBERS}"
        )


def _validate(config: TrainConfig) -> None:
    """Everything that can be known to be wrong before an environment is made."""
    _check_types(config)
    for name in _RANGES:
        for got in (config.value(name), *config.run.sweep.get(name, ())):
            _check_number(name, got)
    hidden, seeds = config.net.hidden, config.run.seeds
    if not 1 <= len(hidden) <= 100 or min(hidden) < 1 or max(hidden) > 100_000:
        raise ConfigError(f"hidden: got {shown(hidden)}, takes 1 to 100 widths of at least 1 and at most 100000")
    if not seeds or min(seeds) < 0 or max(seeds) > MOST_SEED:
        raise ConfigError(f"seeds: got {shown(seeds)}, takes one or more whole numbers from 0 to 2^32 - 1")
    for algo in config.gate.algo:
        if algo not in ALGOS:
            raise ConfigError(
                f"algo: got {shown(algo)}, takes one or several of {', '.join(ALGOS)}{nearest(algo, list(ALGOS))}"
            )
    _check_members(config)
    members = config.members()
    if len(set(members)) != len(members):
        raise ConfigError("seeds, algo, sweep: got a repeated value, takes each once")
    if config.batch_size > _INT32:
        raise ConfigError(
            f"num_envs, rollout_length: got a batch of {config.batch_size} samples, takes at most {_INT32}"
        )
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
    if config.num_rounds > _MOST_ROUNDS:
        raise ConfigError(
            f"total_env_steps: got {config.run.total_env_steps}, takes at most {_MOST_ROUNDS} rounds of "
            f"{config.batch_size} steps"
        )
    for member in members:
        k_min, k_max = config.value("k_min", member), config.value("k_max", member)
        if member.algo == "sv-dynamic" and k_min > k_max:
            raise ConfigError(f"k_min: got {k_min:g} with k_max {k_max:g}, takes a number of at most k_max")
        rho_min, rho_max = config.value("rho_min", member), config.value("rho_max", member)
        if rho_min > rho_max:
            raise ConfigError(f"rho_min: got {rho_min:g} with rho_max {rho_max:g}, takes a number of at most rho_max")
