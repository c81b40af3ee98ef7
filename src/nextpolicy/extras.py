"""Installation of optional dependencies."""


def advice(extra: str) -> str:
    """The command that installs an extra, and where to run it."""
    return f"pip install -e '.[{extra}]' in a checkout of nextpolicy"
