"""Exceptions and warnings of fastshard.

Each exception derives from `FastshardError` and from the builtin that a caller would
expect: missing things from `KeyError` or `FileNotFoundError`, damaged bytes from
`ValueError`, refusals of the network from `OSError`. An `OSError` of the operating
system is passed on unchanged. Exceptions pickle, and keep facts as attributes.

Examples
--------
>>> import fastshard
>>> shard = fastshard.open_shard("data/train-0000.tar")
>>> try:
...     shard.samples["000007"]["jpg"]
... except fastshard.FieldNotFoundError as error:
...     print(error)
...     print(error.name, isinstance(error, KeyError))
no field 'jpg' in sample '000007' of data/train-0000.tar, ...
jpg True
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import Any

from fastshard._util.terminal import escape_line

__all__ = [
    "AmbiguousKeyError",
    "AppViewError",
    "AppViewRequiredError",
    "AppViewUnavailableError",
    "BlobNotFoundError",
    "CacheWarning",
    "ClosedError",
    "ConversionError",
    "DescriptionError",
    "FastshardError",
    "FieldNotFoundError",
    "FormatError",
    "HandleNotFoundError",
    "IdentityError",
    "IndexRowError",
    "InfoNotFoundError",
    "LensNotFoundError",
    "MemberNotFoundError",
    "MissingLibraryError",
    "PartialFailureError",
    "PublishError",
    "QueryError",
    "QueryTimeoutError",
    "RaggedError",
    "RecordError",
    "RecordNotFoundError",
    "RemoteError",
    "RemoteNotFoundError",
    "RemoteShardNotFoundError",
    "SampleKeyError",
    "SampleNotFoundError",
    "SchemaError",
    "SessionError",
    "ShardNotFoundError",
    "StaleIndexError",
    "StaleIndexWarning",
    "StaleShardError",
    "StateError",
    "UnclosedWriterWarning",
    "UnreadEntryWarning",
    "WriterLockedError",
    "XrpcError",
]

LONGEST_WHERE = 500  # characters of a place in a message
MAX_BRIEF = 200  # characters of an error in a repr


class FastshardError(Exception):
    """Base class of fastshard's exceptions.

    The text is one line: control characters of names and paths are escaped.

    Examples
    --------
    >>> import fastshard
    >>> ds = fastshard.open("data/train-{0000..0003}.tar")
    >>> try:
    ...     ds[7]["jpg"]
    ... except fastshard.FastshardError as error:
    ...     print(type(error).__name__, isinstance(error, KeyError))
    FieldNotFoundError True
    """

    def __str__(self) -> str:
        return escape_line(super().__str__())


class FormatError(FastshardError, ValueError):
    """The bytes of a shard or an index violate their format.

    Attributes
    ----------
    reason : str
    path : str
        The file.
    offset : int
        Bytes from the start of the file.
    member : str or None
        Name of the member, if known.

    Examples
    --------
    >>> from pathlib import Path
    >>> import fastshard
    >>> data = Path("data/train-0000.tar").read_bytes()
    >>> size = Path("cut.tar").write_bytes(data[:1100])
    >>> try:
    ...     fastshard.open_shard("cut.tar")
    ... except fastshard.FormatError as error:
    ...     print(error.path, error.offset)
    cut.tar 1024
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
        member = "" if self.member is None else f"member {self.member!r}"
        where = " of ".join(filter(None, (member, self.path)))  # of bytes no path
        place = f"{where}, " if where else ""
        return escape_line(f"{self.reason} - at {place}byte {self.offset:,}")


