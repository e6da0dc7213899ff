"""Datasets of decoded images: every way of reading gives Pillow's pictures."""

import asyncio
import io
import json
import pickle
import zlib
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pytest

import fastshard
from fastshard.columnar import ShardedDatasetWriter
from fastshard.dataset.sequence.images import ImageSample
from fastshard.errors import FastshardError, FormatError, RaggedError
from fastshard.streaming import MDSWriter
from support.servers.http import Server

Image = pytest.importorskip("PIL.Image")
COUNT = 11
RANDOM = {"crop": "random", "flip": True, "seed": 3}


def picture_of(i, size=(40, 30)):
    noise = np.random.default_rng(i).integers(0, 255, (4, 5, 3), np.uint8)
    return Image.fromarray(noise).resize(size, Image.Resampling.BICUBIC)


def encode(image, kind="JPEG"):
    file = io.BytesIO()
    image.save(file, kind)
    return file.getvalue()


def decode(data):
    with Image.open(io.BytesIO(data)) as image:
        return np.array(image.convert("RGB"))


def write(path, sizes=((40, 30),), count=COUNT):
    with fastshard.ShardWriter(path / "p-{:02d}.tar", max_count=4) as writer:
        for i in range(count):
            picture = encode(picture_of(i, sizes[i % len(sizes)]))
            sample = {"__key__": f"{i:03d}", "jpg": picture, "cls": i, "txt": f"t{i}"}
            writer.write(sample)
    return str(path / "p-*.tar")


@pytest.fixture(scope="module")
def paths(tmp_path_factory):
    return write(tmp_path_factory.mktemp("equal"))


@pytest.fixture(scope="module")
def uneven(tmp_path_factory):
    return write(tmp_path_factory.mktemp("uneven"), [(40, 30), (20, 24)])


@pytest.fixture
def ds(paths):
    with fastshard.open(paths) as ds:
        yield ds


def pictures_of(samples):
    return {sample.key: sample["jpg"] for sample in samples}


def assert_same(found, expected):
    assert found.keys() <= expected.keys()
    for key in found:
        np.testing.assert_array_equal(found[key], expected[key], key)


def test_pictures_are_those_of_pillow(ds):
    for i, sample in enumerate(ds.images()):
        assert isinstance(sample, ImageSample)
        np.testing.assert_array_equal(sample["jpg"], decode(bytes(ds[i]["jpg"])))
        assert sample["jpg"] is sample["jpg"]


def test_other_fields_and_methods_are_those_of_the_sample(ds):
    sample, stored = ds.images()[7], ds[7]
    assert (sample.key, sample.position) == (stored.key, stored.position)
    assert sample.keys() == stored.keys() == list(sample)
    assert len(sample) == 3
    assert "jpg" in sample
    assert "png" not in sample
    assert sample["cls"] == stored["cls"] == b"7"
    assert sample.view("jpg") == stored["jpg"]
    assert sample.open("jpg").read() == bytes(stored["jpg"])
    assert sample.text("txt") == "t7"
    assert sample.place("jpg")[1] == stored.place("jpg")[1]
    assert sample.array("jpg", "u1").tobytes() == bytes(stored["jpg"])
    assert repr(sample) == repr(stored)
    assert "<img" in sample._repr_html_()
    decoded = sample.decode()
    assert list(decoded) == ["__key__", "jpg", "cls", "txt"]
    assert decoded["jpg"] is sample["jpg"]
    assert decoded["cls"] == 7
    assert list(sample.decode("jpg")) == ["__key__", "jpg"]
    with pytest.raises(KeyError, match="png"):
        sample["png"]


def test_fields_and_repr(ds):
    images = ds.images("jpg", (16, 24), mode="L", **RANDOM)
    assert "images jpg 16x24 random flip L" in repr(images)
    assert images.fields["jpg"] == fastshard.FieldInfo("image", "uint8", (16, 24, 1))
    assert images.fields["cls"] == ds.fields["cls"]
    assert ds.images().fields["jpg"].shape is None


