"""Connections to the index: files beside it, read-only directories, hostile indexes."""

import os
import sqlite3
import subprocess
import sys
import threading
import time
from contextlib import closing

import numpy as np
import pytest

from fastshard.columnar.layout.connection import begin, open_reader, translate_error
from fastshard.columnar.layout.schema import Field, is_columnar, read_fields
from fastshard.columnar.read.query import query, query_ids
from fastshard.columnar.write.connection import open_writer
from fastshard.errors import FormatError, QueryError
from support.columnar.checks import rewrite
from support.marks import not_sanitized
from support.threads import SOON

pytestmark = not_sanitized  # tests Python code and SQLite

COUNT = 100


@pytest.fixture
def root(make_original):
    with make_original() as writer:
        writer.add_fields(["a", "b"])
        ids = [f"s{i:03d}" for i in range(COUNT)]
        writer.register_samples(ids, [{"n": i, "w": f"w{i % 3}"} for i in range(COUNT)])
        writer.add_sample({"a": np.arange(3)}, sample_id="with a", metadata={"n": -1})
    return writer.root


@pytest.fixture
def conn(root):
    connection = open_reader(root / "index.sqlite")
    yield connection
    connection.close()


# ---------------------------------------------------------------- the connection


@pytest.mark.parametrize("name", ["a b", "q?mode=rwc", "h#h", "p%41", "é", "a'b\"c"])
def test_paths_of_any_kind(make_original, name):
    with make_original(name) as writer:
        writer.register_samples(["x"])
    writer.conn.close()
    conn = open_reader(writer.root / "index.sqlite")
    assert query_ids(conn) == ["x"]
    conn.close()
    assert sorted(os.listdir(writer.root)) == ["index.sqlite"]


def test_reading_leaves_no_files(root):
    path = root / "index.sqlite"
    before = {
        p: (p.stat().st_mtime_ns, p.read_bytes()) for p in root.iterdir() if p.is_file()
    }
    conn = open_reader(path)
    assert query_ids(conn, limit=1) == ["s000"]
    with pytest.raises(sqlite3.OperationalError, match="readonly"):
        conn.execute("DELETE FROM samples")
    conn.close()
    after = {
        p: (p.stat().st_mtime_ns, p.read_bytes()) for p in root.iterdir() if p.is_file()
    }
    assert after == before


def test_a_reader_sees_one_state(root):
    path = root / "index.sqlite"
    first, second = open_reader(path), open_reader(path)
    writer = sqlite3.connect(path)
    with writer:
        writer.execute("INSERT INTO samples (id) VALUES ('new')")
    third = open_reader(path)  # beside a non-empty log
    counts = [len(query_ids(conn)) for conn in (first, second, third)]
    assert counts == [COUNT + 1, COUNT + 1, COUNT + 2]
    begin(first, second)
    assert [len(query_ids(conn)) for conn in (first, second)] == [COUNT + 2] * 2
    for conn in (first, second, third, writer):
        conn.close()


def test_begin_finds_one_state_while_others_write(root):
    path = root / "index.sqlite"
    conns = [open_reader(path) for _ in range(3)]
    stop = threading.Event()

    def write():
        writer = sqlite3.connect(path, timeout=60)
        for i in range(100_000):
            if stop.is_set():
                break
            with writer:
                writer.execute("INSERT INTO samples (id) VALUES (?)", [f"n{i}"])
            time.sleep(0.001)
        writer.close()

    thread = threading.Thread(target=write)
    thread.start()
    try:
        for _ in range(50):
            begin(*conns)
            sql = "SELECT count(*) FROM samples"
            assert len({conn.execute(sql).fetchone() for conn in conns}) == 1
    finally:
        stop.set()
        thread.join()
        for conn in conns:
            conn.close()


