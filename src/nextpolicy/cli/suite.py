"""`nextpolicy suite list|run|status`: list suites, run one, show its progress."""

from __future__ import annotations

import argparse
import re
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from nextpolicy.cli.parsing import Parser, check_choice
from nextpolicy.experiments import catalogue, task
from nextpolicy.experiments.suite import Suite, SuiteError, check_environments
from nextpolicy.experiments.task import Task

if TYPE_CHECKING:
    from nextpolicy.experiments.execution import Outcome

MAX_SECONDS = 366 * 24 * 3600  # of a budget


def main(arguments: Sequence[str]) -> None:
    """Run a subcommand. A suite with failures raises, so that scripts notice."""
    subcommands = {"list": _list, "run": _run, "status": _status}
    if not arguments or arguments[0] in ("-h", "--help"):
        print(f"usage: nextpolicy suite {{{','.join(subcommands)}}} ...   (see `nextpolicy suite run --help`)")
        return
    check_choice("subcommand", arguments[0], subcommands)
    subcommands[arguments[0]](arguments[1:])


def _list(arguments: Sequence[str]) -> None:
    options = _list_parser().parse(arguments)
    if options.name is not None:
        print("\n".join(catalogue.load(options.name).environments))
        return
    width = max(map(len, catalogue.SUITES))
    for suite in catalogue.SUITES.values():
        members = len(suite.config(suite.environments[0]).members())
        print(f"{suite.name:<{width}} {len(suite.environments):>2} environments x {members:>2} members  {suite.about}")


def _list_parser() -> Parser:
    parser = Parser(prog="nextpolicy suite list", description="List suites, or the environments of one.")
    parser.add_argument("name", nargs="?", help="A suite or a TOML file.")
    return parser


def _run(arguments: Sequence[str]) -> None:
    options = _run_parser().parse(arguments)
    until = None if options.budget is None else time.time() + seconds(options.budget)
    suite = catalogue.load(options.name)
    tasks = _tasks(suite, options, tuple(options.only))
    from nextpolicy.cli.suite_display import display
    from nextpolicy.experiments import engines
    from nextpolicy.run import api, interrupt, processes

    processes.use_all_cores()
    for each in tasks:
        api.check_trust(each.config, options.trust_module)
    engine = engines.make(options.engine, address=options.ray_address, cpus=options.cpus, gpus=options.gpus)
    check_environments(suite)
    with display(tasks, options.quiet) as shown:
        try:
            outcomes = engine.run(tasks, until, shown.tell)
        except KeyboardInterrupt as stop:
            signum = getattr(stop, "signum", signal.SIGINT)
            raise interrupt.Stopped("suite stopped; the same command continues it", signum) from None
    _conclude(tasks, outcomes, _out(suite, options), options.quiet)


def _run_parser() -> Parser:
    parser = Parser(
        prog="nextpolicy suite run",
        description="Run a suite: skip finished environments, resume interrupted ones, retry failed ones once.",
    )
    _add_common(parser)
    parser.add_argument("--engine", default="local", help="local (one environment after another) or ray.")
    parser.add_argument("--budget", help="Stop at a checkpoint within this time, e.g. 25m; the same command continues.")
    parser.add_argument(
        "--only", action="append", default=[], metavar="ENV", help="Run only this one; may be repeated."
    )
    parser.add_argument("--quiet", action="store_true", help="Show only failures.")
    parser.add_trust("an environment id of a TOML file")
    parser.add_argument("--ray-address", help="Address of a Ray cluster; default: RAY_ADDRESS, or start one here.")
    parser.add_argument("--cpus", type=float, default=1, help="ray: CPUs of each environment.")
    parser.add_argument("--gpus", type=float, help="ray: GPUs of each environment; default 1 if the cluster has any.")
    return parser


def _conclude(tasks: Sequence[Task], outcomes: Sequence[Outcome], out: Path, quiet: bool) -> None:
    failed = [(t, o) for t, o in zip(tasks, outcomes, strict=True) if o.state == "failed"]
    done = sum(o.state == "done" for o in outcomes)
    if failed:
        first, outcome = failed[0]
        raise SuiteError(
            f"suite: {len(failed)} of {len(tasks)} environments failed, {done} are done; {first.env}: {outcome.reason}"
        )
    if not quiet:
        more = "" if done == len(tasks) else "; the same command continues"
        print(f"{done} of {len(tasks)} environments done in {out}{more}")


def _status(arguments: Sequence[str]) -> None:
    options = _status_parser().parse(arguments)
    tasks = _tasks(catalogue.load(options.name), options)
    from nextpolicy.cli.suite_display import status_table

    print(status_table(tasks))


def _status_parser() -> Parser:
    parser = Parser(prog="nextpolicy suite status", description="Show the progress of a suite, read from its folder.")
    _add_common(parser)
    return parser


def _add_common(parser: Parser) -> None:
    parser.add_argument("name", help="A suite (see `nextpolicy suite list`) or a TOML file.")
    parser.add_argument("--out", help="Folder of the suite; default runs/<name>.")
    parser.add_argument("--seeds", type=int, help="Number of seeds of each variant, instead of the suite's own.")


def _out(suite: Suite, options: argparse.Namespace) -> Path:
    return Path(options.out or Path("runs") / suite.name)


def _tasks(suite: Suite, options: argparse.Namespace, only: tuple[str, ...] = ()) -> list[Task]:
    out = _out(suite, options)
    if out.exists() and not out.is_dir():
        raise SuiteError(f"out: expected a folder, got the file {out}")
    return task.tasks(suite, out, seeds=options.seeds, only=only)


def seconds(text: str) -> float:
    """`25m`, `90s`, `1h30m`, `1.5h` in seconds."""
    number = r"(\d+(?:\.\d+)?)"
    parts = re.fullmatch(f"(?:{number}h)?(?:{number}m)?(?:{number}s)?", text)
    total = sum(float(n) * unit for n, unit in zip(parts.groups(), (3600, 60, 1), strict=True) if n) if parts else 0.0
    if not 0 < total < MAX_SECONDS:
        raise SuiteError(f"budget: expected a time such as 25m, 90s or 1h30m, got {text!r}")
    return total


PARSERS = {"list": _list_parser, "run": _run_parser, "status": _status_parser}
