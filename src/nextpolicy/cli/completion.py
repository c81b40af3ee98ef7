"""`nextpolicy completion bash|zsh`: print a script that completes commands, options, values and environment ids.

The scripts are static: they list what is installed when they are written, and start no Python when they complete.
"""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Mapping, Sequence
from importlib import import_module

from nextpolicy.cli.parsing import Parser, check_choice

# Words of a command line up to the options, e.g. ("suite", "run") -> option -> the values it accepts, if known. The
# option "" is the first argument.
Table = Mapping[tuple[str, ...], Mapping[str, Sequence[str]]]


def parser() -> Parser:
    """The parser of the command."""
    made = Parser(
        prog="nextpolicy completion",
        description="Print a completion script for a shell.",
        example="source <(nextpolicy completion bash)",
    )
    made.add_argument("shell", help=f"{', '.join(SHELLS)}.")
    return made


def main(arguments: Sequence[str]) -> None:
    """Print the script."""
    shell = parser().parse(arguments).shell
    check_choice("shell", shell, SHELLS)
    print(SHELLS[shell](table()), end="")


def table() -> Table:
    """What can follow each command."""
    from nextpolicy.cli.main import COMMANDS

    found: dict[tuple[str, ...], dict[str, Sequence[str]]] = {(): {"": [*COMMANDS, "--help", "--version"]}}
    for name, command in COMMANDS.items():
        module = import_module(f"nextpolicy.cli.{command.module}")
        if hasattr(module, "PARSERS"):
            found[(name,)] = {"": list(module.PARSERS)}
            found |= {(name, word): _options(make()) for word, make in module.PARSERS.items()}
        else:
            found[(name,)] = _options(module.parser())
    return found


def _options(made: Parser) -> dict[str, Sequence[str]]:
    positional = [action for action in made._actions if not action.option_strings]
    first = {"": _values(positional[0])} if positional else {}
    return first | {option: _values(action) for action in made._actions for option in action.option_strings}


def _values(action: argparse.Action) -> Sequence[str]:
    """The values of an option, or of an argument."""
    from nextpolicy.config import FIELDS, choices
    from nextpolicy.config.presets import PRESETS, READINGS

    if action.dest == "env":
        from nextpolicy.envs import build

        return build.names(None)
    if action.dest == "preset":
        return [*READINGS, *PRESETS]
    if action.dest == "shell":
        return list(SHELLS)
    if action.dest == "policy" and action.default == "target":  # of eval and export; train's is a field
        return ["target", "behaviour", "best"]
    if action.dest == "noise":
        from nextpolicy.tabular.four_rooms_mdp import NOISES

        return NOISES
    return choices(FIELDS[action.dest]) if action.dest in FIELDS and action.option_strings else ()


def _bash(commands: Table) -> str:
    cases = []
    for words, options in commands.items():
        key = " ".join(words)
        flags = " ".join(option for option in options if option.startswith("-"))
        known = {f"{key}:{option}": " ".join(values) for option, values in options.items() if values}
        lines = {**known, f"{key}:-": flags}
        cases += [f"    {shlex.quote(asked)}) values={shlex.quote(values)} ;;" for asked, values in lines.items()]
    several = " ".join(dict.fromkeys(words[0] for words in commands if len(words) == 2))
    return _BASH.replace("@CASES@", "\n".join(cases)).replace("@SEVERAL@", several)


_BASH = """\
_nextpolicy() {
  local word="${COMP_WORDS[COMP_CWORD]}" before="${COMP_WORDS[COMP_CWORD-1]}" command="" depth=0 values="" each
  [ "$COMP_CWORD" -gt 1 ] && { command="${COMP_WORDS[1]}"; depth=1; }
  for each in @SEVERAL@; do
    [ "$command" = "$each" ] && [ "$COMP_CWORD" -gt 2 ] && { command="$command ${COMP_WORDS[2]}"; depth=2; break; }
  done
  local asked="$command:"
  case "$before" in -*) asked="$command:$before" ;; esac
  case "$word" in -*) asked="$command:-" ;; esac
  [ "$asked" = "$command:" ] && [ "$COMP_CWORD" -ne $((depth + 1)) ] && return
  case "$asked" in
@CASES@
  esac
  COMPREPLY=($(compgen -W "$values" -- "$word"))
}
complete -o default -F _nextpolicy nextpolicy
"""


def _zsh(commands: Table) -> str:
    return f"{_ZSH}{_bash(commands)}"


_ZSH = """\
(( $+functions[compdef] )) || { autoload -Uz compinit && compinit -u; }
autoload -Uz bashcompinit && bashcompinit
"""
SHELLS = {"bash": _bash, "zsh": _zsh}