@pytest.mark.skipif(os.name == "nt", reason="needs openssl")
def test_a_directory_that_cannot_be_written(root):
    """A child process drops root, to whom every directory is writable."""
    code = (
        "import os, sys\n"
        "from fastshard.columnar.layout.connection import open_reader\n"
        "from fastshard.columnar.read.query import query_ids\n"
        "if os.getuid() == 0:\n"
        "    os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
        "try:\n"
        "    print(len(query_ids(open_reader(sys.argv[1]))))\n"
        "except OSError as error:\n"
        "    print(type(error).__name__, error.strerror)\n"
    )
    path = root / "index.sqlite"
    args = [sys.executable, "-c", code, str(path)]
    for folder in root.parents:  # pytest denies other users access
        if folder.stat().st_mode & 0o005 != 0o005:
            folder.chmod(0o755)
    root.chmod(0o555)
    path.chmod(0o444)
    done = subprocess.run(args, capture_output=True)
    assert done.stdout.decode().split() == [str(COUNT + 1)], done.stderr.decode()
    assert sorted(p.name for p in root.iterdir() if p.is_file()) == ["index.sqlite"]
    root.chmod(0o755)
    (root / "index.sqlite-wal").write_bytes(b"x" * 100)
    root.chmod(0o555)
    done = subprocess.run(args, capture_output=True)
    assert b"PermissionError changes in its -wal" in done.stdout, done.stderr.decode()
    root.chmod(0o755)


def test_a_journal_is_not_played_back(root):
    """A journal may name any file, which SQLite would then remove."""
    rewrite(root)
    victim = root / "victim"
    victim.write_text("precious")
    (root / "index.sqlite-journal").write_bytes(
        bytes.fromhex("d9d505f920a163d7") + os.urandom(2000)
    )
    try:
        conn = open_reader(root / "index.sqlite")
    except OSError:
        pass
    else:
        conn.close()
    assert victim.read_text() == "precious"
    assert (root / "index.sqlite-journal").exists()


def test_paths_that_are_not_regular_files(tmp_path):
    with pytest.raises(FileNotFoundError):
        open_reader(tmp_path / "index.sqlite")
    with pytest.raises(FormatError, match="not a file"):
        open_reader(tmp_path)
    if hasattr(os, "mkfifo"):
        os.mkfifo(tmp_path / "index.sqlite")
        with pytest.raises(FormatError, match="not a file"):
            open_reader(tmp_path / "index.sqlite")
    assert not is_columnar(tmp_path)
    assert not is_columnar(tmp_path / "absent")
    assert not is_columnar("http://host/data")


# ---------------------------------------------------------------- hostile indexes


def fields_of(path):
    conn = open_reader(path)
    try:
        return read_fields(conn, str(path))
    finally:
        conn.close()


def test_fields_in_their_order(make_original):
    with make_original() as writer:
        writer.add_fields(["zeta", "alpha", "Mid_3"])
    path = writer.root / "index.sqlite"
    assert fields_of(path) == [
        Field("zeta", "zeta_shards"),
        Field("alpha", "alpha_shards"),
        Field("Mid_3", "Mid_3_shards"),
    ]


@pytest.mark.parametrize(
    ("base_dir", "folder"),
    [
        ("/data/x/h_shards", "h_shards"),
        ("/data/x/h_shards//", "h_shards"),
        ("C:\\data\\h_shards", "h_shards"),
        ("C:\\data/h_shards\\/", "h_shards"),
        ("h_shards", "h_shards"),
        ("..", None),
        ("/a/..", None),
        ("/a/.", None),
        ("", None),
        ("/", None),
        ("a/C:", None),
    ],
)
def test_folders(root, base_dir, folder):
    rewrite(root, f"UPDATE fields SET base_dir = '{base_dir}' WHERE name = 'a'")
    if folder is None:
        with pytest.raises(FormatError, match=r"folder .* is not valid"):
            fields_of(root / "index.sqlite")
    else:
        assert fields_of(root / "index.sqlite")[0] == Field("a", folder)


RENAME = "ALTER TABLE samples RENAME TO other"
FORGE = "PRAGMA writable_schema=ON"


