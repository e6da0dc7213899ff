"""Faults that `verify` reports in columnar datasets, and sound datasets."""

import io
import os
import shutil
import sqlite3
import tarfile
import time

import numpy as np
import pytest

from fastshard.columnar.stats import stat
from fastshard.columnar.verification import verify
from fastshard.columnar.write.writer import ShardedDatasetWriter
from fastshard.errors import FormatError
from support.columnar.original import npy, shard_path
from support.columnar.stored import sql
from support.marks import not_sanitized
from support.threads import HANG

pytestmark = not_sanitized  # tests Python code and SQLite


@pytest.fixture
def root(make_original):
    """Return a dataset of three sessions, with updates and a sparse field."""
    for session in range(3):
        with make_original(samples_per_shard=4) as writer:
            writer.add_fields(["a", "b"])
            for i in range(6 * session, 6 * session + 6):
                arrays = {"a": np.full(5, i, np.float32)}
                if i % 2:
                    arrays["b"] = np.arange(i)
                writer.add_sample(arrays, sample_id=f"é/{i}", metadata={"n": i})
            writer.update_sample("é/0", {"a": np.full(5, 99, np.float32)})
        writer.conn.close()
    return writer.root


def run(root, *statements):
    connection = sqlite3.connect(root / "index.sqlite", isolation_level=None)
    for statement in statements:
        connection.execute(statement)
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()


def reasons(root):
    return [fault.reason for fault in verify(root)]


def files(root):
    return {p: p.read_bytes() for p in root.rglob("*") if p.is_file()}


def put(root, data, name="é/1"):
    """Replace shard 0 of `a` by one with a single member; point a row at it."""
    path = shard_path(root / "a_shards", 0)
    with tarfile.open(path, "w") as tar:
        member = tarfile.TarInfo(f"{name}.npy")
        member.size = len(data)
        tar.addfile(member, io.BytesIO(data))
    run(
        root,
        "UPDATE samples SET a_shard = NULL, a_offset = NULL",
        f"UPDATE samples SET a_shard = 0, a_offset = 512 WHERE id = '{name}'",
    )
    return path


# ---------------------------------------------------------------- sound datasets


def test_datasets_of_the_original_are_sound(root):
    before = files(root)
    assert verify(root) == []
    assert files(root) == before


def test_true_offsets_are_sound(root):
    for field in "ab":
        for path in (root / f"{field}_shards").iterdir():
            with tarfile.open(path) as tar:
                found = [(m.name.removesuffix(".npy"), m.offset_data) for m in tar]
            shard = int(path.stem.removeprefix("shard_"))
            for name, offset in found:
                run(
                    root,
                    f"UPDATE samples SET {field}_offset = {offset} "
                    f"WHERE id = '{name}' AND {field}_shard = {shard}",
                )
    assert verify(root) == []


def test_an_empty_dataset_is_sound(make_original):
    with make_original() as writer:
        writer.add_field("a")
    assert verify(writer.root) == []
    assert stat(writer.root, deep=True)["samples"] == 0


@pytest.mark.parametrize(
    "array",
    [
        np.float32(3),
        np.zeros((0, 3)),
        np.asfortranarray(np.ones((3, 4), ">f8")),
        np.array([(1, b"x")], [("a", "<i4"), ("b", "S3")]),
        np.array(["é", "b"]),
        np.array(["2020-01-01"], "datetime64[ns]"),
        np.zeros((1,) * 30),
        np.zeros(3, [(f"field {i:04d}", "<f4") for i in range(900)]),
    ],
)
def test_arrays_of_any_kind_are_sound(root, array):
    put(root, npy(array))
    assert verify(root) == []


def test_leftovers_of_a_crash_are_not_faults(root):
    path = shard_path(root / "a_shards", 0)
    with tarfile.open(path) as tar:
        end = max(m.offset_data + m.size + -m.size % 512 for m in tar)
    run(
        root,
        "CREATE TABLE fastshard_shards (field TEXT, shard INTEGER, nbytes INTEGER, "
        "members INTEGER, PRIMARY KEY (field, shard))",
        f"INSERT INTO fastshard_shards VALUES ('a', 0, {end}, 5)",
    )
    with open(path, "r+b") as file:
        file.truncate(end)
        file.seek(end)
        file.write(os.urandom(700))
    assert verify(root) == []
    os.truncate(path, end - 512)
    assert any("recorded bytes" in reason for reason in reasons(root))


# ---------------------------------------------------------------- faults


