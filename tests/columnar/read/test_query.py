"""Queries of users: results, refused statements, limits of time and memory."""

import contextlib
import pickle
import sqlite3
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from fastshard.columnar.layout.connection import open_reader
from fastshard.columnar.read.query import ids_sql, query, query_ids, select, split
from fastshard.errors import QueryError, QueryTimeoutError
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


# ---------------------------------------------------------------- results


@pytest.mark.parametrize(
    ("where", "params", "expected"),
    [
        ("json_extract(meta_json, '$.n') > ?", (97,), ["s098", "s099"]),
        ("meta_json ->> 'n' = ?", (np.int64(5),), ["s005"]),
        ("meta_json ->> 'n' = :n", {"n": 7}, ["s007"]),
        ("a_offset IS NOT NULL", (), ["with a"]),
        ("id = 's001' -- a comment", (), ["s001"]),
        ("id = 's001' /* ) */", (), ["s001"]),
        ("id = 's001' OR id = 's000'", (), ["s000", "s001"]),
        ("id IN (SELECT value FROM json_each(?))", ('["s2", "s003"]',), ["s003"]),
        ("id LIKE 's00_' AND id GLOB '*[89]'", (), ["s008", "s009"]),
        ("rowid = (SELECT max(rowid) FROM samples)", (), ["with a"]),
        ("(SELECT count(*) FROM fields) = 2 AND n = 3", (), None),
        ("instr(id, 'with') AND replace(id, 'with', '') = ' a'", (), ["with a"]),
        ("'it''s' = 'it''s' AND id = 's004'", (), ["s004"]),
        ("\"id\" = 's004' AND [id] = `id`", (), ["s004"]),
        ("abs(random()) >= 0 AND id = 's000'", (), ["s000"]),
        ("0", (), []),
    ],
)
def test_where(conn, where, params, expected):
    if expected is None:
        with pytest.raises(QueryError, match="no such column: n"):
            query_ids(conn, where, params)
    else:
        assert query_ids(conn, where, params) == expected


def test_all_in_order_of_insertion(root, conn):
    everything = [f"s{i:03d}" for i in range(COUNT)] + ["with a"]
    assert query_ids(conn) == query_ids(conn, "") == query_ids(conn, "1") == everything
    assert query_ids(conn, limit=3) == query_ids(conn, "1", limit=3) == everything[:3]
    assert query_ids(conn, limit=0) == []
    assert query_ids(conn, limit=10**30) == everything
    assert query_ids(conn, "id > 's097'") == ["s098", "s099", "with a"]


def test_columns_are_names_or_expressions(conn):
    columns = [
        "id",
        "json_extract(meta_json, '$.n')",
        "a_shard",
        "length(id), -- x"[:10],
    ]
    rows = query(conn, "a_shard IS NOT NULL", (), columns)
    assert rows == [dict(zip(columns, ["with a", -1, 0, 6], strict=True))]
    assert query(conn, limit=1) == [{"id": "s000", "meta_json": '{"n": 0, "w": "w0"}'}]


def test_declared_columns_use_their_index(root):
    expression = "json_extract(meta_json, '$.n')"
    rewrite(
        root,
        f"ALTER TABLE samples ADD COLUMN n AS ({expression}) VIRTUAL",
        "CREATE INDEX by_n ON samples (n)",
    )
    conn = open_reader(root / "index.sqlite")
    for where in ("n > 97", "n = 97", "n BETWEEN 1 AND 2"):
        plan = conn.execute(f"EXPLAIN QUERY PLAN {ids_sql(where, None)}").fetchall()
        assert any("INDEX by_n" in str(row) for row in plan)
    assert query_ids(conn, "n > 97") == ["s098", "s099"]
    conn.close()


def test_split_at_outer_commas():
    text = "id, json_extract(meta_json, '$.a,b'), \"a,b\", /* , */ x, [a,b]"
    assert split(text) == [
        "id",
        "json_extract(meta_json, '$.a,b')",
        '"a,b"',
        "/* , */ x",
        "[a,b]",
    ]


