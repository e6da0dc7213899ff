"""Claims of threads: the oldest batch first, in chunks, within the ring."""

import threading
from collections import Counter

import pytest

from fastshard.loader.loader import Loader
from fastshard.loader.options import LoaderOptions
from support.inside.datasets import replace_claim
from support.loader.epochs import OneEpoch

SECONDS = 30


class FakeSource:
    """Source of ints that counts calls, and waits where a test says so.

    Implements `BatchSource`.
    """

    def __init__(self, count, is_prepared=False, is_remote=False):
        self.count = count
        self.is_prepared = is_prepared
        self.is_remote = is_remote
        self.lock = threading.Lock()
        self.fetches = []  # ranges, in the order of the calls
        self.fetchers = []  # names of their threads
        self.chunks = []  # first position, length, name of the thread
        self.buffers = []
        self.before_prepare = self.before_collate = self.before_fetch = lambda k: None

    def __len__(self):
        return self.count

    def fetch(self, start, stop):
        self.before_fetch(start)
        with self.lock:
            self.fetches.append((start, stop))
            self.fetchers.append(threading.current_thread().name)
        return list(range(start, stop))

    def prepare(self, items, position, row, rows, buffers):
        with self.lock:
            thread = threading.current_thread().name
            self.chunks.append((position, len(items), thread))
        self.before_prepare(position)
        assert items == list(range(position, position + len(items)))
        return items

    def collate(self, items, buffers):
        self.before_collate(items[0])
        with self.lock:
            self.buffers.append(buffers)
        return items

    def check(self, item):
        pass

    def name_of(self, position):
        return f"item {position}"

    def state_after(self, done, skipped):
        return {"position": done, "skipped": skipped}


def make_loader(source, size, **options):
    options = LoaderOptions.checked(size, **options)
    return Loader(OneEpoch(source), options, lambda error: True)


@pytest.mark.parametrize("is_remote", [False, True])
@pytest.mark.parametrize("is_prepared", [False, True])
@pytest.mark.parametrize("threads", [1, 2, 8])
@pytest.mark.parametrize("size", [1, 3, 64])
def test_every_sample_comes_once_in_order(is_remote, is_prepared, threads, size):
    source = FakeSource(200, is_prepared, is_remote)
    batches = list(make_loader(source, size, threads=threads))
    assert [n for batch in batches for n in batch] == list(range(200))
    assert {len(batch) for batch in batches[:-1]} == {size}
    fetched = sorted(n for start, stop in source.fetches for n in range(start, stop))
    assert fetched == list(range(200))
    prepared = Counter(n for a, k, _ in source.chunks for n in range(a, a + k))
    assert prepared == ({} if is_prepared else dict.fromkeys(range(200), 1))


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("count", [0, 1, 7, 8, 9])
def test_number_of_batches(count, drop_last):
    loader = make_loader(FakeSource(count), 4, threads=2, drop_last=drop_last)
    expected = count // 4 if drop_last else -(-count // 4)
    assert len(loader) == expected
    batches = iter(loader)
    assert len(list(batches)) == expected
    assert (len(batches), next(batches, None)) == (0, None)
    assert len(loader) == expected


@pytest.mark.parametrize(
    ("size", "threads", "expected"),
    [(64, 2, 8), (64, 8, 4), (20, 2, 4), (256, 1, 8)],
)
def test_chunks_have_4_to_8_samples(size, threads, expected):
    source = FakeSource(2 * size)
    list(make_loader(source, size, threads=threads))
    first = {length for k, length, _ in source.chunks if k < size}
    others = {length for k, length, _ in source.chunks if k >= size}
    assert first == {4}  # its consumer waits: threads end together
    assert others == {expected}


def test_all_threads_share_the_first_batch():
    source = FakeSource(64)
    together = threading.Barrier(4, timeout=SECONDS)
    source.before_prepare = lambda k: together.wait() if k < 16 else None
    loader = make_loader(source, 16, threads=4)
    assert next(loader) == list(range(16))
    assert len({name for k, _, name in source.chunks if k < 16}) == 4
    loader.close()


