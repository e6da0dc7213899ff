"""Hosts that pages name, on this machine.

A page may write ``https://any.host/data/train-{0000..0003}.tar``, ``http://...``,
``hf://datasets/owner/name/data``, ``s3://bucket/data``, ``gs://bucket/data``,
``az://container/data`` in the blocks that run: each of these is the directory in which
the page runs. So a page first writes ``data/`` with a `fastshard.ShardWriter`, and then
opens it by any of them. Files that are written later are there at once. A revision
(``@v1``, ``revision="v1"``) of a repository of the hub has the same files as ``main``.

A page that names ``Atmosphere`` has a personal data server with the account
``alice.test``, to which `Atmosphere.from_env` logs in.

`serve` starts the servers that a text needs, and returns the environment variables by
which clients come here: a proxy for HTTP, gs and az with a certificate of its own,
HF_ENDPOINT, AWS_ENDPOINT_URL with keys. Pages need nothing special; a block that must
not run is fenced as ``text``.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
import socket
import threading
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from urllib.parse import parse_qs, urlsplit
from xml.sax.saxutils import escape

from support.servers.atproto.pds import FakePds
from support.servers.http import Server, make_certificate
from support.servers.hub import Asked, FakeHub, HubError
from support.servers.messages import Answer, Request, plain

HOST = re.compile(r"https://([\w.-]+)")
REPOSITORY = re.compile(r"hf://(?:datasets/)?([\w.-]+/[\w.-]+)")
GOOGLE, AZURE = "storage.googleapis.com", ".blob.core.windows.net"
ACCOUNT = re.compile(r"""account_name["']?[:=] ?["'](\w+)""")
REVISION = re.compile(r"""hf://[^\s"']*@([\w.-]+)|revision=["']([\w.-]+)""")


class FolderFiles(Mapping[str, bytes]):
    """The files of a directory by their paths, as they are now."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.known: dict[Path, tuple[tuple[int, int], bytes]] = {}

    def __getitem__(self, name: str) -> bytes:
        path = self.folder / name.lstrip("/")
        if not path.is_file():
            raise KeyError(name)
        stat = path.stat()
        stamp = stat.st_mtime_ns, stat.st_size
        if self.known.get(path, (None,))[0] != stamp:
            self.known[path] = stamp, path.read_bytes()
        return self.known[path][1]

    def __iter__(self) -> Iterator[str]:
        files = [path for path in self.folder.rglob("*") if path.is_file()]
        return (path.relative_to(self.folder).as_posix() for path in sorted(files))

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def items(self) -> list[tuple[str, bytes]]:  # type: ignore[override]
        found = []
        for name in self:
            with contextlib.suppress(KeyError, FileNotFoundError):  # removed meanwhile
                found.append((name, self[name]))
        return found


class FolderRevision(Asked):
    """A revision whose commit stays while files are added."""

    @property
    def commit(self) -> str:
        return hashlib.sha1(self.repo.encode()).hexdigest()


class FolderHub(FakeHub):
    """Hub whose repositories are a directory: one commit, of all revisions."""

    def find(self, repo: str, revision: str) -> FolderRevision:
        known = {"main", *self.revisions.get(repo, {})}
        found = FolderRevision(repo, revision, self.repos[repo])
        if revision not in known | {found.commit}:
            raise HubError(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        return found


class Bucket(Server):
    """The part of S3 that reads: objects, and lists of them. Any bucket is served."""

    def answer(self, request: Request) -> Answer:
        bucket, _, key = request.path[1:].partition("/")
        query = {name: values[0] for name, values in parse_qs(request.query).items()}
        if "list-type" in query:
            return self.list(bucket, query.get("prefix", ""), query.get("delimiter"))
        return super().answer(replace(request, target=f"/{key}"))

    def list(self, bucket: str, prefix: str, delimiter: str | None) -> Answer:
        found, folders = [], {}
        for key in self.files:
            if not key.startswith(prefix):
                continue
            end = key.find(delimiter, len(prefix)) if delimiter else -1
            if end >= 0:
                folders[key[: end + 1]] = True
                continue
            etag = escape(self.etag(f"/{key}", self.files[key]))
            found.append(
                f"<Contents><Key>{escape(key)}</Key><ETag>{etag}</ETag>"
                f"<Size>{len(self.files[key])}</Size>"
                "<LastModified>2024-01-01T00:00:00.000Z</LastModified></Contents>"
            )
        found += [
            f"<CommonPrefixes><Prefix>{escape(folder)}</Prefix></CommonPrefixes>"
            for folder in folders
        ]
        text = (
            f"<ListBucketResult><Name>{bucket}</Name><IsTruncated>false</IsTruncated>"
            f"<KeyCount>{len(found)}</KeyCount>{''.join(found)}</ListBucketResult>"
        )
        return plain(200, text).set("Content-Type", "application/xml")


class Container(Bucket):
    """The part of Azure's blob storage that reads. Any container is served."""

    def answer(self, request: Request) -> Answer:
        query = {name: values[0] for name, values in parse_qs(request.query).items()}
        if query.get("comp") == "list":
            return self.list("", query.get("prefix", ""), query.get("delimiter"))
        return super().answer(request)

    def list(self, bucket: str, prefix: str, delimiter: str | None) -> Answer:
        found = [
            f"<Blob><Name>{escape(key)}</Name><Properties>"
            "<Last-Modified>Mon, 01 Jan 2024 00:00:00 GMT</Last-Modified>"
            f"<Content-Length>{len(self.files[key])}</Content-Length>"
            "<Content-Type>application/x-tar</Content-Type>"
            f"<Etag>{escape(self.etag(f'/{key}', self.files[key]))}</Etag>"
            "</Properties></Blob>"
            for key in self.files
            if key.startswith(prefix)
        ]
        text = (
            f"<EnumerationResults><Blobs>{''.join(found)}</Blobs><NextMarker/>"
            "</EnumerationResults>"
        )
        return plain(200, text).set("Content-Type", "application/xml")


class Web(Server):
    """Server of HTTPS hosts, among them those of two stores."""

    def __init__(self, files: Mapping[str, bytes], *hosts: str) -> None:
        super().__init__(files, tls=True)
        self.certificate, self.context = make_certificate(*hosts)
        self.google, self.azure = Bucket(files), Container(files)

    def answer(self, request: Request) -> Answer:
        host = request.headers.get("host", "")
        if host == GOOGLE:
            return self.google.answer(request)
        if host.endswith(AZURE):
            return self.azure.answer(request)
        return super().answer(request)


class Proxy(Server):
    """Proxy that takes every host for the server of `target`."""

    def __init__(self, target: Server) -> None:
        super().__init__({})
        self.target = target

    def exchange(self, request: Request, sock: socket.socket) -> bool:
        if request.method == "CONNECT":
            self.tunnel(sock)
            return False
        return super().exchange(request, sock)

    def answer(self, request: Request) -> Answer:
        parts = urlsplit(request.target)
        target = parts._replace(scheme="", netloc="").geturl()
        return self.target.answer(replace(request, target=target))

    def tunnel(self, client: socket.socket) -> None:
        with socket.create_connection(("127.0.0.1", self.target.port)) as server:
            client.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
            up = threading.Thread(target=pump, args=(client, server), daemon=True)
            up.start()
            pump(server, client)
            up.join()


def pump(source: socket.socket, sink: socket.socket) -> None:
    """Relay one socket to the other until it ends."""
    with contextlib.suppress(OSError):
        while data := source.recv(1 << 16):
            sink.sendall(data)
    for end in (source, sink):
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)


