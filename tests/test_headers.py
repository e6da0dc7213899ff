"""Single headers and pax records, built by hand."""

import pytest

from blocks import END, extension, header, padded, record
from conftest import listed, listed_by_tarfile


def test_the_builder_of_headers_is_right(opened, tmp_path):
    shard = opened(header(), padded(b"abc"), END)
    assert list(shard.names) == ["m.bin"]
    assert shard[0] == b"abc"
    assert listed(tmp_path / "hand.tar") == listed_by_tarfile(tmp_path / "hand.tar")


@pytest.mark.parametrize(
    "size",
    [
        b"3".ljust(12, b"\0"),
        b"00000000003 ",
        b"000000000003",
        b"          3 ",
        b"3           ",
        b"\x80" + b"\0" * 10 + b"\3",
        b"  3\0garbage!",
    ],
)
def test_ways_to_write_a_number(opened, size):
    assert opened(header(size=size), padded(b"abc"), END)[0] == b"abc"


def test_a_size_field_of_nothing_is_zero(opened):
    shard = opened(header(size=b"\0" * 12), header(b"n"), padded(b"abc"), END)
    assert list(shard.sizes) == [0, 3]


def test_old_checksums_are_sums_of_signed_bytes(opened):
    block = bytearray(header(b"\xff\xfe.bin"))
    block[148:156] = b" " * 8
    signed = sum(byte - 256 if byte > 127 else byte for byte in block)
    assert (
        opened(
            header(b"\xff\xfe.bin", checksum=b"%06o\0 " % signed), padded(b"abc"), END
        )[0]
        == b"abc"
    )


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"prefix": b"dir"}, "dir/m.bin"),
        ({"prefix": b"p" * 155}, "p" * 155 + "/m.bin"),
        ({"prefix": b"dir", "magic": b"ustar  \0"}, "m.bin"),
        ({"prefix": b"dir", "magic": bytes(8)}, "m.bin"),
        ({"prefix": b"p" * 131 + b"12345", "tail": b"tar\0"}, "p" * 131 + "/m.bin"),
        ({"name": b"n" * 100, "prefix": b"p" * 155}, "p" * 155 + "/" + "n" * 100),
        ({"name": b""}, ""),
    ],
)
def test_prefixes(opened, fields, name):
    assert list(opened(header(**fields), padded(b"abc"), END).names) == [name]


@pytest.mark.parametrize(
    ("kind", "what", "stored"),
    [
        (b"1", "hard link", 0),
        (b"2", "symbolic link", 0),
        (b"3", "character device", 0),
        (b"4", "block device", 0),
        (b"5", "directory", 0),
        (b"6", "FIFO", 0),
        (b"V", "metadata", 3),
        (b"Z", "unknown", 3),
        (b"A", "metadata", 3),
        (b"\xff", "unknown", 3),
    ],
)
def test_what_is_no_member_is_counted(opened, kind, what, stored):
    shard = opened(
        header(b"a"),
        padded(b"abc"),
        header(b"b", kind),
        padded(b"xyz") * (stored > 0),
        header(b"c"),
        padded(b"def"),
        END,
    )
    assert list(shard.names) == ["a", "c"]
    assert dict(shard.skipped) == {what: 1}
    assert shard["c"] == b"def"


def test_a_v7_name_that_ends_in_a_slash_is_a_directory(opened):
    shard = opened(header(b"d/", b"\0"), header(b"f", b"\0"), padded(b"abc"), END)
    assert list(shard.names) == ["f"]
    assert dict(shard.skipped) == {"directory": 1}


def test_contiguous_files_are_files(opened):
    assert opened(header(kind=b"7"), padded(b"abc"), END)[0] == b"abc"


@pytest.mark.parametrize(
    ("records", "name", "size"),
    [
        (record(b"path", b"long/name"), "long/name", 3),
        (record(b"size", b"2"), "m.bin", 2),
        (record(b"path", b"a") + record(b"path", b"b"), "b", 3),
        (record(b"path", b"a") + record(b"path", b""), "m.bin", 3),
        (record(b"size", b"1") + record(b"size", b""), "m.bin", 3),
        (record(b"path", b"x=y\nz"), "x=y\nz", 3),
        (record(b"mtime", b"1.5") + record(b"comment", b"\xff"), "m.bin", 3),
        (record(b"paths", b"n") + record(b"pat", b"n"), "m.bin", 3),
        (record(b"path", b"p" * 100_000), "p" * 100_000, 3),
        (record(b"path", b"p") + bytes(9), "p", 3),
        (record(b"GNU.volume.label", b"p"), "m.bin", 3),
        (record(b"SCHILY.realsize", b"3"), "m.bin", 3),
        (b"", "m.bin", 3),
    ],
)
@pytest.mark.parametrize("kind", [b"x", b"X", b"g"])
def test_pax_records(opened, kind, records, name, size):
    shard = opened(extension(kind, records), header(), padded(b"abc"), END)
    assert list(shard.names) == [name]
    assert shard[0] == b"abc"[:size]


def test_a_pax_size_counts_where_the_header_cannot_say(opened):
    whole = record(b"size", b"3")
    shard = opened(
        extension(b"x", whole),
        header(size=b"garbage?"),
        padded(b"abc"),
        header(b"n"),
        padded(b"def"),
        END,
    )
    assert [bytes(view) for view in shard] == [b"abc", b"def"]


def test_extension_headers_count_for_one_member(opened):
    shard = opened(
        extension(b"x", record(b"path", b"first")),
        header(),
        padded(b"abc"),
        header(b"second"),
        padded(b"def"),
        END,
    )
    assert list(shard.names) == ["first", "second"]


def test_global_headers_count_until_the_next(opened):
    shard = opened(
        extension(b"g", record(b"path", b"g")),
        header(b"1"),
        padded(b"abc"),
        header(b"2"),
        padded(b"abc"),
        extension(b"x", record(b"path", b"own")),
        header(b"3"),
        padded(b"abc"),
        extension(b"x", record(b"path", b"")),
        header(b"4"),
        padded(b"abc"),
        extension(b"g", record(b"path", b"h")),
        header(b"5"),
        padded(b"abc"),
        extension(b"g", record(b"path", b"")),
        header(b"6"),
        padded(b"abc"),
        END,
    )
    assert list(shard.names) == ["g", "g", "own", "4", "h", "6"]


@pytest.mark.parametrize(
    "blocks",
    [
        [extension(b"L", b"gnu\0"), extension(b"x", record(b"path", b"pax"))],
        [extension(b"x", record(b"path", b"pax")), extension(b"L", b"gnu\0")],
        [
            extension(b"x", record(b"path", b"1")),
            extension(b"x", record(b"path", b"2")),
        ],
        [extension(b"L", b"1\0"), extension(b"L", b"2\0")],
        [extension(b"K", b"target\0"), extension(b"L", b"gnu\0")],
        [extension(b"L", b"gnu")],
        [extension(b"L", b"gnu\0and more")],
        [
            extension(b"x", record(b"size", b"2")),
            extension(b"x", record(b"path", b"p")),
        ],
        [
            extension(b"x", record(b"mtime", b"2.5")),
            extension(b"x", record(b"size", b"2")),
        ],
    ],
)
def test_several_extension_headers_count_as_for_tarfile(opened, tmp_path, blocks):
    opened(*blocks, header(), padded(b"abc"), header(b"n"), padded(b"def"), END)
    path = tmp_path / "hand.tar"
    assert listed(path) == listed_by_tarfile(path)
    assert listed(path)[1][0] == "n"
