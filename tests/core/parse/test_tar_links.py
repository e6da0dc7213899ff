"""Links of tars: members with the bytes of their targets, as for other readers."""

import random
import subprocess
import tarfile
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fastshard
from support.marks import needs
from support.tar_blocks import END, extension, header, padded, record
from support.tars import HARD, SYMBOLIC, read_links, write_links

FORMATS = {
    "ustar": tarfile.USTAR_FORMAT,
    "gnu": tarfile.GNU_FORMAT,
    "pax": tarfile.PAX_FORMAT,
}
MODES = "mmap", "private", "pread"


def read(path, **options):
    """Return names and data of a shard's members."""
    with fastshard.open_shard(path, **options) as shard:
        return [(name, shard.read(i)) for i, name in enumerate(shard.names)]


@pytest.mark.parametrize("mtime", [1, 1.5])
@pytest.mark.parametrize("form", FORMATS.values(), ids=FORMATS)
def test_hard_links_have_the_bytes_of_earlier_members(tmp_path, form, mtime):
    entries = [
        ("d/a.jpg", b"A" * 700),
        ("d/a.txt", b"one"),
        ("d/b.jpg", "d/a.jpg"),
        ("d/b.txt", b"two"),
        ("d/c.jpg", "d/b.jpg"),  # a chain
        ("./d/c.txt", "./d/a.txt"),
        ("d/e.jpg", b""),
        ("d/f.jpg", "d/e.jpg"),
    ]
    path = write_links(tmp_path / "t.tar", entries, form, mtime)
    expected, unread = read_links(path)
    assert not unread
    assert [name for name, _ in expected] == [entry[0] for entry in entries]
    for mode in MODES:
        assert read(path, mode=mode) == expected
    with fastshard.open_shard(path) as shard:
        assert shard.offsets[0] == shard.offsets[2] == shard.offsets[4]
        assert not shard.skipped
        samples = {s.key: dict.fromkeys(s.keys()) for s in shard.samples}
        assert {key: [*fields] for key, fields in samples.items()} == {
            "d/a": ["jpg", "txt"],
            "d/b": ["jpg", "txt"],
            "d/c": ["jpg", "txt"],
            "d/e": ["jpg"],
            "d/f": ["jpg"],
        }


def test_a_hub_snapshot_of_symbolic_links_reads_as_its_blobs(tmp_path):
    blobs, snapshot = tmp_path / "r" / "blobs", tmp_path / "r" / "snapshots" / "abc"
    blobs.mkdir(parents=True)
    (snapshot / "data").mkdir(parents=True)
    for i in range(5):
        (blobs / f"{i}").write_bytes(b"%d" % i * 600)
        (snapshot / "data" / f"{i}.jpg").symlink_to(f"../../../blobs/{i}")
    (snapshot / "a.txt").symlink_to("data/../../../blobs/1")
    for order in (["r/blobs", "r/snapshots"], ["r/snapshots", "r/blobs"]):
        path = tmp_path / "t.tar"
        subprocess.run(
            [needs("tar"), "--sort=name", "-cf", path, "-C", tmp_path, *order],
            check=True,
        )
        expected, unread = read_links(path)
        assert not unread
        assert len(expected) == 11
        assert read(path) == expected
        with fastshard.open(path) as ds:
            assert len(ds) == 6
            assert ds["r/snapshots/abc/data/3"]["jpg"] == b"3" * 600


def test_gnu_tar_extracts_the_same_bytes(tmp_path):
    tree = tmp_path / "tree"
    tree.mkdir()
    for i in range(4):
        (tree / f"{i}.bin").write_bytes(bytes([i]) * (300 * i + 1))
        (tree / f"z{i}.bin").hardlink_to(tree / f"{i}.bin")
        (tree / f"s{i}.bin").symlink_to(f"z{i}.bin")
        long = tree / f"{i}{'n' * 120}.bin"
        long.hardlink_to(tree / f"{i}.bin")
        (tree / f"k{i}.bin").symlink_to(long.name)
    for form in ("gnu", "posix"):
        path = tmp_path / f"{form}.tar"
        make = [needs("tar"), "--sort=name", f"--format={form}", "-cf", path]
        subprocess.run([*make, "-C", tree, "."], check=True)
        found = dict(read(path))
        assert found == {f"./{file.name}": file.read_bytes() for file in tree.iterdir()}


NAMES = st.sampled_from(["a", "b", "d/a", "./b", "d/../a", "d/e/b", "/a", "../a", "d"])
TARGETS = st.sampled_from(
    ["a", "b", "d/a", "../a", "./a", "../../b", "e/../a", "/a", "", ".", "x", "d//a"]
)
LINK = st.tuples(NAMES, TARGETS, st.just(SYMBOLIC))
MEMBER = st.tuples(NAMES, st.binary(max_size=3))


