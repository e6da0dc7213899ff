"""JSON indexes: round trips, and reads by other libraries."""

import hashlib
import importlib
import json

import pytest

import fastshard
from fastshard import FastshardError, FormatError
from fastshard._core.io.source import LocalFile
from fastshard._core.parse.json import parse_index
from fastshard._core.parse.tar import scan_tar
from fastshard.index.contents import Contents
from fastshard.index.jsonfile import parse_info, read_json, write_json
from support.tars import write_tar


def read_members(table):
    return [
        (table.name_of(i), *table.extent(i), parse_info(table.info(i)))
        for i in range(len(table))
    ]


def one(entry):
    return f'{{"files":{{"a":{entry}}}}}'.encode()


@pytest.fixture
def scanned(tmp_path, members):
    """Return a shard, its scanned contents and its size in bytes."""
    path = write_tar(tmp_path / "s.tar", members | {"./é/猫.txt": b"n"})
    with LocalFile(path) as file:
        table, skipped_kinds, end = scan_tar(file)[:3]
        return path, Contents(table, end=end, skipped=skipped_kinds), file.nbytes


def test_written_indexes_are_read_back(scanned, tmp_path):
    _, contents, nbytes = scanned
    index = str(tmp_path / "s.json")
    digests = [
        hashlib.sha256(b"%d" % i).hexdigest() for i in range(len(contents.table))
    ]

    write_json(index, contents, nbytes, shard="s.tar")
    plain, recorded = read_json(index, nbytes)
    write_json(
        index, plain, nbytes, shard="s.tar", sha256=digests, hash="h", hash_lfs="l"
    )
    hashed, _ = read_json(index, nbytes)
    write_json(index, hashed, nbytes, shard="s.tar")
    again, _ = read_json(index, nbytes)

    assert recorded == nbytes
    assert plain.index == index
    assert read_members(plain.table) == read_members(contents.table)
    assert (
        read_members(again.table)
        == read_members(hashed.table)
        == [
            (*member[:3], {"sha256": digest})
            for member, digest in zip(
                read_members(contents.table), digests, strict=True
            )
        ]
    )


def test_the_dict_form_is_written(scanned, tmp_path):
    _, contents, nbytes = scanned
    index = tmp_path / "s.json"

    write_json(str(index), contents, nbytes, shard="s.tar", hash="h", hash_lfs="l")

    written = json.loads(index.read_bytes())
    files = written.pop("files")
    assert written == {
        "path": "s.tar",
        "filesize": nbytes,
        "hash": "h",
        "hash_lfs": "l",
    }
    assert [(n, e["offset"], e["length"]) for n, e in files.items()] == [
        member[:3] for member in read_members(contents.table)
    ]


@pytest.mark.parametrize(
    "info",
    ['"x":[1,{"y":null}],"caption":"é\\udc80"', '"path":"\\udcffn\\"\\n"', '"z":-0.5'],
)
def test_infos_and_odd_names_are_carried(info, tmp_path):
    index = str(tmp_path / "s.json")
    table, _ = parse_index(one(f'{{"offset":1,"size":2,{info}}}'), "s.json")

    write_json(index, Contents(table), 99, shard="\udc80.tar")

    assert read_members(read_json(index, 99)[0].table) == read_members(table)
    (tmp_path / "s.json").read_bytes().decode()


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (
            b'{"files":{"a":{"offset":9,"size":1},"a":{"offset":2,"size":2}}}',
            "once.*'a'",
        ),
        (one('{"offset":1,"size":2,"x":1e999}'), "cannot represent the member 'a'"),
    ],
)
def test_unrepresentable_contents_raise_before_anything_is_written(
    text, reason, tmp_path
):
    table, _ = parse_index(text, "s.json")
    path = tmp_path / "s.json"
    path.write_text("as it was")

    with pytest.raises(FastshardError, match=reason):
        write_json(str(path), Contents(table), 99, shard="s.tar")
    with pytest.raises(ValueError, match="got 3"):
        write_json(str(path), Contents(table), 99, shard="s.tar", sha256=["0"] * 3)

    assert [p.name for p in tmp_path.iterdir()] == ["s.json"]
    assert path.read_text() == "as it was"


def test_errors_name_the_file(tmp_path):
    path = tmp_path / "s.json"
    path.write_bytes(b"{")
    with pytest.raises(FormatError) as caught:
        read_json(str(path), 1)
    assert caught.value.path == str(path)
    with pytest.raises(FileNotFoundError):
        read_json(str(path) + "x", 1)


def rival(name):
    try:
        return importlib.import_module(name)
    except ImportError:
        pytest.skip(f"{name} is not installed")


def test_webshart_reads_written_indexes(scanned, tmp_path):
    webshart = rival("webshart")
    path, contents, nbytes = scanned
    write_json(str(tmp_path / "s.json"), contents, nbytes, shard="s.tar", hash="h")

    theirs = webshart.discover_dataset(str(tmp_path)).open_shard(0)

    with fastshard.open_shard(path, index="none") as shard:
        assert list(theirs.filenames()) == sorted(shard.names)
        for i, name in enumerate(theirs.filenames()):
            assert theirs.read_file(i) == shard.read(name)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of hfutils
def test_hfutils_reads_written_indexes(scanned, tmp_path):
    hfutils = rival("hfutils.index")
    path, contents, nbytes = scanned
    write_json(str(tmp_path / "s.json"), contents, nbytes, shard="s.tar", hash="h")

    names = [member[0] for member in read_members(contents.table)]

    assert hfutils.tar_list_files(str(path)) == names
    assert all(hfutils.tar_file_exists(str(path), name) for name in names)
    assert hfutils.tar_get_index_info(str(path))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of hfutils
def test_indexes_of_hfutils_are_read(scanned, tmp_path):
    hfutils = rival("hfutils.index")
    path, contents, nbytes = scanned
    hfutils.tar_create_index(str(path), silent=True)

    theirs, recorded = read_json(str(tmp_path / "s.json"), nbytes)

    assert recorded == nbytes
    assert [m[:3] for m in read_members(theirs.table)] == [
        m[:3] for m in read_members(contents.table)
    ]
    with fastshard.open_shard(path, index="none") as shard:
        for name, _, _, info in read_members(theirs.table):
            assert info == {"sha256": hashlib.sha256(shard.read(name)).hexdigest()}
