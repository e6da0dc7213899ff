"""Fake of the Hugging Face hub on this machine, with datasets in memory."""

from __future__ import annotations

import base64
import functools
import hashlib
import json
import secrets
import time
from collections.abc import Collection, Mapping
from typing import NamedTuple
from urllib.parse import parse_qs, quote, unquote

from support.servers.http import Server
from support.servers.messages import Answer, Request, plain

Files = Mapping[str, bytes]

SMALL = ".gitattributes", ".json", ".md"  # kept in git: served without a redirect
DATE = "2024-01-01T00:00:00.000Z"
RESTRICTED = "Access to dataset {} is restricted"


class HubError(Exception):
    """Refusal by the hub: status, error code, message."""

    def answer(self) -> Answer:
        status, code, message = self.args
        answer = in_json({"error": message}, status)
        if code is not None:
            answer = answer.add("X-Error-Code", code)
        return answer.add("X-Error-Message", message)


class Asked(NamedTuple):
    """A revision of a dataset."""

    repo: str
    revision: str
    files: Files

    @property
    def commit(self) -> str:
        return commit_of(self.repo, self.files)


class Cdn(Server):
    """Store of large files; its URLs expire."""

    def __init__(self, **options: object) -> None:
        super().__init__({}, **options)
        self.deadlines: dict[str, float] = {}  # of signatures, on the system's clock

    def sign(self, path: str, lifetime: float) -> str:
        """Return a URL of a path that works for some seconds."""
        signature = secrets.token_hex(16)
        self.deadlines[signature] = deadline = time.time() + lifetime
        query = f"Expires={int(deadline)}&Signature={signature}&Key-Pair-Id=K1"
        return f"{self.at(path)}?{query}"

    def answer(self, request: Request) -> Answer:
        signature = parse_qs(request.query).get("Signature", [""])[0]
        if self.deadlines.get(signature, 0) <= time.time():
            refusal = plain(403, "<Error><Code>AccessDenied</Code></Error>")
            return refusal.set("Content-Type", "application/xml")
        return super().answer(request)


