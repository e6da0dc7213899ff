"""Rows that wait, to be inserted by one statement: all see them as if they were in."""

import random
import sqlite3
import sys

import numpy as np
import pytest

from fastshard.columnar import ShardedDatasetReader, ShardedDatasetWriter
from fastshard.columnar.write import pending_rows
from fastshard.columnar.write.pending_rows import PendingRows
from support.columnar.stored import lengths
from support.inside.columnar import PENDING_WRITES, count_pending

COUNT = pending_rows.SINGLE_ROWS + 2 * pending_rows.ROWS + 5  # some rows wait


@pytest.fixture
def root(tmp_path):
    return tmp_path / "data"


@pytest.fixture
def writer(root):
    with ShardedDatasetWriter(root, samples_per_shard=7) as writer:
        writer.add_fields(["a", "b"])
        yield writer


def ids_of(count):
    return [f"{i:04d}" for i in range(count)]


def add(writer, ids):
    for sample_id in ids:
        writer.add_sample({"a": np.full(2, int(sample_id))}, sample_id, {"i": 1})


def waiting(writer):
    return count_pending(writer)


def statements(writer):
    """Return a list that gets the SQL of each statement from now on."""
    found = []
    writer.conn.set_trace_callback(found.append)
    return found


def test_rows_in_order_by_few_statements(writer, root):
    found = statements(writer)
    add(writer, ids_of(COUNT))
    assert waiting(writer) == 5
    writer.conn.set_trace_callback(None)
    inserts = [sql for sql in found if sql.startswith("INSERT INTO samples")]
    assert len(inserts) == pending_rows.SINGLE_ROWS + 2
    rows = writer.conn.execute("SELECT rowid, id FROM samples ORDER BY rowid")
    assert rows.fetchall() == list(enumerate(ids_of(COUNT), 1))
    writer.close()
    with ShardedDatasetReader(root) as reader:
        assert reader.query_ids() == ids_of(COUNT)
        for i, sample_id in enumerate(ids_of(COUNT)):
            (arrays, metadata) = reader.get_sample(sample_id)
            assert list(arrays["a"]) == [i, i]
            assert metadata == {"i": 1}
        assert reader.verify() == []


LOOKS = {
    "execute": lambda conn: conn.execute("SELECT count(*) FROM samples").fetchone()[0],
    "cursor": lambda conn: (
        conn.cursor().execute("SELECT count(*) FROM samples").fetchone()[0]
    ),
    "last rowid": lambda conn: conn.execute("SELECT last_insert_rowid()").fetchone()[0],
    "dump": lambda conn: sum('INSERT INTO "samples"' in x for x in conn.iterdump()),
    "factory": lambda conn: (
        conn.cursor(sqlite3.Cursor)
        .execute("SELECT count(*) FROM samples")
        .fetchone()[0]
    ),
}


@pytest.mark.parametrize("look", LOOKS.values(), ids=LOOKS)
def test_statements_of_the_user_see_all_rows(writer, look):
    add(writer, ids_of(COUNT))
    assert waiting(writer)
    assert look(writer.conn) == COUNT


def test_a_cursor_kept_by_the_user_sees_all_rows(writer):
    ours, others = writer.conn.cursor(), writer.conn.cursor(sqlite3.Cursor)
    for cursor in (ours, others):
        (before,) = cursor.execute("SELECT count(*) FROM samples").fetchone()
        new = [f"{before + i:04d}" for i in range(COUNT)]
        add(writer, new)
        (after,) = cursor.execute("SELECT count(*) FROM samples").fetchone()
        assert after - before == COUNT


def test_counted_changes_and_copies_have_all_rows(writer, tmp_path):
    before = writer.conn.total_changes
    add(writer, ids_of(COUNT))
    assert waiting(writer)
    assert writer.conn.total_changes - before == COUNT
    writer.conn.commit()
    add(writer, [f"{COUNT + i:04d}" for i in range(COUNT)])
    assert waiting(writer)
    assert b"%04d" % (2 * COUNT - 1) in writer.conn.serialize()


def test_a_taken_id_is_refused_at_once(writer, root):
    ids = ids_of(COUNT)
    add(writer, ids)
    for taken in (ids[0], ids[-1], ids[-20]):
        with pytest.raises(ValueError, match=f"{taken}' exists"):
            add(writer, [taken])
    more = [f"{i:04d}" for i in range(COUNT + 10, 2 * COUNT)]
    add(writer, more)
    add(writer, [f"{COUNT + 3:04d}"])  # in between
    with pytest.raises(ValueError, match="exists"):
        add(writer, more[-1:])
    writer.close()
    assert sorted(lengths(root)) == sorted([*ids, *more, f"{COUNT + 3:04d}"])


def test_ids_in_any_order_of_any_characters(writer, root):
    rng = random.Random(1)
    letters = "aZ\x7f\xe9\u0800\uffee\U0001f600\U0010fffe"
    ids = {"".join(rng.choices(letters, k=rng.randrange(1, 4))) for _ in range(400)}
    assert len(ids) > 150
    expected = set()
    for start, order in enumerate((sorted(ids), rng.sample(sorted(ids), len(ids)))):
        for sample_id in (f"{start}{each}" for each in order):
            writer.add_sample({"a": np.zeros(1)}, sample_id)
            expected.add(sample_id)
            if rng.random() < 0.1:
                with pytest.raises(ValueError, match="exists"):
                    writer.add_sample({"a": np.zeros(1)}, rng.choice(sorted(expected)))
    writer.close()
    assert set(lengths(root)) == expected


