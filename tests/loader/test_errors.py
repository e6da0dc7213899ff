"""Loader: errors of samples at their turn, skipped and masked rows, invalid options."""

import threading

import numpy as np
import pytest

import fastshard
from fastshard.errors import ClosedError, FormatError
from support.inside.datasets import set_timeout
from support.servers.http import Server
from support.tars import write_numbers

COUNT, SIZE = 40, 8
BAD = (9, 10, 30)


def fail_at(*bad):
    """Return a function for `map` that raises for some samples."""

    def double(sample):
        n = int(sample.text("txt"))
        if n in bad:
            raise OSError(f"sample {n} cannot be had")
        return {"__key__": sample.key, "n": 2 * n, "row": np.full(3, n, "f4")}

    return double


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_numbers(tmp_path_factory.mktemp("numbers"), COUNT, per=9)


@pytest.fixture
def ds(folder):
    with fastshard.open(folder) as dataset:
        yield dataset


def drain(loader):
    """Return the numbers of each batch, or its error's text."""
    found = []
    while True:
        try:
            found.append([n // 2 for n in next(loader)["n"].tolist()])
        except StopIteration:
            return found
        except OSError as error:
            found.append(str(error))


@pytest.mark.parametrize("threads", [1, 2, 8])
def test_an_error_comes_at_its_batch_and_later_batches_follow(ds, threads):
    loader = ds.loader(SIZE, threads=threads, map=fail_at(*BAD))

    assert drain(loader) == [
        list(range(8)),
        "sample 9 cannot be had",
        list(range(16, 24)),
        "sample 30 cannot be had",
        list(range(32, 40)),
    ]


def test_the_state_after_an_error_is_that_before_its_batch(ds):
    with ds.loader(SIZE, threads=2, map=fail_at(9)) as loader:
        next(loader)
        with pytest.raises(OSError, match="sample 9"):
            next(loader)
        assert (loader.position, loader.state_dict()["position"]) == (8, 8)
        next(loader)
        assert (loader.position, loader.state_dict()["position"]) == (24, 24)


def test_the_error_has_notes_as_in_batches(ds):
    part = ds.map(fail_at(9))
    with pytest.raises(OSError, match="sample 9") as expected:
        list(part.batches(SIZE))
    with pytest.raises(OSError, match="sample 9") as found, part.loader(SIZE) as loader:
        list(loader)
    assert found.value.__notes__[0] == expected.value.__notes__[0]
    assert "position 9 of" in found.value.__notes__[1]


@pytest.mark.parametrize("threads", [1, 2, 8])
def test_skipped_rows_close_up(ds, threads):
    loader = ds.loader(SIZE, threads=threads, map=fail_at(*BAD), on_error="skip")
    found, skipped = [], []
    for batch in loader:
        found += [n // 2 for n in batch["n"].tolist()]
        assert len(batch["row"]) == len(batch["__key__"]) == len(batch["n"])
        skipped += batch["__skipped__"]

    assert found == [n for n in range(COUNT) if n not in BAD]
    assert [position for position, _, _ in skipped] == list(BAD)
    assert [text for _, _, text in skipped] == [
        f"sample {n} cannot be had" for n in BAD
    ]
    assert "'000009'" in skipped[0][1]
    assert loader.skipped == 3
    assert loader.state_dict()["skipped"] == 3


@pytest.mark.parametrize("threads", [1, 2, 8])
def test_masked_rows_are_zeros_and_shapes_stay(ds, threads):
    loader = ds.loader(SIZE, threads=threads, map=fail_at(*BAD), on_error="mask")
    count = 0
    for k, batch in enumerate(loader):
        expected = np.arange(k * SIZE, (k + 1) * SIZE)
        ok = ~np.isin(expected, BAD)
        np.testing.assert_array_equal(batch["__ok__"], ok)
        np.testing.assert_array_equal(batch["n"], np.where(ok, 2 * expected, 0))
        assert (batch["row"].shape, batch["row"].dtype) == ((SIZE, 3), np.float32)
        np.testing.assert_array_equal(batch["row"][:, 1], np.where(ok, expected, 0))
        assert [key is not None for key in batch["__key__"]] == ok.tolist()
        count += 1
    assert count == 5


def test_a_batch_that_fails_whole_has_rows_of_zeros_or_none(ds):
    bad = fail_at(*range(8, 16))
    masked = list(ds.loader(SIZE, map=bad, on_error="mask"))
    assert masked[1]["row"].shape == (SIZE, 3)
    assert not masked[1]["row"].any()
    assert not masked[1]["__ok__"].any()
    skipped = list(ds.loader(SIZE, map=bad, on_error="skip"))
    assert (len(skipped), skipped[1]["row"].shape) == (5, (0, 3))
    assert len(skipped[1]["__skipped__"]) == 8


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("bad", [SIZE, 2 * SIZE + 3, 5 * SIZE - 1])
def test_first_batches_without_a_good_row_are_masked(ds, bad, threads):
    """Their shapes are those of a later batch."""
    options = {"map": fail_at(*range(bad)), "on_error": "mask", "threads": threads}
    batches = list(ds.loader(SIZE, **options))
    ok = np.concatenate([batch["__ok__"] for batch in batches])
    assert ok.tolist() == [i >= bad for i in range(5 * SIZE)]
    rows = np.concatenate([batch["row"] for batch in batches])
    assert rows.shape == (5 * SIZE, 3)
    assert not rows[:bad].any()
    assert rows[bad:, 1].tolist() == list(range(bad, 5 * SIZE))


def test_masking_needs_a_batch_that_shows_the_shapes(ds):
    with ds.loader(SIZE, map=fail_at(*range(5 * SIZE)), on_error="mask") as loader:
        for k in range(5):
            with pytest.raises(OSError, match=f"sample {k * SIZE}") as error:
                next(loader)
            assert "shapes" in error.value.__notes__[-1]
        assert next(loader, None) is None


def test_masking_needs_dicts(ds):
    with (
        ds.map(len).loader(SIZE, on_error="mask") as loader,
        pytest.raises(TypeError, match="dicts, got ndarray"),
    ):
        next(loader)


@pytest.mark.parametrize("on_error", ["skip", "mask"])
@pytest.mark.parametrize("decoded", [False, True])
def test_damaged_arrays_are_skipped(tmp_path, on_error, decoded):
    with fastshard.ShardWriter(tmp_path / "a.tar") as writer:
        for i in range(10):
            array = b"broken" if i in (3, 4) else np.full(2, i, "f4")
            writer.write({"__key__": f"{i}", "npy": array})
    ds = fastshard.open(tmp_path / "a.tar")
    part = ds.decode() if decoded else ds
    with part.loader(5, threads=2, on_error=on_error) as loader:
        batches = [dict(batch) for batch in loader]
        assert loader.skipped == 2
    if on_error == "skip":
        assert batches[0]["__key__"] == ["0", "1", "2"]
        assert [entry[:2] for entry in batches[0]["__skipped__"]] == [
            (3, "3.npy"),
            (4, "4.npy"),
        ]
        assert batches[1]["__skipped__"] == []
    else:
        assert batches[0]["__ok__"].tolist() == [True] * 3 + [False] * 2


def test_errors_of_code_are_raised_in_any_case(ds):
    def fail(sample):
        raise KeyError("a mistake")

    for on_error in ("raise", "skip", "mask"):
        with (
            ds.loader(SIZE, map=fail, on_error=on_error) as loader,
            pytest.raises(KeyError, match="a mistake"),
        ):
            next(loader)


def test_a_thread_without_memory_reaches_the_consumer(ds):
    def fail(sample):
        raise MemoryError("no memory")

    with (
        ds.loader(SIZE, map=fail, on_error="skip") as loader,
        pytest.raises(MemoryError, match="no memory"),
    ):
        next(loader)


def test_a_closed_dataset_raises(ds):
    loader = ds.loader(SIZE, threads=2, on_error="skip")
    next(loader)
    ds.close()
    with pytest.raises(ClosedError):
        list(loader)
    loader.close()


def test_a_shard_that_shrinks_is_an_error_of_its_batches(tmp_path):
    path = tmp_path / "a.tar"
    with fastshard.ShardWriter(path) as writer:
        for i in range(64):
            writer.write({"__key__": f"{i:03}", "npy": np.full(4096, i, "f4")})
    with fastshard.open(path, mode="pread") as ds, ds.loader(4, threads=2) as loader:
        next(loader)
        with path.open("r+b") as file:
            file.truncate(path.stat().st_size // 2)
        with pytest.raises((FormatError, OSError)):
            list(loader)


def test_a_map_that_never_returns_ends_with_a_timeout(ds):
    go_on = threading.Event()

    def wait(sample):
        assert go_on.wait(60)
        return {"n": int(sample.text("txt"))}

    loader = ds.loader(SIZE, threads=2, map=wait, timeout=0.05)
    for _ in range(2):
        with pytest.raises(TimeoutError, match="position 0"):
            next(loader)
    assert loader.state_dict()["position"] == 0
    go_on.set()
    loader.close()
    assert next(loader, None) is None


def test_after_a_timeout_the_same_batch_comes(ds):
    go_on = threading.Event()

    def wait(sample):
        assert go_on.wait(60)
        return {"n": int(sample.text("txt"))}

    with ds.loader(SIZE, threads=2, map=wait, timeout=0.05) as loader:
        for _ in range(3):
            with pytest.raises(TimeoutError):
                next(loader)
        go_on.set()
        set_timeout(loader, 60)
        numbers = [n for batch in loader for n in batch["n"].tolist()]
    assert numbers == list(range(COUNT))


@pytest.mark.parametrize("size", [1, 7, COUNT])
def test_raw_batches_come_with_a_timeout(ds, size):
    """Threads make batches that take less than their hand-over, too."""
    expected = [batch["__key__"] for batch in ds.batches(size)]
    with ds.loader(size, threads=2, timeout=10) as loader:
        assert [batch["__key__"] for batch in loader] == expected


@pytest.mark.parametrize("seconds", [1e18, float("inf")])
def test_a_timeout_may_be_longer_than_clocks_count(ds, seconds):
    with ds.loader(SIZE, timeout=seconds) as loader:
        assert len(list(loader)) == COUNT // SIZE


def test_a_map_that_asks_the_loader_is_refused(ds):
    def ask(sample):
        return next(loader)

    with (
        ds.loader(SIZE, threads=2, map=ask) as loader,
        pytest.raises(RuntimeError, match="must not ask"),
    ):
        next(loader)


def test_a_map_may_use_another_loader(ds):
    other = ds.loader(1)
    lock = threading.Lock()

    def ask(sample):
        with lock:
            return {"n": int(next(other)["cls"][0])}

    with ds.loader(SIZE, threads=2, map=ask) as loader:
        assert sorted(np.concatenate([b["n"] for b in loader])) == list(range(COUNT))


def test_a_second_thread_is_refused(ds):
    entered, go_on = threading.Event(), threading.Event()

    def wait(sample):
        entered.set()
        assert go_on.wait(60)
        return sample.key

    with ds.loader(SIZE, threads=1, map=wait) as loader:
        first = threading.Thread(target=next, args=(loader,))
        first.start()
        assert entered.wait(60)
        with pytest.raises(ValueError, match="another thread"):
            next(loader)
        go_on.set()
        first.join()


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("batch_size", 0),
        ("threads", 0),
        ("ahead", -1),
        ("timeout", 0),
        ("on_error", "ignore"),
        ("ragged", "cut"),
    ],
)
def test_invalid_options_are_refused(ds, option, value):
    options = {"batch_size": SIZE, option: value}
    with pytest.raises(ValueError, match=option):
        ds.loader(**options)


def test_options_of_other_types_are_refused(ds):
    with pytest.raises(TypeError, match="allocate"):
        ds.loader(SIZE, allocate=3)
    with pytest.raises(TypeError):
        ds.loader(SIZE, threads=1.5)
    with pytest.raises(ValueError, match="another collate"):
        ds.loader(SIZE, ragged="pad", collate=list)
    with pytest.raises(TypeError, match="threads="):
        ds.loader(SIZE, num_workers=2)


@pytest.mark.parametrize("option", ["hold", "copy"])
def test_options_of_lent_batches_are_refused_by_name(ds, option):
    with pytest.raises(TypeError, match=f"{option}.*batches may be kept"):
        ds.loader(SIZE, **{option: 2})


@pytest.mark.parametrize(
    ("allocate", "message"),
    [
        (lambda field, shape, dtype: np.empty(shape, "u1"), "writable"),
        (lambda field, shape, dtype: np.empty(shape[::-1], dtype), "writable"),
        (lambda field, shape, dtype: None, "NoneType"),
    ],
)
def test_memory_that_does_not_fit_is_refused(ds, allocate, message):
    with (
        ds.loader(SIZE, allocate=allocate) as loader,
        pytest.raises(ValueError, match=message),
    ):
        next(loader)


def test_a_server_that_dies_is_an_error_at_the_batchs_turn(tmp_path):
    (path,) = write_numbers(tmp_path / "r", COUNT, per=COUNT).glob("*.tar")
    with Server({"/d/n.tar": path.read_bytes()}) as server:
        remote = fastshard.open(server.url + "/d/n.tar", timeout=0.5)
        with remote.loader(SIZE, threads=2, ahead=1, on_error="skip") as loader:
            first = next(loader)
            assert first["cls"].tolist() == list(range(SIZE))
            state = loader.state_dict()  # later it needs the shards' sizes
            server.leave()
            rest = []
            while (batch := next(loader, None)) is not None:
                rest.append(batch)
            skipped = sum(len(batch["__skipped__"]) for batch in rest)
            assert skipped > 0
            assert sum(len(batch["__key__"]) for batch in rest) + skipped == 32
            assert loader.state_dict() == state | {
                "position": COUNT,
                "skipped": skipped,
                "finished": True,
            }