class SchemaError(FormatError, TypeError):
    """A sample's fields are not those that its type declares.

    Attributes
    ----------
    reason : str
    path : str
        The shard; ``""`` for a payload that was given as bytes.
    offset : int
        Bytes from the start of the file, or of the payload.
    member : str or None
        Name of the member, if known.
    key : str or None
        The sample's key, if known.
    field : str or None
        The field, if the fault is that of one.
    """

    def __init__(
        self,
        reason: str,
        path: str,
        offset: int,
        member: str | None = None,
        key: str | None = None,
        field: str | None = None,
    ) -> None:
        super().__init__(reason, path, offset, member)
        self.args = reason, path, offset, member, key, field
        self.key = key
        self.field = field

    def __str__(self) -> str:
        names = [
            f"{kind} {name!r}"
            for kind, name in (
                ("field", self.field),
                ("sample", self.key),
                ("member", self.member if self.key is None else None),
            )
            if name is not None
        ]
        where = " of ".join([*names, self.path] if self.path else names)
        where = f"{where}, " if where else ""
        return escape_line(f"{self.reason} - at {where}byte {self.offset:,}")


class DescriptionError(FastshardError, ValueError):
    """A stored schema or lens is invalid, or has no class of its own.

    Attributes
    ----------
    reason : str
    where : str
        The schema or the lens, and the field; a reference if it is known.
    """

    def __init__(self, reason: str, where: str) -> None:
        super().__init__(reason, where)  # the args, so that it pickles
        self.reason = reason
        self.where = where

    def __str__(self) -> str:
        where = self.where
        if len(where) > LONGEST_WHERE:  # names in a store have any length
            where = f"{where[:LONGEST_WHERE]}..."
        return escape_line(f"{where}: {self.reason}")


class RecordError(FormatError):
    """A record of the AT Protocol is not as its lexicon says.

    Attributes
    ----------
    reason : str
    path : str
        The record's address; ``""`` before it is written.
    offset : int
        0.
    field : str or None
        The field, such as ``"storage.shards[0].url"``.

    Examples
    --------
    >>> from fastshard import typed
    >>> record = {"$type": "science.alt.dataset.label"}
    >>> try:
    ...     typed.atmosphere.LabelRecord.from_record(record)
    ... except typed.RecordError as error:
    ...     print(error)
    a required field is missing - at field 'name'
    """

    def __init__(self, reason: str, path: str, field: str | None = None) -> None:
        super().__init__(reason, path, 0)
        self.args = reason, path, field
        self.field = field

    def __str__(self) -> str:
        field = "" if self.field is None else f"field {self.field!r}"
        where = " of ".join(filter(None, (field, self.path)))
        return escape_line(f"{self.reason} - at {where}" if where else self.reason)


class LensNotFoundError(FastshardError, ValueError):
    """No lens, or more than one chain of lenses, leads from one type to another.

    Attributes
    ----------
    reason : str
    source : str
        Name of the type that there is.
    view : str
        Name of the type that is wanted.
    known : tuple of str
        Names of the types that lenses lead to from `source`; the chains, if there
        are several.
    """

    def __init__(
        self, reason: str, source: str = "", view: str = "", known: tuple[str, ...] = ()
    ) -> None:
        super().__init__(reason, source, view, known)
        self.reason = reason
        self.source = source
        self.view = view
        self.known = known

    def __str__(self) -> str:
        return escape_line(self.reason)


class StateError(FastshardError, ValueError):
    """A state is invalid, or belongs to another dataset, selection or shuffle.

    `Dataset.resume` and ``ds.iter(state)`` raise it: resume with the dataset, selection
    and seed that the state was saved with.

    Examples
    --------
    >>> import fastshard
    >>> ds = fastshard.open("data/train-{0000..0003}.tar")
    >>> state = ds.shuffle(seed=1).state_dict()
    >>> try:
    ...     ds.shuffle(seed=2).resume(state)
    ... except fastshard.StateError:
    ...     print("not the same shuffle")
    not the same shuffle
    """


class ClosedError(FastshardError, ValueError):
    """The shard, the dataset or the writer has been closed.

    Examples
    --------
    >>> import fastshard
    >>> shard = fastshard.open_shard("data/train-0000.tar")
    >>> shard.close()
    >>> try:
    ...     shard[0]
    ... except fastshard.ClosedError:
    ...     print("open it again")
    open it again
    """


