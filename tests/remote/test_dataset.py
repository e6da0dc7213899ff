"""Datasets over HTTP: the same calls and the same bytes as for local files."""

import gzip
import io
import os
import pickle
import random
import tarfile
from pathlib import Path

import numpy as np
import pytest

import fastshard
from fastshard import FastshardError, FormatError, RemoteError
from fastshard.errors import StaleIndexError, StaleIndexWarning
from support.marks import slow
from support.servers.http import Server
from support.tar_blocks import END, extension, header, padded, record
from support.tars import write_tar

SHARDS, EACH = 3, 40


def write_dataset(folder: Path) -> None:
    """Write three shards: arrays, texts, and bytes of uneven sizes."""
    rng = random.Random(7)
    for k in range(SHARDS):
        with fastshard.ShardWriter(str(folder / f"t-{k:03}.tar")) as writer:
            for i in range(EACH):
                writer.write(
                    {
                        "__key__": f"s{k}{i:04}",
                        "npy": np.full(5, 100 * k + i, np.float32),
                        "txt": f"text {i}",
                        "bin": rng.randbytes(rng.choice([0, 1, 511, 3000, 40_000])),
                    }
                )


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    write_dataset(folder)
    return folder


@pytest.fixture(scope="module")
def local(folder):
    return fastshard.open(str(folder))


@pytest.fixture
def server(folder):
    files = {f"/d/{path.name}": path.read_bytes() for path in folder.glob("*.tar")}
    with Server(files) as server:
        yield server


def test_status_404_is_a_shard_not_found_error(server):
    for path, words in (
        ("/d/none.tar", "status 404"),
        ("/none", "neither a shard .* brace list.*status 404"),
    ):
        with pytest.raises(fastshard.ShardNotFoundError, match=words) as caught:
            len(fastshard.open(server.url + path))
        error = caught.value
        assert isinstance(error, fastshard.RemoteNotFoundError)
        assert error.path == error.url
        again = pickle.loads(pickle.dumps(error))
        assert (type(again), str(again)) == (type(error), str(error))
    with pytest.raises(fastshard.RemoteShardNotFoundError):
        fastshard.open_shard(server.url + "/d/none.tar")


@pytest.fixture
def indexed(server, folder, tmp_path):
    """Serve a ``dataset.fsi``, and an index beside each shard."""
    fastshard.build_index(str(folder), out=str(tmp_path))
    for path in tmp_path.iterdir():
        server.files[f"/d/{path.name}"] = path.read_bytes()
    return server


def url_of(server: Server) -> str:
    return server.at("/d/") + "t-{000..002}.tar"


def same(sample, expected) -> bool:
    return sample.key == expected.key and dict(sample) == dict(expected)


@pytest.mark.parametrize("has_index", [False, True])
def test_a_remote_dataset_equals_the_local_one(request, server, local, has_index):
    if has_index:
        request.getfixturevalue("indexed")
    ds = fastshard.open(url_of(server))

    assert len(ds) == len(local) == SHARDS * EACH
    assert all(map(same, ds, local))
    assert same(ds[17], local[17])
    assert same(ds["s20003"], local["s20003"])
    assert list(ds.keys()) == list(local.keys())
    assert ds.stats() == local.stats()


def test_a_folder_has_the_shards_of_its_index(indexed, local):
    for url in (indexed.at("/d"), indexed.at("/d/"), indexed.at("/d/dataset.fsi")):
        ds = fastshard.open(url)
        assert len(ds) == len(local)
        assert same(ds[-1], local[-1])


def test_the_length_comes_from_the_index_without_reading_a_shard(indexed):
    indexed.forget()

    assert len(fastshard.open(indexed.at("/d/"))) == SHARDS * EACH
    # The second is the mark of another format, which is not there.
    asked = {request.path for request in indexed.requests}
    assert asked == {"/d/dataset.fsi", "/d/index.json"}