# ---------------------------------------------------------------- refused statements


@pytest.mark.parametrize(
    "where",
    [
        "1); DROP TABLE samples; --",
        "1) UNION SELECT sql FROM sqlite_master --",
        "1) UNION ALL SELECT 1 /*",
        "1 /*",
        "1; SELECT 2",
        "(1",
        "1)",
        "'open",
        '"open',
        "[open",
        "$a(') OR 1 /* ')",
        "@a(') ) UNION SELECT 1 /* ')",
        "a\0b",
        "\ud800",
        "SELECT",
        "   ",
        "--",
        "id = (SELECT sql FROM sqlite_master)",
        "id = (SELECT sql FROM sqlite_schema)",
        "EXISTS (SELECT 1 FROM pragma_database_list)",
        "EXISTS (SELECT 1 FROM pragma_table_info('samples'))",
        "EXISTS (SELECT 1 FROM dbstat)",
        "EXISTS (SELECT 1 FROM temp.x)",
        "(ATTACH 'x.db' AS x)",
        "(PRAGMA journal_mode = DELETE)",
        "(DELETE FROM samples)",
        "id IN (DELETE FROM samples RETURNING id)",
        "load_extension('x')",
        "id = (SELECT load_extension('x'))",
        "readfile('/etc/passwd') IS NOT NULL",
        "writefile('x', 'x')",
        "edit('x')",
        "fts3_tokenizer('x')",
        "sqlite_log(1, 'x')",
        "last_insert_rowid()",
        "zeroblob(1000000000) IS NULL",
        "randomblob(1000000000) IS NULL",
        "printf('%.*c', 1000000000, 'a') IS NULL",
        "trim(id, meta_json) = ''",
        "json_patch('{}', '{}') = '{}'",
        "id REGEXP 'x'",
        "id MATCH 'x'",
        "id = 'x' COLLATE nothing",
        "max(id) = 1",
        "raise(ABORT, 'x')",
        "abs(-9223372036854775808)",
        "json_extract(meta_json, '$[')",
        "EXISTS (WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) "
        "SELECT 1 FROM c WHERE x < 0)",
        "EXISTS (with a AS (SELECT 1) SELECT 1 FROM a)",
        " AND ".join(["1"] * 2000),
        "(" * 500 + "1" + ")" * 500,
        "1 " + " " * 300_000,
        "id = ?",
    ],
    ids=lambda where: ascii(where[:32]),
)
def test_refused(root, conn, where):
    before = {path.name: path.read_bytes() for path in root.glob("index.sqlite")}
    started = time.monotonic()
    with pytest.raises(QueryError) as caught:
        query_ids(conn, where)
    assert time.monotonic() - started < SOON
    assert str(caught.value)
    assert type(pickle.loads(pickle.dumps(caught.value))) is QueryError
    assert query_ids(conn, limit=1) == ["s000"]  # the connection stays usable
    assert {p.name: p.read_bytes() for p in root.glob("index.sqlite")} == before


@pytest.mark.parametrize(
    "columns",
    [
        "id",
        [],
        [1],
        ["nothing"],
        ["id, meta_json"],
        ["*"],
        ["id) FROM samples; --"],
        ["1) FROM sqlite_master /*"],
        ["load_extension('x')"],
        ["(SELECT sql FROM sqlite_master)"],
    ],
)
def test_refused_columns(conn, columns):
    with pytest.raises(QueryError):
        query(conn, columns=columns)


@pytest.mark.parametrize(
    "params", [5, "x", b"x", (1, 2), (), (2**70,), (object(),), ("\ud800",), {"a": 1}]
)
def test_refused_params(conn, params):
    with pytest.raises(QueryError):
        query_ids(conn, "id = ?", params)