class MemberNotFoundError(FastshardError, KeyError):
    """A shard has no member of this name.

    Attributes
    ----------
    name : str
        The missing name.
    where : str
        The shard's path; for a field also the sample.

    Examples
    --------
    >>> import fastshard
    >>> shard = fastshard.open_shard("data/train-0000.tar")
    >>> try:
    ...     shard["000000.npz"]
    ... except fastshard.MemberNotFoundError as error:
    ...     print(error.name)
    000000.npz
    """

    kind = "member"

    def __init__(
        self,
        name: str,
        where: str,
        near: tuple[str, ...] | Callable[[], tuple[str, ...]] = (),
    ) -> None:
        super().__init__(name, where)
        self.name = name
        self.where = where
        self._near = near

    @property
    def near(self) -> tuple[str, ...]:
        """Similar names, the best first.

        They are looked for when they, or the error's text, are first requested: code
        that catches the error does not wait.
        """
        if callable(self._near):
            try:
                self._near = self._near()
            except Exception:  # the shard is closed, or damaged
                self._near = ()
        return self._near

    def __str__(self) -> str:  # that of KeyError is only the repr of args
        hint = ""
        if self.near:
            near = [_show_name(name, self.name) for name in self.near]
            hint = f"; did you mean {' or '.join(near)}?"
        if self.kind == "field":
            habit = HABITS.get(self.name, "")
            hint += habit.replace("; ", " ", 1) if hint else habit
        return escape_line(f"no {self.kind} {self.name!r} in {self.where}{hint}")

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.name, self.where, self.near), _notes_of(self)


def _show_name(name: str, missing: str) -> str:
    """Return a name near to a missing one; if they look the same, with its code."""
    if name.isascii() or missing.isascii():
        return repr(name)
    from unicodedata import is_normalized, normalize

    if normalize("NFC", name) != normalize("NFC", missing):
        return repr(name)
    form = "NFC" if is_normalized("NFC", name) else "NFD"
    return f"{name!r} in the Unicode form {form}, {name!a}"


def _notes_of(error: BaseException) -> dict[str, Any]:
    """Return the attributes of an error that a pickle keeps beside its arguments."""
    notes = getattr(error, "__notes__", None)
    return {} if notes is None else {"__notes__": notes}


def key_collision() -> FastshardError:
    """Return the error of a decoded sample that has a field ``"__key__"``."""
    return FastshardError(
        "the field '__key__' collides with the sample's key: name other fields"
    )


# Fields of other libraries' samples.
HABITS = {
    "__key__": "; the key is sample.key",
    "__url__": "; the path of the shard is sample.shard.path",
    **dict.fromkeys(
        ("pil", "pilrgb", "rgb", "rgb8", "torchrgb"),
        '; decode takes names of fields, decode("jpg"), and images are Pillow\'s',
    ),
}


class ShardNotFoundError(FastshardError, FileNotFoundError, ValueError):
    """There is no shard: in a dataset, or at all where a source names some.

    Raised for a path that does not exist, a directory, glob or folder of a store
    without shards, a brace list or a list with missing ones, an empty source; for
    remote ones it is a `RemoteShardNotFoundError`.

    Attributes
    ----------
    reason : str

    Examples
    --------
    >>> import fastshard
    >>> try:
    ...     fastshard.open("data/valid-*.tar")
    ... except FileNotFoundError as error:
    ...     print(type(error).__name__)
    ShardNotFoundError
    """

    def __init__(self, reason: str, path: str | None = None) -> None:
        where = () if path is None else (path,)
        OSError.__init__(self, errno.ENOENT, reason, *where)
        self.reason = reason

    @property
    def path(self) -> str | None:
        """The missing shard, or the source without any."""
        path: str | None = self.filename
        return path

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.reason, self.path), _notes_of(self)

    def __str__(self) -> str:
        return escape_line(self.reason)


