"""Single headers and pax records, built by hand."""

import subprocess
from array import array

import pytest

import fastshard
from fastshard._core.io.source import LocalFile
from fastshard._core.parse.tar import scan_header_starts
from support.inside.datasets import shards_of
from support.marks import needs
from support.tar_blocks import END, extension, header, padded, record
from support.tars import listed, listed_by_tarfile


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
def test_notations_of_a_number(opened, size):
    assert opened(header(size=size), padded(b"abc"), END)[0] == b"abc"


def test_an_empty_size_field_is_zero(opened):
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
    ("kind", "label", "stored"),
    [
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
def test_entries_that_are_not_files_are_skipped_and_counted(
    opened, kind, label, stored
):
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
    assert dict(shard.skipped) == {label: 1}
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
        (record(b"size", b"0002"), "m.bin", 2),
        (record(b"size", b"0" * 5000 + b"2"), "m.bin", 2),
        (record(b"size", b"000") + record(b"size", b"3"), "m.bin", 3),
        (b"0" * 30 + b"40 path=p\n", "p", 3),
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


def test_a_pax_size_replaces_an_invalid_size_field(opened):
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


def test_an_extension_header_applies_to_one_member(opened):
    shard = opened(
        extension(b"x", record(b"path", b"first")),
        header(),
        padded(b"abc"),
        header(b"second"),
        padded(b"def"),
        END,
    )
    assert list(shard.names) == ["first", "second"]


def test_a_global_header_applies_until_the_next(opened):
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
        [extension(b"K", b"target\0"), extension(b"L", b"gnu\0")],
        [extension(b"L", b"gnu")],
        [extension(b"L", b"gnu\0and more")],
    ],
)
def test_several_extension_headers_are_read_as_by_tarfile(opened, tmp_path, blocks):
    opened(*blocks, header(), padded(b"abc"), header(b"n"), padded(b"def"), END)
    path = tmp_path / "hand.tar"
    assert listed(path) == listed_by_tarfile(path)
    assert listed(path)[1][0] == "n"


def pax(**values):
    records = [record(key.encode(), value) for key, value in values.items()]
    return extension(b"x", b"".join(records))


def long_name(name):
    return extension(b"L", name + b"\0")


REPEATED = {
    "two long names": ([long_name(b"one"), long_name(b"two")], "two", 3),
    "three long names": ([long_name(b"%d" % i) for i in range(3)], "2", 3),
    "a link's name between": (
        [long_name(b"one"), extension(b"K", b"t\0"), long_name(b"two")],
        "two",
        3,
    ),
    "two paths": ([pax(path=b"one"), pax(path=b"two")], "two", 3),
    "two sizes": ([pax(size=b"2"), pax(size=b"1")], "m.bin", 1),
    "path, time": ([pax(path=b"one"), pax(mtime=b"1.5")], "m.bin", 3),
    "size, path": ([pax(size=b"2"), pax(path=b"p")], "p", 3),
    "time, size": ([pax(mtime=b"2.5"), pax(size=b"2")], "m.bin", 2),
    "type of Solaris, then pax": (
        [extension(b"X", record(b"path", b"one")), pax(path=b"two")],
        "two",
        3,
    ),
}


def names_by(program, path):
    """Return the names that another program lists; bsdtar continues after an error."""
    command = [needs(program)] + ["tar"] * (program == "busybox") + ["-tf", path]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0 or program == "bsdtar"
    return done.stdout.splitlines()


@pytest.mark.parametrize("case", REPEATED)
def test_the_last_of_repeated_extension_headers_applies(opened, tmp_path, case):
    blocks, name, size = REPEATED[case]
    shard = opened(*blocks, header(), padded(b"abc"), header(b"n"), padded(b"def"), END)
    assert list(shard.names) == [name, "n"]
    assert [bytes(view) for view in shard] == [b"abc"[:size], b"def"]
    for program in ("tar", "bsdtar"):
        assert names_by(program, tmp_path / "hand.tar") == [name, "n"]
        out = tmp_path / program
        out.mkdir()
        command = [program, "-xf", tmp_path / "hand.tar", "-C", out]
        subprocess.run(command, capture_output=True)
        assert (out / name).read_bytes() == b"abc"[:size]
    if case in ("two long names", "three long names", "two paths"):
        assert names_by("busybox", tmp_path / "hand.tar") == [name, "n"]


