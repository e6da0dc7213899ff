"""Writers of tar shards that appear whole."""

from __future__ import annotations

import errno
import operator
import os
import re
import string
import warnings
from collections.abc import Iterator, Mapping
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Self

from fastshard._core.io.source import LocalFile
from fastshard._core.table.grouping import Grouping
from fastshard._util.options import named_options
from fastshard._util.sizes import parse_size
from fastshard.errors import ClosedError
from fastshard.formats.encoders import encode
from fastshard.formats.names import check_field, check_key, check_name, is_reserved
from fastshard.formats.tar_writer import BLOCK, END, HeaderEncoder, TarBuilder
from fastshard.index.contents import Contents
from fastshard.index.sidecar import FORMATS, save_index, sidecar_path

if TYPE_CHECKING:
    from fastshard.formats.encoders import Payload
    from fastshard.formats.tar import IndexFormat

__all__ = [
    "ShardPattern",
    "ShardWriter",
]


NUMBER = re.compile(r"%0?[0-9]*d")
BASES = (10, 16, 8, 2)  # that a format may write a number in


class ShardPattern:
    """A path with a place for a shard's number, or without one.

    Parameters
    ----------
    text : str
        ``"train-{:06d}.tar"`` or, WebDataset's way, ``"train-%06d.tar"``. With
        braces in it, a percent sign is only that.

    Raises
    ------
    ValueError
        There are several places, or numbers would not tell shards apart.
    """

    def __init__(self, text: str) -> None:
        if not isinstance(text, str):
            raise TypeError(f"a pattern is a str, not {type(text).__name__}")
        self._text = text
        self._braces = "{" in text or "}" in text
        if self._braces:
            fields = [f for _, f, _, _ in string.Formatter().parse(text)]
            places = [field for field in fields if field is not None]
            if any(field not in ("", "0") for field in places):
                raise ValueError(f"{text}: a number's place is {{}} or {{:06d}}")
        else:
            places = NUMBER.findall(text)
        if len(places) > 1:
            raise ValueError(f"{text} has places for {len(places)} numbers, not one")
        self._places = len(places)
        try:
            same = self.path(0) == self.path(1)
        except LookupError:  # a place inside a place
            raise ValueError(f"{text}: a number's place is {{}} or {{:06d}}") from None
        if places and same:
            raise ValueError(f"{text} gives shards the same name")

    def path(self, number: int) -> str:
        """Return the path of a shard; one for all numbers where there is no place."""
        if self._braces:
            return self._text.format(number)
        if self._places:
            return NUMBER.sub(lambda place: place[0] % number, self._text)
        return self._text

    @property
    def has_number(self) -> bool:
        """Say whether the pattern has a place for a number."""
        return self._places > 0

    def numbers(self) -> Iterator[int]:
        """Find the shards that exist; yield their numbers, in no order.

        Raises
        ------
        OSError
            The directory cannot be listed.
        """
        before, after = self._around()
        folder, begin = os.path.split(before)
        end = re.split(r"[/\\]" if os.sep == "\\" else "/", after, maxsplit=1)[0]
        below = after[len(end) :]  # the number may be in a directory's name
        for name in os.listdir(folder or "."):
            if len(name) < len(begin) + len(end) + 1 or not name.endswith(end):
                continue
            digits = name[len(begin) : len(name) - len(end)]
            for number in _numbers_in(digits):
                path = self.path(number)
                if path == before + digits + after and name.startswith(begin):
                    if not below or os.path.lexists(path):
                        yield number
                    break

    def _around(self) -> tuple[str, str]:
        """Return the text on both sides of the number's place."""
        if not self._braces:
            before, after = NUMBER.split(self._text)
            return before, after
        parts = list(string.Formatter().parse(self._text))
        place = next(i for i, part in enumerate(parts) if part[1] is not None)
        return (
            "".join(part[0] for part in parts[: place + 1]),
            "".join(part[0] for part in parts[place + 1 :]),
        )

    def __str__(self) -> str:
        return self._text


def _numbers_in(digits: str) -> Iterator[int]:
    """Yield what digits may say, written by any of Python's formats for integers."""
    if len(digits) > 100:  # no shard's number
        return
    for base in BASES:
        try:
            number = int(digits.strip().replace(",", ""), base)
        except ValueError:
            continue
        if number >= 0:
            yield number