class FakeHub(Server):
    """Serve datasets as the hub does, inside a ``with``.

    ``repos`` holds the files of each dataset's ``main``, ``revisions`` those of
    its other branches and tags; a commit's hash names a revision too. Whoever
    has the ``token`` may read all; anyone sees what ``gated`` datasets hold, but
    not their files. ``page`` is how many entries of a tree come at a time.
    ``lifetime`` of addresses at the ``cdn`` is in seconds.
    """

    def __init__(
        self,
        repos: dict[str, dict[str, bytes]],
        *,
        revisions: Mapping[str, Mapping[str, Files]] | None = None,
        token: str | None = None,
        gated: Collection[str] = (),
        private: Collection[str] = (),
        page: int = 2,
        lifetime: float = 3600,
        **options: object,
    ) -> None:
        super().__init__(**options)
        self.repos = repos
        self.revisions = revisions or {}
        self.token = token
        self.gated = gated
        self.private = private
        self.page = page
        self.lifetime = lifetime
        self.cdn = Cdn(**options)

    def __enter__(self) -> FakeHub:
        self.cdn.__enter__()
        super().__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        self.cdn.__exit__(*error)

    def expire(self) -> None:
        """Expire all URLs of the CDN given out so far."""
        self.cdn.deadlines.clear()

    def resolve_url(self, repo: str, path: str, revision: str = "main") -> str:
        revision = quote(revision, safe="")
        return f"{self.url}/datasets/{repo}/resolve/{revision}/{quote(path)}"

    def answer(self, request: Request) -> Answer:
        if request.method not in ("GET", "HEAD"):
            return super().answer(request)
        parts = [unquote(p) for p in request.target.partition("?")[0].split("/")[1:]]
        try:
            if parts[:2] == ["api", "datasets"]:
                return self.answer_api(request, parts[2:])
            if parts[0] == "datasets" and "resolve" in parts:
                return self.answer_resolve(request, parts[1:])
        except HubError as error:
            return error.answer()
        return in_json({"error": "Sorry, we can't find the page"}, 404)

    def answer_api(self, request: Request, parts: list[str]) -> Answer:
        repo, rest = self.split(parts)
        self.check_visible(request, repo)
        query = {key: values[0] for key, values in parse_qs(request.query).items()}
        match rest:
            case []:
                return in_json(self.info(self.find(repo, "main"), query))
            case ["revision", revision]:
                return in_json(self.info(self.find(repo, revision), query))
            case ["tree", revision, *folder]:
                asked = self.find(repo, revision)
                return self.tree(asked, "/".join(folder).strip("/"), query)
        raise HubError(404, None, "Not Found")

    def answer_resolve(self, request: Request, parts: list[str]) -> Answer:
        repo, rest = self.split(parts)
        self.check_visible(request, repo)
        self.check_allowed(request, repo)
        asked, path = self.find(repo, rest[1]), "/".join(rest[2:])
        data = asked.files.get(path)
        if data is None:
            raise HubError(404, "EntryNotFound", "Entry not found")
        if path.endswith(SMALL):
            answer = self.answer_file(request, data).set("ETag", f'"{blob_of(data)}"')
        else:
            answer = self.redirect(asked, data)
        return answer.add("X-Repo-Commit", asked.commit)

    def redirect(self, asked: Asked, data: bytes) -> Answer:
        """Redirect a client to the store of a large file."""
        etag = sha256_of(data)
        where = f"/repos/{asked.repo}/{etag}"
        self.cdn.files[where] = data
        location = self.cdn.sign(where, self.lifetime)
        answer = plain(302, f"Found. Redirecting to {location}")
        answer = answer.add("Location", location).add("ETag", f'"{etag}"')
        answer = answer.add("X-Linked-Size", len(data)).add("Accept-Ranges", "bytes")
        return answer.add("X-Linked-ETag", f'"{etag}"')

    def split(self, parts: list[str]) -> tuple[str, list[str]]:
        """Split a dataset's name, of one word or two, from the path after it."""
        for count in (2, 1):
            if "/".join(parts[:count]) in self.repos:
                return "/".join(parts[:count]), parts[count:]
        return "/".join(parts[:2]), parts[2:]

    def knows(self, request: Request) -> bool:
        """Say whether a request carries the right token."""
        expected = f"Bearer {self.token}"
        return self.token is not None and authorization(request) == expected

    def check_visible(self, request: Request, repo: str) -> None:
        """Answer for private datasets as for missing ones, as the hub does."""
        if repo in self.repos and (repo not in self.private or self.knows(request)):
            return
        if authorization(request) is None:
            raise HubError(401, "RepoNotFound", "Invalid username or password.")
        raise HubError(404, "RepoNotFound", "Repository not found")

    def check_allowed(self, request: Request, repo: str) -> None:
        if repo not in self.gated or self.knows(request):
            return
        message = RESTRICTED.format(repo)
        if authorization(request) is None:
            message += ". You must have access to it and be authenticated to access it."
            raise HubError(401, "GatedRepo", f"{message} Please log in.")
        message += f" and you are not in the authorized list. Visit {self.url}/datasets"
        raise HubError(403, "GatedRepo", f"{message}/{repo} to ask for access.")

    def find(self, repo: str, revision: str) -> Asked:
        named = {"main": self.repos[repo], **self.revisions.get(repo, {})}
        for name, files in named.items():
            if revision in (name, commit_of(repo, files)):
                return Asked(repo, revision, files)
        raise HubError(404, "RevisionNotFound", f"Invalid rev id: {revision}")

    def info(self, asked: Asked, query: Mapping[str, str]) -> dict[str, object]:
        siblings = [{"rfilename": path} for path in sorted(asked.files)]
        if query.get("blobs", "").lower() in ("1", "true"):
            siblings = [
                sibling(path, asked.files[path]) for path in sorted(asked.files)
            ]
        return {
            "_id": hashlib.sha1(asked.repo.encode()).hexdigest()[:24],
            "id": asked.repo,
            "author": asked.repo.partition("/")[0],
            "sha": asked.commit,
            "lastModified": DATE,
            "createdAt": DATE,
            "private": asked.repo in self.private,
            "gated": "auto" if asked.repo in self.gated else False,
            "disabled": False,
            "downloads": 0,
            "likes": 0,
            "tags": [],
            "siblings": siblings,
        }

    def tree(self, asked: Asked, folder: str, query: Mapping[str, str]) -> Answer:
        """List a folder, a page at a time."""
        deep = query.get("recursive", "").lower() in ("1", "true")
        entries = entries_of(asked.files, folder, deep)
        if not entries:
            message = f"{folder} does not exist on {asked.revision!r}"
            raise HubError(404, "EntryNotFound", message)
        if query.get("expand", "").lower() in ("1", "true"):
            last = {"id": asked.commit, "title": "Upload", "date": DATE}
            entries = [{**entry, "lastCommit": last} for entry in entries]
        start = int(base64.urlsafe_b64decode(query.get("cursor", "")) or 0)
        end = start + min(int(query.get("limit", self.page)), self.page)
        answer = in_json(entries[start:end])
        if end >= len(entries):
            return answer
        cursor = base64.urlsafe_b64encode(str(end).encode()).decode()
        pairs = {**query, "cursor": cursor}.items()
        more = "&".join(f"{key}={quote(value, safe='')}" for key, value in pairs)
        revision = quote(asked.revision, safe="")
        path = f"/api/datasets/{asked.repo}/tree/{revision}/{quote(folder)}".rstrip("/")
        return answer.add("Link", f'<{self.url}{path}?{more}>; rel="next"')


