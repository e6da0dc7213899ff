"""Raw files of compressed shards: decompressed once, and checked against hashes.

The raw file is written beside the compressed one, as mosaicml-streaming does, under a
hidden temporary name that is its lock as well: ``.NAME.tmp``. A process that finds it
locked waits for the raw file; one that finds it unlocked, after its writer was killed,
writes it again. So each raw file is decompressed by one process, appears whole, and a
killed process leaves at most one temporary file, which the next one takes over. The
file is synced before it is renamed; the directory is not, for a raw file that a power
loss takes away is decompressed again.

On file systems without locks each process has a temporary name of its own: the work
may be done twice, and the result is the same.
"""

from __future__ import annotations

import errno
import hashlib
import os
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Protocol

from fastshard._util.files import make_directory
from fastshard._util.processes.descriptors import open_regular
from fastshard._util.processes.locks import close_locked, open_locked
from fastshard.codecs.compression import (
    INPUT_BYTES,
    join_pieces,
    parse_compression,
)
from fastshard.codecs.hashes import compute_hash, hash_file, open_hash
from fastshard.errors import FormatError

__all__ = [
    "StoredFile",
    "check_data_hash",
    "check_hash",
    "locate",
    "open_raw",
    "read_chunks",
    "store_raw",
]

# The directory cannot be written to: use the next place.
UNWRITABLE = (
    errno.EACCES,
    errno.EDQUOT,
    errno.ENOENT,
    errno.ENOSPC,
    errno.ENOTDIR,
    errno.EPERM,
    errno.EROFS,
)
CACHE_FOLDER = "decompressed"  # below cache_dir
UNUSABLE = (errno.EACCES, errno.EPERM, errno.ELOOP, errno.EINVAL)
NEW = os.O_RDWR | os.O_CREAT | os.O_EXCL
MODE = 0o666  # of new files, less the umask
SHORTEST_WAIT, LONGEST_WAIT = 0.001, 0.05  # seconds between two polls of a lock
PATIENCE = 60.0  # seconds without progress of the holder, after which we do the work
IS_WINDOWS = os.name == "nt"
MAX_NAME = 200  # characters of a file's name in a temporary one


def do_nothing() -> None:
    """Do nothing: the default check for cancellation."""


class StoredFile(Protocol):
    """A file of a shard; `fastshard.streaming.FileInfo` is one."""

    @property
    def basename(self) -> str: ...
    @property
    def bytes(self) -> int: ...
    @property
    def hashes(self) -> Mapping[str, str]: ...


def open_raw(
    dirname: str,
    raw: StoredFile,
    zip: StoredFile | None,  # noqa: A002 - the counterpart of raw
    compression: str | None,
    *,
    cache_dir: str | None = None,
    max_memory: int | None = None,
    validate_hash: str | None = None,
    keep: bool = True,
    check_wanted: Callable[[], None] = do_nothing,
) -> str | bytes:
    """Return the path of a raw file; decompress it if it does not exist."""
    path = locate(dirname, raw.basename)
    if os.path.exists(path):
        check_hash(path, raw, validate_hash)
        return path
    if zip is None or not compression:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
    zip_path = locate(dirname, zip.basename)
    codec = parse_compression(compression, zip_path)
    try:
        status = os.stat(zip_path)
    except FileNotFoundError:
        reason = "neither the raw nor the compressed file exists"
        raise FileNotFoundError(errno.ENOENT, reason, path) from None
    if status.st_size != zip.bytes:
        raise FormatError(
            f"the file has {status.st_size:,} bytes; the index states {zip.bytes:,}",
            zip_path,
            min(status.st_size, zip.bytes),
        )

    def pieces() -> Iterator[bytes]:
        check_hash(zip_path, zip, validate_hash)
        for piece in codec.iter_pieces(read_chunks(zip_path), raw.bytes, zip_path):
            check_wanted()
            yield piece

    if keep:
        cached = None
        if cache_dir is not None:
            cached = _place_in_cache(cache_dir, zip_path, status, raw)
        found = _store_somewhere(path, cached, pieces, raw, validate_hash, check_wanted)
        if isinstance(found, str):
            return found
        if max_memory is not None and raw.bytes > max_memory:
            raise OSError(
                found.errno,
                f"{found.strerror}: the raw file cannot be written, and its "
                f"{raw.bytes:,} bytes exceed max_memory={max_memory:,}; pass "
                "cache_dir=",
                path,
            ) from found
    checked = _check_pieces(pieces(), raw, validate_hash, path)
    return join_pieces(checked, raw.bytes, zip_path)


def _store_somewhere(
    path: str,
    cached: str | None,
    pieces: Callable[[], Iterable[bytes]],
    raw: StoredFile,
    validate_hash: str | None,
    check_wanted: Callable[[], None],
) -> str | OSError:
    """Write a raw file to its place, else to the cache; return its path.

    If both are read-only, returns the error of the first.
    """
    try:
        store_raw(path, pieces, raw, validate_hash, check_wanted)
    except OSError as error:
        if error.errno not in UNWRITABLE:
            raise
        # Its traceback holds this frame: a cycle would keep the dataset alive.
        failure = error.with_traceback(None)
    else:
        return path
    if cached is not None:
        try:
            make_directory(os.path.dirname(cached))
            if os.path.exists(cached):
                check_hash(cached, raw, validate_hash)
            store_raw(cached, pieces, raw, validate_hash, check_wanted)
        except OSError as error:
            if error.errno not in UNWRITABLE:
                raise
        else:
            return cached
    return failure