class SampleNotFoundError(MemberNotFoundError):
    """A shard has no sample of this key.

    Examples
    --------
    >>> import fastshard
    >>> ds = fastshard.open("data/train-{0000..0003}.tar")
    >>> try:
    ...     ds["000100"]
    ... except fastshard.SampleNotFoundError as error:
    ...     print(error.name)
    000100
    """

    kind = "sample"


class SampleKeyError(SampleNotFoundError):
    """A typed dataset has no sample of this key."""


class AmbiguousKeyError(FastshardError, KeyError):
    """Several shards of a dataset have a sample of this key, or a member of this name.

    Attributes
    ----------
    name : str
        The key or name.
    positions : list of int
        Positions in the dataset.

    Examples
    --------
    >>> import fastshard
    >>> for name in ("web-0000.tar", "books-0000.tar"):
    ...     with fastshard.ShardWriter(name) as writer:
    ...         writer.write({"__key__": "a", "txt": name})
    >>> ds = fastshard.open(["web-0000.tar", "books-0000.tar"])
    >>> try:
    ...     ds["a"]
    ... except fastshard.AmbiguousKeyError as error:
    ...     print([ds[i].text("txt") for i in error.positions])
    ['web-0000.tar', 'books-0000.tar']
    """

    def __init__(self, name: str, positions: list[int]) -> None:
        super().__init__(name, positions)
        self.name = name
        self.positions = positions

    def __str__(self) -> str:
        first = ", ".join(f"{i:,}" for i in self.positions[:8])
        return (
            f"{self.name!r} occurs {len(self.positions):,} times, at positions "
            f"{first}; use a position"
        )


class FieldNotFoundError(MemberNotFoundError):
    """A sample has no field of this name.

    ``ds.select_fields(..., missing="skip")`` leaves such samples out.

    Examples
    --------
    >>> import fastshard
    >>> ds = fastshard.open("data/train-{0000..0003}.tar")
    >>> try:
    ...     ds[7]["jpg"]
    ... except fastshard.FieldNotFoundError as error:
    ...     print(error.name, list(ds[7]))
    jpg ['npy', 'cls', 'txt', 'json']
    """

    kind = "field"


class InfoNotFoundError(MemberNotFoundError):
    """An index has no column of this name for a sample.

    ``ds.info(name, default=...)`` gives a value for samples without it.
    """

    kind = "column"


def brief_error(error: Exception) -> str:
    """Return an error in a line for a repr: of another library its class alone."""
    if not isinstance(error, FastshardError):
        return type(error).__name__
    text = escape_line(str(error))
    return text if len(text) <= MAX_BRIEF else text[: MAX_BRIEF - 3] + "..."


class MissingLibraryError(FastshardError, ImportError):
    """A library that a field, a format or a URL requires is not installed."""


class StaleIndexError(FormatError):
    """An index belongs to another shard, or to an earlier version of the shard.

    `path` is the index; the reason tells the difference. ``fastshard index`` or
    `fastshard.build_index` makes it again.
    """


class StaleShardError(FormatError):
    """A shard is another file now than when the dataset first opened or counted it.

    `path` is the shard. A dataset closes shards that were not used for long, with
    `max_mapped` or more than 16,384 of them, and opens them again. Open the dataset
    again to read the new file.
    """


class IndexRowError(FormatError):
    """A row of an index of datasets is damaged.

    Attributes
    ----------
    reason : str
    path : str
        The store: a path, or a URL without credentials.
    offset : int
        0.
    table : str
        The table, or the kind of key.
    key : str
        The row.
    field : str or None
        The field, if the fault is that of one.
    """

    def __init__(
        self, reason: str, path: str, table: str, key: str, field: str | None = None
    ) -> None:
        super().__init__(reason, path, 0)
        self.args = reason, path, table, key, field
        self.table = table
        self.key = key
        self.field = field

    def __str__(self) -> str:
        field = "" if self.field is None else f"{self.field} of "
        return escape_line(
            f"{self.reason} - at {field}{self.table} {self.key!r}, {self.path}"
        )