@pytest.mark.parametrize(
    ("statement", "reason", "member"),
    [
        ("a_offset = NULL", "has a shard, and no offset", "é/1"),
        ("a_shard = NULL", "has an offset, and no shard", "é/1"),
        ("a_shard = 'x'", "the shard 'x'", "é/1"),
        ("a_shard = -1", "the shard -1", "é/1"),
        ("a_shard = 9223372036854775807", "the shard 9", "é/1"),
        ("a_shard = 1.5", "the shard 1.5", "é/1"),
        ("a_shard = x'00'", "the shard b'", "é/1"),
        ("a_offset = 'x'", "the offset 'x'", "é/1"),
        ("a_offset = -512", "the offset -512", "é/1"),
        ("a_offset = 9223372036854775807", "the offset 9", "é/1"),
        ("a_offset = 0.5", "the offset 0.5", "é/1"),
        ("a_shard = 77", "the shard is missing", None),
        ("id = 'other'", "is not in", "other"),
        ("id = NULL", "a sample's id must be a str", None),
        ("id = x'61'", "a sample's id must be a str", None),
        ("id = ''", "must be non-empty", None),
        ("id = CAST(x'ff' AS TEXT)", "cannot be encoded", None),
        ("meta_json = '['", "not a JSON object", "é/1"),
        ("meta_json = '[]'", "not a JSON object", "é/1"),
        ("meta_json = x'7b7d'", "not a JSON object", "é/1"),
        ("meta_json = 7", "not a JSON object", "é/1"),
        ("meta_json = CAST(x'227bff7d22' AS TEXT)", "not a JSON object", "é/1"),
        (f"meta_json = '{'[' * 50_000}'", "not a JSON object", "é/1"),
    ],
)
def test_rows(root, statement, reason, member):
    run(root, f"UPDATE samples SET {statement} WHERE id = 'é/1'")
    faults = verify(root)
    assert any(reason in f.reason and f.member == member for f in faults), faults


@pytest.mark.parametrize("text", ["NULL", "''", "'{\"x\": NaN}'"])
def test_metadata_that_the_original_takes(root, text):
    run(root, f"UPDATE samples SET meta_json = {text}")
    assert verify(root) == []


def header(text, version=b"\x01\x00"):
    """Return a .npy file of a header, valid or not, and 40 bytes of data."""
    data = text.encode() if isinstance(text, str) else text
    data += b" " * (-(len(data) + 11) % 64) + b"\n"
    size = len(data).to_bytes(2 if version == b"\x01\x00" else 4, "little")
    return b"\x93NUMPY" + version + size + data + bytes(40)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x93NUMPY",
        b"\x93NUMPY\x01",
        b"\x93NUMPY\x01\x00\xff",
        b"\x93NUMPY\x01\x00\xff\xff",
        b"\x93NUMPY\x02\x00\xff\xff\xff\xff",
        b"PK\x03\x04" + bytes(100),
        npy(np.arange(5))[:-1],
        npy(np.arange(5)) + b"x",
        header("{'descr': '<f8', 'fortran_order': False, 'shape': (6,), }"),
        header("{'descr': '<f8', 'fortran_order': False, 'shape': (-5,), }"),
        header("{'descr': '<f8', 'fortran_order': False, 'shape': (1 << 80,), }"),
        header(f"{{'descr': '<f8', 'fortran_order': False, 'shape': ({10**30},), }}"),
        header("{'descr': '<f8', 'fortran_order': False, "
               f"'shape': ({2**62}, {2**62}, 4), }}"),
        header("{'descr': '|O', 'fortran_order': False, 'shape': (5,), }"),
        header("{'descr': [('a', '|O')], 'fortran_order': False, 'shape': (5,), }"),
        header("{'descr': '<f8', 'fortran_order': 7, 'shape': (5,), }"),
        header("{'descr': '<f8', 'shape': (5,), }"),
        header("__import__('os').system('true')"),
        header("(" * 5000 + ")" * 5000),
        header("[" * 20000, b"\x02\x00"),
        header(b"\xff\xfe", b"\x03\x00"),
        header("{'descr': '<f8', 'fortran_order': False, 'shape': (5,)}", b"\x09\x00"),
        npy(np.array([{}], object)),
    ],
)  # fmt: skip
def test_members_that_are_not_arrays(root, data):
    path = put(root, data)
    (fault,) = verify(root)
    assert (fault.path, fault.member) == (str(path), "é/1.npy")
    assert fault.reason


