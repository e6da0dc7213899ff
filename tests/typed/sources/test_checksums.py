"""Checksums of shards against those of an entry."""

import hashlib
import io
from types import SimpleNamespace

import pytest

from fastshard import typed
from support.servers.http import Server


def entry(urls, checksums):
    return SimpleNamespace(data_urls=urls, metadata={"checksums": checksums})


def digest(data):
    return hashlib.sha256(data).hexdigest()


def test_each_shard_has_its_answer(tmp_path):
    good, bad, plain, gone = (str(tmp_path / f"{i}.tar") for i in range(4))
    for path in (good, bad, plain):
        with open(path, "wb") as file:
            file.write(b"x" * 3_000_000)
    sums = {good: digest(b"x" * 3_000_000), bad: digest(b"x"), gone: digest(b"")}
    found = typed.verify_checksums(entry([good, bad, plain, gone], sums))
    assert list(found) == [good, bad, plain, gone]
    assert found[good] == "ok"
    assert found[bad] == "mismatch"
    assert found[plain] == "skipped"
    assert found[gone].startswith("error:")
    assert gone in found[gone]
    upper = entry([good], {good: sums[good].upper()})
    assert typed.verify_checksums(upper) == {good: "ok"}


@pytest.mark.parametrize("metadata", [None, {}, {"checksums": None}, {"checksums": []}])
def test_without_checksums_shards_are_skipped(metadata):
    made = SimpleNamespace(data_urls=["a.tar"], metadata=metadata)
    assert typed.verify_checksums(made) == {"a.tar": "skipped"}


def test_a_checksum_that_is_not_text_is_an_error(tmp_path):
    (tmp_path / "a.tar").write_bytes(b"")
    path = str(tmp_path / "a.tar")
    found = typed.verify_checksums(entry([path], {path: 7}))
    assert found == {path: "error:the checksum must be a str, is int"}
    kept = typed.DatasetEntry("a", "ref", [path], {"checksums": {path: 7}})
    assert typed.verify_checksums(kept) == found


def test_a_name_is_never_a_pattern_or_a_command(tmp_path):
    paths = [str(tmp_path / name) for name in ("a{0,1}.tar", "b*.tar")]
    for path in paths:
        with open(path, "wb") as file:
            file.write(b"data")
    urls = [*paths, "pipe:touch x.tar"]
    found = typed.verify_checksums(entry(urls, dict.fromkeys(urls, digest(b"data"))))
    assert found[paths[0]] == found[paths[1]] == "ok"
    assert "never run" in found["pipe:touch x.tar"]


def test_file_urls_are_local(tmp_path):
    for name in ("a b.tar", "b.tar"):
        (tmp_path / name).write_bytes(b"data")
    one, several = (f"file://{tmp_path}/{name}" for name in ("a%20b.tar", "*.tar"))
    sums = dict.fromkeys([one, several], digest(b"data"))
    found = typed.verify_checksums(entry([one, several], sums))
    assert found == {one: "ok", several: f"error:{several} names 2 shards"}


def test_remote_shards_are_read_on_request_alone():
    data = b"data" * 100_000
    with Server({"/a.tar": data}) as server:
        url, gone = f"{server.url}/a.tar", f"{server.url}/b.tar"
        made = entry([url, gone], {url: digest(data), gone: "0"})
        assert set(typed.verify_checksums(made).values()) == {"skipped"}
        assert server.requests == []
        found = typed.verify_checksums(made, remote=True)
    assert found[url] == "ok"
    assert found[gone].startswith("error:")


def test_a_source_opens_the_shards_that_it_lists(tmp_path):
    class Shards:
        def list_shards(self):
            return ["one", "two"]

        def open_shard(self, name):
            return io.BytesIO(b"of the source")

    path = str(tmp_path / "a.tar")
    (tmp_path / "a.tar").write_bytes(b"of the disk")
    sums = {"one": digest(b"of the source"), path: digest(b"of the disk")}
    found = typed.verify_checksums(entry(["one", path], sums), source=Shards())
    assert found == {"one": "ok", path: "ok"}
