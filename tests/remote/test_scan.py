"""Scans of small remote samples: blocks, their failures, memory that is used again."""

import gc
import pickle
import random
import sysconfig
import time

import pytest

import fastshard
from fastshard import RemoteError
from fastshard._core.io.source import MemoryPool
from fastshard.remote.file import RemoteFile
from support.marks import slow, thin
from support.servers.http import BEHAVIOURS, BROKEN, HARMLESS, Server
from support.tars import write_tar

COUNT = 400  # samples of a shard
SHARDS = 2
BLOCK = 256 << 10  # bytes that a kept sample keeps alive, at most


def body(k: int, i: int) -> bytes:
    return random.Random(1000 * k + i).randbytes((i * 37) % 3000)


def expected() -> list[tuple[str, bytes, bytes]]:
    return [
        (f"s{k}{i:05}", body(k, i), b"%d" % i)
        for k in range(SHARDS)
        for i in range(COUNT)
    ]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    files = {}
    for k in range(SHARDS):
        members = {}
        for i in range(COUNT):
            members[f"s{k}{i:05}.bin"] = body(k, i)
            members[f"s{k}{i:05}.txt"] = b"%d" % i
        files[f"/{k}.tar"] = write_tar(folder / f"{k}.tar", members).read_bytes()
    fastshard.build_index(folder)
    for path in folder.glob("*.fsi"):
        files[f"/{path.name}"] = path.read_bytes()
    return files


@pytest.fixture
def server(files):
    with Server(dict(files)) as server:
        yield server


def opened(server, **options):
    ds = fastshard.open(server.url + "/", **options)
    [ds.shards[k] for k in range(SHARDS)]
    return ds


def row(sample) -> tuple[str, bytes, bytes]:
    return sample.key, bytes(sample["bin"]), bytes(sample["txt"])


def test_a_scan_takes_few_requests(server):
    ds = opened(server)
    server.forget()

    assert [row(sample) for sample in ds] == expected()
    assert len(server.requests) < 20


@pytest.mark.parametrize("fields", [("txt",), ("txt", "bin"), ("bin",)])
def test_selected_fields(server, fields):
    ds = opened(server).select_fields(*fields)

    for sample, (key, data, text) in zip(ds, expected(), strict=True):
        values = {"bin": data, "txt": text}
        assert {f: bytes(sample[f]) for f in sample} == {f: values[f] for f in fields}
        assert sample.key == key


def test_members_of_a_shard(server):
    shard = fastshard.open_shard(server.at("/1.tar"))
    server.forget()

    views = list(shard.scan())

    assert list(map(bytes, views)) == [
        data for key, *row in expected() if key[1] == "1" for data in row
    ]
    assert all(len(view.obj) == len(view) for view in views)
    assert len(server.requests) < 10


def test_orders_that_jump_are_right(server):
    rows = {row[0]: row for row in expected()}
    ds = opened(server)
    for order in (ds.shuffle(3)[:99], ds[::7], ds[200::-1], ds[[5, 5, 6, 7, 6, 700]]):
        keys = list(order.keys())
        assert [row(sample) for sample in order] == [rows[key] for key in keys]


def test_kept_samples_and_views_keep_their_bytes(server):
    """Memory of a block is not filled again while a sample or a view needs it."""
    ds = opened(server, max_memory="256KiB")
    rng = random.Random(5)
    rows, samples, views = expected(), {}, {}
    for _ in range(3):
        for i, sample in enumerate(ds):
            assert row(sample) == rows[i]
            if rng.random() < 0.05:
                samples[i] = sample
            if rng.random() < 0.05:
                views[i] = sample["bin"]
        for i, sample in samples.items():
            assert row(sample) == rows[i]
        for i, view in views.items():
            assert view == rows[i][1]
            assert len(view.obj) == len(view)


def test_a_pool_fills_only_unreferenced_memory():
    pool = MemoryPool(1 << 20)
    memory, view = pool.take(20_000)
    view[:] = b"a" * 20_000
    kept = memoryview(memory)[1:]
    assert kept.readonly
    assert bytes(memory) == b"a" * 20_000
    del memory, view
    others = [pool.take(20_000) for _ in range(4)]
    for _, other in others:
        other[:] = b"b" * 20_000
    assert kept == b"a" * 19_999
    del kept, others, other
    for size in (0, 1, 16_384, 1 << 20, 5 << 20):
        memory, view = pool.take(size)
        assert len(memory) == len(view) == size
        assert not view.readonly


