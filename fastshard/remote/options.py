"""Options for remote shards: as users give them, and checked as `Settings`."""

from __future__ import annotations

import os
import pickle
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any, TypedDict, TypeVar, cast

from fastshard._util.options import check_names
from fastshard._util.processes.forks import ForkAware
from fastshard._util.sizes import parse_size
from fastshard.errors import FastshardError
from fastshard.remote.urls import HTTP, Origin, Url, normalize_url, origin_of, parse_url

__all__ = [
    "OPENERS",
    "RemoteOptions",
    "Settings",
    "check_local",
    "make_settings",
    "select_local",
    "select_remote",
]

T = TypeVar("T")
Token = str | Callable[[], str | None] | None
Sign = Callable[[str], str | None]

CONNECTIONS = 16  # concurrent range requests
OPENERS = 3  # concurrent openings of objects for each of them
TIMEOUT = 60.0  # seconds
FIRST_TIMEOUT = 2.5  # seconds for a first connection, without a timeout=
MOST_TIMEOUT = 1e9  # seconds; sockets refuse ten times as many
# Headers, and parts of the names of store options, that may be pickled.
PLAIN_HEADERS = ("user-agent", "accept-language", "referer", "from", "x-requested-with")
FOR_COPIES = frozenset(("cache_dir", "cache_limit", "connections"))  # local files, too
UNUSED = MappingProxyType({"offline": False, "private_hosts": True})  # as by default
PICKLERS = frozenset(("cloudpickle", "dill", "ray.cloudpickle"))  # of any function
NOT_SECRET = ("region", "endpoint", "bucket", "skip_signature", "virtual_hosted")


class RemoteOptions(TypedDict, total=False):
    """Keyword arguments of `fastshard.open` for remote sources, all optional.

    Each has a default, which None stands for where the type allows it. Local files
    take ``cache_dir``, ``cache_limit`` and ``connections``: with a ``cache_dir`` they
    are read through it, as is worth while for a network file system. Another option is
    an error for local files. As a type it checks a dict of options: ``options:
    fastshard.RemoteOptions = {"cache_dir": "/nvme/kept"}``.

    Attributes
    ----------
    token : str or callable
        Sent as ``Authorization: Bearer`` to the sources' own scheme, host and port
        only, and never shown. A function without arguments is called in each process; a
        str is not pickled, so that spawned workers need a function. For ``hf://`` the
        default is the token of ``HF_TOKEN`` or of a login.
    headers : Mapping of str to str
        Sent to the same servers.
    sign : callable
        For signed URLs, which expire: ``fn(url)`` returns a fresh URL of the object at
        an ``http`` or ``https`` URL, which it gets as given, or None if there is no
        such object. It is called after a refusal (statuses 401 and 403; 400 of an
        expired signature), by one thread at a time for a URL, also for indexes beside
        the shards. Its URL is requested from then on, and never shown. Names, states
        and the cache go by the URL as given. It must pickle for spawned workers.
    connections : int
        Maximum number of concurrent range requests of a process; 16. Up to three times
        as many shards, at most 64, are opened at a time, each by small requests one
        after another.
    timeout : float
        Seconds for a range, all attempts together, plus one for each 100 KB; 60.
        Transient failures (connections, statuses 408, 425, 429, 5xx) are retried until
        then, after pauses that grow to 5 seconds. Without this option a server that has
        not answered yet, and refuses the connection, is retried for 2.5 seconds.
    attempts : int or None
        Maximum number of attempts for a range; None, the default, leaves the limit to
        `timeout`.
    cache_dir : str or path-like
        Directory in which the bytes read are stored; complete shards in it are mapped.
        By default nothing but indexes is stored. A local file is known by its device,
        inode, size and times: once it has changed, it is read anew.
    cache_limit : int or str
        Maximum of bytes in `cache_dir`, or text such as ``"100GB"``: what was not used
        for longest is removed. By default there is no limit.
    offline : bool
        Read only from `cache_dir`; False.
    private_hosts : bool
        Whether hosts may have a private address; True. False refuses hosts with an
        address that is not public (private, local, link-local, shared, multicast), also
        in redirects. Addresses are checked before a connection is made. Proxies are
        refused: they resolve names themselves. For the hub's listings and for object
        stores the endpoint is checked, which huggingface_hub and obstore then resolve
        again.
    store : Mapping of str to object
        Options of obstore's `S3Store`, `GCSStore`, `AzureStore`: ``region``,
        ``endpoint``, ``skip_signature``, credentials; and of its `ClientConfig`, such
        as ``allow_http``. By default the environment's (``AWS_REGION`` and so on).
    revision : str
        Branch, tag or commit of a repository on the Hugging Face hub; ``"main"``. One
        in the URL (``hf://datasets/owner/name@v1``) has precedence.
    endpoint : str
        URL of the hub; the default is ``HF_ENDPOINT``, then https://huggingface.co.

    Examples
    --------
    >>> import fastshard
    >>> options: fastshard.RemoteOptions = {"cache_dir": "kept", "cache_limit": "100GB"}
    >>> ds = fastshard.open("data/train-{0000..0003}.tar", **options)  # or a URL
    >>> len(ds)
    100
    """

    token: Token
    headers: Mapping[str, str] | None
    sign: Sign | None
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


