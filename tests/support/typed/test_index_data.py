"""The index fixtures unpack whole, and agree with each other."""

import base64
import hashlib
import json
import sqlite3
from contextlib import closing
from dataclasses import asdict

import msgpack
import pytest

from support.typed import index_types
from support.typed.dag_cbor import RAW, cid, encode, of_record
from support.typed.index_data import COLLECTIONS, HANDLES, STORES


@pytest.mark.parametrize("store", STORES)
def test_cids_of_entries_are_those_of_their_urls(index_data, store):
    for entry in index_data.expected(store)["list_datasets"]:
        named = {key: entry[key] for key in ("schema_ref", "data_urls")}
        assert cid(encode(named)) == entry["cid"]


@pytest.mark.parametrize("store", STORES)
def test_checksums_are_those_of_the_shards(index_data, store):
    checked = 0
    for entry in index_data.expected(store)["list_datasets"]:
        for url, digest in (entry["metadata"] or {}).get("checksums", {}).items():
            data = index_data.local(store, url).read_bytes()
            assert hashlib.sha256(data).hexdigest() == digest
            checked += 1
    assert checked == 1


def test_cids_of_records_and_blobs(index_data):
    records = [
        record
        for handle in HANDLES
        for collection in COLLECTIONS
        for record in index_data.records(handle, collection)
    ]
    assert len(records) == 29
    for record in records:
        assert cid(encode(of_record(record["value"]))) == record["cid"]
    blobs = index_data.expected("records")["blobs"]
    for name, known in blobs.items():
        assert cid(index_data.blob(name), RAW) == name
        assert len(index_data.blob(name)) == known["bytes"]


def test_tables_of_sqlite(copy_index):
    with closing(sqlite3.connect(copy_index.sqlite)) as db:
        assert db.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        names = db.execute("SELECT name FROM dataset_entries").fetchall()
    assert {name for (name,) in names} == {"plain", "meta", "stored", "remote", "old"}
    with closing(sqlite3.connect(copy_index.unclosed / "index.db")) as db:
        names = db.execute("SELECT name FROM dataset_entries").fetchall()
    assert names == [("plain",)]


def test_keys_of_redis_and_rows_of_postgres(index_data):
    kept, sql = index_data.redis(), index_data.postgres()
    for entry in index_data.expected("redis")["list_datasets"]:
        hash_ = kept[f"LocalDatasetEntry:{entry['cid']}"]
        assert msgpack.unpackb(hash_["data_urls"]) == entry["data_urls"]
    for entry in index_data.expected("postgres")["list_datasets"]:
        assert msgpack.packb(entry["data_urls"]).hex() in sql
        assert entry["cid"] in sql


def test_fields_of_the_types(index_data):
    schemas = {
        (schema["name"], schema["version"]): [f["name"] for f in schema["fields"]]
        for schema in index_data.expected("sqlite")["list_schemas"]
    }
    known = {
        ("Vec", "1.0.0"): index_types.Vec1,
        ("Vec", "1.0.1"): index_types.Vec2,
        ("Doc", "2.1.0"): index_types.Doc,
    }
    for key, sample_type in known.items():
        assert list(sample_type.__dataclass_fields__) == schemas[key]


def test_samples_of_the_blobs(index_data):
    for known in index_data.expected("records")["blobs"].values():
        for i, label, x in known["samples"]:
            sample = asdict(index_types.vec(i))
            assert (sample["label"], sample["x"].tolist()) == (label, x)


def test_bodies_of_exchanges_are_of_their_lengths(index_data):
    exchanges = index_data.exchanges()
    assert len(exchanges) == 22
    for exchange in exchanges:
        length = int(exchange["headers"]["content-length"])
        if "body" in exchange:
            assert len(exchange["body"].encode()) == length
            json.loads(exchange["body"])
        else:
            assert exchange["body_bytes"] == length


def test_bytes_of_an_expected_answer(index_data):
    entries = index_data.expected("sqlite")["list_datasets"]
    (meta,) = (entry for entry in entries if entry["name"] == "meta")
    assert base64.b64decode(meta["metadata"]["raw"]["$bytes"]) == b"\x00\xff"