@pytest.mark.parametrize(
    "statements",
    [
        ["DROP TABLE fields"],
        ["DROP TABLE samples"],
        ["DROP TABLE counters"],
        [RENAME, "CREATE VIEW samples AS SELECT * FROM other"],
        [RENAME, "CREATE VIRTUAL TABLE samples USING fts5(id, meta_json)"],
        [RENAME, "CREATE TABLE samples (id TEXT PRIMARY KEY, meta_json TEXT) "
         "WITHOUT ROWID"],
        [RENAME, "CREATE TABLE samples (id TEXT PRIMARY KEY)"],
        [RENAME, "CREATE TABLE samples (id TEXT, meta_json AS (hex(id)), a_offset, "
         "a_shard, b_offset, b_shard)"],
        [RENAME, "CREATE TABLE samples (id TEXT, meta_json, a_offset, "
         "a_shard AS (1), b_offset, b_shard)"],
        ["ALTER TABLE samples ADD COLUMN rowid INTEGER"],
        ["ALTER TABLE samples DROP COLUMN a_shard"],
        ["ALTER TABLE samples DROP COLUMN b_offset"],
        ["INSERT INTO fields VALUES ('c', 0, 'c_shards')"],
        ["INSERT INTO fields VALUES ('A', 0, 'other_shards')"],
        ["INSERT INTO fields VALUES ('id', 0, 'id_shards')"],
        ["INSERT INTO fields VALUES ('a; DROP TABLE samples', 0, 'c_shards')"],
        ["INSERT INTO fields VALUES ('', 0, 'c_shards')"],
        ["INSERT INTO fields VALUES (NULL, 0, 'c_shards')"],
        ["INSERT INTO fields VALUES (x'61', 0, 'c_shards')"],
        ["UPDATE fields SET base_dir = NULL"],
        ["UPDATE fields SET base_dir = 5 WHERE name = 'a'",
         "UPDATE fields SET base_dir = x'00' WHERE name = 'a'"],
        ["UPDATE fields SET base_dir = 'one_shards'"],
        ["UPDATE fields SET name = CAST(x'ff61' AS TEXT) WHERE name = 'a'"],
        [FORGE, "UPDATE sqlite_master SET sql = 'CREATE TABLE samples (x)' "
         "WHERE name = 'samples'"],
        [FORGE, "UPDATE sqlite_master SET sql = 'nonsense' WHERE name = 'samples'"],
        [FORGE, "UPDATE sqlite_master SET rootpage = 99999 WHERE name = 'fields'"],
        [FORGE, "UPDATE sqlite_master SET sql = 'CREATE VIEW fields AS SELECT 1 AS "
         "name, 2 AS num_shards, 3 AS base_dir' WHERE name = 'fields'"],
    ],
)  # fmt: skip
def test_hostile_schemas_are_refused(root, statements):
    try:
        rewrite(root, *statements)
    except sqlite3.Error as error:  # SQLite itself refuses the forged schema
        assert FORGE in statements, error
    with pytest.raises(FormatError) as caught:
        fields_of(root / "index.sqlite")
    assert caught.value.path == str(root / "index.sqlite")


def test_a_lock_of_another_connection_is_a_blocking_error(tmp_path):
    path = str(tmp_path / "index.sqlite")
    with closing(sqlite3.connect(path, isolation_level=None)) as holder:
        holder.execute("BEGIN EXCLUSIVE")
        other = sqlite3.connect(path, timeout=0)
        with closing(other), pytest.raises(sqlite3.OperationalError) as caught:
            other.execute("CREATE TABLE t (a)")
    error = translate_error(caught.value, path)
    assert isinstance(error, BlockingIOError)
    assert error.filename == path


@pytest.mark.parametrize("table", ["samples", "fastshard_shards", "unused"])
@pytest.mark.parametrize("forged", [False, True])
def test_views_of_exponential_cost(root, table, forged):
    """Each view joins the one before with itself; SQLite expands them on use."""
    views = [RENAME] if table == "samples" else []
    views.append("CREATE VIEW v0 AS SELECT 1 AS id LIMIT 1")
    for i in range(40):
        body = f"SELECT p.id FROM v{i} p, v{i} q LIMIT 1"
        views.append(f"CREATE VIEW v{i + 1} AS {body}")
    name = "harmless" if forged else table
    views.append(f"CREATE VIEW {name} AS SELECT * FROM v40")
    if forged:
        views += [
            FORGE,
            f"UPDATE sqlite_master SET type = 'table', name = '{table}', "
            f"tbl_name = '{table}', sql = 'CREATE VIEW {table} AS SELECT * FROM v40' "
            "WHERE name = 'harmless'",
        ]
    rewrite(root, *views)
    started = time.monotonic()
    try:
        found = fields_of(root / "index.sqlite")
    except FormatError:
        found = None
    assert time.monotonic() - started < SOON
    assert (found is None) == (table != "unused") or forged


