"""How remote shards are read: the options that users give, and what is kept of them."""

from __future__ import annotations

import os
import re
import weakref
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypedDict, TypeVar

from fastshard._util.options import check_names
from fastshard._util.sizes import parse_size
from fastshard.errors import FastshardError
from fastshard.remote.urls import HTTP, Origin, Url, normalize_url, origin_of, parse_url

__all__ = ["RemoteOptions", "Settings", "make_settings"]

T = TypeVar("T")
Token = str | Callable[[], str | None] | None

CONNECTIONS = 16  # ranges at a time
TIMEOUT = 60.0  # seconds
PLAIN_HEADERS = ("user-agent", "accept-language", "referer", "from", "x-requested-with")
NOT_SECRET = ("region", "endpoint", "bucket", "skip_signature", "virtual_hosted")


class RemoteOptions(TypedDict, total=False):
    """What `fastshard.open` takes for remote sources.

    Attributes
    ----------
    token : str or callable
        Sent as ``Authorization: Bearer`` to the sources' own scheme, host and port,
        and nowhere else. A function is asked for it in each process. For ``hf://``
        what huggingface_hub knows is used without one (`HF_TOKEN`, a login).
    headers : Mapping of str to str
        Sent to the same.
    connections : int
        Ranges that are asked for at a time, in a process; 16.
    timeout : float
        Seconds for a range, all attempts together; one more for each 100 KB. 60.
        What may pass (connections, 429, 5xx) is asked for again until then, after
        pauses that grow to 5 seconds.
    attempts : int or None
        How often a range is asked for at most; None, the default, leaves that to
        `timeout`.
    cache_dir : str or path-like
        Keep what is read in this directory; whole shards in it are mapped.
    cache_limit : int or str
        Bytes of it at most, or ``"100GB"``.
    offline : bool
        Read nothing but what is in `cache_dir`.
    private_hosts : bool
        False refuses hosts with an address that is not public (private, local,
        link-local, shared, multicast), of redirects too. Addresses are checked before
        one of them is connected to. Proxies are refused: they resolve names
        themselves. Of the hub's listing and of stores the endpoint is checked, which
        huggingface_hub and obstore then resolve again.
    store : Mapping of str to object
        Options of obstore's `S3Store`, `GCSStore`, `AzureStore`: ``region``,
        ``endpoint``, ``skip_signature``, credentials.
    revision : str
        Of a repository of the Hugging Face hub: a branch, a tag, a commit.
    endpoint : str
        Of the hub; otherwise ``HF_ENDPOINT``, or https://huggingface.co.
    """

    token: Token
    headers: Mapping[str, str] | None
    connections: int
    timeout: float
    attempts: int | None
    cache_dir: str | os.PathLike[str] | None
    cache_limit: int | str | None
    offline: bool
    private_hosts: bool
    store: Mapping[str, Any] | None
    revision: str | None
    endpoint: str | None


_every: weakref.WeakSet[Settings] = weakref.WeakSet()


def _after_fork() -> None:
    """Leave connections and threads to the parent: a child makes its own."""
    for settings in list(_every):
        settings._shared.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