def test_a_folder_without_an_index_is_an_error(server):
    with pytest.raises(FastshardError, match=r"nor a folder with a dataset\.fsi"):
        fastshard.open(server.at("/d/"))


def test_batches_equal_local_ones(indexed, local):
    ds = fastshard.open(url_of(indexed))
    positions = [3, 77, 3, -1, 40]
    [ds.shards[k] for k in range(SHARDS)]
    indexed.forget()

    samples = ds.get_many(positions)
    requested = len(indexed.requests)
    assert all(same(s, local[i]) for s, i in zip(samples, positions, strict=True))
    assert len(indexed.requests) == requested > 0


def test_columns_request_only_their_fields(indexed, local):
    ds = fastshard.open(url_of(indexed))
    positions = list(range(5, 15))
    ds.get_many([])
    indexed.forget()

    found = ds.columns(positions, ["npy"])["npy"]

    assert (found == local.columns(positions, ["npy"])["npy"]).all()
    assert found.dtype == np.float32


def test_members_are_read_into_one_buffer(indexed, local):
    ds = fastshard.open(url_of(indexed))
    positions = [100, 3, 50, 50]
    out, expected = np.zeros(300_000, "u1"), np.zeros(300_000, "u1")

    ends = ds.read_into(positions, out)

    assert (ends == local.read_into(positions, expected)).all()
    assert (out == expected).all()


def test_shuffled_split_and_resumed(indexed, local):
    ds = fastshard.open(url_of(indexed)).shuffle(5, 2).split_by_rank(1, 2)
    here = local.shuffle(5, 2).split_by_rank(1, 2)
    items = iter(ds)
    first = [next(items).key for _ in range(20)]
    state = items.state_dict()
    items.close()

    rest = [sample.key for sample in here.resume(state)]

    assert first + rest == [sample.key for sample in here]


def test_batches_are_collated(indexed, local):
    ds = fastshard.open(url_of(indexed)).select_fields("npy", "txt")

    for batch, expected in zip(ds.batches(32), local.batches(32), strict=True):
        assert (batch["npy"] == expected["npy"]).all()
        assert batch["txt"] == expected["txt"]


def test_members_are_views(indexed, local):
    ds = fastshard.open(url_of(indexed))

    assert list(ds.members) == list(local.members)
    assert ds.members.get_many([5, 2, 300]) == local.members.get_many([5, 2, 300])
    assert ds.members["s00003.txt"] == b"text 3"


def test_views_outlive_the_dataset(indexed):
    ds = fastshard.open(url_of(indexed))
    sample = ds.get_many([4])[0]
    view, array = sample["txt"], sample.array("npy")
    ds.close()
    del ds, sample

    assert view == b"text 4"
    assert view.readonly
    assert (array == 4).all()
    assert not array.flags.writeable


def test_a_view_holds_its_own_bytes_only(indexed):
    ds = fastshard.open(url_of(indexed))
    sample = ds.get_many(range(30))[7]

    view = sample["txt"]

    assert len(view.obj) == len(view) == len(b"text 7")


def test_a_sample_pickles_as_copied_bytes(indexed):
    sample = fastshard.open(url_of(indexed)).get_many([9])[0]
    again = pickle.loads(pickle.dumps(sample))

    assert same(again, sample)


def test_a_dataset_pickles(indexed, local):
    ds = pickle.loads(pickle.dumps(fastshard.open(url_of(indexed))))

    assert same(ds[50], local[50])
    shard = fastshard.open_shard(indexed.at("/d/t-001.tar"))
    assert pickle.loads(pickle.dumps(shard)).read(3) == shard.read(3)


def test_a_dataset_with_a_literal_token_does_not_pickle(indexed):
    ds = fastshard.open(url_of(indexed), token="secret")
    with pytest.raises(FastshardError, match="not pickled") as caught:
        pickle.dumps(ds)
    assert "secret" not in str(caught.value)


