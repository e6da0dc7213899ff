"""Readers under mosaicml-streaming: a stand-in for its modules, and itself."""

import copy
import json
import os
import pickle
import sys
from types import ModuleType, SimpleNamespace

import pytest

import fastshard.streaming
from fastshard.errors import MissingLibraryError
from fastshard.streaming import MDSReader, Reader, install, reader_from_json, uninstall
from fastshard.streaming.installation import READERS

FORMATS = ("csv", "json", "mds", "tsv", "xsv")


class Original:
    """A reader of upstream's."""


def get_shards(self, world, allow_unsafe_types):
    """Make readers as upstream's streams do."""
    index = json.loads((self.root / "index.json").read_bytes())
    table = sys.modules["streaming.base.format"]._readers
    readers = [
        table[shard["format"]].from_json(self.local, "", shard)
        for shard in index["shards"]
    ]
    for reader in readers:
        reader.validate(allow_unsafe_types)
    return readers


@pytest.fixture
def upstream(monkeypatch):
    """Return modules with the names of mosaicml-streaming that are replaced."""

    class Stream:
        def __init__(self, root, remote=None):
            self.root, self.local, self.remote = root, str(root), remote

    Stream.get_shards = get_shards
    modules = {name: ModuleType(name) for name in ("streaming", "streaming.base")}
    modules["streaming.base.format"] = SimpleNamespace(
        _readers=dict.fromkeys((*FORMATS, "more"), Original)
    )
    modules["streaming.base.stream"] = SimpleNamespace(Stream=Stream)
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    yield SimpleNamespace(
        readers=modules["streaming.base.format"]._readers, Stream=Stream
    )
    uninstall()


def test_its_readers_are_replaced_and_restored(upstream):
    before = dict(upstream.readers)
    install()
    install()  # again: nothing
    for name in FORMATS:
        ours = upstream.readers[name]
        assert issubclass(ours, getattr(fastshard.streaming, f"{name.upper()}Reader"))
    assert upstream.readers["more"] is Original
    assert upstream.Stream.get_shards is not get_shards
    uninstall()
    assert upstream.readers == before
    assert upstream.Stream.get_shards is get_shards
    uninstall()  # again: nothing
    assert upstream.readers == before


def test_a_reader_of_the_users_own_stays(upstream):
    install()
    upstream.readers["mds"] = Reader
    uninstall()
    assert upstream.readers["mds"] is Reader
    assert upstream.readers["json"] is Original


def test_mosaicml_streaming_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "streaming", None)
    monkeypatch.delitem(sys.modules, "streaming.base.format", raising=False)
    for call in (install, uninstall):
        with pytest.raises(MissingLibraryError, match="mosaicml-streaming"):
            call()


def readers_of(upstream, known, remote=None):
    install()
    return upstream.Stream(known.root, remote).get_shards(None, False)


def listing_of(root):
    return {str(path) for path in root.rglob("*") if path.is_file()}


@pytest.mark.parametrize("name", ["edge/sequence_1000", "json/none", "xsv/none"])
def test_values_are_those_of_readers(upstream, streaming_data, name):
    known = streaming_data[name]
    for reader, shard in zip(
        readers_of(upstream, known), known.index["shards"], strict=True
    ):
        plain = reader_from_json(str(known.root), None, shard)
        assert repr(list(reader)) == repr(list(plain))
        assert [reader.get_sample_data(i) for i in range(len(reader))] == [
            plain.get_sample_data(i) for i in range(len(plain))
        ]


@pytest.mark.parametrize("name", ["mds/zstd", "json/zstd", "csv/zstd"])
def test_nothing_is_decompressed(upstream, copy_streaming, name):
    known = copy_streaming(name)
    before = listing_of(known.root)
    (reader, *_) = readers_of(upstream, known, "remote")
    for read in (reader.get_sample_data, reader.get_item, reader.__getitem__):
        with pytest.raises(FileNotFoundError):
            read(0)
    assert listing_of(known.root) == before


@pytest.mark.parametrize("name", ["mds/none", "json/none", "csv/none"])
def test_a_removed_file_is_found_at_once(upstream, copy_streaming, name):
    known = copy_streaming(name)
    (reader, *_) = readers_of(upstream, known, "remote")
    first = reader.get_sample_data(0)
    path = known.root / reader.raw_data.basename
    kept = path.read_bytes()
    for _ in range(3):
        path.unlink()
        for read in (reader.get_sample_data, reader.get_item, reader.__getitem__):
            with pytest.raises(FileNotFoundError):
                read(0)
        path.write_bytes(kept)  # downloaded again
        assert reader.get_sample_data(0) == first
        assert reader[0]