def locate(dirname: str, basename: str) -> str:
    """Return the path of a file of a dataset."""
    parts = (
        basename.replace("\\", "/").split("/")
        if os.sep == "\\"
        else (basename.split("/"))
    )
    if (
        not basename
        or "\0" in basename
        or ".." in parts
        or os.path.isabs(basename)
        or os.path.splitdrive(basename)[0]
        or parts[-1] in ("", ".")
    ):
        raise FormatError(f"the name {basename!r} leaves the directory", dirname, 0)
    return os.path.join(dirname, basename)


def check_hash(path: str, file: StoredFile, algo: str | None) -> None:
    """Check the hash of a file; None: nothing."""
    if algo is not None:
        expected = _expected_hash(file, algo, path)
        _compare(hash_file(path, [algo])[algo], expected, algo, path)


def check_data_hash(data: bytes, path: str, file: StoredFile, algo: str | None) -> None:
    """Check the hash of a file's bytes in memory; None: nothing."""
    if algo is not None:
        expected = _expected_hash(file, algo, path)
        _compare(compute_hash(algo, data), expected, algo, path)


def _expected_hash(file: StoredFile, algo: str, path: str) -> str:
    open_hash(algo)  # raises for an unknown name
    try:
        return file.hashes[algo]
    except KeyError:
        known = ", ".join(sorted(file.hashes)) or "none"
        raise ValueError(f"the index has no hash {algo!r} of {path}: {known}") from None


def _compare(found: str, expected: str, algo: str, path: str) -> None:
    if found != expected:
        raise FormatError(f"{algo} is {found}; the index states {expected}", path, 0)


def store_raw(
    path: str,
    pieces: Callable[[], Iterable[bytes]],
    raw: StoredFile,
    validate_hash: str | None = None,
    check_wanted: Callable[[], None] = do_nothing,
) -> None:
    """Write a raw file, unless it exists or another process is writing it."""
    folder, name = os.path.split(path)
    hidden = f".{name[:MAX_NAME]}"
    temporary = os.path.join(folder, f"{hidden}.tmp")
    while not os.path.exists(path):
        fd = _open_locked(temporary, check_wanted)
        if fd is None:  # another process has written it, or given up
            continue
        if fd < 0:
            temporary = os.path.join(folder, f"{hidden}.{secrets.token_hex(6)}.tmp")
            fd = open_regular(temporary, NEW, MODE)
        renamed = False
        try:
            if os.path.exists(path):
                return
            os.ftruncate(fd, 0)
            for piece in _check_pieces(pieces(), raw, validate_hash, path):
                _write_all(fd, piece)
            os.fsync(fd)
            if IS_WINDOWS:  # which renames no open file
                os.close(fd)
                fd = -1
            os.replace(temporary, path)
            renamed = True
        finally:
            if not renamed:
                with suppress(OSError):
                    os.unlink(temporary)
            if fd >= 0:
                close_locked(fd)


def _check_pieces(
    pieces: Iterable[bytes], raw: StoredFile, algo: str | None, path: str
) -> Iterator[bytes]:
    """Yield pieces of a raw file, then check their hash."""
    if algo is None:
        yield from pieces
        return
    expected = _expected_hash(raw, algo, path)
    made = open_hash(algo)
    for piece in pieces:
        made.update(piece)
        yield piece
    _compare(made.hexdigest(), expected, algo, path)


def _write_all(fd: int, data: bytes) -> None:
    done = os.write(fd, data)
    while done < len(data):
        done += os.write(fd, memoryview(data)[done:])


def read_chunks(path: str) -> Iterator[bytes]:
    """Yield a file in chunks for `Codec.iter_pieces`."""
    with open(path, "rb", buffering=0) as file:
        while chunk := file.read(INPUT_BYTES):
            yield chunk


def _place_in_cache(
    cache_dir: str, zip_path: str, status: os.stat_result, raw: StoredFile
) -> str:
    """Return the path of a raw file in a cache, by the version of the compressed one.

    Hashes of the file are part of the version: times may be those of a copy.
    """
    version = (
        os.path.realpath(zip_path),
        status.st_size,
        status.st_mtime_ns,
        raw.bytes,
        sorted(raw.hashes.items()),
    )
    digest = hashlib.sha256(repr(version).encode("utf-8", "surrogateescape"))
    name = os.path.basename(raw.basename)[:MAX_NAME]
    folder = os.path.join(os.path.abspath(cache_dir), CACHE_FOLDER)
    return os.path.join(folder, f"{digest.hexdigest()[:40]}-{name}")


# The lock.


def _open_locked(temporary: str, check_wanted: Callable[[], None]) -> int | None:
    """Open and lock a temporary file."""
    if IS_WINDOWS:
        return -1
    try:
        found = open_locked(temporary, _wait_for_holder(check_wanted), MODE)
    except OSError as error:
        # Of another user, a link or a pipe: use a name of our own.
        if error.errno in UNUSABLE:
            return -1
        raise
    if found is None:
        return None
    fd, locked = found
    if locked:
        return fd
    os.close(fd)
    if locked is None:
        with suppress(OSError):
            os.unlink(temporary)
    return -1


def _wait_for_holder(check_wanted: Callable[[], None]) -> Callable[[int], bool]:
    """Return a function that waits while the file of a lock grows."""
    pause, seen, since = SHORTEST_WAIT, -1, time.monotonic()

    def may_wait(fd: int) -> bool:
        nonlocal pause, seen, since
        nbytes = os.fstat(fd).st_size
        if nbytes != seen:
            seen, since = nbytes, time.monotonic()
        if time.monotonic() - since > PATIENCE:
            return False
        check_wanted()
        time.sleep(pause)
        pause = min(2 * pause, LONGEST_WAIT)
        return True

    return may_wait