@pytest.mark.filterwarnings("ignore::fastshard.UnreadEntryWarning")
@settings(max_examples=150, deadline=None)
@given(st.lists(LINK | MEMBER, min_size=1, max_size=9))
def test_symbolic_links_lead_where_tarfile_finds_them(tmp_path_factory, entries):
    """Absolute names aside, which `tarfile` joins to the link's folder."""
    entries = [e for e in entries if isinstance(e[1], bytes) or "/" not in e[1][:1]]
    entries = [e for e in entries if e[0] != "/a"] or [("a", b"")]
    path = write_links(tmp_path_factory.mktemp("t") / "t.tar", entries)
    expected, unread = read_links(path)
    with fastshard.open_shard(path) as shard:
        found = [(name, shard.read(i)) for i, name in enumerate(shard.names)]
        assert found == expected
        assert [link.name for link in shard.unread_links] == unread


@pytest.mark.filterwarnings("ignore::fastshard.UnreadEntryWarning")
@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(NAMES, NAMES) | MEMBER, min_size=1, max_size=9))
def test_hard_links_lead_where_tarfile_finds_them(tmp_path_factory, entries):
    """Where it finds all: it refuses those to later members."""
    path = write_links(tmp_path_factory.mktemp("t") / "t.tar", entries)
    expected, unread = read_links(path)
    with fastshard.open_shard(path) as shard:
        found = [(name, shard.read(i)) for i, name in enumerate(shard.names)]
        if not unread:
            assert found == expected
        assert {link.name for link in shard.unread_links} <= set(unread)


def test_a_hard_link_to_a_later_member_has_its_bytes(tmp_path):
    entries = [("a.jpg", "b.jpg"), ("b.jpg", b"later"), ("c.jpg", "a.jpg")]
    path = write_links(tmp_path / "t.tar", entries)
    names = ["a.jpg", "b.jpg", "c.jpg"]
    assert read(path) == [(name, b"later") for name in names]


def test_of_equal_names_a_hard_link_leads_to_the_last_before_it(tmp_path):
    entries = [("a", b"1"), ("b.x", "a"), ("a", b"2"), ("c.x", "a"), ("a", b"3")]
    path = write_links(tmp_path / "t.tar", [*entries, ("d.x", "a", SYMBOLIC)])
    found = [(name, data) for name, data in read(path) if name != "a"]
    assert found == [("b.x", b"1"), ("c.x", b"2"), ("d.x", b"3")]


def test_a_file_that_was_given_twice_is_one_member(tmp_path):
    (tmp_path / "a.jpg").write_bytes(b"once")
    make = [needs("tar"), "-cf", "t.tar", "a.jpg", "a.jpg", "./a.jpg"]
    subprocess.run(make, cwd=tmp_path, check=True)
    with tarfile.open(tmp_path / "t.tar") as tar:
        assert [member.islnk() for member in tar] == [False, True, True]
    with fastshard.open_shard(tmp_path / "t.tar") as shard:
        assert list(shard.names) == ["a.jpg"]
        assert not shard.skipped
        assert shard.samples["a"]["jpg"] == b"once"


@pytest.mark.parametrize("kind", [HARD, SYMBOLIC], ids=["hard", "symbolic"])
@pytest.mark.parametrize(
    "target",
    ["gone", "../a.jpg", "/a.jpg", "b.jpg", "c.jpg", "", "d", "a.jpg/.", "\udcff"],
)
def test_a_link_that_leads_to_no_member_is_counted_and_warned_of(
    tmp_path, kind, target
):
    entries = [("a.jpg", b"abc"), ("b.jpg", target, kind), ("c.jpg", "b.jpg", kind)]
    path = write_links(tmp_path / "t.tar", entries)
    if target == "a.jpg/.":  # normalised, as by tarfile
        assert len(read(path)) == 3
        return
    label = "hard link" if kind == HARD else "symbolic link"
    match = f"2 links lead to no member .* such as 'b.jpg', a {label} to "
    with pytest.warns(fastshard.UnreadEntryWarning, match=match):
        shard = fastshard.open_shard(path)
    with shard:
        assert list(shard.names) == ["a.jpg"]
        assert dict(shard.skipped) == {label: 2}
        assert [link[1:] for link in shard.unread_links] == [
            (label, "b.jpg", target),
            (label, "c.jpg", "b.jpg"),
        ]
        with tarfile.open(path) as tar:
            headers = [member.offset_data - 512 for member in tar][1:]
        assert [link.offset for link in shard.unread_links] == headers


def test_an_absolute_target_is_the_member_of_that_name(tmp_path):
    entries = [("/d/a.jpg", b"abc"), ("/d/b.jpg", "/d/a.jpg"), ("a.jpg", b"other")]
    entries += [("/x/c.jpg", "/d/../d/a.jpg", SYMBOLIC), ("x/d.jpg", "../a.jpg")]
    path = write_links(tmp_path / "t.tar", entries)
    with pytest.warns(fastshard.UnreadEntryWarning, match="1 link leads .* 'x/d.jpg'"):
        found = dict(read(path))
    assert found["/d/b.jpg"] == found["/x/c.jpg"] == b"abc"


