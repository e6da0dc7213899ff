"""Writer of tar shards, each published atomically, and patterns of their paths."""

from __future__ import annotations

import errno
import operator
import os
import re
import string
from collections.abc import Iterator, Mapping
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from fastshard._core.io.source import LocalFile
from fastshard._core.table.grouping import Grouping
from fastshard._util.files import make_directory, name_full_disk
from fastshard._util.options import check_option_names
from fastshard._util.processes.temporaries import sweep_once
from fastshard._util.sizes import parse_size
from fastshard._util.terminal import escape_line
from fastshard._util.writing.unclosed import Loss, report_dropped, report_ended, watch
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
    "escape_braces",
]


NUMBER = re.compile(r"%0?[0-9]*d")
BASES = (10, 16, 8, 2)  # bases of Python's formats for integers


class ShardPattern:
    """Path of shards, with or without a slot for the shard's number."""

    def __init__(self, text: str) -> None:
        if not isinstance(text, str):
            raise TypeError(f"pattern must be a str, got {type(text).__name__}")
        self._text = text
        self._braces = "{" in text or "}" in text
        if self._braces:
            fields = [f for _, f, _, _ in string.Formatter().parse(text)]
            slots = [field for field in fields if field is not None]
            if any(field not in ("", "0") for field in slots):
                raise ValueError(
                    f"the shard's number must be {{}} or {{:06d}}, got {text}"
                )
        else:
            slots = NUMBER.findall(text)
        if len(slots) > 1:
            raise ValueError(
                f"a pattern must have one number, got {len(slots)} in {text}"
            )
        self._slots = len(slots)
        try:
            same = self.path(0) == self.path(1)
        except LookupError:  # a slot inside a slot
            raise ValueError(
                f"the shard's number must be {{}} or {{:06d}}, got {text}"
            ) from None
        if slots and same:
            raise ValueError(f"a pattern must give shards different names, got {text}")

    def path(self, number: int) -> str:
        """Return the path of a shard, the same for all numbers without a slot."""
        if self._braces:
            return self._text.format(number)
        if self._slots:
            return NUMBER.sub(lambda slot: slot[0] % number, self._text)
        return self._text

    @property
    def has_number(self) -> bool:
        """True if the pattern has a slot for a number."""
        return self._slots > 0

    def numbers(self) -> Iterator[int]:
        """Yield the numbers of existing shards, in arbitrary order."""
        before, after = self._split()
        folder, begin = os.path.split(before)
        end = re.split(r"[/\\]" if os.sep == "\\" else "/", after, maxsplit=1)[0]
        below = after[len(end) :]  # the number may be in a directory's name
        for name in os.listdir(folder or "."):
            if len(name) < len(begin) + len(end) + 1 or not name.endswith(end):
                continue
            digits = name[len(begin) : len(name) - len(end)]
            for number in _parse_numbers(digits):
                path = self.path(number)
                if path == before + digits + after and name.startswith(begin):
                    if not below or os.path.lexists(path):
                        yield number
                    break

    def _split(self) -> tuple[str, str]:
        """Return the text before and after the slot."""
        if not self._braces:
            before, after = NUMBER.split(self._text)
            return before, after
        parts = list(string.Formatter().parse(self._text))
        slot = next(i for i, part in enumerate(parts) if part[1] is not None)
        return (
            "".join(part[0] for part in parts[: slot + 1]),
            "".join(part[0] for part in parts[slot + 1 :]),
        )

    def __str__(self) -> str:
        return self._text


def escape_braces(text: str) -> str:
    """Return text for a `ShardPattern`, in which braces stand for themselves."""
    return text.replace("{", "{{").replace("}", "}}")


def _parse_numbers(digits: str) -> Iterator[int]:
    """Yield the numbers that digits may stand for, in Python's formats for integers."""
    if len(digits) > 100:  # not a shard's number
        return
    for base in BASES:
        try:
            number = int(digits.strip().replace(",", ""), base)
        except ValueError:
            continue
        if number >= 0:
            yield number


