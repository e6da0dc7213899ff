"""Async iteration over batches."""

import asyncio

import pytest

import fastshard
from support.servers.http import Server
from support.tars import write_numbers


@pytest.fixture
def dataset(tmp_path):
    folder = write_numbers(tmp_path, 40)
    files = {f"/d/{path.name}": path.read_bytes() for path in folder.iterdir()}
    names = sorted(name for name in files if name.endswith(".tar"))
    with Server(files) as server:
        yield fastshard.open([server.at(name) for name in names]), server


def test_batches_are_awaited_concurrently(dataset):
    ds, server = dataset
    expected = [[s.key for s in ds.get_many([i, i + 1])] for i in range(12)]
    server.latency = 0.1

    async def main():
        calls = [ds.get_many_async([i, i + 1]) for i in range(12)]
        return await asyncio.gather(*calls)

    found = asyncio.run(main())

    assert [[sample.key for sample in batch] for batch in found] == expected
    assert server.peak > 1


def test_the_event_loop_is_not_blocked(dataset):
    ds, server = dataset
    len(ds)
    server.latency = 0.2

    async def main():
        beats = 0
        task = asyncio.ensure_future(ds.get_many_async([0, 1, 2]))
        while not task.done():
            beats += 1
            await asyncio.sleep(0.01)
        return beats, await task

    beats, samples = asyncio.run(main())
    assert beats >= 5
    assert len(samples) == 3


def test_errors_are_raised_by_the_await(dataset):
    ds, _ = dataset
    with pytest.raises(IndexError):
        asyncio.run(ds.get_many_async([10**6]))


def test_a_cancelled_batch_is_dropped(dataset):
    ds, server = dataset
    len(ds)
    server.latency = 0.2

    async def main():
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(ds.get_many_async([0]), 0.01)
        return await ds.get_many_async([1])

    assert len(asyncio.run(main())) == 1


def test_trio_awaits_batches(dataset):
    trio = pytest.importorskip("trio")
    ds, _ = dataset

    async def main():
        return await ds.get_many_async([3])

    assert trio.run(main)[0].key == ds[3].key
