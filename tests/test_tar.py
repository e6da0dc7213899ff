"""Dialects of tar, with the standard library and other programs as oracles."""

import gc
import io
import os
import random
import subprocess
import tarfile

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import fastshard
from fastshard import FormatError

from conftest import listed, listed_by_tarfile, needs, not_sanitized, write_tar

FORMATS = {
    "ustar": tarfile.USTAR_FORMAT,
    "gnu": tarfile.GNU_FORMAT,
    "pax": tarfile.PAX_FORMAT,
}
SIZES = [0, 1, 511, 512, 513, 1023, 1024, 100_000, 300_000]


@pytest.mark.parametrize("mtime", [1, 1.5])
@pytest.mark.parametrize("form", FORMATS.values(), ids=FORMATS)
def test_same_members_as_tarfile(tmp_path, form, mtime):
    rng = random.Random(0)
    data = {f"{i}/{n}.bin": rng.randbytes(n) for i, n in enumerate(SIZES * 20)}
    path = write_tar(tmp_path / "s.tar", data, form=form, mtime=mtime)
    assert listed(path) == listed_by_tarfile(path)
    for mode in ("mmap", "private", "pread"):
        with fastshard.open_shard(path, mode=mode) as shard:
            assert {
                n: bytes(v) for n, v in zip(shard.names, shard, strict=True)
            } == data


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_webdataset_gives_every_member_a_pax_header(tmp_path):
    wds = pytest.importorskip("webdataset")
    path = tmp_path / "s.tar"
    with wds.TarWriter(str(path)) as writer:
        for i in range(300):
            sample = {"__key__": f"d/{i:06d}", "cls": str(i), "jpg": b"\xff" * i}
            writer.write(sample)
    with fastshard.open_shard(path) as shard:
        assert int(shard.offsets[0]) == 1536
        assert listed(path) == listed_by_tarfile(path)
        assert [s.text("cls") for s in shard.samples] == list(map(str, range(300)))
    theirs = wds.WebDataset(str(path), shardshuffle=False, empty_check=False)
    theirs = list(theirs)
    gc.collect()  # it leaves its file open: not our warning
    with fastshard.open_shard(path) as shard:
        ours = [
            {"__key__": s.key, **{f: bytes(s[f]) for f in s}} for s in shard.samples
        ]
        for sample, own in zip(theirs, ours, strict=True):
            assert {k: v for k, v in sample.items() if k in own} == own


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    """Files, an empty one, long names, links, a directory, a FIFO."""
    root = tmp_path_factory.mktemp("tree")
    rng = random.Random(1)
    long = "/".join(["d" * 60] * 3)
    very_long = "/".join(["e" * 90] * 6)
    for name, size in [
        ("a.bin", 700),
        ("empty", 0),
        ("große Datei.txt", 5),
        ("block", 512),
        (f"{long}/x.bin", 10),
        (f"{very_long}/{'f' * 120}.bin", 20),
        ("n" * 100, 3),
        ("q" * 101, 4),
        ("new\nline", 6),
    ]:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(rng.randbytes(size))
    (root / "link").symlink_to("a.bin")
    (root / "hard").hardlink_to(root / "a.bin")
    os.mkfifo(root / "fifo")
    return root


def contents(root):
    """What the files of a tree hold, each once whatever links to it."""
    files = [path for path in root.rglob("*") if path.is_file()]
    return sorted({path.stat().st_ino: path.read_bytes() for path in files}.values())


