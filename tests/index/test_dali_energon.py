"""Indexes of DALI and Megatron-Energon, compared with those of their own tools."""

import io
import random
import shutil
import struct
import tarfile
from pathlib import Path

import pytest

import fastshard
from fastshard._core.io.source import LocalFile
from fastshard.index.dali import read_dali, write_dali
from fastshard.index.energon import read_energon, write_energon
from support.inside.datasets import contents_of
from support.paths import DATA
from support.tars import listed_by_tarfile, write_tar

FOREIGN = DATA / "foreign"  # written by make.py there
KINDS = ["gnu", "pax", "ustar", "mixed", "global", "plain"]
FORMATS = ["idx", "tar.idx"]
PLAIN = ["a.jpg", "a.json", "sub/b.seg.png", "sub/b.cls", "c.txt"]


def list_members(shard):
    return list(
        zip(shard.names, shard.offsets.tolist(), shard.sizes.tolist(), strict=True)
    )


@pytest.fixture(params=KINDS)
def tar(request, tmp_path):
    return Path(shutil.copy(FOREIGN / f"{request.param}.tar", tmp_path))


@pytest.mark.parametrize("form", FORMATS)
def test_written_indexes_equal_those_of_the_original_tools(tar, form):
    with fastshard.open_shard(tar) as shard:
        path = shard.save_index(format=form)
    assert Path(path).read_bytes() == (FOREIGN / f"{tar.stem}.{form}").read_bytes()


@pytest.mark.parametrize("form", FORMATS)
def test_indexes_of_the_original_tools_are_read(tar, form):
    index = FOREIGN / f"{tar.stem}.{form}"
    scanned = fastshard.open_shard(tar)
    with fastshard.open_shard(tar, index=index) as shard:
        assert shard.index == str(index)
        # A one-letter name without a dot counts as hidden.
        hidden = {".hidden", "sub/.hidden", ".hid", "z", "link"} & (
            {*scanned.names} if form == "idx" else set()
        )
        assert list_members(shard) == [
            m for m in list_members(scanned) if m[0] not in hidden
        ]
        for name in shard.names:
            assert shard[name] == scanned[name]


def test_version_1_1_of_dali_finds_names_in_the_shard(tar):
    index = tar.with_suffix(".idx")
    with fastshard.open_shard(tar) as scanned, LocalFile(tar) as file:
        write_dali(str(index), contents_of(scanned), file, version="1.1")
        with fastshard.open_shard(tar, index=FOREIGN / f"{tar.stem}.idx") as expected:
            assert list_members(fastshard.open_shard(tar, index=index)) == list_members(
                expected
            )
    text = index.read_text()
    assert text.startswith("v1.1 ")
    index.write_text(text.replace("jpg", "png", 1))
    with pytest.raises(fastshard.StaleIndexError, match="no png"):
        fastshard.open_shard(tar, index=index)


def test_dali_and_energon_indexes_are_not_searched_for(tar):
    for form in FORMATS:
        with fastshard.open_shard(tar) as shard:
            shard.save_index(format=form)
    assert fastshard.open_shard(tar).index is None


@pytest.mark.parametrize(
    "name", ["a b.jpg", "a\tb.jpg", "a\\b.jpg", "a\nb.txt", "a.x y"]
)
def test_a_name_that_dali_cannot_hold_is_refused(make_tar, name):
    shard = fastshard.open_shard(make_tar({"ok.txt": b"", name: b"x"}))
    with pytest.raises(fastshard.FastshardError, match="name of member"):
        shard.save_index(format="idx")
    assert not Path(shard.path).with_suffix(".idx").exists()


@pytest.mark.parametrize("name", ["a\u0085b.jpg", "a\u2028b.jpg", "a\udcff.jpg", "a."])
def test_a_name_that_its_writer_mangles_is_refused(make_tar, name):
    shard = fastshard.open_shard(make_tar({"ok.txt": b"", name: b"x"}))
    with pytest.raises(fastshard.FastshardError, match="of member"):
        shard.save_index(format="idx")


@pytest.mark.parametrize("names", [["nodo.jpg", "nodot"], ["nodot", "nodox"]])
def test_a_name_without_a_dot_joins_no_sample(make_tar, names):
    shard = fastshard.open_shard(make_tar(dict.fromkeys(names, b"x")))
    with pytest.raises(fastshard.FastshardError, match=r"without a dot.*'nodot'"):
        shard.save_index(format="idx")


