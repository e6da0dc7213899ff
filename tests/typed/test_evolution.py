"""Payloads of another version of the class: by `from_bytes`, sample and batch alike."""

import pickle
from dataclasses import field
from typing import Annotated, Any, Literal

import numpy as np
import pytest
from numpy.typing import NDArray

import fastshard
from fastshard import SchemaError, typed
from fastshard.typed.kinds.values import pack

pytest.importorskip("msgspec")

KEY = "000007"


def write(folder, *payloads):
    """Write another shard; the first sample's key is `KEY`."""
    path = folder / f"{len(list(folder.glob('*.tar')))}-a.tar"
    with fastshard.ShardWriter(path) as writer:
        for i, payload in enumerate(payloads):
            writer.write({"__key__": f"{i + 7:06d}", "msgpack": payload})
    return path


def by_bytes(cls, payload, folder, **options):
    return cls.from_bytes(payload, **options)


def by_position(cls, payload, folder, **options):
    return typed.Dataset[cls](write(folder, payload), **options)[0]


def by_key(cls, payload, folder, **options):
    return typed.Dataset[cls](write(folder, payload), **options).get(KEY)


def by_iteration(cls, payload, folder, **options):
    (sample,) = typed.Dataset[cls](write(folder, payload), **options).ordered()
    return sample


def by_shuffle(cls, payload, folder, **options):
    (sample,) = typed.Dataset[cls](write(folder, payload), **options).shuffled(seed=1)
    return sample


def by_batch(cls, payload, folder, **options):
    """Read the fields of a batch of two equal samples."""
    dataset = typed.Dataset[cls](write(folder, payload, payload), **options)
    (batch,) = dataset.ordered(batch_size=2)
    values = {name: getattr(batch, name)[0] for name in dataset.column_names}
    return cls(**values)


def by_batch_samples(cls, payload, folder, **options):
    dataset = typed.Dataset[cls](write(folder, payload, payload), **options)
    (batch,) = dataset.ordered(batch_size=2)
    return batch.samples[0]


WAYS = (
    by_bytes,
    by_position,
    by_key,
    by_iteration,
    by_shuffle,
    by_batch,
    by_batch_samples,
)


@pytest.fixture(params=WAYS, ids=lambda way: way.__name__)
def read(request, tmp_path):
    """Return a function that reads one payload; it writes a shard if it needs one."""

    def read_one(cls, values, **options):
        payload = values if isinstance(values, bytes) else pack(values)
        return request.param(cls, payload, tmp_path, **options)

    read_one.way = request.param
    return read_one


class Item(typed.PackableSample):
    idx: int
    label: str


class Defaults(typed.PackableSample):
    idx: int
    label: str = "none"
    tags: list[str] = field(default_factory=lambda: ["new"])
    score: float | None = None
    note: str | None = "no note"


class Optionals(typed.PackableSample):
    idx: int
    label: str | None
    x: NDArray | None
    tags: list[str] | None
    kind: Literal["a"] | None
    inner: Item | None


def test_a_field_that_the_class_has_not_is_passed_over(read):
    sample = read(Item, {"zero": [1], "idx": 1, "gone": b"x", "label": "a", "end": {}})
    assert sample == Item(1, "a")


def test_a_strict_reader_refuses_a_field_that_the_class_has_not(read):
    with pytest.raises(SchemaError, match="strict and has no field 'gone'") as caught:
        read(Item, {"idx": 1, "gone": 2, "label": "a"}, strict=True)
    assert caught.value.field == "gone"
    assert read(Item, {"idx": 1, "label": "a"}, strict=True) == Item(1, "a")


def test_a_missing_field_has_its_default(read):
    assert read(Defaults, {"idx": 1}) == Defaults(1)
    assert read(Defaults, {"idx": 1, "tags": []}) == Defaults(1, tags=[])
    one, two = (read(Defaults, {"idx": 1}) for _ in "ab")
    assert one.tags is not two.tags


def test_a_missing_optional_field_is_none(read):
    sample = read(Optionals, {"idx": 1})
    assert sample == Optionals(1, None, None, None, None, None)


def test_a_missing_field_is_an_error_with_the_existing_fields(read):
    with pytest.raises(SchemaError) as caught:
        read(Item, {"idx": 1, "text": "a"})
    error = caught.value
    assert isinstance(error, TypeError | ValueError)
    assert error.field == "label"
    for text in ("Item", "'label'", "'idx'", "'text'"):
        assert text in str(error)
    if read.way is not by_bytes:
        assert error.path.endswith("a.tar")
        assert error.key == KEY
        assert error.offset >= 512


def test_an_int_is_a_float(read):
    sample = read(Defaults, {"idx": 1, "score": 3})
    assert sample.score == 3.0
    assert type(sample.score) is float