class ShardWriter:
    """Writer of samples to tar shards, each published atomically.

    A shard is written under a temporary name. When it is complete, its headers are read
    back and compared, it is synced and renamed, and then its index is written. An index
    thus never exists before its shard; after a crash between the two, the shard is
    scanned when it is opened.

    An exception inside the ``with`` discards the unfinished shard and keeps finished
    ones. The same holds for a writer that is dropped, or open at exit, without `close`:
    an `UnclosedWriterWarning` says how many samples are not stored. It holds for a
    killed process, too; its hidden ``.tmp`` file is removed by the next writer into the
    folder. Without samples no shard is written.

    The same samples give the same bytes: ustar headers without an owner and with a
    fixed time, pax headers only for names that are long or not ASCII and for 8 GiB and
    more, two blocks of zeros at the end. Use a writer in one thread at a time, and only
    in the process that created it.

    Parameters
    ----------
    pattern : str or path-like
        Path of the shards with a slot for the number: ``"train-{:06d}.tar"`` or
        ``"train-%06d.tar"``. Without a slot there can be one shard only. Missing
        directories are created with the first shard.
    max_size : int, str or None, default "1GiB"
        Size of a shard's file, at most: bytes, ``"500MB"``, ``"1GiB"``. A sample that
        exceeds it gets a shard of its own.
    max_count : int, optional
        Number of samples in a shard, at most.
    index : "fsi", "json", "idx", "tar.idx" or None, default "fsi"
        Format of the index to write beside each shard; None for no index.
    start : int, default 0
        The first shard's number.
    overwrite : bool, default False
        Replace existing shards and indexes. An ``.fsi`` beside a replaced shard is
        removed first, for any `index`.
    append : bool, default False
        Continue after the existing shards: the first number is one more than their
        largest, and at least `start`. Existing files stay unchanged. Processes that
        append at the same time never share a number. Rebuild ``dataset.fsi``
        afterwards: ``fastshard index``.
    lower : bool, default True
        Require lower-case fields, for readers lower-case them. Use False for shards
        that are read with ``open_shard(path, lower=False)``.
    mtime : int, default 0
        Each member's modification time, in seconds since 1970.
    mode : int, default 0o644
        Each member's permission bits.
    maxsize, maxcount
        webdataset's names of `max_size` and `max_count`, which take its floats, as
        ``3e9``, too.

    Raises
    ------
    ValueError, TypeError
        An argument is invalid, or the pattern is a URL.

    Examples
    --------
    >>> import fastshard
    >>> with fastshard.ShardWriter("new/train-{:06d}.tar", max_size="1GiB") as writer:
    ...     for i in range(3):
    ...         writer.write({"__key__": f"{i:06d}", "jpg": b"...", "json": {"a": i}})
    >>> writer.shards, writer.count
    (['...new/train-000000.tar'], 3)
    >>> fastshard.open("new/")[2].json("json")
    {'a': 2}
    """

    @check_option_names(
        "ShardWriter", aliases={"maxsize": "max_size", "maxcount": "max_count"}
    )
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
        maxsize: float | str | None = None,
        maxcount: float | None = None,
    ) -> None:
        self._closed = True  # until the arguments are checked
        self._builder: TarBuilder | None = None
        _check_local(pattern)
        self._pattern = ShardPattern(os.fspath(pattern))
        self._max_size = None if max_size is None else parse_size(_whole(max_size))
        self._max_count = (
            None if max_count is None else operator.index(_whole(max_count))
        )
        if self._max_count is not None and self._max_count < 1:
            raise ValueError(f"max_count must be positive, got {max_count}")
        self._number = operator.index(start)
        if self._number < 0:
            raise ValueError(f"start must not be negative, got {start}")
        self._index = index
        self._overwrite = overwrite
        self._append = append
        if append and overwrite:
            raise ValueError("append=True and overwrite=True exclude each other")
        if append and not self._pattern.has_number:
            raise ValueError(
                f"append=True needs a pattern with a number, as {{:06d}}, "
                f"got {self._pattern}"
            )
        self._lower = lower
        self._headers = HeaderEncoder(operator.index(mode), operator.index(mtime))
        self._suffixes: dict[str, bytes] = {}  # by checked field: b".jpg"
        self._shards: list[str] = []
        self._digests: dict[str, str] | None = None  # SHA-256 by shard, if wanted
        self._finished = 0
        self._check_index()
        self._closed = False
        watch(self)

    @property
    def shards(self) -> list[str]:
        """Paths of the finished shards, absolute, in order."""
        return list(self._shards)

    @property
    def count(self) -> int:
        """Number of samples written so far, except those of a discarded shard."""
        builder = self._builder
        return self._finished + (0 if builder is None else builder.count)

    def write(self, sample: Mapping[str, object]) -> None:
        """Write a sample, all of it or nothing.

        Parameters
        ----------
        sample : Mapping
            ``__key__`` is the key: a relative path without a dot in the last part, at
            which readers would end it. Other names of the form ``__x__`` are ignored,
            as in WebDataset. All others are fields, stored in the given order as
            members named ``key.field``.

            Bytes-like values are stored unchanged. Others are encoded by the last
            suffix of the field: a str as UTF-8; ``json``: a JSON value (a str is JSON
            text); ``cls``, ``index`` and so on: an int in decimal; ``npy``: an array,
            without pickle; ``npz``: a mapping of arrays, uncompressed; ``jpg`` (quality
            100), ``png``, ``webp`` (lossless), ``ppm``, ``bmp``, ``tiff``: a Pillow
            image or an array of uint8; ``msgpack``: a msgpack value.

        Raises
        ------
        ValueError
            A key or a field would read back differently, the shard already has the key,
            a value cannot be encoded, the sample has no field, or a pattern without a
            number needs one. Nothing of the sample is written.
        TypeError
            A value has the wrong type for its field. Nothing is written.
        FastshardError
            A library for encoding a value is not installed. Nothing is written.
        FileExistsError
            The next shard or its index exists. Nothing is written.
        FormatError
            A finished shard does not have the members written to it.
        ClosedError
            The writer is closed.
        OSError
            A shard cannot be written. The unfinished shard is discarded, and the writer
            is closed.

        Examples
        --------
        >>> with fastshard.ShardWriter("new-{:04d}.tar") as writer:
        ...     writer.write({"__key__": "a", "npy": np.eye(2), "txt": "one", "cls": 1})
        >>> fastshard.open("new-0000.tar")[0].decode("txt", "cls")
        {'__key__': 'a', 'txt': 'one', 'cls': 1}
        """
        if self._closed:
            raise ClosedError(f"the writer of {self._pattern} is closed")
        key, members, size = self._encode(sample)
        builder = self._builder_for(key, size)
        try:
            builder.append(key, members, size)
        except BaseException as error:
            self._abandon()
            if isinstance(error, OSError):
                name_full_disk(error, builder.path)
            raise

    def close(self) -> None:
        """Finish the last shard; closing twice is allowed.

        The ``with`` statement calls it.

        Raises
        ------
        OSError, FormatError, FastshardError
            As for `write`; or the format of the index cannot represent the shard, which
            stays without an index.

        Examples
        --------
        >>> writer = fastshard.ShardWriter("new-{:04d}.tar")
        >>> writer.write({"__key__": "a", "txt": "one"})
        >>> writer.close()
        >>> writer.shards
        ['...new-0000.tar']
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
            return
        try:
            report_ended(self, exc_type)
        finally:
            self._abandon()

    def __del__(self) -> None:
        report_dropped(self)

    def _find_loss(self) -> Loss:
        """Return the samples of the unfinished shard, which ends with the writer."""
        builder = self._builder
        if builder is None:
            return Loss("ShardWriter", str(self._pattern), 0)
        return Loss("ShardWriter", builder.path, builder.count)

    def __repr__(self) -> str:
        state = "closed" if self._closed else "open"
        pattern = escape_line(str(self._pattern))
        return f"ShardWriter({self.count:,} samples; {pattern}; {state})"

    def _encode(
        self, sample: Mapping[str, object]
    ) -> tuple[str, list[tuple[bytes, bytes, Payload]], int]:
        """Return the key, each member's name, header and data, and the total size."""
        key = _get_key(sample)
        start, suffixes = key.encode(), self._suffixes
        members: list[tuple[bytes, bytes, Payload]] = []
        total = 0
        for field, value in sample.items():
            suffix = suffixes.get(field)
            if suffix is None:
                if field == "__key__" or is_reserved(field):
                    continue
                suffix = self._new_suffix(key, field)
            payload = (
                value if type(value) is bytes else _encode_field(key, field, value)
            )
            size = len(payload)
            name = start + suffix
            check_name(key, name)
            header = self._headers.member(name, size)
            members.append((name, header, payload))
            total += len(header) + size + -size % BLOCK
        if not members:
            raise ValueError(
                f"sample {key!r} has no field; a sample needs at least one"
            )
        return key, members, total

    def _new_suffix(self, key: str, field: str) -> bytes:
        """Check a field's name, and cache its suffix."""
        if len(self._suffixes) >= 10_000:  # bounds memory
            self._suffixes.clear()
        suffix = f".{check_field(key, field, self._lower)}".encode()
        self._suffixes[field] = suffix
        return suffix

    def _builder_for(self, key: str, size: int) -> TarBuilder:
        """Return the shard for a sample of `size` bytes; begin one if necessary."""
        builder = self._builder
        if builder is not None and self._is_full(builder, size):
            self._finish()
            builder = None
        if builder is None:
            builder = self._begin()
        if key in builder.keys:
            raise ValueError(
                f"sample {key!r} is in {builder.path} already; readers would join both"
            )
        return builder

    def _is_full(self, builder: TarBuilder, size: int) -> bool:
        if self._max_count is not None and builder.count >= self._max_count:
            return True
        room = self._max_size
        return room is not None and builder.size + size + len(END) > room

    def _begin(self) -> TarBuilder:
        if self._append:
            try:
                last = max(self._pattern.numbers(), default=-1)
            except FileNotFoundError:  # the directory, which is created below
                last = -1
            self._number = max(self._number, last + 1)
            path = next(self._free_paths())
        else:
            path = os.path.abspath(self._pattern.path(self._number))
        if path in self._shards:
            raise ValueError(
                "a second shard needs a pattern with a number, as {:06d}, "
                f"got {self._pattern}"
            )
        if not self._overwrite and not self._append:
            name = self._find_existing(path)
            if name is not None:
                reason = (
                    "exists; append=True continues after the last shard, and "
                    "overwrite=True replaces shards"
                )
                raise FileExistsError(errno.EEXIST, reason, name)
        folder = os.path.dirname(path)
        make_directory(folder)
        sweep_once(folder)
        hashed = self._digests is not None
        self._builder = TarBuilder(path, overwrite=self._overwrite, hashed=hashed)
        self._number += 1
        return self._builder

    def _find_existing(self, path: str) -> str | None:
        """Return the path of a shard, or of its index, if it exists."""
        names = [path] if self._index is None else [path, self._index_path(path)]
        return next((name for name in names if os.path.lexists(name)), None)

    def _free_paths(self) -> Iterator[str]:
        """Yield paths of shards that do not exist, from the next number on."""
        while True:
            path = os.path.abspath(self._pattern.path(self._number))
            if self._find_existing(path) is None:
                yield path
            self._number += 1

    def _finish(self) -> None:
        """Publish the unfinished shard, then its index."""
        builder, self._builder = self._builder, None
        if builder is None:
            return
        closed, self._closed = self._closed, True  # stays closed after an error
        try:
            contents = builder.complete()
            if self._overwrite:
                self._remove_index(builder.path)
            path = builder.path
            if self._append:  # another process may have taken the number
                found = builder.new.commit(self._free_paths())
                if found != os.path.realpath(path):
                    path = found
            else:
                builder.new.commit()
            if self._digests is not None and builder.digest is not None:
                self._digests[path] = builder.digest.result()
        except OSError as error:
            name_full_disk(error, builder.path)
            raise
        finally:
            builder.discard()
        self._shards.append(path)
        self._finished += builder.count
        if self._index is not None:
            self._save_index(path, contents)
        self._closed = closed

    def _save_index(self, path: str, contents: Contents) -> None:
        grouping = Grouping(contents.table, False, self._lower)
        with LocalFile(path) as file:
            where = self._index_path(path)
            save_index(contents, file, where, self._index, grouping=grouping)

    def _remove_index(self, path: str) -> None:
        """Remove the indexes of a shard about to be replaced."""
        for kind in {"fsi", self._index} - {None}:
            with suppress(FileNotFoundError):
                os.unlink(sidecar_path(path, str(kind)))

    def _abandon(self) -> None:
        """Discard the unfinished shard, and close."""
        builder, self._builder = self._builder, None
        self._closed = True
        if builder is not None:
            builder.discard()

    def _index_path(self, path: str) -> str:
        assert self._index is not None
        return sidecar_path(path, self._index)

    def _check_index(self) -> None:
        """Raise ValueError if shards would share an index, or be replaced by one."""
        if self._index is None:
            return
        if self._index not in FORMATS:
            raise ValueError(
                f"index must be None or one of {', '.join(FORMATS)}, "
                f"got {self._index!r}"
            )
        first, second = (self._pattern.path(self._number + i) for i in range(2))
        if self._index_path(first) == first:
            raise ValueError(
                f"{self._pattern}: the {self._index} index would replace the shard"
            )
        if first != second and self._index_path(first) == self._index_path(second):
            raise ValueError(
                f"{self._pattern}: all shards would share one index; put the number "
                "before the first dot"
            )