class RemoteError(FastshardError, OSError):
    """Bytes of a remote object cannot be read, or are not the expected ones.

    Attributes
    ----------
    reason : str
    url : str
        The object, without credentials.
    status : int or None
        HTTP status of the last response, if there was one.
    attempts : int
        Number of requests sent.
    transient : bool
        Whether the same request may succeed later: the connection failed, the
        server was overloaded, or no response came in time.
    member : str or None
        Name of the member, if known.
    """

    code: int = errno.EIO

    def __init__(
        self,
        reason: str,
        url: str,
        status: int | None = None,
        attempts: int = 1,
        member: str | None = None,
        transient: bool = False,
    ) -> None:
        OSError.__init__(self, self.code, reason, url)
        self.reason = reason
        self.url = url
        self.status = status
        self.attempts = attempts
        self.member = member
        self.transient = transient

    def of_member(self, member: str) -> RemoteError:
        """Return a copy of the error with the name of a member."""
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
    """The remote object does not exist."""

    code: int = errno.ENOENT


class RemoteShardNotFoundError(RemoteNotFoundError, ShardNotFoundError):
    """A remote shard does not exist, or a remote folder has no shard."""

    @classmethod
    def of(cls, error: RemoteError) -> RemoteShardNotFoundError:
        """Return the error for a shard, or a folder of shards, that is not found."""
        return cls(error.reason, error.url, error.status, error.attempts)


class XrpcError(RemoteError):
    """A server of the AT Protocol refuses a request, or its answer is not valid.

    Attributes
    ----------
    reason : str
        The server's message.
    error : str
        The server's name of the error, as ``"InvalidToken"``; ``""`` without one.
    url : str
        The method, without parameters.
    status : int or None
    """

    def __init__(
        self,
        reason: str,
        url: str,
        status: int | None = None,
        attempts: int = 1,
        member: str | None = None,
        transient: bool = False,
        error: str = "",
    ) -> None:
        super().__init__(reason, url, status, attempts, member, transient)
        self.error = error

    def __reduce__(self) -> tuple[Any, ...]:
        kind, args = super().__reduce__()
        return kind, (*args, self.error)


class RecordNotFoundError(XrpcError, KeyError):
    """A repository has no such record, or the server no such repository."""


class BlobNotFoundError(XrpcError, KeyError):
    """A repository has no such blob: no record of it refers to one."""


class IdentityError(FastshardError, ValueError):
    """A DID or a handle cannot be believed, or names no server for its records."""

    def __str__(self) -> str:  # KeyError's has quotes
        return escape_line(str(self.args[0]) if self.args else "")


class HandleNotFoundError(IdentityError, KeyError):
    """No account has the handle."""


class PublishError(FastshardError, OSError):
    """Publishing a dataset stopped after a part of it was made; it has no label.

    Its ``__cause__`` is the error that stopped it. A later call makes the rest.

    Attributes
    ----------
    reason : str
    made : tuple of str
        Shards that were stored, and records that were created, in order.
    """

    def __init__(self, reason: str, made: tuple[str, ...] = ()) -> None:
        OSError.__init__(self, errno.EIO, reason)
        self.reason = reason
        self.made = made

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.reason, self.made)

    def __str__(self) -> str:
        shown = [*self.made[:3], "...", *self.made[-3:]]
        made = ", ".join(self.made if len(self.made) <= 6 else shown)
        return escape_line(f"{self.reason} - after {made} were made")


class SessionError(FastshardError, ValueError):
    """No session of an account, or an invalid exported session."""


class AppViewError(FastshardError):
    """An AppView, a server that indexes records, is missing or fails."""


