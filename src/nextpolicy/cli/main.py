"""`nextpolicy COMMAND ...`. Every error is one line on stderr and exit code 2.

Each command is a module of this package with a function `main(arguments)`, imported only when it is called.
"""

from __future__ import annotations

import io
import os
import signal
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import NamedTuple, NoReturn

from nextpolicy._version import __version__
from nextpolicy.cli.parsing import check_choice


class Command(NamedTuple):
    """A command: its module in this package and its help text."""

    module: str
    help: str


COMMANDS = {
    "train": Command("train", "train PPO, SV-PPO or both on an environment"),
    "resume": Command("resume", "continue a run, bit for bit"),
    "eval": Command("evaluate", "evaluate the policies of a run, or record a video"),
    "export": Command("export", "write a policy for use without this package"),
    "envs": Command("envs", "list environments"),
    "bench": Command("bench", "measure speed against the simulator alone and other libraries"),
    "suite": Command("suite", "run an experiment over many environments, and show its progress"),
    "report": Command("report", "write tables, figures and a page from run folders"),
    "study": Command("study", "run an exact study: four-rooms, criteria, off-policy or theory"),
    "completion": Command("completion", "print a completion script for bash or zsh"),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code: 0, or 2 after one line on stderr."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    if arguments[:1] == ["study"]:
        # Studies solve many small systems, for which more threads do not help. NumPy reads this on import.
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    try:
        _dispatch(_without_help_command(arguments))
        if sys.stdout is not None:  # None: it was closed before the start
            sys.stdout.flush()
        return 0
    except BrokenPipeError:  # the reader, e.g. `head`, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python flushes it once more at exit
        return 128 + signal.SIGPIPE
    except KeyboardInterrupt as stop:
        print(f"nextpolicy: {str(stop) or 'stopped'}", file=sys.stderr)
        return 128 + getattr(stop, "signum", signal.SIGINT)
    except (ValueError, RuntimeError, OSError) as error:
        if os.environ.get("NEXTPOLICY_TRACEBACK"):
            raise
        print(f"nextpolicy: {_one_line(error)}", file=sys.stderr)
        return 2
    except MemoryError:
        if os.environ.get("NEXTPOLICY_TRACEBACK"):
            raise
        print("nextpolicy: out of memory; free some, or use smaller settings", file=sys.stderr)
        return 2


def _dispatch(arguments: list[str]) -> None:
    if not arguments or arguments[0] in ("-h", "--help"):
        print(_overview())
    elif arguments[0] == "--version":
        print(f"nextpolicy {__version__}")
    else:
        check_choice("command", arguments[0], COMMANDS)
        import_module(f"nextpolicy.cli.{COMMANDS[arguments[0]].module}").main(arguments[1:])


def _without_help_command(arguments: list[str]) -> list[str]:
    """`help` as `--help`, and `help train` as `train --help`."""
    return [*(a for a in arguments if a != "help"), "--help"] if arguments[:1] == ["help"] else arguments


def _overview() -> str:
    rows = "\n".join(f"  {name:<10} {command.help}" for name, command in COMMANDS.items())
    return (
        f"nextpolicy {__version__}: PPO and Stable-Value PPO in JAX\n\nusage: nextpolicy COMMAND ...\n\n{rows}\n\n"
        "`nextpolicy COMMAND --help` explains a command. NEXTPOLICY_TRACEBACK=1 shows the traceback of an error."
    )


def _one_line(error: BaseException) -> str:
    from nextpolicy.settings import printable

    lines = [printable(line) for line in str(error).strip().splitlines()] or [type(error).__name__]
    return lines[0] if len(lines) == 1 else f"{lines[0]} (NEXTPOLICY_TRACEBACK=1 shows more)"


def program() -> NoReturn:
    """The entry point of the program. A second ctrl-C ends it immediately, without a traceback."""
    from nextpolicy.run import interrupt

    interrupt.exit_on_second_signal()
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A path that the terminal's encoding lacks must not turn finished work into an error.
        sys.stdout.reconfigure(errors="backslashreplace")
    code = main()
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # only Python's own shutdown remains
    sys.exit(code)
