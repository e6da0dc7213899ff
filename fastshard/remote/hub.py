"""Datasets of the Hugging Face hub: ``hf://datasets/owner/name[@revision]/path``.

Files are read over plain HTTP, which needs no library. What is in a repository is
listed by huggingface_hub, which also knows the token of a login.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar
from urllib.parse import quote, unquote

from fastshard.errors import FastshardError, RemoteError, RemoteNotFoundError
from fastshard.remote.addresses import RefusedHostError
from fastshard.remote.facts import ObjectInfo, Part
from fastshard.remote.http import HttpClient
from fastshard.remote.http_connection import check_public
from fastshard.remote.http_response import PASSING
from fastshard.remote.options import RemoteOptions, Settings, Token
from fastshard.remote.retry import Deadline, RetryError
from fastshard.remote.urls import Url, base_of, checked, origin_of, parse_url, redact

if TYPE_CHECKING:
    from huggingface_hub import HfApi

__all__ = ["Entry", "HubClient", "Place", "hub_for", "place_of"]

T = TypeVar("T")

URL = re.compile(
    r"hf://datasets/([^/@]+/[^/@]+)(?:@(refs/(?:convert|pr)/[^/]+|[^/]+))?(?:/(.*))?",
    re.IGNORECASE | re.DOTALL,
)
REPO = re.compile(r"[A-Za-z0-9_][\w.-]*/[A-Za-z0-9_][\w.-]*", re.ASCII)
COMMIT = re.compile(r"[0-9a-f]{40}")
YES = frozenset(("1", "ON", "YES", "TRUE"))
PASS = frozenset(  # errors that may
    ("ConnectionError", "Timeout", "TransportError", "gaierror")
)
WORDS = re.compile(r"[^\x20-\x7e]+")  # what is left out of a server's message
LOG_IN = "log in with `hf auth login`, set HF_TOKEN or give token="


class Place(NamedTuple):
    """What a URL names.

    Attributes
    ----------
    repo : str
        ``owner/name``.
    revision : str or None
        A branch, a tag or a commit; None if the URL does not say.
    path : str
        In the repository, without percent signs; empty for its root.
    """

    repo: str
    revision: str | None
    path: str

    @property
    def url(self) -> str:
        at = "" if self.revision is None else "@" + quote(self.revision, safe="")
        path = "/" + _escaped(self.path) if self.path else ""
        return f"hf://datasets/{self.repo}{at}{path}"


class Entry(NamedTuple):
    """A file of a repository.

    Attributes
    ----------
    url : str
    nbytes : int
    """

    url: str
    nbytes: int


def place_of(url: str) -> Place:
    """Read a URL of the hub.

    Raises
    ------
    FastshardError
        It is another kind of URL, or that of no dataset.
    """
    base = base_of(url)
    match = URL.fullmatch(base)
    if match is None:
        raise FastshardError(
            f"{redact(base)} is no dataset of the hub: write "
            "hf://datasets/owner/name/path, for without datasets/ it would be a model"
        )
    repo, revision, path = match[1], match[2], unquote(match[3] or "").rstrip("/")
    if not REPO.fullmatch(repo):
        raise FastshardError(f"{base}: {repo!r} is no name of a dataset")
    if path and any(part in ("", ".", "..") for part in path.split("/")):
        raise FastshardError(f"{base} is no path in a repository")
    return Place(repo, unquote(revision) if revision else None, path)


class HubClient:
    """Reads and lists datasets of the hub; one a process and settings.

    Use `hub_for`. The token goes to the hub alone: one that was given if it was for
    the hub, otherwise that of a login or of ``HF_TOKEN``.
    """

    def __init__(self, settings: Settings) -> None:
        self.endpoint = settings.endpoint
        self._offline = settings.offline
        self._revision = settings.revision or "main"
        self._commits: dict[tuple[str, str], str] = {}
        origin = origin_of(checked(self.endpoint))
        options: RemoteOptions = {**settings.options}
        if origin not in settings.origins:  # what was given is for others
            options |= {"token": None, "headers": None}
        options["token"] = _asking(options.get("token"))
        self._settings = Settings(options, frozenset((origin,)))
        self._http = HttpClient(self._settings)  # which nobody else needs
        self.meter = self._http.meter

    def https_of(self, url: str) -> str:
        """Return where the hub has a file.

        Raises
        ------
        FastshardError
            It is the URL of no file.
        """
        place = place_of(url)
        if not place.path:
            raise FastshardError(f"{place.url} is a whole dataset, not a file")
        revision = quote(place.revision or self._revision, safe="")
        path = quote(place.path)
        return f"{self.page_of(place)}/resolve/{revision}/{path}"

    def page_of(self, place: Place) -> str:
        """Return the address of a dataset's page."""
        return f"{self.endpoint}/datasets/{place.repo}"

    def read(
        self,
        url: Url,
        start: int,
        end: int,
        parts: Sequence[Part],
        known: ObjectInfo,
        deadline: Deadline | None = None,
    ) -> None:
        """Read a range, and put parts of it where they go; see `Transport.read`."""
        with self._explained(url) as found:
            self._http.read(found, start, end, parts, known, deadline)

    def head(self, url: str | Url, size: int) -> tuple[ObjectInfo, bytes]:
        """Return what an object is, and its first bytes, at most `size`."""
        with self._explained(url) as found:
            return self._http.head(found, size)

    def whole(self, url: str | Url) -> tuple[ObjectInfo, bytes]:
        """Return a small object."""
        with self._explained(url) as found:
            return self._http.whole(found)

    @contextmanager
    def _explained(self, url: str | Url) -> Iterator[Url]:
        """Give the address of a file; a refusal then says what to do about it."""
        text = parse_url(url).text
        found = self.https_of(text)
        try:
            yield Url(found)
        except RemoteError as error:
            if error.status not in (401, 403):
                raise
            said = error.reason.removesuffix("; give token=")
            reason = self._refusal(said, place_of(text))
            raise RemoteError(reason, error.url, error.status, error.attempts) from None

    def _refusal(self, said: str, place: Place) -> str:
        """Say what to do about a dataset that may not be read."""
        return (
            f"{said.rstrip(' .')} - if {place.repo} is gated, accept its terms at "
            f"{self.page_of(place)}; {LOG_IN}"
        )

    def pinned(self, url: str) -> str:
        """Return a URL with the commit that its revision is at now.

        What is listed and read by such URLs is all of one commit. The hub is asked
        once for each revision.

        Raises
        ------
        RemoteNotFoundError
            There is no such dataset or revision.
        RemoteError, FastshardError
            The hub cannot be asked.
        """
        place = place_of(url)
        revision = place.revision or self._revision
        if COMMIT.fullmatch(revision):
            return place._replace(revision=revision).url
        commit = self._commits.get((place.repo, revision))
        if commit is None:
            commit = self._asked(place, lambda api: self._sha(api, place, revision))
            commit = self._commits.setdefault((place.repo, revision), commit)
        return place._replace(revision=commit).url

    def _sha(self, api: HfApi, place: Place, revision: str) -> str:
        timeout = self._settings.timeout
        info = api.dataset_info(
            place.repo, revision=revision, timeout=timeout, expand=["sha"]
        )
        return str(info.sha or revision)

    def list(self, folder: str) -> Iterator[str]:
        """Return the URLs of all files below a folder.

        Raises
        ------
        RemoteNotFoundError
            There is no such dataset, revision or folder.
        RemoteError, FastshardError
            It cannot be listed.
        """
        return (entry.url for entry in self.entries(folder))

    def entries(self, folder: str) -> Sequence[Entry]:
        """Return all files below a folder, with their sizes; see `list`.

        No time limit holds for a single answer: huggingface_hub sets none here.
        """
        place = place_of(folder)
        return self._asked(place, lambda api: self._tree(api, place))

    def _tree(self, api: HfApi, place: Place) -> Sequence[Entry]:
        found = api.list_repo_tree(
            place.repo,
            place.path or None,
            recursive=True,
            revision=place.revision or self._revision,
            repo_type="dataset",
        )
        return [
            Entry(place._replace(path=str(one.path)).url, int(one.size))
            for one in found
            if hasattr(one, "size")  # a folder has none
        ]

    def _asked(self, place: Place, ask: Callable[[HfApi], T]) -> T:
        """Ask huggingface_hub, again if what went wrong may pass."""
        if self._offline:
            raise FastshardError(
                f"{place.url} cannot be listed with offline=True: name its shards, "
                "for instance by a brace list"
            )
        api = self._api()
        deadline = Deadline(self._settings.timeout)
        attempt = 0
        while True:
            try:
                if not self._settings.private_hosts:
                    check_public(origin_of(checked(self.endpoint)))
                return ask(api)
            except RefusedHostError:
                raise
            except _failures() as error:
                failure = self._translate_error(error, place, attempt + 1)
                passes = failure.status in PASSING or bool(PASS & _names_of(error))
            if not passes:
                raise failure
            failed = RetryError(failure.reason, failure.status)
            deadline.pause(failed, attempt, failure.url, self._settings.attempts)
            attempt += 1

    def _api(self) -> HfApi:
        try:
            from huggingface_hub import HfApi
        except ImportError:
            raise FastshardError(
                "what is in a dataset of the hub is listed by huggingface_hub: "
                'pip install "fastshard[hf]"; or name the shards, by a brace list'
            ) from None
        return HfApi(endpoint=self.endpoint, token=self._settings.bearer() or False)

    def _translate_error(
        self, error: Exception, place: Place, attempts: int
    ) -> RemoteError:
        """Return what an error of huggingface_hub means here; without its text."""
        page, revision = self.page_of(place), place.revision or self._revision
        names = _names_of(error)
        answer = _answer_of(error)
        status = getattr(answer, "status_code", None)
        said = getattr(answer, "headers", {}).get("X-Error-Message") or ""
        said = WORDS.sub(" ", said)[:200] or f"the hub refuses ({type(error).__name__})"
        if "RevisionNotFoundError" in names:
            said = f"{place.repo} has no revision {revision!r}"
            return RemoteNotFoundError(said, page, status, attempts)
        if "EntryNotFoundError" in names:
            said = f"there is no folder {place.path!r} in it at {revision!r}"
            return RemoteNotFoundError(said, page, status, attempts)
        if status in (401, 403):
            return RemoteError(self._refusal(said, place), page, status, attempts)
        if "RepositoryNotFoundError" in names:
            said = f"there is no dataset {place.repo}, or it is private: {LOG_IN}"
            return RemoteNotFoundError(said, page, status, attempts)
        if "OfflineModeIsEnabled" in names:
            said = "HF_HUB_OFFLINE is set, so nothing is listed"
        elif status is None:
            said = f"the hub does not answer as it should ({type(error).__name__})"
        return RemoteError(said, page, status, attempts)


