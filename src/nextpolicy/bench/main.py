"""`nextpolicy bench`: contenders on the same work, taking turns, warm, compilation apart, as ratios."""

from __future__ import annotations

import contextlib
import gc
import math
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
from jax.experimental.compilation_cache import compilation_cache

from nextpolicy.config import presets
from nextpolicy.bench import brax_peer, contenders, peers, process
from nextpolicy.bench.contenders import Contender
from nextpolicy.bench.measure import lengths as lengths
from nextpolicy.bench.measure import measure as measure
from nextpolicy.bench.measure import table as table
from nextpolicy.bench.measure import until_return, until_table
from nextpolicy.config import FIELDS, MAX_MEMBERS, ConfigError, nearest, shown, whole
from nextpolicy.run.folder import describe_machine
from nextpolicy.runfiles import write_json

OWN = ("ppo", "sv-static", "sv-dynamic", "all", "simulator")
MOST_SECONDS = 86_400  # of one measurement
ELSEWHERE = tuple(process.PACKAGES)
PEERS = ("purejaxrl", "brax", *ELSEWHERE)


@dataclass(frozen=True)
class Work:
    """What all contenders do: an environment, a number of members, and the fields that differ from its preset."""

    env: str
    members: int
    fields: dict[str, Any]

    @property
    def title(self) -> str:
        return " ".join([self.env, *(f"{k}={v}" for k, v in self.fields.items())])


def main(arguments: list[str], parser_class: Any, parse: Callable[..., Any]) -> None:
    """Measure and print; `--out` keeps every number as JSON."""
    options = parse(_parser(parser_class), arguments)
    names = options.contenders.split(",")
    for name in names:
        if name not in OWN + PEERS:
            raise ConfigError(f"contenders: got {name!r}, takes of {', '.join(OWN + PEERS)}")
        if names.count(name) > 1:
            raise ConfigError(f"contenders: got {name!r} twice, takes each once")
    if options.out and Path(options.out).exists():
        raise ConfigError(f"out: {options.out} exists, takes a new file; nothing was written")
    if options.out and not Path(options.out).absolute().parent.is_dir():
        raise ConfigError(f"out: got {options.out}, takes a file in a folder that exists")
    if not 0 < options.seconds <= MOST_SECONDS:
        raise ConfigError(f"seconds: got {options.seconds}, takes a positive number of at most {MOST_SECONDS}")
    for name in ("compile_threads", "repeats"):
        whole(name, getattr(options, name), 1, 1000)
    if options.until_return is not None and not math.isfinite(options.until_return):
        raise ConfigError(f"until-return: got {options.until_return}, takes a finite number")
    options.pythons = _pythons(options.peer_python)
    works = parse_works(options.work, options.members, options.num_envs, options.set)
    for work in works:
        for name in names:
            check(name, work, options)
    kept: dict[str, Any] = {"rows": [], "until_return": [], "failed": [], "about": describe_machine()}
    with _shared_programs():
        for work, made, rounds in _prepared(works, names, options, kept["failed"]):
            _measure_one(work, made, rounds, options, kept)
            if options.out:
                write_json(Path(options.out), kept)
    if kept["failed"]:
        raise RuntimeError(f"{len(kept['failed'])} of the works failed: {'; '.join(kept['failed'])}")


def _parser(parser_class: Any) -> Any:
    parser = parser_class(prog="nextpolicy bench", description=__doc__, allow_abbrev=False)
    add = parser.add_argument
    add("work", nargs="+", metavar="ENV[:MEMBERS[:NAME=VALUE...]]", help="Environments, measured one after another.")
    add("--contenders", default="ppo,sv-dynamic,sv-static,simulator", help=f"Of {', '.join(OWN + PEERS)}.")
    add("--members", default="1", help="Members where the work says none, e.g. 1,4,12,36.")
    add("--num-envs", default="", help="Numbers of environments to measure with, e.g. 64,256.")
    add("--purejaxrl", metavar="PATH", help="Checkout of PureJaxRL, for the contender of that name.")
    add("--peer-python", nargs="+", default=[], action="extend", metavar="NAME=PATH", help=_PEER_PYTHON)
    add("--seconds", type=float, default=3.0, help="Aimed length of one measurement.")
    add("--repeats", type=int, default=3, help="Turns of each contender; the median counts.")
    add("--until-return", type=float, metavar="R", help="Also the time until a round's mean episode return is R.")
    add("--compile-threads", type=int, default=1, metavar="N", help=_COMPILE_THREADS)
    add("--set", nargs="+", default=[], metavar="NAME=VALUE", help="Config fields of every work.")
    add("--out", help="JSON file for every number; must not exist.")
    return parser


_PEER_PYTHON = f"Interpreter of a peer that has a virtual environment of its own: {', '.join(ELSEWHERE)}."
_COMPILE_THREADS = "Compile all works side by side before any is measured; 1 compiles each when its turn comes."


def parse_works(texts: list[str], members: str, num_envs: str, pairs: list[str]) -> list[Work]:
    """ENV[:MEMBERS[:NAME=VALUE...]] times the numbers of members and of environments."""
    shared, works = _fields(pairs), []
    for text in texts:
        env, *rest = text.split(":")
        own = _fields(rest[1:])
        for count in _counts("members", rest[0] if rest else members):
            for envs in _counts("num-envs", num_envs) if num_envs else [None]:
                fields = {**shared, **own, **({} if envs is None else {"num_envs": envs})}
                works.append(Work(env, count, fields))
    return works


