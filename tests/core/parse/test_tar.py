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
from support.marks import needs, not_sanitized
from support.tar_blocks import END, padded
from support.tars import listed, listed_by_tarfile, write_tar

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
def test_a_shard_of_webdataset_reads_as_by_webdataset(tmp_path):
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
    gc.collect()  # webdataset leaves its file open
    with fastshard.open_shard(path) as shard:
        ours = [
            {"__key__": s.key, **{f: bytes(s[f]) for f in s}} for s in shard.samples
        ]
        for sample, own in zip(theirs, ours, strict=True):
            assert {k: v for k, v in sample.items() if k in own} == own


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    """Make files (one empty, some with long names), links, a directory, a FIFO."""
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
    """Return the contents of the files of a tree, and of its links."""
    return sorted(path.read_bytes() for path in root.rglob("*") if path.is_file())


@pytest.mark.parametrize("form", ["v7", "oldgnu", "gnu", "ustar", "posix"])
def test_same_members_as_tarfile_in_tars_of_gnu_tar(tree, tmp_path, form):
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
    if form not in ("v7", "ustar"):  # v7 and ustar omit names that do not fit
        assert done.returncode == 0
    assert listed(path) == listed_by_tarfile(path)
    with fastshard.open_shard(path) as shard:
        assert not shard.unread_links
        if form not in ("v7", "ustar"):
            folders = sum(path.is_dir() for path in tree.rglob("*")) + 1
            assert shard.skipped["directory"] == folders
            assert shard.skipped["FIFO"] == 1
            assert sorted(map(bytes, shard)) == contents(tree)


@pytest.mark.parametrize("form", ["ustar", "pax", "gnutar", "v7"])
def test_same_members_as_tarfile_in_tars_of_bsdtar(tree, tmp_path, form):
    path = tmp_path / "s.tar"
    command = [needs("bsdtar"), f"--format={form}", "-cf", path, "-C", tree, "."]
    subprocess.run(command, capture_output=True)
    assert listed(path) == listed_by_tarfile(path)
    assert len(listed(path)) >= 5


def test_same_members_as_tarfile_in_tars_of_busybox(tree, tmp_path):
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
            if not any(part in name for part in ("hard", "link", "a.bin")):
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
def test_members_of_any_name_and_size_are_read(tmp_path_factory, form, extra, mtime):
    path = tmp_path_factory.mktemp("h") / "s.tar"
    data = {name: name.encode()[:1] * size for name, size in extra.items()}
    write_tar(path, data, form=FORMATS[form], mtime=mtime)
    assert listed(path) == listed_by_tarfile(path)
    with fastshard.open_shard(path) as shard:
        assert {n: bytes(v) for n, v in zip(shard.names, shard, strict=True)} == data
        assert all(shard.names[shard.position(name)] == name for name in data)


@pytest.mark.parametrize("form", FORMATS.values(), ids=FORMATS)
def test_names_other_than_utf8_are_surrogate_escaped(tmp_path, form):
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
def test_any_padding_at_the_end_is_accepted(make_tar, padding):
    path = make_tar({"a": b"1" * 700, "b": b"2"})
    body = path.read_bytes()[: 512 + 1024 + 1024]
    path.write_bytes(body + bytes(padding))
    assert [name for name, _, _ in listed(path)] == ["a", "b"]


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
        with pytest.raises(FormatError):  # the first volume ends inside its member
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
def test_members_of_many_gigabytes_are_read(tmp_path, form, size):
    """Sparse files: 5 GiB in octal, 9 GiB in base 256 or a pax record."""
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
    """Linux reads at most 2 GiB - 4 KiB in one pread."""
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
