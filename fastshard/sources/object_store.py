"""Object stores, S3, Google Cloud Storage and Azure, by obstore.

It signs, follows regions, and asks again what fails; each of its answers is checked
as one over HTTP is. `private_hosts` concerns the ``endpoint`` of `store` alone.
"""

from __future__ import annotations

import ipaddress
import re
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit

from fastshard.errors import FastshardError, RemoteError, RemoteNotFoundError
from fastshard.sources.answer import is_strong
from fastshard.sources.deadline import Deadline, DroppedError
from fastshard.sources.facts import Facts, Part
from fastshard.sources.meter import Meter
from fastshard.sources.obstores import begin, coding_of, facts_of, fill, wrong_with
from fastshard.sources.settings import Settings
from fastshard.sources.urls import scheme_of, shown

__all__ = ["StoreClient", "stores_for"]

RUN = 8 << 20  # bytes of a range at most
SLOWEST = 100_000  # bytes a second, on top of the time for an answer
LARGEST_ANSWER = 256 << 20  # bytes of a whole object that is read at once
FIRST = 1 << 20  # bytes of one that are asked for first
STATUS = re.compile(r"status code: (\d{3})")
TIMES = re.compile(r"\bretries: (\d{1,6}),")
CODE = re.compile(r"<Code>(\w{1,60})</Code>")
QUERY = re.compile(r"(?<=[?])\S+|(?<=://)[^\s/@]*@")
SAME = {"gcs": "gs", "adl": "abfss", "azure": "az"}  # of schemes that obstore knows
METADATA = ("169.254.169.254", "metadata.google", "fd00:ec2")


