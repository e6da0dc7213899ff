"""Datasets of blobs are read as those of local shards are."""

import hashlib
import multiprocessing
import pickle
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from numpy.typing import NDArray

from fastshard import typed
from fastshard.errors import RemoteNotFoundError
from fastshard.index import sidecar
from support.inside.typed import origin_of
from support.servers.atproto.dag import blob_cid
from support.servers.atproto.pds import FakePds
from support.typed.blobs import SAMPLES, Caption, numbers_of, store_blob, wait_for


def test_samples_are_those_of_the_files(stored, captions):
    ds = stored.dataset()

    assert list(ds.ordered()) == captions
    assert ds[7] == captions[7]
    assert ds[-1] == captions[-1]
    assert len(ds) == 12
    assert ds.get("000000000005") == captions[5]


def test_every_order_is_that_of_local_shards(stored, captions):
    ds = stored.dataset()
    local = typed.Dataset[Caption](stored.paths)

    for each in (ds, local):
        assert each.select([3, 0, 11])[0] == captions[3]
    assert list(ds.shuffled(seed=3)) == list(local.shuffled(seed=3))
    parts = [list(ds.split_by_rank(k, 3)) for k in range(3)]
    assert sorted(s.number for part in parts for s in part) == list(range(12))
    batches = [batch.number for batch in ds.ordered(batch_size=5)]
    assert [list(map(int, batch)) for batch in batches] == [
        [0, 1, 2, 3, 4],
        [5, 6, 7, 8, 9],
        [10, 11],
    ]


def test_an_iteration_continues_from_its_state(stored, captions):
    ds = stored.dataset()
    items = iter(ds.shuffle(seed=1))
    first = [next(items) for _ in range(5)]
    state = items.state_dict()

    rest = list(stored.dataset().shuffle(seed=1).iter(state))

    assert sorted(s.number for s in first + rest) == list(range(12))


def test_each_blob_is_downloaded_once(stored):
    for _ in range(2):
        list(stored.dataset().ordered())
        list(stored.dataset().shuffled())

    assert stored.downloads == 3


def test_a_first_sample_does_not_wait_for_all_blobs(stored):
    held = []

    def hold(call):
        if call.get("cid") == stored.refs[0]["cid"]:
            return
        held.append(call)
        stored.server.stopping.wait(20)
        raise ConnectionError

    stored.server.hook = hold
    assert stored.dataset().head(1)[0].number == 0


def test_shards_behind_the_first_are_downloaded_ahead(stored):
    next(iter(stored.dataset().ordered()))

    wait_for(lambda: stored.downloads == 3)


def test_arrays_are_views_of_the_mapped_file(fake_pds, tmp_path):
    class Vector(typed.PackableSample):
        x: NDArray[np.float32]

    path = tmp_path / "v.tar"
    typed.write_samples([Vector(x=np.arange(1000, dtype="f4"))], path)
    (account,) = fake_pds.accounts.values()
    source = typed.BlobSource(
        [store_blob(account, path.read_bytes())],
        fake_pds.url,
        cache_dir=tmp_path / "cache",
    )

    read_only = typed.Dataset[Vector](source)[0].x
    private = typed.Dataset[Vector](source, mode="private")[0].x
    private += 1

    assert not read_only.flags.writeable
    assert not read_only.flags.owndata
    assert read_only[5] == 5
    assert private[5] == 6
    assert typed.Dataset[Vector](source)[0].x[5] == 5
    assert typed.Dataset[Vector](source, mode="pread")[0].x[5] == 5


def test_an_index_is_stored_beside_a_blob(stored):
    list(stored.dataset().ordered())

    wait_for(lambda: len(list(stored.cache_dir.glob("??/*/data.fsi"))) == 3)
    assert len(stored.dataset()) == 12


def test_a_stream_of_files_is_that_of_the_blobs(stored):
    source = stored.source()

    found = {}
    for name, file in source.shards:
        with file:
            found[name] = file.read()

    assert list(found) == source.list_shards()
    assert list(found.values()) == [Path(path).read_bytes() for path in stored.paths]
    with source.open_shard(source.list_shards()[1]) as file:
        assert file.read() == Path(stored.paths[1]).read_bytes()
    with pytest.raises(KeyError, match="Shard not found"):
        source.open_shard("at://did:plc:abc/blob/other")