class ShardWriter:
    """Write samples to tar shards, each of which appears whole.

    >>> with ShardWriter("train-{:06d}.tar", max_size="1GiB") as writer:
    ...     writer.write({"__key__": "000042", "jpg": data, "json": {"label": 3}})

    A shard is written under a temporary name. When it is complete its headers
    are read back and compared, it is synced and renamed, and only then its
    index is written: an index is never there before what it lists, and a crash
    between the two leaves a shard that is merely scanned when it is opened.

    An exception inside the ``with`` discards the unfinished shard; those that
    are finished stay. So it is for a writer that is dropped without `close`,
    with a `ResourceWarning`, and for a killed process, which may leave a hidden
    ``.tmp`` file too. Without any sample no shard is written.

    The same samples give the same bytes: ustar headers without an owner, a fixed
    time, pax headers only for names that are not ASCII or too long and for 8 GiB
    and more, two blocks of zeros at the end. A writer is for one thread at a time,
    and for the process that made it.

    Parameters
    ----------
    pattern : str or path-like
        Where shards go, with a place for the number: ``"train-{:06d}.tar"``, or
        ``"train-%06d.tar"``. Without one there can be one shard only.
    max_size : int, str or None
        Bytes of a shard's file at most; ``"500MB"``, ``"1GiB"``. Only a sample
        that is larger by itself gets a shard that is larger.
    max_count : int, optional
        Samples of a shard at most.
    index : {"fsi", "json", "idx", "tar.idx"} or None
        The index to write beside each shard; None for none.
    start : int
        The first shard's number.
    overwrite : bool
        Whether shards and indexes that exist are replaced. An ``.fsi`` beside a
        replaced shard is removed first, whatever `index` says.
    append : bool
        Go on after the shards that exist: the first number is one more than the
        largest of them, and not below `start`. No file that exists is touched. Of
        several processes that append at once each shard gets a number of its own.
        Renew a ``dataset.fsi`` afterwards: ``fastshard index``.
    lower : bool
        Fields must be lower case, for readers make them so. False is for shards
        that are read with ``open_shard(path, lower=False)``.
    mtime : int
        Each member's time, in seconds since 1970.
    mode : int
        Each member's permission bits.

    Raises
    ------
    ValueError, TypeError
        An argument is none of the above; the pattern is a URL.
    """

    @named_options("ShardWriter")
    def __init__(
        self,
        pattern: str | os.PathLike[str],
        *,
        max_size: int | str | None = "1GiB",
        max_count: int | None = None,
        index: IndexFormat | None = "fsi",
        start: int = 0,
        overwrite: bool = False,
        append: bool = False,
        lower: bool = True,
        mtime: int = 0,
        mode: int = 0o644,
    ) -> None:
        self._closed = True  # until all is well
        self._growing: TarBuilder | None = None
        _check_local(pattern)
        self._pattern = ShardPattern(os.fspath(pattern))
        self._max_size = None if max_size is None else parse_size(max_size)
        self._max_count = None if max_count is None else operator.index(max_count)
        if self._max_count is not None and self._max_count < 1:
            raise ValueError(f"max_count is above 0, not {max_count}")
        self._number = operator.index(start)
        if self._number < 0:
            raise ValueError(f"start is not negative: {start}")
        self._index = index
        self._overwrite = overwrite
        self._append = append
        if append and overwrite:
            raise ValueError("append=True touches no shard, overwrite=True replaces")
        if append and not self._pattern.has_number:
            raise ValueError(f"{self._pattern} has no place for another shard's number")
        self._lower = lower
        self._headers = HeaderEncoder(operator.index(mode), operator.index(mtime))
        self._suffixes: dict[str, bytes] = {}  # checked fields: ".jpg"
        self._shards: list[str] = []
        self._finished = 0
        self._check_index()
        self._closed = False

    @property
    def shards(self) -> list[str]:
        """Paths of the finished shards, absolute, in order."""
        return list(self._shards)

    @property
    def count(self) -> int:
        """Samples written so far, without those of a discarded shard."""
        growing = self._growing
        return self._finished + (0 if growing is None else growing.count)

    def write(self, sample: Mapping[str, object]) -> None:
        """Write a sample, whole or not at all.

        Parameters
        ----------
        sample : Mapping
            ``__key__`` is its key: a relative path whose last part has no dot,
            for readers end the key there. Other names of the form ``__x__`` are
            passed over, as WebDataset does. All else are fields, stored in the
            order given, each as a member named ``key.field``.

            Bytes-like values are stored as they are. Others are encoded by the
            last suffix of the field: a str as UTF-8; ``json`` what JSON can say
            (a str is JSON text already); ``cls``, ``index`` and so on an int in
            decimal; ``npy`` an array, without pickle; ``npz`` a mapping of
            arrays, not compressed; ``jpg`` (quality 100), ``png``, ``webp``
            (lossless), ``ppm``, ``bmp``, ``tiff`` a Pillow image or an array of
            uint8; ``msgpack`` what it can say.

        Raises
        ------
        ValueError
            A key or a field would not read back equal, a key is in the shard
            already, a value cannot be stored, a sample has no field, or a
            pattern without a number needs one. Nothing of the sample is written.
        TypeError
            A field does not take such a value. Nothing is written.
        FastshardError
            A library that encodes a value is not installed. Nothing is written.
        FileExistsError
            The next shard or its index exists. Nothing is written.
        FormatError
            A finished shard does not hold what was written to it.
        ClosedError
            The writer is closed.
        OSError
            A shard cannot be written. The unfinished one is discarded, and the
            writer is closed.
        """
        if self._closed:
            raise ClosedError(f"the writer of {self._pattern} is closed")
        key, members, size = self._encode(sample)
        growing = self._room_for(key, size)
        try:
            growing.append(key, members, size)
        except BaseException:
            self._abandon()
            raise

    def close(self) -> None:
        """Finish the last shard. Closing twice is no error.

        Raises
        ------
        OSError, FormatError, FastshardError
            As for `write`; or the index cannot carry what the shard has, which
            then stays without one.
        """
        try:
            self._finish()
        finally:
            self._closed = True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if exc_type is None:
            self.close()
        else:
            self._abandon()

    def __del__(self) -> None:
        growing = getattr(self, "_growing", None)
        if growing is not None:  # its file goes with it
            warnings.warn(
                f"{growing.path}: a writer was dropped without close(), and "
                f"{growing.count:,} samples with it",
                ResourceWarning,
                stacklevel=2,
            )

    def __repr__(self) -> str:
        state = "closed" if self._closed else "open"
        return f"<ShardWriter of {self._pattern}, {state}: {self.count:,} samples>"

    def _encode(
        self, sample: Mapping[str, object]
    ) -> tuple[str, list[tuple[bytes, bytes, Payload]], int]:
        """Return the key, each member's name, header and data, and bytes of all."""
        key = _key_of(sample)
        start, suffixes = key.encode(), self._suffixes
        members: list[tuple[bytes, bytes, Payload]] = []
        total = 0
        for field, value in sample.items():
            suffix = suffixes.get(field)
            if suffix is None:
                if field == "__key__" or is_reserved(field):
                    continue
                suffix = self._new_suffix(key, field)
            payload = value if type(value) is bytes else _encoded(key, field, value)
            size = len(payload)
            name = start + suffix
            check_name(key, name)
            header = self._headers.member(name, size)
            members.append((name, header, payload))
            total += len(header) + size + -size % BLOCK
        if not members:
            raise ValueError(f"sample {key!r} has no field, and would not exist")
        return key, members, total

    def _new_suffix(self, key: str, field: str) -> bytes:
        """Check a field's name, and remember it."""
        if len(self._suffixes) >= 10_000:  # bounded, whatever the samples are
            self._suffixes.clear()
        suffix = f".{check_field(key, field, self._lower)}".encode()
        self._suffixes[field] = suffix
        return suffix

    def _room_for(self, key: str, size: int) -> TarBuilder:
        """Return the shard that a sample goes to, begun if need be."""
        growing = self._growing
        if growing is not None and self._is_full(growing, size):
            self._finish()
            growing = None
        if growing is None:
            growing = self._begin()
        if key in growing.keys:
            raise ValueError(
                f"sample {key!r} is in {growing.path} already, "
                "and both would be read as one"
            )
        return growing

    def _is_full(self, growing: TarBuilder, size: int) -> bool:
        if self._max_count is not None and growing.count >= self._max_count:
            return True
        room = self._max_size
        return room is not None and growing.size + size + len(END) > room

    def _begin(self) -> TarBuilder:
        if self._append:
            last = max(self._pattern.numbers(), default=-1)
            self._number = max(self._number, last + 1)
            path = next(self._free())
        else:
            path = os.path.abspath(self._pattern.path(self._number))
        if path in self._shards:
            raise ValueError(
                f"{self._pattern} has no place for a second shard's number"
            )
        if not self._overwrite and not self._append:
            name = self._taken(path)
            if name is not None:
                reason = (
                    "exists; append=True goes on after the last shard, and "
                    "overwrite=True replaces shards"
                )
                raise FileExistsError(errno.EEXIST, reason, name)
        self._growing = TarBuilder(path, overwrite=self._overwrite)
        self._number += 1
        return self._growing

    def _taken(self, path: str) -> str | None:
        """Return which name of a shard's, or of its index, exists; None: none."""
        names = [path] if self._index is None else [path, self._index_of(path)]
        return next((name for name in names if os.path.lexists(name)), None)

    def _free(self) -> Iterator[str]:
        """Yield paths of shards that do not exist, from the next number on."""
        while True:
            path = os.path.abspath(self._pattern.path(self._number))
            if self._taken(path) is None:
                yield path
            self._number += 1

    def _finish(self) -> None:
        """Let the shard that grows appear, then its index."""
        growing, self._growing = self._growing, None
        if growing is None:
            return
        closed, self._closed = self._closed, True  # if anything fails
        try:
            contents = growing.complete()
            if self._overwrite:
                self._remove_index(growing.path)
            path = growing.path
            if self._append:  # another process may have taken the number meanwhile
                found = growing.new.commit(self._free())
                if found != os.path.realpath(path):
                    path = found
            else:
                growing.new.commit()
        finally:
            growing.new.discard()
        self._shards.append(path)
        self._finished += growing.count
        if self._index is not None:
            self._save_index(path, contents)
        self._closed = closed

    def _save_index(self, path: str, contents: Contents) -> None:
        grouping = Grouping(contents.table, False, self._lower)
        with LocalFile(path) as file:
            where = self._index_of(path)
            save_index(contents, file, where, self._index, grouping=grouping)

    def _remove_index(self, path: str) -> None:
        """Remove the index of a shard that is replaced, so that none outlives it."""
        for kind in {"fsi", self._index} - {None}:
            with suppress(FileNotFoundError):
                os.unlink(sidecar_path(path, str(kind)))

    def _abandon(self) -> None:
        """Discard the shard that grows, and close."""
        growing, self._growing = self._growing, None
        self._closed = True
        if growing is not None:
            growing.new.discard()

    def _index_of(self, path: str) -> str:
        assert self._index is not None
        return sidecar_path(path, self._index)

    def _check_index(self) -> None:
        """Refuse an index that shards would share, or that would replace one."""
        if self._index is None:
            return
        if self._index not in FORMATS:
            raise ValueError(f"{self._index!r} is no index: {', '.join(FORMATS)}")
        first, second = (self._pattern.path(self._number + i) for i in range(2))
        if self._index_of(first) == first:
            raise ValueError(f"{self._pattern}: the index would replace the shard")
        if first != second and self._index_of(first) == self._index_of(second):
            raise ValueError(f"{self._pattern}: all shards would have one index")


