"""Tables of the migration pages: what users write, and what they write now.

A cell is code where it holds code spans: each is one line of it, parted by ``<br>``. A
cell of prose alone says that there is no equivalent. ``<!-- env: A=1 B=2 -->`` above a
table sets environment variables while its rows run.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from support.docs.pages import Page

__all__ = ["Row", "read_rows", "right_program"]

LEFT, RIGHT = "you write", "you write now"
ENV = re.compile(r"<!-- env: (?P<pairs>.*?) -->")
CELLS = re.compile(r"(?<!\\)\|")
SPAN = re.compile(r"(?P<marks>`+)(?P<code>.+?)(?P=marks)(?!`)")


class Row(NamedTuple):
    """A row of a table: its line in the page, and the code of its two sides."""

    line: int
    left: str
    right: str
    env: dict[str, str]


def read_rows(path: Path) -> Iterator[Row]:
    """Yield the rows of all tables of a page whose head is that of a migration."""
    inside = False
    env: dict[str, str] = {}
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if found := ENV.fullmatch(line.strip()):
            env = dict(pair.split("=") for pair in found["pairs"].split())
        elif not line.startswith("|"):
            if line.strip():
                env = {}
            inside = False
        else:
            cells = [cell.strip() for cell in CELLS.split(line)[1:-1]]
            if cells[:2] == [LEFT, RIGHT]:
                inside = True
            elif inside and set(cells[0]) != {"-"}:
                yield Row(number, code_of(cells[0]), code_of(cells[1]), env)


def right_program(page: Page) -> str:
    """Return a page's Python blocks and its right column as one module."""
    rows = [row.right for row in read_rows(page.path)]
    return "\n".join([page.program, *rows, ""])


def code_of(cell: str) -> str:
    """Return the code of a cell, or nothing for a cell that begins with prose."""
    if not cell.startswith("`"):
        return ""
    spans = [part.strip() for part in cell.split("<br>")]
    lines = []
    for span in spans:
        found = SPAN.fullmatch(span)
        if found is None:
            raise ValueError(f"expected code alone between <br>, got {span!r}")
        lines.append(found["code"].strip().replace("\\|", "|"))
    return "\n".join(lines)
