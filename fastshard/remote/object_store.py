"""Object stores (S3, Google Cloud Storage, Azure) through obstore."""

from __future__ import annotations

import os
import re
import socket
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeVar

from fastshard._core.io.exchange import Scatter
from fastshard._util.paths.urls import (
    HTTP,
    Url,
    normalize_url,
    origin_of,
    parse_url,
    redact,
    scheme_of,
)
from fastshard._util.processes.forks import at_fork
from fastshard.codecs.libraries import import_library
from fastshard.errors import (
    FastshardError,
    RemoteError,
    RemoteNotFoundError,
)
from fastshard.remote.addresses import RefusedHostError
from fastshard.remote.deadline import SLOWEST, Deadline
from fastshard.remote.errors import ReadCancelledError, RetryError
from fastshard.remote.http.connection import check_public
from fastshard.remote.http.response import CODE
from fastshard.remote.meter import MOST_SPAN, Meter
from fastshard.remote.options import Settings
from fastshard.remote.requests.heads import TRANSIENT, find_coding
from fastshard.remote.traffic import traffic
from fastshard.remote.transport import MAX_WHOLE, LoopedRead, ObjectInfo, Part

__all__ = [
    "StoreClient",
    "find_mismatch",
    "mark_store_used",
    "parse_info",
    "read_body",
    "stores_for",
]

PIECE = 1 << 20  # bytes of a body buffered before they are copied
PLAIN_CODINGS = ("", "identity", "aws-chunked")  # the last applies to uploads only

T = TypeVar("T")

MIN_PART = 8 << 20  # bytes of a part of an upload
MAX_PARTS = 9_000  # of an upload; S3 takes 10,000
PARTS_IN_FLIGHT = 4
RETRIES = 2  # by obstore, in each attempt
FIRST = 1 << 20  # bytes of the first range of an object read whole
STATUS = re.compile(r"status code: (\d{3})")
UNREACHED = "there is no connection to the server"
CONNECT = re.compile(  # system message in obstore's debug text
    r'ConnectError\(\s*"(?:tcp connect|dns) error",'
    r'.*?(?:message|error): "([^"]{1,100})"',
    re.DOTALL,
)
TIMES = re.compile(r"\bretries: (\d{1,6}),")
QUERY = re.compile(r"(?<=[?])\S+|(?<=://)[^\s/@]*@")
OBSTORE_SCHEMES = {"gcs": "gs", "adl": "abfss", "azure": "az"}
PASSES = re.compile(r"\bkind: (?:Connect|Request|Timeout|Interrupted)\b")
LASTS = re.compile(r"certificate|UnknownIssuer|NotValidForName", re.IGNORECASE)
# options of its ClientConfig; a panic if given to a store
CLIENT_OPTIONS = frozenset(
    (
        *("allow_http", "allow_invalid_certificates", "connect_timeout"),
        *("default_content_type", "default_headers", "http1_only", "http2_only"),
        *("http2_keep_alive_interval", "http2_keep_alive_timeout"),
        *("http2_keep_alive_while_idle", "http2_max_frame_size", "pool_idle_timeout"),
        *("pool_max_idle_per_host", "proxy_ca_certificate", "proxy_excludes"),
        *("proxy_url", "randomize_addresses", "read_timeout", "root_certificate"),
        *("timeout", "user_agent"),
    )
)
PREFIX = re.compile(r"(?:aws|google|azure)_")
METADATA = ("169.254.169.254", "metadata.google", "fd00:ec2")  # credential servers


class _Process:
    """State of this process."""

    used = False  # whether obstore was used
    forked = False  # whether a parent process used it


_owners: weakref.WeakSet[Any] = weakref.WeakSet()  # of stores
_inherited: list[Any] = []  # a parent's stores, which a child must not free


def _after_fork() -> None:
    _Process.forked = _Process.used
    _inherited.extend(_owners)


at_fork(after_in_child=_after_fork)


def mark_store_used(owner: object) -> None:
    """Register an owner of obstore's stores as in use."""
    if _Process.forked:
        raise FastshardError(
            "obstore cannot be used in a forked process whose parent used it: start "
            "processes by spawn or forkserver (for a DataLoader: "
            "multiprocessing_context='spawn')"
        )
    _owners.add(owner)
    _Process.used = True


def parse_info(meta: Any) -> ObjectInfo:
    """Return the metadata of an object from that of obstore."""
    modified = meta["last_modified"]
    seconds = int(modified.timestamp())  # 0 if unknown
    tag = meta["e_tag"] or (modified.isoformat() if seconds else "")
    return ObjectInfo(meta["size"], tag, seconds * 10**9)