@pytest.mark.parametrize("shuffled", [False, True], ids=["plain", "shuffled"])
def test_a_picture_is_the_same_in_every_way_of_reading(ds, shuffled):
    base = ds.images("jpg", 16, **RANDOM)
    images = base.shuffle(5, epoch=2) if shuffled else base
    expected = {images[i].key: images[i]["jpg"] for i in range(COUNT)}
    order = list(images.keys())

    assert_same(pictures_of(images), expected)
    assert_same(pictures_of(images.iter(window=0)), expected)
    assert_same(pictures_of(images.get_many([3, -1, 0])), expected)
    assert_same(pictures_of(asyncio.run(images.get_many_async([2, 5]))), expected)
    assert_same(pictures_of(images.head(4)), expected)
    assert_same(pictures_of(images.__getitems__([4, 6])), expected)
    assert_same(pictures_of([images["005"], images[np.int64(-2)]]), expected)
    assert_same(pictures_of(images[2:9][::-1]), expected)
    assert_same(pictures_of(images.filter(lambda key, *_: key > "004")), expected)
    if shuffled:  # an unshuffled dataset without a shard has other positions
        assert_same(pictures_of(images.exclude([1])), expected)
    assert_same(pictures_of(images.select_fields("jpg")), expected)
    assert_same(pictures_of(pickle.loads(pickle.dumps(images))), expected)
    assert_same(pictures_of(pickle.loads(pickle.dumps(images[:4][1:]))), expected)
    copied = pickle.loads(pickle.dumps(list(images)))
    assert_same(pictures_of(copied), expected)
    assert_same(
        {value["__key__"]: value["jpg"] for value in images.decode("jpg")}, expected
    )
    assert_same(dict(iter(images.map(lambda s: (s.key, s["jpg"])))), expected)
    for rank in range(3):
        part = images.split_by_rank(rank, 3)
        assert_same(pictures_of(part), expected)
        for batch in part[1:].batches(2):
            assert_same(
                dict(zip(batch["__key__"], batch["jpg"], strict=True)), expected
            )
    batches = images.batches(3)
    for _ in range(2):
        batch = next(batches)
        assert_same(dict(zip(batch["__key__"], batch["jpg"], strict=True)), expected)
    rest = json.loads(json.dumps(batches.state_dict()))
    for source in (base, images):
        assert_same(pictures_of(source.resume(rest)), expected)
        assert [s.key for s in source.iter(rest)] == order[6:]
    with images.loader(4, threads=2, state=rest) as loader:
        for batch in loader:
            keys = batch["__key__"]
            assert_same(dict(zip(keys, batch["jpg"].copy(), strict=True)), expected)
    columns = images.columns(range(COUNT), ["jpg", "cls"])
    assert_same(dict(zip(order, columns["jpg"], strict=True)), expected)
    out = np.empty((COUNT, 16, 16, 3), np.uint8)
    images.read_into(range(COUNT), out)
    assert_same(dict(zip(order, out, strict=True)), expected)


def test_a_picture_of_another_epoch_or_seed_is_another(ds):
    def all_of(images):
        return {s.key: s["jpg"].tobytes() for s in images}

    base = ds.images("jpg", 16, **RANDOM)
    first = all_of(base)
    for other in (
        ds.images("jpg", 16, **RANDOM | {"seed": 4}),
        ds.images("jpg", 16, epoch=1, **RANDOM),
        base.shuffle(1, epoch=1),
    ):
        found = all_of(other)
        assert sum(found[key] == first[key] for key in first) < COUNT / 2
    assert all_of(base.shuffle(1, epoch=0)) == first
    assert all_of(base.shuffle(9, epoch=1)) == all_of(
        ds.images("jpg", 16, epoch=1, **RANDOM)
    )


def test_the_epoch_of_a_shuffle_outlasts_selection(ds):
    expected = pictures_of(ds.images("jpg", 16, **RANDOM).shuffle(1, epoch=6))
    shuffled = ds.shuffle(1, epoch=6)
    assert_same(pictures_of(shuffled[2:8].images("jpg", 16, **RANDOM)), expected)
    split = shuffled.split_by_rank(0, 2)[1:].split_by_rank(1, 2)
    assert_same(pictures_of(split.images("jpg", 16, **RANDOM)), expected)


def test_combined_datasets_hand_on_their_epoch(ds):
    options = {"field": "jpg", "size": 16, **RANDOM}
    expected = pictures_of(ds.images(**options, epoch=4))
    images = ds.images(**options)
    zipped = fastshard.zip_by_key(images, images.shuffle(1, epoch=9))
    combined = [
        fastshard.mix([ds, ds.shuffle(2)]).images(**options),
        fastshard.mix([images, images]),
        (ds + ds).images(**options),
        fastshard.mix([ds + ds, ds]).images(**options),
    ]
    for whole in combined:
        assert_same(pictures_of(whole.shuffle(3, epoch=4)), expected)
        assert_same(pictures_of(whole.shuffle(3, epoch=4)[3:9].get_many([1])), expected)
    for pair in zipped.shuffle(3, epoch=4):
        assert_same(pictures_of(pair), expected)
    plain = pictures_of(ds.images(**options))
    assert_same(pictures_of((ds + ds).images(**options)), plain)
    with pytest.raises(FastshardError, match="before map"):
        (ds + ds).map(len).images()
    with pytest.raises(TypeError, match="Zip"):
        fastshard.mix([fastshard.zip_by_key(ds, ds)]).images()