def test_a_renamed_field_is_read_by_its_aliases(read):
    class Renamed(typed.PackableSample):
        text: Annotated[str, typed.Field(aliases=("caption", "title"))]

    assert read(Renamed, {"text": "a", "caption": "b"}).text == "a"
    assert read(Renamed, {"caption": "b"}).text == "b"
    assert read(Renamed, {"title": "c"}).text == "c"
    assert read(Renamed, {"title": "c", "caption": "b"}).text == "b"


class Everything(typed.PackableSample):
    i: int = 0
    f: float = 0.0
    b: bool = False
    s: str = ""
    y: bytes = b""
    n: None = None
    x: NDArray[np.float32] = field(default_factory=lambda: np.zeros(1, "f4"))
    any_x: NDArray = field(default_factory=lambda: np.zeros(1))
    items: list[int] = field(default_factory=list)
    table: dict[str, int] = field(default_factory=dict)
    pair: tuple[int, str] = (1, "a")
    inner: Item = field(default_factory=lambda: Item(1, "a"))
    one: Literal["a", "b"] = "a"
    either: int | str = 1


OTHERS: list[tuple[str, Any, str, str]] = [
    ("i", 1.0, "int", "float"),
    ("i", True, "int", "bool"),
    ("i", "1", "int", "str"),
    ("f", "1", "float", "str"),
    ("f", True, "float", "bool"),
    ("b", 1, "bool", "int"),
    ("s", b"a", "str", "bytes"),
    ("s", 1, "str", "int"),
    ("y", "a", "bytes", "str"),
    ("y", [1], "bytes", "list"),
    ("n", 0, "None", "int"),
    ("x", [1.0], "array", "list"),
    ("x", "a", "array", "str"),
    ("any_x", {"a": 1}, "array", "dict"),
    ("x", np.zeros(3), "float32", "float64"),
    ("x", np.zeros(3, "i4"), "float32", "int32"),
    ("items", {"a": 1}, "array", "object"),
    ("items", ["a"], "int", "str"),
    ("table", {"a": "b"}, "int", "str"),
    ("pair", [1], "2", "1"),
    ("inner", 5, "Item", "map"),
    ("one", "c", "'a', 'b'", "'c'"),
    ("either", 1.5, "int", "float"),
    *(
        (name, None, "", "None")
        for name in ("i", "f", "b", "s", "y", "x", "any_x", "items", "table", "pair")
    ),
    ("inner", None, "", ""),
    ("one", None, "'a', 'b'", "None"),
    ("either", None, "", "None"),
]


@pytest.mark.parametrize(("name", "value", "declared", "stored"), OTHERS)
def test_another_type_is_an_error_that_names_field_types_and_byte(
    tmp_path, name, value, declared, stored
):
    payload = pack({"zero": 0, name: value})
    key = pack({name: None})[1:-1]
    at = payload.index(key, 7) + len(key)  # behind "zero"
    for way in WAYS:
        if way in (by_shuffle, by_key):
            continue
        with pytest.raises(SchemaError) as caught:
            way(Everything, payload, tmp_path)
        error = caught.value
        assert isinstance(error, TypeError)
        assert error.field == name
        assert declared in str(error)
        assert stored in str(error)
        if way is by_bytes:
            assert error.offset == at
        else:
            assert error.offset >= 512 + at
            assert error.path.endswith("a.tar")
            assert error.key == KEY


def test_byte_orders_of_arrays_compare_equal(read):
    class Arrays(typed.PackableSample):
        x: NDArray[np.float32]

    for dtype in (">f4", "<f4"):
        sample = read(Arrays, {"x": np.arange(3, dtype=dtype)})
        assert sample.x.tolist() == [0, 1, 2]
    assert Arrays.from_bytes(pack({"x": np.arange(3, dtype=">f4")})).x.dtype == ">f4"


def test_abstract_dtypes_take_those_below(read):
    class Arrays(typed.PackableSample):
        x: NDArray[np.floating]
        text: NDArray[np.str_]
        when: NDArray[np.datetime64]

    values = {
        "x": np.zeros(2, "f2"),
        "text": np.array(["a", "bcd"]),
        "when": np.array(["2026-01-01"], "M8[D]"),
    }
    assert read(Arrays, values).text.tolist() == ["a", "bcd"]
    for name, wrong in (("x", "i4"), ("text", "S3"), ("when", "m8[s]")):
        with pytest.raises(SchemaError) as caught:
            read(Arrays, values | {name: np.zeros(2, wrong)})
        assert caught.value.field == name


def test_a_payload_that_is_not_a_map_is_a_type_error():
    for payload in (b"\x01", b"\x90", b"not valid msgpack", b"", b"\x80\x80"):
        with pytest.raises(SchemaError) as caught:
            Item.from_bytes(payload)
        assert isinstance(caught.value, TypeError)