def _counts(name: str, text: str) -> list[int]:
    try:
        counts = [int(part) for part in text.split(",")]
    except ValueError:
        counts = [0]
    if min(counts) < 1 or (name == "members" and max(counts) > MAX_MEMBERS):
        most = f" and at most {MAX_MEMBERS}" if name == "members" else ""
        raise ConfigError(f"{name}: got {shown(text)}, takes whole numbers of at least 1{most}, separated by commas")
    return counts


def _fields(pairs: list[str]) -> dict[str, Any]:
    fields = dict(pair.split("=", 1) for pair in pairs if "=" in pair)
    for pair in pairs:
        if "=" not in pair or pair.split("=")[0] not in FIELDS:
            hint = nearest(pair.split("=")[0], FIELDS)
            raise ConfigError(f"set: got {shown(pair)}, takes name=value with the name of a config field{hint}")
    for name, instead in {"algo": "--contenders", "seeds": "--members", "env": "the work"}.items():
        if name in fields:
            raise ConfigError(f"set: got {name}, which contenders have each their own; takes {instead} instead")
    return fields


def _pythons(pairs: list[str]) -> dict[str, str]:
    for pair in pairs:
        if pair.partition("=")[0] not in ELSEWHERE or not pair.partition("=")[2]:
            raise ConfigError(f"peer-python: got {pair!r}, takes NAME=PATH with a name of {', '.join(ELSEWHERE)}")
    return dict(pair.split("=", 1) for pair in pairs)


def check(name: str, work: Work, options: Any) -> None:
    """Raise before anything is compiled where a contender cannot do the work."""
    presets.build(work.env, **work.fields)
    if name == "purejaxrl":
        peers.check_purejaxrl(options.purejaxrl, work.env, work.fields)
    elif name == "brax":
        brax_peer.check(work.env)
    elif name in ELSEWHERE:
        process.check(name, work.env, options.pythons)
    elif name == "all" and work.members % 3:
        raise ConfigError(f"all: got {work.members} members, takes a multiple of 3: one third for each algorithm")


def make(name: str, work: Work, options: Any) -> Contender:
    """A contender, ready to do rounds of the work."""
    where = (work.env, work.members, work.fields)
    if name == "simulator":
        return contenders.simulator(*where)
    if name == "purejaxrl":
        return peers.purejaxrl(options.purejaxrl, *where)
    if name == "brax":
        return brax_peer.brax(*where)
    if name in ELSEWHERE:
        return process.contender(name, options.pythons[name], *where)
    return contenders.ours(work.env, "ppo,sv-static,sv-dynamic" if name == "all" else name, work.members, work.fields)


Prepared = tuple[Work, list[Contender], dict[str, int]]


def _prepared(works: list[Work], names: list[str], options: Any, failed: list[str]) -> Iterator[Prepared]:
    """Works ready to be measured, in their order; with several threads, only once all of them are."""

    def prepare(work: Work) -> tuple[list[Contender], dict[str, int]]:
        made: list[Contender] = []
        try:
            made += [make(name, work, options) for name in names]
            return made, lengths(made, options.seconds)
        except Exception:
            _close(made)
            raise

    with ThreadPoolExecutor(options.compile_threads) as pool:
        at_once = options.compile_threads > 1
        futures = [pool.submit(prepare, work) for work in works] if at_once else []
        for future in futures:
            future.exception()  # waits; measuring while others compile would measure that
        for i, work in enumerate(works):
            try:
                made, rounds = futures[i].result() if at_once else prepare(work)
            except (ValueError, RuntimeError, OSError, ImportError) as error:
                if len(works) == 1:
                    raise
                failed.append(f"{work.title}: {str(error).splitlines()[0]}")
                print(f"nextpolicy: {failed[-1]}", file=sys.stderr, flush=True)
                continue
            if at_once:
                futures[i] = None  # type: ignore[call-overload]  # what was measured may be freed
            yield work, made, rounds


def _measure_one(work: Work, made: list[Contender], rounds: dict[str, int], options: Any, kept: dict[str, Any]) -> None:
    """Print one work's numbers as soon as they are there, add them to `kept`, and let its programs go."""
    about = {"env": work.env, "num_envs": presets.build(work.env, **work.fields).environment.num_envs}
    try:
        rows = measure(made, work.members, rounds, options.repeats)
        print(f"{work.title}\n{table(rows)}", flush=True)
        kept["rows"] += [{**about, "fields": work.fields, **row} for row in rows]
        if options.until_return is not None:
            reached = until_return(made, work.members, options.until_return)
            print(until_table(reached), flush=True)
            kept["until_return"] += [{**about, "fields": work.fields, **row} for row in reached]
    finally:
        _close(made)
        gc.collect()


def _close(made: list[Contender]) -> None:
    for contender in made:
        contender.close()
    made.clear()


@contextlib.contextmanager
def _shared_programs() -> Iterator[None]:
    """Compile each program once: our algorithms are one program with other numbers in it.

    What is compiled is kept in a folder of this call alone, so that the first of them still says what compiling takes;
    a folder that the user has set is left as it is.
    """
    if jax.config.jax_compilation_cache_dir is not None:
        yield
        return
    with tempfile.TemporaryDirectory() as folder:
        try:
            jax.config.update("jax_compilation_cache_dir", folder)
            compilation_cache.reset_cache()  # JAX looks at the setting once, and remembers
            yield
        finally:
            jax.config.update("jax_compilation_cache_dir", None)
            compilation_cache.reset_cache()