def test_version_1_1_of_dali_needs_only_extensions(make_tar, tmp_path):
    path = make_tar({"a b.jpg": b"1", "a b.json": b"2"})
    index = tmp_path / "x.idx"
    with fastshard.open_shard(path) as shard, LocalFile(path) as file:
        write_dali(str(index), contents_of(shard), file, version="1.1")
        assert index.read_text() == "v1.1 1\njpg 512 1 json 1536 1\n"
        table = read_dali(str(index), file).table
        assert [table.name_of(i) for i in range(2)] == ["a b.jpg", "a b.json"]
        with pytest.raises(ValueError, match="version"):
            write_dali(str(index), contents_of(shard), file, version="1.3")


def test_dali_has_no_index_of_a_shard_without_samples(make_tar):
    shard = fastshard.open_shard(make_tar({".hidden": b""}))
    with pytest.raises(fastshard.FastshardError, match="sample"):
        shard.save_index(format="idx")


def test_energon_has_an_index_of_a_shard_without_samples(tmp_path):
    tar = shutil.copy(FOREIGN / "none.tar", tmp_path)
    with fastshard.open_shard(tar) as shard:
        index = shard.save_index(format="tar.idx")
    assert Path(index).read_bytes() == (FOREIGN / "none.tar.idx").read_bytes()
    assert len(fastshard.open_shard(tar, index=index).samples) == 0


def test_escapes_of_dali_are_decoded():
    """wds2idx lists names as GNU tar prints them, here in a locale without UTF-8."""
    tar, index = FOREIGN / "gnu.tar", FOREIGN / "gnu-escaped.idx"
    assert rb"\303\251.txt" in index.read_bytes()
    with fastshard.open_shard(tar, index=index) as shard:
        plain = fastshard.open_shard(tar, index=FOREIGN / "gnu.idx")
        assert list_members(shard) == list_members(plain)
        assert shard["é.txt"] == plain["é.txt"]


@pytest.mark.parametrize(
    ("written", "name"),
    [
        (r"a\\b.txt", "a\\b.txt"),
        (r"a\tb.txt", "a\tb.txt"),
        (r"a\nb.txt", "a\nb.txt"),
        (r"a\377b.txt", "a\udcffb.txt"),
        (r"a\qb.txt", None),
        (r"a\400b.txt", None),
        (r"a\000b.txt", None),
        ("a\0b.txt", None),
        ("ab\\.txt", None),
    ],
)
def test_each_escape_is_one_of_gnu_tar(make_tar, tmp_path, written, name):
    path = make_tar({name or "ab.txt": b"1"})
    index = tmp_path / "x.idx"
    index.write_bytes(f"v1.2 1\ntxt 512 1 {written}\n".encode())
    with LocalFile(path) as file:
        if name is None:
            with pytest.raises(fastshard.FormatError) as caught:
                read_dali(str(index), file)
            assert 17 <= caught.value.offset < index.stat().st_size
        else:
            assert read_dali(str(index), file).table.name_of(0) == name


def test_a_backslash_outside_an_escape_is_an_error(make_tar, tmp_path):
    """Indexes made without GNU tar have names without escapes."""
    path = make_tar({"a\\tb.txt": b"1"})
    index = tmp_path / "x.idx"
    index.write_bytes(b"v1.2 1\ntxt 512 1 a\\tb.txt\n")
    with (
        LocalFile(path) as file,
        pytest.raises(fastshard.StaleIndexError, match="no txt of 1 bytes"),
    ):
        read_dali(str(index), file)


def test_long_names_of_gnu_tar_have_their_own_offsets(tmp_path):
    """wds2idx lists the extents of long names, which makes the index stale."""
    tar = Path(shutil.copy(FOREIGN / "long.tar", tmp_path))
    theirs = FOREIGN / "long.idx"
    with LocalFile(tar) as file, pytest.raises(fastshard.StaleIndexError) as caught:
        read_dali(str(theirs), file)
    assert theirs.read_bytes()[caught.value.offset :].startswith(b"1536 120 long/")
    with fastshard.open_shard(tar) as shard:
        index = Path(shard.save_index(format="idx"))
        assert (
            Path(shard.save_index(format="tar.idx")).read_bytes()
            == (FOREIGN / "long.tar.idx").read_bytes()
        )
    lines = index.read_text().splitlines()[1:]
    words = " ".join(lines).split()
    found = [
        (name, int(offset), int(size))
        for offset, size, name in zip(
            words[1::4], words[2::4], words[3::4], strict=True
        )
    ]
    assert found == listed_by_tarfile(tar)
    assert list_members(fastshard.open_shard(tar, index=index)) == found


def test_an_extension_that_is_not_the_names_is_refused(make_tar, tmp_path):
    path = make_tar({"a.b.txt": b"1"})
    index = tmp_path / "x.idx"
    with LocalFile(path) as file:
        for extension, good in (("b.txt", True), ("txt", True), ("xt", False)):
            index.write_text(f"v1.2 1\n{extension} 512 1 a.b.txt\n")
            if good:
                assert len(read_dali(str(index), file).table) == 1
                continue
            with pytest.raises(fastshard.FormatError) as caught:
                read_dali(str(index), file)
            assert caught.value.offset == 7