def test_states_are_those_of_the_dataset_without_images(ds):
    images = ds.images("jpg", 16)
    assert images.state_dict(3) == ds.state_dict(3)
    rest = ds.resume(images.shuffle(7).state_dict(4))
    assert list(rest.keys()) == list(ds.shuffle(7).keys())[4:]
    mixed = fastshard.mix([ds, ds])
    assert mixed.images("jpg", 16).state_dict(5) == mixed.state_dict(5)


def test_batches_of_equal_pictures_are_one_stack(ds):
    batch = next(ds.images().batches(COUNT))
    plain = next(ds.batches(COUNT))
    assert list(batch) == list(plain)
    assert batch["jpg"].shape == (COUNT, 30, 40, 3)
    assert batch["jpg"].dtype == np.uint8
    assert batch["cls"].tolist() == plain["cls"].tolist()
    assert (batch["__key__"], batch["txt"]) == (plain["__key__"], plain["txt"])
    assert fastshard.collate(list(ds.images()))["jpg"].shape == batch["jpg"].shape


def test_a_batch_is_decoded_into_out(ds):
    out = {"jpg": np.empty((4, 16, 16, 3), np.uint8)}
    for batch in ds.images("jpg", 16).batches(4, out=out):
        assert batch["jpg"].base is out["jpg"]


def test_pictures_of_several_sizes_are_ragged(uneven):
    with fastshard.open(uneven) as ds:
        images = ds.images()
        batch = next(images.batches(2, ragged="list"))
        assert [picture.shape for picture in batch["jpg"]] == [(30, 40, 3), (24, 20, 3)]
        padded = next(images.batches(2, ragged="pad"))
        assert padded["jpg"].shape == (2, 30, 40, 3)
        assert padded["__lengths__"]["jpg"].tolist() == [[30, 40, 3], [24, 20, 3]]
        np.testing.assert_array_equal(padded["jpg"][1, :24, :20], images[1]["jpg"])
        assert not padded["jpg"][1, 24:].any()
        with pytest.raises(RaggedError, match="jpg"):
            next(images.batches(2, ragged="error"))
        with pytest.raises(RaggedError, match="jpg"):
            images.columns([0, 1], "jpg")
        columns = images.columns([0, 1], "jpg", ragged="list")
        assert [picture.shape for picture in columns["jpg"]] == [
            (30, 40, 3),
            (24, 20, 3),
        ]
        assert next(images[::2].batches(3))["jpg"].shape == (3, 30, 40, 3)
        lengths = next(ds.images("jpg", 8).batches(2, ragged="pad"))["__lengths__"]
        assert lengths["jpg"].tolist() == [[8, 8, 3]] * 2


def test_several_fields_with_options_of_their_own(tmp_path):
    with fastshard.ShardWriter(tmp_path / "a.tar") as writer:
        for i in range(4):
            mask = encode(picture_of(i).convert("L"), "PNG")
            picture = encode(picture_of(i))
            writer.write({"__key__": f"{i}", "jpg": picture, "seg.png": mask})
    with fastshard.open(tmp_path / "a.tar") as ds:
        both = ds.images(["jpg", "seg.png"], 16, **RANDOM)
        batch = next(both.batches(4))
        assert batch["jpg"].shape == batch["seg.png"].shape == (4, 16, 16, 3)
        apart = ds.images("jpg", 16, **RANDOM).images("seg.png", 8, mode="L")
        batch = next(apart.batches(4))
        assert batch["jpg"].shape == (4, 16, 16, 3)
        assert batch["seg.png"].shape == (4, 8, 8, 1)
        with pytest.raises(ValueError, match="one field at a time"):
            both.read_into([0], np.empty((1, 16, 16, 3), np.uint8))
        out = np.empty((1, 8, 8, 1), np.uint8)
        ends = apart.read_into([2], out, fields="seg.png")
        assert ends.tolist() == [0, 64]
        np.testing.assert_array_equal(out[0], apart[2]["seg.png"])
        narrowed = both.select_fields("seg.png")
        assert list(next(narrowed.batches(2))) == ["__key__", "seg.png"]
        assert len(ds.images("seg.png").select_fields("jpg")[0]["jpg"]) > 100