def test_missing_shards(root):
    shutil.rmtree(root / "b_shards")
    faults = verify(root)
    assert {fault.path for fault in faults} == {
        str(shard_path(root / "b_shards", shard)) for shard in range(1)
    }
    assert "samples in it: 9" in faults[0].reason


def test_files_that_are_not_tars(root):
    path = shard_path(root / "a_shards", 1)
    path.write_bytes(b"x" * 2000)
    faults = verify(root)
    assert faults[0].path == str(path)
    assert "checksum" in faults[0].reason
    path.unlink()
    path.mkdir()
    assert any("cannot be read" in reason for reason in reasons(root))


def test_an_invalid_header_in_the_middle(root):
    path = shard_path(root / "a_shards", 0)
    data = bytearray(path.read_bytes())
    with tarfile.open(path) as tar:
        second = list(tar)[2]
    data[second.offset_data - 512] ^= 1
    path.write_bytes(data)
    faults = verify(root)
    assert faults[0].path == str(path)
    assert faults[0].offset <= second.offset_data
    assert any("is not in" in fault.reason for fault in faults[1:])


# ---------------------------------------------------------------- hostile indexes


def test_an_invalid_index(tmp_path):
    (tmp_path / "index.sqlite").write_bytes(b"x" * 4096)
    (fault,) = verify(tmp_path)
    assert fault.path == str(tmp_path / "index.sqlite")
    with pytest.raises(FormatError):
        stat(tmp_path)
    with pytest.raises(FileNotFoundError):
        verify(tmp_path / "absent")


def test_an_index_of_other_tables(root):
    run(root, "DROP TABLE fields", "CREATE VIEW fields AS SELECT 1 AS name")
    (fault,) = verify(root)
    assert "view" in fault.reason


def test_duplicate_ids(root):
    run(
        root,
        "ALTER TABLE samples RENAME TO other",
        "CREATE TABLE samples AS SELECT * FROM other",
        "INSERT INTO samples SELECT * FROM other WHERE id = 'é/3'",
    )
    assert reasons(root) == ["its id occurs 2 times"]


def test_an_sqlite_index_that_contradicts_its_table(root):
    run(
        root,
        "CREATE INDEX by_shard ON samples (a_shard)",
        "PRAGMA writable_schema=ON",
        "UPDATE sqlite_master SET sql = 'CREATE INDEX by_shard ON samples (a_offset)' "
        "WHERE name = 'by_shard'",
    )
    assert any(reason.startswith("SQLite: ") for reason in reasons(root))


def test_checks_that_cost_too_much(root):
    long = "hex(hex(hex(hex(hex(hex(hex(hex(hex(hex(hex(id)))))))))))"
    run(
        root,
        "ALTER TABLE samples RENAME TO other",
        "CREATE TABLE samples (id TEXT, meta_json TEXT, a_offset, a_shard, b_offset, "
        f"b_shard, CHECK (instr(replace({long}, '3', {long}), "
        f"replace({long}, '3', {long}) || 'x') >= 0))",
    )
    connection = sqlite3.connect(root / "index.sqlite")
    with connection:
        connection.execute("PRAGMA ignore_check_constraints = ON")
        connection.execute(
            "INSERT INTO samples SELECT id, meta_json, a_offset, a_shard, b_offset, "
            "b_shard FROM other"
        )
    connection.close()
    started = time.monotonic()
    assert isinstance(verify(root), list)
    assert time.monotonic() - started < HANG


def test_flipped_bytes_are_faults_or_harmless(root):
    """Flipped bytes in the index and the shards neither crash nor hang."""
    random = np.random.default_rng(7)
    index = root / "index.sqlite"
    for path in (index, shard_path(root / "a_shards", 0)):
        whole = path.read_bytes()
        found = 0
        for at in [*range(110), *random.integers(0, len(whole), 150).tolist()]:
            damaged = bytearray(whole)
            damaged[at] ^= int(random.integers(1, 256))
            path.write_bytes(damaged)
            for suffix in ("-wal", "-shm"):
                index.with_name(f"index.sqlite{suffix}").unlink(missing_ok=True)
            try:
                faults = verify(root)
            except OSError as error:
                assert path == index, error
            else:
                found += bool(faults)
        path.write_bytes(whole)
        assert found > 20


# ---------------------------------------------------------------- statistics


