"""Datasets of the Hugging Face hub: ``hf://datasets/owner/name[@revision]/path``.

Files are read by `HttpClient`. Only listing a repository and finding the token of a
login need huggingface_hub.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar
from urllib.parse import quote, unquote

from fastshard._util.paths.remote_options import RemoteOptions, Token
from fastshard._util.paths.urls import (
    Url,
    base_of,
    normalize_url,
    origin_of,
    parse_url,
    redact,
)
from fastshard.errors import (
    FastshardError,
    MissingLibraryError,
    RemoteError,
    RemoteNotFoundError,
)
from fastshard.remote.addresses import RefusedHostError
from fastshard.remote.http import HttpClient
from fastshard.remote.http_connection import check_public
from fastshard.remote.http_response import TRANSIENT
from fastshard.remote.options import Settings
from fastshard.remote.retry import Deadline, RetryError
from fastshard.remote.transport import LoopedRead, ObjectInfo, Part

if TYPE_CHECKING:
    from huggingface_hub import HfApi

__all__ = ["HubClient", "HubFile", "HubUrl", "hub_for", "parse_hub_url"]

T = TypeVar("T")

URL = re.compile(
    r"hf://datasets/([^/@]+/[^/@]+)(?:@(refs/(?:convert|pr)/[^/]+|[^/]+))?(?:/(.*))?",
    re.IGNORECASE | re.DOTALL,
)
BUCKET = re.compile(r"hf://buckets/[^/]*/?[^/]*", re.IGNORECASE)
REPO = re.compile(r"[A-Za-z0-9_][\w.-]*/[A-Za-z0-9_][\w.-]*", re.ASCII)
COMMIT = re.compile(r"[0-9a-f]{40}")
TRUE_VALUES = frozenset(("1", "ON", "YES", "TRUE"))
TRANSIENT_ERRORS = frozenset(  # class names, of any library
    ("ConnectionError", "Timeout", "TransportError", "gaierror")
)
UNREACHED = frozenset(("ConnectError", "ConnectionError", "gaierror"))
UNPRINTABLE = re.compile(r"[^\x20-\x7e]+")  # replaced in a server's message
LOG_IN = "log in with `hf auth login`, set HF_TOKEN or give token="


class HubUrl(NamedTuple):
    """Parsed URL of a dataset, or of a file or folder in it.

    Attributes
    ----------
    repo : str
        ``owner/name``.
    revision : str or None
        A branch, a tag or a commit; None if the URL has none.
    path : str
        Path in the repository, percent-decoded; empty for the root.
    """

    repo: str
    revision: str | None
    path: str

    @property
    def text(self) -> str:
        """The URL as a str."""
        at = "" if self.revision is None else "@" + quote(self.revision, safe="")
        path = "/" + _escape(self.path) if self.path else ""
        return f"hf://datasets/{self.repo}{at}{path}"


class HubFile(NamedTuple):
    """File of a repository.

    Attributes
    ----------
    url : str
    nbytes : int
    """

    url: str
    nbytes: int


def parse_hub_url(text: str) -> HubUrl:
    """Parse a URL of the hub.

    Raises
    ------
    FastshardError
        The URL is not that of a dataset on the hub.
    """
    base = base_of(text)
    match = URL.fullmatch(base)
    if bucket := BUCKET.match(base):
        raise FastshardError(
            f"{redact(base)}: a bucket of the hub is not read, only its datasets are, "
            "hf://datasets/owner/name/path; download the bucket by `hf buckets sync "
            f"{bucket[0]} DIR`"
        )
    if match is None:
        raise FastshardError(
            f"expected hf://datasets/owner/name/path, got {redact(base)}; a URL "
            "without datasets/ names a model"
        )
    repo, revision, path = match[1], match[2], unquote(match[3] or "").rstrip("/")
    if not REPO.fullmatch(repo):
        raise FastshardError(f"{repo!r} is not a valid dataset name - at {base}")
    if path and any(part in ("", ".", "..") for part in path.split("/")):
        raise FastshardError(
            f"a path in a repository must not have empty parts, . or .. - at {base}"
        )
    return HubUrl(repo, unquote(revision) if revision else None, path)


class HubClient:
    """Client for datasets of the hub; one per process and settings, by `hub_for`.

    The token is sent to the hub only. It is the one in the settings if the hub is among
    their origins, otherwise that of ``HF_TOKEN`` or of a login.
    """

    def __init__(self, settings: Settings) -> None:
        self.endpoint = settings.endpoint
        self._offline = settings.offline
        self._revision = settings.revision or "main"
        self._commits: dict[tuple[str, str], str] = {}
        origin = origin_of(normalize_url(self.endpoint))
        options: RemoteOptions = {**settings.options}
        options["sign"] = None
        if origin not in settings.origins:  # the secrets are for other hosts
            options |= {"token": None, "headers": None}
        options["token"] = _token_source(options.get("token"))
        self._settings = Settings(options, frozenset((origin,)))
        self._settings.reached = settings.reached
        self._http = HttpClient(self._settings)
        self.meter = self._http.meter

    def resolve_url(self, text: str) -> str:
        """Return the https URL of a file.

        Raises
        ------
        FastshardError
            The URL is not that of a file on the hub.
        """
        url = parse_hub_url(text)
        if not url.path:
            raise FastshardError(f"{url.text} is a dataset; expected the URL of a file")
        revision = quote(url.revision or self._revision, safe="")
        path = quote(url.path)
        return f"{self.dataset_page(url)}/resolve/{revision}/{path}"

    def dataset_page(self, url: HubUrl) -> str:
        """Return the URL of a dataset's web page."""
        return f"{self.endpoint}/datasets/{url.repo}"

    def read(
        self,
        url: Url,
        start: int,
        end: int,
        parts: Sequence[Part],
        expected: ObjectInfo,
        deadline: Deadline | None = None,
    ) -> None:
        """Read a range and copy parts of it to their destinations; see `Transport`."""
        with self._resolve(url) as resolved:
            self._http.read(resolved, start, end, parts, expected, deadline)

    def begin(self, url: Url, expected: ObjectInfo, read: LoopedRead) -> bool:
        """Give a range read to the loop; see `Transport`."""
        return self._http.begin(Url(self.resolve_url(url.text)), expected, read)

    def head(self, url: str | Url, size: int) -> tuple[ObjectInfo, bytes]:
        """Return the metadata and at most the first `size` bytes of an object."""
        with self._resolve(url) as resolved:
            return self._http.head(resolved, size)

    def whole(self, url: str | Url) -> tuple[ObjectInfo, bytes]:
        """Return the metadata and all bytes of a small object."""
        with self._resolve(url) as resolved:
            return self._http.whole(resolved)

    @contextmanager
    def _resolve(self, url: str | Url) -> Iterator[Url]:
        """Yield the https URL of a file; add advice on access to errors 401 and 403."""
        text = parse_url(url).text
        resolved = self.resolve_url(text)
        try:
            yield Url(resolved)
        except RemoteError as error:
            if error.status not in (401, 403):
                raise
            message = error.reason.removesuffix("; give token=")
            reason = self._describe_refusal(message, parse_hub_url(text))
            raise RemoteError(reason, error.url, error.status, error.attempts) from None

    def _describe_refusal(self, message: str, url: HubUrl) -> str:
        """Return the server's message, with advice on access to the dataset."""
        return (
            f"{message.rstrip(' .')} - if {url.repo} is gated, accept its terms at "
            f"{self.dataset_page(url)}; {LOG_IN}"
        )

    def pin_revision(self, text: str) -> str:
        """Return the URL with its revision replaced by the current commit.

        All listings and reads by such URLs see one commit. Each revision is resolved
        once.

        Raises
        ------
        RemoteNotFoundError
            The dataset or the revision does not exist.
        RemoteError, FastshardError
            The revision cannot be resolved.
        """
        url = parse_hub_url(text)
        revision = url.revision or self._revision
        if COMMIT.fullmatch(revision):
            return url._replace(revision=revision).text
        commit = self._commits.get((url.repo, revision))
        if commit is None:
            commit = self._call_api(
                url, lambda api: self._fetch_commit(api, url, revision)
            )
            commit = self._commits.setdefault((url.repo, revision), commit)
        return url._replace(revision=commit).text

    def _fetch_commit(self, api: HfApi, url: HubUrl, revision: str) -> str:
        timeout = self._settings.timeout
        info = api.dataset_info(
            url.repo, revision=revision, timeout=timeout, expand=["sha"]
        )
        return str(info.sha or revision)

    def list(self, folder: str) -> Iterator[str]:
        """Return the URLs of all files below a folder.

        Raises
        ------
        RemoteNotFoundError
            The dataset, the revision or the folder does not exist.
        RemoteError, FastshardError
            The folder cannot be listed.
        """
        return (file.url for file in self.list_files(folder))

    def list_files(self, folder: str) -> Sequence[HubFile]:
        """Return all files below a folder, with their sizes; raises as `list` does.

        A single request has no time limit: huggingface_hub sets none for listings.
        """
        url = parse_hub_url(folder)
        return self._call_api(url, lambda api: self._fetch_files(api, url))

    def _fetch_files(self, api: HfApi, url: HubUrl) -> Sequence[HubFile]:
        items = api.list_repo_tree(
            url.repo,
            url.path or None,
            recursive=True,
            revision=url.revision or self._revision,
            repo_type="dataset",
        )
        return [
            HubFile(url._replace(path=str(item.path)).text, int(item.size))
            for item in items
            if hasattr(item, "size")  # a folder has none
        ]

    def _call_api(self, url: HubUrl, call: Callable[[HfApi], T]) -> T:
        """Call a function with an `HfApi`; repeat it after transient failures."""
        if self._offline:
            raise FastshardError(
                f"{url.text} cannot be listed with offline=True: name its shards, "
                "for instance by a brace list"
            )
        api = self._new_api()
        deadline = Deadline(self._settings.timeout)
        origin, attempt = origin_of(normalize_url(self.endpoint)), 0
        while True:
            try:
                if not self._settings.private_hosts:
                    check_public(origin)
                found = call(api)
                self._settings.reached.add(origin)
                return found
            except RefusedHostError:  # an OSError: not to be retried
                raise
            except _api_errors() as error:
                failure = self._translate_error(error, url, attempt + 1)
                names = _names_of(error)
                is_transient = failure.status in TRANSIENT or bool(
                    TRANSIENT_ERRORS & names
                )
            if not is_transient:
                raise failure
            failed = RetryError(failure.reason, failure.status)
            if names & UNREACHED and origin not in self._settings.reached:
                failed.within = self._settings.first_timeout
            deadline.backoff(failed, attempt, failure.url, self._settings.attempts)
            attempt += 1

    def _new_api(self) -> HfApi:
        try:
            from huggingface_hub import HfApi
        except ImportError:
            raise MissingLibraryError(
                "listing a dataset of the hub needs huggingface_hub: "
                'pip install "fastshard[hf]"; or name the shards, by a brace list'
            ) from None
        return HfApi(endpoint=self.endpoint, token=self._settings.bearer() or False)

    def _translate_error(
        self, error: Exception, url: HubUrl, attempts: int
    ) -> RemoteError:
        """Return a `RemoteError` for an error of huggingface_hub.

        It has the server's message, not the error's text, which may hold a secret.
        """
        page, revision = self.dataset_page(url), url.revision or self._revision
        names = _names_of(error)
        response = _response_of(error)
        status = getattr(response, "status_code", None)
        reason = getattr(response, "headers", {}).get("X-Error-Message") or ""
        reason = UNPRINTABLE.sub(" ", reason)[:200]
        reason = reason or f"the hub refused the request ({type(error).__name__})"
        if "RevisionNotFoundError" in names:
            reason = f"{url.repo} has no revision {revision!r}"
            return RemoteNotFoundError(reason, page, status, attempts)
        if "EntryNotFoundError" in names:
            reason = f"{url.repo} has no folder {url.path!r} at revision {revision!r}"
            return RemoteNotFoundError(reason, page, status, attempts)
        if status in (401, 403):
            reason = self._describe_refusal(reason, url)
            return RemoteError(reason, page, status, attempts)
        if "RepositoryNotFoundError" in names:
            reason = f"the dataset {url.repo} does not exist or is private: {LOG_IN}"
            return RemoteNotFoundError(reason, page, status, attempts)
        if "OfflineModeIsEnabled" in names:
            reason = "listing is disabled: HF_HUB_OFFLINE is set"
        elif status is None:
            reason = f"no valid response from the hub ({type(error).__name__})"
        return RemoteError(reason, page, status, attempts)


