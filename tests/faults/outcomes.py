"""What can come of a fault, and how many of each there were."""

from __future__ import annotations

import contextlib
import io
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

SAME = "recovered bit-identical"
REFUSED = "refused in one line"
LOST = "LOST"
CHANGED = "SILENT CHANGE"
OUTCOMES = (SAME, REFUSED, LOST, CHANGED)
ONE_LINE = (ValueError, RuntimeError, OSError)  # what the command line prints as one line


class Result(NamedTuple):
    """What came of one fault; `fault` says which it was and `why` what was seen."""

    kind: str
    fault: str
    outcome: str
    why: str = ""

    @property
    def bad(self) -> bool:
        return self.outcome in (LOST, CHANGED)


class Answer(NamedTuple):
    """What a call returned, or the error in one line."""

    value: object = None
    refusal: str = ""
    wrong: str = ""  # an error that is not one line, or a traceback on stderr


def answer(call: Callable[[], object]) -> Answer:
    """Call, and judge an error as the command line would: of the right kind, one line, no traceback."""
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            value = call()
    except ONE_LINE as error:
        text = str(error).strip()
        wrong = "" if len(text.splitlines()) == 1 else f"not one line: {text[:300]!r}"
        return Answer(refusal=text, wrong=wrong or _traceback(said.getvalue()))
    except Exception as error:
        return Answer(wrong=f"{type(error).__name__} escaped: {' '.join(str(error).split())[:300]}")
    return Answer(value, wrong=_traceback(said.getvalue()))


def _traceback(said: str) -> str:
    return f"a traceback: {said[-300:]!r}" if "Traceback" in said else ""


def table(results: list[Result]) -> str:
    """A row for each kind of fault, and their sum."""
    kinds = list(dict.fromkeys(result.kind for result in results))
    counted = {kind: Counter(r.outcome for r in results if r.kind == kind) for kind in kinds}
    counted["all"] = Counter(r.outcome for r in results)
    width = max(map(len, counted))
    lines = [f"{'kind of fault':<{width}}  injected  " + "  ".join(OUTCOMES)]
    for kind, counts in counted.items():
        cells = "  ".join(f"{counts[o]:>{len(o)}}" for o in OUTCOMES)
        lines.append(f"{kind:<{width}}  {counts.total():>8}  {cells}")
    return "\n".join(lines)


def complaint(results: list[Result]) -> str:
    """The faults that were not survived, at most twenty; empty if there are none."""
    bad = [r for r in results if r.bad]
    return "\n".join(f"{r.outcome}: {r.kind}, {r.fault}: {r.why}" for r in bad[:20])