def test_a_view_to_fill_keeps_the_memory():
    """A connection may still write after the request was dropped."""
    pool = MemoryPool(1 << 20)
    view = pool.take(20_000)[1]
    other = pool.take(20_000)[1]
    other[:] = b"b" * 20_000
    view[:] = b"a" * 20_000
    assert other == b"b" * 20_000


@pytest.mark.skipif(
    bool(sysconfig.get_config_var("Py_GIL_DISABLED")), reason="no pool without the GIL"
)
def test_memory_of_a_pool_is_used_again():
    pool = MemoryPool(1 << 20)
    memory, view = pool.take(20_000)
    view[:] = b"a" * 20_000
    del memory, view
    memory, view = pool.take(19_000)
    assert bytes(view) == b"a" * 19_000
    assert len(memory) == 19_000


@pytest.mark.skipif(
    bool(sysconfig.get_config_var("Py_GIL_DISABLED")), reason="no pool without the GIL"
)
def test_a_drained_pool_keeps_nothing_until_the_next_take():
    pool = MemoryPool(1 << 20)
    memory, _ = pool.take(20_000)
    other, _ = pool.take(20_000)
    assert pool.spare == 0
    del memory, _
    assert pool.spare == 20_480
    pool.drain()
    assert pool.spare == 0
    del other
    assert pool.spare == 0
    memory, _ = pool.take(20_000)
    del memory, _
    assert pool.spare == 20_480


def test_memory_of_a_pool_outlives_it():
    pool = MemoryPool(1 << 20)
    memory, view = pool.take(20_000)
    view[:] = b"a" * 20_000
    del pool, view
    gc.collect()
    assert bytes(memory) == b"a" * 20_000
    with pytest.raises(TypeError, match="does not pickle"):
        pickle.dumps(memory)


def test_a_pool_keeps_no_more_than_its_limit():
    """Random sizes, many more than the pool keeps: each buffer has its own memory."""
    pool = MemoryPool(200_000)
    rng = random.Random(3)
    held = []
    for i in range(2_000):
        size = rng.randrange(16_384, 190_000)
        memory, view = pool.take(size)
        view[:8] = view[-8:] = i.to_bytes(8, "little")
        held.append((i, memory))
        if len(held) > 6:
            number, memory = held.pop(rng.randrange(len(held)))
            ends = memoryview(memory)
            assert ends[:8] == ends[-8:] == number.to_bytes(8, "little")


@pytest.mark.parametrize(
    "behaviour",
    [
        pytest.param(name, marks=[] if name in thin(sorted(BEHAVIOURS), 8) else [slow])
        for name in sorted(BEHAVIOURS)
    ],
)
def test_a_hostile_server_loses_and_forges_nothing(server, behaviour):
    """Whatever answers come for some time, each sample is right or an error."""
    ds = opened(server, timeout=0.6, attempts=1, max_memory="256KiB")
    rows = expected()
    items = iter(ds)
    found = [row(next(items)) for _ in range(30)]
    server.behave(None, behaviour)
    errors = []
    while len(errors) < 2 and len(found) + len(errors) < 300:
        try:
            found.append(row(next(items)))
        except RemoteError as error:
            errors.append(error)
            found.append(None)
    server.behave_well()
    found += [row(sample) for sample in items]

    assert len(found) == len(rows)
    assert all(mine in (None, right) for mine, right in zip(found, rows, strict=True))
    assert found.count(None) == len(errors)
    if behaviour in BROKEN:
        assert errors
    for error in errors:
        i = found.index(None)
        found[i] = rows[i]
        assert error.url == server.at(f"/{rows[i][0][1]}.tar")
        assert error.member.startswith(rows[i][0])
        assert behaviour not in HARMLESS - {"no_etag", "no_validators", "weak_etag"}