def _whole(number: Any) -> Any:
    """Return a whole float as an int, as webdataset's users write ``3e9``."""
    if isinstance(number, float) and number.is_integer():
        return int(number)
    return number


def _check_local(pattern: str | os.PathLike[str]) -> None:
    """Raise ValueError for a URL, which would create a folder named as its scheme.

    That includes a URL of any scheme, and a `Path` of one, which has one slash less.
    """
    text = os.fspath(pattern)
    slashes = "/{1,2}" if isinstance(pattern, os.PathLike) else "//"
    found = isinstance(text, str) and re.match(rf"([A-Za-z][\w+.-]+):{slashes}", text)
    if found:
        raise ValueError(
            f"ShardWriter writes local files only, got a {found[1]}:// URL: give it a "
            "path, and upload the shards"
        )


def _get_key(sample: Mapping[str, object]) -> str:
    if type(sample) is not dict and not isinstance(sample, Mapping):
        raise TypeError(f"a sample must be a mapping, got {type(sample).__name__}")
    try:
        key = sample["__key__"]
    except KeyError:
        raise ValueError("a sample needs a __key__") from None
    if not isinstance(key, str):
        raise TypeError(f"a __key__ must be a str, got {type(key).__name__}")
    check_key(key)
    return key


def _encode_field(key: str, field: str, value: object) -> Payload:
    """Encode a field's value; errors name the sample and the field."""
    try:
        return encode(field, value)
    except TypeError as error:
        raise TypeError(f"sample {key!r}, field {field!r}: {error}") from error
    except (ValueError, OverflowError, RecursionError, OSError) as error:
        raise ValueError(f"sample {key!r}, field {field!r}: {error}") from error