def _api_errors() -> tuple[type[Exception], ...]:
    """Return the exceptions that huggingface_hub may raise for a failed request."""
    modules = (sys.modules.get(name) for name in ("httpx", "httpx2"))  # newer versions
    others = (module.HTTPError for module in modules if module is not None)
    return (OSError, ValueError, LookupError, TypeError, AttributeError, *others)


def _names_of(error: Exception) -> set[str]:
    """Return the names of an exception's classes; their modules vary by version."""
    names = {kind.__name__ for kind in type(error).__mro__}
    return names - {"ConnectionError"} if "OfflineModeIsEnabled" in names else names


def _response_of(error: BaseException | None) -> Any:
    """Return the response attached to an exception or its contexts, or None."""
    while error is not None:  # huggingface_hub may fail to parse an error response
        response = getattr(error, "response", None)
        if response is not None:
            return response
        error = error.__context__
    return None


def _escape(path: str) -> str:
    """Percent-encode the characters that would end a path in a URL."""
    return path.replace("%", "%25").replace("?", "%3F").replace("#", "%23")


def _token_source(token: Token) -> Callable[[], str | None]:
    """Return a function for the token: the given one, or that of a login if None."""
    found: list[str | None] = []

    def bearer() -> str | None:
        given = token() if callable(token) else token
        if given is not None:
            return given
        if not found:
            found.append(_login_token())
        return found[0]

    return bearer


def _login_token() -> str | None:
    """Return the token of ``HF_TOKEN`` or of a login, or None."""
    if os.environ.get("HF_HUB_DISABLE_IMPLICIT_TOKEN", "").upper() in TRUE_VALUES:
        return None
    try:
        from huggingface_hub import get_token
    except ImportError:
        return os.environ.get("HF_TOKEN", "").strip() or None
    return get_token()


def hub_for(settings: Settings) -> HubClient:
    """Return the process's client for these settings."""
    return settings.shared(HubClient)