def find_mismatch(response: Any, start: int, end: int, expected: ObjectInfo) -> str:
    """Return a reason if a response is not the expected one, otherwise ""."""
    meta = response.meta
    nbytes, tag = meta["size"], meta["e_tag"]
    if nbytes != expected.nbytes:
        before = f"{expected.nbytes:,}"
        return f"the object has changed: it has {nbytes:,} bytes, it had {before}"
    if expected.tag != tag:
        seconds = int(meta["last_modified"].timestamp())
        if (
            tag is not None
            or not expected.mtime_ns
            or seconds * 10**9 != expected.mtime_ns
        ):
            return (
                f"the object has changed: it has the tag {tag}, it had {expected.tag}"
            )
    if response.range != (start, end):
        first, last = response.range
        return f"expected bytes {start:,} to {end:,}, got {first:,} to {last:,}"
    return _coding_of(response)


def _coding_of(response: Any) -> str:
    """Return a reason if the body is compressed, otherwise ""."""
    coding = response.attributes.get("Content-Encoding", "")
    return find_coding(coding, PLAIN_CODINGS)


def read_body(response: Any, start: int, end: int, parts: Sequence[Part]) -> bool:
    """Copy parts of a body to their destinations; return whether its size is right.

    At most one piece of a body that is too long is read.
    """
    scatter = Scatter(start, end, parts)
    # One byte more than expected, so that the last piece shows the body's end.
    least = min(end - start, PIECE) + 1
    for piece in response.stream(min_chunk_size=least):
        if len(piece) > scatter.left:
            return False
        scatter.feed(piece)
        if len(piece) < least:
            break
    return bool(scatter.left == 0)


