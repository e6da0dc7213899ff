"""Modules of atdata for indexes, stores and records.

Adapters stand for what is private to atdata and still asked for by its tests: names of
arguments, connections that fixtures empty, helpers of its modules.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import tempfile
from importlib import import_module
from pathlib import Path
from typing import Any

import atdata_lists
import pytest

from fastshard import typed
from fastshard.atmosphere.cid import generate_cid_from_bytes
from fastshard.catalog.entry import DatasetEntry

INDEX = "fastshard.catalog"
ATMOSPHERE = "fastshard.typed.atmosphere"
ATMOSPHERE_MODULES = (
    *("_types", "_lexicon_types", "client", "labels", "lens", "records", "schema"),
    "verification",
)
NAMESPACE = "science.alt.dataset"
COLLECTIONS = "schema entry label lens lensVerification"
OTHERS = (  # kinds of storage, queries, tokens
    "storageHttp storageS3 storageBlobs storageExternal resolveLabel resolveSchema "
    "schemaType arrayFormat programmingLanguage verificationMethod"
)
LEXICON_IDS = tuple(f"{NAMESPACE}.{name}" for name in f"{COLLECTIONS} {OTHERS}".split())


def names(module: str, *wanted: str) -> dict[str, Any]:
    """Return names of a module."""
    found = import_module(module)
    return {name: getattr(found, name) for name in wanted}


class LocalDatasetEntry(DatasetEntry):
    """An entry, with the names and methods that atdata's has."""

    def __init__(
        self,
        name: str,
        schema_ref: str,
        data_urls: list[str],
        metadata: dict[str, Any] | None = None,
        _cid: str | None = None,
        _legacy_uuid: str | None = None,
    ) -> None:
        super().__init__(name, schema_ref, data_urls, metadata, _cid, _legacy_uuid)

    def write_to(self, redis: Any) -> None:
        redis_provider()(redis=redis).store_entry(self)

    @classmethod
    def from_redis(cls, redis: Any, cid: str) -> DatasetEntry:
        return redis_provider()(redis=redis).get_entry_by_cid(cid)


def redis_provider() -> Any:
    return names(f"{INDEX}.providers.redis", "RedisProvider")["RedisProvider"]


def postgres_provider() -> Any:
    """Return the provider with the connection that fixtures empty tables through."""
    found = names(f"{INDEX}.providers.postgres", "PostgresProvider")
    provider: Any = found["PostgresProvider"]

    class PostgresProvider(provider):
        _theirs: Any = None

        @property
        def _conn(self) -> Any:
            import psycopg

            if self._theirs is None:
                self.store_schema("any", "1.0.0", "{}")  # makes the tables
            if self._theirs is None or self._theirs.closed:
                dsn = os.environ["POSTGRES_DSN"]
                self._theirs = psycopg.connect(dsn, autocommit=True)
            return self._theirs

        def close(self) -> None:
            if self._theirs is not None:
                self._theirs.close()
            super().close()

    return PostgresProvider


def sha256_file(path: str | os.PathLike[str]) -> str:
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()


def s3_env(path: Path) -> dict[str, str]:
    return typed.S3DataStore(path, bucket="bucket").credentials


class Atmosphere(typed.Atmosphere):
    """Our client, which skips tests that pass a mock of the SDK's."""

    def __init__(self, *args: Any, _client: Any = None, **options: Any) -> None:
        if _client is not None:
            pytest.skip(atdata_lists.SDK)
        super().__init__(*args, **options)


def atmosphere() -> dict[str, Any]:
    found = import_module(ATMOSPHERE)
    public = {name: getattr(found, name) for name in found.__all__}
    return public | {"LEXICON_NAMESPACE": NAMESPACE, "Atmosphere": Atmosphere}


def sdk() -> dict[str, dict[str, Any]]:
    """Return modules of the SDK that atdata uses, with its errors' names for ours."""
    return {"atproto": {}, "atproto.exceptions": {"AtProtocolError": OSError}}


@functools.lru_cache
def load_lexicon(lexicon_id: str) -> dict[str, Any]:
    """Load a lexicon of the source distribution; there are none here."""
    folder = Path(os.environ["FASTSHARD_ATDATA_TESTS"]).parent / "lexicons"
    path = folder.joinpath(*lexicon_id.split(".")).with_suffix(".json")
    if lexicon_id not in LEXICON_IDS or not path.is_file():
        raise FileNotFoundError(f"No lexicon file found for {lexicon_id!r}")
    return json.loads(path.read_bytes())


@functools.lru_cache
def load_ndarray_shim() -> dict[str, Any]:
    folder = Path(os.environ["FASTSHARD_ATDATA_TESTS"]).parent / "lexicons"
    return json.loads((folder / "ndarray_shim.json").read_bytes())


def mock_index(path: Path | None = None, **options: Any) -> typed.Index:
    """Return an index in a folder, without a network."""
    folder = Path(tempfile.mkdtemp()) if path is None else Path(path)
    folder.mkdir(parents=True, exist_ok=True)
    options.setdefault("atmosphere", None)
    return typed.Index(path=folder / "index.db", **options)


def modules() -> dict[str, dict[str, Any]]:
    """Return the contents of the modules by their names below ``atdata``."""
    entry = {
        "LocalDatasetEntry": LocalDatasetEntry,
        "BasicIndexEntry": LocalDatasetEntry,
    }
    disk = names("fastshard.typed.stores.disk", "LocalDiskStore")
    s3 = names("fastshard.typed.stores.s3", "S3DataStore")
    atmo = atmosphere()
    limits = names("fastshard.atmosphere.blobs.store", "PDSBlobStore")
    return {
        "_cid": {"generate_cid_from_bytes": generate_cid_from_bytes},
        "_helpers": {
            **names("fastshard.typed.stores.protocol", "ShardWriteResult"),
            "sha256_bytes": lambda data: hashlib.sha256(data).hexdigest(),
            "sha256_file": sha256_file,
        },
        "index": entry,
        "index._entry": entry,
        "index._index": {},
        "lexicons": {
            "LEXICON_IDS": LEXICON_IDS,
            "NAMESPACE": NAMESPACE,
            "list_lexicons": lambda: LEXICON_IDS,
            "load_lexicon": load_lexicon,
            "load_ndarray_shim": load_ndarray_shim,
        },
        "local": entry | disk | s3 | {"_s3_env": s3_env},
        "promote": {},
        "providers": {},
        "providers._factory": {"create_provider": typed.create_provider},
        "providers._base": names(f"{INDEX}.providers.protocol", "IndexProvider"),
        "providers._postgres": {"PostgresProvider": postgres_provider()},
        "providers._redis": {"RedisProvider": redis_provider()},
        "providers._sqlite": names(f"{INDEX}.providers.sqlite", "SqliteProvider"),
        "repository": {},
        "search": {},
        "stores": disk | s3,
        "stores._disk": disk,
        "stores._s3": s3,
        "testing": {"mock_index": mock_index},
        "atmosphere": atmo,
        **{f"atmosphere.{name}": atmo for name in ATMOSPHERE_MODULES},
        "atmosphere.store": atmo | limits,
    }