class AppViewRequiredError(AppViewError):
    """Only an AppView has this method, and none is given.

    Attributes
    ----------
    operation : str
        The method.
    """

    def __init__(self, operation: str) -> None:
        super().__init__(operation)
        self.operation = operation

    def __str__(self) -> str:
        return escape_line(
            f"{self.operation} requires an AppView: give appview=, its URL or did:web:"
        )


class AppViewUnavailableError(AppViewError):
    """An AppView does not answer, or not as it should.

    Attributes
    ----------
    url : str
    reason : str
    """

    def __init__(self, url: str, reason: str) -> None:
        super().__init__(url, reason)
        self.url = url
        self.reason = reason

    def __str__(self) -> str:
        return escape_line(f"the AppView at {self.url} is unavailable: {self.reason}")


def is_transient(error: BaseException | None) -> bool:
    """Return whether a retry may succeed: after an OSError, or a transient one."""
    if isinstance(error, RemoteError):
        return error.transient
    return isinstance(error, OSError)


class RaggedError(FastshardError, ValueError):
    """Arrays of a field differ in shape or dtype and cannot be stacked.

    ``ragged="list"`` or ``"pad"`` takes them, in every way to read batches.

    Examples
    --------
    >>> import numpy as np
    >>> import fastshard
    >>> with fastshard.ShardWriter("words-{:04d}.tar") as writer:
    ...     for n in (2, 3):
    ...         writer.write({"__key__": str(n), "npy": np.arange(n)})
    >>> ds = fastshard.open("words-*.tar")
    >>> try:
    ...     ds.columns([0, 1], "npy")
    ... except fastshard.RaggedError:
    ...     print(next(ds.batches(2, ragged="pad", fill=-1))["npy"].tolist())
    [[0, 1, -1], [0, 1, 2]]
    """


class PartialFailureError(FastshardError, RuntimeError):
    """A function failed on some shards of a dataset; the results of others are kept.

    Attributes
    ----------
    succeeded_shards : list of str
    failed_shards : list of str
    errors : dict of str to Exception
        By shard.
    results : dict of str to object
        By shard, what the function returned.
    """

    def __init__(
        self,
        succeeded_shards: list[str],
        failed_shards: list[str],
        errors: dict[str, Exception],
        results: dict[str, Any],
    ) -> None:
        super().__init__(succeeded_shards, failed_shards, errors, results)
        self.succeeded_shards = succeeded_shards
        self.failed_shards = failed_shards
        self.errors = errors
        self.results = results

    def __str__(self) -> str:
        total = len(self.succeeded_shards) + len(self.failed_shards)
        shown = "; ".join(
            f"{shard}: {type(error).__name__}: {error}"
            for shard, error in [*self.errors.items()][:5]
        )
        more = len(self.errors) - 5
        rest = f"; and {more:,} more" if more > 0 else ""
        return escape_line(
            f"{len(self.failed_shards)}/{total} shards failed: {shown}{rest} - results "
            "of others: .succeeded_shards, .results; to retry: shards=.failed_shards"
        )


class QueryError(FastshardError, ValueError):
    """A query of a dataset's metadata is invalid SQL, or is not permitted."""


class QueryTimeoutError(QueryError, TimeoutError):
    """A query of a dataset's metadata exceeded its time limit."""


class ConversionError(FastshardError, ValueError):
    """A format cannot hold a column or a sample of the dataset to convert."""


class WriterLockedError(FastshardError, BlockingIOError):
    """Another process is writing to this columnar dataset."""


class StaleIndexWarning(UserWarning):
    """An index is stale, broken or outdated; if necessary the shard is scanned."""


class UnreadEntryWarning(UserWarning):
    """A tar has links that lead to no member, or a lone block of zeros in the middle.

    Given once a dataset. ``fastshard verify`` lists each such entry.
    """


class UnclosedWriterWarning(UserWarning):
    """A writer was dropped or ended without `close`, and samples are not stored."""


class CacheWarning(UserWarning):
    """Bytes are not stored in ``cache_dir``: each read goes over the network."""
