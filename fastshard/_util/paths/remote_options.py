"""Options for remote shards, as users give them."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, TypedDict, cast

from fastshard._util.options import check_names

__all__ = ["RemoteOptions", "check_local", "select_local", "select_remote"]

Token = str | Callable[[], str | None] | None
Sign = Callable[[str], str | None]

FOR_COPIES = frozenset(
    ("cache_dir", "cache_limit", "connections")
)  # for local files too
UNUSED = MappingProxyType({"offline": False, "private_hosts": True})  # as by default


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
        Maximum of bytes in `cache_dir`, or text such as ``"100GB"``: least recently
        used objects are removed. By default there is no limit.
    offline : bool
        Read only from `cache_dir`; False.
    private_hosts : bool
        Whether hosts may have a private address; True. False refuses hosts with an
        address that is not public (private, local, link-local, shared, multicast), also
        in redirects. Addresses are checked before a connection is made. Proxies are
        refused: they resolve names themselves. For object stores the endpoint is
        checked, which obstore then resolves again.
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


def check_local(options: Mapping[str, Any], *, caches: bool = True) -> None:
    """Check the options of a source whose shards are all local files.

    With ``cache_dir`` they are read through the cache; other options are for URLs.
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
    """Return the options that also apply to local files, of a list with URLs."""
    selected = {name: value for name, value in options.items() if name in FOR_COPIES}
    return cast(RemoteOptions, selected)
