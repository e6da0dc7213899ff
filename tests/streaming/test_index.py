"""index.json: entries, refusals, time and memory of many shards."""

import copy
import json
import os
import random

import pytest

from fastshard import FormatError
from fastshard._core.streaming.index import LARGEST_INDEX
from fastshard.streaming.index import FileInfo, parse_size_limit, read_index
from support.marks import thin


def file(name, nbytes=100, **hashes):
    return {"basename": name, "bytes": nbytes, "hashes": hashes}


COMMON = {"version": 2, "hashes": ["sha1"], "size_limit": 1 << 26, "samples": 3}
MDS = COMMON | {
    "format": "mds",
    "compression": None,
    "raw_data": file("shard.00000.mds", sha1="ab"),
    "zip_data": None,
    "column_names": ["id", "x"],
    "column_encodings": ["str", "int"],
    "column_sizes": [None, 8],
}
SPLIT = COMMON | {
    "compression": "zstd:7",
    "raw_data": file("j/shard.00000.json", sha1="ab"),
    "zip_data": file("j/shard.00000.json.zstd", sha1="cd"),
    "raw_meta": file("j/shard.00000.json.meta", sha1="ef"),
    "zip_meta": file("j/shard.00000.json.meta.zstd", sha1="01"),
    "newline": "\n",
}
JSON = SPLIT | {"format": "json", "columns": {"é": "str", "x": "int"}}
XSV = {
    key: {**value, "basename": value["basename"].replace("json", "xsv")}
    if key[:3] in ("raw", "zip")
    else value
    for key, value in SPLIT.items()
} | {
    "format": "xsv",
    "column_names": ["id"],
    "column_encodings": ["str"],
    "separator": "||",
}
SHARDS = [MDS, JSON, XSV]


def text_of(*shards, **top):
    return json.dumps({"version": 2, "shards": list(shards), **top}).encode()


def changed(shard, **values):
    shard = copy.deepcopy(shard) | values
    return {key: value for key, value in shard.items() if value is not ...}


def read(text):
    return read_index(text, "data")


def test_entries_are_the_objects_of_the_index():
    index = read(text_of(*SHARDS))

    assert [entry.to_json() for entry in index] == SHARDS
    assert [entry.format for entry in index] == ["mds", "json", "xsv"]
    assert list(index.starts()) == [0, 3, 6, 9]
    entry = index[-2]
    assert entry.raw_meta == FileInfo("j/shard.00000.json.meta", 100, {"sha1": "ef"})
    assert entry.file_pairs[0] == (entry.raw_meta, entry.zip_meta)
    assert entry.columns == {"é": "str", "x": "int"}
    assert (entry.compression, entry.hashes) == ("zstd:7", ["sha1"])


def test_keys_in_any_order_and_unknown_ones_are_read():
    shard = dict(reversed(changed(MDS, made=[{"by": "x"}, 1.5e3, True]).items()))
    shard["raw_data"] = {"extra": {"deep": [1]}, **shard["raw_data"]}
    entry = read(text_of(shard, tool="v1"))[0]

    assert entry.to_json() == MDS


def test_escaped_keys_and_names_are_plain_ones():
    text = text_of(MDS).decode()
    text = text.replace('"samples"', '"s\\u0061mples"').replace("00.mds", "00.\\u00e9")
    entry = read(text.encode())[0]

    assert entry.samples == 3
    assert entry.raw_data.basename == "shard.00000.é"


def test_a_csv_index_may_have_a_separator():
    shard = changed(XSV, format="csv", separator=",")

    assert read(text_of(shard))[0].config.separator == ","
    assert read(text_of(changed(shard, separator=...)))[0].config.separator == ","
    assert "separator" not in read(text_of(shard))[0].to_json()


def test_no_shards():
    assert len(read(text_of())) == 0
    assert list(read(text_of()).starts()) == [0]