def test_costly_generated_columns(root):
    """A generated column calls functions without asking the authorizer."""
    long = "hex(hex(hex(hex(hex(hex(hex(hex(hex(hex(meta_json))))))))))"
    for _ in range(2):
        long = f"replace({long}, '3', {long})"
    rewrite(
        root,
        f"ALTER TABLE samples ADD COLUMN bad AS (instr({long}, {long} || 'x'))",
        "ALTER TABLE samples ADD COLUMN worse AS (zeroblob(1000000000))",
    )
    conn = open_reader(root / "index.sqlite")
    assert len(read_fields(conn, "x")) == 2
    started = time.monotonic()
    for where in ("bad = 1", "worse IS NULL", "length(worse) = 1"):
        with pytest.raises(QueryError):
            query_ids(conn, where, timeout=0.5)
    assert time.monotonic() - started < SOON
    assert len(query_ids(conn)) == COUNT + 1
    conn.close()


def test_ids_that_are_not_text(root):
    rewrite(root, "INSERT INTO samples (id) VALUES (x'00ff')")
    conn = open_reader(root / "index.sqlite")
    with pytest.raises(FormatError, match="not text"):
        query_ids(conn)
    rewritten = "UPDATE samples SET id = CAST(x'ff' AS TEXT) WHERE id = x'00ff'"
    conn.close()
    rewrite(root, rewritten)
    conn = open_reader(root / "index.sqlite")
    with pytest.raises(FormatError, match="UTF-8"):
        query_ids(conn)
    assert query_ids(conn, "id = 's001'") == ["s001"]
    conn.close()


def test_every_flipped_byte_is_refused_or_read(root):
    """Within a time limit: a damaged index neither kills nor blocks the process."""
    rewrite(root)
    path = root / "index.sqlite"
    whole = path.read_bytes()
    random = np.random.default_rng(20)
    places = [*range(120), *random.integers(0, len(whole), 500).tolist()]
    refused = 0
    for at in places:
        damaged = bytearray(whole)
        damaged[at] ^= int(random.integers(1, 256))
        path.write_bytes(damaged)
        for name in ("index.sqlite-wal", "index.sqlite-shm"):
            (root / name).unlink(missing_ok=True)
        try:
            conn = open_reader(path)
        except (FormatError, OSError):
            refused += 1
            continue
        try:
            read_fields(conn, str(path))
            query_ids(conn, "json_extract(meta_json, '$.n') > 3", timeout=SOON)
            query(conn, limit=10)
        except (FormatError, QueryError, OSError):
            refused += 1
        finally:
            conn.close()
    assert refused


def test_truncated_indexes(root):
    rewrite(root)
    path = root / "index.sqlite"
    whole = path.read_bytes()
    for n in range(0, len(whole), 509):
        path.write_bytes(whole[:n])
        try:
            conn = open_reader(path)
        except (FormatError, OSError):
            continue
        with pytest.raises((FormatError, OSError)):  # noqa: PT012
            read_fields(conn, str(path))
            assert len(query_ids(conn)) == COUNT + 1
            raise (
                FormatError("whole", "", 0) if n > len(whole) - 4096 else AssertionError
            )
        conn.close()


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes with names here")
@pytest.mark.parametrize("end", ["", "-wal", "-journal", "-shm"])
def test_a_pipe_or_a_folder_beside_an_index(root, end):
    rewrite(root)
    path = root / f"index.sqlite{end}"
    path.unlink(missing_ok=True)
    for make, remove in [(os.mkfifo, os.unlink), (os.mkdir, os.rmdir)]:
        make(path)
        for call in (open_reader, open_writer):
            with pytest.raises(FormatError, match=f"not a file.*index.sqlite{end},"):
                call(str(root / "index.sqlite"))
        remove(path)
