"""`python -m nextpolicy`: the command line."""

from nextpolicy.cli.main import program

program()