# Two versions that atdata wrote.


class Version1(typed.PackableSample):
    idx: int
    caption: str
    score: int
    x: NDArray
    gone: str


class Version2(typed.PackableSample):
    idx: int
    text: Annotated[str, typed.Field(aliases=("caption",))]
    score: float
    x: NDArray
    tags: list[str] = field(default_factory=list)
    mask: NDArray | None = None
    source: str = "unknown"


class Part(typed.PackableSample):
    idx: int
    x: NDArray[np.floating]


@pytest.fixture
def versions(typed_data):
    return [typed_data.root / "extra" / f"item-v{n}.tar" for n in (1, 2)]


def test_old_samples_are_read_by_the_new_class(versions):
    old = list(typed.Dataset[Version2](versions[0]).ordered())
    assert [sample.text for sample in old] == ["c0", "c1", "c2", "c3"]
    assert [sample.score for sample in old] == [0.0, 10.0, 20.0, 30.0]
    assert {type(sample.score) for sample in old} == {float}
    assert [sample.x.dtype for sample in old] == ["f4"] * 4
    assert [(s.tags, s.mask, s.source) for s in old] == [([], None, "unknown")] * 4


def test_versions_in_one_dataset(versions):
    both = typed.Dataset[Part](versions)
    assert [sample.idx for sample in both] == list(range(8))
    assert [sample.x.dtype.str for sample in both] == ["<f4"] * 4 + ["<f8"] * 4
    (batch,) = both.ordered(batch_size=8)
    assert batch.idx == list(range(8))
    everything = typed.Dataset[Version2](versions)
    assert everything[5].source == "made"
    assert everything[2].source == "unknown"


def test_new_samples_do_not_match_the_old_class(versions):
    with pytest.raises(SchemaError) as caught:
        typed.Dataset[Version1](versions[1])[0]
    assert caught.value.field in ("caption", "score", "gone")
    assert caught.value.path == str(versions[1])


def test_strict_datasets_name_the_field_that_was_dropped(versions):
    with pytest.raises(SchemaError, match="'gone'"):
        list(typed.Dataset[Version2](versions[0], strict=True).ordered())


# Schemas say where a class changed.


def test_a_schema_is_of_names_kinds_dtypes_and_optional():
    assert typed.schema_of(Part) == (
        '{"fields":[{"kind":"int","name":"idx","optional":false},'
        '{"dtype":"floating","kind":"array","name":"x","optional":false}]}'
    )
    assert '"dtype":null' in typed.schema_of(Version1)
    assert len({*map(typed.fingerprint, (Part, Version1, Version2, Item))}) == 4


def test_equal_fields_have_one_fingerprint():
    @typed.packable
    class Other:
        """Another name, an alias, a default."""

        idx: "int" = 5
        label: Annotated[str, typed.Field(aliases=("x",))] = ""

    assert typed.fingerprint(Other) == typed.fingerprint(Item)


@pytest.mark.parametrize(
    "annotation",
    [
        int | None,
        float,
        NDArray,
        NDArray[np.uint8],
        NDArray[np.uint8] | None,
        list,
        list[int],
        list[str],
        dict,
        dict[str, int],
        tuple[int, ...],
        tuple[int],
        Any,
        Literal["a"],
        Literal["b"],
        Item,
        list[Item],
        int | str,
    ],
)
def test_each_change_changes_the_fingerprint(annotation):
    def fingerprint(annotation):
        names = {"__annotations__": {"a": annotation}, "__module__": __name__}
        return typed.fingerprint(type("Sample", (typed.PackableSample,), names))

    seen = SEEN.setdefault(fingerprint(annotation), annotation)
    assert seen is annotation
    assert fingerprint(annotation) != fingerprint(int)


SEEN: dict[str, Any] = {}


def test_the_schema_of_a_type_that_holds_itself():
    @typed.packable
    class Node:
        children: "list[Node]"

    assert '"recursion":0' in typed.schema_of(Node)


def test_the_order_of_a_union_is_not_part_of_the_schema():
    class One(typed.PackableSample):
        a: int | str | None

    class Two(typed.PackableSample):
        a: None | str | int  # noqa: RUF036

    assert typed.schema_of(One) == typed.schema_of(Two)


def test_errors_of_shards_pickle(tmp_path):
    path = write(tmp_path, pack({"idx": 1}))
    with pytest.raises(SchemaError) as caught:
        typed.Dataset[Item](path)[0]
    again = pickle.loads(pickle.dumps(caught.value))
    assert str(again) == str(caught.value)
    assert (again.key, again.field) == (KEY, "label")