def authorization(request: Request) -> str | None:
    return request.headers.get("authorization")


def in_json(what: object, status: int = 200) -> Answer:
    answer = Answer(status, (("Content-Type", "application/json; charset=utf-8"),))
    return answer.with_body(json.dumps(what).encode())


@functools.lru_cache(1000)  # a test may ask often about a large file
def blob_of(data: bytes) -> str:
    """Return the hash that git gives to contents."""
    return hashlib.sha1(b"blob %d\0%b" % (len(data), data)).hexdigest()


@functools.lru_cache(1000)
def sha256_of(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def pointer_of(data: bytes) -> bytes:
    """Return the git pointer of a large file."""
    digest = sha256_of(data)
    return (
        "version https://git-lfs.github.com/spec/v1\n"
        f"oid sha256:{digest}\nsize {len(data)}\n"
    ).encode()


def commit_of(repo: str, files: Files) -> str:
    """Return a commit hash that changes with the files."""
    known = hashlib.sha1(repo.encode())
    for path, data in sorted(files.items()):
        known.update(f"{blob_of(data)} {path}\n".encode())
    return known.hexdigest()


def sibling(path: str, data: bytes) -> dict[str, object]:
    """Describe a file as ``blobs=true`` does; trees use other names."""
    entry = file_entry(path, data)
    known = {"rfilename": path, "blobId": entry["oid"], "size": entry["size"]}
    if "lfs" in entry:
        lfs = entry["lfs"]
        known["lfs"] = {"sha256": lfs["oid"], **lfs}
    return known


def file_entry(path: str, data: bytes) -> dict[str, object]:
    entry = {"type": "file", "oid": blob_of(data), "size": len(data), "path": path}
    if path.endswith(SMALL):
        return entry
    pointer = pointer_of(data)
    digest = sha256_of(data)
    lfs = {"oid": digest, "size": len(data), "pointerSize": len(pointer)}
    return {**entry, "oid": blob_of(pointer), "lfs": lfs}


def entries_of(files: Files, folder: str, deep: bool) -> list[dict[str, object]]:
    """Return the files and folders in a folder, in the order of their paths."""
    start = f"{folder}/" if folder else ""
    entries = {}
    for path, data in files.items():
        if not path.startswith(start):
            continue
        steps = path[len(start) :].split("/")
        for i in range(1, len(steps)):
            inner = start + "/".join(steps[:i])
            oid = hashlib.sha1(inner.encode()).hexdigest()
            if deep or i == 1:
                entries[inner] = {
                    "type": "directory",
                    "oid": oid,
                    "size": 0,
                    "path": inner,
                }
        if deep or len(steps) == 1:
            entries[path] = file_entry(path, data)
    return [entries[path] for path in sorted(entries)]
