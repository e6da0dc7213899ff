"""What is written here has the tables, rows and keys that atdata writes.

The calls by which atdata wrote the fixtures are made on an empty store. Rows are read
without this package.
"""

import json
import sqlite3
from contextlib import closing

import msgpack
import pytest

from fastshard import typed
from support.typed import index_types
from support.typed.index_data import plain

SAME = ("plain", "meta", "remote", "old")  # "stored" has a path of its own
METADATA = {
    "split": "train",
    "n": 3,
    "big": 2**40,
    "rate": 0.25,
    "ok": True,
    "none": None,
    "raw": b"\x00\xff",
    "título": "日本",
    "nested": {"list": [1, "a", None], "map": {"k": 1.5}},
}
OLD = {
    "name": "Old",
    "version": "0.9.0",
    "fields": [
        {
            "name": "a",
            "fieldType": {"$type": "local#primitive", "primitive": "str"},
            "optional": False,
        }
    ],
}


def write(index, folder):
    """Make the calls of the fixtures."""
    ref = index.publish_schema(index_types.Vec1)
    ref2 = index.publish_schema(index_types.Vec2, description="Vec with a weight")
    index.publish_schema(index_types.Doc, version="2.1.0")
    index.provider.store_schema("fixture_old.Old", "0.9.0", json.dumps(OLD))
    vec = typed.Dataset[index_types.Vec1]
    entries = {
        "plain": index.insert_dataset(
            vec("shards/vec-{000000..000001}.tar"), name="plain"
        ),
        "meta": index.insert_dataset(
            vec("shards/vec-000000.tar"),
            name="meta",
            version="3.0.0",
            description="kept by the label only",
            metadata=METADATA,
        ),
        "stored": index.write_samples(
            map(index_types.vec, range(10, 14)),
            name="stored",
            metadata={"by": "write_samples"},
            data_store=typed.LocalDiskStore(folder),
        ),
        "remote": index.insert_dataset(
            typed.Dataset[index_types.Vec2]("https://data.example/vec-000000.tar"),
            name="remote",
            schema_ref=ref2,
        ),
    }
    assert entries["plain"].schema_ref == ref
    index.provider.store_entry(
        typed.DatasetEntry(
            "old",
            "local://schemas/fixture_old.Old@0.9.0",
            ["s3://bucket-name/a.tar", "s3://bucket-name/b.tar"],
            legacy_uuid="00000000-0000-1000-8000-000000000001",
        )
    )
    for name, of, version, description in (
        ("best", "plain", "1.0.0", "first"),
        ("best", "stored", "2.0.0", None),
        ("again", "plain", "1.0.0", None),
        ("again", "stored", "2.0.0", None),
        ("again", "meta", "1.0.0", "written again, after 2.0.0"),
        ("remote", "plain", "9.0.0", None),
    ):
        cid = entries[of].cid
        index.label(name, cid, version=version, description=description)
    index.store_lens(index_types.vec_name, name="vec_name", description="the label")
    index.store_lens(index_types.closure(3), name="closure")


ROWS = {
    "dataset_entries": "name, cid, schema_ref, data_urls, metadata, legacy_uuid",
    "schemas": "name, version, schema_json",
    "lenses": "name, version, lens_json",
    "labels": "name, version, cid, description",
}
COLUMNS = """
SELECT table_name, column_name, data_type, column_default, is_nullable
FROM information_schema.columns WHERE table_schema = 'public'
"""
INDEXES = "SELECT indexname, indexdef FROM pg_indexes WHERE schemaname = 'public'"


def of_sqlite(options):
    """Return tables and rows."""
    with closing(sqlite3.connect(options["path"])) as db:
        tables = db.execute(
            "SELECT type, name, sql FROM sqlite_master WHERE sql IS NOT NULL"
        )
        shape = {(kind, name): "".join(sql.split()) for kind, name, sql in tables}
        found = {
            table: db.execute(f"SELECT {names} FROM {table}").fetchall()
            for table, names in ROWS.items()
        }
    return shape, found


def of_postgres(options):
    import psycopg

    with psycopg.connect(options["dsn"]) as db:
        shape = [set(db.execute(query).fetchall()) for query in (COLUMNS, INDEXES)]
        found = {
            table: db.execute(f"SELECT {names} FROM public.{table}").fetchall()
            for table, names in ROWS.items()
        }
    return shape, found