def test_a_shard_that_changes_is_an_error_for_each_sample_left(server):
    ds = opened(server, max_memory="256KiB", attempts=1)
    items = ds.iter(on_error="skip")
    found = [row(next(items)) for _ in range(COUNT - 80)]
    server.files["/0.tar"] = bytes(len(server.files["/0.tar"]))

    found += [row(sample) for sample in items]

    assert items.skipped + len(found) == SHARDS * COUNT
    assert found == [r for r in expected() if r in found]
    assert found[-COUNT:] == expected()[-COUNT:]
    with pytest.raises(RemoteError, match=r"has changed.*s000000.* of .*0\.tar"):
        next(iter(ds))


@pytest.mark.parametrize("where", ["start", "request"])
def test_an_interrupted_scan_continues_at_its_position(server, monkeypatch, where):
    ds = opened(server, max_memory="256KiB")
    original = getattr(RemoteFile, where)
    calls = []

    def interrupted(self, *args):
        calls.append(args)
        if len(calls) in (1, 2, 3, 7, 8):
            raise KeyboardInterrupt
        return original(self, *args)

    items = iter(ds)
    monkeypatch.setattr(RemoteFile, where, interrupted)
    found = []
    while True:
        try:
            found.append(row(next(items)))
        except KeyboardInterrupt:
            continue
        except StopIteration:
            break

    assert len(calls) > 8
    assert found == expected()


def test_a_scan_resumes_at_each_position(server):
    ds = opened(server)
    items = iter(ds)
    rows = expected()
    for i in thin(range(0, len(rows), 13), 6):
        items = iter(ds)
        for _ in range(i):
            next(items)
        state = items.state_dict()
        assert row(next(iter(ds.resume(state)))) == rows[i]


def test_the_items_left_are_counted(server):
    items = iter(opened(server)[5:705])
    for left in range(699, 0, -1):
        next(items)
        assert items.__length_hint__() == left


def test_a_window_of_memory_is_kept(server):
    ds = opened(server, max_memory="256KiB")
    most = 0
    items = iter(ds)
    for _ in items:
        most = max(most, items.buffered)
    assert 0 < most <= 80 << 10
    assert items.buffered == 0


def test_many_shards_are_opened_at_the_same_time(tmp_path, monkeypatch):
    monkeypatch.setenv("FASTSHARD_CACHE", "")
    files = {}
    for k in range(60):
        path = write_tar(tmp_path / "x.tar", {f"{k}.txt": b"%d" % k})
        files[f"/m-{k:02}.tar"] = path.read_bytes()
    with Server(files, latency=0.01) as server:
        url = server.url + "/m-{00..59}.tar"
        ds = fastshard.open(url, connections=5)
        assert len(ds) == 60
        assert 5 < server.peak <= 15
        assert server.connections <= 20
        server.forget()
        ds = fastshard.open(url)
        assert [bytes(s["txt"]) for s in ds] == [b"%d" % k for k in range(60)]
        assert 2 <= server.peak <= 16


LARGE = 256 << 10  # bytes of a member with a request of its own
FIRST_AHEAD = 8 << 20  # bytes of a new iteration's window
BURST = 36  # members of 9 MiB


def test_a_window_grows_after_pauses_of_the_consumer(tmp_path):
    """Each pause doubles it once, however often the consumer waits in between."""
    members = {f"{i:05}.bin": bytes(LARGE) for i in range(4 * BURST)}
    tar = write_tar(tmp_path / "a.tar", members).read_bytes()
    with Server({"/a.tar": tar}) as server:
        ds = fastshard.open(server.at("/a.tar"), connections=8)
        assert len(ds) == len(members)
        server.latency = 0.03
        server.forget()
        most = 0
        for i, sample in enumerate(ds, 1):
            assert len(sample["bin"]) == LARGE
            if i % BURST == 0:
                wait_for_silence(server)
                most = max(most, server.bytes_sent - i * LARGE)
    assert FIRST_AHEAD + 2 * LARGE < most < 3 * FIRST_AHEAD


def wait_for_silence(server):
    """Wait until the server has sent all that it was asked for."""
    sent, until = -1, time.monotonic() + 10
    while sent != server.bytes_sent and time.monotonic() < until:
        sent = server.bytes_sent
        time.sleep(0.15)
