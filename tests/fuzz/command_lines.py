"""Command lines: mostly sensible ones, with one or two things in them that are not."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Literal, get_args, get_origin

from nextpolicy.cli.main import COMMANDS
from nextpolicy.config import FIELDS

from .values import MISSPELT, NUMBERS, text, words

GOOD_ENVS = words("four-rooms probe/action probe/constant probe/action-continuous gymnax/CartPole-v1 gym/CartPole-v1")
BAD_ENVS = words(
    "cartpole four-rooms/x gymnax/ gymnax/NoSuch / gym/ gym/NoSuch-v0 gym/no.such.module:X-v0 atari/NoSuch custom/x"
)
ENVS = GOOD_ENVS * 8 + BAD_ENVS
ENV_OPTIONS = words("noise time_limit start goal gamma groups max_steps_in_episode gravity env name self env_params x")
RUNS = words("../precious/run ../precious/stopped") * 6 + words("../precious ../precious/notes.txt nowhere . ..")
FOLDERS = ["new"] * 8 + RUNS
FILES = words("new.html new.gif new.json") * 3
FILES += words("../precious/notes.txt ../precious/page.html new.mp4 nowhere/x.html")
OPTIONS = {  # beside the fields of training
    "train": {
        "--preset": ["default"] * 6 + ["paper", "minatar", "corrected", "papr"],
        "--out": FOLDERS,
        "--quiet": None,
    },
    "resume": {
        "--quiet": None,
        "--coordinator": ["x:1", "localhost:1"],
        "--num-processes": ["2"],
        "--process-id": "01",
    },
    "eval": {
        **{"--policy": ["target", "behaviour", "best"], "--episodes": ["4", "100"], "--num-envs": ["2", "4"]},
        **{"--greedy": None, "--seed": ["0", "7"], "--video": FILES, "--member": ["0", "1"]},
    },
    "export": {"--policy": ["target", "behaviour", "best"], "--member": ["0", "1"], "--onnx": None},
    "envs": {},
    "bench": {
        **{"--contenders": ["ppo", "simulator", "all", "ppo,ppo", "brax", "sbx"], "--members": ["1", "1,3"]},
        **{"--num-envs": ["8", "8,16"], "--seconds": ["1"], "--repeats": ["2"], "--until-return": ["9"]},
        **{"--compile-threads": ["2"], "--set": ["epochs=2", "x=1", "seeds=2", "env=x", "num_envs=8"], "--out": FILES},
        **{"--peer-python": ["sbx=python", "x"], "--purejaxrl": ["nowhere"]},
    },
    "suite run": {
        **{"--out": FOLDERS, "--seeds": ["1", "2"], "--engine": ["local", "rai"], "--budget": ["5m", "1h", "1"]},
        **{"--only": ENVS, "--quiet": None, "--cpus": ["1"], "--gpus": ["0"], "--ray-address": ["x:1"]},
    },
    "suite status": {"--out": FOLDERS, "--seeds": ["1", "2"]},
    "suite list": {},
    "report": {
        **{"--out": FILES, "--files": FOLDERS, "--page-only": None, "--title": ["x"], "--allow-mixed": None},
        **{"--watch": None, "--port": ["0", "65535", "65536", "1"]},
    },
    "study four-rooms": {
        **{"--noise": ["fail", "none", "loud"], "--rounds": ["2", "195"], "--out": FOLDERS, "--quiet": None},
        **{"--resume": FOLDERS},
    },
    "study theory": {
        **{"--cases": ["2"], "--four-rooms-cases": ["2"], "--seed": ["1"], "--rounds": ["3"], "--repeats": ["2"]},
        **{"--sigma": ["0.1"], "--samples": ["10"], "--step-size": ["1"], "--out": FOLDERS, "--quiet": None},
    },
    "help": {},
    "": {},
}
DISTRIBUTED = {"--coordinator": ["x:1", "localhost:1"], "--num-processes": ["2"], "--process-id": ["0", "1"]}
SUITES = words("smoke classic minatar ../precious/suite.toml") * 5 + words("smok nowhere.toml ../precious/notes.txt")
WEIGHTS = {"train": 12, "eval": 3, "suite run": 3, "suite status": 2, "study four-rooms": 2, "bench": 2, "report": 2}


def sensible(rng: random.Random, name: str) -> str:
    """A value of a field, most often one that it takes."""
    kind = FIELDS[name].annotation
    if name == "seeds":
        return rng.choice(["1", "2", "0,3"])
    if name == "algo":
        return rng.choice(["ppo", "sv-dynamic", "ppo,sv-static"])
    if name == "hidden":
        return rng.choice(["8", "64,64"])
    if name == "env_options":
        return rng.choice(["noise=none", "time_limit=9", f"{rng.choice(ENV_OPTIONS)}={text(rng)}"])
    if name == "sweep":
        return rng.choice(["lam=0.9,0.95", "learning_rate=1e-3", "k_max=20,40", "x=1", "hidden=8", f"lam={text(rng)}"])
    if get_origin(kind) is Literal:
        return rng.choice(get_args(kind))
    if kind is bool:
        return rng.choice(["true", "false"])
    if kind is float:
        return rng.choice(["0", "0.5", "0.99", "1e-3"])
    return rng.choice(["1", "2", "8", "64"]) if name != "total_env_steps" else rng.choice(["1e6", "4096"])


def options(rng: random.Random, command: str) -> list[tuple[str, list[str]]]:
    """Some options of the command, each with its value if it takes one."""
    own = dict(OPTIONS[command])
    if command in ("train", "resume"):
        own |= DISTRIBUTED if rng.random() < 0.1 else {}
    chosen: list[tuple[str, list[str]]] = []
    for flag in rng.sample(sorted(own), min(len(own), rng.choice([0, 1, 1, 2]))):
        chosen.append((flag, [] if own[flag] is None else [rng.choice(own[flag])]))
    if command in ("train", "study four-rooms"):
        for name in rng.sample(sorted(set(FIELDS) - {"env"}), rng.choice([1, 1, 2, 3])):
            chosen.append((f"--{name.replace('_', '-')}", [sensible(rng, name)]))
    return chosen


def positionals(rng: random.Random, command: str) -> list[str]:
    if command in ("train", "bench"):
        work = f"{rng.choice(ENVS)}:{rng.choice(['1', '3', '0', 'x', '1:epochs=2', '99999999999'])}"
        return [work if command == "bench" and rng.random() < 0.3 else rng.choice(ENVS)]
    if command in ("resume", "eval", "report"):
        return [rng.choice(RUNS)]
    if command == "export":
        return [rng.choice(RUNS), rng.choice(FOLDERS)]
    if command.startswith("suite"):
        return [rng.choice(SUITES)]
    share = 0.05 if command.startswith("study") else 0.5
    return [rng.choice(["gymnax", "probe", "gymnas", "train", "suite"])] if rng.random() < share else []


def one(rng: random.Random) -> list[str]:
    """A command line."""
    names = list(OPTIONS)
    command = rng.choices(names, [WEIGHTS.get(name, 1) for name in names])[0]
    if command == "":
        return [
            rng.choice([text(rng), *COMMANDS, "trian", "--version", "--help", "-h"]) for _ in range(rng.randrange(4))
        ]
    given, places = options(rng, command), positionals(rng, command)
    wrong = rng.random()
    if given and wrong < 0.55:
        at = rng.randrange(len(given))
        numeric = given[at][1] and given[at][1][0][:1] in set("0123456789")
        given[at] = (given[at][0], [rng.choice(NUMBERS) if numeric and rng.random() < 0.8 else text(rng)])
    elif wrong < 0.62:
        given.append((f"--{rng.choice(MISSPELT)}", [text(rng)] * rng.randrange(2)))
    elif wrong < 0.66:
        places = [text(rng)] * rng.randrange(3)
    spelt = [
        w for flag, value in given for w in ([f"{flag}={value[0]}"] if value and rng.random() < 0.3 else [flag, *value])
    ]
    line = [*command.split(), *places, *spelt] if rng.random() < 0.8 else [*command.split(), *spelt, *places]
    if wrong > 0.97:
        line.pop(rng.randrange(len(line)))
    elif wrong > 0.94:
        line.insert(rng.randrange(len(line) + 1), text(rng))
    elif wrong > 0.92:
        rng.shuffle(line)
    return line


def lines(seed: int, count: int) -> Iterator[list[str]]:
    """`count` of them, the same for the same seed."""
    rng = random.Random(seed)
    return (one(rng) for _ in range(count))