class Settings(ForkAware):
    """Checked `RemoteOptions`; immutable. Pickles unless it holds a secret.

    Attributes
    ----------
    origins : frozenset of Origin
        Servers that the token and the headers are sent to.
    reached : set of Origin
        Servers that have answered, in this process or in the one that pickled this.
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
        self._shared: dict[Callable[[Settings], Any], Any] = {}
        super().__init__()
        self.options = options
        self.origins = origins
        self.reached: set[Origin] = set()
        self.token: Token = options.get("token")
        if not (
            self.token is None or isinstance(self.token, str) or callable(self.token)
        ):
            kind = type(self.token).__name__
            raise TypeError(f"token must be a str or a callable, got {kind}")
        self.sign: Sign | None = options.get("sign")
        if self.sign is not None and not callable(self.sign):
            kind = type(self.sign).__name__
            raise TypeError(f"sign must be a callable, fn(url) -> url, got {kind}")
        self.headers: dict[str, str] = _check_headers(options.get("headers") or {})
        self.connections: int = _check_positive(options, "connections", CONNECTIONS)
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
            raise FastshardError("cache_limit= is of a cache: give cache_dir=")

    def shared(self, kind: Callable[[Settings], T]) -> T:
        """Return the process's one ``kind(settings)``; make it at the first call."""
        found: T | None = self._shared.get(kind)
        if found is None:
            found = self._shared.setdefault(kind, kind(self))
        return found

    def bearer(self) -> str | None:
        """Return the token, or None; call the function that returns it.

        Raises
        ------
        FastshardError
            The token has a character that is invalid in a header.
        """
        token = self.token() if callable(self.token) else self.token
        token = token and token.strip()
        if token and not (token.isascii() and token.isprintable()):
            raise FastshardError("the token must be printable ASCII")
        return token

    def __repr__(self) -> str:
        return f"<Settings: {self.connections} connections, {self.timeout:g} s>"

    def reset_after_fork(self) -> None:
        """Drop the parent's connections and thread pools; the child makes its own."""
        self._shared.clear()

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the options, unless one of them is a secret.

        Raises
        ------
        FastshardError
            The token, a header or an option of `store` is, or may be, a secret; or a
            function does not pickle.
        """
        _check_pickles("token", self.token)
        _check_pickles("sign", self.sign)
        if isinstance(self.token, str):
            raise FastshardError(
                "a token that is a str is not pickled: give token= a function that "
                "returns it, or leave it to HF_TOKEN"
            )
        for name in self.headers:
            if name.lower() not in PLAIN_HEADERS:
                raise FastshardError(
                    f"the header {name} may be secret, and is not pickled: give token= "
                    "a function instead"
                )
        name = _find_secret(self.store)
        if name:
            raise FastshardError(
                f"the option {name!r} of a store is not pickled: leave it to the "
                "environment, or give store= a credential_provider"
            )
        state = {"reached": set(self.reached)}
        return Settings, (self.options, self.origins), state


def _check_pickles(name: str, value: Any) -> None:
    """Raise an error if the function of an option does not pickle.

    Other picklers, which may pickle it, are left to try.
    """
    if not callable(value) or not sys.modules.keys().isdisjoint(PICKLERS):
        return
    try:
        pickle.dumps(value)
    except Exception as error:
        raise FastshardError(
            f"{name}= does not pickle, for worker processes ({type(error).__name__}): "
            "define its function at the top of a module"
        ) from None


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


def _check_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """Return valid headers; errors name a header, but not its value."""
    checked_headers = {}
    for name, value in headers.items():
        if not isinstance(value, str) or not re.fullmatch(
            r"[\x20-\x7e]*", value.strip()
        ):
            raise FastshardError(f"the header {name!r} must be one line of ASCII")
        if not re.fullmatch(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+", name):
            raise FastshardError(f"{name!r} is not a valid name of a header")
        checked_headers[name] = value.strip()
    return checked_headers


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


def check_local(options: Mapping[str, Any], *, caches: bool = True) -> None:
    """Check the options of a source whose shards are all local files.

    With ``cache_dir`` they are read through the cache; other options are for URLs.

    Parameters
    ----------
    options : Mapping
    caches : bool
        Whether the call reads local files through a cache.

    Raises
    ------
    ValueError
        An option does nothing for local files.
    """
    if not options:
        return
    check_names("RemoteOptions", options, RemoteOptions.__optional_keys__)
    taken = FOR_COPIES if caches and options.get("cache_dir") else frozenset()
    for name, value in options.items():
        if value is UNUSED.get(name) or value == {} or name in taken:
            continue
        needed = ", or give cache_dir=" if caches and name in FOR_COPIES else ""
        raise ValueError(
            f"{name}= is an option for URLs, and does nothing for local files: leave "
            f"it out{needed}"
        )


def select_remote(options: Mapping[str, Any]) -> RemoteOptions:
    """Return the options that apply to every URL, without those of a format."""
    names = RemoteOptions.__optional_keys__
    selected = {name: value for name, value in options.items() if name in names}
    return cast(RemoteOptions, selected)


def select_local(options: RemoteOptions) -> RemoteOptions:
    """Return the options that local files take, too; of a list with URLs."""
    selected = {name: value for name, value in options.items() if name in FOR_COPIES}
    return cast(RemoteOptions, selected)


def make_settings(options: RemoteOptions, sources: Iterable[str | Url]) -> Settings:
    """Return settings whose secrets are sent to the origins of the sources only."""
    settings = Settings(options)
    urls = [parse_url(source) for source in sources]
    origins = {origin_of(url.normalized) for url in urls if url.scheme in HTTP}
    if settings.sign is not None and urls and not origins:
        raise FastshardError("sign= is for http and https URLs")
    if any(url.scheme == "hf" for url in urls):
        origins.add(origin_of(normalize_url(settings.endpoint)))
    return Settings(options, frozenset(origins)) if origins else settings
