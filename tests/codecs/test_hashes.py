"""Hashes of files of shards, against `hashlib`, and digests that upstream stored."""

import hashlib
import json
import sys

import pytest

from fastshard.codecs.hashes import HASHES, compute_hash, hash_file
from fastshard.errors import MissingLibraryError

xxhash = pytest.importorskip("xxhash")

XXH = {
    "xxh32": xxhash.xxh32_hexdigest,
    "xxh64": xxhash.xxh64_hexdigest,
    "xxh128": xxhash.xxh128_hexdigest,
    "xxh3_64": xxhash.xxh3_64_hexdigest,
    "xxh3_128": xxhash.xxh3_128_hexdigest,
}


def expected(algo, data):
    return XXH[algo](data) if algo in XXH else getattr(hashlib, algo)(data).hexdigest()


def test_names_are_those_of_upstream():
    assert len(HASHES) == len(set(HASHES)) == 17
    shakes = {name for name in hashlib.algorithms_guaranteed if "shake" in name}
    assert set(HASHES) == hashlib.algorithms_guaranteed - shakes | set(XXH)


@pytest.mark.parametrize("algo", HASHES)
@pytest.mark.parametrize("data", [b"", b"fastshard", bytes(300_000)], ids=len)
def test_digests(algo, data, tmp_path):
    (tmp_path / "file").write_bytes(data)
    assert compute_hash(algo, data) == expected(algo, data)
    assert compute_hash(algo, memoryview(bytearray(data))) == expected(algo, data)
    assert hash_file(tmp_path / "file", [algo]) == {algo: expected(algo, data)}


def test_a_file_is_hashed_by_chunks(tmp_path):
    data = bytes(range(256)) * 10_000
    (tmp_path / "file").write_bytes(data)
    found = hash_file(tmp_path / "file", HASHES)
    assert found == {algo: expected(algo, data) for algo in HASHES}


def test_digests_that_upstream_stored(streaming_data):
    folder = streaming_data["edge/all_hashes"].root
    checked = set()
    for shard in json.loads((folder / "index.json").read_bytes())["shards"]:
        for file in (shard["raw_data"], shard["zip_data"]):
            if file is not None and (folder / file["basename"]).exists():
                found = hash_file(folder / file["basename"], file["hashes"])
                assert found == file["hashes"]
                checked |= set(found)
    assert checked == set(HASHES)


@pytest.mark.parametrize("name", ["", "crc32", "shake_128", "SHA1", "xxh3"])
def test_other_names_are_refused(name):
    with pytest.raises(ValueError, match="not a supported hash algorithm"):
        compute_hash(name, b"")


def test_a_missing_library_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "xxhash", None)
    with pytest.raises(MissingLibraryError, match=r"xxhash.*fastshard\[mds\]"):
        compute_hash("xxh64", b"")
    assert len(compute_hash("sha1", b"")) == 40
