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

from fastshard._core.io.socket import Scatter
from fastshard.errors import FastshardError, RemoteError, RemoteNotFoundError
from fastshard.remote.addresses import RefusedHostError
from fastshard.remote.http_connection import check_public
from fastshard.remote.http_response import TRANSIENT
from fastshard.remote.options import Settings
from fastshard.remote.retry import Deadline, Meter, ReadCancelledError, RetryError
from fastshard.remote.transport import ObjectInfo, Part
from fastshard.remote.urls import (
    HTTP,
    Url,
    normalize_url,
    origin_of,
    parse_url,
    redact,
    scheme_of,
)

__all__ = [
    "StoreClient",
    "find_coding",
    "find_mismatch",
    "mark_store_used",
    "parse_info",
    "read_body",
    "stores_for",
]


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


def mark_store_used(owner: object) -> None:
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


def parse_info(meta: Any) -> ObjectInfo:
    """Return what an answer says of its object."""
    modified = meta["last_modified"]
    seconds = int(modified.timestamp())  # 0: it was not told
    tag = meta["e_tag"] or (modified.isoformat() if seconds else "")
    return ObjectInfo(meta["size"], tag, seconds * 10**9)


def find_mismatch(answer: Any, start: int, end: int, known: ObjectInfo) -> str:
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
    return find_coding(answer)


def find_coding(answer: Any) -> str:
    """Complain of a body that is compressed; nothing if it is not."""
    coding = answer.attributes.get("Content-Encoding", "")
    return "" if coding in HARMLESS_CODINGS else f"it is compressed ({coding[:40]!r})"


def read_body(answer: Any, start: int, end: int, parts: Sequence[Part]) -> bool:
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


T = TypeVar("T")

RUN = 8 << 20  # bytes of a range at most
RETRIES = 2  # of obstore's own, for each attempt here
SLOWEST = 100_000  # bytes a second, on top of the time for an answer
LARGEST_ANSWER = 256 << 20  # bytes of a whole object that is read at once
FIRST = 1 << 20  # bytes of one that are asked for first
STATUS = re.compile(r"status code: (\d{3})")
TIMES = re.compile(r"\bretries: (\d{1,6}),")
CODE = re.compile(r"<Code>(\w{1,60})</Code>")
QUERY = re.compile(r"(?<=[?])\S+|(?<=://)[^\s/@]*@")
SAME = {"gcs": "gs", "adl": "abfss", "azure": "az"}  # of schemes that obstore knows
PASSES = re.compile(r"\bkind: (?:Connect|Request|Timeout|Interrupted)\b")
LASTS = re.compile(r"certificate|UnknownIssuer|NotValidForName", re.IGNORECASE)
METADATA = ("169.254.169.254", "metadata.google", "fd00:ec2")


