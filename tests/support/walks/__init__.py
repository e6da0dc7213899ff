"""Walks: the source files that a call enters, for a reader who follows it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, NamedTuple

from support.paths import TREE

__all__ = ["Walk", "trace_walk"]

ROOT = f"{TREE / 'fastshard'}/"
# Below all walks, as the standard library: paths, options, locks, texts.
GROUND = ("_util/", "errors.py")
INNER = ("<genexpr>", "<listcomp>", "<dictcomp>", "<setcomp>")  # parts of a function


class Walk(NamedTuple):
    """The steps of a call: each Python function called in another file than before.

    Attributes
    ----------
    steps : list of str
        Source files below ``fastshard/``; the return from a call is not a step.
    """

    steps: list[str]

    @property
    def files(self) -> set[str]:
        """The files of the steps."""
        return set(self.steps)

    @property
    def returns(self) -> int:
        """The number of steps into files that were visited and left before."""
        return len(self.steps) - len(self.files)

    def check(self, *, files: int, returns: int) -> None:
        """Assert that the walk has at most so many files and returns."""
        text = f"{len(self.files)} files, {self.returns} returns: {self.steps}"
        assert len(self.files) <= files, text
        assert self.returns <= returns, text


def trace_walk(call: Callable[[], Any]) -> Walk:
    """Call a function twice, first to import modules, and return the second walk."""
    call()
    steps: list[str] = []

    def note(frame: Any, event: str, _: Any) -> None:
        code = frame.f_code
        path = code.co_filename
        if event != "call" or code.co_name in INNER or not path.startswith(ROOT):
            return
        name = path.removeprefix(ROOT)
        if not name.startswith(GROUND) and steps[-1:] != [name]:
            steps.append(name)

    sys.setprofile(note)
    try:
        kept = call()
    finally:
        sys.setprofile(None)
    del kept  # its end is not part of the walk
    return Walk(steps)
