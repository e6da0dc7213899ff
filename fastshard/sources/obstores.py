"""obstore: whether this process may use it, and its answers, which are checked.

Its threads do not survive a fork, and whoever waits for them then waits for ever: a
child of a process that used it is told so in place of that. Nor may such a child free
what it got of its parent, whose connections that would disturb.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Sequence
from typing import Any

from fastshard._core.receive import Scatter
from fastshard.errors import FastshardError
from fastshard.sources.facts import Facts, Part

__all__ = ["begin", "coding_of", "facts_of", "fill", "wrong_with"]

PIECE = 1 << 20  # bytes of a body that are held besides where they go
HARMLESS_CODINGS = ("", "identity", "aws-chunked")  # the last is of an upload, not kept


class _Process:
    """What is known of this process."""

    used = False
    forked = False  # after it was used


_owners: weakref.WeakSet[Any] = weakref.WeakSet()
_inherited: list[Any] = []  # never freed


def _after_fork() -> None:
    _Process.forked = _Process.used
    _inherited.extend(_owners)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def begin(owner: object) -> None:
    """Note that `owner`, who has stores of obstore's, uses them.

    Raises
    ------
    FastshardError
        This process was forked by one that did.
    """
    if _Process.forked:
        raise FastshardError(
            "obstore cannot be used in a forked process whose parent used it: have "
            "processes started by spawn or forkserver (for a DataLoader: "
            "multiprocessing_context='spawn')"
        )
    _owners.add(owner)
    _Process.used = True


def facts_of(meta: Any) -> Facts:
    """Return what an answer says of its object."""
    modified = meta["last_modified"]
    seconds = int(modified.timestamp())  # 0: it was not told
    tag = meta["e_tag"] or (modified.isoformat() if seconds else "")
    return Facts(meta["size"], tag, seconds * 10**9)


def wrong_with(answer: Any, start: int, end: int, known: Facts) -> str:
    """Say what is wrong with the headers of an answer; nothing if they are right."""
    meta = answer.meta
    nbytes, tag = meta["size"], meta["e_tag"]
    if nbytes != known.nbytes:
        had = f"{known.nbytes:,}"
        return f"it was written to meanwhile: it has {nbytes:,} bytes, and had {had}"
    if known.tag != tag:
        seconds = int(meta["last_modified"].timestamp())
        if tag is not None or not known.mtime_ns or seconds * 10**9 != known.mtime_ns:
            return f"it was written to meanwhile: it has the tag {tag}"
    if answer.range != (start, end):
        first, last = answer.range
        return f"bytes {first:,} to {last:,} were answered, not {start:,} to {end:,}"
    return coding_of(answer)


def coding_of(answer: Any) -> str:
    """Complain of a body that is compressed; nothing if it is not."""
    coding = answer.attributes.get("Content-Encoding", "")
    return "" if coding in HARMLESS_CODINGS else f"it is compressed ({coding[:40]!r})"


def fill(answer: Any, start: int, end: int, parts: Sequence[Part]) -> bool:
    """Put parts of a body where they go; say whether it was as long as was due.

    No more is taken of a body that is too long than a piece of it.
    """
    scatter = Scatter(start, end, parts)
    # One byte more than is due: the end of the body is seen with the last of it.
    least = min(end - start, PIECE) + 1
    for piece in answer.stream(min_chunk_size=least):
        if len(piece) > scatter.left:
            return False
        scatter.feed(piece)
        if len(piece) < least:
            break
    return bool(scatter.left == 0)