class StoreClient:
    """Reads and lists objects; one a process and settings. Use `stores_for`."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.meter = Meter()
        self._stores: dict[str, Any] = {}

    def read(
        self,
        url: Url,
        start: int,
        end: int,
        parts: Sequence[Part],
        known: ObjectInfo,
        deadline: Deadline | None = None,
    ) -> None:
        """Read a range, and put parts of it where they go; see `Transport.read`.

        A read under way is not cancelled: obstore knows no way.
        """
        deadline = deadline or Deadline(self.settings.timeout, end - start)
        if deadline.cancelled:
            raise ReadCancelledError
        options: dict[str, Any] = {"range": (start, end)}
        if known.is_strong:
            options["if_match"] = known.tag
        store, key = self._locate(url)

        def ask() -> None:
            begun = time.monotonic()
            answer = store.get(key, options=options)
            answered = time.monotonic()
            wrong = find_mismatch(answer, start, end, known)
            if not wrong and not read_body(answer, start, end, parts):
                wrong = f"a body of another length than {end - start:,} bytes"
            if wrong:
                raise RemoteError(wrong, url.redacted)
            self.meter.record_latency(answered - begun)
            self.meter.record_transfer(end - start, time.monotonic() - answered)

        self._ask(url, deadline, ask)

    def head(self, url: str | Url, size: int) -> tuple[ObjectInfo, bytes]:
        """Return what an object is, and its first bytes, at most `size`."""
        url = parse_url(url)
        store, key = self._locate(url)

        def ask() -> tuple[ObjectInfo, bytes]:
            try:
                answer = store.get(key, options={"range": (0, size)})
            except Exception as error:
                if _status_of(error) != 416:
                    raise
                answer = store.get(key)  # an empty object has no ranges
                if answer.meta["size"]:
                    raise
            info, wrong = parse_info(answer.meta), find_coding(answer)
            due = min(size, info.nbytes)
            if answer.range != (0, due):
                wrong = f"bytes {answer.range} were answered, not the first {due:,}"
            data = bytearray(due)
            if not wrong and not read_body(answer, 0, due, [(0, memoryview(data))]):
                wrong = f"a body of another length than {due:,} bytes"
            if wrong:
                raise RemoteError(wrong, url.redacted)
            return info, bytes(data)

        return self._ask(url, Deadline(self.settings.timeout, size), ask)

    def whole(
        self, url: str | Url, most: int = LARGEST_ANSWER
    ) -> tuple[ObjectInfo, bytes]:
        """Return an object.

        Raises
        ------
        RemoteError
            It has more than `most` bytes, or cannot be had.
        """
        url = parse_url(url)
        info, data = self.head(url, FIRST)
        if len(data) == info.nbytes:
            return info, data
        if info.nbytes > most:
            reason = f"{info.nbytes:,} bytes, and {most:,} may be"
            raise RemoteError(reason, url.redacted)
        rest = bytearray(info.nbytes)
        rest[: len(data)] = data
        for start in range(len(data), info.nbytes, RUN):
            end = min(start + RUN, info.nbytes)
            self.read(url, start, end, [(start, memoryview(rest)[start:end])], info)
        return info, bytes(rest)

    def list(self, folder: str) -> Iterator[str]:
        """Return the URLs of all objects below a folder."""
        url = Url(folder)
        if self.settings.offline:
            raise RemoteError(
                "it cannot be listed with offline=True: name its shards, for instance "
                "by a brace list",
                url.redacted,
            )
        scheme, _, path = folder.partition("://")
        bucket, _, prefix = path.rstrip("/").partition("/")
        store = self._store_of(url, bucket)

        def ask() -> list[str]:
            pages = store.list(prefix or None, chunk_size=1000)
            return [str(meta["path"]) for page in pages for meta in page]

        for path in self._ask(url, Deadline(self.settings.timeout), ask):
            yield f"{scheme}://{bucket}/{path}"

    def _locate(self, url: str | Url) -> tuple[Any, str]:
        """Return a bucket, and the key of an object in it."""
        url = parse_url(url)
        bucket, _, key = url.text.partition("://")[2].partition("/")
        if not {"", ".", ".."}.isdisjoint(key.split("/")):
            raise RemoteError(
                "obstore reads no key with empty parts or dots", url.redacted
            )
        return self._store_of(url, bucket), key

    def _store_of(self, url: Url, bucket: str) -> Any:
        mark_store_used(self)
        name = f"{SAME.get(url.scheme, url.scheme)}://{bucket}"
        store = self._stores.get(name)
        if store is None:
            store = self._stores.setdefault(name, _made(name, self.settings))
        return store

    def _ask(self, url: Url, deadline: Deadline, ask: Callable[[], T]) -> T:
        """Return what `ask` returns; ask again for as long as failures may pass."""
        attempt = attempts = 0
        while True:
            try:
                with self._translated(url):
                    return ask()
            except RemoteError as error:
                if not error.transient or self.settings.attempts is not None:
                    raise
                attempts += error.attempts
                failed = RetryError(error.reason, error.status)
            try:
                deadline.backoff(failed, attempt, url.redacted)
            except RemoteError as error:
                error.attempts = attempts
                raise
            attempt += 1

    @contextmanager
    def _translated(self, url: Url) -> Iterator[None]:
        """Translate exceptions of obstore."""
        try:
            yield
        except (FastshardError, ReadCancelledError):
            raise
        except Exception as error:  # of its own classes, of builtins, of callbacks
            raise _translate_error(error, url, self.settings) from None


def _made(name: str, settings: Settings) -> Any:
    """Return a new store of obstore's."""
    try:
        from obstore.store import from_url
    except ImportError:
        raise FastshardError(
            f"{redact(name)} is read by obstore, which is not installed: "
            'pip install "fastshard[cloud]"'
        ) from None
    options = dict(settings.store)
    endpoint = str(options.get("endpoint") or options.get("aws_endpoint") or "")
    if not settings.private_hosts:
        _refuse_private(options, scheme_of(name))
    client = {
        "timeout": timedelta(seconds=settings.timeout + RUN / SLOWEST),
        "read_timeout": timedelta(seconds=settings.timeout),
        "connect_timeout": timedelta(seconds=min(5.0, settings.timeout)),
        "allow_http": endpoint.startswith("http://"),
        **(options.pop("client_options", None) or {}),
    }
    retries = {
        "max_retries": RETRIES if settings.attempts is None else settings.attempts - 1,
        "retry_timeout": timedelta(seconds=settings.timeout),
        **(options.pop("retry_config", None) or {}),
    }
    make: Any = from_url  # its overloads are for literal options
    try:
        return make(name, client_options=client, retry_config=retries, **options)
    except Exception as error:
        reason = _text_of(error, settings)
        raise FastshardError(f"{redact(name)} cannot be opened: {reason}") from None


