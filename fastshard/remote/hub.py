"""Datasets of the Hugging Face hub: ``hf://datasets/owner/name[@revision]/path``.

Files are read by `HttpClient`, repositories are listed by `HttpExchange`. Only the
token of a login needs huggingface_hub.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple
from urllib.parse import quote, unquote, urljoin

from fastshard._util.paths.remote_options import RemoteOptions, Token
from fastshard._util.paths.urls import (
    Url,
    base_of,
    normalize_url,
    origin_of,
    parse_url,
    redact,
)
from fastshard.errors import FastshardError, RemoteError, RemoteNotFoundError
from fastshard.remote.deadline import Deadline
from fastshard.remote.exchange.answer import Answer
from fastshard.remote.exchange.exchange import HttpExchange, ServiceRequest
from fastshard.remote.http.client import client_for
from fastshard.remote.options import Settings
from fastshard.remote.requests.redirects import is_downgrade
from fastshard.remote.transport import LoopedRead, ObjectInfo, Part

__all__ = ["HubClient", "HubFile", "HubUrl", "hub_for", "parse_hub_url"]

URL = re.compile(
    r"hf://datasets/([^/@]+/[^/@]+)(?:@(refs/(?:convert|pr)/[^/]+|[^/]+))?(?:/(.*))?",
    re.IGNORECASE | re.DOTALL,
)
BUCKET = re.compile(r"hf://buckets/[^/]*/?[^/]*", re.IGNORECASE)
REPO = re.compile(r"[A-Za-z0-9_][\w.-]*/[A-Za-z0-9_][\w.-]*", re.ASCII)
COMMIT = re.compile(r"[0-9a-f]{40}")
TRUE_VALUES = frozenset(("1", "ON", "YES", "TRUE"))
NEXT = re.compile(r'<([^<>]+)>\s*;[^,<]*\brel="?next\b')  # of a Link
MOST_PAGES = 20_000  # of a listing, 1,000 files each
FILE = ("type", "path", "size")  # keys of a file in a listing
NONE = (None, None, None)
UNPRINTABLE = re.compile(r"[^\x20-\x7e]+")  # replaced in a server's message
LOG_IN = "log in with `hf auth login`, set HF_TOKEN or give token="


class HubUrl(NamedTuple):
    """Parsed URL of a dataset, or of a file or folder in it.

    Attributes
    ----------
    repo : str
        ``owner/name``.
    revision : str or None
        A branch, a tag or a commit; None if the URL has no revision.
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
    """File of a repository."""

    url: str
    nbytes: int


