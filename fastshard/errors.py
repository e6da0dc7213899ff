"""Every exception that fastshard raises on purpose.

Each derives from `FastshardError` and from the builtin that a caller would
expect. An `OSError` of the operating system passes as it is.
"""

from __future__ import annotations

import errno
from typing import Any

from fastshard._util.terminal import escape_line

__all__ = [
    "AmbiguousKeyError",
    "CacheWarning",
    "ClosedError",
    "FastshardError",
    "FieldNotFoundError",
    "FormatError",
    "InfoNotFoundError",
    "MemberNotFoundError",
    "MissingLibraryError",
    "QueryError",
    "QueryTimeoutError",
    "RaggedError",
    "RemoteError",
    "RemoteNotFoundError",
    "SampleNotFoundError",
    "ShardNotFoundError",
    "StaleIndexError",
    "StaleIndexWarning",
    "StateError",
    "WriterLockedError",
]


class FastshardError(Exception):
    """The base of every exception that fastshard raises on purpose.

    As text it is one line: control characters of names and paths are escaped.
    """

    def __str__(self) -> str:
        return escape_line(super().__str__())


class FormatError(FastshardError, ValueError):
    """The bytes of a shard or an index break their format.

    Attributes
    ----------
    reason : str
        What is wrong.
    path : str
        The file.
    offset : int
        Where, in bytes from the start of the file.
    member : str or None
        The member it concerns, where one is known.
    """

    def __init__(
        self, reason: str, path: str, offset: int, member: str | None = None
    ) -> None:
        super().__init__(reason, path, offset, member)  # the args: so it pickles
        self.reason = reason
        self.path = path
        self.offset = offset
        self.member = member

    def __str__(self) -> str:
        member = "" if self.member is None else f"member {self.member!r} of "
        return escape_line(
            f"{self.reason} - at {member}{self.path}, byte {self.offset:,}"
        )


class StateError(FastshardError, ValueError):
    """A state is none, or is of another dataset, selection or shuffle."""


class ClosedError(FastshardError, ValueError):
    """The shard has been closed."""


class MemberNotFoundError(FastshardError, KeyError):
    """A shard has no member of this name.

    Attributes
    ----------
    name : str
        What was looked for.
    where : str
        Where it was looked for: the shard's path, for a field also the sample.
    near : tuple of str
        Names that resemble it, the best first; of samples alone.
    """

    kind = "member"

    def __init__(self, name: str, where: str, near: tuple[str, ...] = ()) -> None:
        super().__init__(name, where, *([near] if near else []))
        self.name = name
        self.where = where
        self.near = near

    def __str__(self) -> str:  # KeyError's own would show only the repr of args
        hint = f"; did you mean {' or '.join(map(repr, self.near))}?" * bool(self.near)
        return escape_line(f"no {self.kind} {self.name!r} in {self.where}{hint}")


class ShardNotFoundError(FastshardError, ValueError):
    """A dataset has no shard of this name."""


class SampleNotFoundError(MemberNotFoundError):
    """A shard has no sample of this key."""

    kind = "sample"


class AmbiguousKeyError(FastshardError, KeyError):
    """Several shards of a dataset have a sample of this key, or member of this name.

    Attributes
    ----------
    name : str
        What was looked for.
    positions : list of int
        Where it was found.
    """

    def __init__(self, name: str, positions: list[int]) -> None:
        super().__init__(name, positions)
        self.name = name
        self.positions = positions

    def __str__(self) -> str:
        shown = ", ".join(f"{i:,}" for i in self.positions[:8])
        return (
            f"{self.name!r} is in {len(self.positions):,} places: positions {shown}; "
            f"use a position"
        )


class FieldNotFoundError(MemberNotFoundError):
    """A sample has no field of this name."""

    kind = "field"


class InfoNotFoundError(MemberNotFoundError):
    """An index has no column of this name for a sample."""

    kind = "column"


class MissingLibraryError(FastshardError, ImportError):
    """A library that a field's suffix needs is not installed."""


class StaleIndexError(FormatError):
    """An index is of another shard, or of an earlier state of this one.

    `path` is the index; the reason says what differs.
    """


class RemoteError(FastshardError, OSError):
    """Bytes of a remote object could not be had, or are not those asked for.

    Attributes
    ----------
    reason : str
        What is wrong.
    url : str
        The object, without credentials.
    status : int or None
        What the server answered last, if it did.
    attempts : int
        How often it was asked.
    transient : bool
        Whether the same request may succeed later: the connection failed, the
        server was overloaded, or no answer came in time.
    member : str or None
        The member it concerns, where one is known.
    """

    code = errno.EIO

    def __init__(
        self,
        reason: str,
        url: str,
        status: int | None = None,
        attempts: int = 1,
        member: str | None = None,
        transient: bool = False,
    ) -> None:
        super().__init__(self.code, reason, url)
        self.reason = reason
        self.url = url
        self.status = status
        self.attempts = attempts
        self.member = member
        self.transient = transient

    def of_member(self, member: str) -> RemoteError:
        """Return the same error, with the member's name."""
        args = self.reason, self.url, self.status, self.attempts, member
        return type(self)(*args, self.transient)

    def __reduce__(self) -> tuple[Any, ...]:
        args = self.reason, self.url, self.status, self.attempts, self.member
        return type(self), (*args, self.transient)

    def __str__(self) -> str:
        member = "" if self.member is None else f"member {self.member!r} of "
        status = "" if self.status is None else f", status {self.status}"
        times = f", after {self.attempts} attempts" if self.attempts > 1 else ""
        return escape_line(f"{self.reason} - at {member}{self.url}{status}{times}")


class RemoteNotFoundError(RemoteError, FileNotFoundError):
    """There is no such remote object."""

    code = errno.ENOENT


def is_transient(error: BaseException | None) -> bool:
    """Return whether a failure may pass: the network's, or the operating system's."""
    if isinstance(error, RemoteError):
        return error.transient
    return isinstance(error, OSError)


class RaggedError(FastshardError, ValueError):
    """Arrays of a field differ in shape or dtype, where one array of all is wanted."""


class QueryError(FastshardError, ValueError):
    """A query of a dataset's metadata is no SQL, or asks for what it may not."""


class QueryTimeoutError(QueryError, TimeoutError):
    """A query of a dataset's metadata took longer than it was given."""


class WriterLockedError(FastshardError, BlockingIOError):
    """Another process writes to this dataset."""


class StaleIndexWarning(UserWarning):
    """An index is stale or broken, and the shard is scanned instead; or it is old."""


class CacheWarning(UserWarning):
    """Bytes are not kept in ``cache_dir``: they are read over the network each time."""