class StoreClient:
    """Client for object stores; one per process and settings, by `stores_for`."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.meter = Meter()
        self._stores: dict[str, Any] = {}
        self._has_answered = False

    def read(
        self,
        url: Url,
        start: int,
        end: int,
        parts: Sequence[Part],
        expected: ObjectInfo,
        deadline: Deadline | None = None,
    ) -> None:
        """Read a range and copy parts of it to their destinations; see `Transport`.

        A read in progress cannot be cancelled: obstore has no call for it.
        """
        deadline = deadline or Deadline(self.settings.timeout, end - start)
        if deadline.cancelled:
            raise ReadCancelledError
        options: dict[str, Any] = {"range": (start, end)}
        if expected.strong_tag:
            options["if_match"] = expected.strong_tag
        store, key = self._locate(url)

        def call() -> None:
            begun = time.monotonic()
            response = store.get(key, options=options)
            responded = time.monotonic()
            reason = find_mismatch(response, start, end, expected)
            if not reason and not read_body(response, start, end, parts):
                reason = f"the body does not have the expected {end - start:,} bytes"
            if reason:
                raise RemoteError(reason, url.redacted)
            self.meter.record_latency(responded - begun)
            self.meter.record_transfer(end - start, time.monotonic() - responded)

        self._call(url, deadline, call)

    def begin(
        self, url: Url, expected: ObjectInfo, reads: Sequence[LoopedRead]
    ) -> Sequence[LoopedRead]:
        """Return all reads: obstore's calls are made by threads."""
        return reads

    def head(self, url: str | Url, size: int) -> tuple[ObjectInfo, bytes]:
        """Return the metadata and at most the first `size` bytes of an object."""
        url = parse_url(url)
        store, key = self._locate(url)

        def call() -> tuple[ObjectInfo, bytes]:
            try:
                response = store.get(key, options={"range": (0, size)})
            except Exception as error:
                if _status_of(error) != 416:
                    raise
                response = store.get(key)  # an empty object has no ranges
                if response.meta["size"]:
                    raise
            info, reason = parse_info(response.meta), _coding_of(response)
            expected = min(size, info.nbytes)
            if response.range != (0, expected):
                first, last = response.range
                reason = f"expected bytes 0 to {expected:,}, got {first:,} to {last:,}"
            data = bytearray(expected)
            parts = [(0, memoryview(data))]
            if not reason and not read_body(response, 0, expected, parts):
                reason = f"the body does not have the expected {expected:,} bytes"
            if reason:
                raise RemoteError(reason, url.redacted)
            return info, bytes(data)

        return self._call(url, Deadline(self.settings.timeout, size), call)

    def whole(self, url: str | Url, most: int = MAX_WHOLE) -> tuple[ObjectInfo, bytes]:
        """Return the metadata and all bytes of an object."""
        url = parse_url(url)
        info, data = self.head(url, FIRST)
        if len(data) == info.nbytes:
            return info, data
        if info.nbytes > most:
            reason = f"expected at most {most:,} bytes, got {info.nbytes:,}"
            raise RemoteError(reason, url.redacted)
        whole = bytearray(info.nbytes)
        whole[: len(data)] = data
        for start in range(len(data), info.nbytes, MOST_SPAN):
            end = min(start + MOST_SPAN, info.nbytes)
            self.read(url, start, end, [(start, memoryview(whole)[start:end])], info)
        return info, bytes(whole)

    def check_store(self, url: str | Url) -> None:
        """Open the store of an object; no request is sent."""
        self._locate(url)

    def upload(self, url: str | Url, path: str) -> None:
        """Store a local file as an object, which appears whole or not at all.

        A large file is sent in parts, a few at a time.
        """
        url = parse_url(url)
        store, key = self._locate(url)
        size = os.stat(path).st_size
        part = max(MIN_PART, -(-size // MAX_PARTS))

        def call() -> None:
            with open(path, "rb") as file:
                store.put(key, file, chunk_size=part, max_concurrency=PARTS_IN_FLIGHT)

        self._call(url, Deadline(self.settings.timeout, size), call)

    def list(self, folder: str) -> Iterator[str]:
        """Return the URLs of all objects below a folder."""
        url = Url(folder)
        if self.settings.offline:
            raise RemoteError(
                "a folder cannot be listed with offline=True: name its shards, for "
                "instance by a brace list",
                url.redacted,
            )
        scheme, _, path = folder.partition("://")
        bucket, _, prefix = path.rstrip("/").partition("/")
        store = self._store_of(url, bucket)

        def call() -> list[str]:
            pages = store.list(prefix or None, chunk_size=1000)
            return [str(meta["path"]) for page in pages for meta in page]

        for path in self._call(url, Deadline(self.settings.timeout), call):
            yield f"{scheme}://{bucket}/{path}"

    def _locate(self, url: str | Url) -> tuple[Any, str]:
        """Return the store of an object's bucket, and the object's key."""
        url = parse_url(url)
        bucket, _, key = url.text.partition("://")[2].partition("/")
        if not {"", ".", ".."}.isdisjoint(key.split("/")):
            raise RemoteError(
                "obstore does not support keys with empty parts, . or ..", url.redacted
            )
        return self._store_of(url, bucket), key

    def _store_of(self, url: Url, bucket: str) -> Any:
        mark_store_used(self)
        name = f"{OBSTORE_SCHEMES.get(url.scheme, url.scheme)}://{bucket}"
        store = self._stores.get(name)
        if store is None:
            store = self._stores.setdefault(name, _open_store(name, self.settings))
        return store

    def _call(self, url: Url, deadline: Deadline, call: Callable[[], T]) -> T:
        """Return ``call()``; repeat it after transient failures."""
        attempt = attempts = 0
        while True:
            traffic.count_request()
            try:
                with self._translate_errors(url):
                    found = call()
                    self._has_answered = True
                    return found
            except RemoteError as error:
                self._has_answered |= error.status is not None
                if not error.transient or self.settings.attempts is not None:
                    raise
                attempts += error.attempts
                failed = RetryError(error.reason, error.status)
                if not self._has_answered and error.reason.startswith(UNREACHED):
                    failed.within = self.settings.first_timeout
            try:
                deadline.backoff(failed, attempt, url.redacted)
            except RemoteError as error:
                error.attempts = attempts
                raise
            attempt += 1

    @contextmanager
    def _translate_errors(self, url: Url) -> Iterator[None]:
        """Raise a `RemoteError` for an exception of obstore."""
        try:
            yield
        except (FastshardError, ReadCancelledError):
            raise
        except BaseException as error:  # obstore's, builtins, errors of callbacks
            if not _is_of_call(error):
                raise
            raise _translate_error(error, url, self.settings) from None


def _open_store(name: str, settings: Settings) -> Any:
    """Return a new store of obstore for ``scheme://bucket``."""
    need = f"reading {redact(name)} needs obstore, which is not installed"
    from_url = import_library("obstore.store", need, '"fastshard[cloud]"').from_url
    options = dict(settings.store)
    endpoint = str(options.get("endpoint") or options.get("aws_endpoint") or "")
    if not endpoint and scheme_of(name) in ("s3", "s3a"):
        endpoint = os.environ.get("AWS_ENDPOINT_URL") or os.environ.get(
            "AWS_ENDPOINT", ""
        )
    if not settings.private_hosts:
        _refuse_private(options, scheme_of(name))
    given = _take_mapping(options, "client_options")
    client = {
        "timeout": timedelta(seconds=settings.timeout + MOST_SPAN / SLOWEST),
        "read_timeout": timedelta(seconds=settings.timeout),
        "connect_timeout": timedelta(seconds=min(5.0, settings.timeout)),
        "allow_http": endpoint.startswith("http://"),
        **_take_client_options(options),
        **given,
    }
    retries = {
        "max_retries": RETRIES if settings.attempts is None else settings.attempts - 1,
        "retry_timeout": timedelta(seconds=settings.timeout),
        **_take_mapping(options, "retry_config"),
    }
    make: Any = from_url  # its overloads require literal options
    try:
        return make(name, client_options=client, retry_config=retries, **options)
    except BaseException as error:
        if not _is_of_call(error):
            raise
        reason = _describe(error, settings)
        raise FastshardError(f"{redact(name)} cannot be opened: {reason}") from None


def _is_of_call(error: BaseException) -> bool:
    """Return whether an exception is of a call, as a panic of Rust is."""
    return isinstance(error, Exception) or type(error).__name__ == "PanicException"


def _take_mapping(options: dict[str, Any], name: str) -> Mapping[str, Any]:
    """Remove an option that is a mapping and return it; an empty one by default."""
    found = options.pop(name, None) or {}
    if not isinstance(found, Mapping):
        kind = type(found).__name__
        raise FastshardError(f"store[{name!r}] must be a mapping, got {kind}")
    return found


def _take_client_options(options: dict[str, Any]) -> dict[str, Any]:
    """Remove the options of the HTTP client, also with a prefix, and return them."""
    plain = {name: PREFIX.sub("", str(name).lower(), count=1) for name in options}
    names = [name for name in plain if plain[name] in CLIENT_OPTIONS]
    return {plain[name]: options.pop(name) for name in names}


def _refuse_private(options: Mapping[str, Any], scheme: str) -> None:
    """Refuse private endpoints in the options, and in obstore's own variables."""
    prefix = {"s3": "AWS_", "s3a": "AWS_", "gs": "GOOGLE_"}.get(scheme, "AZURE_")
    environ = {key: text for key, text in os.environ.items() if key.startswith(prefix)}
    for name, value in {**environ, **options}.items():
        if scheme_of(str(value)) not in HTTP or "proxy" in name.lower():
            continue
        try:
            check_public(origin_of(normalize_url(str(value))))
        except RefusedHostError as error:
            raise RefusedHostError(error.reason, redact(str(value))) from None
        except socket.gaierror as error:
            reason = f"the endpoint's host has no address: {error.strerror}"
            raise RemoteError(reason, redact(str(value)), transient=True) from None


def _status_of(error: BaseException) -> int | None:
    match = STATUS.search(str(error))
    return int(match[1]) if match else None


def _translate_error(error: BaseException, url: Url, settings: Settings) -> Exception:
    """Return a `RemoteError` for an exception of obstore."""
    kind, text = type(error).__name__, str(error)
    reason, status = _describe(error, settings), _status_of(error)
    times = TIMES.search(text)
    attempts = 1 + int(times[1]) if times else 1
    if kind == "PreconditionError":
        return RemoteError("the object has changed", url.redacted, status or 412)
    if isinstance(error, FileNotFoundError) or status == 404:
        code = CODE.search(text)
        reason = "the object does not exist" + (f" ({code[1]})" if code else "")
        return RemoteNotFoundError(reason, url.redacted, status or 404)
    if kind in ("PermissionDeniedError", "UnauthenticatedError"):
        reason += (
            "; give other credentials in store=, or for a public bucket "
            "store={'skip_signature': True}"
        )
    elif any(host in text for host in METADATA):
        reason = (
            "no credentials were found; give them in store=, or for a public bucket "
            f"store={{'skip_signature': True}} ({reason})"
        )
    passes = status in TRANSIENT if status else bool(PASSES.search(text))
    passes = (
        passes and not LASTS.search(text) and not any(map(text.__contains__, METADATA))
    )
    return RemoteError(reason, url.redacted, status, attempts, transient=passes)


def _describe(error: BaseException, settings: Settings) -> str:
    """Return an exception's first line without response bodies, queries, secrets."""
    text = str(error)
    unreached = CONNECT.search(text)
    if unreached:
        return f"{UNREACHED}: {unreached[1]}"
    code = CODE.search(text)
    line = re.split(r"[\n<{]", text, maxsplit=1)[0]
    for value in settings.store.values():
        if isinstance(value, str) and len(value) > 3:
            line = line.replace(value, "...")
    line = QUERY.sub("...", line).strip().rstrip(":")[:300]
    return f"{line} ({code[1]})" if code else line or type(error).__name__


def stores_for(settings: Settings) -> StoreClient:
    """Return the process's client for these settings."""
    return settings.shared[StoreClient]
