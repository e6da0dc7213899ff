"""Random access to the files of a caller's own source."""

import gc
import os
import pickle
import re
import threading

import pytest

import fastshard
from fastshard import typed
from fastshard.typed.sources.files import MAX_OPEN
from fastshard.typed.sources.opening import as_source, open_source
from support.typed.sources import OwnSource

msgpack = pytest.importorskip("msgpack")


def value(i):
    return {"i": i, "text": f"no. {i}" * i}


@pytest.fixture
def names(tmp_path):
    for k in range(3):
        with fastshard.ShardWriter(tmp_path / f"{k}.tar") as writer:
            for i in range(10 * k, 10 * k + 10):
                data = msgpack.packb(value(i))
                writer.write({"__key__": f"{i:06d}", "msgpack": data, "txt": b"beside"})
        (tmp_path / f"{k}.tar").rename(tmp_path / f"shard {k}?")
    return [f"shard {k}?" for k in range(3)]


@pytest.fixture(params=[True, False], ids=["seekable", "stream"])
def source(request, tmp_path, names):
    return OwnSource(tmp_path, names, request.param)


def numbers(ds):
    return [sample.decode("i")["i"] for sample in ds]


def test_samples_are_read_by_position(source):
    assert isinstance(source, typed.DataSource)
    ds = open_source(source)
    assert len(ds) == 30
    assert ds[17].decode() == {"__key__": "000017", **value(17)}
    assert ds["000023"].decode("i")["i"] == 23
    assert numbers(ds) == list(range(30))
    assert numbers(ds.shuffle(seed=1)) == [
        i.decode("i")["i"] for i in ds.shuffle(seed=1)
    ]
    assert sorted(numbers(ds.shuffle(seed=1))) == list(range(30))
    assert [len(batch["i"]) for batch in ds.batches(20)] == [20, 10]
    assert len(source.opened) == 3  # once each


def test_shards_are_opened_when_they_are_needed(source):
    ds = open_source(source)
    assert source.opened == []
    assert next(iter(ds)).decode("i")["i"] == 0
    assert source.opened[0] == "shard 0?"


def test_files_that_can_seek_are_not_copied(tmp_path, names):
    size = (tmp_path / names[0]).stat().st_size
    source = OwnSource(tmp_path, names[:1])
    ds = open_source(source)
    assert ds[0].decode("i")["i"] == 0
    assert source.bytes_read < size + 40_000
    assert source.closed == []


def test_streams_are_closed_when_they_are_copied(tmp_path, names):
    source = OwnSource(tmp_path, names, seekable=False)
    len(open_source(source))
    assert sorted(source.closed) == names


def test_files_are_closed_with_the_dataset(tmp_path, names):
    source = OwnSource(tmp_path, names)
    ds = open_source(source)
    numbers(ds)
    del ds
    gc.collect()
    assert sorted(source.closed) == names


def test_few_files_are_open_at_a_time(tmp_path, names):
    source = OwnSource(tmp_path, names)
    source.names = [f"{k:03d}" for k in range(MAX_OPEN + 5)]
    for name in source.names:
        (tmp_path / name).write_bytes((tmp_path / names[0]).read_bytes())
    ds = open_source(source)
    assert len(ds) == 10 * len(source.names)
    assert len(source.opened) - len(source.closed) <= MAX_OPEN
    assert numbers(ds)[-10:] == list(range(10))  # opened again
    assert len(source.opened) - len(source.closed) <= MAX_OPEN


def test_threads_close_the_files_of_each_other(tmp_path, names, monkeypatch):
    monkeypatch.setattr("fastshard.typed.sources.files.MAX_OPEN", 1)
    monkeypatch.setattr("fastshard.remote.file.FIRST", 0)  # no bytes at opening
    ds = open_source(OwnSource(tmp_path, names))
    assert numbers(ds.shuffle(seed=1)) == numbers(ds.shuffle(seed=1))
    assert sorted(numbers(ds.shuffle(seed=1))) == list(range(30))


def test_a_dataset_of_a_source_pickles(source):
    ds = open_source(source)
    numbers(ds)
    again = pickle.loads(pickle.dumps(ds))
    assert again[21].decode("i")["i"] == 21
    assert numbers(again.shuffle(seed=3)) == numbers(ds.shuffle(seed=3))