def test_a_field_is_decoded_by_its_first_bytes(tmp_path):
    picture = picture_of(1)
    with fastshard.ShardWriter(tmp_path / "a.tar") as writer:
        writer.write({"__key__": "a", "jpg": encode(picture, "PNG")})
    with fastshard.open(tmp_path / "a.tar") as ds:
        np.testing.assert_array_equal(ds.images()[0]["jpg"], np.array(picture))


def test_a_missing_field_is_a_key_error(tmp_path):
    with fastshard.ShardWriter(tmp_path / "a.tar") as writer:
        writer.write({"__key__": "a", "jpg": encode(picture_of(0)), "cls": 1})
        writer.write({"__key__": "b", "png": encode(picture_of(0)), "cls": 2})
    with fastshard.open(tmp_path / "a.tar") as ds:
        images = ds.images("jpg", 8)
        for read in (
            lambda: images[1]["jpg"],
            lambda: next(images.batches(2)),
            lambda: next(images.loader(2, threads=1)),
            lambda: images.columns([0, 1], "jpg"),
            lambda: images.read_into([1], np.empty((1, 8, 8, 3), np.uint8)),
        ):
            with pytest.raises(KeyError, match="jpg"):
                read()
        skipping = images.batches(2, on_error="skip")
        assert next(skipping)["__key__"] == ["a"]
        assert skipping.skipped == 1


def test_errors_name_shard_member_and_byte(tmp_path):
    good = encode(picture_of(0))
    with fastshard.ShardWriter(tmp_path / "a.tar") as writer:
        for key, data in (("a", good), ("b", b"no picture"), ("c", good[:200])):
            writer.write({"__key__": key, "jpg": data})
    with fastshard.open(tmp_path / "a.tar") as ds:
        images = ds.images("jpg", 8)
        for key in "bc":
            with pytest.raises(FormatError, match=rf"{key}\.jpg.*a\.tar") as caught:
                images[key]["jpg"]
            shard, member = ds[key].place("jpg")
            offset, size = shard.extent_of(member)
            assert offset <= caught.value.offset <= offset + size
        batches = images.batches(3, on_error="skip")
        assert next(batches)["__key__"] == ["a"]
        assert batches.skipped == 2
        seen = []
        mapped = images.map(lambda sample: sample["jpg"].shape)
        kept = list(mapped.iter(on_error=lambda error, i: seen.append(i)))
        assert (kept, seen) == ([(8, 8, 3)], [1, 2])
        with images.loader(3, threads=2, on_error="skip") as loader:
            assert next(loader)["jpg"].shape == (1, 8, 8, 3)


def broken(view):
    raise KeyError("nothing here")


def first_bytes(view):
    return np.full((2, 2, 3), view[0], np.uint8)


def test_a_decoder_of_the_user(ds):
    assert (ds.images(decoder=first_bytes)[0]["jpg"] == 0xFF).all()
    with pytest.raises(KeyError) as caught:
        ds.images(decoder=broken)[3]["jpg"]
    assert any("003.jpg" in note for note in caught.value.__notes__)


@pytest.mark.parametrize(
    ("out", "words"),
    [
        (np.empty((3, 16, 16, 3), np.float32), "float32"),
        (np.empty((3, 16, 16), np.uint8), r"\[3, 16, 16\]"),
        (np.empty((3, 16, 17, 3), np.uint8), r"\[3, 16, 17, 3\]"),
        (np.empty((2, 16, 16, 3), np.uint8), "2 rows"),
        (np.empty((3, 16, 32, 3), np.uint8)[:, :, ::2], "strided"),
        (np.broadcast_to(np.zeros((), np.uint8), (3, 16, 16, 3)), "read-only"),
        (bytes(3 * 16 * 16 * 3), "shape"),
    ],
    ids=["dtype", "axes", "size", "rows", "strided", "read-only", "bytes"],
)
def test_read_into_refuses_other_buffers(ds, out, words):
    def decode_nothing(view):
        raise AssertionError("decoded")

    images = ds.images("jpg", 16, decoder=decode_nothing)
    with pytest.raises(ValueError, match=rf"rows of \[16, 16, 3\], got .*{words}"):
        images.read_into([0, 1, 2], out)


