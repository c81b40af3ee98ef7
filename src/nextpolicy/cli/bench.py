"""`nextpolicy bench WORK...`: measure speed."""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from pathlib import Path

from nextpolicy.cli.parsing import Parser

MAX_SECONDS = 86_400  # per measurement


def main(arguments: Sequence[str]) -> None:
    """Run the measurements and print a table; `--out` also writes all results as JSON."""
    from nextpolicy.run import processes

    processes.use_all_cores()
    from nextpolicy.bench.comparison import Options, compare
    from nextpolicy.bench.work import parse_works

    options = parser().parse(arguments)
    names = options.contenders.split(",")
    _check(options, names)
    settings = Options(
        seconds=options.seconds,
        repeats=options.repeats,
        compile_threads=options.compile_threads,
        until_return=options.until_return,
        purejaxrl=options.purejaxrl,
        pythons=_pythons(options.peer_python),
    )
    works = parse_works(options.work, options.members, options.num_envs, options.set)
    compare(works, names, settings, Path(options.out) if options.out else None)


def _check(options: argparse.Namespace, names: Sequence[str]) -> None:
    from nextpolicy.bench.comparison import OWN, PEERS
    from nextpolicy.config import ConfigError, whole

    for name in names:
        if name not in OWN + PEERS:
            raise ConfigError(f"contenders: expected some of {', '.join(OWN + PEERS)}, got {name!r}")
        if names.count(name) > 1:
            raise ConfigError(f"contenders: expected each once, got {name!r} twice")
    if options.out and Path(options.out).exists():
        raise ConfigError(f"out: expected a new file, got {options.out}, which exists; nothing was written")
    if options.out and not Path(options.out).absolute().parent.is_dir():
        raise ConfigError(f"out: expected a file in an existing folder, got {options.out}")
    if not 0 < options.seconds <= MAX_SECONDS:
        raise ConfigError(f"seconds: expected a positive number of at most {MAX_SECONDS}, got {options.seconds}")
    for name in ("compile_threads", "repeats"):
        whole(name, getattr(options, name), 1, 1000)
    if options.until_return is not None and not math.isfinite(options.until_return):
        raise ConfigError(f"until-return: expected a finite number, got {options.until_return}")


def _pythons(pairs: Sequence[str]) -> dict[str, str]:
    from nextpolicy.bench.comparison import ELSEWHERE
    from nextpolicy.config import ConfigError

    for pair in pairs:
        name, _, path = pair.partition("=")
        if name not in ELSEWHERE or not path:
            raise ConfigError(f"peer-python: expected NAME=PATH with a name of {', '.join(ELSEWHERE)}, got {pair!r}")
    return dict(pair.split("=", 1) for pair in pairs)


def parser() -> Parser:
    """The parser of the command."""
    from nextpolicy.bench.comparison import ELSEWHERE, OWN, PEERS

    text = "Compare contenders on the same work. They are timed in turns; compile time is reported separately."
    made = Parser(prog="nextpolicy bench", description=text)
    add = made.add_argument
    add("work", nargs="+", metavar="ENV[:MEMBERS[:NAME=VALUE...]]", help="Environments, measured one after another.")
    add("--contenders", default="ppo,sv-dynamic,sv-static,simulator", help=f"Some of {', '.join(OWN + PEERS)}.")
    add("--members", default="1", help="Numbers of members for works that specify none, e.g. 1,4,12,36.")
    add("--num-envs", default="", help="Numbers of parallel environments, e.g. 64,256.")
    add("--purejaxrl", metavar="PATH", help="Checkout of PureJaxRL, for the contender purejaxrl.")
    text = f"Python interpreter of a peer with its own virtual environment: {', '.join(ELSEWHERE)}."
    add("--peer-python", nargs="+", default=[], action="extend", metavar="NAME=PATH", help=text)
    add("--seconds", type=float, default=3.0, help="Intended seconds per measurement.")
    add("--repeats", type=int, default=3, help="Measurements per contender; the median is reported.")
    add("--until-return", type=float, metavar="R", help="Also measure the time until the mean return reaches R.")
    text = "Compile all works in N threads before measuring; with 1, compile each just before it is measured."
    add("--compile-threads", type=int, default=1, metavar="N", help=text)
    text = "Fields of the configuration for every work."
    add("--set", nargs="+", default=[], action="extend", metavar="NAME=VALUE", help=text)
    add("--out", help="New JSON file for all results.")
    return made
