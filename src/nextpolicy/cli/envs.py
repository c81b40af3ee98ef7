"""`nextpolicy envs [BACKEND]`: list environments."""

from __future__ import annotations

from collections.abc import Sequence

from nextpolicy.cli.parsing import Parser


def parser() -> Parser:
    """The parser of the command."""
    made = Parser(prog="nextpolicy envs", description="List environment ids.")
    made.add_argument("backend", nargs="?", help="List only this backend, e.g. gymnax.")
    return made


def main(arguments: Sequence[str]) -> None:
    """Print one environment id per line."""
    options = parser().parse(arguments)
    from nextpolicy.envs import build

    print("\n".join(build.names(options.backend)))