@pytest.mark.parametrize(
    ("text", "offset"),
    [
        ("", 0),
        ("v1.3 1\ntxt 512 1 a.txt\n", 0),
        ("v1.2 0\n", 5),
        ("v1.2 -1\n", 5),
        ("v1.2 2\ntxt 512 1 a.txt\n", 5),
        ("v1.2 1\ntxt 512 1 a.txt", 22),
        ("v1.2 1\ntxt 512 1\n", 7),
        ("v1.2 1\n\n", 7),
        ("v1.2 1\ntxt 513 1 a.txt\n", 11),
        ("v1.2 1\ntxt 0 1 a.txt\n", 11),
        ("v1.2 1\ntxt 512 0x1 a.txt\n", 15),
        ("v1.2 1\ntxt 512 999999 a.txt\n", 11),
        ("v1.1 1\ntxt 1024 1\n", 11),
        ("v1.1 1\ntxt 512 2\n", 11),
        ("v1.1 1\njpg 512 1\n", 11),
    ],
)
def test_errors_name_the_byte(make_tar, tmp_path, text, offset):
    path = make_tar({"a.txt": b"1"})
    index = tmp_path / "x.idx"
    index.write_text(text)
    with LocalFile(path) as file, pytest.raises(fastshard.FormatError) as caught:
        read_dali(str(index), file)
    assert (caught.value.path, caught.value.offset) == (str(index), offset)


def test_a_carriage_return_ends_a_word(make_tar, tmp_path):
    path = make_tar({"a.txt": b"1"})
    index = tmp_path / "x.idx"
    index.write_bytes(b"v1.2 1\r\ntxt 512 1 a.txt\r\n")
    with LocalFile(path) as file:
        assert read_dali(str(index), file).table.name_of(0) == "a.txt"


def test_energon_needs_all_members(tmp_path):
    tar = shutil.copy(FOREIGN / "gnu.tar", tmp_path)
    shard = fastshard.open_shard(tar, index=FOREIGN / "gnu.idx")
    with pytest.raises(fastshard.StaleIndexError, match="members, but") as caught:
        shard.save_index(format="tar.idx")
    assert caught.value.path == str(FOREIGN / "gnu.idx")
    assert list(tmp_path.iterdir()) == [Path(tar)]


def test_energon_needs_the_members_of_its_own_shard(make_tar, tmp_path):
    one = make_tar({"a.txt": b"1" * 600, "b.txt": b"2"}, "1.tar")
    other = make_tar({"a.txt": b"1", "b.txt": b"2"}, "2.tar")
    contents = contents_of(fastshard.open_shard(one))
    with (
        LocalFile(other) as file,
        pytest.raises(fastshard.StaleIndexError, match="no member of 600 bytes"),
    ):
        write_energon(str(tmp_path / "x.tar.idx"), contents, file)


def test_every_change_of_a_shard_makes_energon_stale(tmp_path):
    tar = tmp_path / "x.tar"
    raw = (FOREIGN / "plain.tar.idx").read_bytes()
    index = tmp_path / "x.tar.idx"
    index.write_bytes(raw)
    for drop in range(len(PLAIN)):
        names = PLAIN[:drop] + PLAIN[drop + 1 :]
        write_tar(tar, {name: name.encode() for name in names})
        with LocalFile(tar) as file, pytest.raises(fastshard.StaleIndexError) as caught:
            read_energon(str(index), file)
        assert caught.value.offset % 8 == 0
        assert caught.value.offset < len(raw)


@pytest.mark.parametrize("form", FORMATS)
def test_an_index_of_another_shard_is_refused(make_tar, form):
    one = fastshard.open_shard(make_tar({"a.txt": b"1" * 600, "b.txt": b"2"}, "1.tar"))
    other = make_tar({"a.txt": b"1", "b.txt": b"2"}, "2.tar")
    index = one.save_index(format=form)
    with pytest.raises(fastshard.FormatError):
        fastshard.open_shard(other, index=index)


def damage(raw):
    """Yield every truncation, every changed byte, and combinations of both."""
    for n in range(len(raw)):
        yield raw[:n]
    for i in range(len(raw)):
        for flip in (1, 0x80, 0x20):
            yield raw[:i] + bytes([raw[i] ^ flip]) + raw[i + 1 :]
    numbers = random.Random(0)
    for _ in range(1000):
        changed = bytearray(raw)
        for _ in range(numbers.randrange(1, 5)):
            changed[numbers.randrange(len(raw))] = numbers.randrange(256)
        yield bytes(changed)