def test_an_iteration_stays_within_max_memory(indexed):
    ds = fastshard.open(url_of(indexed), max_memory="256KiB")

    most = 0
    for _ in ds:
        most = max(most, ds.memory_info()["buffered"])
    assert 0 < most <= (64 << 10) + 50_000


def test_closing_ends_an_iteration(indexed):
    ds = fastshard.open(url_of(indexed))
    items = iter(ds)
    next(items)
    ds.close()

    with pytest.raises(fastshard.ClosedError):
        next(items)


def test_failures_of_a_server_skip_only_the_affected_samples(indexed, local):
    ds = fastshard.open(url_of(indexed), attempts=1)
    [ds.shards[k] for k in range(SHARDS)]
    indexed.behave("/d/t-001.tar", "status_500")

    items = ds.iter(on_error="skip")
    found = [sample.key for sample in items]

    assert items.skipped == EACH
    assert found == [s.key for i, s in enumerate(local) if not EACH <= i < 2 * EACH]


def test_an_error_names_the_shard_and_the_member(indexed):
    ds = fastshard.open(url_of(indexed), attempts=1)
    sample = ds[50]
    indexed.behave("/d/t-001.tar", "status_500")

    with pytest.raises(RemoteError) as caught:
        sample["txt"]
    error = caught.value
    assert (error.url, error.member) == (indexed.at("/d/t-001.tar"), "s10010.txt")
    with pytest.raises(RemoteError, match=r"s10010\."):
        ds.get_many([50])


def test_a_missing_shard(server):
    ds = fastshard.open(server.at("/d/none.tar"))
    with pytest.raises(FileNotFoundError, match="none"):
        ds[0]


def test_local_and_remote_shards_do_not_mix(server, folder):
    with pytest.raises(FastshardError, match="only local or only remote"):
        fastshard.open([server.at("/d/t-000.tar"), str(folder / "t-001.tar")])


def test_wids_lists_urls(server, local):
    server.files["/d/list.json"] = (
        b'{"wids_version": 1, "shardlist": [{"url": "t-000.tar", "nsamples": 40}, '
        b'{"url": "t-001.tar", "nsamples": 40}]}'
    )
    ds = fastshard.open(server.at("/d/list.json"))

    assert len(ds) == 2 * EACH
    assert same(ds[60], local[60])


def test_a_query_goes_with_each_request_and_is_not_shown(server, local):
    url = server.at("/d/t-000.tar") + "?Signature=secret"
    shard = fastshard.open_shard(url)

    assert shard["s00003.txt"] == b"text 3"
    assert all(request.query == "Signature=secret" for request in server.requests)
    assert "secret" not in repr(shard) + shard.path


@pytest.mark.parametrize("kind", ["fsi", "json"])
def test_an_index_beside_a_shard_is_used(server, folder, tmp_path, kind):
    path = fastshard.open_shard(str(folder / "t-000.tar")).save_index(
        tmp_path / f"t-000.{kind}"
    )
    server.files[f"/d/t-000.{kind}"] = Path(path).read_bytes()

    shard = fastshard.open_shard(server.at("/d/t-000.tar"))

    assert shard.index == server.at(f"/d/t-000.{kind}")
    assert list(shard.names) == list(
        fastshard.open_shard(str(folder / "t-000.tar")).names
    )


@pytest.mark.parametrize("kind", ["fsi", "json"])
def test_a_stale_index_is_ignored(server, folder, tmp_path, kind):
    path = fastshard.open_shard(str(folder / "t-001.tar")).save_index(
        tmp_path / f"x.{kind}"
    )
    server.files[f"/d/t-000.{kind}"] = Path(path).read_bytes()

    with pytest.warns(StaleIndexWarning):
        shard = fastshard.open_shard(server.at("/d/t-000.tar"))
    assert shard.index is None
    assert shard["s00003.txt"] == b"text 3"
    with pytest.raises((StaleIndexError, FormatError)):
        fastshard.open_shard(
            server.at("/d/t-000.tar"), index=server.at(f"/d/t-000.{kind}")
        )


