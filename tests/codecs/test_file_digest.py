"""SHA-256 of files that are being written."""

import hashlib
import os
import threading

import pytest

from fastshard.codecs import file_digest
from fastshard.codecs.file_digest import FileDigest


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    monkeypatch.setattr(file_digest, "CHUNK", 1000)


@pytest.mark.parametrize("size", [0, 1, 999, 1000, 1001, 12_345])
def test_the_digest_is_that_of_the_whole_file(tmp_path, size):
    path, data = tmp_path / "file", os.urandom(size)
    with open(path, "wb", buffering=0) as file:
        digest = FileDigest(str(path))
        for start in range(0, size, 700):
            file.write(data[start : start + 700])
            digest.follow(min(start + 700, size))
        digest.finish(size)
    assert digest.result() == hashlib.sha256(data).hexdigest()
    assert digest.result() == hashlib.sha256(data).hexdigest()  # again
    digest.close()


def test_a_file_that_is_cut_meanwhile_is_an_error(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(bytes(2500))
    digest = FileDigest(str(path))
    digest.follow(2000)
    digest.finish(4000)
    with pytest.raises(OSError, match=r"1,500 bytes too early.*file"):
        digest.result()


def test_a_digest_that_is_dropped_ends_its_thread(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(bytes(5000))
    before = threading.active_count()
    digest = FileDigest(str(path))
    digest.follow(5000)
    digest.close()
    digest.close()
    assert threading.active_count() == before