BAD_NAMES = [
    "",
    "/etc/passwd",
    "../a.mds",
    "a/../../b.mds",
    "..",
    "a/..",
    "a/",
    "a/.",
    ".",
    "a\0b",
]


@pytest.mark.parametrize("name", BAD_NAMES)
@pytest.mark.parametrize("key", ["raw_data", "zip_data", "raw_meta", "zip_meta"])
def test_names_outside_the_directory_are_refused(name, key):
    with pytest.raises(FormatError, match="basename") as caught:
        read(text_of(MDS, changed(JSON, **{key: file(name)})))

    assert caught.value.path == os.path.join("data", "index.json")
    assert 0 < caught.value.offset < len(text_of(MDS, JSON))


def test_dots_that_leave_no_directory_are_names():
    shard = changed(MDS, raw_data=file("...mds/..a/b..mds"))

    assert read(text_of(shard))[0].raw_data.basename == "...mds/..a/b..mds"


@pytest.mark.parametrize(
    "name",
    ["shard.00000.mds", "./shard.00000.mds", ".//shard.00000.mds"],
)
def test_two_shards_that_name_one_file(name):
    text = text_of(MDS, changed(MDS, raw_data=file(name)))
    with pytest.raises(FormatError, match="two shards name one file") as caught:
        read(text)

    assert text[caught.value.offset :].startswith(b'{"version": 2')
    assert caught.value.member == name


def test_raw_and_zip_that_are_one_file():
    with pytest.raises(FormatError, match="name one file"):
        read(text_of(changed(JSON, zip_data=JSON["raw_meta"])))


WRONG = [
    (MDS, "version", [1, 3, "2", 2.5, None, ...]),
    (MDS, "format", ["MDS", 5, None, ["mds"], ...]),
    (MDS, "samples", [-1, 1.5, "3", None, True, 1 << 32, 10**30, ...]),
    (MDS, "compression", [5, ["zstd"], ...]),
    (MDS, "hashes", ["sha1", [1], {"sha1": 1}, ...]),
    (MDS, "size_limit", [-1, "1xb", [1], ...]),
    (MDS, "column_names", ["id", ["id"], ["id", "id"], ["id", 1], None, ...]),
    (MDS, "column_encodings", ["str", ["str"], [1, 2], None, ...]),
    (MDS, "column_sizes", [None, [8], [8, -1], [8, "8"], [8, 1 << 40], [8, True], ...]),
    (MDS, "raw_data", [None, "a", [], {}, ...]),
    (MDS, "raw_data", [file(1), file("a", "b"), file("a", -1), file("a", 1.5)]),
    (MDS, "raw_data", [file("a") | {"hashes": each} for each in ([], "x", {"a": 1})]),
    (MDS, "zip_data", ["a", [], {}, 0]),
    (JSON, "raw_meta", [None, "a", ...]),
    (JSON, "columns", [["a"], {"a": 1}, None, ...]),
    (JSON, "newline", [None, 1, ...]),
    (XSV, "newline", [None, "", 1, ...]),
    (XSV, "separator", [None, "", 1]),
]


@pytest.mark.parametrize(("shard", "key", "values"), WRONG)
def test_values_of_wrong_types_and_missing_keys(shard, key, values):
    for value in values:
        text = text_of(XSV if shard is not XSV else MDS, changed(shard, **{key: value}))
        with pytest.raises(FormatError) as caught:
            read(text)
        assert 0 <= caught.value.offset <= len(text), value
        assert "index.json" in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"[]",
        b"null",
        b"{}",
        b'{"version": 2}',
        b'{"shards": []}',
        b'{"version": 1, "shards": []}',
        b'{"version": 2, "shards": {}}',
        b'{"version": 2, "shards": [null]}',
        b'{"version": 2, "shards": [], "shards": []}',
        b'{"version": 2, "version": 2, "shards": []}',
        b'{"version": 2, "shards": []} x',
        b'{"version": 2, "shards": [], "x": NaN}',
        b'{"version": 2, "shards": [], "x": ' + b"[" * 100_000,
        b'{"version": 2, "shards": [' + b'{"a":' * 100_000,
        b'{"version": 2, "shards": [], "x": "\xff"}',
    ],
)
def test_text_that_is_not_an_index(text):
    with pytest.raises(FormatError):
        read(text)