def test_an_index_may_be_in_another_folder(server, folder, tmp_path):
    fastshard.build_index(str(folder), out=str(tmp_path))
    server.files["/i/t-000.fsi"] = (tmp_path / "t-000.fsi").read_bytes()

    shard = fastshard.open_shard(
        server.at("/d/t-000.tar"), index=server.at("/i/t-000.fsi")
    )
    assert shard.index == server.at("/i/t-000.fsi")
    ds = fastshard.open(url_of(server), index=str(tmp_path))
    assert len(ds) == SHARDS * EACH
    assert ds.shards[0].index == str(tmp_path / "t-000.fsi")


def nested(folder: Path) -> bytes:
    """Return a tar whose large members are tars, with headers inside their data."""
    inner = io.BytesIO()
    with tarfile.open(fileobj=inner, mode="w") as tar:
        for i in range(300):
            info = tarfile.TarInfo(f"inner-{i}.bin")
            info.size = 3000
            tar.addfile(info, io.BytesIO(bytes(3000)))
    outer = io.BytesIO()
    with tarfile.open(fileobj=outer, mode="w") as tar:
        for i in range(60):
            info = tarfile.TarInfo(f"{i:03}.tar")
            info.size = len(inner.getvalue())
            tar.addfile(info, io.BytesIO(inner.getvalue()))
    return outer.getvalue()


@pytest.mark.parametrize(
    "kind",
    [
        "nested",
        "pax",
        "small",
        *(pytest.param(k, marks=slow) for k in ("gnu", "global")),
    ],
)
def test_a_remote_scan_equals_a_local_one(tmp_path, monkeypatch, kind):
    monkeypatch.setattr("fastshard.index.remote_scan.MIN_WALK_BYTES", 1 << 20)
    path = tmp_path / "a.tar"
    if kind == "nested":
        path.write_bytes(nested(tmp_path))
    else:
        size = 100 if kind == "small" else 30_000
        form = tarfile.PAX_FORMAT if kind in ("pax", "global") else tarfile.GNU_FORMAT
        headers = {"comment": "all"} if kind == "global" else None
        with tarfile.open(path, "w", format=form, pax_headers=headers) as tar:
            for i in range(400):
                info = tarfile.TarInfo(f"{'long' * 40 if i % 7 == 0 else ''}{i:04}.bin")
                info.size = size + i
                info.mtime = 1.5 if kind == "pax" else 1
                tar.addfile(info, io.BytesIO(random.Random(i).randbytes(size + i)))
    expected = fastshard.open_shard(str(path), index="none")

    with Server({"/a.tar": path.read_bytes()}) as server:
        shard = fastshard.open_shard(server.at("/a.tar"), index="none")
        moved = server.bytes_sent

    assert list(shard.names) == list(expected.names)
    assert (shard.offsets == expected.offsets).all()
    assert (shard.sizes == expected.sizes).all()
    assert (shard.end, dict(shard.skipped)) == (expected.end, dict(expected.skipped))
    if kind in ("pax", "gnu"):
        assert moved < expected.nbytes / 3


@slow
def test_repeated_headers_are_read_as_locally(tmp_path, monkeypatch):
    monkeypatch.setattr("fastshard.index.remote_scan.MIN_WALK_BYTES", 1 << 20)
    path = tmp_path / "a.tar"
    blocks = []
    for i in range(200):
        for name in (b"first", b"%03d.bin" % i):
            blocks.append(extension(b"L", name + b"\0" if i % 2 else name))
        for value in (b"20", b"1", b"30000"):
            blocks.append(extension(b"x", record(b"size", value)) * (i % 3))
        blocks += [header(size=b"%011o\0" % 30_000), padded(bytes([i]) * 30_000)]
    path.write_bytes(b"".join(blocks) + END)
    expected = fastshard.open_shard(path, index="none")
    assert list(expected.names) == [f"{i:03}.bin" for i in range(200)]

    with Server({"/a.tar": path.read_bytes()}) as server:
        shard = fastshard.open_shard(server.at("/a.tar"), index="none")
        moved = server.bytes_sent

    assert list(shard.names) == list(expected.names)
    assert (shard.offsets == expected.offsets).all()
    assert (shard.sizes == expected.sizes).all()
    assert moved < expected.nbytes / 2