def _refuse_private(options: Mapping[str, Any], scheme: str) -> None:
    """Refuse private endpoints, those that obstore takes from the environment too."""
    maker = {"s3": "AWS_", "s3a": "AWS_", "gs": "GOOGLE_"}.get(scheme, "AZURE_")
    told = {key: text for key, text in os.environ.items() if key.startswith(maker)}
    for name, value in {**told, **options}.items():
        if scheme_of(str(value)) not in HTTP or "proxy" in name.lower():
            continue
        try:
            check_public(origin_of(normalize_url(str(value))))
        except RefusedHostError as error:
            raise RefusedHostError(error.reason, redact(str(value))) from None
        except socket.gaierror as error:
            reason = f"its host has no address: {error.strerror}"
            raise RemoteError(reason, redact(str(value)), transient=True) from None


def _status_of(error: Exception) -> int | None:
    match = STATUS.search(str(error))
    return int(match[1]) if match else None


def _translate_error(error: Exception, url: Url, settings: Settings) -> Exception:
    """Return a `RemoteError` for an exception of obstore's."""
    kind, text = type(error).__name__, str(error)
    reason, status = _text_of(error, settings), _status_of(error)
    times = TIMES.search(text)
    attempts = 1 + int(times[1]) if times else 1
    if kind == "PreconditionError":
        return RemoteError("it was written to meanwhile", url.redacted, status or 412)
    if isinstance(error, FileNotFoundError) or status == 404:
        code = CODE.search(text)
        reason = "there is no such object" + (f" ({code[1]})" if code else "")
        return RemoteNotFoundError(reason, url.redacted, status or 404)
    if kind in ("PermissionDeniedError", "UnauthenticatedError"):
        reason += (
            "; give store= other credentials, or for a public bucket "
            "store={'skip_signature': True}"
        )
    elif any(host in text for host in METADATA):
        reason = (
            "no credentials were found; give store= some, or for a public bucket "
            f"store={{'skip_signature': True}} ({reason})"
        )
    passes = status in TRANSIENT if status else bool(PASSES.search(text))
    passes = (
        passes and not LASTS.search(text) and not any(map(text.__contains__, METADATA))
    )
    return RemoteError(reason, url.redacted, status, attempts, transient=passes)


def _text_of(error: Exception, settings: Settings) -> str:
    """Describe an exception in a line: no body of an answer, no query, no secret."""
    text = str(error)
    code = CODE.search(text)
    line = re.split(r"[\n<{]", text, maxsplit=1)[0]
    for value in settings.store.values():
        if isinstance(value, str) and len(value) > 3:
            line = line.replace(value, "...")
    line = QUERY.sub("...", line).strip().rstrip(":")[:300]
    return f"{line} ({code[1]})" if code else line or type(error).__name__


def stores_for(settings: Settings) -> StoreClient:
    """Return this process's client."""
    return settings.shared(StoreClient)
