"""Alternatives of a field, ``"jpg;png"``: the first one that a sample has."""

import io
import itertools
import pickle

import numpy as np
import pytest

import fastshard
from fastshard import FieldNotFoundError
from fastshard.columnar import ShardedDatasetWriter
from fastshard.streaming import JSONWriter
from support.servers.http import Server

Image = pytest.importorskip("PIL.Image")
COUNT = 11
KINDS = ["jpg", "png", "webp"]


def picture(i):
    return np.full((6, 8, 3), 20 * i, np.uint8)


def encode(i, kind):
    file = io.BytesIO()
    Image.fromarray(picture(i)).save(file, "JPEG" if kind == "jpg" else kind)
    return file.getvalue()


def write(folder, kinds_of):
    with fastshard.ShardWriter(folder / "s-{:02d}.tar", max_count=4) as writer:
        for i in range(COUNT):
            sample = {"__key__": f"{i:03d}", "cls": i}
            writer.write(sample | {kind: encode(i, kind) for kind in kinds_of(i)})
    return folder


@pytest.fixture(scope="module")
def ds(tmp_path_factory):
    folder = write(tmp_path_factory.mktemp("kinds"), lambda i: [KINDS[i % 3]])
    with fastshard.open(folder) as ds:
        yield ds


@pytest.fixture(scope="module")
def expected(ds):
    """By key the stored bytes of the picture, of whatever kind."""
    return {
        sample.key: next(bytes(sample[f]) for f in sample if f != "cls")
        for sample in ds
    }


def rows_of(batches):
    return {
        key: picture
        for batch in batches
        for key, picture in zip(batch["__key__"], batch["jpg"], strict=True)
    }


def test_json_of_any_kind_is_parsed_under_one_name(make_tar):
    path = make_tar({"0.json": b'{"n": 0}', "1.meta": b'{"n": 1}'})
    with fastshard.open(path) as ds:
        samples = ds.select_fields("json;meta")
        assert [sample.json("json") for sample in samples] == [{"n": 0}, {"n": 1}]


def test_pictures_of_any_kind_are_rows_of_one_field(ds):
    images = ds.images("jpg;png;webp")
    found = rows_of(images.batches(4))
    assert list(found) == [f"{i:03d}" for i in range(COUNT)]
    for i in range(COUNT):
        # JPEG and WebP are not exact.
        assert abs(found[f"{i:03d}"].astype(int) - picture(i)).max() <= 2
    for other in (
        rows_of(images.loader(4, threads=2)),
        rows_of(images.shuffle(3).batches(4)),
        rows_of(pickle.loads(pickle.dumps(images)).batches(3)),
        {sample.key: sample["jpg"] for sample in images},
        {sample.key: sample["jpg"] for sample in images.get_many(range(COUNT))},
        {sample["__key__"]: sample["jpg"] for sample in images.decode("cls", "jpg")},
        rows_of((images[:3] + images[3:]).batches(4)),
        rows_of((ds[:3] + ds[3:]).images("jpg;png;webp").batches(4)),
        rows_of(fastshard.mix([ds, ds]).images("jpg;png;webp").batches(4)),
    ):
        assert other.keys() == found.keys()
        for key in found:
            np.testing.assert_array_equal(other[key], found[key])
    columns = images.columns(range(COUNT), "jpg")["jpg"]
    np.testing.assert_array_equal(columns, np.stack(list(found.values())))
    out = np.empty((COUNT, 6, 8, 3), np.uint8)
    images.read_into(range(COUNT), out, fields="jpg")
    np.testing.assert_array_equal(out, columns)


def test_the_name_is_that_of_the_first_alternative(ds):
    images = ds.images("webp;jpg;png")
    sample = images[0]
    assert sample.keys() == ["cls", "webp"]
    assert ("webp" in sample, "jpg" in sample, len(sample)) == (True, False, 2)
    assert sample.view("webp") == ds[0]["jpg"]
    assert list(images.fields) == ["cls", "webp"]
    assert images.fields["webp"].kind == "image"
    with pytest.raises(FieldNotFoundError, match="jpg"):
        sample["jpg"]


def test_selected_alternatives_are_the_stored_bytes(ds, expected):
    chosen = ds.select_fields("jpg;png;webp", "cls")
    found = {sample.key: bytes(sample["jpg"]) for sample in chosen}
    assert found == expected
    assert chosen[1].keys() == ["jpg", "cls"]
    assert pickle.loads(pickle.dumps(chosen[1])).keys() == ["jpg", "cls"]
    assert list(chosen.fields) == ["jpg", "cls"]
    for batch in chosen.shuffle(1).batches(4):
        assert batch["jpg"] == [expected[key] for key in batch["__key__"]]
        assert batch["cls"].tolist() == [int(key) for key in batch["__key__"]]
    out = bytearray(10_000)
    ends = chosen.read_into(range(COUNT), out, fields="jpg")
    found = [bytes(out[a:b]) for a, b in itertools.pairwise(ends)]
    assert found == list(expected.values())
    raw = chosen.columns([4], {"jpg": "u1"})["jpg"]
    assert raw.tobytes() == expected["004"]