def test_a_source_is_a_value(stored):
    source = stored.source()

    assert isinstance(source, typed.DataSource)
    assert pickle.loads(pickle.dumps(source)) == source
    assert source != stored.source(timeout=6)
    assert typed.BlobSource.from_refs(source.list_shards()).list_shards() == (
        source.list_shards()
    )


def test_references_are_of_several_forms(stored):
    ref = stored.refs[0]
    blob = {"ref": {"$link": ref["cid"]}, "size": ref["size"], "did": ref["did"]}

    found = typed.BlobSource.from_refs([blob, {"did": "did:plc:abc", "cid": "b"}])

    assert found.blob_refs == [ref, {"did": "did:plc:abc", "cid": "b"}]


@pytest.mark.parametrize(
    "ref",
    [
        {"invalid": "data"},
        {"did": "did:plc:abc"},
        {"did": "did:plc:abc", "cid": 3},
        {"did": "did:plc:abc", "cid": "a/b"},
        {"did": "did:plc:abc", "cid": "a", "size": "7"},
        {"did": "did:plc:abc", "cid": "a", "size": -1},
        {"ref": {"$link": "bafyrei123"}},
        "at://did:plc:abc/other/cid",
        "at://did:plc:abc/blob/",
        "https://host/x.tar",
        7,
    ],
)
def test_a_non_reference_is_refused(ref):
    with pytest.raises(ValueError, match=r"blob|did"):
        typed.BlobSource.from_refs([ref])


def test_no_references_are_refused():
    with pytest.raises(ValueError, match="cannot be empty"):
        typed.BlobSource.from_refs([])


def test_a_dataset_pickles(stored, captions):
    ds = pickle.loads(pickle.dumps(stored.dataset()))

    assert list(ds.ordered()) == captions


def test_the_working_directory_is_not_part_of_a_dataset(stored, tmp_path, monkeypatch):
    ds = stored.dataset()
    shown, state, pickled = repr(ds), ds.state_dict(), pickle.dumps(ds)
    assert f"; at://{stored.refs[0]['did']}/blob/{{bafkrei" in shown

    monkeypatch.chdir(tmp_path)
    for again in (ds, pickle.loads(pickled), stored.dataset()):
        assert repr(again) == shown
        assert again.state_dict() == state


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_processes_download_a_blob_once(stored, method):
    if method not in multiprocessing.get_all_start_methods():
        pytest.skip("no fork on this system")
    ds = stored.dataset()

    with multiprocessing.get_context(method).Pool(2) as pool:
        found = pool.map(numbers_of, [ds] * 4)

    assert found == [list(range(12))] * 4
    assert stored.downloads == 3


def test_threads_download_a_blob_once(stored):
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(numbers_of, [stored.dataset() for _ in range(8)]))

    assert found == [list(range(12))] * 8
    assert stored.downloads == 3


def test_offline_reads_the_cache_alone(stored, captions):
    with pytest.raises(RemoteNotFoundError, match="offline"):
        stored.dataset(offline=True)[0]
    list(stored.dataset().ordered())
    stored.server.forget()

    assert list(stored.dataset(offline=True).ordered()) == captions
    unknown = typed.BlobSource(
        [{name: ref[name] for name in ("did", "cid")} for ref in stored.refs],
        cache_dir=stored.cache_dir,
        offline=True,
    )
    assert list(typed.Dataset[Caption](unknown).ordered()) == captions
    assert stored.server.count() == 0


def test_the_cache_stays_below_its_limit(stored, captions):
    limit = 2 * stored.refs[0]["size"] + 8192
    ds = stored.dataset(cache_limit=limit)

    assert list(ds.ordered()) == captions
    assert sum(path.stat().st_size for path in stored.files()) <= limit
    assert sorted(s.number for s in ds.shuffled()) == list(range(12))