@pytest.mark.parametrize("form", ["v7", "oldgnu", "gnu", "ustar", "posix"])
def test_same_members_as_tarfile_in_what_gnu_tar_writes(tree, tmp_path, form):
    path = tmp_path / "s.tar"
    command = [
        needs("tar"),
        "--sort=name",
        f"--format={form}",
        "-cf",
        path,
        "-C",
        tree,
        ".",
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    if form not in ("v7", "ustar"):  # those two leave out what they cannot name
        assert done.returncode == 0
    assert listed(path) == listed_by_tarfile(path)
    with fastshard.open_shard(path) as shard:
        assert shard.skipped["hard link"] == shard.skipped["symbolic link"] == 1
        if form not in ("v7", "ustar"):
            folders = sum(path.is_dir() for path in tree.rglob("*")) + 1
            assert shard.skipped["directory"] == folders
            assert shard.skipped["FIFO"] == 1
            assert sorted(map(bytes, shard)) == contents(tree)


@pytest.mark.parametrize("form", ["ustar", "pax", "gnutar", "v7"])
def test_same_members_as_tarfile_in_what_bsdtar_writes(tree, tmp_path, form):
    path = tmp_path / "s.tar"
    command = [needs("bsdtar"), f"--format={form}", "-cf", path, "-C", tree, "."]
    subprocess.run(command, capture_output=True)
    assert listed(path) == listed_by_tarfile(path)
    assert len(listed(path)) >= 5


def test_same_members_as_tarfile_in_what_busybox_writes(tree, tmp_path):
    path = tmp_path / "s.tar"
    subprocess.run([needs("busybox"), "tar", "-cf", path, "-C", tree, "."], check=True)
    assert listed(path) == listed_by_tarfile(path)


@pytest.mark.parametrize("form", ["gnu", "posix"])
def test_gnu_tar_lists_and_reads_the_same(tree, tmp_path, form):
    path = tmp_path / "s.tar"
    tar = needs("tar")
    subprocess.run([tar, f"--format={form}", "-cf", path, "-C", tree, "."], check=True)
    with fastshard.open_shard(path) as shard:
        for name in shard.names:
            out = subprocess.run([tar, "-xOf", path, name], capture_output=True)
            if "hard" not in name and "a.bin" not in name:
                assert shard[name] == out.stdout
        assert sum(shard.skipped.values()) + len(shard) == len(
            subprocess.run([tar, "-tf", path], capture_output=True).stdout.splitlines()
        )


name_parts = st.text(
    st.characters(min_codepoint=1, codec="utf-8", exclude_characters="/"),
    min_size=1,
    max_size=60,
)
member_names = st.lists(name_parts, min_size=1, max_size=6).map("/".join)


@settings(deadline=None, max_examples=200)
@example(form="pax", extra={"x": 0}, mtime=0.25)
@given(
    form=st.sampled_from(["gnu", "pax"]),
    extra=st.dictionaries(member_names, st.integers(0, 3000), max_size=8),
    mtime=st.sampled_from([0, 0.25]),
)
def test_any_names_and_sizes(tmp_path_factory, form, extra, mtime):
    path = tmp_path_factory.mktemp("h") / "s.tar"
    data = {name: name.encode()[:1] * size for name, size in extra.items()}
    write_tar(path, data, form=FORMATS[form], mtime=mtime)
    assert listed(path) == listed_by_tarfile(path)
    with fastshard.open_shard(path) as shard:
        assert {n: bytes(v) for n, v in zip(shard.names, shard, strict=True)} == data
        assert all(shard.names[shard.position(name)] == name for name in data)


@pytest.mark.parametrize("form", FORMATS.values(), ids=FORMATS)
def test_names_that_are_not_utf8(tmp_path, form):
    path = tmp_path / "s.tar"
    name = os.fsdecode(b"\xff\xfe-\xe4.bin")
    with tarfile.open(path, "w", format=form, errors="surrogateescape") as tar:
        member = tarfile.TarInfo(name)
        member.size = 3
        tar.addfile(member, io.BytesIO(b"abc"))
    with fastshard.open_shard(path) as shard:
        assert list(shard.names) == [name]
        assert shard[name] == b"abc"


@pytest.mark.parametrize("padding", [0, 512, 1024, 1536, 10_240, 20_000])
def test_any_padding_at_the_end(make_tar, padding):
    path = make_tar({"a": b"1" * 700, "b": b"2"})
    body = path.read_bytes()[: 512 + 1024 + 1024]
    path.write_bytes(body + bytes(padding))
    assert [name for name, _, _ in listed(path)] == ["a", "b"]


def header(name=b"m.bin", kind=b"0", size=b"%011o\0" % 3, **fields):
    """Build a header by hand; the checksum is right unless it is given."""
    block = bytearray(512)
    block[: len(name)] = name
    block[124 : 124 + len(size)] = size
    block[156:157] = kind
    block[257:265] = fields.get("magic", b"ustar\x0000")
    prefix = fields.get("prefix", b"")
    block[345 : 345 + len(prefix)] = prefix
    block[508:512] = fields.get("tail", bytes(4))
    block[148:156] = b" " * 8
    block[148:156] = fields.get("checksum", b"%06o\0 " % sum(block))
    return bytes(block)


def padded(data):
    return data + bytes(-len(data) % 512)


def extension(kind, data, **fields):
    return header(b"ext", kind, b"%011o\0" % len(data), **fields) + padded(data)


def record(key, value):
    """A pax record: its length counts its own digits."""
    body = b" " + key + b"=" + value + b"\n"
    length = len(body) + len(str(len(body)))
    length = len(body) + len(str(length))
    return b"%d" % length + body


END = bytes(1024)


@pytest.fixture
def opened(tmp_path):
    """Open a tar made of blocks."""

    def open_blocks(*blocks, **options):
        path = tmp_path / "hand.tar"
        path.write_bytes(b"".join(blocks))
        return fastshard.open_shard(path, **options)

    return open_blocks


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


@pytest.mark.parametrize("form", ["oldgnu", "gnu", "posix", "0.0", "0.1", "1.0"])
def test_sparse_members_are_refused_by_name(tmp_path, form):
    (tmp_path / "holes.bin").write_bytes(b"")
    os.truncate(tmp_path / "holes.bin", 1 << 20)
    with open(tmp_path / "holes.bin", "r+b") as file:
        file.seek(500_000)
        file.write(b"x" * 5000)
    options = [f"--format={form}"]
    if form[0] in "01":
        options = ["--format=posix", f"--sparse-version={form}"]
    path = tmp_path / "s.tar"
    subprocess.run(
        [needs("tar"), *options, "-Scf", path, "-C", tmp_path, "holes.bin"], check=True
    )
    with pytest.raises(FormatError, match="sparse") as caught:
        fastshard.open_shard(path)
    assert caught.value.member == "holes.bin"


def test_incremental_archives_are_refused_by_name(tmp_path):
    (tmp_path / "d").mkdir()
    (tmp_path / "d/f").write_bytes(b"x")
    for form in ("gnu", "posix"):
        path = tmp_path / f"{form}.tar"
        subprocess.run(
            [
                needs("tar"),
                f"--format={form}",
                "-g",
                tmp_path / f"{form}.snar",
                "-cf",
                path,
                "-C",
                tmp_path,
                "d",
            ],
            check=True,
        )
        with pytest.raises(FormatError, match="incremental") as caught:
            fastshard.open_shard(path)
        assert caught.value.member == "d/"


def test_multi_volume_members_are_refused_by_name(tmp_path):
    (tmp_path / "big").write_bytes(random.Random(0).randbytes(40_000))
    for form in ("gnu", "posix"):
        parts = [tmp_path / f"{form}{i}.tar" for i in range(8)]
        files = [arg for part in parts for arg in ("-f", part)]
        subprocess.run(
            [
                needs("tar"),
                f"--format={form}",
                "-M",
                "-L",
                "20",
                *files,
                "-c",
                "-C",
                tmp_path,
                "big",
            ],
            check=True,
            capture_output=True,
        )
        with pytest.raises(FormatError, match="multi-volume") as caught:
            fastshard.open_shard(parts[1])
        assert "big" in caught.value.member
        with pytest.raises(FormatError):  # the first ends inside its member
            fastshard.open_shard(parts[0])


def test_an_archive_behind_the_end_is_not_read(make_tar, tmp_path):
    one, two = make_tar({"a": b"1"}, "1.tar"), make_tar({"b": b"2"}, "2.tar")
    path = tmp_path / "both.tar"
    path.write_bytes(one.read_bytes() + two.read_bytes())
    assert listed(path) == listed_by_tarfile(path) == listed(one)
    with fastshard.open_shard(path) as shard:
        assert shard.end == 2048


@pytest.mark.parametrize("form", ["gnu", "pax"])
@pytest.mark.parametrize("size", [2**31, 5 * 2**30, 9 * 2**30])
def test_members_of_many_gigabytes(tmp_path, form, size):
    """A file of holes: 5 GiB in octal, 9 GiB in base 256 or a pax record."""
    path = tmp_path / "large.tar"
    member = tarfile.TarInfo("large.bin")
    member.size = size
    small = tarfile.TarInfo("small.txt")
    small.size = 5
    with open(path, "wb") as file:
        file.write(member.tobuf(FORMATS[form]))
        start = file.tell()
        file.seek(start + size - 4)
        file.write(b"tail")
        file.write(small.tobuf(FORMATS[form]) + padded(b"hello") + END)
    assert listed(path) == [
        ("large.bin", start, size),
        ("small.txt", start + size + 512, 5),
    ]
    for mode in ("mmap", "pread"):
        with fastshard.open_shard(path, mode=mode) as shard:
            assert shard["small.txt"] == b"hello"
            if mode == "mmap":
                assert shard[0].nbytes == size
                assert shard[0][-4:] == b"tail"


@not_sanitized
def test_a_member_of_over_two_gigabytes_is_read_whole(tmp_path):
    """Linux answers one pread with 2 GiB - 4 KiB at most."""
    size = 2**31 + 12_345
    path = tmp_path / "large.tar"
    member = tarfile.TarInfo("large.bin")
    member.size = size
    with open(path, "wb") as file:
        file.write(member.tobuf(tarfile.USTAR_FORMAT))
        file.seek(512 + size - 4)
        file.write(b"tail" + bytes(-size % 512) + END)
    with fastshard.open_shard(path, mode="pread") as shard:
        data = shard[0]
        assert data.nbytes == size
        assert data[-4:] == b"tail"