@contextlib.contextmanager
def serve(text: str, folder: Path, private: Path) -> Iterator[dict[str, str]]:
    """Serve `folder` at the hosts that `text` names, inside a ``with``.

    Parameters
    ----------
    text : str
        The code of a page.
    folder : Path
        What the hosts hold.
    private : Path
        A directory for certificates and caches.

    Yields
    ------
    dict of str to str
        Environment variables that lead clients to the servers.
    """
    files = FolderFiles(folder)
    env = {
        "NO_PROXY": "127.0.0.1,localhost",
        "FASTSHARD_CACHE": str(private / "cache"),
        "HF_HOME": str(private / "hf"),
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "HF_HUB_DISABLE_XET": "1",
        "AWS_EC2_METADATA_DISABLED": "true",
        "RAY_ADDRESS": "local",  # a cluster of its own, not that of another test
        "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
    }
    with contextlib.ExitStack() as stack:
        hosts = set(HOST.findall(text))
        if "gs://" in text:
            hosts.add(GOOGLE)
            env["GOOGLE_SKIP_SIGNATURE"] = "true"
        if "az://" in text:
            names = ACCOUNT.findall(text) or ["name"]
            hosts.update(name + AZURE for name in names)
            env["AZURE_STORAGE_ACCOUNT_NAME"] = names[0]
            env["AZURE_SKIP_SIGNATURE"] = "true"
        if "Atmosphere" in text:
            pds = stack.enter_context(FakePds())
            account = pds.create_account("alice.test", "an app password")
            env["ATDATA_HANDLE"] = account.handle
            env["ATDATA_PASSWORD"] = account.password
            env["ATDATA_PDS_URL"] = pds.url
            env["ATDATA_PLC_URL"] = pds.plc.url
        if hosts:
            web = stack.enter_context(Web(files, *sorted(hosts)))
            proxy = stack.enter_context(Proxy(web))
            env["HTTPS_PROXY"] = env["https_proxy"] = proxy.url
            pem = private / "hosts.pem"
            pem.write_text(web.certificate)
            env["SSL_CERT_FILE"] = str(pem)
        if "http://" in text:
            web = stack.enter_context(Server(files))
            env["HTTP_PROXY"] = stack.enter_context(Proxy(web)).url
            env["http_proxy"] = env["HTTP_PROXY"]
        names = {"owner/name", *REPOSITORY.findall(text)}
        revisions = {"v1", *(one or two for one, two in REVISION.findall(text))}
        if "hf" in text or "discover_dataset" in text:
            hub = FolderHub(
                {name.partition("@")[0]: files for name in names},
                revisions={name: dict.fromkeys(revisions, files) for name in names},
                page=1000,
            )
            env["HF_ENDPOINT"] = stack.enter_context(hub).url
        if "s3://" in text:
            bucket = stack.enter_context(Bucket(files))
            env["AWS_ENDPOINT_URL"] = bucket.url
            env["AWS_ACCESS_KEY_ID"] = env["AWS_SECRET_ACCESS_KEY"] = "anyone"
            env["AWS_REGION"] = "us-east-1"
        yield env