def test_read_into_refuses_pictures_of_another_size(uneven):
    with fastshard.open(uneven) as ds:
        out = np.zeros((2, 30, 40, 3), np.uint8)
        with pytest.raises(ValueError, match=r"\[24, 20, 3\].*'001'"):
            ds.images().read_into([0, 1], out)
        assert not out.any()
        ds.images().read_into([0, 2], out)
        np.testing.assert_array_equal(out[1], ds.images()[2]["jpg"])
        ends = ds.images().read_into([3], bytearray(9), fields="txt")
        assert ends.tolist() == [0, 2]


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"field": 3}, TypeError),
        ({"field": []}, ValueError),
        ({"field": ["jpg", 3]}, TypeError),
        ({"size": 0}, ValueError),
        ({"crop": "center"}, ValueError),
        ({"epoch": 1.5}, TypeError),
        ({"seed": 1 << 200}, ValueError),
    ],
)
def test_arguments_are_checked(ds, arguments, error):
    with pytest.raises(error):
        ds.images(**arguments)


def test_images_come_before_map_and_decode(ds):
    for mapped in (ds.decode(), ds.map(len)):
        with pytest.raises(FastshardError, match="images before map"):
            mapped.images()


def test_columnar_arrays_of_bytes(tmp_path):
    with ShardedDatasetWriter(tmp_path / "columns", samples_per_shard=5) as writer:
        writer.add_fields(["picture", "vec"])
        for i in range(3):
            stored = np.frombuffer(encode(picture_of(i)), np.uint8)
            writer.add_sample({"picture": stored, "vec": np.full(2, i)})
    with fastshard.open(tmp_path / "columns") as ds:
        batch = next(ds.images("picture", 16).batches(3))
        assert batch["picture"].shape == (3, 16, 16, 3)
        assert batch["vec"].shape == (3, 2)
        expected = decode(encode(picture_of(1)))
        np.testing.assert_array_equal(ds.images("picture")[1]["picture"], expected)


def test_mds_fields(tmp_path):
    columns = {"picture": "bytes", "number": "int"}
    with MDSWriter(out=str(tmp_path / "mds"), columns=columns) as writer:
        for i in range(3):
            writer.write({"picture": encode(picture_of(i)), "number": i})
    with fastshard.open(tmp_path / "mds") as ds:
        batch = next(ds.images("picture").batches(3))
        assert batch["number"].tolist() == [0, 1, 2]
        for i in range(3):
            expected = decode(encode(picture_of(i)))
            np.testing.assert_array_equal(batch["picture"][i], expected)


def test_remote_shards(paths, ds):
    expected = pictures_of(ds.images("jpg", 16, **RANDOM).shuffle(1, epoch=2))
    shards = sorted(Path(paths).parent.glob("*.tar"))
    files = {f"/{path.name}": path.read_bytes() for path in shards}
    with Server(files) as server:
        remote = fastshard.open([server.url + name for name in files])
        images = remote.images("jpg", 16, **RANDOM).shuffle(1, epoch=2)
        assert_same(pictures_of(images), expected)
        batch = next(images.batches(COUNT))
        assert_same(dict(zip(batch["__key__"], batch["jpg"], strict=True)), expected)
        with images.loader(COUNT, threads=2) as loader:
            np.testing.assert_array_equal(next(loader)["jpg"], batch["jpg"])
        remote.close()


def checksums(images):
    return {sample.key: zlib.crc32(sample["jpg"]) for sample in images}


def test_spawned_workers_decode_the_same(ds):
    images = ds.images("jpg", 16, **RANDOM).shuffle(1, epoch=2)
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        assert pool.submit(checksums, images).result() == checksums(images)


def test_batches_of_torch(ds):
    data = pytest.importorskip("torch.utils.data")
    from fastshard.adapters.torch import collate

    images = ds.images("jpg", 16, **RANDOM)
    loader = data.DataLoader(images, batch_size=4, num_workers=1, collate_fn=collate)
    for batch, expected in zip(loader, images.batches(4), strict=True):
        assert batch["__key__"] == expected["__key__"]
        np.testing.assert_array_equal(batch["jpg"].numpy(), expected["jpg"])


def test_closing_a_dataset_of_images_closes_its_shards(paths):
    with fastshard.open(paths).images() as ds:
        sample = ds[0]
        assert sample["jpg"].size
    with pytest.raises(fastshard.errors.ClosedError):
        ds[0]
    assert sample["jpg"].size
