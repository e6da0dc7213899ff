"""Rows parsed from the bytes of an index, compared with those that SQL returns."""

from __future__ import annotations

import math
import random
import sqlite3
import struct
from contextlib import closing

import pytest

from fastshard._core.columnar.index_rows import read_image, read_rows
from fastshard.errors import FormatError

FIELDS = ["a", "b"]
PLACES = [0, 1, 2, 3, 4, 5]
SCHEMA = (
    "CREATE TABLE samples (id TEXT PRIMARY KEY, meta_json TEXT, a_offset INTEGER, "
    "a_shard INTEGER, b_offset INTEGER, b_shard INTEGER)"
)
SELECT = (
    "SELECT id, a_offset, a_shard, b_offset, b_shard, meta_json FROM samples "
    "ORDER BY rowid"
)


def refuse_to_open(field):
    """Stand in for the function that opens shards: no row is read."""
    return lambda shard: pytest.fail(f"shard {shard} of {field} was opened")


def image_of(conn):
    """Return the bytes of a database, and the root page of its samples."""
    (root,) = conn.execute(
        "SELECT rootpage FROM sqlite_master WHERE name = 'samples'"
    ).fetchone()
    return conn.serialize(), root


def read(image, root, places=PLACES, most=1 << 30):
    return read_image(image, root, places, FIELDS, refuse_to_open, "index.sqlite", most)


def contents_of(found, count):
    """Return the readable results: names, counts and shard numbers."""
    columns, names = found
    assert len(names) == count
    return [
        [names.name_of(i) for i in range(count)],
        [sorted(rows.numbers) for rows in columns],
        [rows.count for rows in columns],
    ]


def assert_same(conn, places=PLACES):
    """Assert that the image has the rows that SQL returns."""
    rows = conn.execute(SELECT).fetchall()
    image, root = image_of(conn)
    found = read(image, root, places)
    assert found is not None
    by_sql = read_rows(
        [[row[:-1] for row in rows]], FIELDS, refuse_to_open, "index.sqlite"
    )
    assert contents_of(found, len(rows)) == contents_of(by_sql, len(rows))
    texts = [found[1].info(i).decode() for i in range(len(rows))]
    assert texts == [row[-1] or "" for row in rows]
    return found


def random_text(rng, most):
    kinds = ["", "abc", "é" * 3, "\0", "漢字", "x" * 40]
    return "".join(rng.choice(kinds) for _ in range(rng.randrange(most)))


def random_number(rng):
    """Return a random value for an offset or a shard."""
    widths = [1, 7, 8, 15, 16, 23, 24, 31, 32, 47, 48, 62, 63]
    return rng.choice([None, 0, 1, 2, 3, (1 << rng.choice(widths)) - 1, -1, -(1 << 40)])


def row(rng, i, longest):
    metadata = rng.choice([None, "", "{}", random_text(rng, longest), "m" * longest])
    return (
        f"{random_text(rng, 8)}{i}",
        metadata,
        *(random_number(rng) for _ in range(4)),
    )


@pytest.fixture
def conn():
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as conn:
        yield conn


def fill(conn, rng, count, longest=30):
    rows = [row(rng, i, longest) for i in range(count)]
    conn.execute("BEGIN")
    conn.executemany("INSERT INTO samples VALUES (?, ?, ?, ?, ?, ?)", rows)
    conn.execute("COMMIT")


# ---------------------------------------------------------------- the same as SQL


