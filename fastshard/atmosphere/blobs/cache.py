"""Cache of AT Protocol blobs: one download each, verified by CID.

``com.atproto.sync.getBlob`` answers with a whole blob and ignores ranges. A blob is
therefore stored whole; the name of its entry in the cache is ``at://DID/blob/CID``.
"""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple, cast

from fastshard._util.paths.remote_options import RemoteOptions
from fastshard._util.paths.urls import Url, parse_url
from fastshard._util.processes.descriptors import open_regular
from fastshard.atmosphere.at_uri import is_did
from fastshard.atmosphere.cid import RAW, parse_cid
from fastshard.atmosphere.client import Atmosphere
from fastshard.errors import (
    BlobNotFoundError,
    FastshardError,
    RemoteError,
    RemoteNotFoundError,
)
from fastshard.remote.cache.disk import read_at
from fastshard.remote.cache.hashed import (
    HashedObject,
    ObjectWriter,
    WrongHashError,
    find_hashed,
    locked,
)
from fastshard.remote.cache.store import RangeCache
from fastshard.remote.deadline import SLOWEST, Deadline
from fastshard.remote.errors import ReadCancelledError
from fastshard.remote.file import default_cache_dir
from fastshard.remote.meter import Meter
from fastshard.remote.options import Settings
from fastshard.remote.transport import MAX_WHOLE, ObjectInfo, Part

__all__ = [
    "MIDDLE",
    "BlobClient",
    "BlobName",
    "BlobSettings",
    "fetch_blob",
    "parse_blob_url",
]

METHOD = "com.atproto.sync.getBlob"
MIDDLE = "/blob/"  # of a blob's URL, between DID and CID
MAX_DOWNLOAD = 1 << 30  # bytes of a blob; a limit on the sizes in records

Sink = Callable[[bytes], object]


class BlobName(NamedTuple):
    """The name of a blob.

    Attributes
    ----------
    did : str
        Whose repository it is in.
    cid : str
    nbytes : int or None
        Its size, if a record says it.
    """

    did: str
    cid: str
    nbytes: int | None = None

    @property
    def url(self) -> str:
        """``at://DID/blob/CID``."""
        return f"at://{self.did}{MIDDLE}{self.cid}"


def parse_blob_url(url: str) -> BlobName:
    """Parse ``at://DID/blob/CID``."""
    did, middle, cid = url.removeprefix("at://").partition(MIDDLE)
    if not (url.startswith("at://") and middle and did and cid) or "/" in did + cid:
        raise ValueError(f"expected at://did/blob/cid, got {url[:200]!r}")
    return BlobName(did, cid)


class BlobSettings(Settings):
    """Options for reading blobs, and for finding their servers."""

    def __init__(
        self,
        options: RemoteOptions,
        sizes: Mapping[str, int],
        pds_endpoint: str | None = None,
        plc_url: str | None = None,
        client: Atmosphere | None = None,
    ) -> None:
        folder = os.fspath(options.get("cache_dir") or "") or default_cache_dir()
        if folder is None:
            raise FastshardError("blobs are read from a cache: give cache_dir=")
        folder = os.path.abspath(folder)
        super().__init__(cast(RemoteOptions, {**options, "cache_dir": folder}))
        self.sizes = sizes
        self.pds_endpoint = pds_endpoint
        self.plc_url = plc_url
        self.atmosphere = client
        self.client = BlobClient
        self.blob_dir = folder
        self.cache_dir = None  # `BlobClient` reads whole blobs, not ranges of them

    def __reduce__(self) -> tuple[Any, ...]:
        super().__reduce__()  # refuses secrets
        given = self.options, dict(self.sizes), self.pds_endpoint, self.plc_url
        return BlobSettings, (*given, self.atmosphere)


class _BlobServer:
    """Download server for `BlobSettings`; one per process and settings.

    It has no session: blobs are public.
    """

    def __init__(self, settings: Settings) -> None:
        assert isinstance(settings, BlobSettings)
        self._is_named = settings.pds_endpoint is not None
        client = None if self._is_named else settings.atmosphere
        self._client = client or Atmosphere(
            settings.pds_endpoint,
            plc_url=settings.plc_url,
            private_hosts=settings.options.get("private_hosts"),
            timeout=settings.timeout,
        )

    def download(self, blob: BlobName, open_sink: Callable[[], Sink]) -> None:
        """Download a blob; see `Atmosphere.download_blob`."""
        most = MAX_DOWNLOAD if blob.nbytes is None else blob.nbytes
        if not self._is_named:
            self._client.download_blob(blob.did, blob.cid, open_sink, most=most)
            return
        self._client._xrpc.download(
            self._client._service,
            METHOD,
            {"did": blob.did, "cid": blob.cid},
            open_sink,
            most=most,
        )


class _BlobCache:
    """The disk cache of `BlobSettings`; one per process and settings."""

    def __init__(self, settings: Settings) -> None:
        assert isinstance(settings, BlobSettings)
        self.cache = RangeCache(settings.blob_dir, settings.cache_limit)


def fetch_blob(
    did: str, cid: str, settings: BlobSettings, *, nbytes: int | None = None
) -> str:
    """Return the path of a blob's file in the cache; download it if missing.

    The bytes are compared with the CID before the file gets its name. Threads and
    processes that want the same blob wait for one download.
    """
    path = find_blob(did, cid, settings, nbytes=nbytes)
    if path is not None:
        return path
    blob = BlobName(did, cid, nbytes)
    wanted = _check(blob)
    cache = settings.shared[_BlobCache].cache
    if settings.offline:
        raise RemoteNotFoundError(
            "the blob is not in cache_dir, and offline=True", blob.url
        )
    wait = settings.timeout + (nbytes or 0) / SLOWEST
    with locked(
        cache,
        blob.url,
        time.monotonic() + wait,
        lambda: find_hashed(cache, wanted, nbytes) is not None,
    ):
        path = _find(cache, wanted, blob)
        return path or _download(cache, wanted, blob, settings)