@pytest.mark.parametrize(
    ("error", "options"),
    [
        (ValueError, {"limit": -1}),
        (TypeError, {"limit": "1"}),
        (TypeError, {"limit": 1.5}),
        (ValueError, {"timeout": -1}),
        (ValueError, {"timeout": float("nan")}),
    ],
)
def test_refused_options(conn, error, options):
    with pytest.raises(error):
        query_ids(conn, **options)


# ---------------------------------------------------------------- time and memory

CROSSED = ", ".join(f"samples s{i}" for i in range(12))
ENDLESS = f"(SELECT count(*) FROM {CROSSED}) > 0"


@pytest.mark.parametrize(
    "where",
    [
        ENDLESS,
        f"rowid IN (SELECT s0.rowid FROM {CROSSED} ORDER BY random())",
        f"rowid IN (SELECT count(*) FROM {CROSSED} GROUP BY random())",
    ],
)
def test_endless_queries_are_stopped(conn, where):
    started = time.monotonic()
    with pytest.raises(QueryTimeoutError, match="longer than"):
        query_ids(conn, where, timeout=0.3)
    assert time.monotonic() - started < SOON
    assert query_ids(conn, "id = 's000'", timeout=SOON) == ["s000"]


LONG = "(SELECT replace(hex(group_concat(meta_json)), '0', hex(id)) FROM samples)"
GROWN = f"replace({LONG}, '7', {LONG})"


@pytest.mark.parametrize(
    "where",
    [
        f"instr({GROWN}, substr({GROWN}, 2) || 'b') > 0",
        f"length(replace({GROWN}, substr({GROWN}, 2) || 'b', 'x')) > 0",
        f"{GROWN} LIKE '%{'7B2' * 300}b'",
        f"{GROWN} LIKE '{'%7' * 499}%b'",
        f"{GROWN} GLOB '*{'[0-9A-F]' * 120}b'",
        " OR ".join([f"{LONG} LIKE '%{'7' * 900}b'"] * 50),
        " OR ".join(["instr(meta_json, 'x')"] * 2000).join(("(", ")")),
        "id IN (" + ",".join(["length(upper('a')) + 1"] * 10_000) + ")",
    ],
    ids=range(8),
)
def test_single_steps_are_short(conn, where):
    started = time.monotonic()
    with contextlib.suppress(QueryError):
        query_ids(conn, where, timeout=0.5)
    assert time.monotonic() - started < SOON


def test_a_result_larger_than_the_index_is_refused(conn):
    wide = "replace(hex(printed), '0', hex(printed))".replace(
        "printed", "(SELECT group_concat(meta_json) FROM samples)"
    )
    before = resident()
    with pytest.raises(QueryError):
        query(conn, columns=["id"] + [wide + f" || {i}" for i in range(50)])
    assert resident() - before < 1 << 30


def resident():
    try:
        status = Path("/proc/self/status").read_text()
    except FileNotFoundError:
        return 0
    (line,) = [line for line in status.splitlines() if line.startswith("VmRSS")]
    return int(line.split()[1]) << 10


def test_long_metadata_come_back_whole(root):
    text = '{"x": "' + "x" * (3 << 20) + '"}'
    connection = sqlite3.connect(root / "index.sqlite")
    with connection:
        connection.execute("UPDATE samples SET meta_json = ? WHERE id = 's000'", [text])
    connection.close()
    conn = open_reader(root / "index.sqlite")
    assert query(conn, "id = 's000'") == [{"id": "s000", "meta_json": text}]
    assert query_ids(conn, "id LIKE 's000'") == ["s000"]
    assert query_ids(conn, "json_extract(meta_json, '$.x') > 'x'") == ["s000"]
    with pytest.raises(QueryError, match="too long"):
        query_ids(conn, "meta_json LIKE '%x'")
    conn.close()


