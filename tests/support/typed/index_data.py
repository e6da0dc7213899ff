"""Indexes and records that atdata wrote, in ``tests/data/typed_index.tar.xz``.

atdata 0.7.0b1 wrote one index, by the same calls, into each of SQLite, Redis and
Postgres, and published records to a PDS. ``expected.json`` of each folder has what its
own calls answer: bytes are ``{"$bytes": base64}``, an error ``{"raises": type, "text":
message}``.

- ``sqlite/index.db``: closed, in WAL mode. ``sqlite/unclosed``: ``index.db`` and its
  ``-wal``, of a process that died after its first entry, all of it in the log.
- ``redis/dump.json``: each key, its type, and its value in base64 (of a hash, each
  field's).
- ``postgres/dump.sql``: tables and rows as statements that any client runs.
- ``records/{handle}/{collection}.json``: bodies of ``listRecords``;
  ``{handle}.did.json``; ``blobs/{cid}.tar``; ``exchanges.json``: requests and what the
  PDS answered.

Absolute paths of shards begin with `root` of ``expected.json``. It is replaced to open
a shard, never to compute a CID.
"""

from __future__ import annotations

import base64
import json
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.paths import DATA

ARCHIVE = DATA / "typed_index.tar.xz"
STORES = ("sqlite", "redis", "postgres")
COLLECTIONS = ("schema", "entry", "label", "lens", "lensVerification")
HANDLES = ("alice.test", "bob.test")


@dataclass(frozen=True)
class IndexData:
    """The fixtures below `root`."""

    root: Path

    def expected(self, folder: str) -> dict[str, Any]:
        """Return the answers of a store, or of "records"."""
        return json.loads((self.root / folder / "expected.json").read_bytes())

    @property
    def sqlite(self) -> Path:
        """``index.db``, which a writer changes: see `copy_index`."""
        return self.root / "sqlite/index.db"

    @property
    def unclosed(self) -> Path:
        """A folder with ``index.db`` and its ``-wal``."""
        return self.root / "sqlite/unclosed"

    def redis(self) -> dict[str, bytes | dict[str, bytes]]:
        """Return the value of each key: bytes of a string, fields of a hash."""
        keys = json.loads((self.root / "redis/dump.json").read_bytes())
        return {key["key"]: redis_value(key["value"]) for key in keys}

    def postgres(self) -> str:
        """Return the statements that make the tables and their rows."""
        return (self.root / "postgres/dump.sql").read_text("utf-8")

    def local(self, folder: str, url: str) -> Path:
        """Return where a shard of an entry lies here."""
        root = self.expected(folder)["root"]
        return self.root / folder / url.removeprefix(f"{root}/")

    def records(self, handle: str, collection: str) -> list[dict[str, Any]]:
        """Return `uri`, `cid` and `value` of a collection's records."""
        name = f"records/{handle}/science.alt.dataset.{collection}.json"
        return json.loads((self.root / name).read_bytes())["records"]

    def did_document(self, handle: str) -> dict[str, Any]:
        return json.loads((self.root / f"records/{handle}.did.json").read_bytes())

    def blob(self, cid: str) -> bytes:
        return (self.root / f"records/blobs/{cid}.tar").read_bytes()

    def exchanges(self) -> list[dict[str, Any]]:
        """Return requests, with status, headers and body of their answers."""
        return json.loads((self.root / "records/exchanges.json").read_bytes())


def unpack(folder: Path) -> IndexData:
    """Unpack the fixtures into a folder."""
    with tarfile.open(ARCHIVE) as tar:
        tar.extractall(folder, filter="data")
    return IndexData(folder)


def redis_value(value: str | dict[str, str]) -> bytes | dict[str, bytes]:
    if isinstance(value, str):
        return base64.b64decode(value)
    return {name: base64.b64decode(field) for name, field in value.items()}


def plain(value: Any) -> Any:
    """Return a value as ``expected.json`` writes it."""
    if isinstance(value, bytes | bytearray | memoryview):
        return {"$bytes": base64.b64encode(value).decode()}
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value
