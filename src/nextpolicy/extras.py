"""How to get the packages that only some runs need."""


def advice(extra: str) -> str:
    """What to type; a checkout, since no package index has nextpolicy."""
    return f"pip install -e '.[{extra}]' in a checkout of nextpolicy"