def test_files_of_a_remote_are_evicted_as_upstream_does(upstream, copy_streaming):
    known = copy_streaming("edge/raw_only")
    (reader, *_) = readers_of(upstream, known, "s3://bucket/data")
    assert reader.evict() == reader.get_raw_size()
    with pytest.raises(FileNotFoundError):
        reader[0]


@pytest.mark.parametrize("remote", [None, "", "self", "file"])
def test_the_only_copy_stays_without_a_remote(upstream, copy_streaming, remote):
    known = copy_streaming("edge/raw_only")
    remote = {"self": f"{known.root}/.", "file": f"file://{known.root}"}.get(
        remote, remote
    )
    (reader, *_) = readers_of(upstream, known, remote)
    assert reader.evict() == 0
    assert reader[0]


@pytest.mark.parametrize("name", ["csv/none", "csv/zstd"])
@pytest.mark.parametrize("keep", [True, False])
def test_parts_of_a_shard_are_not_counted_twice(upstream, copy_streaming, name, keep):
    """The result of `set_up_local` counts the remaining files."""
    known = copy_streaming(name)
    for reader in readers_of(upstream, known, "remote"):
        pair = reader.file_pairs[0]
        os.remove(known.root / (pair[1] or pair[0]).basename)
        assert reader.set_up_local(listing_of(known.root), keep) == 0
        assert reader.evict() == 0
    assert listing_of(known.root) == {str(known.root / "index.json")}


def test_parts_of_a_shard_stay_without_a_remote(upstream, copy_streaming):
    known = copy_streaming("csv/none")
    (reader, *_) = readers_of(upstream, known)
    (known.root / reader.raw_meta.basename).unlink()
    assert reader.set_up_local(listing_of(known.root), True) == 0
    assert (known.root / reader.raw_data.basename).exists()


def test_readers_pickle(upstream, copy_streaming):
    known = copy_streaming("edge/raw_only")
    (reader, *_) = readers_of(upstream, known, "s3://bucket/data")
    for again in (pickle.loads(pickle.dumps(reader)), copy.deepcopy(reader)):
        assert type(again) is READERS["mds"]
        assert again.has_remote
        assert list(again) == list(reader)
    assert isinstance(reader, MDSReader)


def test_pickles_need_permission(upstream, streaming_data):
    install()
    stream = upstream.Stream(streaming_data["edge/pkl"].root)
    with pytest.raises(ValueError, match="unsafe"):
        stream.get_shards(None, False)
    (reader,) = stream.get_shards(None, True)
    assert reader[1] == {"p": "two"}


# mosaicml-streaming itself, which leaves files open

leaves_files_open = pytest.mark.filterwarnings(
    "ignore::ResourceWarning",
    "ignore::pytest.PytestUnraisableExceptionWarning",
    "ignore::UserWarning:streaming",
)


@pytest.fixture
def installed():
    """Install the readers."""
    pytest.importorskip("streaming.base")
    install()
    yield
    uninstall()


@leaves_files_open
def test_a_local_dataset(installed, copy_streaming):
    from streaming.base.local import LocalDataset

    known = copy_streaming("edge/sequence_1000")
    dataset = LocalDataset(str(known.root))
    assert {type(shard) for shard in dataset.shards} == {READERS["mds"]}
    assert [sample["sample"] for sample in dataset] == list(range(0, 3000, 3))
    uninstall()
    theirs = LocalDataset(str(known.root))
    assert not isinstance(theirs.shards[0], Reader)
    assert theirs[999] == dataset[999]


@leaves_files_open
@pytest.mark.parametrize("keep_zip", [True, False])
def test_a_streaming_dataset(installed, streaming_data, tmp_path, keep_zip):
    from streaming import StreamingDataset

    known = streaming_data["mds/zstd"]
    dataset = StreamingDataset(
        remote=str(known.root),
        local=str(tmp_path / "local"),
        batch_size=1,
        keep_zip=keep_zip,
        cache_limit="400kb",
        shuffle=True,
    )
    assert all(shard.has_remote for shard in dataset.shards)
    values = sorted(sample["int"] for sample in dataset)
    assert len(values) == len(known.samples)
    assert any((tmp_path / "local").glob("*.zstd")) == keep_zip