@pytest.mark.parametrize(
    ("form", "read"), [("idx", read_dali), ("tar.idx", read_energon)]
)
def test_a_damaged_index_raises_or_stays_in_the_shard(tmp_path, form, read):
    tar = tmp_path / "ustar.tar"
    shutil.copy(FOREIGN / "ustar.tar", tar)
    index = tmp_path / f"x.{form}"
    raw = (FOREIGN / f"ustar.{form}").read_bytes()
    nbytes = tar.stat().st_size
    with LocalFile(tar) as file:
        for changed in damage(raw):
            index.write_bytes(changed)
            try:
                table = read(str(index), file).table
            except fastshard.FormatError as error:
                assert str(index) in (error.path, *error.args)
                assert error.offset <= max(len(raw), nbytes)
            else:
                assert form == "idx" or changed == raw
                extents = [table.extent(i) for i in range(len(table))]
                assert all(512 <= at <= nbytes - size for at, size in extents)


def test_numbers_that_overflow_are_refused(tmp_path):
    tar = write_tar(tmp_path / "x.tar", {"a.txt": b"1"})
    index = tmp_path / "x.idx"
    for offset, size in ((2**64, 1), (512, 2**64), (10**400, 1), (2**63, 2**63)):
        index.write_text(f"v1.2 1\ntxt {offset} {size} a.txt\n")
        with pytest.raises(fastshard.FormatError) as caught:
            fastshard.open_shard(tar, index=index)
        assert caught.value.path == str(index)


def test_energon_offsets_point_to_first_headers(make_tar):
    path = make_tar(
        {"a.x": b"1", "a.y": b"2", "b.x": b"3"}, form=tarfile.PAX_FORMAT, mtime=1.5
    )
    with fastshard.open_shard(path) as shard:
        raw = Path(shard.save_index(format="tar.idx")).read_bytes()
    with tarfile.open(path) as tar:
        headers = [member.offset for member in tar]
        end = tar.offset
    assert struct.unpack("<3Q", raw) == (headers[0], headers[2], end)


@pytest.mark.parametrize("order", ["g", "gg", "gx", "xg", "Lg", "gL", "xL"])
def test_header_offsets_equal_those_of_tarfile(tmp_path, order):
    """A global header belongs to a member only behind one of the member's own."""
    member = tarfile.TarInfo("b.txt")
    headers = {
        "g": member.create_pax_global_header({"comment": "all"}),
        "x": member._create_pax_generic_header(
            {"mtime": "1.5"}, tarfile.XHDTYPE, "utf-8"
        ),
        "L": member._create_gnu_long_header(
            "b.txt", tarfile.GNUTYPE_LONGNAME, "utf-8", "strict"
        ),
    }
    first = tarfile.TarInfo("a.txt").tobuf()
    path = tmp_path / "x.tar"
    path.write_bytes(
        first + b"".join(headers[kind] for kind in order) + member.tobuf() + bytes(1024)
    )
    with tarfile.open(path) as tar:
        expected = [*(found.offset for found in tar), tar.offset]
    with fastshard.open_shard(path) as shard:
        raw = Path(shard.save_index(format="tar.idx")).read_bytes()
    assert list(struct.unpack("<3Q", raw)) == expected


def append(path, members):
    """Append members as ``tar --append`` does: over the end-of-archive blocks."""
    with tarfile.open(path, "a") as tar:
        for name, data in members.items():
            member = tarfile.TarInfo(name)
            if data is None:
                member.type = tarfile.DIRTYPE
            else:
                member.size = len(data)
            tar.addfile(member, None if data is None else io.BytesIO(data))


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize(
    "name", ["d.jpg", "sub/d.seg.png", "n" * 120 + ".jpg", "\u00e9.txt"]
)
def test_a_shard_that_has_grown_makes_an_index_stale(make_tar, form, name):
    path = make_tar(dict.fromkeys(PLAIN, b"x"))
    with fastshard.open_shard(path) as shard:
        index = shard.save_index(format=form)
    append(path, {"folder": None, name: b"more"})
    with pytest.raises(fastshard.StaleIndexError) as caught:
        fastshard.open_shard(path, index=index)
    if form == "idx":
        assert repr(name) in str(caught.value)


def test_members_that_dali_does_not_list_may_follow(make_tar):
    path = make_tar(dict.fromkeys(PLAIN, b"x"))
    with fastshard.open_shard(path) as shard:
        index = shard.save_index(format="idx")
    append(path, {"folder": None, ".hidden": b"x", "sub/.hid": b"x"})
    with path.open("ab") as file:
        file.write(b"not a header" * 512)
    with fastshard.open_shard(path, index=index) as shard:
        assert len(shard) == len(PLAIN)
