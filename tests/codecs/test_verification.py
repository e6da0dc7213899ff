"""Sizes and hashes of all files of a shard, against the index."""

import pytest

from fastshard.codecs.compression import parse_compression
from fastshard.codecs.hashes import HASHES, compute_hash
from fastshard.codecs.verification import find_file_faults
from fastshard.errors import MissingLibraryError
from fastshard.streaming.index import FileInfo

pytest.importorskip("xxhash")

DATA = bytes(range(256)) * 100


def describe(name, data, algos=HASHES):
    return FileInfo(name, len(data), {a: compute_hash(a, data) for a in algos})


@pytest.fixture
def files(tmp_path):
    """Write a raw file and a compressed one; return the pair that describes them."""
    packed = parse_compression("gz").compress(DATA)
    (tmp_path / "shard").write_bytes(DATA)
    (tmp_path / "shard.gz").write_bytes(packed)
    return describe("shard", DATA), describe("shard.gz", packed)


def faults(folder, *pairs, compression="gz", hashes=True):
    return list(find_file_faults(str(folder), pairs, compression, hashes=hashes))


@pytest.mark.parametrize("gone", ["", "shard", "shard.gz"])
def test_whole_files_have_no_faults(tmp_path, files, gone):
    if gone:
        (tmp_path / gone).unlink()
    for hashes in (False, True):
        assert faults(tmp_path, files, hashes=hashes) == []


def test_a_shard_without_files_is_a_fault(tmp_path, files):
    for name in ("shard", "shard.gz"):
        (tmp_path / name).unlink()
    for hashes in (False, True):
        (found,) = faults(tmp_path, files, hashes=hashes)
        assert found == (
            str(tmp_path / "shard"),
            0,
            "the file does not exist, nor does shard.gz",
        )
    (found,) = faults(tmp_path, (files[0], None))
    assert found.reason == "the file does not exist"


@pytest.mark.parametrize("algo", HASHES)
@pytest.mark.parametrize("which", [0, 1])
def test_each_hash_of_each_file_is_compared(tmp_path, files, which, algo):
    wrong = dict(files[which].hashes)
    wrong[algo] = "0" * len(wrong[algo])
    pair = list(files)
    pair[which] = pair[which]._replace(hashes=wrong)
    names = ["shard", "shard.gz"]
    found = faults(tmp_path, tuple(pair))
    # What the compressed file decompresses to is compared with the raw one's hashes.
    assert len(found) == 2 - which
    assert found[0].path == str(tmp_path / names[which])
    for fault in found:
        assert fault.reason.endswith(f"the index states {wrong[algo]}")
        assert f"{algo} is " in fault.reason
    assert faults(tmp_path, tuple(pair), hashes=False) == []


@pytest.mark.parametrize("name", ["shard", "shard.gz"])
def test_a_flipped_byte_is_found(tmp_path, files, name):
    data = bytearray((tmp_path / name).read_bytes())
    data[len(data) // 2] ^= 1
    (tmp_path / name).write_bytes(data)
    found = faults(tmp_path, files)
    assert {fault.path for fault in found} == {str(tmp_path / name)}
    assert len(found) == len(HASHES)
    assert faults(tmp_path, files, hashes=False) == []


@pytest.mark.parametrize("name", ["shard", "shard.gz"])
def test_another_size_is_found_without_hashes(tmp_path, files, name):
    data = (tmp_path / name).read_bytes()
    (tmp_path / name).write_bytes(data[:-3])
    for hashes in (False, True):
        (found,) = faults(tmp_path, files, hashes=hashes)
        assert found.path == str(tmp_path / name)
        assert found.offset == len(data) - 3
        assert "the index states" in found.reason


def test_a_compressed_file_is_decompressed(tmp_path, files):
    """Its own hashes are right, those of its content are wrong."""
    packed = parse_compression("gz").compress(DATA[::-1])
    (tmp_path / "shard.gz").write_bytes(packed)
    pair = files[0], describe("shard.gz", packed)
    found = faults(tmp_path, pair)
    assert len(found) == len(HASHES)
    assert all(fault.reason.startswith("decompressed, ") for fault in found)
    pair = files[0]._replace(bytes=len(DATA) - 1, hashes={}), pair[1]
    (tmp_path / "shard").unlink()
    (fault,) = faults(tmp_path, pair)
    assert "more than the 25,599 bytes" in fault.reason


def test_names_that_are_none_are_faults(tmp_path, files):
    raw = files[0]._replace(hashes={"crc32": "00"})
    assert [fault.reason for fault in faults(tmp_path, (raw, None))] == [
        "the hash 'crc32' is not supported"
    ]
    (fault,) = faults(tmp_path, files, compression="zip")
    assert "not a supported compression" in fault.reason


def test_a_missing_library_is_not_a_fault(tmp_path, files, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "xxhash", None)
    with pytest.raises(MissingLibraryError, match=r"fastshard\[mds\]"):
        faults(tmp_path, files)
    assert faults(tmp_path, files, hashes=False) == []