def test_a_long_chain_of_headers_takes_few_requests(tmp_path):
    chain = extension(b"L", b"other\0") * 2_000 + extension(b"L", b"name\0")
    data = chain + header() + padded(b"abc") + END
    with Server({"/a.tar": data}) as server:
        shard = fastshard.open_shard(server.at("/a.tar"), index="none")
        assert len(server.requests) < 40
    assert list(shard.names) == ["name"]


def test_every_truncation_is_refused_as_locally(tmp_path, make_tar):
    path = make_tar({"a.bin": b"a" * 700, "b.bin": b"b" * 10})
    whole = path.read_bytes()
    with Server({}) as server:
        for n in range(0, 3 * 512 + 1024, 173):
            path.write_bytes(whole[:n])
            server.files["/a.tar"] = whole[:n]
            try:
                expected = list(fastshard.open_shard(str(path), index="none").names)
            except FormatError as error:
                with pytest.raises(FormatError) as caught:
                    fastshard.open_shard(server.at("/a.tar"), index="none")
                assert (caught.value.reason, caught.value.offset) == (
                    error.reason,
                    error.offset,
                )
            else:
                shard = fastshard.open_shard(server.at("/a.tar"), index="none")
                assert list(shard.names) == expected


def test_a_scan_is_made_once_with_a_cache(server, tmp_path, monkeypatch):
    monkeypatch.setenv("FASTSHARD_CACHE", str(tmp_path))
    first = fastshard.open_shard(server.at("/d/t-000.tar"))
    server.forget()

    again = fastshard.open_shard(server.at("/d/t-000.tar"))

    requested = [request.range for request in server.requests if "tar" in request.path]
    assert requested == [(0, 16383)]  # metadata only
    assert list(again.names) == list(first.names)
    assert (again.offsets == first.offsets).all()
    server.files["/d/t-000.tar"] = server.files["/d/t-001.tar"]
    assert fastshard.open_shard(server.at("/d/t-000.tar")).names[0].startswith("s1")


def test_bytes_read_are_cached(indexed, local, tmp_path):
    caching = {"cache_dir": str(tmp_path / "cache")}
    for sample, expected in zip(
        fastshard.open(url_of(indexed), **caching), local, strict=True
    ):
        assert same(sample, expected)
    indexed.forget()

    ds = fastshard.open(url_of(indexed), **caching)
    assert all(map(same, ds, local))
    # Only the first bytes of files are sent, to compare their versions.
    assert indexed.bytes_sent < 200_000

    offline = fastshard.open(url_of(indexed), offline=True, **caching)
    indexed.forget()
    assert all(map(same, offline, local))
    assert not indexed.requests


def test_offline_errors_name_the_uncached_bytes(indexed, tmp_path):
    caching = {"cache_dir": str(tmp_path / "cache")}
    ds = fastshard.open(url_of(indexed), **caching)
    ds.get_many([0, 1])
    [ds.shards[k] for k in range(SHARDS)]

    offline = fastshard.open(url_of(indexed), offline=True, **caching)
    assert offline[0]["txt"] == b"text 0"
    with pytest.raises(RemoteError, match="offline"):
        [bytes(view) for sample in offline for view in dict(sample).values()]
    with pytest.raises(RemoteError, match="offline"):
        fastshard.open(indexed.at("/e/other.tar"), offline=True, **caching)[0]