def _check_local(pattern: str | os.PathLike[str]) -> None:
    """Refuse a URL, which would be a folder that is called as its scheme.

    Raises
    ------
    ValueError
        It is one, of whatever scheme; also one that pathlib took a slash from.
    """
    text = os.fspath(pattern)
    slashes = "/{1,2}" if isinstance(pattern, os.PathLike) else "//"
    found = isinstance(text, str) and re.match(rf"([A-Za-z][\w+.-]+):{slashes}", text)
    if found:
        raise ValueError(
            f"{found[1]}:// is not written to: ShardWriter writes files, give it a "
            "path and copy the shards there"
        )


def _key_of(sample: Mapping[str, object]) -> str:
    if not isinstance(sample, Mapping):
        raise TypeError(f"a sample is a mapping, not {type(sample).__name__}")
    try:
        key = sample["__key__"]
    except KeyError:
        raise ValueError("a sample needs a __key__") from None
    if not isinstance(key, str):
        raise TypeError(f"a __key__ is a str, not {type(key).__name__}")
    check_key(key)
    return key


def _encoded(key: str, field: str, value: object) -> Payload:
    """Encode a field's value; errors name the sample and the field."""
    try:
        return encode(field, value)
    except TypeError as error:
        raise TypeError(f"sample {key!r}, field {field!r}: {error}") from error
    except (ValueError, OverflowError, RecursionError, OSError) as error:
        raise ValueError(f"sample {key!r}, field {field!r}: {error}") from error