def test_decoders_are_those_of_the_stored_field(tmp_path):
    with fastshard.ShardWriter(tmp_path / "a.tar") as writer:
        writer.write({"__key__": "a", "json": {"x": 1}})
        writer.write({"__key__": "b", "txt": "y"})
        writer.write({"__key__": "c", "txt": "z", "json": [2]})
    with fastshard.open(tmp_path / "a.tar") as ds:
        values = [item["txt"] for item in ds.decode("txt;json")]
        assert values == [{"x": 1}, "y", "z"]
        assert [item["json"] for item in ds.decode("json;txt")] == [{"x": 1}, "y", [2]]
        chosen = ds.select_fields("json;txt")
        assert next(chosen.batches(3))["json"] == [{"x": 1}, "y", [2]]
        assert [sample.decode()["json"] for sample in chosen] == [{"x": 1}, "y", [2]]


def test_a_sample_without_any_alternative_is_its_own_error(tmp_path):
    folder = write(tmp_path, lambda i: [] if i == 5 else [KINDS[i % 3]])
    with fastshard.open(folder) as ds:
        for made in (
            ds.images("jpg;png;webp"),
            ds.select_fields("jpg;png;webp"),
            ds.decode("jpg;png;webp"),
        ):
            with pytest.raises(
                FieldNotFoundError, match=r"'jpg;png;webp' in sample '005'"
            ):
                made[5]
            items = made.iter(on_error="skip")
            assert len(list(items)) == COUNT - 1
            assert items.skipped == 1
            batches = made.batches(4, on_error="skip")
            assert sum(len(batch["__key__"]) for batch in batches) == COUNT - 1
        with ds.images("jpg;png;webp").loader(4, on_error="mask") as loader:
            ok = np.concatenate([batch["__ok__"] for batch in loader])
        assert np.flatnonzero(~ok).tolist() == [5]
        kept = ds.select_fields("jpg;png;webp", missing="skip")
        assert "005" not in kept
        assert len(kept) == COUNT - 1
        with pytest.raises(FieldNotFoundError, match="'tif;bmp' in the dataset below"):
            ds.select_fields("tif;bmp", missing="skip")
        with pytest.raises(FieldNotFoundError, match="'tif;bmp' in sample"):
            list(ds.images("tif;bmp").iter(on_error="skip"))


def test_the_other_alternatives_are_left_out(tmp_path):
    folder = write(tmp_path, lambda i: ["png"] if i % 2 else ["png", "jpg"])
    with fastshard.open(folder) as ds:
        images = ds.images("jpg;png")
        assert {tuple(sample.keys()) for sample in images} == {("cls", "jpg")}
        found = rows_of(images.batches(4))
        for i in range(COUNT):
            kind = "png" if i % 2 else "jpg"
            with Image.open(io.BytesIO(encode(i, kind))) as image:
                np.testing.assert_array_equal(found[f"{i:03d}"], np.array(image))


def test_a_list_of_images_is_of_several_fields(tmp_path):
    folder = write(tmp_path, lambda i: ["png"] if i == 3 else ["png", "jpg"])
    with fastshard.open(folder) as ds:
        both = ds.images(["jpg", "png"], 4)
        assert {type(both[0][name]) for name in ("jpg", "png")} == {np.ndarray}
        with pytest.raises(FieldNotFoundError, match="'jpg' in sample '003'"):
            both[3]
        either = ds.images(["jpg;webp", "png"], 4)
        assert either[0]["jpg"].shape == either[0]["png"].shape == (4, 4, 3)


@pytest.mark.parametrize("name", ["", "jpg;", ";png", "a;;b"])
def test_empty_alternatives_are_refused(ds, name):
    for call in (ds.images, ds.select_fields, ds.decode):
        if name:
            with pytest.raises(ValueError, match="is empty"):
                call(name)


def test_alternatives_of_columns(tmp_path):
    with ShardedDatasetWriter(tmp_path / "d") as writer:
        writer.add_fields(["a", "b"])
        for i in range(4):
            writer.add_sample({"a" if i % 2 else "b": np.full(3, i)}, f"{i}")
    with fastshard.open(tmp_path / "d") as ds:
        chosen = ds.select_fields("a;b")
        assert next(chosen.batches(4))["a"][:, 0].tolist() == [0, 1, 2, 3]
        assert chosen.columns(range(4), "a")["a"][:, 1].tolist() == [0, 1, 2, 3]
        with pytest.raises(FieldNotFoundError, match="'x;y'"):
            ds.select_fields("x;y")


def test_alternatives_of_remote_shards(tmp_path, ds, expected):
    folder = write(tmp_path, lambda i: [KINDS[i % 3]])
    files = {f"/{path.name}": path.read_bytes() for path in folder.glob("*.tar")}
    with Server(files) as server:
        urls = [server.url + name for name in sorted(files)]
        with fastshard.open(urls) as remote:
            chosen = remote.select_fields("jpg;png;webp")
            assert {s.key: bytes(s["jpg"]) for s in chosen} == expected
            found = rows_of(remote.images("jpg;png;webp").loader(4, threads=1))
        local = rows_of(ds.images("jpg;png;webp").batches(4))
        assert found.keys() == local.keys()
        assert all((found[key] == local[key]).all() for key in found)


def test_text_of_a_json_row_is_the_string(tmp_path):
    with JSONWriter(out=str(tmp_path / "rows"), columns={"text": "str"}) as writer:
        writer.write({"text": 'a "b"'})
    with fastshard.open(tmp_path / "rows") as ds:
        assert ds.select_fields("caption;text")[0].text("caption") == 'a "b"'