def test_a_slow_chunk_does_not_stop_later_batches():
    source = FakeSource(80)
    go_on, others = threading.Event(), threading.Event()

    def wait(position):
        if position == 0:
            assert go_on.wait(SECONDS)
        elif position >= 24:
            others.set()

    source.before_prepare = wait
    loader = make_loader(source, 8, threads=2, ahead=3)
    found = []
    consumer = threading.Thread(target=lambda: found.extend(loader))
    consumer.start()
    assert others.wait(SECONDS)  # of later batches, while the first is not done
    assert not found
    go_on.set()
    consumer.join(SECONDS)
    assert [n for batch in found for n in batch] == list(range(80))


@pytest.mark.parametrize("ahead", [0, 1, 3])
def test_no_more_batches_are_begun_than_those_ahead(ahead):
    source = FakeSource(400)
    loader = make_loader(source, 4, threads=4, ahead=ahead)
    for k in range(20):
        next(loader)
        with source.lock:
            begun = max(stop for _, stop in source.fetches) // 4
        assert begun <= k + 1 + ahead
    loader.close()


def test_batches_are_ready_while_the_consumer_is_busy():
    source = FakeSource(400)
    made = threading.Semaphore(0)
    source.before_collate = lambda k: made.release()
    loader = make_loader(source, 4, threads=2, ahead=2)
    next(loader)
    for _ in range(3):  # the first one, and those ahead
        assert made.acquire(timeout=SECONDS)
    loader.close()


def test_a_prepared_source_is_asked_for_whole_batches_by_the_consumer():
    source = FakeSource(100, is_prepared=True)
    loader = make_loader(source, 10, threads=2)
    next(loader)
    assert source.fetches[0] == (0, 10)
    assert source.fetchers[0] == threading.current_thread().name
    loader.close()


def test_an_interrupted_batch_is_made_again():
    source = FakeSource(40, is_prepared=True)

    def interrupt(start):
        if start == 20:
            source.before_fetch = lambda k: None
            raise KeyboardInterrupt

    source.before_fetch = interrupt
    loader = make_loader(source, 10, threads=2)
    batches = iter(loader)
    assert [next(batches), next(batches)] == [list(range(10)), list(range(10, 20))]
    with pytest.raises(KeyboardInterrupt):
        next(batches)
    assert loader.position == 20
    assert list(batches) == [list(range(20, 30)), list(range(30, 40))]


def test_remote_bytes_are_fetched_by_one_thread_for_several_batches():
    source = FakeSource(400, is_remote=True)
    loader = make_loader(source, 10, threads=3, ahead=4)
    list(loader)
    assert len(set(source.fetchers)) == 1
    assert set(source.fetchers).isdisjoint(name for _, _, name in source.chunks)
    assert source.fetches[0] == (0, 10)
    assert any(stop - start >= 40 for start, stop in source.fetches)
    assert len(source.fetches) < 20


def test_a_failed_plan_is_fetched_batch_by_batch():
    source = FakeSource(100, is_remote=True)

    def fail(start):
        if start != 0 and sum(1 for _ in source.fetches) == 1:
            source.fetches.append((0, 0))
            raise OSError("the connection broke")

    source.before_fetch = fail
    batches = list(make_loader(source, 10, threads=2, ahead=3))
    assert [n for batch in batches for n in batch] == list(range(100))


def test_an_error_of_the_source_itself_reaches_the_consumer():
    source = FakeSource(100)
    source.prepare = lambda *args: []
    loader = make_loader(source, 10, threads=2)
    with pytest.raises(RuntimeError, match="prepared 0 of"):
        next(loader)
    loader.close()


def test_an_error_of_the_pipeline_reaches_the_consumer(monkeypatch):
    def fail(self):
        raise ZeroDivisionError("a bug")

    replace_claim(monkeypatch, fail)
    with pytest.raises(ZeroDivisionError, match="a bug"):
        next(make_loader(FakeSource(100), 10, threads=2))


def test_the_error_is_that_of_the_first_row():
    source = FakeSource(64)
    later = threading.Event()

    def fail(position):
        if position == 0:
            assert later.wait(SECONDS)
        if position < 32:
            later.set() if position else None
            raise OSError(f"row {position}")

    source.before_prepare = fail
    loader = make_loader(source, 32, threads=4)
    with pytest.raises(OSError, match="row 0"):
        next(loader)
    assert next(loader) == list(range(32, 64))
