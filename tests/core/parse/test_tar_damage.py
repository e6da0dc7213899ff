"""Damaged, truncated and hostile files: an error with the byte, or right members."""

import bz2
import gzip
import lzma
import os
import pickle
import random
import struct
import tarfile

import pytest

import fastshard
from fastshard import FastshardError, FormatError
from support.marks import LONG, SANITIZED, thin
from support.tar_blocks import END, extension, header, padded, record
from support.tars import listed, write_tar

BLOCKS = {"ustar": (tarfile.USTAR_FORMAT, 1), "pax": (tarfile.PAX_FORMAT, 1.5)}


@pytest.fixture(params=BLOCKS)
def small_tar(request, tmp_path):
    form, mtime = BLOCKS[request.param]
    data = {"a.bin": b"a" * 700, "long/" * 30 + "b": b"b" * 10, "c": b""}
    if request.param == "ustar":
        data = {"a.bin": b"a" * 700, "b": b"b" * 10, "c": b""}
    return write_tar(tmp_path / "s.tar", data, form=form, mtime=mtime)


def test_every_truncation_is_refused_or_ends_on_a_member(small_tar):
    whole = small_tar.read_bytes()
    members = listed(small_tar)
    ends = {0, *(offset + -(-size // 512) * 512 for _, offset, size in members)}
    last = max(ends)

    for n in thin(range(len(whole)), 3):
        if n > last + 1024 and n % 512:
            continue
        small_tar.write_bytes(whole[:n])
        try:
            found = listed(small_tar)
        except FormatError as error:
            assert 0 <= error.offset <= n
            assert n < last + 512  # a header is a whole block
            assert n not in ends or n == 0
        else:
            assert n in ends or n >= last + 512
            assert found == members[: len(found)]
            assert all(offset + size <= n for _, offset, size in found)


def other_values(byte):
    """Return a few other values for a byte."""
    return {byte ^ 1, byte ^ 0x80, 0, 0x20, 0x37, 0x39, 0xFF} - {byte}


def test_every_changed_header_byte_is_refused_or_harmless(small_tar):
    whole = small_tar.read_bytes()
    members = listed(small_tar)
    end = max(offset + -(-size // 512) * 512 for _, offset, size in members)
    payload = {at for _, offset, size in members for at in range(offset, offset + size)}
    refused = 0
    for at in thin(range(end), 5):
        if at in payload:
            continue
        for value in other_values(whole[at]):
            changed = bytearray(whole)
            changed[at] = value
            small_tar.write_bytes(changed)
            try:
                found = listed(small_tar)
            except FormatError as error:
                assert error.path == str(small_tar)
                assert 0 <= error.offset <= len(whole)
                refused += 1
            else:  # padding of a checksum or of data
                assert len(found) == len(members)
                assert [extent[1:] for extent in found] == [m[1:] for m in members]
    assert refused > (4000 if LONG else 800)


@pytest.mark.parametrize("seed", thin(range(60), 3 if SANITIZED else 2))
def test_random_damage_is_refused_or_read(small_tar, seed):
    rng = random.Random(seed)
    whole = small_tar.read_bytes()[: 512 * 14]
    for _ in range(40):
        changed = bytearray(whole)
        for _ in range(rng.choice([1, 2, 5, 50])):
            kind = rng.randrange(4)
            at = rng.randrange(len(changed))
            if kind == 0:
                changed[at] = rng.randrange(256)
            elif kind == 1:
                del changed[at : at + rng.choice([1, 7, 512])]
            elif kind == 2:
                changed[at:at] = rng.randbytes(rng.choice([1, 512]))
            else:
                changed[at : at + 512] = whole[:512]
            changed = changed or bytearray(1)
        fix_checksums(changed)
        small_tar.write_bytes(changed)
        for mode in ("mmap", "pread"):
            try:
                with fastshard.open_shard(small_tar, mode=mode) as shard:
                    for view, size in zip(shard, shard.sizes.tolist(), strict=True):
                        assert len(bytes(view)) == size
                    for name in shard.names:
                        assert name in shard
                    assert len(shard.samples) <= len(shard)
            except FormatError:
                pass


def fix_checksums(data):
    """Correct the checksums of damaged headers, so that the parser accepts them."""
    for at in range(0, len(data) - 511, 512):
        block = data[at : at + 512]
        block[148:156] = b" " * 8
        if any(block):
            data[at + 148 : at + 156] = b"%06o\0 " % sum(block)


@pytest.mark.parametrize(
    ("blocks", "reason", "offset"),
    [
        ([b""], "empty", 0),
        ([b"\1"], "inside a header", 0),
        ([b"\xee" * 512], "checksum", 0),
        ([b"\xee" * 5000], "checksum", 0),
        ([b"x" * 5000], "expected a tar, got a text file", 0),
        ([header(checksum=b"0000000\0"), END], "checksum", 0),
        ([header(checksum=b"not oct\0"), END], "checksum", 0),
        ([header(size=b"-1".ljust(12, b"\0")), END], "size", 124),
        ([header(size=b"\xff" * 12), END], "size", 124),
        ([header(size=b"\x80" + b"\xff" * 11), END], "size", 124),
        ([header(size=b"\x80\0\0\0\x80" + bytes(7)), END], "size", 124),
        ([header(size=b"\x81" + bytes(11)), END], "size", 124),
        ([header(size=b"1 2".ljust(12, b"\0")), END], "size", 124),
        ([header(size=b"9".ljust(12, b"\0")), END], "size", 124),
        ([header(size=b"\x80\0\0\0\x7f" + b"\xff" * 7), END], "ends inside", 0),
        ([header(size=b"7" * 11 + b"\0"), END], "ends inside", 0),
        ([header(), b"abc"], "padding", 0),
        ([header(), b"ab"], "data", 0),
        ([header()], "data", 0),
        ([header(), padded(b"abc"), b"x" * 100], "inside a header", 1024),
        (
            [header(), padded(b"abc"), bytes(512), padded(b"abc"), END],
            "a block of zeros is followed",
            1024,
        ),
        ([extension(b"x", record(b"path", b"p"))], "not followed by a member", 1024),
        (
            [extension(b"x", record(b"path", b"p")), END],
            "not followed by a member",
            1024,
        ),
        ([extension(b"L", b"long\0"), END], "not followed by a member", 1024),
        ([extension(b"K", b"long\0"), END], "not followed by a member", 1024),
        ([header(kind=b"x", size=b"%011o\0" % 2000), padded(b"abc")], "extension", 0),
        (
            [header(kind=b"x", size=b"%011o\0" % (1 << 20 | 1)), bytes(1 << 21)],
            "exceeds 1 MiB",
            0,
        ),
        ([header(kind=b"L", size=b"%011o\0" % (1 << 30)), END], "exceeds 1 MiB", 0),
        ([header(kind=b"x", size=b"\xff" * 12), END], "size", 124),
    ],
)
def test_faults_have_the_reason_and_the_byte(opened, blocks, reason, offset):
    with pytest.raises(FormatError, match=reason) as caught:
        opened(*blocks)
    error = caught.value
    assert error.offset == offset
    assert error.path.endswith("hand.tar")
    assert f"byte {offset:,}" in str(error)
    assert isinstance(error, FastshardError)
    again = pickle.loads(pickle.dumps(error))
    assert str(again) == str(error)


@pytest.mark.parametrize(
    ("text", "at"),
    [
        (b"x", 0),
        (b"12", 0),
        (b"5 a=b", 0),
        (b" 6 a=b\n", 0),
        (b"0 a=b\n", 0),
        (b"-6 a=b\n", 0),
        (b"+6 a=b\n", 0),
        (b"06x a=b\n", 0),
        (b"6 a=bc\n", 0),
        (b"7 a=b\n", 0),
        (b"99999999 a=b\n", 0),
        (b"18446744073709551616 a=b\n", 0),
        (b"5 ab\n", 0),
        (b"5 =b\n", 0),
        (b"2 ", 0),
        (b"3 \n", 0),
        (b"1 a=b\n", 0),
        (record(b"a", b"b") + b"junk", 6),
        (record(b"a", b"b") + b"\0junk", 6),
        (record(b"path", b"a\0b"), 0),
        (record(b"a", b"b") + record(b"size", b"-1"), 6),
        (record(b"size", b"1x"), 0),
        (record(b"size", b"9" * 19), 0),
        (record(b"size", b"9" * 30), 0),
        (record(b"size", b"0x1"), 0),
    ],
)
def test_malformed_pax_records_are_refused(opened, text, at):
    for kind in (b"x", b"g"):
        with pytest.raises(FormatError, match=r"pax|size|NUL") as caught:
            opened(extension(kind, text), header(), padded(b"abc"), END)
        assert caught.value.offset == 512 + at


def test_the_error_of_a_truncated_member_names_it(opened):
    with pytest.raises(FormatError) as caught:
        opened(header(b"first"), padded(b"abc"), header(b"second"))
    assert caught.value.member == "second"
    assert "'second'" in str(caught.value)
    assert caught.value.offset == 1024


@pytest.mark.parametrize(
    ("name", "compress"),
    [
        ("gzip", gzip.compress),
        ("bzip2", bz2.compress),
        ("xz", lzma.compress),
        ("zstd", lambda data: b"\x28\xb5\x2f\xfd" + data),
        ("lz4", lambda data: b"\x04\x22\x4d\x18" + data),
    ],
)
def test_a_compressed_file_is_recognised(shard_path, name, compress):
    shard_path.write_bytes(compress(shard_path.read_bytes()))
    with pytest.raises(FormatError, match=f"{name}.*decompress"):
        fastshard.open_shard(shard_path)
    shard_path.write_bytes(compress(b"")[:8])
    with pytest.raises(FormatError, match=name):
        fastshard.open_shard(shard_path)


def test_a_tar_whose_first_name_looks_compressed_is_a_tar(make_tar):
    path = make_tar({"BZh9": b"x"})
    with fastshard.open_shard(path) as shard:
        assert shard["BZh9"] == b"x"


def test_directories_and_devices_are_refused_without_waiting(tmp_path):
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    for path, kind in [
        (tmp_path, "a directory"),
        (fifo, "a FIFO"),
        ("/dev/zero", "a character device"),
    ]:
        with pytest.raises(FormatError, match=kind) as caught:
            fastshard.open_shard(path)
        assert caught.value.path == str(path)


def test_a_missing_file_is_an_os_error(tmp_path):
    with pytest.raises(FileNotFoundError) as caught:
        fastshard.open_shard(tmp_path / "absent.tar")
    assert caught.value.filename == str(tmp_path / "absent.tar")


def test_files_are_closed_after_a_refusal(tmp_path):
    path = tmp_path / "bad.tar"
    path.write_bytes(b"x" * 5000)
    before = len(os.listdir("/proc/self/fd"))
    for mode in ("mmap", "private", "pread"):
        for _ in range(20):
            with pytest.raises(FormatError):
                fastshard.open_shard(path, mode=mode)
    assert len(os.listdir("/proc/self/fd")) == before


def test_pread_reports_a_truncated_file(shard_path, members):
    with fastshard.open_shard(shard_path, mode="pread") as shard:
        kept = shard["000.jpg"]
        os.truncate(shard_path, 600)
        assert kept == members["000.jpg"]
        for call in (shard.__getitem__, shard.read):
            with pytest.raises(FormatError, match="ends here") as caught:
                call("000.jpg")
            assert caught.value.offset == 600
        with pytest.raises(FormatError):
            shard.array("000.jpg", "u1")


def test_a_long_chain_of_extension_headers_is_walked_without_recursion(opened):
    chain = extension(b"x", record(b"mtime", b"1.5")) * 20_000
    shard = opened(chain, header(), padded(b"abc"), END)
    assert shard[0] == b"abc"


def test_headers_of_many_megabytes_are_walked(opened):
    """The size of a member's headers, up to a limit, is the guess for the next."""
    chain = extension(b"x", record(b"comment", b"c" * 900_000)) * 5
    large = header(b"large", size=b"%011o\0" % (3 << 20)) + bytes(3 << 20)
    shard = opened(chain, large, large, header(b"last"), padded(b"abc"), END)
    assert list(shard.names) == ["large", "large", "last"]
    assert shard["last"] == b"abc"
    chain = extension(b"x", record(b"mtime", b"1.5")) * 20_000
    shard = opened(chain, header(), padded(b"abc"), large * 9, END)
    assert len(shard) == 10


@pytest.mark.parametrize("kind", [b"L", b"K", b"x"])
def test_the_extension_headers_of_one_member_have_a_limit(opened, kind):
    data = b"n" * 1_000_000
    one = extension(kind, record(b"comment", data) if kind == b"x" else data)
    assert (
        len(
            opened(
                one * 60,
                header(),
                padded(b"abc"),
                one * 60,
                header(b"n"),
                padded(b"abc"),
                END,
            )
        )
        == 2
    )
    with pytest.raises(FormatError, match="64 MiB") as caught:
        opened(one * 70, header(), padded(b"abc"), END)
    assert caught.value.offset == 67 * len(one)


def test_many_empty_members_are_read(opened):
    shard = opened(header(b"same", size=b"") * 50_000, END)
    assert len(shard) == 50_000
    assert shard.position("same") == 49_999


def test_random_fields_with_a_valid_checksum_are_refused_or_read(tmp_path):
    path = tmp_path / "s.tar"
    rng = random.Random(5)
    for _ in range(500):
        block = bytearray(rng.randbytes(512))
        block[124:136] = struct.pack(">BxxxQ", 0x80, rng.getrandbits(rng.randrange(64)))
        block[156] = rng.choice(b"\x000123567xgLKSMDVXZ")
        fix_checksums(block)
        path.write_bytes(block + rng.randbytes(rng.randrange(2048)))
        try:
            with fastshard.open_shard(path) as shard:
                assert all(len(view) <= 2048 for view in shard)
        except FormatError:
            pass