@pytest.mark.parametrize("size", [512, 1024, 4096, 65536])
@pytest.mark.parametrize("count", [0, 1, 7, 3000])
@pytest.mark.parametrize("longest", [20, 5000])
def test_rows_of_all_kinds(conn, size, count, longest):
    conn.execute(f"PRAGMA page_size = {size}")
    conn.execute(SCHEMA)
    fill(conn, random.Random(f"{size} {count}"), min(count, 4_000_000 // longest))
    assert_same(conn)


def test_every_size_around_the_limits_of_a_page(conn):
    conn.execute("PRAGMA page_size = 512")
    conn.execute(SCHEMA)
    for size in range(2200):
        row = (f"{size}", "m" * size, 1, 2, 3, 4)
        conn.execute("INSERT INTO samples VALUES (?, ?, ?, ?, ?, ?)", row)
    assert_same(conn)


def test_updated_and_deleted_rows(conn):
    rng = random.Random(2)
    conn.execute("PRAGMA page_size = 1024")
    conn.execute("PRAGMA auto_vacuum = INCREMENTAL")
    conn.execute(SCHEMA)
    fill(conn, rng, 2000, 3000)
    conn.execute("DELETE FROM samples WHERE rowid % 3 = 0")
    conn.execute("UPDATE samples SET meta_json = '{}' WHERE rowid % 5 = 0")
    conn.execute("DELETE FROM samples WHERE rowid BETWEEN 500 AND 900")
    assert_same(conn)
    conn.execute("PRAGMA incremental_vacuum")
    assert_same(conn)
    conn.execute("DELETE FROM samples")
    assert_same(conn)


def test_fields_added_later(conn):
    conn.execute("CREATE TABLE samples (id TEXT PRIMARY KEY, meta_json TEXT)")
    conn.execute("INSERT INTO samples VALUES ('old', '{}')")
    conn.execute(
        "ALTER TABLE samples ADD COLUMN n INTEGER "
        "GENERATED ALWAYS AS (json_extract(meta_json, '$.n')) VIRTUAL"
    )
    for column in ("a_offset", "a_shard", "b_offset", "b_shard"):
        conn.execute(f"ALTER TABLE samples ADD COLUMN {column} INTEGER")
    for i in range(10):
        row = (f"{i}", None, i, 0, i, i)
        conn.execute("INSERT INTO samples VALUES (?, ?, ?, ?, ?, ?)", row)
    found = assert_same(conn)
    assert [rows.count for rows in found[0]] == [10, 10]


def test_a_wal_and_an_older_state(tmp_path):
    path = tmp_path / "index.sqlite"
    with (
        closing(sqlite3.connect(path, isolation_level=None)) as writer,
        closing(sqlite3.connect(path, isolation_level=None)) as reader,
    ):
        writer.execute("PRAGMA journal_mode = WAL")
        writer.execute("PRAGMA wal_autocheckpoint = 0")
        writer.execute(SCHEMA)
        fill(writer, random.Random(3), 500)
        reader.execute("BEGIN")
        reader.execute(SELECT).fetchall()
        writer.execute("DELETE FROM samples WHERE rowid % 2")
        assert len(assert_same(reader)[1]) == 500
        assert len(assert_same(writer)[1]) == 250


# ----------------------------------------------------- rows left to SQL


@pytest.mark.parametrize(
    "row",
    [
        (1, "{}", 1, 1, 1, 1),
        (b"x", "{}", 1, 1, 1, 1),
        (None, "{}", 1, 1, 1, 1),
        ("x", b"{}", 1, 1, 1, 1),
        ("x", 1, 1, 1, 1, 1),
        ("x", 0.5, 1, 1, 1, 1),
    ],
)
def test_ids_and_metadata_that_are_not_text(conn, row):
    conn.execute(SCHEMA.replace(" TEXT", ""))
    conn.execute("INSERT INTO samples VALUES (?, ?, ?, ?, ?, ?)", row)
    assert read(*image_of(conn)) is None


@pytest.mark.parametrize("text", ["ff", "c3", "80", "eda080"])
@pytest.mark.parametrize("column", ["id", "meta_json"])
def test_text_that_is_not_utf8(conn, text, column):
    conn.execute(SCHEMA)
    conn.execute("INSERT INTO samples VALUES ('x', '{}', 1, 1, 1, 1)")
    conn.execute("INSERT INTO samples VALUES ('é', '{}', 1, 1, 1, 1)")
    conn.execute(
        f"UPDATE samples SET {column} = CAST(x'{text}' AS TEXT) WHERE id = 'x'"
    )
    found = read(*image_of(conn))
    if column == "id":
        assert found is None
    else:
        assert found[1].info(0) == bytes.fromhex(text)


def test_invalid_offsets_are_broken_as_by_sql(conn):
    conn.execute(SCHEMA)
    for i, odd in enumerate([b"x", "x", 0.5, -1, None]):
        row = (f"a{i}", "{}", odd, 1, 1, odd)
        conn.execute("INSERT INTO samples VALUES (?, ?, ?, ?, ?, ?)", row)
    found = assert_same(conn)
    # An offset without a shard is broken too.
    assert [rows.count for rows in found[0]] == [5, 5]
    assert [rows.numbers for rows in found[0]] == [[], []]


@pytest.mark.parametrize(
    "prepare",
    [
        ("PRAGMA encoding = 'UTF-16'", SCHEMA),
        (SCHEMA + " WITHOUT ROWID",),
    ],
)
def test_databases_of_other_kinds(conn, prepare):
    for statement in prepare:
        conn.execute(statement)
    conn.execute("INSERT INTO samples VALUES ('x', '{}', 1, 1, 1, 1)")
    assert read(*image_of(conn)) is None


# ------------------------------------------------------------------ hostile images


@pytest.fixture
def image(conn):
    conn.execute("PRAGMA page_size = 512")
    conn.execute(SCHEMA)
    fill(conn, random.Random(4), 300, 900)
    return image_of(conn)


def test_truncated_images(image):
    whole, root = image
    for size in [0, 1, 15, 16, 99, 100, 511, 512, 513, len(whole) // 2, len(whole) - 1]:
        assert read(whole[:size], root) is None
    for pages in range(1, len(whole) // 512):
        assert read(whole[: 512 * pages], root) is None


@pytest.mark.parametrize("root", [-(1 << 63), -1, 0, 1 << 31, (1 << 63) - 1])
def test_invalid_root_pages(image, root):
    assert read(image[0], root) is None


def test_column_positions_past_the_row(image):
    found = read(*image, [0, 1, 2, 3, 2000, 32767])
    assert [rows.count for rows in found[0]][1] == 0
    for places in ([0, 1, 2, 3, 4, -1], [0, 1, 2, 3, 4], [*PLACES, 6]):
        with pytest.raises(ValueError, match="column numbers"):
            read(*image, places)


@pytest.mark.parametrize("seed", range(8))
def test_flipped_bytes(image, seed):
    rng = random.Random(seed)
    whole, root = image
    for _ in range(250):
        bad = bytearray(whole)
        for _ in range(rng.choice([1, 1, 1, 3, 30])):
            at = rng.randrange(100, len(bad))
            if rng.random() < 0.5:  # in the header of a page
                at -= at % 512 - rng.randrange(20)
            bad[at] = rng.choice([0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)])
        try:
            found = read(bytes(bad), root)
        except FormatError as error:
            assert error.offset < len(bad)
            continue
        if found is not None:
            columns, names = found
            assert len(names) <= len(whole)
            assert all(rows.count <= len(names) for rows in columns)


def page(kind, cells, rest=b"", right=0):
    """Return a page of 512 bytes: pointers to cells, and `rest` at the end."""
    head = bytes([kind, 0, 0]) + len(cells).to_bytes(2, "big") + bytes(3)
    if kind == 5:
        head += right.to_bytes(4, "big")
    head += b"".join(at.to_bytes(2, "big") for at in cells)
    return head + bytes(512 - len(head) - len(rest)) + rest


def database(*pages):
    first = bytearray(512)
    first[:18] = b"SQLite format 3\0\x02\0"
    first[59] = 1
    return bytes(first) + b"".join(pages)


RECORD = bytes([5, 15, 0, 9, 9]) + b"k"  # text, NULL, 1, 1; later columns are absent
CELL = bytes([len(RECORD), 1]) + RECORD


def test_a_page_made_by_hand():
    found = read(database(page(13, [512 - len(CELL)], CELL)), 2)
    assert found is not None
    assert found[1].name_of(0) == "k.npy"


@pytest.mark.parametrize(
    "pages",
    [
        [page(5, [], right=2)],  # its own child
        [page(5, [], right=3), page(5, [], right=2)],
        [page(5, [508] * 200, bytes([0, 0, 0, 3]), 3), page(13, [])],
        [page(5, [509], bytes(3), 2)],  # a cell past the end
        [page(13, [511], b"\x81")],
        [page(13, [510], bytes([0x7F, 1]))],
        [page(13, [9, 512 - len(CELL)], CELL)],  # a cell in the header
        [page(5, [508], bytes([0, 0, 0, 3]), 3), page(13, [])],  # an empty leaf
        [page(5, [], right=3), page(13, [512 - len(CELL)], CELL)],  # no cells
        [page(10, [])],  # a page of an index
        [page(5, [], right=k) for k in range(3, 40)] + [page(13, [])],  # too deep
    ],
    ids=range(11),
)
def test_invalid_trees(pages):
    assert read(database(*pages), 2) is None


@pytest.mark.parametrize(
    "cells",
    [
        page(13, [512 - len(CELL)] * 2, CELL),  # one cell, two pointers
        page(13, [512 - len(CELL), 512 - 2 * len(CELL)], CELL * 2),  # one rowid
        page(13, [511 - len(CELL)], bytes([len(RECORD) + 1]) + CELL[1:] + b"x"),
        page(13, [512 - len(CELL)], CELL[:2] + bytes([3]) + CELL[3:]),  # two columns
    ],
    ids=["cell twice", "rowid twice", "bytes left", "columns left out"],
)
def test_rows_that_sqlite_takes_for_sound(cells):
    with pytest.raises(FormatError, match="damaged") as raised:
        read(database(cells), 2)
    assert 512 <= raised.value.offset < 1024


def test_rows_that_claim_a_large_size():
    huge = bytes([0xFF] * 9)
    for size in (b"\x83\xff\x7f", b"\xff\xff\xff\x7f", huge):
        cell = size + b"\x01" + bytes(60)
        assert read(database(page(13, [512 - len(cell)], cell)), 2) is None
    for record in (b"\x02\xff", b"\x0a" + huge, huge + b"x", b"\x02\x0a", b"\x01", b""):
        cell = bytes([len(record), 1]) + record
        assert read(database(page(13, [512 - len(cell)], cell)), 2) is None


def test_a_cycle_of_overflow_pages():
    local = 39 + (600 - 39) % 508  # of 600 bytes, in a page of 512
    cell = bytes([0x84, 0x58, 1]) + bytes(local) + (3).to_bytes(4, "big")
    leaf = page(13, [512 - len(cell)], cell)
    for following in (0, 2, 3, 9):
        over = following.to_bytes(4, "big") + bytes(508)
        assert read(database(leaf, over), 2) is None


def test_nan_is_left_to_sql(conn):
    """SQLite reads a stored NaN as NULL."""
    conn.execute(SCHEMA)
    conn.execute("INSERT INTO samples VALUES ('x', '{}', 0.3, 1, 1, 1)")
    image, root = image_of(conn)
    stored = struct.pack(">d", 0.3)
    assert image.count(stored) == 1
    assert read(image, root) is not None
    for bits in (0x7FF8 << 48, (0xFFF0 << 48) + 1):
        assert read(image.replace(stored, struct.pack(">Q", bits)), root) is None
    assert read(image.replace(stored, struct.pack(">d", -math.inf)), root) is not None


def test_memory_limit_of_rows(conn):
    conn.execute(SCHEMA)
    fill(conn, random.Random(5), 1000)
    image, root = image_of(conn)
    assert read(image, root, most=1000 * 2 * 32) is not None
    assert read(image, root, most=1000 * 2 * 32 - 1) is None
    assert read(image, root, most=0) is None