def test_stat(root):
    figures = stat(root)
    assert figures["samples"] == 18
    assert list(figures["fields"]) == ["a", "b"]
    shards = {f: list((root / f"{f}_shards").iterdir()) for f in "ab"}
    for field, count in (("a", 18), ("b", 9)):
        found = figures["fields"][field]
        assert found == {
            "samples": count,
            "shards": len(shards[field]),
            "bytes": sum(path.stat().st_size for path in shards[field]),
            "packed": 0,
            "missing": [],
            "replaced": 0,
            "replaced_bytes": 0,
            "uncommitted": 0,
            "uncommitted_bytes": 0,
        }
    assert figures["columns"] == {}


def test_deep_stat(root):
    a = stat(root, deep=True)["fields"]["a"]
    size = len(npy(np.full(5, 0, np.float32)))
    assert a["live_bytes"] == 18 * size
    assert (a["dead_bytes"], a["dead_members"]) == (3 * size, 3)
    assert a["arrays"] == [{"dtype": "float32", "shape": [5], "count": 18}]
    shard_path(root / "a_shards", 1).unlink()
    assert stat(root, deep=True)["fields"]["a"]["missing"] == [1]


def test_stat_names_columns_of_metadata(root):
    run(root, "ALTER TABLE samples ADD COLUMN length INTEGER")
    assert stat(root)["columns"] == {"length": "INTEGER"}


# ---------------------------------------------------------- fastshard's own shards


@pytest.fixture
def ours(tmp_path):
    with ShardedDatasetWriter(tmp_path / "ours", samples_per_shard=4) as writer:
        writer.add_field("a")
        for i in range(6):
            writer.add_sample({"a": np.full(5, i, np.float32)}, f"s{i}")
    assert verify(writer.root) == []
    return writer.root


@pytest.mark.parametrize("offset", [0, 1, 512, 1024, 1600, "(a_offset + 512)"])
def test_offsets_of_other_members(ours, offset):
    (before,) = sql(ours, "SELECT a_offset FROM samples WHERE id = 's1'")
    run(ours, f"UPDATE samples SET a_offset = {offset} WHERE id = 's1'")
    (after,) = sql(ours, "SELECT a_offset FROM samples WHERE id = 's1'")
    (fault,) = verify(ours)
    assert fault.member == "s1"
    assert fault.reason == (
        f"its field 'a' has the offset {after[0]:,}, and is at {before[0]:,}"
    )


def test_an_offset_into_a_tar_inside_an_array(ours, tmp_path):
    """A header inside an array passes for the member, and is not one of the shard."""
    inner = tmp_path / "inner.tar"
    with tarfile.open(inner, "w") as tar:
        data = io.BytesIO()
        np.save(data, np.full(7, 66))
        member = tarfile.TarInfo("s1.npy")
        member.size = data.tell()
        tar.addfile(member, io.BytesIO(data.getvalue()))
    with ShardedDatasetWriter(ours) as writer:
        # The array's header takes 128 bytes.
        aligned = b"\0" * 384 + inner.read_bytes()
        writer.add_sample({"a": np.frombuffer(aligned, np.uint8)}, "outer")
    ((at,),) = sql(ours, "SELECT a_offset FROM samples WHERE id = 'outer'")
    run(ours, f"UPDATE samples SET a_offset = {at + 1024} WHERE id = 's5'")
    run(ours, f"UPDATE samples SET a_offset = {at + 1024}, a_shard = 1 WHERE id = 's1'")
    assert [fault.member for fault in verify(ours)] == ["s1", "s5"]


def test_a_recorded_size_between_members(ours):
    run(ours, "UPDATE fastshard_shards SET nbytes = nbytes + 512 WHERE shard = 1")
    (fault,) = verify(ours)
    assert "no member ends at" in fault.reason
    assert fault.path.endswith("shard_0001.tar")


def test_offsets_of_an_unknown_field(ours):
    run(ours, "DELETE FROM fields")
    assert reasons(ours) == [
        "6 samples have a 'a_shard', and the field 'a' is not registered"
    ]
    run(ours, "UPDATE samples SET a_shard = NULL, a_offset = NULL")
    assert verify(ours) == []


def test_triggers_and_views_that_a_writer_refuses(ours):
    run(
        ours,
        "CREATE TRIGGER t AFTER INSERT ON samples BEGIN DELETE FROM fields; END",
        "UPDATE samples SET a_shard = 77 WHERE id = 's5'",
    )
    refused, other = reasons(ours)
    assert refused.startswith("a trigger 't'")
    assert other == "the shard is missing; samples in it: 1"
