"""Suites in TOML, and the JSON files of a run folder, with faults in them."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Iterator
from typing import Any

from nextpolicy.config import FIELDS

from .command_lines import ENVS, sensible
from .values import MISSPELT, damaged, json_value, text, words

KEYS = words("name about environments preset algo seeds evaluate_episodes fields environment")


def toml_value(value: Any) -> str:
    """A value as TOML writes it; what TOML has no word for becomes text."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (int, float)):
        return str(value)
    if isinstance(value, list):
        return f"[{', '.join(map(toml_value, value))}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{json.dumps(k)} = {toml_value(v)}' for k, v in value.items())}}}"
    return json.dumps(str(value)).replace("\\ud800", "?")


def suite(rng: random.Random) -> dict[str, Any]:
    """A suite that is most often right."""
    envs = rng.sample(["probe/action", "probe/constant", "gymnax/CartPole-v1", "four-rooms"], rng.choice([1, 1, 2, 3]))
    made: dict[str, Any] = {"environments": envs, "preset": "default"}
    if rng.random() < 0.5:
        made["seeds"] = rng.choice([1, 3, [0, 5]])
    if rng.random() < 0.3:
        made["algo"] = rng.choice(["ppo", ["ppo", "sv-dynamic"]])
    if rng.random() < 0.3:
        made["evaluate_episodes"] = rng.choice([0, 4])
    names = rng.sample(sorted(FIELDS), 2)
    if rng.random() < 0.5:
        made["fields"] = {name: sensible(rng, name) for name in names}
    if rng.random() < 0.3:
        made["environment"] = {rng.choice(envs): {name: sensible(rng, name) for name in names}}
    return made


def wrong_suite(rng: random.Random) -> dict[str, Any]:
    """A suite with one thing replaced."""
    made, what = suite(rng), rng.randrange(7)
    value = rng.choice([json_value(rng), json_value(rng), datelike(rng), 10**9, 983505767519])
    if what <= 2:
        made[rng.choice(KEYS)] = value
    elif what == 3:
        made.setdefault("fields", {})[rng.choice(sorted(FIELDS))] = value
    elif what == 4:
        made.setdefault("environment", {})[rng.choice([*made["environments"], text(rng)])] = value
    elif what == 5:
        made.setdefault("fields", {})[rng.choice(MISSPELT)] = value
    else:
        made["environments"] = [*made["environments"], rng.choice([*ENVS, text(rng)])]
    return made


def datelike(rng: random.Random) -> Any:
    return rng.choice(["1979-05-27", "07:32:00", [], [[]], {}])


def tomls(seed: int, count: int) -> Iterator[bytes]:
    """`count` files, the same for the same seed."""
    rng = random.Random(seed)
    for _ in range(count):
        made = wrong_suite(rng) if rng.random() < 0.8 else suite(rng)
        data = "\n".join(f"{json.dumps(k)} = {toml_value(v)}" for k, v in made.items()).encode("utf-8", "replace")
        data = data.replace(b'"1979-05-27"', b"1979-05-27").replace(b'"07:32:00"', b"07:32:00")
        yield damaged(rng, data) if rng.random() < 0.3 else data


def _places(value: Any, here: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The path of every value inside a document, the document itself included."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [here, *(place for key, part in inner for place in _places(part, (*here, key)))]


def _mutated(rng: random.Random, document: Any) -> Any:
    document = copy.deepcopy(document)
    for _ in range(rng.choice([1, 1, 1, 2])):
        *path, last = rng.choice(_places(document)[1:] or [("x",)])
        parent = document
        for key in path:
            parent = parent[key]
        if not isinstance(parent, (dict, list)):
            continue
        what = rng.randrange(5)
        if what == 0 and last in (parent if isinstance(parent, dict) else range(len(parent))):
            del parent[last]
        elif what == 1 and isinstance(parent, dict):
            parent[rng.choice([*MISSPELT, "self", "about", "custom", "evaluation", "reason"])] = json_value(rng)
        else:
            parent[last] = json_value(rng)
    return document


def jsons(seed: int, count: int, documents: dict[str, Any]) -> Iterator[tuple[str, bytes]]:
    """`count` of (file name, content), each a mutation of one of `documents`."""
    rng = random.Random(seed)
    for _ in range(count):
        name = rng.choice(sorted(documents))
        document = documents[name]
        changed = _mutated(rng, document) if rng.random() < 0.75 else document
        data = json.dumps(changed, indent=2).encode()
        yield name, damaged(rng, data) if changed is document or rng.random() < 0.05 else data
