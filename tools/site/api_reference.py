"""The page of the Python API, from docstrings: the public names, and the types that users meet through them.

Docstrings are paragraphs of Markdown. A paragraph of lines `name   description`, with continuation lines indented,
describes arguments and becomes a table.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import re
from collections.abc import Callable, Iterator
from typing import Any

import nextpolicy

# Classes whose constructor users call, with arguments that their docstring describes.
_CONSTRUCTED = ("EvaluateEvery",)
# By heading: names of `nextpolicy`, or of the module after the colon.
_GROUPS = {
    "Train and load": ("train", "resume", "load"),
    "A run": ("Run", "Policy:nextpolicy.run.policy"),
    "Callbacks": ("BlockEnd", "EvaluateEvery", "stop_at_return"),
    "Criteria": (
        "GateParams",
        "Criterion:nextpolicy.criteria",
        "Evidence:nextpolicy.types",
        "register:nextpolicy.criteria",
    ),
    "Algorithms": ("Algorithm:nextpolicy.algos.base", "Parts:nextpolicy.algos.base"),
}


class ApiError(Exception):
    """The page cannot be written; mkdocs stops."""


def page() -> str:
    """The Markdown of the page."""
    listed = {name for names in _GROUPS.values() for name in names}
    missing = set(nextpolicy.__all__) - listed
    missing |= {name for name in dir(nextpolicy) if not name.startswith("_")} - set(nextpolicy.__all__)
    missing -= {"__version__"}
    if missing:
        raise ApiError(f"tools/site/api_reference.py: expected a group for every public name, got none for {missing}")
    return "\n".join(_lines())


def _lines() -> Iterator[str]:
    yield from (
        "# Python API",
        "",
        "This page is generated from the docstrings. Names without a module are attributes of `nextpolicy`;",
        "`nextpolicy.__version__` is the version.",
    )
    for title, entries in _GROUPS.items():
        yield from ("", f"## {title}")
        for entry in entries:
            name, _, module = entry.partition(":")
            thing = getattr(importlib.import_module(module or "nextpolicy"), name)
            yield from ("", f"### `{name}` {{#{name}}}", "")
            yield from (f"From `{module}`.", "") if module else ()
            yield from _class(thing) if inspect.isclass(thing) else _function(name, thing)


def _function(name: str, thing: Callable[..., Any]) -> Iterator[str]:
    yield from ("```python", _signature(name, thing), "```", "", *_description(name, thing))


def _class(thing: type) -> Iterator[str]:
    if thing.__name__ in _CONSTRUCTED:
        yield from ("```python", _signature(thing.__name__, thing), "```", "")
    yield from _description(thing.__name__, thing)
    fields = _fields(thing)
    if fields:
        yield from ("", "| field | |", "|---|---|", *(f"| `{name}` | {text} |" for name, text in fields))
    for name, member in vars(thing).items():
        if name.startswith("_"):
            continue
        label = f"{thing.__name__}.{name}"
        if isinstance(member, property | functools.cached_property):
            yield from ("", f"#### `.{name}` {{#{label}}}", "", *_description(label, member))
        elif inspect.isfunction(member) or isinstance(member, classmethod):
            function = member.__func__ if isinstance(member, classmethod) else member
            yield from ("", f"#### `.{name}()` {{#{label}}}", "", *_function(name, function))


def _fields(thing: type) -> list[tuple[str, str]]:
    """Fields and the comments beside them; for settings, their help texts."""
    found = []
    for name in getattr(thing, "__annotations__", {}):
        metadata = getattr(getattr(thing, "__dataclass_fields__", {}).get(name), "metadata", {})
        comment = re.search(rf"^    {name}: .*?  # (.*)$", inspect.getsource(thing), flags=re.MULTILINE)
        text = metadata.get("help") or (comment[1] if comment else "")
        if text:
            found.append((name, _cell(text)))
    return found


def _signature(name: str, thing: Callable[..., Any]) -> str:
    """`name(a, b=1)`, without annotations, on several lines if it is long."""
    shown: list[str] = []
    for p in inspect.signature(thing).parameters.values():
        if p.name in ("self", "cls"):
            continue
        if p.kind is p.KEYWORD_ONLY and "*" not in shown and not any(s.startswith("*") for s in shown):
            shown.append("*")
        prefix = "**" if p.kind is p.VAR_KEYWORD else "*" if p.kind is p.VAR_POSITIONAL else ""
        shown.append(f"{prefix}{p.name}" + ("" if p.default is p.empty else f"={p.default!r}"))
    line = f"{name}({', '.join(shown)})"
    return line if len(line) < 90 else f"{name}(\n    " + ",\n    ".join(shown) + ",\n)"


def _description(name: str, thing: object) -> list[str]:
    """The docstring as Markdown."""
    text = inspect.getdoc(thing)
    if not text:
        raise ApiError(f"{name}: expected a docstring, got none; every public name has one")
    paragraphs = re.split(r"\n\s*\n", text)
    return "\n\n".join(_table(p) if _describes_arguments(p) else p for p in paragraphs).split("\n")


_ARGUMENT = re.compile(r"^([a-z_]\w*(?:, [a-z_]\w*)*)(?: {2,}(\S.*))?$")


def _describes_arguments(paragraph: str) -> bool:
    lines = paragraph.split("\n")
    starts = [line for line in lines if not line.startswith(" ")]
    return bool(starts) and all(_ARGUMENT.match(s) for s in starts) and any("  " in line for line in lines)


def _table(paragraph: str) -> str:
    rows: list[tuple[str, str]] = []
    for line in paragraph.split("\n"):
        if line.startswith(" "):
            rows[-1] = (rows[-1][0], f"{rows[-1][1]} {line.strip()}".strip())
        else:
            match = _ARGUMENT.match(line)
            assert match is not None
            rows.append((match[1], match[2] or ""))
    return "\n".join(("| argument | |", "|---|---|", *(f"| `{name}` | {_cell(text)} |" for name, text in rows)))


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