def _failures() -> tuple[type[Exception], ...]:
    """Return what huggingface_hub may raise for what a server does."""
    found = (sys.modules.get(name) for name in ("httpx", "httpx2"))  # of newer ones
    others = (module.HTTPError for module in found if module is not None)
    return (OSError, ValueError, LookupError, TypeError, AttributeError, *others)


def _names_of(error: Exception) -> set[str]:
    """Return the names of an exception's classes, which have moved between modules."""
    names = {kind.__name__ for kind in type(error).__mro__}
    return names - {"ConnectionError"} if "OfflineModeIsEnabled" in names else names


def _answer_of(error: BaseException | None) -> Any:
    """Return the server's answer that led to an exception, if one did."""
    while error is not None:  # huggingface_hub may fail to read a refusal
        answer = getattr(error, "response", None)
        if answer is not None:
            return answer
        error = error.__context__
    return None


def _escaped(path: str) -> str:
    """Return a path as it is in a URL: only what would end it is quoted."""
    return path.replace("%", "%25").replace("?", "%3F").replace("#", "%23")


def _asking(token: Token) -> Callable[[], str | None]:
    """Return a function that knows the token, and looks for it when it is needed."""
    found: list[str | None] = []

    def bearer() -> str | None:
        given = token() if callable(token) else token
        if given is not None:
            return given
        if not found:
            found.append(_stored())
        return found[0]

    return bearer


def _stored() -> str | None:
    """Return the token of a login or of the environment."""
    if os.environ.get("HF_HUB_DISABLE_IMPLICIT_TOKEN", "").upper() in YES:
        return None
    try:
        from huggingface_hub import get_token
    except ImportError:
        return os.environ.get("HF_TOKEN", "").strip() or None
    return get_token()


def hub_for(settings: Settings) -> HubClient:
    """Return this process's client."""
    return settings.shared(HubClient)