def test_a_key_twice():
    text = text_of(MDS).replace(b'"samples": 3', b'"samples": 3, "samples": 3')
    with pytest.raises(FormatError, match="duplicate key"):
        read(text)


def test_an_index_of_a_terabyte_is_not_read(tmp_path):
    path = tmp_path / "index.json"
    path.write_bytes(text_of(MDS))
    os.truncate(path, 1 << 40)  # sparse

    with pytest.raises(FormatError, match="1,099,511,627,776 bytes; at") as caught:
        read_index(path, tmp_path)
    assert caught.value.offset == LARGEST_INDEX


def test_a_missing_index_is_a_file_not_found(tmp_path):
    with pytest.raises(FileNotFoundError):
        read_index(tmp_path / "index.json", tmp_path)


def read_or_refuse(text, problems):
    try:
        index = read(text)
        for k in range(len(index)):
            index[k].to_json()
    except FormatError as error:
        if not 0 <= error.offset <= len(text):
            problems.append(text)
        return False
    return True


def test_every_truncation_is_refused():
    text, problems = text_of(*SHARDS), []
    assert read_or_refuse(text, problems)
    for n in thin(range(len(text)), 5):
        assert not read_or_refuse(text[:n], problems)
    assert not problems


def test_every_byte_flipped_is_refused_or_read():
    text, problems = text_of(*SHARDS), []
    maker = random.Random(1)
    for n in thin(range(len(text)), 3):
        damaged = bytearray(text)
        damaged[n] ^= 1 << maker.randrange(8)
        read_or_refuse(bytes(damaged), problems)
    assert not problems


def test_pieces_put_together_at_random_are_refused_or_read():
    maker = random.Random(2)
    text, problems = text_of(*SHARDS), []
    for _ in range(1000):
        damaged = bytearray(text)
        for _ in range(maker.randrange(1, 4)):
            at, size = maker.randrange(len(damaged)), maker.randrange(40)
            start = maker.randrange(len(text))
            damaged[at : at + maker.randrange(40)] = text[start : start + size]
        read_or_refuse(bytes(damaged), problems)
    assert not problems


def many(count):
    shards = []
    for k in range(count):
        raw = file(f"shard.{k:05}.mds", sha1=f"{k:040x}", xxh64=f"{k:016x}")
        shards.append(changed(MDS, raw_data=raw, samples=k % 7))
    return text_of(*shards)


def test_many_shards_take_little_memory():  # bench/bench_mds.py: their time
    index = read(many(20_000))
    table = index.table
    assert len(index) == 20_000
    assert index[12_345].raw_data.hashes["sha1"] == f"{12_345:040x}"
    assert (table.nbytes - table.text_bytes) / len(index) < 100


def test_too_many_kinds_of_shards():
    shards = [
        changed(MDS, raw_data=file(str(k)), size_limit=k) for k in range((1 << 14) + 1)
    ]
    assert len(read(text_of(*shards[:-1])).configs) == 1 << 14
    with pytest.raises(FormatError, match="shards of more than 16,384 kinds"):
        read(text_of(*shards))


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (None, None),
        (0, 0),
        ("", ""),
        (5, 5),
        ("1kb", 1024),
        ("100kb", 102_400),
        ("1.5MB ", 3 << 19),
        ("7b", 7),
        ("7", 7),
        ("2gb", 2 << 30),
    ],
)
def test_size_limits(given, expected):
    assert parse_size_limit(given) == expected


@pytest.mark.parametrize("given", [-1, "-1kb", "x", "1xb", "kb", "1.5", "infkb"])
def test_bad_size_limits(given):
    with pytest.raises(ValueError, match="size"):
        parse_size_limit(given)