def of_redis(options):
    """Return kinds of keys with their fields, and rows."""
    import redis

    shape, found = set(), {table: [] for table in ROWS}
    with redis.Redis(**options) as client:
        for key in client.scan_iter():
            kind, _, name = key.decode().partition(":")
            if kind == "fastshard":  # the name index, without a scan
                continue
            value = client.get(key) if client.type(key) == b"string" else None
            if value is not None:
                name, _, version = name.rpartition("@")
                table = {"LocalSchema": "schemas", "LocalLens": "lenses"}[kind]
                found[table].append((name, version, value.decode()))
                shape.add((kind, "string"))
                continue
            row = {k.decode(): v for k, v in client.hgetall(key).items()}
            if kind == "Label":
                row.pop("created_at", None)  # atdata passes over it
                text = {k: v.decode() for k, v in row.items()}
                assert name == f"{text['name']}@{text['version']}"
                order = ("name", "version", "cid", "description")
                found["labels"].append(tuple(map(text.get, order)))
            elif kind == "LocalDatasetEntry":
                assert name == row["cid"].decode()
                order = ("name", "cid", "schema_ref")
                raw = [row[field].decode() for field in order]
                uuid = row.get("legacy_uuid")
                raw += [row["data_urls"], row.get("metadata"), uuid and uuid.decode()]
                found["dataset_entries"].append(tuple(raw))
            else:
                raise AssertionError(key)
            shape.add((kind, "hash", tuple(sorted(row))))
    return shape, found


READ = {"sqlite": of_sqlite, "postgres": of_postgres, "redis": of_redis}


@pytest.fixture
def written(store, request, tmp_path, index_data, monkeypatch):
    """Write to an empty store; return its tables and rows."""
    monkeypatch.chdir(index_data.root / store)  # a pattern is relative
    options = {"path": tmp_path / "new.db"}
    if store != "sqlite":
        options = request.getfixturevalue(f"{store}_server").new()
    index = typed.Index(store, atmosphere=None, **options)
    write(index, tmp_path / "shards")
    index.provider.close()
    return READ[store](options)


@pytest.fixture
def wanted(store, options):
    """Return the tables and rows that atdata wrote."""
    return READ[store](options)


def test_tables_and_keys(written, wanted):
    assert written[0] == wanted[0]


def test_entries(written, wanted):
    found, known = (
        {row[0]: row[1:] for row in side[1]["dataset_entries"]}
        for side in (written, wanted)
    )
    assert set(found) == set(known)
    for name in SAME:
        assert found[name][:2] == known[name][:2]
        assert bytes(found[name][2]) == bytes(known[name][2])  # msgpack
        assert found[name][4] == known[name][4]
        unpacked = [
            side[name][3] and msgpack.unpackb(side[name][3]) for side in (found, known)
        ]
        assert plain(unpacked[0]) == plain(unpacked[1])
    metadata = msgpack.unpackb(found["stored"][3])
    assert list(metadata) == list(msgpack.unpackb(known["stored"][3]))
    assert list(metadata["checksums"]) == msgpack.unpackb(found["stored"][2])


def test_labels(written, wanted):
    cids = {
        row[1]: row[0]
        for side in (written, wanted)
        for row in side[1]["dataset_entries"]
    }
    found, known = (
        {
            (name, version, cids[cid], text)
            for name, version, cid, text in side[1]["labels"]
        }
        for side in (written, wanted)
    )
    known.remove(("meta", "3.0.0", "meta", None))
    known.add(("meta", "3.0.0", "meta", "kept by the label only"))  # atdata loses it
    assert found == known


def json_of(rows):
    """Return records by name and version, without differing fields."""
    records = {(name, version): json.loads(text) for name, version, text in rows}
    for record in records.values():
        record.pop("createdAt", None)
        record.pop("created_at", None)
    return records


def test_schemas(written, wanted):
    found, known = (json_of(side[1]["schemas"]) for side in (written, wanted))
    del known["Doc", "2.1.1"]  # equal fields make no version here
    for (name, _), record in known.items():
        for field in record["fields"]:
            if field["name"] in (
                "x",
                "mask",
            ):  # of any dtype, for which atdata has float32
                field["fieldType"]["dtype"] = None
        if name == "Doc":
            record.pop("description")  # which a dataclass makes
            found[name, "2.1.0"].pop("description", None)
    assert found == known


def test_lenses(written, wanted):
    found, known = (json_of(side[1]["lenses"]) for side in (written, wanted))
    for key in (("vec_name", "1.0.0"), ("closure", "1.0.0")):
        assert found[key] == known[key]
