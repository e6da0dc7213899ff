"""Pillow images in batches: by `collate` and by torch's default collation."""

import io

import numpy as np
import pytest

import fastshard
from fastshard.columnar import ShardedDatasetWriter
from fastshard.errors import RaggedError
from support.marks import not_sanitized, slow
from support.processes import run_script
from support.servers.forks import run_with_torch
from support.tars import write_tar

pillow = pytest.importorskip("PIL.Image")

SETUP = """
import sys, warnings
warnings.simplefilter("error")
warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
import torch, fastshard
from torch.utils.data import DataLoader
import fastshard.adapters.torch as ft
ds = fastshard.open(sys.argv[1])
"""


def image_of(i, mode="RGB", size=(5, 4)):
    pixels = np.arange(size[0] * size[1] * 3, dtype=np.uint8) + i
    return pillow.fromarray(pixels.reshape(size[1], size[0], 3)).convert(mode)


def stored(image):
    out = io.BytesIO()
    image.save(out, "PNG")
    return out.getvalue()


@pytest.fixture
def make(tmp_path):
    def make(*images, field="png"):
        data = {}
        for i, image in enumerate(images):
            data[f"{i}.{field}"] = stored(image)
            data[f"{i}.cls"] = b"%d" % i
        return write_tar(tmp_path / "i.tar", data)

    return make


def test_decoded_images_are_stacked(make):
    images = [image_of(i) for i in range(6)]
    with fastshard.open(make(*images)) as ds:
        decoded = ds.decode("png", "cls")
        assert isinstance(decoded[0]["png"], pillow.Image)  # not an array yet
        whole = np.stack([np.asarray(image) for image in images])
        for batch in (
            next(decoded.batches(6)),
            fastshard.collate(decoded.get_many(range(6))),
            next(decoded.batches(6, ragged="error")),
            next(decoded.batches(6, ragged="pad")),
        ):
            assert batch["png"].shape == (6, 4, 5, 3)
            assert batch["png"].dtype == np.uint8
            assert (batch["png"] == whole).all()
            assert batch["cls"].tolist() == list(range(6))
        out = {}
        first = next(decoded.batches(2, out=out))["png"]
        assert np.shares_memory(first, out["png"])
        bare = next(ds.map(lambda s: s.decode("png")["png"]).batches(3))
        assert (bare == whole[:3]).all()
        pairs, labels = next(ds.map(lambda s: (s.decode()["png"], 1)).batches(3))
        assert (pairs == whole[:3]).all()
        assert labels.tolist() == [1, 1, 1]


@pytest.mark.parametrize(
    ("mode", "shape"),
    [("L", (4, 5)), ("RGBA", (4, 5, 4)), ("P", (4, 5, 3)), ("1", (4, 5))],
)
def test_modes_of_images(make, mode, shape):
    images = [image_of(i, mode) for i in range(2)]
    with fastshard.open(make(*images)) as ds:
        batch = next(ds.decode("png").batches(2))
        expected = [image.convert("RGB") if mode == "P" else image for image in images]
        assert batch["png"].shape == (2, *shape)
        assert (batch["png"] == np.stack(list(map(np.asarray, expected)))).all()


def test_a_palette_with_a_transparent_colour(tmp_path):
    image = image_of(0).quantize(8)
    out = io.BytesIO()
    image.save(out, "PNG", transparency=0)
    path = write_tar(tmp_path / "p.tar", {"0.png": out.getvalue()})
    with fastshard.open(path) as ds:
        batch = next(ds.decode("png").batches(1))
        assert batch["png"].shape == (1, 4, 5, 4)
        assert {*batch["png"][..., 3].ravel().tolist()} == {0, 255}


def test_images_of_different_sizes(make):
    path = make(image_of(0), image_of(1, size=(7, 3)))
    with fastshard.open(path) as ds:
        decoded = ds.decode("png")
        (batch,) = decoded.batches(2, ragged="list")
        assert [array.shape for array in batch["png"]] == [(4, 5, 3), (3, 7, 3)]
        with pytest.raises(RaggedError, match=r"\(3, 7, 3\) .*\(4, 5, 3\)"):
            next(decoded.batches(2, ragged="error"))
        (padded,) = decoded.batches(2, ragged="pad")
        assert padded["png"].shape == (2, 4, 7, 3)
        assert padded["__lengths__"]["png"].tolist() == [[4, 5, 3], [3, 7, 3]]
        resized = decoded.map(lambda s: s | {"png": s["png"].resize((8, 8))})
        assert next(resized.batches(2))["png"].shape == (2, 8, 8, 3)


@pytest.fixture
def torch_runs(tmp_path):
    pytest.importorskip("torch")

    def run(code, *args):
        body = "\n".join(f"    {line}" for line in code.strip().splitlines())
        text = f'{SETUP}\nif __name__ == "__main__":\n{body}\n'
        start = run_script if "spawn" in args else run_with_torch
        return start(tmp_path, text, *args)

    return run


@not_sanitized
@pytest.mark.parametrize("method", ["fork", pytest.param("spawn", marks=slow)])
def test_torch_s_default_collation_takes_decoded_images(make, torch_runs, method):
    torch_runs(
        """
decoded = ds.decode("png", "cls")
want = torch.stack([torch.tensor(list(ds[i].decode()["png"].tobytes()))
                    for i in range(6)]).reshape(6, 4, 5, 3)
for data in (decoded, ft.IterableDataset(decoded)):
    for workers in (0, 2):
        options = {"multiprocessing_context": sys.argv[2]} if workers else {}
        seen = {}
        for batch in DataLoader(data, batch_size=2, num_workers=workers, **options):
            assert batch["png"].dtype == torch.uint8, batch["png"]
            assert batch["png"].shape[1:] == (4, 5, 3)
            for key, image, number in zip(batch["__key__"], batch["png"], batch["cls"]):
                assert (image == want[number]).all()
                seen[key] = int(number)
        assert seen == {str(i): i for i in range(6)}
batch = next(iter(DataLoader(decoded, batch_size=6, collate_fn=ft.collate)))
assert (batch["png"] == want).all()
""",
        make(*(image_of(i) for i in range(6))),
        method,
    )


@not_sanitized
def test_torch_s_error_for_images_of_different_sizes_has_advice(make, torch_runs):
    torch_runs(
        """
for workers in (0, 1):
    try:
        list(DataLoader(ds.decode("png"), batch_size=2, num_workers=workers))
    except fastshard.RaggedError as error:
        assert "resize" in str(error) and "(3, 7, 3)" in str(error)
    else:
        raise AssertionError
""",
        make(image_of(0), image_of(1, size=(7, 3))),
    )


@not_sanitized
def test_advice_names_the_dataset_s_own_fields(tmp_path, make, torch_runs):
    with ShardedDatasetWriter(tmp_path / "c") as writer:
        writer.add_fields(["history", "target"])
        for _ in range(2):
            writer.add_sample({"history": np.zeros(2), "target": np.zeros(1)})
    code = """
try:
    next(iter(DataLoader(ds, batch_size=2)))
except fastshard.FastshardError as error:
    print(str(error).partition("first: ")[2])
"""
    told = torch_runs(code, tmp_path / "c")
    assert told.strip() == 'ds.decode("history", "target")'
    told = torch_runs(code, make(image_of(0), image_of(1), field="left.png"))
    assert told.strip() == 'ds.decode("left.png", "cls")'
    raw = write_tar(tmp_path / "r.tar", {"0.bin": b"", "1.bin": b""})
    assert torch_runs(code, raw).strip() == ""