def test_a_small_cache_evicts_no_shard_before_it_is_read(stored, tmp_path):
    samples = [Caption(text=str(i) * 1_000_000, number=i) for i in range(6)]
    ds = typed.write_samples(samples, tmp_path / "large.tar", maxcount=1)
    stored.refs[:] = [
        store_blob(stored.account, Path(path).read_bytes()) for path in ds.list_shards()
    ]
    found = stored.dataset(cache_limit=2_500_000).ordered()

    assert [sample.number for sample in found] == list(range(6))

    assert stored.downloads == 6
    assert sum(path.stat().st_size for path in stored.files()) <= 2_500_000


def test_a_process_that_is_killed_leaves_no_shard(stored, captions):
    code = (
        "import sys; from fastshard import typed\n"
        "refs, url, folder = eval(sys.argv[1])\n"
        "source = typed.BlobSource(refs, url, cache_dir=folder)\n"
        "typed.Dataset(source)[0]"
    )
    data = stored.account.blobs[stored.refs[0]["cid"]][0]

    def stall(call):
        connection = call.handler.connection
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(data))
        connection.sendall(data[:700])
        stored.server.stopping.wait(20)
        raise ConnectionError

    stored.server.hook = stall
    argument = repr((stored.refs, stored.server.url, str(stored.cache_dir)))
    with subprocess.Popen([sys.executable, "-c", code, argument]) as process:
        wait_for(lambda: bool(stored.unfinished()), 20)
        process.kill()
    assert stored.files() == []

    stored.server.hook = None
    assert list(stored.dataset().ordered()) == captions


def test_a_blob_above_the_limit_is_an_error_that_says_so(stored):
    with pytest.raises(OSError, match="cache_limit"):
        stored.dataset(cache_limit=1000)[0]


def test_without_a_cache_directory_nothing_is_read(stored, monkeypatch):
    monkeypatch.setenv("FASTSHARD_CACHE", "")

    with pytest.raises(typed.AtdataError, match="cache_dir"):
        stored.dataset(cache_dir=None)[0]


def test_the_default_cache_is_that_of_the_environment(stored, monkeypatch, captions):
    monkeypatch.setenv("FASTSHARD_CACHE", str(stored.cache_dir))

    assert stored.dataset(cache_dir=None)[0] == captions[0]
    assert len(stored.files()) == 3


def test_verification_and_commands_of_sets_read_blobs(stored):
    fields = origin_of(stored.dataset()).packed()

    assert fields.verify() == []
    assert fields.keys()[3] == "000000000003"
    assert blob_cid(Path(stored.paths[0]).read_bytes()) in repr(stored.source())


def test_checksums_of_blobs_are_compared(stored):
    urls = stored.source().list_shards()
    digests = [
        hashlib.sha256(Path(path).read_bytes()).hexdigest() for path in stored.paths
    ]
    checksums = dict(zip(urls, digests, strict=True))
    checksums[urls[2]] = "0" * 64
    entry = SimpleNamespace(data_urls=urls, metadata={"checksums": checksums})
    assert set(typed.verify_checksums(entry).values()) == {"skipped"}
    assert stored.downloads == 0
    found = typed.verify_checksums(entry, remote=True, source=stored.source())
    assert list(found.values()) == ["ok", "ok", "mismatch"]


def test_an_index_that_appears_while_a_shard_is_opened_is_not_an_error(
    stored, captions, monkeypatch
):
    list(stored.dataset().ordered())
    wait_for(lambda: len(list(stored.cache_dir.glob("??/*/data.fsi"))) == 3)
    real = sidecar.read_index

    def too_early(path, *args, **options):
        if path.endswith(".fsi"):
            raise FileNotFoundError(2, "No such file or directory", path)
        return real(path, *args, **options)

    monkeypatch.setattr(sidecar, "read_index", too_early)

    assert list(stored.dataset().ordered()) == captions


def test_a_named_server_is_asked_whatever_the_client(stored):
    with FakePds() as other:
        client = typed.Atmosphere(other.url, plc_url=other.plc.url, timeout=5)
        ds = stored.dataset(client=client)
        assert numbers_of(ds) == list(range(SAMPLES))
        assert other.count() == 0
