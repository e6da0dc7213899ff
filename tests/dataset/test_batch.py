"""Batches: collation, order and state."""

import io
import itertools
import json
import pickle

import numpy as np
import pytest

import fastshard
from fastshard.errors import FastshardError, FieldNotFoundError
from support.tars import write_numbers


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_numbers(tmp_path_factory.mktemp("numbers"), 53)


@pytest.fixture
def ds(folder):
    with fastshard.open(folder) as dataset:
        yield dataset


@pytest.fixture
def made(tmp_path):
    """Return an open dataset of 53 samples."""
    opened = []

    def make(*samples, **options):
        folder = tmp_path / f"made{len(opened)}"
        folder.mkdir()
        with fastshard.ShardWriter(folder / "m-{}.tar", max_count=3) as writer:
            for i, sample in enumerate(samples):
                writer.write({"__key__": f"{i:03d}"} | sample)
        opened.append(fastshard.open(folder, **options))
        return opened[-1]

    yield make
    for dataset in opened:
        dataset.close()


@pytest.mark.parametrize("mode", ["mmap", "private", "pread"])
@pytest.mark.parametrize("drop", [False, True])
@pytest.mark.parametrize("n", [1, 7, 53, 100])
def test_batches_hold_every_sample_in_order(folder, n, drop, mode):
    with fastshard.open(folder, mode=mode) as ds:
        part = ds.shuffle(3)
        batches = list(part.batches(n, drop_last=drop))
        assert len(part.batches(n, drop_last=drop)) == len(batches)
        samples = list(part)[: 53 // n * n if drop else 53]
    groups = [samples[i : i + n] for i in range(0, len(samples), n)]
    for batch, expected in zip(batches, groups, strict=True):
        assert list(batch) == ["__key__", "txt", "npy", "cls"]
        assert batch["__key__"] == [sample.key for sample in expected]
        assert batch["txt"] == [sample.text("txt") for sample in expected]
        arrays = np.stack([sample.array("npy") for sample in expected])
        assert (batch["npy"] == arrays).all()
        assert batch["npy"].dtype == np.float32
        assert batch["npy"].flags.writeable
        assert batch["cls"].tolist() == [int(s.text("cls")) for s in expected]


def test_the_state_is_after_the_batches(ds):
    part = ds.shuffle(3, 1)
    it = part.batches(8)
    seen = [key for batch in itertools.islice(it, 3) for key in batch["__key__"]]
    state = json.loads(json.dumps(it.state_dict()))
    assert state["position"] == 24
    assert len(it) == 4
    rest = [key for batch in ds.batches(5, state=state) for key in batch["__key__"]]
    assert seen + rest == list(part.keys())


def test_out_is_reused(ds):
    out = {}
    seen = []
    for batch in ds.batches(10, out=out):
        assert np.shares_memory(batch["npy"], out["npy"])
        assert np.shares_memory(batch["cls"], out["cls"])
        seen += batch["npy"][:, 1, 2].tolist()
    assert seen == list(range(53))
    assert out["npy"].shape == (10, 2, 3)
    own = {"npy": np.zeros((53, 2, 3), np.float32)}
    (batch,) = ds.select_fields("npy").batches(53, out=own)
    assert batch["npy"].base is own["npy"]
    assert own["npy"][52, 0, 0] == 52


@pytest.mark.parametrize(
    "array",
    [np.zeros((9, 2, 3), np.float32), np.zeros((10, 3, 2), np.float32), np.zeros(10)],
)
def test_out_that_does_not_fit_is_refused(ds, array):
    with pytest.raises(ValueError, match=r"out\['npy'\] must have room for float32"):
        next(ds.batches(10, out={"npy": array}))


@pytest.mark.parametrize("ragged", ["list", "error"])
def test_out_is_filled_by_batches_of_several_shapes(ds, ragged):
    """Each batch is of one shape. An array that was added makes room for another."""

    def grow(sample):
        n = int(sample.text("cls"))
        return {"x": np.full(1 + n // 10, n), "y": n}

    out, own = {}, np.zeros(10, int)
    kept = [
        np.shares_memory(batch["x"], out["x"]) and batch["x"].copy()
        for batch in ds.map(grow).batches(10, ragged=ragged, out=out)
    ]
    expected = list(ds.map(grow).batches(10))
    for one, other in zip(kept, expected, strict=True):
        np.testing.assert_array_equal(one, other["x"])
    with pytest.raises(ValueError, match=r"out\['x'\] must have room"):
        list(ds.map(grow).batches(10, ragged=ragged, out={"x": own.reshape(10, 1)}))


def test_a_custom_collate(ds):
    out = {}
    next(ds.batches(4, collate=fastshard.collate, out=out))
    assert out["npy"].shape == (4, 2, 3)
    assert list(ds.batches(20, collate=len)) == [20, 20, 13]
    keys = list(ds.map(lambda sample: sample.key).batches(50, collate=tuple))
    assert keys == [tuple(ds.keys()[:50]), tuple(ds.keys()[50:])]
    for options in ({"ragged": "pad"}, {"out": {}}):
        with pytest.raises(ValueError, match=r"fastshard\.collate"):
            ds.batches(2, collate=len, **options)
    with pytest.raises(ValueError, match="at least 1"):
        ds.batches(0)


def test_kinds_of_fields(made):
    def npz(i):
        file = io.BytesIO()
        np.savez(file, a=np.arange(i, i + 2), b=np.float64(i))
        return file.getvalue()

    ds = made(
        *(
            {
                "txt": f"té{i}",
                "json": {"i": i} if i else [],
                "jpg": bytes([i]) * 3,
                "npz": npz(i),
                "a.cls": i,
                "f.npy": np.asfortranarray(np.arange(6).reshape(2, 3) + i),
                "s.npy": np.float32(i),
                "u.npy": np.array(["x", "yy"]),
            }
            for i in range(3)
        )
    )
    batch = fastshard.collate(list(ds))
    assert batch["txt"] == ["té0", "té1", "té2"]
    assert batch["json"] == [[], {"i": 1}, {"i": 2}]
    assert batch["jpg"] == [b"\0\0\0", b"\1\1\1", b"\2\2\2"]
    assert batch["npz"]["a"].tolist() == [[0, 1], [1, 2], [2, 3]]
    assert batch["npz"]["b"].tolist() == [0, 1, 2]
    assert batch["a.cls"].tolist() == [0, 1, 2]
    assert batch["f.npy"].shape == (3, 2, 3)
    assert batch["f.npy"][2].tolist() == [[2, 3, 4], [5, 6, 7]]
    assert batch["s.npy"].tolist() == [0, 1, 2]
    assert batch["u.npy"].tolist() == [["x", "yy"]] * 3
    out = {}
    fastshard.collate(list(ds), out=out)
    assert out["f.npy"][1].tolist() == [[1, 2, 3], [4, 5, 6]]


def test_ragged_arrays(made):
    ds = made(*({"npy": np.arange(i + 1, dtype="u1")} for i in range(3)))
    batch = fastshard.collate(list(ds), ragged="list")
    assert [array.tolist() for array in batch["npy"]] == [[0], [0, 1], [0, 1, 2]]
    batch = fastshard.collate(list(ds), ragged="pad")
    assert batch["npy"].tolist() == [[0, 0, 0], [0, 1, 0], [0, 1, 2]]
    assert batch["__lengths__"]["npy"].tolist() == [[1], [2], [3]]
    with pytest.raises(FastshardError, match=r"'npy' .*uint8 \(2,\) .* uint8 \(1,\)"):
        fastshard.collate(list(ds))
    with pytest.raises(ValueError, match="ragged"):
        fastshard.collate(list(ds), ragged="fill")
    out = {"npy": np.full((3, 3), 9, "u1")}
    fastshard.collate(list(ds), ragged="pad", out=out)
    assert out["npy"].tolist() == [[0, 0, 0], [0, 1, 0], [0, 1, 2]]


def test_arrays_that_cannot_be_padded(made):
    for other in (np.arange(3, dtype="u2"), np.zeros((1, 2), "u1")):
        ds = made({"npy": np.arange(2, dtype="u1")}, {"npy": other})
        assert len(fastshard.collate(list(ds), ragged="list")["npy"]) == 2
        with pytest.raises(FastshardError, match="their dtypes and axes differ"):
            fastshard.collate(list(ds), ragged="pad")


def test_samples_with_other_fields_are_refused(made):
    ds = made({"txt": "a", "cls": 1}, {"txt": "b"})
    for samples in (list(ds), list(ds)[::-1], list(ds.decode()), [ds[0].decode(), {}]):
        with pytest.raises(FastshardError, match="fields"):
            fastshard.collate(samples)
    ds = made({"txt": "a", "cls": 1}, {"txt": "b", "npy": np.zeros(1)})
    with pytest.raises(FieldNotFoundError, match="cls"):
        fastshard.collate(list(ds))
    with pytest.raises(ValueError, match="got none"):
        fastshard.collate([])


def test_values_of_mapped_datasets(ds):
    decoded = next(ds.decode().batches(3))
    raw = next(ds.batches(3))
    assert decoded.keys() == raw.keys()
    assert (decoded["npy"] == raw["npy"]).all()
    assert decoded["cls"].tolist() == [0, 1, 2]
    pairs = ds.map(lambda s: (s.array("npy"), int(s.text("cls"))))
    arrays, labels = next(pairs.batches(4))
    assert arrays.shape == (4, 2, 3)
    assert labels.tolist() == [0, 1, 2, 3]
    assert next(ds.map(lambda s: s.key).batches(2)) == ["000000", "000001"]
    assert next(ds.map(lambda s: s["txt"]).batches(2)) == [b"0", b"1"]
    assert next(ds.map(lambda s: 2**70).batches(2)) == [2**70] * 2
    floats = next(ds.map(lambda s: 0.5).batches(2))
    assert floats.tolist() == [0.5, 0.5]


def test_numbers_are_exact_or_in_a_list():
    for values, kind in (
        ([1, 2], "int64"),
        ([2**63, 2**64 - 1], "uint64"),
        ([True, False], "bool"),
        ([0.5, float("nan")], "float64"),
        ([1, 0.5], "float64"),
    ):
        batch = fastshard.collate([{"x": value} for value in values])
        assert batch["x"].dtype == kind
        assert str(batch["x"].tolist()) == str(np.array(values).tolist())
    for values in ([2**63 + 1, -1], [2**53 + 1, 0.5], [True, 5], [2**70, 1]):
        assert fastshard.collate([{"x": value} for value in values])["x"] == values


def test_tuples_of_samples(ds):
    pairs = fastshard.zip_by_key(ds, ds.decode("cls"))
    raw, decoded = next(pairs.batches(3))
    assert raw["npy"].shape == (3, 2, 3)
    assert decoded["cls"].tolist() == [0, 1, 2]


def test_padding_always_gives_lengths(made):
    ds = made(*({"npy": np.arange(n, dtype="u1")} for n in (2, 2, 1, 3)))
    out = {}
    widths = []
    for batch in ds.batches(2, ragged="pad", out=out):
        widths.append(batch["__lengths__"]["npy"].tolist())
        assert batch["npy"].base is out["npy"]
        for row, (length,) in zip(batch["npy"], widths[-1], strict=True):
            assert row.tolist() == [*range(length)] + [0] * (len(row) - length)
    assert widths == [[[2], [2]], [[1], [3]]]
    bare = ds.map(lambda sample: sample.array("npy"))
    with pytest.raises(FastshardError, match="padding needs named fields"):
        list(bare.batches(2, ragged="pad"))


def test_iteration_continues_after_a_batch_that_cannot_be_collated(made):
    ds = made(*({"npy": np.zeros(n)} for n in (1, 1, 1, 2, 1, 1)))
    it = ds.batches(2, ragged="error")
    assert next(it)["npy"].shape == (2, 1)
    with pytest.raises(FastshardError):
        next(it)
    assert it.state_dict()["position"] == 4
    assert [batch["__key__"] for batch in it] == [["004", "005"]]


def test_copied_samples(ds):
    import pickle

    copies = pickle.loads(pickle.dumps(ds.get_many(range(3))))
    batch, expected = (
        fastshard.collate(copies),
        fastshard.collate(ds.get_many(range(3))),
    )
    assert batch.keys() == expected.keys()
    assert (batch["npy"] == expected["npy"]).all()
    assert batch["txt"] == expected["txt"]


def test_decoders_of_the_caller_s_own(folder):
    own = {"txt": lambda view: np.full(2, int(bytes(view)))}
    with fastshard.open(folder, decoders=own) as ds:
        assert next(ds.batches(2))["txt"].tolist() == [[0, 0], [1, 1]]


def test_the_error_of_a_damaged_array_names_it(tmp_path, made):
    from support.tars import write_tar

    good = io.BytesIO()
    np.save(good, np.zeros(4))
    bad = good.getvalue()[:-1]
    write_tar(tmp_path / "d.tar", {"0.npy": good.getvalue(), "1.npy": bad})
    ds = fastshard.open(tmp_path / "d.tar")
    with ds, pytest.raises(fastshard.FormatError, match=r"1\.npy"):
        next(ds.batches(2))


COLLATIONS = [
    lambda: fastshard.collate(keys=False),
    lambda: lambda samples: fastshard.collate(samples, keys=False),
]


@pytest.mark.parametrize("make", COLLATIONS, ids=["made", "called"])
def test_batches_without_keys(ds, make):
    few = ds.get_many([3, 5])
    for samples in (
        few,
        [sample.decode() for sample in few],
        [pickle.loads(pickle.dumps(sample)) for sample in few],
    ):
        batch, other = make()(samples), fastshard.collate(samples)
        assert list(other) == ["__key__", "txt", "npy", "cls"]
        assert list(batch) == ["txt", "npy", "cls"]
        np.testing.assert_array_equal(batch["npy"], other["npy"])
    pairs = make()(list(zip(few, few, strict=True)))
    assert [list(part) for part in pairs] == [["txt", "npy", "cls"]] * 2
    assert make()([7, 9]).tolist() == [7, 9]
    padded = fastshard.collate(few, ragged="pad", keys=False)
    assert list(padded) == ["txt", "npy", "cls", "__lengths__"]
    part = ds.select_fields("cls")
    plain = list(part.batches(8, collate=make()))
    assert [list(batch) for batch in plain] == [["cls"]] * 7
    with part.loader(8, collate=make(), threads=1, on_error="mask") as loader:
        assert list(next(loader)) == ["cls", "__ok__"]


def test_keys_of_npz_arrays_stay(tmp_path):
    file = io.BytesIO()
    np.savez(file, __key__=np.arange(2), x=np.arange(3))
    with fastshard.ShardWriter(tmp_path / "a.tar") as writer:
        writer.write({"__key__": "a", "npz": file.getvalue()})
    with fastshard.open(tmp_path / "a.tar") as ds:
        batch = fastshard.collate([ds[0]], keys=False)
    assert {name: list(batch[name]) for name in batch} == {"npz": ["__key__", "x"]}
