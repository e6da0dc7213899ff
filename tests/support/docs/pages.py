"""Markdown files of the repository, as blocks that run."""

from __future__ import annotations

import doctest
import re
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from support.paths import TREE

__all__ = ["OTHER", "RUN", "Block", "Page", "UnknownFenceError", "find_pages"]

RUN = {"python", "pycon", "bash", "console"}
OTHER = {"text", "json", "toml", "yaml", "html", "sql", "csv"}  # shown, never run

FENCE = re.compile(r"(?P<indent> *)(?P<marks>`{3,}|~{3,}) *(?P<language>[^\s`{]*)")
NEEDS = re.compile(r" *<!-- needs: (?P<names>[\w, -]+?) -->\s*")


class UnknownFenceError(ValueError):
    """A fence of no language, or of one that the runner does not know."""


@dataclass(frozen=True)
class Block:
    """The code between two fences."""

    language: str
    code: str
    line: int  # of its first line of code in the file, from 1
    needs: tuple[str, ...] = ()  # libraries, from the comment above


@dataclass(frozen=True)
class Page:
    """Blocks that run in order, in one process."""

    name: str
    path: Path
    blocks: Sequence[Block] = field(repr=False)

    @property
    def needs(self) -> list[str]:
        return sorted({name for block in self.blocks for name in block.needs})

    @property
    def steps(self) -> list[dict[str, object]]:
        """The blocks that run, as JSON."""
        return [asdict(block) for block in self.blocks if block.language in RUN]

    @property
    def program(self) -> str:
        """All Python of the page as one module, on the lines that it has in the page.

        Examples (``>>>``) belong to it, but for those that show an exception.
        """
        lines: list[str] = []
        for block in self.blocks:
            for line, code in statements(block):
                lines += [""] * (line - 1 - len(lines))
                lines += code.splitlines()
        return "\n".join([*lines, ""])


def statements(block: Block) -> Iterator[tuple[int, str]]:
    """Yield the Python code of a block by its lines in the file."""
    if block.language == "python":
        yield block.line, block.code
    elif block.language == "pycon":
        for example in doctest.DocTestParser().get_examples(block.code):
            if example.exc_msg is None:
                yield block.line + example.lineno, example.source


def read_blocks(path: Path) -> Iterator[Block]:
    """Yield the fenced blocks of a Markdown file; raise UnknownFenceError."""
    lines = path.read_text(encoding="utf-8").splitlines()
    needs: tuple[str, ...] = ()
    at = 0
    while at < len(lines):
        opened = FENCE.match(lines[at])
        if opened is None:
            if found := NEEDS.fullmatch(lines[at]):
                needs = tuple(found["names"].replace(",", " ").split())
            elif lines[at].strip():
                needs = ()
            at += 1
            continue
        language, line = opened["language"], at + 2
        if language not in RUN | OTHER:
            raise UnknownFenceError(
                f"{path}:{at + 1}: a block of {language or 'no language'!r} is not "
                f"known; those of {', '.join(sorted(RUN))} run, those of "
                f"{', '.join(sorted(OTHER))} do not"
            )
        closing = re.compile(rf" *{re.escape(opened['marks'][0])}{{3,}} *")
        at += 1
        while at < len(lines) and not closing.fullmatch(lines[at]):
            at += 1
        if at == len(lines):
            raise UnknownFenceError(f"{path}:{line - 1}: the fence is not closed")
        code = textwrap.dedent("\n".join(lines[line - 1 : at])) + "\n"
        yield Block(language, code, line, needs)
        needs = ()
        at += 1


def read_page(path: Path, tree: Path = TREE) -> Page:
    """Return a file of `tree` as one program."""
    name = path.relative_to(tree).as_posix()
    return Page(name, path, list(read_blocks(path)))


def find_pages(tree: Path = TREE) -> list[Page]:
    """Return all programs in the Markdown files of the tree.

    A page of ``docs/`` is one program; each block of README.md is a program of its
    own, and so is each Python block of CONTRIBUTING.md.
    """
    pages = [read_page(path) for path in sorted((tree / "docs").rglob("*.md"))]
    for name in ("README.md", "CONTRIBUTING.md"):
        if (tree / name).exists():
            whole = read_page(tree / name)
            pages += [
                Page(f"{name}:{block.line}", whole.path, [block])
                for block in whole.blocks
                if name == "README.md" or block.language in ("python", "pycon")
            ]
    return [page for page in pages if page.steps]
