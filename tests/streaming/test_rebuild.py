"""An index made again from the shards that it lists."""

import json
import struct

import pytest

from fastshard import FormatError
from fastshard.streaming import CSVWriter, MDSWriter, rebuild_index
from support.inside.streaming import hide_brotli
from support.marks import thin
from support.streaming.expected import names

WRITTEN = [
    name
    for name in names()
    if name not in ("edge/no_samples", "edge/merged", "edge/raw_only")
]


def write(folder, n=3, cls=MDSWriter, **options):
    with cls(columns={"id": "str"}, out=folder, **options) as writer:
        for i in range(n):
            writer.write({"id": f"{i:06}"})
    return folder


@pytest.mark.parametrize("name", WRITTEN)
def test_the_index_that_upstream_wrote(copy_streaming, name):
    if name.endswith("/br"):
        pytest.importorskip("brotli")
    known = copy_streaming(name)
    path = known.folder / "index.json"
    before = path.read_bytes()
    path.unlink()
    assert rebuild_index(known.folder) == str(path)
    assert path.read_bytes() == before


def test_raw_files_without_their_compressed_ones(copy_streaming):
    known = copy_streaming("edge/raw_only")
    path = known.folder / "index.json"
    before = json.loads(path.read_bytes())
    path.write_text("old")
    rebuild_index(known.folder)
    for shard in before["shards"]:
        shard["compression"] = shard["zip_data"] = None
    assert json.loads(path.read_bytes()) == before


def test_br_without_its_library(copy_streaming, monkeypatch):

    hide_brotli(monkeypatch)
    monkeypatch.setattr("fastshard.streaming.rebuild.MAX_DATA", 1 << 20)
    monkeypatch.setattr("fastshard.streaming.rebuild.MAX_META", 1 << 20)
    known = copy_streaming("csv/br")
    before = (known.folder / "index.json").read_bytes()
    rebuild_index(known.folder)
    assert (known.folder / "index.json").read_bytes() == before


def test_the_shards_that_are_there(tmp_path):
    write(tmp_path, 100, size_limit=500)
    count = len(list(tmp_path.glob("*.mds")))
    (tmp_path / "shard.00001.mds").unlink()
    (tmp_path / "notes.mds").write_bytes(b"no shard")
    rebuild_index(str(tmp_path))
    shards = json.loads((tmp_path / "index.json").read_bytes())["shards"]
    found = [shard["raw_data"]["basename"] for shard in shards]
    assert found == [f"shard.{i:05}.mds" for i in range(count) if i != 1]


def test_offsets_that_wrapped(tmp_path):
    """A sparse file of more than 4 GiB, as old versions of upstream wrote it."""
    config = write(tmp_path / "small") / "shard.00000.mds"
    data = config.read_bytes()
    (first,) = struct.unpack_from("<I", data, 4)
    config = data[4 + 4 * 4 : first]
    rows = [3 << 30, 2 << 30, 100]
    first = 4 + 4 * 4 + len(config)
    ends = [first, first + rows[0], first + sum(rows[:2]), first + sum(rows)]
    path = tmp_path / "large" / "shard.00000.mds"
    path.parent.mkdir()
    with open(path, "wb") as file:
        file.write(struct.pack("<5I", 3, *[end % 2**32 for end in ends]) + config)
        file.truncate(ends[-1])
    rebuild_index(path.parent)
    (shard,) = json.loads((path.parent / "index.json").read_bytes())["shards"]
    assert shard["raw_data"]["bytes"] == ends[-1]
    assert shard["samples"] == 3


def test_no_shards(tmp_path):
    with pytest.raises(FileNotFoundError, match="no shards"):
        rebuild_index(tmp_path)
    with pytest.raises(FileNotFoundError):
        rebuild_index(tmp_path / "missing")


def test_a_shard_without_data_or_meta(tmp_path):
    for name in ("shard.00000.csv", "shard.00000.csv.meta"):
        folder = write(tmp_path / name, cls=CSVWriter)
        (folder / name).unlink()
        with pytest.raises(FileNotFoundError, match="shard 0 of"):
            rebuild_index(folder)


def test_files_that_do_not_belong_together(tmp_path):
    folder = write(tmp_path / "a")
    data = (folder / "shard.00000.mds").read_bytes()
    cases = {
        "shard.00000.csv": data,  # two formats
        "shard.000000.mds": data,  # two spellings of 0
        "shard.00000.mds.gz": data,  # a compression that it was not written with
        "shard.00001.json.meta": data,
    }
    for name, contents in cases.items():
        (folder / name).write_bytes(contents)
        with pytest.raises((FormatError, FileNotFoundError)):
            rebuild_index(folder)
        (folder / name).unlink()
    rebuild_index(folder)
    write(tmp_path / "b", compression="gz")
    (tmp_path / "b" / "shard.00000.mds.bz2").write_bytes(b"")
    with pytest.raises(FormatError, match="two compressed files"):
        rebuild_index(tmp_path / "b")


@pytest.mark.parametrize("cls", [MDSWriter, CSVWriter])
def test_damaged_shards(tmp_path, cls):
    folder = write(tmp_path / "a", cls=cls)
    name = "shard.00000.mds" if cls is MDSWriter else "shard.00000.csv.meta"
    path = folder / name
    whole = path.read_bytes()
    for size in thin(range(len(whole)), 7):
        path.write_bytes(whole[:size])
        with pytest.raises(FormatError):
            rebuild_index(folder)
    for i in thin(range(len(whole)), 3):
        damaged = bytearray(whole)
        damaged[i] ^= 0x55
        path.write_bytes(damaged)
        (folder / "index.json").unlink(missing_ok=True)
        try:
            rebuild_index(folder)
        except FormatError as error:
            assert str(folder) in error.path
            assert not (folder / "index.json").exists()


def test_a_truncated_compressed_shard(tmp_path):
    folder = write(tmp_path / "a", 500, compression="zstd")
    path = folder / "shard.00000.mds.zstd"
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(FormatError):
        rebuild_index(folder)