def test_a_signal_stops_a_query(root):
    code = (
        "import sys, signal, threading, os, time\n"
        "from fastshard.columnar.layout.connection import open_reader\n"
        "from fastshard.columnar.read.query import query_ids\n"
        "conn = open_reader(sys.argv[1])\n"
        "kill = lambda: os.kill(os.getpid(), signal.SIGINT)\n"
        "threading.Timer(0.5, kill).start()\n"
        "try:\n"
        "    query_ids(conn, sys.argv[2], timeout=None)\n"
        "except KeyboardInterrupt:\n"
        "    print(query_ids(conn, limit=1))\n"
    )
    args = [sys.executable, "-c", code, str(root / "index.sqlite"), ENDLESS]
    done = subprocess.run(args, capture_output=True, timeout=60)
    assert done.stdout.decode().strip() == "['s000']", done.stderr.decode()


def test_threads_take_turns(conn):
    """A thread's query is not stopped by another's timeout, and gets its turn."""
    errors = []

    def ask(i):
        try:
            for k in range(20):
                assert query_ids(conn, "id = ?", (f"s{i:03d}",)) == [f"s{i:03d}"]
                if i == 0 and k % 5 == 0:
                    with pytest.raises(QueryTimeoutError):
                        query_ids(conn, ENDLESS, timeout=0.05)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert errors == []


def test_select_runs_one_statement(conn):
    with pytest.raises(QueryError):
        select(conn, "SELECT 1; SELECT 2")
    with pytest.raises(QueryError):
        select(conn, "DELETE FROM samples")
    with pytest.raises(QueryError):
        select(conn, "COMMIT")
    assert select(conn, "SELECT count(*) FROM samples") == [(COUNT + 1,)]


# ---------------------------------------------------------------- among ids


def test_ids_restrict_a_query_in_insertion_order(conn):
    ids = ["s007", "with a", "s003", "s007", "unknown", "s\0", "\ud800"]
    assert query_ids(conn, ids=ids) == ["s003", "s007", "with a"]
    assert query_ids(conn, "meta_json ->> 'n' > ?", (3,), ids=iter(ids)) == ["s007"]
    named = query_ids(conn, "meta_json ->> 'n' < :n", {"n": 7}, ids=ids)
    assert named == ["s003", "with a"]
    assert query_ids(conn, ids=ids, limit=2) == ["s003", "s007"]
    assert query_ids(conn, ids=[]) == []
    assert query_ids(conn, "id = 's001' OR TRUE", ids=["s002"]) == ["s002"]
    rows = query(conn, columns=("id", "meta_json ->> 'n' + ?"), params=(1,), ids=ids)
    assert [tuple(row.values()) for row in rows] == [
        ("s003", 4),
        ("s007", 8),
        ("with a", 0),
    ]


def test_ids_of_any_number_are_one_statement(conn):
    ids = [f"s{i:03d}" for i in range(50_000)]
    assert query_ids(conn, ids=ids[::-1]) == ids[:COUNT]
    (row,) = query(conn, columns=("count(*)",), ids=ids)
    assert row == {"count(*)": COUNT}
    # The functions bound the size of a value.
    assert query_ids(conn, "replace(id, 's', 't') = ?", ("t042",), ids=ids) == ["s042"]


@pytest.mark.parametrize("ids", ["s001", b"s001", [b"s001"], [1]])
def test_ids_that_are_not_str_are_refused(conn, ids):
    with pytest.raises(TypeError, match="must be a "):
        query_ids(conn, ids=ids)


def test_an_id_with_a_nul_selects_no_prefix_of_it(conn):
    assert query_ids(conn, ids=["s001\0", "s002"]) == ["s002"]


def test_an_unknown_column_is_answered_by_the_known_ones(root, conn):
    known = [row[1] for row in conn.execute("PRAGMA table_xinfo(samples)")]
    for ask in (
        lambda: query_ids(conn, "label = 1"),
        lambda: query(conn, columns=["label"]),
    ):
        with pytest.raises(QueryError) as caught:
            ask()
        assert str(caught.value) == (
            "the query is not valid: no such column: label; the columns are "
            f"{', '.join(known)}; a value of the metadata is "
            "json_extract(meta_json, '$.label')"
        )
