"""A strict argument parser, and options that several commands share."""

from __future__ import annotations

import argparse
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NoReturn


class UsageError(ValueError):
    """The command line is invalid. The message is one line."""


class Parser(argparse.ArgumentParser):
    """An argument parser that raises `UsageError`, accepts no abbreviations and suggests the nearest option.

    With fields of the configuration, `--help` lists those in `common` and `--help-all` lists all.
    """

    def __init__(
        self, prog: str, description: str, *, example: str = "", usage: str | None = None, common: Collection[str] = ()
    ) -> None:
        super().__init__(prog=prog, description=description, usage=usage, allow_abbrev=False)
        self._example = example
        self._common = frozenset(common)
        self._rare: list[argparse.Action] = []  # shown by --help-all only
        self._about_defaults = ""

    def error(self, message: str) -> NoReturn:
        raise UsageError(message)

    def parse(self, arguments: Sequence[str]) -> argparse.Namespace:
        """Parse all arguments; an unknown one is an error that suggests the nearest."""
        from nextpolicy.config import nearest

        for option, _, value in (word.partition("=") for word in arguments if word.startswith("-")):
            if value == "--":  # argparse would drop it and pass on an empty list
                raise UsageError(f"{option}: expected a value, got '--'")
        parsed, rest = self.parse_known_args(list(arguments))
        if rest:
            known = [o for action in self._actions for o in action.option_strings or [action.dest]]
            unknown = rest[0].split("=")[0]
            hint = nearest(unknown, known) or f"; see `{self.prog} --help`"
            raise UsageError(f"unknown {'option' if unknown.startswith('-') else 'argument'} {unknown!r}{hint}")
        return parsed

    def format_help(self, *, everything: bool = False) -> str:
        """The help text: usage, description, example, and options by group."""
        made = self._get_formatter()
        made.add_usage(self.usage, self._actions, self._mutually_exclusive_groups)
        made.add_text(self.description)
        if self._example:
            made.start_section("example")
            made.add_text(self._example)
            made.end_section()
        for group in self._action_groups:
            made.start_section(group.title)
            made.add_arguments(a for a in group._group_actions if everything or a not in self._rare)
            made.end_section()
        made.add_text(self._about_defaults)
        if self._rare and not everything:
            made.add_text(f"`{self.prog} --help-all` also lists {len(self._rare)} other fields of the configuration.")
        return made.format_help()

    def add_fields(
        self,
        defaults: Mapping[str, object],
        about_defaults: str,
        *,
        skip: Collection[str],
        several: Collection[str] = (),
    ) -> None:
        """Add an option for each field of the configuration; those in `several` accept multiple NAME=VALUE.

        `defaults` by name, and `about_defaults`, which says whose they are, are for the help text.
        """
        from nextpolicy.config import FIELDS, describe, owner, written

        self._about_defaults = about_defaults
        self.add_argument("--help-all", action=_HelpAll, help="show all fields of the configuration and exit")
        groups: dict[str, argparse._ArgumentGroup] = {}
        for name, info in FIELDS.items():
            if name in skip:
                continue
            title = owner(name) or {"net": "networks", "run": "training"}.get(info.section, info.section)
            if title not in groups:
                groups[title] = self.add_argument_group(title)
            default = written(name, defaults.get(name, info.default))
            action = groups[title].add_argument(
                f"--{name.replace('_', '-')}",
                dest=name,
                nargs="+" if name in several else None,
                action="extend" if name in several else "store",
                metavar="NAME=VALUE" if name in several else "VALUE",
                default=argparse.SUPPRESS,
                help=f"{info.help} Takes {describe(info)}.{f' Default {default}.' * bool(default)}".replace("%", "%%"),
            )
            if name not in self._common:
                self._rare.append(action)

    def add_trust(self, ids: str) -> None:
        """Add `--trust-module` for these environment ids."""
        text = f"Module that {ids} may import; importing it runs its code. May be repeated."
        self.add_argument("--trust-module", action="append", default=[], metavar="MODULE", help=text)

    def add_processes(self) -> None:
        """Add the options of a run over several processes, which `join_processes` reads."""
        group = self.add_argument_group("several processes or hosts")
        group.add_argument("--coordinator", help="host:port of process 0.")
        group.add_argument("--num-processes", type=int, help="Number of processes, with --coordinator.")
        group.add_argument("--process-id", type=int, help="Index of this process, with --coordinator.")


class _HelpAll(argparse.Action):
    """Prints the whole help text and exits."""

    def __init__(self, option_strings: Sequence[str], dest: str, help: str | None = None) -> None:
        super().__init__(option_strings, argparse.SUPPRESS, nargs=0, default=argparse.SUPPRESS, help=help)

    def __call__(self, parser: argparse.ArgumentParser, *unused: object) -> NoReturn:
        assert isinstance(parser, Parser)
        print(parser.format_help(everything=True), end="")
        raise SystemExit(0)


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