def find_blob(
    did: str, cid: str, settings: BlobSettings, *, nbytes: int | None = None
) -> str | None:
    """Return the path of a blob's file, or None if it is not in the cache."""
    blob = BlobName(did, cid, nbytes)
    return _find(settings.shared[_BlobCache].cache, _check(blob), blob)


@functools.lru_cache(4096)
def _check(blob: BlobName) -> HashedObject:
    """Return a blob as an object of the cache."""
    if not is_did(blob.did):
        raise RemoteNotFoundError(f"{blob.did[:200]!r} is not a DID", blob.url[:400])
    try:
        codec, digest = parse_cid(blob.cid)
    except ValueError as error:
        raise RemoteNotFoundError(str(error), blob.url[:400]) from None
    if codec != RAW:
        raise RemoteError("the CID is of a record, not of a blob", blob.url)
    if blob.nbytes is not None and not 0 <= blob.nbytes <= MAX_DOWNLOAD:
        raise RemoteError(
            f"a blob of {blob.nbytes:,} bytes is refused: at most {MAX_DOWNLOAD:,}",
            blob.url,
        )
    return HashedObject(blob.url, blob.cid, digest)


def _find(cache: RangeCache, wanted: HashedObject, blob: BlobName) -> str | None:
    """Return the path of a valid blob in the cache, or None."""
    path = find_hashed(cache, wanted, blob.nbytes)
    if path is None or blob.nbytes is None:
        return path
    try:
        size = os.stat(path).st_size
    except OSError:  # removed by another process
        return None
    if size != blob.nbytes:
        raise _wrong_size(size, blob)
    return path


def _wrong_size(size: int, blob: BlobName) -> RemoteError:
    return RemoteError(
        f"expected {blob.nbytes or 0:,} bytes, as the record says, got {size:,}",
        blob.url,
    )


def _download(
    cache: RangeCache, wanted: HashedObject, blob: BlobName, settings: BlobSettings
) -> str:
    """Download a blob into the cache; return the path of its file."""
    with ExitStack() as stack:
        writers: list[ObjectWriter] = []

        def open_sink() -> Sink:
            stack.close()  # data of an earlier attempt
            with _of_disk():
                writers[:] = [stack.enter_context(ObjectWriter(cache, wanted))]
            return write

        def write(data: bytes) -> None:
            with _of_disk():
                writers[0].write(data)

        try:
            settings.shared[_BlobServer].download(blob, open_sink)
        except _DiskError as error:
            raise error.reason from None
        except BlobNotFoundError as error:
            raise RemoteNotFoundError(error.reason, blob.url, error.status) from None
        (writer,) = writers
        if blob.nbytes not in (None, writer.nbytes):
            raise _wrong_size(writer.nbytes, blob)
        try:
            return writer.commit()
        except WrongHashError:
            raise RemoteError(
                "the server sent other bytes than those of the CID", blob.url
            ) from None


class _DiskError(Exception):
    """An error of the cache: the download is not repeated."""

    def __init__(self, reason: OSError) -> None:
        super().__init__(reason)
        self.reason = reason


@contextmanager
def _of_disk() -> Iterator[None]:
    """Wrap errors of the disk, to tell them from those of the network."""
    try:
        yield
    except OSError as error:
        raise _DiskError(error) from None


class BlobClient:
    """Reader of blobs in the cache, downloaded when they are opened; a `Transport`."""

    def __init__(self, settings: Settings) -> None:
        assert isinstance(settings, BlobSettings)
        self._settings = settings
        self.meter = Meter()

    def read(
        self,
        url: Url,
        start: int,
        end: int,
        parts: Sequence[Part],
        expected: ObjectInfo,
        deadline: Deadline | None = None,
    ) -> None:
        """Read parts of a range of a blob; see `Transport`."""
        if deadline is not None and deadline.cancelled:
            raise ReadCancelledError
        begun = time.monotonic()
        fd = open_regular(fetch_url(url.text, self._settings), os.O_RDONLY)
        try:
            for offset, view in parts:
                if not read_at(fd, view, offset):
                    raise RemoteError("the cached file is truncated", url.redacted)
        finally:
            os.close(fd)
        self.meter.record_transfer(end - start, time.monotonic() - begun)

    def head(self, url: str | Url, size: int) -> tuple[ObjectInfo, bytes]:
        """Return the size and at most the first `size` bytes of a blob."""
        url = parse_url(url)
        with open(fetch_url(url.text, self._settings), "rb") as file:
            nbytes = os.fstat(file.fileno()).st_size
            return ObjectInfo(nbytes, url.text, 0), file.read(size)

    def whole(self, url: str | Url) -> tuple[ObjectInfo, bytes]:
        """Return the size and all bytes of a blob."""
        return self.head(url, MAX_WHOLE)


def find_url(url: str, settings: BlobSettings) -> str | None:
    """Return the path of the file of ``at://DID/blob/CID``, if it is in the cache."""
    did, cid, _ = parse_blob_url(url)
    return find_blob(did, cid, settings, nbytes=settings.sizes.get(url))


def fetch_url(url: str, settings: BlobSettings) -> str:
    """Return the path of the file of ``at://DID/blob/CID``; see `fetch_blob`."""
    did, cid, _ = parse_blob_url(url)
    return fetch_blob(did, cid, settings, nbytes=settings.sizes.get(url))
