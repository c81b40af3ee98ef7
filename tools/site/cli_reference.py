"""The page of the command line, from the parsers of its commands."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from importlib import import_module

from nextpolicy.cli.main import COMMANDS
from nextpolicy.cli.parsing import Parser


def page() -> str:
    """The Markdown of the page."""
    return "\n".join(_lines())


def _lines() -> Iterator[str]:
    yield from (
        "# Command line",
        "",
        "This page is generated from the code; `nextpolicy COMMAND --help` says the same. `train` and",
        "`study four-rooms` also take fields of the [configuration](configuration.md) as options: `--num-envs 64`.",
        "An error is one line and exit code 2; `NEXTPOLICY_TRACEBACK=1` shows its traceback.",
        "",
        "| command | |",
        "|---|---|",
        *(f"| [`{name}`](#{name}) | {command.help} |" for name, command in COMMANDS.items()),
    )
    for name, command in COMMANDS.items():
        module = import_module(f"nextpolicy.cli.{command.module}")
        yield from ("", f"## `nextpolicy {name}` {{#{name}}}")
        if hasattr(module, "PARSERS"):
            yield from ("", f"{command.help[0].upper()}{command.help[1:]}.")
            for part, make in module.PARSERS.items():
                yield from ("", f"### `nextpolicy {name} {part}` {{#{name}-{part}}}", *_command(make()))
        else:
            yield from _command(module.parser())


def _command(parser: Parser) -> Iterator[str]:
    """Usage and description of a command, and a table of its arguments without the fields of the configuration."""
    positional = [_positional(action) for action in parser._actions if not action.option_strings]
    usage = parser.usage or " ".join([parser.prog, *positional, "[options]"])
    yield from ("", _text(parser.description or ""), "", "```", usage, "```")
    yield from ("", "| argument | |", "|---|---|")
    yield from (f"| `{_name(action)}` | {_text(str(action.help))}{_default(action)} |" for action in _own(parser))


def _own(parser: Parser) -> Iterator[argparse.Action]:
    """Arguments that are neither `--help` nor fields, which have a page of their own."""
    from nextpolicy.config import FIELDS

    for action in parser._actions:
        field = action.default is argparse.SUPPRESS and action.dest in FIELDS
        if not isinstance(action, argparse._HelpAction) and not field:
            yield action


def _name(action: argparse.Action) -> str:
    value = "" if action.nargs == 0 else _metavar(action)
    return " ".join(filter(None, (", ".join(action.option_strings), value))).replace("|", "\\|")


def _positional(action: argparse.Action) -> str:
    return {"?": "[{}]", "+": "{} ..."}.get(str(action.nargs), "{}").format(_metavar(action))


def _metavar(action: argparse.Action) -> str:
    return str(action.metavar or action.dest.upper())


def _default(action: argparse.Action) -> str:
    if "default" in str(action.help) or action.nargs == 0 or action.default in (None, "", [], argparse.SUPPRESS):
        return ""
    return f" Default `{action.default}`."


def _text(text: str) -> str:
    return text.replace("%%", "%").replace("|", "\\|").replace("<", "&lt;")