def parse_hub_url(text: str) -> HubUrl:
    """Parse a URL of the hub."""
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
        self._http = client_for(self._settings)
        self._exchange = HttpExchange(self._settings, self._settings, by_proxy=False)
        self.meter = self._http.meter

    def resolve_url(self, text: str) -> str:
        """Return the https URL of a file."""
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

    def begin(
        self, url: Url, expected: ObjectInfo, reads: Sequence[LoopedRead]
    ) -> Sequence[LoopedRead]:
        """Give range reads to the loop; see `Transport`."""
        return self._http.begin(Url(self.resolve_url(url.text)), expected, reads)

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
        """
        url = parse_hub_url(text)
        revision = url.revision or self._revision
        if COMMIT.fullmatch(revision):
            return url._replace(revision=revision).text
        commit = self._commits.get((url.repo, revision))
        if commit is None:
            commit = self._fetch_commit(url, revision)
            commit = self._commits.setdefault((url.repo, revision), commit)
        return url._replace(revision=commit).text

    def _fetch_commit(self, url: HubUrl, revision: str) -> str:
        target = f"{self._api_of(url)}/revision/{quote(revision, safe='')}?expand=sha"
        info, _ = self._query(url, target)
        commit = info.get("sha") if isinstance(info, dict) else None
        if not (isinstance(commit, str) and COMMIT.fullmatch(commit)):
            raise self._invalid(url, "expected a commit")
        return commit

    def list(self, folder: str) -> Iterator[str]:
        """Return the URLs of all files below a folder."""
        return (file.url for file in self.list_files(folder))

    def list_files(self, folder: str) -> Sequence[HubFile]:
        """Return all files below a folder, with their sizes; raises as `list` does."""
        url = parse_hub_url(folder)
        revision = quote(url.revision or self._revision, safe="")
        path = "/" + quote(url.path, safe="") if url.path else ""
        more: str | None = (
            f"{self._api_of(url)}/tree/{revision}{path}?recursive=true&expand=false"
        )
        files: list[HubFile] = []
        for _ in range(MOST_PAGES):
            if more is None:
                return files
            entries, more = self._query(url, more)
            files += self._files_of(url, entries)
        raise self._invalid(url, f"a listing of more than {MOST_PAGES:,} pages")

    def _files_of(self, url: HubUrl, entries: Any) -> Iterator[HubFile]:
        """Yield the files of a page; raise RemoteError for another kind of answer."""
        if not isinstance(entries, list):
            raise self._invalid(url, "expected a list")
        for entry in entries:
            kind, path, size = map(entry.get, FILE) if isinstance(entry, dict) else NONE
            if kind == "directory":
                continue
            if not (isinstance(path, str) and isinstance(size, int) and size >= 0):
                raise self._invalid(url, "expected files with a path and a size")
            yield HubFile(url._replace(path=path).text, size)

    def _api_of(self, url: HubUrl) -> str:
        return f"{self.endpoint}/api/datasets/{url.repo}"

    def _query(self, url: HubUrl, target: str) -> tuple[Any, str | None]:
        """Return the JSON at a URL of the API, and the URL of its next page."""
        if self._offline:
            raise FastshardError(
                f"{url.text} cannot be listed with offline=True: name its shards, "
                "for instance by a brace list"
            )
        page = self.dataset_page(url)
        if _is_true("HF_HUB_OFFLINE") or _is_true("TRANSFORMERS_OFFLINE"):
            raise RemoteError("listing is disabled: HF_HUB_OFFLINE is set", page)
        attempts = self._settings.attempts
        request = ServiceRequest("GET", target, attempts=attempts, names_errors=False)
        try:
            answer = self._exchange.send(request, trusted=True)
        except RemoteError as error:
            error.url = error.filename = page
            raise
        if answer.status != 200:
            raise self._refusal(url, answer)
        more = NEXT.search(answer.headers.get("Link", ""))
        following = urljoin(target, more[1]) if more else None
        if following is not None and is_downgrade(target, following):
            raise self._invalid(url, "a next page without TLS")
        try:  # mirrors may send another type than JSON's
            return answer.json(any_type=True, surrogates=True), following
        except ValueError as error:
            raise self._invalid(url, str(error)) from None

    def _invalid(self, url: HubUrl, reason: str) -> RemoteError:
        reason = f"no valid response from the hub: {reason}"
        return RemoteError(reason, self.dataset_page(url), 200)

    def _refusal(self, url: HubUrl, answer: Answer) -> RemoteError:
        """Return the error of a status, with the server's message."""
        revision = url.revision or self._revision
        at = self.dataset_page(url), answer.status, answer.attempts
        missing = {
            "RevisionNotFound": f"{url.repo} has no revision {revision!r}",
            "EntryNotFound": f"{url.repo} has no folder {url.path!r} at revision "
            f"{revision!r}",
            "RepoNotFound": f"the dataset {url.repo} does not exist or is private: "
            f"{LOG_IN}",
        }.get(answer.headers.get("X-Error-Code", ""))
        reason = UNPRINTABLE.sub(" ", answer.headers.get("X-Error-Message", ""))[:200]
        reason = reason or "the hub refused the request"
        if answer.status in (401, 403):
            return RemoteError(self._describe_refusal(reason, url), *at)
        return (
            RemoteNotFoundError(missing, *at) if missing else RemoteError(reason, *at)
        )


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
    if _is_true("HF_HUB_DISABLE_IMPLICIT_TOKEN"):
        return None
    try:
        from huggingface_hub import get_token
    except ImportError:
        return os.environ.get("HF_TOKEN", "").strip() or None
    return get_token()


def _is_true(variable: str) -> bool:
    """Return whether an environment variable is true, by huggingface_hub's rule."""
    return os.environ.get(variable, "").upper() in TRUE_VALUES


def hub_for(settings: Settings) -> HubClient:
    """Return the process's client for these settings."""
    return settings.shared[HubClient]