def test_a_completely_cached_shard_is_mapped(server, folder, tmp_path):
    caching = {"cache_dir": str(tmp_path / "cache")}
    # Without ranges the whole object is cached.
    server.behave("/d/t-000.tar", "ok_for_range")

    shard = fastshard.open_shard(server.at("/d/t-000.tar"), **caching)

    assert shard.mode == "mmap"
    assert list(shard) == list(fastshard.open_shard(str(folder / "t-000.tar")))
    assert shard.path == server.at("/d/t-000.tar")


def test_a_changed_shard_gets_another_cache_entry(indexed, tmp_path):
    caching = {"cache_dir": str(tmp_path / "cache"), "index": "none"}
    url = indexed.at("/d/t-000.tar")
    assert fastshard.open_shard(url, **caching)["s00003.txt"] == b"text 3"
    indexed.files["/d/t-000.tar"] = indexed.files["/d/t-001.tar"]

    assert fastshard.open_shard(url, **caching)["s10003.txt"] == b"text 3"


def test_a_field_opened_as_a_file_reads_only_the_requested_bytes(tmp_path):
    movie = random.Random(1).randbytes(3_000_000)
    path = write_tar(tmp_path / "a.tar", {"a.mp4": movie, "a.txt": b"hi"})
    with Server({"/a.tar": path.read_bytes()}) as server:
        sample = fastshard.open(server.at("/a.tar"))[0]
        server.forget()

        with sample.open("mp4") as file:
            file.seek(2_000_000)
            found = file.read(1000)
            file.seek(-10, os.SEEK_END)
            end = file.read()

        assert found == movie[2_000_000:2_001_000]
        assert end == movie[-10:]
        assert server.bytes_sent < 1_000_000


TEXT = b"path,label\n0.jpg,3\n" * 50


@pytest.fixture
def repository(tmp_path):
    """Serve a data repository, whose URLs have numbers for names."""
    files = {}
    for i in range(2):
        members = {f"{i}{k}.txt": f"{i} {k}".encode() for k in range(3)}
        files[f"/access/{i}"] = write_tar(tmp_path / f"{i}.tar", members).read_bytes()
    v7 = bytearray(files["/access/0"])
    v7[257:265] = bytes(8)
    v7[148:156] = b"%06o\0 " % (sum(v7[:148]) + 8 * 32 + sum(v7[156:512]))
    files |= {"/access/7": bytes(v7), "/access/text": TEXT, "/empty": b""}
    files["/access/gz"] = gzip.compress(TEXT)
    with Server(files) as server:
        yield server


@pytest.mark.parametrize(
    ("source", "count"),
    [
        ("/access/1", 3),
        ("/access/7", 3),
        ("/access/{0..1}", 6),
        ("/access/0?version=2", 3),
    ],
)
def test_a_tar_at_a_url_of_any_name_is_a_shard(repository, source, count):
    ds = fastshard.open(repository.url + source)
    assert len(ds) == count
    assert [sample.key for sample in pickle.loads(pickle.dumps(ds))] == list(ds.keys())
    with fastshard.open_shard(repository.at("/access/0")) as shard:
        assert bytes(shard["00.txt"]) == b"0 0"


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("/access/text", "is not a shard .* but a text file"),
        ("/access/gz", "compressed with gzip"),
        ("/empty", "is not a shard"),
    ],
)
def test_another_file_at_a_url_is_named(repository, source, words):
    with pytest.raises(FastshardError, match=words):
        fastshard.open(repository.url + source)


def test_another_file_at_the_url_of_a_tar_is_named(repository):
    repository.files["/x.tar"] = TEXT
    with pytest.raises(FormatError, match=r"expected a tar, got a text file - at http"):
        len(fastshard.open(repository.at("/x.tar")))


def test_a_refused_url_of_any_name_is_not_a_missing_shard(repository):
    repository.behave("/access/1", "status_403")
    with pytest.raises(RemoteError) as caught:
        fastshard.open(repository.at("/access/1"))
    assert (caught.value.status, caught.value.url) == (403, repository.at("/access/1"))