def test_an_iteration_continues_where_it_was(source):
    ds = open_source(source)
    samples = ds.iter()
    for _ in range(12):
        next(samples)
    assert numbers(ds.iter(samples.state_dict())) == list(range(12, 30))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_child_opens_files_of_its_own(tmp_path, names):
    """A shared file would have one position for both processes."""
    source = OwnSource(tmp_path, names)
    ds = open_source(source)
    numbers(ds)
    before = len(source.opened)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            status = numbers(ds) != list(range(30)) or len(source.opened) == before
        finally:
            os._exit(int(status))
    assert numbers(ds) == list(range(30))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_threads_read_one_file(source):
    ds = open_source(source)
    failures = []

    def work(seed):
        try:
            assert sorted(numbers(ds.shuffle(seed=seed))) == list(range(30))
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_a_file_that_shrinks_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr("fastshard.typed.sources.files.MAX_OPEN", 1)
    with fastshard.ShardWriter(tmp_path / "a.tar") as writer:
        for i in range(2):
            payload = msgpack.packb({"data": bytes(40_000)})
            writer.write({"__key__": str(i), "msgpack": payload})
    (tmp_path / "b.tar").write_bytes((tmp_path / "a.tar").read_bytes())
    ds = open_source(OwnSource(tmp_path, ["a.tar", "b.tar"]))
    assert len(ds[1].decode()["data"]) == 40_000
    (tmp_path / "a.tar").write_bytes((tmp_path / "a.tar").read_bytes()[:-512])
    ds[3].decode()  # closes a.tar
    with pytest.raises(fastshard.RemoteError, match=r"has changed.*a\.tar"):
        ds[0].decode()


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (None, "must block"),
        ("text", "must return bytes, got str"),
        (b"x" * (3 << 20), "more than asked for"),
        (b"", "the file ended at byte 0"),
    ],
)
def test_files_that_answer_wrongly(tmp_path, names, monkeypatch, answer, reason):
    source = OwnSource(tmp_path, names)
    file = source.open_shard(names[0])
    monkeypatch.setattr(file, "read", lambda size=-1: answer)
    monkeypatch.setattr(source, "open_shard", lambda name: file)
    with pytest.raises(fastshard.FastshardError, match=reason):
        len(open_source(source))


@pytest.mark.parametrize("answer", [None, b"data", "a.tar"], ids=repr)
def test_a_non_file_is_named(tmp_path, names, monkeypatch, answer):
    source = OwnSource(tmp_path, names)
    monkeypatch.setattr(source, "open_shard", lambda name: answer)
    reason = re.escape(f"open_shard({names[0]!r}) of OwnSource must return a binary")
    with pytest.raises(TypeError, match=reason):
        len(open_source(source))
    with pytest.raises(TypeError, match=reason):
        next(iter(open_source(source)))


@pytest.mark.parametrize(
    ("names", "error", "reason"),
    [
        ([], FileNotFoundError, "OwnSource lists no shard"),
        ([7], TypeError, r"must return names, got 7"),
        ([""], TypeError, "must return names"),
        (["a", "a"], fastshard.FastshardError, "a is listed twice"),
    ],
)
def test_lists_that_name_no_shards(tmp_path, names, error, reason):
    with pytest.raises(error, match=reason):
        open_source(OwnSource(tmp_path, names))


def test_errors_of_the_source_are_its_own(tmp_path, names):
    source = OwnSource(tmp_path, [*names, "gone"])
    with pytest.raises(FileNotFoundError):
        len(open_source(source))

    class Failing(OwnSource):
        def open_shard(self, shard_id):
            raise LookupError("no such luck")

    with pytest.raises(LookupError, match="no such luck"):
        open_source(Failing(tmp_path, names))[0]


def test_a_non_tar_is_named(tmp_path, names, source):
    (tmp_path / names[1]).write_bytes(b"\x1f\x8b" + bytes(2000))
    ds = open_source(source)
    with pytest.raises(fastshard.FormatError) as caught:
        len(ds)
    assert caught.value.path == names[1].replace("?", "?")


def test_paths_and_sources_are_sources(tmp_path, names, source):
    assert as_source(source) is source
    assert as_source("a.tar") == typed.URLSource("a.tar")
    assert as_source(["a.tar", "b.tar"]) == typed.URLSource(["a.tar", "b.tar"])
    with pytest.raises(TypeError, match="got int"):
        as_source(7)


def test_urls_and_options_reach_the_dataset(tmp_path, names):
    (tmp_path / names[0]).rename(tmp_path / "a{0,1}.tar")
    ds = open_source(typed.URLSource([str(tmp_path / "a{0,1}.tar")]), mode="pread")
    assert numbers(ds) == list(range(10))
    with pytest.raises(TypeError, match="no argument prefetsch"):
        open_source(str(tmp_path / "a{0,1}.tar"), prefetsch=True)