class Settings:
    """Checked options; immutable. See `RemoteOptions`.

    Attributes
    ----------
    origins : frozenset of Origin
        Whom the token and the headers are told.
    """

    def __init__(
        self, options: RemoteOptions, origins: frozenset[Origin] = frozenset()
    ) -> None:
        check_names("RemoteOptions", options, RemoteOptions.__optional_keys__)
        self._shared: dict[Callable[[Settings], Any], Any] = {}
        _every.add(self)
        self.options = options
        self.origins = origins
        self.token: Token = options.get("token")
        if not (
            self.token is None or isinstance(self.token, str) or callable(self.token)
        ):
            raise TypeError("a token is a str, or a function that returns one")
        self.headers = _headers_of(options.get("headers") or {})
        self.connections = _above(options, "connections", CONNECTIONS)
        self.timeout = float(_above(options, "timeout", TIMEOUT))
        self.attempts: int | None = None
        if options.get("attempts") is not None:
            self.attempts = _above(options, "attempts", 1)
        self.cache_dir = os.fspath(options.get("cache_dir") or "") or None
        limit = options.get("cache_limit")
        self.cache_limit = None if limit is None else parse_size(limit)
        self.offline = bool(options.get("offline", False))
        self.private_hosts = bool(options.get("private_hosts", True))
        self.store = dict(options.get("store") or {})
        self.revision = options.get("revision")
        self.endpoint = (
            options.get("endpoint")
            or os.environ.get("HF_ENDPOINT")
            or "https://huggingface.co"
        ).rstrip("/")
        if self.offline and self.cache_dir is None:
            raise FastshardError("offline=True reads a cache: give cache_dir=")

    def shared(self, kind: Callable[[Settings], T]) -> T:
        """Return this process's ``kind(settings)``, the same each time."""
        found: T | None = self._shared.get(kind)
        if found is None:
            found = self._shared.setdefault(kind, kind(self))
        return found

    def bearer(self) -> str | None:
        """Return the token; asks the function that knows it.

        Raises
        ------
        FastshardError
            It has a character that no header may have.
        """
        token = self.token() if callable(self.token) else self.token
        token = token and token.strip()
        if token and not (token.isascii() and token.isprintable()):
            raise FastshardError("the token has a character that no token has")
        return token

    def __repr__(self) -> str:
        return f"<Settings: {self.connections} connections, {self.timeout:g} s>"

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle, unless that would write a secret down.

        Raises
        ------
        FastshardError
            There is a token, a header or an option that is one.
        """
        if isinstance(self.token, str):
            raise FastshardError(
                "a token that is a str is not pickled: give token= a function that "
                "returns it, or leave it to HF_TOKEN"
            )
        for name in self.headers:
            if name.lower() not in PLAIN_HEADERS:
                raise FastshardError(
                    f"the header {name} may be secret, and is not pickled: give token= "
                    "a function"
                )
        name = _secret_in(self.store)
        if name:
            raise FastshardError(
                f"the option {name!r} of a store is not pickled: leave it to the "
                "environment, or give store= a credential_provider"
            )
        return Settings, (self.options, self.origins)


def _secret_in(options: Mapping[str, Any]) -> str:
    """Return the name of an option that may be secret; "" if there is none."""
    for name, value in options.items():
        if isinstance(value, Mapping):
            found = _secret_in(value)
            if found:
                return found
        elif isinstance(value, str | bytes) and not _is_plain(name):
            return name
    return ""


def _headers_of(headers: Mapping[str, str]) -> dict[str, str]:
    """Return headers that can be sent; no value is shown."""
    checked_headers = {}
    for name, value in headers.items():
        if not isinstance(value, str) or not re.fullmatch(
            r"[\x20-\x7e]*", value.strip()
        ):
            raise FastshardError(f"the header {name!r} is not one line of ASCII")
        if not re.fullmatch(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+", name):
            raise FastshardError(f"{name!r} is no name of a header")
        checked_headers[name] = value.strip()
    return checked_headers


def _is_plain(name: str) -> bool:
    return any(part in name.lower() for part in NOT_SECRET)


def _above(options: Mapping[str, Any], name: str, default: Any) -> Any:
    value = options.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int | type(default)):
        raise TypeError(f"{name} is a number, not {value!r}")
    if not 0 < value < float("inf"):
        raise ValueError(f"{name} is above 0, not {value!r}")
    return value


def make_settings(options: RemoteOptions, sources: Iterable[str | Url]) -> Settings:
    """Return settings whose secrets are for the origins of some sources."""
    settings = Settings(options)
    urls = [parse_url(source) for source in sources]
    origins = {origin_of(url.sent) for url in urls if url.scheme in HTTP}
    if any(url.scheme == "hf" for url in urls):
        origins.add(origin_of(normalize_url(settings.endpoint)))
    return Settings(options, frozenset(origins)) if origins else settings
