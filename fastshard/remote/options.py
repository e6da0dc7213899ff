"""Checked options for remote shards."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import ref

from fastshard._util.options import check_names
from fastshard._util.paths.remote_options import RemoteOptions, Sign
from fastshard._util.paths.urls import (
    HTTP,
    Origin,
    Url,
    normalize_url,
    origin_of,
    parse_url,
)
from fastshard._util.processes.forks import ForkAware
from fastshard._util.sizes import parse_size
from fastshard.errors import FastshardError
from fastshard.remote.requests.authorization import check_pickles, ways_of
from fastshard.remote.requests.request import Credentials

__all__ = [
    "Settings",
    "make_settings",
]

T = TypeVar("T")

CONNECTIONS = 16  # concurrent range requests
OPENERS = 3  # concurrent openings of objects for each of them
TIMEOUT = 60.0  # seconds
FIRST_TIMEOUT = 2.5  # seconds for a first connection, without a timeout=
MOST_TIMEOUT = 1e9  # seconds; sockets refuse ten times that
# Parts of the names of store options that may be pickled.
NOT_SECRET = ("region", "endpoint", "bucket", "skip_signature", "virtual_hosted")


class Shared(dict[Any, Any]):
    """The process's one ``kind(settings)`` of each kind, made at its first use."""

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        self._settings = ref(settings)  # else only the collector would free them

    if TYPE_CHECKING:

        def __getitem__(self, kind: Callable[[Settings], T]) -> T: ...

    def __missing__(self, kind: Callable[[Settings], T]) -> T:
        settings = self._settings()
        assert settings is not None
        made: T = self.setdefault(kind, kind(settings))
        return made


class Settings(ForkAware):
    """Checked `RemoteOptions`; immutable. Pickles unless it holds a secret.

    Attributes
    ----------
    credentials : Credentials
        Authorise requests to the servers of the sources.
    openers : int
        Number of objects that are opened at a time.
    reached : set of Origin
        Servers that have answered, in this process or in the one that pickled this.
    shared : Shared
        Clients, caches and pools of threads of this process.
    client : callable or None
        Class of the client for all URLs; None for that of their scheme.
    block : int
        Bytes; of an object with an entry in the cache whole blocks are read and stored,
        so that it is complete in the end. 0: the requested bytes.
    """

    client: Callable[[Settings], Any] | None = None
    block: int = 0

    def __init__(
        self, options: RemoteOptions, origins: frozenset[Origin] = frozenset()
    ) -> None:
        check_names("RemoteOptions", options, RemoteOptions.__optional_keys__)
        self.shared = Shared(self)
        super().__init__()
        self.options = options
        self.reached: set[Origin] = set()
        self.sign: Sign | None = options.get("sign")
        if self.sign is not None and not callable(self.sign):
            kind = type(self.sign).__name__
            raise TypeError(f"sign must be a callable, fn(url) -> url, got {kind}")
        self.connections: int = _check_positive(options, "connections", CONNECTIONS)
        self.openers: int = OPENERS * self.connections
        timeout = float(_check_positive(options, "timeout", TIMEOUT))
        self.timeout: float = min(timeout, MOST_TIMEOUT)
        is_given = options.get("timeout") is not None
        self.first_timeout = self.timeout if is_given else FIRST_TIMEOUT
        self.attempts: int | None = None
        if options.get("attempts") is not None:
            self.attempts = _check_positive(options, "attempts", 1)
        cache_dir = os.fspath(options.get("cache_dir") or "")
        self.cache_dir: str | None = cache_dir or None
        limit = options.get("cache_limit")
        self.cache_limit: int | None = None if limit is None else parse_size(limit)
        self.offline: bool = bool(options.get("offline", False))
        self.private_hosts: bool = bool(options.get("private_hosts", True))
        self.store: dict[str, Any] = dict(options.get("store") or {})
        self.revision: str | None = options.get("revision")
        self.endpoint: str = (
            options.get("endpoint")
            or os.environ.get("HF_ENDPOINT")
            or "https://huggingface.co"
        ).rstrip("/")
        if self.offline and self.cache_dir is None:
            raise FastshardError("offline=True reads from a cache: give cache_dir=")
        if self.cache_limit is not None and self.cache_dir is None:
            raise FastshardError("cache_limit= needs a cache: give cache_dir=")
        self.credentials = Credentials(ways_of(options), origins)

    @property
    def origins(self) -> frozenset[Origin]:
        """Servers of the sources, which the secrets are sent to."""
        return self.credentials.origins

    def __repr__(self) -> str:
        return f"<Settings: {self.connections} connections, {self.timeout:g} s>"

    def reset_after_fork(self) -> None:
        """Drop the parent's connections and thread pools; the child makes its own."""
        self.shared.clear()

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the options, unless one of them is a secret."""
        for way in self.credentials.ways:
            way.check_pickles()
        check_pickles("sign", self.sign)
        name = _find_secret(self.store)
        if name:
            raise FastshardError(
                f"the option {name!r} of a store is not pickled: leave it to the "
                "environment, or give store= a credential_provider"
            )
        state = {"reached": set(self.reached)}
        return Settings, (self.options, self.origins), state


def _find_secret(options: Mapping[str, Any]) -> str:
    """Return the name of an option that may be a secret, or ""."""
    for name, value in options.items():
        if isinstance(value, Mapping):
            found = _find_secret(value)
            if found:
                return found
        elif isinstance(value, str | bytes) and not _is_plain(name):
            return name
    return ""


def _is_plain(name: str) -> bool:
    return any(part in name.lower() for part in NOT_SECRET)


def _check_positive(options: Mapping[str, Any], name: str, default: Any) -> Any:
    value = options.get(name)
    if value is None:
        value = default
    if isinstance(value, bool) or not isinstance(value, int | type(default)):
        kind = "a number" if isinstance(default, float) else "an int"
        raise TypeError(f"{name} must be {kind}, got {value!r}")
    if not 0 < value < float("inf"):
        raise ValueError(f"{name} must be positive, got {value!r}")
    return value


def make_settings(options: RemoteOptions, sources: Iterable[str | Url]) -> Settings:
    """Return settings whose secrets are sent to the origins of the sources only."""
    settings = Settings(options)
    urls = [parse_url(source) for source in sources]
    origins = {origin_of(url.normalized) for url in urls if url.scheme in HTTP}
    if settings.sign is not None and urls and not origins:
        raise FastshardError("sign= is for http and https URLs")
    if any(url.scheme == "hf" for url in urls):
        origins.add(origin_of(normalize_url(settings.endpoint)))
    settings.credentials = settings.credentials._replace(origins=frozenset(origins))
    return settings
