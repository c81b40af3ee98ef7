"""`nextpolicy export RUN FOLDER`: write a policy for use without this package."""

from __future__ import annotations

from collections.abc import Sequence

from nextpolicy.cli.parsing import Parser


def parser() -> Parser:
    """The parser of the command."""
    made = Parser(prog="nextpolicy export", description="Write a policy for use without this package.")
    made.add_argument("run", help="Run folder.")
    made.add_argument("folder", help="New or empty folder for arrays, description and a loader that needs NumPy.")
    made.add_argument("--policy", default="target", help="target, behaviour or, after --evaluate-every, best.")
    made.add_argument("--member", type=int, default=0, help="Member whose policy to write.")
    made.add_argument("--onnx", action="store_true", help="Also write policy.onnx.")
    made.add_trust("the run's environment id")
    return made


def main(arguments: Sequence[str]) -> None:
    """Write the folder and print its path and files."""
    options = parser().parse(arguments)
    from nextpolicy.run import api

    run = api.load(options.run, trust=options.trust_module)
    folder = run.export(options.folder, options.policy, options.member, options.onnx)
    print(f"export: {folder} ({', '.join(sorted(file.name for file in folder.iterdir()))})")
