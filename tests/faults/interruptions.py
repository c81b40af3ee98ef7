"""Kills, input/output errors and full disks at every change that a piece of work makes to its files."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from .injector import Act, Change, copier, failing, full_from, watched
from .outcomes import CHANGED, LOST, REFUSED, SAME, Result, answer
from .works import Prints, Work, fresh, start_of


class Whole(NamedTuple):
    """Work that nothing disturbed: the folder it starts from, what it ends in, its changes, and a copy before each."""

    work: Work
    start: Path
    prints: Prints
    changes: list[Change]
    copies: Path


def undisturbed(work: Work, root: Path) -> Whole:
    """Do the work once, and copy its folder before every change."""
    start, place, copies = start_of(work, root / "start"), root / "whole", root / "copies"
    fresh(start, place)
    changes: list[Change] = []
    copy = copier(place, copies)

    def act(change: Change) -> None:
        changes.append(change)
        copy(change)

    with watched(place, act):
        work.begin(place)
    return Whole(work, start, work.prints(place), changes, copies)


def kills(whole: Whole, numbers: range) -> Iterator[Result]:
    """Go on with what a kill before each of these changes leaves."""
    for number in numbers:
        place = whole.copies / f"{number:05d}"
        yield recovered("kill", whole, _name(whole.changes[number]), place)
        shutil.rmtree(place)


def errors(whole: Whole, numbers: range) -> Iterator[Result]:
    """One change fails."""
    return _failures("input/output error", whole, numbers, failing)


def full_disks(whole: Whole, numbers: range) -> Iterator[Result]:
    """From one change on, there is no space left; then there is."""
    return _failures("full disk", whole, numbers, full_from)


def _failures(kind: str, whole: Whole, numbers: range, act: Callable[[int], Act]) -> Iterator[Result]:
    for number in numbers:
        place = fresh(whole.start, whole.start.parent / "failed")
        with watched(place, act(number)):
            said = answer(lambda place=place: whole.work.begin(place))
        change = whole.changes[number]
        if said.wrong:
            yield Result(f"{kind}: {whole.work.name}", _name(change), LOST, said.wrong)
        else:
            yield recovered(kind, whole, _name(change), place)
        shutil.rmtree(place)


def recovered(kind: str, whole: Whole, fault: str, place: Path) -> Result:
    """Go on, and compare with the work that nothing disturbed."""
    work = whole.work
    kind = f"{kind}: {work.name}"
    said = answer(lambda: work.go_on(place))
    if said.wrong:
        return Result(kind, fault, LOST, said.wrong)
    if said.refusal:
        if not work.redone:
            return Result(kind, fault, LOST, said.refusal)
        half = answer(lambda: work.prints(place))
        if half.value is not None and half.value != whole.prints:
            return Result(kind, fault, CHANGED, "what was left half done can be read")
        return Result(kind, fault, REFUSED if not half.wrong else LOST, half.wrong)
    found = answer(lambda: work.prints(place))
    if found.value is None:
        return Result(kind, fault, LOST, found.refusal or found.wrong)
    return _compared(kind, fault, whole.prints, found.value)


def _compared(kind: str, fault: str, expected: Prints, found: object) -> Result:
    if found == expected:
        return Result(kind, fault, SAME)
    assert isinstance(found, dict)
    odd = [name for name in expected.keys() | found.keys() if expected.get(name) != found.get(name)]
    return Result(kind, fault, CHANGED, f"different: {sorted(odd)[:5]}")


def _name(change: Change) -> str:
    return f"change {change.number} ({change.call} {change.path})"
