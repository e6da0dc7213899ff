"""Notes on errors of user functions: the sample, also in worker processes."""

import traceback

import numpy as np
import pytest

import fastshard
from fastshard.columnar import ShardedDatasetWriter
from support.marks import not_sanitized, slow
from support.servers.forks import run_with_torch
from support.tars import write_numbers, write_tar

BAD = "000023"


class Broken(Exception):  # noqa: N818 - as a user may name it
    pass


def wrong(sample):
    if sample.key == BAD:
        raise Broken("no")
    return sample.key


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_numbers(tmp_path_factory.mktemp("numbers"), 40)


@pytest.fixture
def ds(folder):
    with fastshard.open(folder) as dataset:
        yield dataset


WAYS = {
    "at": (lambda ds: ds[23], "position 23 of the dataset"),
    "from the end": (lambda ds: ds[-17], "position -17 of the dataset"),
    "get_many": (lambda ds: ds.get_many([1, 23]), "position 23 of the dataset"),
    "array": (lambda ds: ds.get_many(np.array([23])), "position 23 of the dataset"),
    "loader": (lambda ds: ds.__getitems__([23]), "position 23 of the dataset"),
    "iter": (lambda ds: list(ds), "position 23 of the iteration"),
    "order": (lambda ds: list(ds.iter(order=[5, 23])), "position 1 of the iteration"),
    "batches": (lambda ds: list(ds.batches(4)), "position 23 of the iteration"),
    "selection": (lambda ds: ds[20:][3], "position 3 of the dataset"),
    "mix": (lambda ds: list(fastshard.mix([ds])), "position 23 of the dataset"),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_mapped_function_s_error_names_the_sample(ds, folder, way):
    call, where = WAYS[way]
    with pytest.raises(Broken) as caught:
        call(ds.map(wrong))
    sample = f"sample '{BAD}', position 3 of {folder / 'n-002.tar'}"
    assert caught.value.__notes__[:2] == [sample, where]
    told = "".join(traceback.format_exception(caught.value))
    assert sample in told


def test_each_note_is_added_once(ds):
    error = Broken("always the same")

    def again(sample):
        raise error

    for _ in range(3):
        with pytest.raises(Broken):
            ds.map(again)[23]
    assert len(error.__notes__) == 2


def test_functions_of_mixes_and_pairs(ds, folder):
    shard = folder / "n-000.tar"
    pairs = fastshard.zip_by_key(ds, ds[::-1]).map(lambda pair: 1 / 0)
    with pytest.raises(ZeroDivisionError) as caught:
        pairs[2]
    assert caught.value.__notes__ == [
        f"sample '000002', position 2 of {shard}",
        "position 2 of the dataset",
    ]
    decoded = fastshard.mix([ds.decode("txt")]).map(lambda item: item["jpg"])
    with pytest.raises(KeyError) as caught:
        decoded[0]
    assert caught.value.__notes__[-1] == "position 0 of the dataset"
    assert caught.value.__notes__[0].startswith("sample '0000")


def test_a_custom_decoder_s_error_names_the_sample(folder):
    def decode(view):
        if bytes(view) == b"23":
            raise Broken("no")
        return 1

    with fastshard.open(folder, decoders={"txt": decode}) as ds:
        shard = folder / "n-002.tar"
        for call in (
            lambda: ds.decode("txt")[23],
            lambda: ds[23].decode("txt"),
            lambda: ds.columns([23], "txt"),
            lambda: list(ds.batches(40)),
        ):
            with pytest.raises(Broken) as caught:
                call()
            notes = caught.value.__notes__
            assert notes[0] == f"decoding member '{BAD}.txt' of {shard}"
            assert notes[1] == f"sample '{BAD}', position 3 of {shard}"


def test_a_filter(ds, folder):
    def keep(key, sizes, info):
        return 1 / 0 if key == BAD else True

    with pytest.raises(ZeroDivisionError) as caught:
        ds[10:].filter(keep)
    sample = f"sample '{BAD}', position 3 of {folder / 'n-002.tar'}"
    assert caught.value.__notes__ == [sample, "position 13 of the dataset"]


def test_columnar_samples_and_copied_ones(tmp_path, ds):
    with ShardedDatasetWriter(tmp_path / "c") as writer:
        writer.add_fields(["x"])
        writer.add_sample({"x": np.zeros(1)}, sample_id="s7")
    with fastshard.open(tmp_path / "c") as columns:
        with pytest.raises(ZeroDivisionError) as caught:
            columns.map(lambda sample: 1 / 0)[0]
        index = tmp_path / "c" / "index.sqlite"
        assert f"sample 's7', position 0 of {index}" in caught.value.__notes__
    import pickle

    from fastshard._core.dataset.shard import describe_item

    assert describe_item(pickle.loads(pickle.dumps(ds[3]))) == [
        "sample '000003', position 3"
    ]
    assert describe_item(5) == []


def test_a_key_cannot_write_to_the_terminal(tmp_path):
    path = write_tar(tmp_path / "t.tar", {"a\x1b[31m.txt": b""})
    with fastshard.open(path) as ds, pytest.raises(ZeroDivisionError) as caught:
        ds.map(lambda sample: 1 / 0)[0]
    assert "\x1b" not in "".join(caught.value.__notes__)


LOADER = """
import sys, fastshard
from torch.utils.data import DataLoader
import fastshard.adapters.torch as ft

class Map:
    def __call__(self, sample):
        if sample.key == "000023":
            raise {error}
        return 1

if __name__ == "__main__":
    ds = fastshard.open(sys.argv[1]).map(Map())
    for data in (ds, ft.IterableDataset(ds)):
        for workers in (0, 2):
            try:
                list(DataLoader(data, batch_size=4, num_workers=workers))
            except Exception as error:
                told = str(error) + "".join(getattr(error, "__notes__", ()))
                assert "sample '000023', position 3 of " in told, told
                assert "n-002.tar" in told
                assert "position 23 of the dataset" in told or data is not ds, told
                print("named")
"""


@not_sanitized
@pytest.mark.parametrize(
    "error",
    [
        'ZeroDivisionError("no")',
        pytest.param('KeyError("no")', marks=slow),
        'fastshard.FormatError("no", "path", 3)',
        'UnicodeDecodeError("utf-8", b"", 0, 1, "no")',
    ],
)
def test_in_workers_of_torch_s_loader(folder, tmp_path, error):
    pytest.importorskip("torch")
    printed = run_with_torch(tmp_path, LOADER.replace("{error}", error), folder)
    assert printed.split() == ["named"] * 4
