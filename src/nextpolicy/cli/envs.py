"""`nextpolicy envs [BACKEND]`: list environments."""

from __future__ import annotations

from collections.abc import Sequence

from nextpolicy.cli.parsing import Parser


def main(arguments: Sequence[str]) -> None:
    """Print one environment id per line."""
    parser = Parser(prog="nextpolicy envs", description="List environment ids.")
    parser.add_argument("backend", nargs="?", help="List only this backend, e.g. gymnax.")
    options = parser.parse(arguments)
    from nextpolicy.envs import build

    print("\n".join(build.names(options.backend)))