class StoreClient:
    """Reads and lists objects; one a process and settings. Use `stores_for`."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.meter = Meter()
        self._stores: dict[str, Any] = {}

    def read(
        self,
        url: str,
        start: int,
        end: int,
        parts: Sequence[Part],
        known: Facts,
        deadline: Deadline | None = None,
    ) -> None:
        """Read a range, and put parts of it where they go.

        A read that is under way is not ended when nobody waits for it any more.

        Raises
        ------
        RemoteError
            They cannot be had.
        """
        if deadline is not None and deadline.dropped:
            raise DroppedError
        options: dict[str, Any] = {"range": (start, end)}
        if is_strong(known.tag):
            options["if_match"] = known.tag
        store, key = self._place_of(url)
        with self._meaning(url):
            begun = time.monotonic()
            answer = store.get(key, options=options)
            answered = time.monotonic()
            wrong = wrong_with(answer, start, end, known)
            if not wrong and not fill(answer, start, end, parts):
                wrong = f"a body of another length than {end - start:,} bytes"
        if wrong:
            raise RemoteError(wrong, shown(url))
        self.meter.answered(answered - begun)
        self.meter.received(end - start, time.monotonic() - answered)

    def head(self, url: str, size: int) -> tuple[Facts, bytes]:
        """Return what an object is, and its first bytes, at most `size`."""
        store, key = self._place_of(url)
        with self._meaning(url):
            try:
                answer = store.get(key, options={"range": (0, size)})
            except Exception as error:
                if _status_of(error) != 416:
                    raise
                answer = store.get(key)  # an empty object has no ranges
                if answer.meta["size"]:
                    raise
            facts, wrong = facts_of(answer.meta), coding_of(answer)
            due = min(size, facts.nbytes)
            if answer.range != (0, due):
                wrong = f"bytes {answer.range} were answered, not the first {due:,}"
            data = bytearray(due)
            if not wrong and not fill(answer, 0, due, [(0, memoryview(data))]):
                wrong = f"a body of another length than {due:,} bytes"
        if wrong:
            raise RemoteError(wrong, shown(url))
        return facts, bytes(data)

    def whole(self, url: str, most: int = LARGEST_ANSWER) -> tuple[Facts, bytes]:
        """Return an object.

        Raises
        ------
        RemoteError
            It has more than `most` bytes, or cannot be had.
        """
        facts, data = self.head(url, FIRST)
        if len(data) == facts.nbytes:
            return facts, data
        if facts.nbytes > most:
            reason = f"{facts.nbytes:,} bytes, and {most:,} may be"
            raise RemoteError(reason, shown(url))
        rest = bytearray(facts.nbytes)
        rest[: len(data)] = data
        for start in range(len(data), facts.nbytes, RUN):
            end = min(start + RUN, facts.nbytes)
            self.read(url, start, end, [(start, memoryview(rest)[start:end])], facts)
        return facts, bytes(rest)

    def list(self, folder: str) -> Iterator[str]:
        """Return the URLs of all objects below a folder."""
        if self.settings.offline:
            raise RemoteError(
                "it cannot be listed with offline=True: name its shards, for instance "
                "by a brace list",
                shown(folder),
            )
        scheme, _, path = folder.partition("://")
        bucket, _, prefix = path.rstrip("/").partition("/")
        store = self._store_of(folder, bucket)
        with self._meaning(folder):
            for some in store.list(prefix or None, chunk_size=1000):
                for meta in some:
                    yield f"{scheme}://{bucket}/{meta['path']}"

    def _place_of(self, url: str) -> tuple[Any, str]:
        """Return a bucket, and the key of an object in it."""
        bucket, _, key = url.partition("://")[2].partition("/")
        if not {"", ".", ".."}.isdisjoint(key.split("/")):
            raise RemoteError(
                "obstore reads no key with empty parts or dots", shown(url)
            )
        return self._store_of(url, bucket), key

    def _store_of(self, url: str, bucket: str) -> Any:
        begin(self)
        scheme = scheme_of(url)
        name = f"{SAME.get(scheme, scheme)}://{bucket}"
        store = self._stores.get(name)
        if store is None:
            store = self._stores.setdefault(name, _made(name, self.settings))
        return store

    @contextmanager
    def _meaning(self, url: str) -> Iterator[None]:
        """Have what obstore raises say what it means here."""
        try:
            yield
        except (FastshardError, DroppedError):
            raise
        except Exception as error:  # of its own classes, of builtins, of callbacks
            raise _meant(error, url, self.settings) from None


def _made(name: str, settings: Settings) -> Any:
    """Return a new store of obstore's."""
    try:
        from obstore.store import from_url
    except ImportError:
        raise FastshardError(
            f"{shown(name)} is read by obstore, which is not installed: "
            'pip install "fastshard[cloud]"'
        ) from None
    options = dict(settings.store)
    endpoint = str(options.get("endpoint") or options.get("aws_endpoint") or "")
    if endpoint and not settings.private_hosts:
        _refuse_private(endpoint)
    client = {
        "timeout": timedelta(seconds=settings.timeout + RUN / SLOWEST),
        "read_timeout": timedelta(seconds=settings.timeout),
        "connect_timeout": timedelta(seconds=min(5.0, settings.timeout)),
        "allow_http": endpoint.startswith("http://"),
        **(options.pop("client_options", None) or {}),
    }
    retries = {
        "max_retries": settings.attempts - 1,
        "retry_timeout": timedelta(seconds=settings.timeout),
        **(options.pop("retry_config", None) or {}),
    }
    make: Any = from_url  # its overloads are for literal options
    try:
        return make(name, client_options=client, retry_config=retries, **options)
    except Exception as error:
        reason = _text_of(error, settings)
        raise FastshardError(f"{shown(name)} cannot be opened: {reason}") from None


def _refuse_private(endpoint: str) -> None:
    parts = urlsplit(endpoint)
    for found in socket.getaddrinfo(parts.hostname, parts.port or 443):
        address = ipaddress.ip_address(str(found[4][0]).partition("%")[0])
        mapped = getattr(address, "ipv4_mapped", None)
        if not (mapped or address).is_global:
            raise RemoteError(f"{address} is no public address", shown(endpoint))


def _status_of(error: Exception) -> int | None:
    match = STATUS.search(str(error))
    return int(match[1]) if match else None


def _meant(error: Exception, url: str, settings: Settings) -> Exception:
    """Return what an exception of obstore's means here."""
    kind, text = type(error).__name__, str(error)
    reason, status = _text_of(error, settings), _status_of(error)
    times = TIMES.search(text)
    attempts = 1 + int(times[1]) if times else 1
    if kind == "PreconditionError":
        return RemoteError("it was written to meanwhile", shown(url), status or 412)
    if isinstance(error, FileNotFoundError) or status == 404:
        code = CODE.search(text)
        reason = "there is no such object" + (f" ({code[1]})" if code else "")
        return RemoteNotFoundError(reason, shown(url), status or 404)
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
    return RemoteError(reason, shown(url), status, attempts)


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