def test_a_rollback_drops_rows_that_wait(writer, root):
    add(writer, ids_of(3))
    writer.flush()
    add(writer, ids_of(COUNT)[3:])
    assert waiting(writer)
    writer.conn.rollback()
    add(writer, ["9999"])
    writer.close()
    assert sorted(lengths(root)) == [*ids_of(3), "9999"]


def test_a_savepoint_of_the_user(writer, root):
    add(writer, ids_of(3))
    writer.conn.execute("SAVEPOINT mine")
    add(writer, ids_of(COUNT)[3:])
    assert waiting(writer)
    writer.conn.execute("ROLLBACK TO mine")
    add(writer, ["0005"])
    writer.close()
    assert sorted(lengths(root)) == [*ids_of(3), "0005"]


REFUSING = {
    "unique": "CREATE UNIQUE INDEX other ON samples (meta_json)",
    "check": "ALTER TABLE samples ADD COLUMN c CHECK (meta_json NOT LIKE '%: 13}')",
    "trigger": (
        "CREATE TEMP TRIGGER t BEFORE INSERT ON samples "
        "WHEN new.meta_json LIKE '%: 13}' BEGIN SELECT raise(ABORT, 'not 13'); END"
    ),
}


@pytest.mark.parametrize("statement", REFUSING.values(), ids=REFUSING)
@pytest.mark.parametrize("is_seen", [True, False])
def test_constraints_of_the_user(writer, root, statement, is_seen):
    """Row by row if they are seen; else the sample is named and the others stay."""
    ids = ids_of(2 * COUNT)
    metadata = [{"i": 1000 + i} for i in range(len(ids))]
    wrong = COUNT - 2  # it waits
    metadata[wrong] = {"i": 13}
    metadata[1] = metadata[wrong] if "UNIQUE" in statement else {}
    if is_seen:
        writer.conn.execute(statement)
    refused = []
    for i, sample_id in enumerate(ids):
        if i == COUNT and not is_seen:
            assert waiting(writer)
            sqlite3.Cursor(writer.conn).execute(statement)
        try:
            writer.add_sample({"a": np.zeros(i)}, sample_id, metadata[i])
        except ValueError as error:
            refused.append((i, str(error)))
            if not is_seen:  # the sample that was being added is not in
                writer.add_sample({"a": np.zeros(i)}, sample_id, metadata[i])
    ((at, message),) = refused
    assert f"sample '{ids[wrong]}'" in message
    assert (at == wrong) == is_seen
    writer.close()
    expected = {key: i for i, key in enumerate(ids) if i != wrong}
    assert lengths(root) == expected


def test_more_values_than_the_user_allows(writer, root):
    writer.conn.setlimit(sqlite3.SQLITE_LIMIT_VARIABLE_NUMBER, 10)
    add(writer, ids_of(COUNT))
    writer.close()
    assert len(lengths(root)) == COUNT


def test_another_cursor_ends_the_transaction(writer, root):
    add(writer, ids_of(COUNT))
    assert waiting(writer)
    sqlite3.Cursor(writer.conn).execute("COMMIT")
    add(writer, [f"{i:04d}" for i in range(COUNT, 2 * COUNT)])
    writer.close()
    assert len(lengths(root)) == 2 * COUNT


@pytest.mark.parametrize("after", range(0, 78, 11))
def test_a_stopped_statement_leaves_all_rows_waiting_or_undoes_all(root, after):
    steps = iter(range(after + 1))
    with ShardedDatasetWriter(root) as writer:
        writer.add_field("a")
        add(writer, ids_of(3))
        writer.flush()
        add(writer, ids_of(COUNT)[3:])
        assert waiting(writer)
        writer.conn.set_progress_handler(lambda: next(steps, None) == after, 1)
        with pytest.raises(OSError, match="nterrupted"):
            writer.flush()
        is_undone = writer.closed
        if not is_undone:
            writer.conn.set_progress_handler(None, 1)
    assert sorted(lengths(root)) == ids_of(3 if is_undone else COUNT)


def test_interrupts_while_rows_are_written(tmp_path):
    """Interrupt the n-th line or call of `write`, then go on and lose nothing."""
    codes = {each.__code__ for each in PENDING_WRITES}
    codes |= {PendingRows.accept.__code__, PendingRows.settle.__code__}
    with ShardedDatasetWriter(tmp_path / "data", samples_per_shard=50) as writer:
        writer.add_field("a")
        expected, interrupted = [], 0
        for n in range(60):
            seen = 0

            def look(frame, event, _, n=n):
                nonlocal seen
                if frame.f_code not in codes:
                    return None
                seen += 1
                if seen == 3 * n + 200:
                    sys.settrace(None)
                    raise KeyboardInterrupt
                return look

            new = [f"{n:03d}{i:03d}" for i in range(32 + 33 + n % 5)]
            sys.settrace(look)
            for sample_id in new:
                try:
                    writer.add_sample({"a": np.zeros(1)}, sample_id)
                except KeyboardInterrupt:
                    interrupted += 1
                    if not writer.conn.execute(
                        "SELECT 1 FROM samples WHERE id = ?", (sample_id,)
                    ).fetchone():
                        writer.add_sample({"a": np.zeros(1)}, sample_id)
            try:
                writer.flush()
            except KeyboardInterrupt:
                interrupted += 1
                writer.flush()
            finally:
                sys.settrace(None)
            expected += new
        assert interrupted > 40
        rows = writer.conn.execute("SELECT id FROM samples ORDER BY rowid").fetchall()
        assert [sample_id for (sample_id,) in rows] == expected
        writer.flush()
    with ShardedDatasetReader(tmp_path / "data") as reader:
        assert reader.verify() == []
        assert len(reader) == len(expected)
