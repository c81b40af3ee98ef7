"""All fields by flat name, and suggestions for unknown names."""

from __future__ import annotations

import difflib
import functools
import itertools
from collections.abc import Iterable, Iterator, Mapping

from nextpolicy.algos import ALGORITHMS, VARIANTS
from nextpolicy.config.sections import EnvConfig, NetConfig, RunConfig
from nextpolicy.criteria import CRITERIA, OWN, settings_class
from nextpolicy.settings import ConfigError, FieldInfo, Settings, field_infos, shown


def settings_classes(algo: tuple[str, ...], criterion: str) -> tuple[type[Settings], type[Settings]]:
    """The settings of the algorithm that these variants share, and of the criterion."""
    for name in algo:
        if name not in VARIANTS:
            hint = nearest(name, VARIANTS) if isinstance(name, str) else ""
            raise ConfigError(f"algo: expected one or several of {', '.join(VARIANTS)}, got {shown(name)}{hint}")
    algorithms = {VARIANTS[name][0].name for name in algo}
    if len(algorithms) != 1:
        got = " and ".join(sorted(algorithms)) or "none"
        raise ConfigError(f"algo: expected variants of one algorithm, got {got}; train each in its own run")
    if criterion != OWN and criterion not in CRITERIA:
        raise ConfigError(
            f"criterion: expected one of {', '.join(CRITERIA)}, got {shown(criterion)}{nearest(criterion, CRITERIA)}"
        )
    return VARIANTS[algo[0]][0].settings, settings_class(criterion)


def active_fields(algorithm_settings: type[Settings], criterion_settings: type[Settings]) -> dict[str, FieldInfo]:
    """The fields of a configuration with these settings, by flat name."""
    return _fields_of(algorithm_settings, criterion_settings)  # type: ignore[arg-type]


@functools.cache
def _fields_of(algorithm_settings: type[Settings], criterion_settings: type[Settings]) -> dict[str, FieldInfo]:
    sections: dict[str, type[Settings]] = {
        **{"environment": EnvConfig, "net": NetConfig},
        **{"algorithm": algorithm_settings, "criterion": criterion_settings, "run": RunConfig},
    }
    infos = [info for section, cls in sections.items() for info in field_infos(section, cls)]
    fields = {info.name: info for info in infos}
    for info in infos:
        if fields[info.name] is not info:
            raise ConfigError(f"settings: expected each field name once, got {info.name!r} in two sections; rename one")
    return fields


class _AllFields(Mapping[str, FieldInfo]):
    """The fields of all registered algorithms and criteria. If several fields share a name, this has the first."""

    def __getitem__(self, name: str) -> FieldInfo:
        for fields in self._combinations():
            if name in fields:
                return fields[name]
        raise KeyError(name)

    def __contains__(self, name: object) -> bool:
        return any(name in fields for fields in self._combinations())

    def __iter__(self) -> Iterator[str]:
        """By section, so that the fields of all criteria stand before those of the run."""
        infos = {info.name: info for fields in self._combinations() for info in fields.values()}
        sections = list(dict.fromkeys(info.section for info in infos.values()))
        return iter(sorted(infos, key=lambda name: sections.index(infos[name].section)))

    def __len__(self) -> int:
        return len(list(iter(self)))

    @staticmethod
    def _combinations() -> list[dict[str, FieldInfo]]:
        pairs = itertools.product(ALGORITHMS.values(), CRITERIA.values())
        return [active_fields(algorithm.settings, criterion.settings) for algorithm, criterion in pairs]


FIELDS: Mapping[str, FieldInfo] = _AllFields()  # the fields that the command line accepts


def owner(name: str) -> str:
    """The algorithms and criteria that have this field."""
    found = []
    for kind, kinds, settings in (
        ("algorithm", "algorithms", {a.name: a.settings for a in ALGORITHMS.values()}),
        ("criterion", "criteria", {c.name: c.settings for c in CRITERIA.values()}),
    ):
        having = [each for each, cls in settings.items() if name in {info.name for info in field_infos("", cls)}]
        if len(having) == len(settings) > 1:
            found.append(f"every {kind}")
        elif having:
            found.append(f"{kinds if having[1:] else kind} {', '.join(having)}")
    return " and ".join(found)


def known_field(name: str) -> FieldInfo:
    """The field with this name. The error for an unknown name suggests the closest ones."""
    if name not in FIELDS:
        hint = nearest(name, FIELDS) or "; `nextpolicy train --help-all` lists them"
        raise ConfigError(f"unknown field {shown(name)}{hint}")
    return FIELDS[name]


# Names in Stable-Baselines3, CleanRL, PureJaxRL, rejax and Brax -> names here.
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
    """`; did you mean 'x'?` if a known name is close to `got` or replaces it (`OTHER_NAMES`), else an empty string."""
    known = list(known)
    ours = OTHER_NAMES.get(_bare(got), "")
    same = [name for name in known if _bare(name) == (ours or _bare(got))]
    close = same or difflib.get_close_matches(got[:200], known, n=3, cutoff=0.5)
    # Another library's field may have another meaning, e.g. the number of minibatches instead of their size.
    meaning = f" ({FIELDS[ours].help})" if same and ours in FIELDS else ""
    return f"; did you mean {' or '.join(map(repr, close))}?{meaning}" if close else ""


def _bare(name: str) -> str:
    return name.lstrip("-").replace("-", "_").lower()