NAME = b"n" * 150 + b".jpg"
LONG = [header(NAME[:100]), padded(b"cut"), extension(b"L", NAME), header(b"short")]
LONG += [padded(b"abc")]
PAX = extension(b"x", record(b"linkpath", NAME))
WRONG = extension(b"x", record(b"linkpath", NAME[:100]))
DELETED = extension(b"x", record(b"linkpath", b""))
GLOBAL = extension(b"g", record(b"linkpath", NAME))


@pytest.mark.parametrize(
    ("extensions", "data"),
    [
        ([extension(b"K", NAME + b"\0")], b"abc"),
        ([PAX], b"abc"),
        ([WRONG, PAX], b"abc"),
        ([extension(b"K", NAME), WRONG], b"abc"),  # the first kind wins
        ([PAX, extension(b"K", NAME[:100])], b"abc"),
        ([GLOBAL], b"abc"),
        ([GLOBAL, WRONG], b"cut"),
        ([GLOBAL, DELETED], b"cut"),
        ([], b"cut"),
    ],
)
def test_long_names_of_targets(opened, extensions, data):
    link = bytearray(header(b"l.jpg", b"1"))
    link[157:257] = NAME[:100]
    link[148:156] = b" " * 8
    link[148:156] = b"%06o\0 " % sum(link)
    shard = opened(*LONG, *extensions, bytes(link), END)
    assert shard["l.jpg"] == data


def test_a_target_that_is_not_utf_8(tmp_path):
    entries = [("gr\udcfc.jpg", b"abc"), ("b.jpg", "gr\udcfc.jpg")]
    path = write_links(tmp_path / "t.tar", entries, tarfile.GNU_FORMAT)
    assert dict(read(path))["b.jpg"] == b"abc"


def test_a_link_to_a_sparse_member_is_refused_with_it(opened):
    with pytest.raises(fastshard.FormatError, match="sparse members"):
        opened(header(b"a", b"S"), padded(b"abc"), header(b"b", b"1"), END)


def test_names_that_grow_step_by_step(tmp_path):
    names = ["a" * size for size in (10, 20, 40, 80, 95, 11, 60, 97)]
    entries = [(name, name.encode()) for name in names]
    path = write_links(tmp_path / "t.tar", [*entries, ("link", names[0])])
    assert read(path) == [*entries, ("link", names[0].encode())]


@pytest.mark.parametrize("name", [b"path", b"linkpath"])
def test_a_long_name_of_a_global_header_is_not_repeated_without_end(tmp_path, name):
    path = tmp_path / "t.tar"
    kind = b"2" if name == b"linkpath" else b"0"
    with path.open("wb") as file:
        file.write(extension(b"g", record(name, b"x/" * (1 << 18))))
        file.writelines(header(b"%d" % i, kind, b"0" * 11) for i in range(200))
        file.write(END)
    with pytest.raises(fastshard.FormatError, match="the names exceed the file"):
        fastshard.open_shard(path)


def test_links_that_lead_to_each_other_end(tmp_path):
    rng = random.Random(1)
    count = 2000
    entries = [(f"{i}", f"{rng.randrange(count)}", SYMBOLIC) for i in range(count)]
    path = write_links(tmp_path / "t.tar", [*entries, ("m", b"abc")])
    targets = {name: target for name, target, _ in entries}
    with pytest.warns(fastshard.UnreadEntryWarning, match="2,000 links"):
        fastshard.open_shard(path).close()
    targets["7"] = "m"
    entries[7] = ("7", "m", SYMBOLIC)
    path = write_links(tmp_path / "t.tar", [*entries, ("m", b"abc")])

    def leads_to_member(name):
        seen = set()
        while name != "m" and name not in seen:
            seen.add(name)
            name = targets[name]
        return name == "m"

    with pytest.warns(fastshard.UnreadEntryWarning):
        found = dict(read(path))
    assert found == {name: b"abc" for name in [*targets, "m"] if leads_to_member(name)}


def test_links_are_resolved_in_linear_time(tmp_path):
    """Every link leads to the one before it: a chain of 100,000."""
    count = 100_000
    path = tmp_path / "t.tar"
    with path.open("wb") as file:
        file.write(header(b"0000000") + padded(b"abc"))
        for i in range(1, count):
            block = bytearray(512)
            block[:7] = b"%07d" % i
            block[156] = 0x31
            block[157:164] = b"%07d" % (i - 1)
            block[148:156] = b" " * 8
            block[148:156] = b"%06o\0 " % (sum(block[:164]))
            file.write(block)
        file.write(END)
    began = time.monotonic()
    with fastshard.open_shard(path) as shard:
        assert time.monotonic() - began < 30  # a hang guard: quadratic takes minutes
        assert len(shard) == count
        assert shard["0099999"] == b"abc"
