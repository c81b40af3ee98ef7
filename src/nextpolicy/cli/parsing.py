"""A strict argument parser, and options that several commands share."""

from __future__ import annotations

import argparse
from collections.abc import Collection, Iterable, Sequence
from typing import NoReturn


class UsageError(ValueError):
    """The command line is invalid. The message is one line."""


class Parser(argparse.ArgumentParser):
    """An argument parser that raises `UsageError`, accepts no abbreviations and suggests the nearest option."""

    def __init__(self, prog: str, description: str, epilog: str | None = None) -> None:
        super().__init__(prog=prog, description=description, epilog=epilog, allow_abbrev=False)

    def error(self, message: str) -> NoReturn:
        raise UsageError(message)

    def parse(self, arguments: Sequence[str]) -> argparse.Namespace:
        """Parse all arguments; an unknown one is an error that suggests the nearest."""
        from nextpolicy.config import nearest

        parsed, rest = self.parse_known_args(list(arguments))
        if rest:
            known = [o for action in self._actions for o in action.option_strings or [action.dest]]
            unknown = rest[0].split("=")[0]
            hint = nearest(unknown, known) or f"; see `{self.prog} --help`"
            raise UsageError(f"unknown {'option' if unknown.startswith('-') else 'argument'} {unknown!r}{hint}")
        return parsed

    def add_fields(self, skip: Collection[str], several: Collection[str] = ()) -> None:
        """Add an option for each field of the configuration; those in `several` accept multiple NAME=VALUE."""
        from nextpolicy.config import FIELDS, describe

        group = self.add_argument_group("fields")
        for name, info in FIELDS.items():
            if name not in skip:
                group.add_argument(
                    f"--{name.replace('_', '-')}",
                    dest=name,
                    nargs="+" if name in several else None,
                    metavar="NAME=VALUE" if name in several else "VALUE",
                    default=argparse.SUPPRESS,
                    help=f"{info.help} Takes {describe(info)}.".replace("%", "%%"),
                )

    def add_trust(self, ids: str) -> None:
        """Add `--trust-module` for these environment ids."""
        text = f"Module that {ids} may import; importing it runs its code. May be repeated."
        self.add_argument("--trust-module", action="append", default=[], metavar="MODULE", help=text)

    def add_processes(self) -> None:
        """Add the options of a run over several processes, which `join_processes` reads."""
        self.add_argument("--coordinator", help="host:port of process 0, for a run over several processes or hosts.")
        self.add_argument("--num-processes", type=int, help="Number of processes, with --coordinator.")
        self.add_argument("--process-id", type=int, help="Index of this process, with --coordinator.")


def check_choice(what: str, got: str, known: Iterable[str]) -> None:
    """Raise unless `got` is in `known`."""
    from nextpolicy.config import nearest

    known = list(known)
    if got not in known:
        raise UsageError(f"unknown {what} {got!r}{nearest(got, known) or '; expected one of ' + ', '.join(known)}")


def join_processes(options: argparse.Namespace) -> None:
    """Join a multi-process run, or else use all cores. Must be called before JAX initialises its devices."""
    from nextpolicy.config import whole
    from nextpolicy.run import processes

    if options.coordinator is None:
        processes.use_all_cores()
        return
    if options.num_processes is None or options.process_id is None:
        raise UsageError("--coordinator: expected together with --num-processes and --process-id")
    count = whole("num-processes", options.num_processes, 1, 100_000)
    whole("process-id", options.process_id, 0, count - 1)
    import jax

    jax.distributed.initialize(options.coordinator, options.num_processes, options.process_id)