BLANKS = [b"00000000003\t", b"3\n", b"\t3", b"3 \r", b" \v 3\f", b"3\n\0junk"]


@pytest.mark.parametrize("size", BLANKS)
@pytest.mark.parametrize("kind", [b"0", b"x"])
def test_a_size_field_with_other_white_space_is_read(opened, tmp_path, size, kind):
    """GNU tar and `tarfile` strip it; libarchive reads what ends in it."""
    if kind == b"0":
        blocks = [header(b"a"), padded(b"abc"), header(size=size), padded(b"abc"), END]
    else:  # three bytes of an extension header: no record, but zeros
        blocks = [header(b"e", b"x", size=size), bytes(512), header(), padded(b"abc")]
    shard = opened(*blocks, END)
    assert shard["m.bin"] == b"abc"
    path = tmp_path / "hand.tar"
    assert listed(path) == listed_by_tarfile(path)
    names = subprocess.run([needs("tar"), "-tf", path], capture_output=True, text=True)
    assert names.stdout.splitlines() == list(shard.names)


@pytest.mark.parametrize("end", [b"\t", b"\n", b"\r", b" ", b"\0\n"])
def test_a_checksum_with_other_white_space_is_read(opened, end):
    digits = bytes(header())[148:154]
    shard = opened(header(checksum=(digits + end).ljust(8, b"\0")), padded(b"abc"), END)
    assert shard["m.bin"] == b"abc"


@pytest.mark.parametrize("mtime", [b"3\t", b"x", b"3 4", b"\xff" * 12])
def test_other_numbers_of_a_header_are_not_read(opened, mtime):
    block = bytearray(header())
    block[136 : 136 + len(mtime)] = mtime
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    assert opened(bytes(block), padded(b"abc"), END)["m.bin"] == b"abc"


@pytest.mark.parametrize("size", [b"3x", b"3 4", b"3\x1b", b"8", b"3\n4"])
def test_a_size_field_with_other_bytes_is_refused(opened, size):
    with pytest.raises(fastshard.FormatError, match="invalid size") as caught:
        opened(header(size=size), padded(b"abc"), END)
    assert caught.value.offset == 124


def test_members_behind_a_lone_block_of_zeros_are_read_with_a_warning(tmp_path):
    """Others end there: GNU tar with a warning, libarchive and `tarfile` without."""
    path, zeros = tmp_path / "t.tar", bytes(512)
    blocks = [header(b"%d" % i) + padded(b"abc") for i in range(3)]
    for parts, at in [
        ([blocks[0], zeros, blocks[1], zeros, blocks[2], END], 1024),
        ([zeros, *blocks, END], 0),
        ([*blocks[:2], zeros, blocks[2]], 2048),
        ([*blocks[:2], zeros, blocks[2], zeros], 2048),
    ]:
        path.write_bytes(b"".join(parts))
        with pytest.warns(fastshard.UnreadEntryWarning, match=f"at byte {at:,} "):
            shard = fastshard.open_shard(path)
        assert list(shard.names) == ["0", "1", "2"]
        assert shard.lone_zeros == at
        with LocalFile(path) as file:
            starts = array("Q", scan_header_starts(file)[1])
        names = [path.read_bytes()[start : start + 1] for start in starts]
        assert names == [b"0", b"1", b"2"]
        with pytest.warns(fastshard.UnreadEntryWarning), fastshard.open(path) as ds:
            assert shards_of(ds).member(2)[0].read(2) == b"abc"
    path.write_bytes(b"".join([blocks[0], END, blocks[1], END]))
    assert list(fastshard.open_shard(path).names) == ["0"]  # two blocks end it


def test_leading_zeros_of_a_size_are_read_as_by_other_programs(opened, tmp_path):
    blocks = pax(size=b"0" * 40 + b"2"), header(), padded(b"abc"), END
    assert opened(*blocks)[0] == b"ab"
    path = tmp_path / "hand.tar"
    assert listed(path) == listed_by_tarfile(path)
    for program in ("tar", "bsdtar"):
        command = [needs(program), "-xOf", path]
        done = subprocess.run(command, capture_output=True, check=True)
        assert done.stdout == b"ab"


def test_a_later_extension_header_does_not_hide_an_unsupported_one(opened):
    sparse = extension(b"x", record(b"GNU.sparse.major", b"1"))
    with pytest.raises(fastshard.FormatError, match="sparse"):
        opened(sparse, pax(mtime=b"1.5"), header(), padded(b"abc"), END)
