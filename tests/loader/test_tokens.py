"""`Dataset.tokens`: windows against plain concatenation, in every order and format."""

import bisect
import itertools
import json
import pickle

import numpy as np
import pytest

import fastshard
from fastshard._core.loader.tokens import TokenTable
from fastshard.columnar import ShardedDatasetWriter
from fastshard.errors import FieldNotFoundError, FormatError, StateError
from fastshard.streaming import MDSWriter
from support.builders import npy
from support.inside.datasets import (
    are_documents_read,
    locator_of,
    order_of,
)
from support.marks import slow
from support.tars import write_tar

PER_SHARD = 40


def make_documents(count, seed=0, longest=300, dtype="u2"):
    """Documents of 0 to `longest` tokens."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(0, longest + 1, count)
    lengths[:: max(1, count // 5)] = 0
    return [rng.integers(1, 60_000, n).astype(dtype) for n in lengths]


def write_documents(folder, documents, per_shard=PER_SHARD):
    """Write tars with each document as ``npy`` and ``bin``, another field between."""
    folder.mkdir(exist_ok=True)
    for start in range(0, len(documents), per_shard):
        members = {}
        for i, document in enumerate(documents[start : start + per_shard], start):
            members[f"{i:06}.npy"] = npy(document)
            members[f"{i:06}.txt"] = b"x" * (i % 7)
            members[f"{i:06}.bin"] = document.tobytes()
        write_tar(folder / f"t-{start:06}.tar", members)
    return folder


def stream(documents, eos=None):
    """Tokens of all documents, and for each its document and position."""
    parts = []
    for i, document in enumerate(documents):
        tokens = document.tolist()
        if eos is not None and i + 1 < len(documents):
            tokens.append(eos)
        parts += [(token, i, k) for k, token in enumerate(tokens)]
    return parts


def expected_windows(documents, length, stride=None, eos=None, drop_last=True):
    """Windows, document numbers and positions, by plain Python."""
    tokens = stream(documents, eos)
    stride = stride or max(1, length - 1)
    windows, seen = [], 0
    for start in itertools.count(0, stride):
        part = tokens[start : start + length]
        if len(part) < length and (drop_last or not part or seen >= len(tokens)):
            break
        seen = start + len(part)
        padding = length - len(part)
        row = [token for token, _, _ in part] + [eos or 0] * padding
        numbers, positions = [], []
        for _key, group in itertools.groupby(part, key=lambda each: each[1]):
            group = list(group)
            numbers += [len(set(numbers))] * len(group)
            positions += range(len(group))
        windows.append(
            (row, numbers + [-1] * padding, positions + [0] * padding),
        )
    return windows


def expected_rows(documents, length, block=10_000, eos=None):
    """Rows of best fit in decreasing order, as sets of (document, start)."""
    found = []
    between = eos is not None
    for first in range(0, len(documents), block):
        items, rows, gaps = [], [], []
        for i in range(first, min(first + block, len(documents))):
            size = len(documents[i])
            for start in range(0, size - length + 1, length):
                found.append([(i, start)])
            if size % length:
                items.append((size % length + between, i, size - size % length))
        for size, i, start in sorted(items, key=lambda item: (-item[0], item[1])):
            at = bisect.bisect_left(gaps, (size, 0))
            if at < len(gaps):
                room, row = gaps.pop(at)
            else:
                room, row = length + between, len(rows)
                rows.append([])
            bisect.insort(gaps, (room - size, row))
            rows[row].append((i, start))
        found += [sorted(row) for row in rows]
    return found


@pytest.fixture(scope="module")
def documents():
    return make_documents(100, longest=80)


@pytest.fixture(scope="module")
def folder(tmp_path_factory, documents):
    return write_documents(tmp_path_factory.mktemp("tokens") / "data", documents)


@pytest.fixture
def ds(folder):
    with fastshard.open(folder) as dataset:
        yield dataset


FIELDS = [("npy", None), ("bin", "u2"), ("npy", "u2")]


def thinned(*columns):
    """Every combination: a third of them in the suite, the others slow."""
    return [
        pytest.param(*values, marks=[slow] if (i + i // 12) % 3 else [])
        for i, values in enumerate(itertools.product(*columns))
    ]


@pytest.mark.parametrize(
    ("size", "drop_last", "eos", "kind"),
    thinned(
        [(65, None), (1, None), (64, 64), (50, 3), (20, 45), (9999, 977)],
        [True, False],
        [None, 50_256],
        FIELDS,
    ),
)
def test_windows_are_those_of_the_concatenated_documents(
    ds, documents, size, drop_last, eos, kind
):
    (length, stride), (field, dtype) = size, kind
    windows = ds.tokens(
        field, length, dtype=dtype, stride=stride, eos=eos, drop_last=drop_last
    )
    expected = expected_windows(documents, length, stride, eos, drop_last)
    assert len(windows) == len(expected)
    found = [row.tolist() for batch in windows.batches(64) for row in batch]
    assert found == [row for row, _, _ in expected]
    for i in {0, len(expected) // 2, len(expected) - 1} if expected else ():
        assert windows[i].tolist() == expected[i][0]
        assert windows[i].dtype == np.uint16


@pytest.mark.parametrize("eos", [None, 7])
@pytest.mark.parametrize("drop_last", [True, False])
@pytest.mark.parametrize("length", [4, 128, 1000])
def test_document_numbers_and_positions(ds, documents, eos, drop_last, length):
    windows = ds.tokens("npy", length, eos=eos, drop_last=drop_last, documents=True)
    expected = expected_windows(documents, length, None, eos, drop_last)
    rows = []
    for batch in windows.batches(16):
        assert list(batch) == ["tokens", "document", "position"]
        assert batch["document"].dtype == batch["position"].dtype == np.int32
        rows += zip(*(batch[name].tolist() for name in batch), strict=True)
    assert rows == expected
    if expected:
        item = windows[-1]
        assert tuple(item[name].tolist() for name in item) == expected[-1]


@pytest.mark.parametrize("eos", [None, 9])
@pytest.mark.parametrize("length", [40, 128, 301])
def test_rows_of_best_fit_are_those_of_a_plain_packing(ds, documents, length, eos):
    rows = ds.tokens(
        "bin", length, dtype="u2", pack="best-fit", eos=eos, documents=True
    )
    expected = expected_rows(documents, length, eos=eos)
    found = [
        row for batch in rows.batches(10) for row in zip(*batch.values(), strict=False)
    ]
    assert len(found) == len(rows) == len(expected)
    for (tokens, numbers, positions), parts in zip(found, expected, strict=True):
        row, marks, places = [], [], []
        for k, (i, start) in enumerate(parts):
            part = documents[i][start : start + length].tolist()
            part += [eos] if eos is not None and k + 1 < len(parts) else []
            row += part
            marks += [k] * len(part)
            places += range(len(part))
        padding = length - len(row)
        assert tokens.tolist() == row + [0] * padding
        assert numbers.tolist() == marks + [-1] * padding
        assert positions.tolist() == places + [0] * padding


def test_best_fit_packs_blocks_of_ten_thousand_documents(tmp_path):
    lengths = np.random.default_rng(3).integers(0, 12, 10_060)
    documents = [np.full(n, i % 200 + 1, "u1") for i, n in enumerate(lengths)]
    members = {f"{i:06}.bin": d.tobytes() for i, d in enumerate(documents)}
    with fastshard.open(write_tar(tmp_path / "d.tar", members)) as ds:
        rows = ds.tokens("bin", 16, dtype="u1", pack="best-fit")
        (batch,) = rows.batches(100_000)
    expected = expected_rows(documents, 16)
    assert len(batch) == len(expected)
    for row, parts in zip(batch, expected, strict=True):
        tokens = np.concatenate(
            [documents[i][start : start + 16] for i, start in parts]
        )
        assert row.tobytes().rstrip(b"\0") == tokens.tobytes()


def test_padding_of_best_fit_is_below_one_percent(tmp_path):
    rng = np.random.default_rng(5)
    lengths = np.minimum(rng.lognormal(5, 1.2, 4_000), 20_000).astype(int)
    members = {f"{i:06}.bin": bytes(n) for i, n in enumerate(lengths)}
    with fastshard.open(write_tar(tmp_path / "d.tar", members)) as ds:
        rows = ds.tokens("bin", 4097, dtype="u1", pack="best-fit")
        assert len(rows) * 4097 <= 1.01 * lengths.sum()


def test_documents_come_in_the_order_of_the_dataset(ds, documents):
    mask = np.arange(100) % 3 == 1
    order = np.asarray(order_of(ds.shuffle(seed=5)))
    for part, chosen in [
        (ds[mask], np.flatnonzero(mask)),
        (ds.shuffle(seed=5), order),
        (ds[::-1], np.arange(100)[::-1]),
        (ds[[7, 7, 3]], [7, 7, 3]),
        (ds.split_by_rank(1, 3), [*range(1, 100, 3), 0]),
        (
            ds[10:95].shuffle(seed=2)[:20],
            np.asarray(order_of(ds[10:95].shuffle(2)[:20])),
        ),
    ]:
        for field, dtype in FIELDS:
            windows = part.tokens(field, 33, dtype=dtype, eos=1)
            expected = expected_windows([documents[i] for i in chosen], 33, eos=1)
            assert [w.tolist() for w in windows] == [row for row, _, _ in expected]


def test_orders_of_windows(ds):
    windows = ds.tokens("npy", 17)
    every = np.stack(list(windows))
    shuffled = windows.shuffle(seed=3, epoch=1)
    order = np.asarray(order_of(shuffled))
    assert (np.stack(list(shuffled)) == every[order]).all()
    assert (np.concatenate(list(shuffled.batches(50))) == every[order]).all()
    shares = [shuffled.split_by_rank(rank, 3, drop_last=False) for rank in range(3)]
    joined = np.concatenate([np.concatenate(list(s.batches(7))) for s in shares])
    assert sorted(map(bytes, joined)) == sorted(map(bytes, every))
    chosen = windows[[5, -1, 5]]
    assert (next(chosen.batches(3)) == every[[5, -1, 5]]).all()
    assert (np.stack(windows.get_many([5, -1])) == every[[5, -1]]).all()
    with pytest.raises(IndexError):
        windows[len(windows)]


@pytest.mark.parametrize("pack", ["stream", "best-fit"])
@pytest.mark.parametrize("world", [1, 2, 3])
def test_a_resumed_epoch_has_every_window_once(ds, pack, world):
    windows = ds.tokens("npy", 25, pack=pack)
    shuffled = windows.shuffle(seed=3, epoch=4)
    expected = np.concatenate(list(shuffled.batches(100)))
    for cut in range(0, len(windows) // (8 * world), 3):
        first = shuffled.split_by_rank(0, world).batches(8)
        for _ in range(cut):
            next(first)
        state = json.loads(json.dumps(first.state_dict()))
        rest = [
            np.concatenate([*part.batches(8, state=state)])
            for rank in range(2)
            for part in [windows.shuffle(3).split_by_rank(rank, 2, drop_last=False)]
        ]
        left = expected[cut * 8 * world :]
        assert sorted(map(bytes, np.concatenate(rest))) == sorted(map(bytes, left))


def test_states_of_other_windows_are_refused(ds, folder):
    state = ds.tokens("npy", 25).state_dict(3)
    for other in (
        ds.tokens("npy", 26),
        ds.tokens("bin", 25, dtype="u2"),
        ds.tokens("npy", 25, eos=0),
        ds.tokens("npy", 25, pack="best-fit"),
        ds.shuffle(1).tokens("npy", 25),
        ds,
    ):
        with pytest.raises(StateError):
            other.resume(state)
    with fastshard.open(folder) as again:
        assert (
            len(again.tokens("npy", 25).resume(state)) == len(ds.tokens("npy", 25)) - 3
        )


def test_batches_take_memory_of_the_caller(ds):
    windows = ds.tokens("npy", 12, documents=True)
    out = {}
    batches = windows.batches(8, out=out)
    first = next(batches)
    copies = {name: array.copy() for name, array in first.items()}
    second = next(batches)
    assert np.shares_memory(first["tokens"], second["tokens"])
    assert np.shares_memory(second["position"], out["position"])
    assert (copies["tokens"][0] == windows[0]["tokens"]).all()
    assert (second["tokens"][0] == windows[8]["tokens"]).all()
    with pytest.raises(ValueError, match=r"out\['tokens'\]"):
        next(windows.batches(8, out={"tokens": np.empty((8, 12), "i8")}))


def test_the_last_batch_is_shorter_or_dropped(ds):
    windows = ds.tokens("npy", 50)
    size = len(windows) // 2 + 1
    assert [len(b) for b in windows.batches(size)] == [size, len(windows) - size]
    assert [len(b) for b in windows.batches(size, drop_last=True)] == [size]
    lists = windows.batches(size, collate=lambda rows: [row[0] for row in rows])
    assert next(lists) == [windows[i][0] for i in range(size)]


def test_mapped_windows(ds):
    sums = ds.tokens("npy", 50).map(lambda window: {"sum": int(window.sum())})
    assert sums[3]["sum"] == int(ds.tokens("npy", 50)[3].sum())
    assert next(sums.batches(4))["sum"].tolist() == [sums[i]["sum"] for i in range(4)]


def test_windows_of_several_datasets_are_mixed(ds):
    short = ds[:10].tokens("npy", 20)
    long = ds.tokens("npy", 20)
    assert len(fastshard.mix([short, long])) == len(short) + len(long)
    assert ((short + long)[len(short)] == long[0]).all()


def test_windows_pickle(ds):
    windows = ds[5:].tokens("npy", 20, eos=2, documents=True).shuffle(1)[3:]
    again = pickle.loads(pickle.dumps(windows))
    assert len(again) == len(windows)
    assert again.state_dict(2) == windows.state_dict(2)
    for name, array in windows[4].items():
        assert (again[4][name] == array).all()


def test_closed_datasets_raise(folder):
    with fastshard.open(folder).tokens("npy", 20) as windows:
        window = windows[0]
    assert len(window) == 20
    with pytest.raises(fastshard.ClosedError):
        windows[0]
    with pytest.raises(fastshard.ClosedError):
        len(fastshard.open(folder).tokens("npy", 20)[:5]) and windows[1]


def test_repr_reads_nothing(tmp_path, folder):
    windows = fastshard.open(folder).tokens("npy", 4097, pack="best-fit")
    text = repr(windows.shuffle(3))
    assert text.startswith("TokenDataset(windows of 4,097 tokens best-fit; npy; shuff")
    assert not are_documents_read(windows)


@pytest.mark.parametrize("dtype", [">u2", "<i8", "u1", "f4", "c16"])
def test_a_dtype_is_kept(tmp_path, dtype):
    documents = make_documents(20, longest=40, dtype=dtype)
    with fastshard.open(write_documents(tmp_path / "d", documents)) as ds:
        for field, given in (("npy", None), ("bin", dtype)):
            window = ds.tokens(field, 50, dtype=given)[1]
            assert window.dtype == np.dtype(dtype)
            flat = np.concatenate(documents)
            assert (window == flat[49:99]).all()


@pytest.mark.parametrize("mode", ["mmap", "pread", "private"])
@pytest.mark.parametrize("indexed", [False, True])
def test_ways_to_read(folder, tmp_path, documents, mode, indexed):
    index = "none"
    if indexed:
        fastshard.build_index(folder, out=tmp_path)
        index = str(tmp_path)
    with fastshard.open(folder, mode=mode, index=index, max_memory="1MiB") as ds:
        expected = [row for row, _, _ in expected_windows(documents, 77)]
        for field, dtype in FIELDS:
            found = ds.tokens(field, 77, dtype=dtype).batches(13)
            assert [row for batch in found for row in batch.tolist()] == expected


def build_columnar(folder, documents):
    with ShardedDatasetWriter(folder, samples_per_shard=PER_SHARD) as writer:
        writer.add_fields(["x"])
        for i, document in enumerate(documents):
            writer.add_sample({"x": document}, f"{i:06}")


def build_mds(folder, documents, encoding):
    columns = {"x": encoding, "n": "int"}
    with MDSWriter(columns=columns, out=str(folder), size_limit=6000) as writer:
        for i, document in enumerate(documents):
            value = document.tobytes() if encoding == "bytes" else document
            writer.write({"x": value, "n": i})


@pytest.mark.parametrize(
    ("build", "dtype"),
    [
        (build_columnar, None),
        (build_columnar, "u2"),
        (lambda folder, docs: build_mds(folder, docs, "bytes"), "u2"),
        (lambda folder, docs: build_mds(folder, docs, "ndarray:uint16"), None),
        (lambda folder, docs: build_mds(folder, docs, "ndarray"), "u2"),
    ],
    ids=["columnar", "columnar u2", "mds bytes", "mds uint16", "mds ndarray"],
)
def test_other_formats(tmp_path, build, dtype):
    documents = [d for d in make_documents(100, seed=4) if len(d)]
    build(tmp_path / "d", documents)
    with fastshard.open(tmp_path / "d") as ds:
        windows = ds.tokens("x", 90, dtype=dtype, eos=3)
        expected = expected_windows(documents, 90, eos=3)
        assert [w.tolist() for w in windows] == [row for row, _, _ in expected]
        part = ds[::-2].tokens("x", 90, dtype=dtype)
        expected = expected_windows(documents[::-2], 90)
        assert next(part.batches(1000)).tolist() == [row for row, _, _ in expected]


def test_fields_of_fixed_shape(tmp_path):
    rows = np.arange(60, dtype="u2").reshape(6, 10)
    build_mds(tmp_path / "d", rows, "ndarray:uint16:10")
    with fastshard.open(tmp_path / "d") as ds:
        assert (
            next(ds.tokens("x", 15, stride=15).batches(4)).ravel() == range(60)
        ).all()
    build_mds(tmp_path / "e", rows.reshape(6, 2, 5), "ndarray:uint16:2,5")
    two = pytest.raises(ValueError, match="one dimension, got 2")
    with fastshard.open(tmp_path / "e") as ds, two:
        len(ds.tokens("x", 15))


def test_members_of_a_sample_may_lie_apart(tmp_path):
    documents = make_documents(20, seed=9)
    members = {f"{i:03}.npy": npy(document) for i, document in enumerate(documents)}
    members |= {f"{i:03}.bin": d.tobytes() for i, d in enumerate(documents)}
    write_tar(tmp_path / "a.tar", members)
    with fastshard.open(tmp_path) as ds:
        for field, dtype in FIELDS:
            windows = next(ds.tokens(field, 31, dtype=dtype).batches(10_000))
            assert windows.tolist() == [
                r for r, _, _ in expected_windows(documents, 31)
            ]


# Bad input


def test_rows_beyond_memory_are_refused(tmp_path):
    """Sizes that a server claims: counts of bytes must not wrap."""
    write_documents(tmp_path, [np.ones(3, "u1")] * 2)
    with fastshard.open(tmp_path) as ds:
        lengths, members = np.array([2, (1 << 60) - 4]), np.zeros(2, "u4")
        table = TokenTable(locator_of(ds), "bin", lengths, members, 1, b"", True)
        with pytest.raises(MemoryError):
            table.pack(1, 10_000)
        with pytest.raises(ValueError, match="more than"):
            TokenTable(locator_of(ds), "bin", 2 * lengths, members, 1, b"", True)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"length": 0}, "length must be from 1"),
        ({"length": -5}, "length must be from 1"),
        ({"length": 2**31}, "length must be from 1"),
        ({"length": 8, "stride": 0}, "stride must be at least 1"),
        ({"length": 8, "stride": -1}, "stride must be at least 1"),
        ({"length": 8, "pack": "first-fit"}, "pack must be"),
        ({"length": 8, "stride": 4, "pack": "best-fit"}, "stride is an option"),
        ({"length": 8, "dtype": "O"}, "tokens must be numbers"),
        ({"length": 8, "dtype": "S4"}, "tokens must be numbers"),
    ],
)
def test_arguments_are_checked(ds, arguments, reason):
    with pytest.raises(ValueError, match=reason):
        ds.tokens("npy", **arguments)


@pytest.mark.parametrize(
    ("dtype", "eos"), [("u2", 65_536), ("u2", -1), ("i1", 128), ("u1", 256), ("f4", 0)]
)
def test_eos_must_be_a_token(tmp_path, dtype, eos):
    write_documents(tmp_path, [np.ones(4, dtype)])
    with fastshard.open(tmp_path) as ds, pytest.raises(ValueError, match="eos"):
        len(ds.tokens("npy", 2, eos=eos))


def test_an_empty_dataset_has_no_windows(ds):
    with pytest.raises(ValueError, match="at least one document"):
        len(ds[:0].tokens("npy", 5))


def test_empty_documents_are_documents(tmp_path):
    write_documents(tmp_path, [np.empty(0, "u2")] * 3)
    with fastshard.open(tmp_path) as ds:
        assert (
            len(ds.tokens("npy", 1)) == len(ds.tokens("npy", 1, drop_last=False)) == 0
        )
        assert len(ds.tokens("npy", 5, pack="best-fit")) == 0
        assert ds.tokens("bin", 2, dtype="u2", eos=4)[0].tolist() == [4, 4]
        assert list(ds.tokens("npy", 5).batches(4)) == []


def test_mapped_datasets_and_unselected_fields(ds):
    with pytest.raises(fastshard.FastshardError, match="before map"):
        ds.decode("npy").tokens("npy", 5)
    with pytest.raises(FieldNotFoundError):
        ds.select_fields("txt").tokens("npy", 5)
    assert len(ds.select_fields("npy").tokens("npy", 5)) > 0
    with pytest.raises(ValueError, match="dtype= must tell"):
        len(ds.tokens("bin", 5))
    with pytest.raises(FieldNotFoundError, match="nope"):
        len(ds.tokens("nope", 5))


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (npy(np.ones(3, "i4")), "expected tokens of uint16.*got int32"),
        (npy(np.ones(3, ">u2")), "expected tokens of uint16"),
        (npy(np.ones((3, 1), "u2")), "of one dimension, got an array of 2"),
        (npy(np.array(3, "u2")), "of one dimension, got an array of 0"),
        (npy(np.ones(3, "u2")) + b"x", "expected 6 bytes of data"),
        (npy(np.ones(3, "u2"))[:-1], "expected 6 bytes of data"),
        (npy(np.ones(3, "u2"))[:20], "truncated"),
        (b"", "magic"),
        (b"\x93NUMPY", "magic|truncated"),
        (b"x" * 200, "magic"),
    ],
)
def test_a_bad_document_is_named(tmp_path, bad, reason):
    members = {f"{i:03}.npy": npy(np.ones(i, "u2")) for i in range(5)}
    path = write_tar(tmp_path / "a.tar", members | {"005.npy": bad})
    with fastshard.open(tmp_path) as ds:
        with pytest.raises(FormatError, match=reason) as caught:
            len(ds.tokens("npy", 3))
        assert caught.value.path == str(path)
        assert caught.value.member == "005.npy"
        assert len(ds[:5].tokens("npy", 3)) == 4  # of other documents


def test_sizes_must_be_multiples_of_a_token(tmp_path):
    members = {f"{i:03}.bin": bytes(i) for i in (0, 4, 8, 7)}
    write_tar(tmp_path / "a.tar", members)
    refused = pytest.raises(FormatError, match="7 bytes are not a multiple of the 4")
    with fastshard.open(tmp_path) as ds, refused:
        len(ds.tokens("bin", 3, dtype="u4"))


def test_headers_of_any_length(tmp_path):
    documents, members = make_documents(12, seed=8), {}
    for i, document in enumerate(documents):
        text = (
            f"{{'descr': '<u2', 'fortran_order': False, 'shape': ({len(document)},), }}"
        )
        text = text.ljust(100 + 37 * i * i) + "\n"
        version = (
            (b"\1\0" + len(text).to_bytes(2, "little"))
            if i % 2
            else (b"\2\0" + len(text).to_bytes(4, "little"))
        )
        members[f"{i:03}.npy"] = (
            b"\x93NUMPY" + version + text.encode() + (document.tobytes())
        )
    write_tar(tmp_path / "a.tar", members)
    with fastshard.open(tmp_path) as ds:
        windows = next(ds.tokens("npy", 31).batches(10_000))
        assert windows.tolist() == [r for r, _, _ in expected_windows(documents, 31)]


def test_mutated_headers_are_refused_or_read(tmp_path):
    rng = np.random.default_rng(11)
    good = npy(np.arange(40, dtype="u2"))
    path = tmp_path / "a.tar"
    for _ in range(60):
        bad = bytearray(good)
        for at in rng.integers(0, 128, rng.integers(1, 4)):
            bad[at] = rng.integers(0, 256)
        write_tar(path, {"0.npy": good, "1.npy": bytes(bad), "2.npy": good})
        with fastshard.open(path) as ds:
            try:
                windows = ds.tokens("npy", 10)
                assert all(len(window) == 10 for window in windows)
            except FormatError as error:
                assert error.member == "1.npy"


# Threads


@pytest.mark.parametrize("marked", [False, True])
@pytest.mark.parametrize("pack", ["stream", "best-fit"])
def test_a_loader_gives_the_batches(ds, marked, pack):
    windows = ds.tokens("npy", 33, pack=pack, documents=marked).shuffle(seed=2)
    expected = list(windows.batches(16))
    with windows.loader(16, threads=2) as loader:
        found = [next(loader) for _ in range(3)]
        state = loader.state_dict()
    with windows.loader(16, threads=1, state=state) as loader:
        found += list(loader)
    for batch, other in zip(expected, found, strict=True):
        for name in batch if marked else ():
            assert (batch[name] == other[name]).all()
        if not marked:
            assert (batch == other).all()


def test_a_loader_gathers_into_its_buffers(ds):
    made = []

    def allocate(field, shape, dtype):
        made.append(np.empty(shape, dtype))
        return made[-1]

    windows = ds.tokens("bin", 20, dtype="u2")
    with windows.loader(32, allocate=allocate) as loader:
        for batch in loader:
            assert any(np.shares_memory(batch, array) for array in made)
    assert 1 <= len(made) <= 4  # ahead, held, lent, in the making


def test_a_loader_of_mixed_and_mapped_windows(ds):
    windows = ds.tokens("npy", 20, documents=True).map(lambda window: window["tokens"])
    mixed = fastshard.mix([windows, ds.tokens("bin", 20, dtype="u2")])
    with mixed.loader(16, threads=2) as loader:
        for batch, other in zip(mixed.batches(16), loader, strict=True):
            assert (batch == other).all()


def test_tokens_of_a_mix_are_refused(ds):
    mixed = fastshard.mix([ds, ds])
    with pytest.raises(fastshard.FastshardError, match="mix the windows"):
        mixed.tokens("npy", 16)


# Remote and changing shards


def test_remote_windows(folder, documents):
    from support.servers.http import Server

    files = {f"/d/{p.name}": p.read_bytes() for p in folder.glob("*.tar")}
    expected = [row for row, _, _ in expected_windows(documents, 77)]
    with Server(files) as server:
        urls = [server.at(path) for path in sorted(files)]
        with fastshard.open(urls) as ds:
            for field, dtype in FIELDS:
                windows = ds.tokens(field, 77, dtype=dtype)
                found = [row for batch in windows.batches(13) for row in batch.tolist()]
                assert found == expected
            with windows.loader(13) as loader:
                assert [row for batch in loader for row in batch.tolist()] == expected


def test_a_shard_that_shrank_is_an_error(tmp_path):
    documents = [np.arange(3000, dtype="u2")] * 20
    folder = write_documents(tmp_path / "d", documents)
    (path,) = folder.glob("*.tar")
    with fastshard.open(folder, mode="pread", check_size=True) as ds:
        windows = ds.tokens("bin", 1000, dtype="u2")
        assert windows[0][5] == 5
        with path.open("r+b") as file:
            file.truncate(path.stat().st_size // 2)
        with pytest.raises(FormatError):
            list(windows.batches(8))


def test_positions_in_two_to_the_fortieth_tokens(tmp_path):
    """Sparse shards: a document of 2**37 tokens each, and marks at both ends."""
    import tarfile

    each = 1 << 37
    folder = tmp_path / "sparse"
    folder.mkdir()
    for k in range(8):
        member = tarfile.TarInfo(f"{k}.bin")
        member.size = each
        head = member.tobuf(tarfile.GNU_FORMAT)
        try:
            with (folder / f"{k}.tar").open("wb") as file:
                file.write(head + bytes([k + 1, 2]))
                file.seek(len(head) + each - 1)
                file.write(bytes([k + 101]))
                file.truncate(len(head) + each + 1024)
        except OSError as error:
            pytest.skip(f"no sparse file of this size: {error}")
    fastshard.build_index(folder)
    with fastshard.open(folder) as ds:
        windows = ds.tokens("bin", 4097, dtype="u1", documents=True)
        count = len(windows)
        assert count == (8 * each - 4097) // 4096 + 1
        for k in range(8):
            window = windows[k * (each // 4096)]
            assert window["tokens"][:3].tolist() == [k + 1, 2, 0]
            assert window["document"].max() == window["document"].min() == 0
        edge = windows[each // 4096 * 3 - 1]
        assert edge["tokens"][-2:].tolist() == [103, 4]
        assert edge["document"][-2:].tolist() == [0, 1]
