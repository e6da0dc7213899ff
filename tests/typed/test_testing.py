"""Samples and datasets made for tests."""

import enum
from dataclasses import asdict, field
from typing import Any, Literal

import numpy as np
import pytest
from numpy.typing import NDArray

from fastshard import typed


class Color(enum.Enum):
    RED = "r"
    BLUE = "b"


@typed.packable
class Inner:
    x: int
    name: str


@typed.packable
class Every:
    text: str
    number: int
    real: float
    flag: bool
    data: bytes
    plain: list
    numbers: list[int]
    pair: tuple[int, str]
    many: tuple[float, ...]
    table: dict
    scores: dict[str, float]
    either: int | str
    maybe: str | None
    kept: str | None = None
    other: Any = 7
    word: Literal["a", "b"] = "a"
    color: Color = Color.RED
    inner: Inner = field(default_factory=lambda: Inner(0, ""))
    inners: list[Inner] = field(default_factory=list)


@typed.packable
class Arrays:
    bare: NDArray
    floats: NDArray[np.float64]
    bytes_: NDArray[np.uint8]
    flags: NDArray[np.bool_]
    any_float: NDArray[np.floating]
    any_int: NDArray[np.integer]
    any_number: NDArray[np.number]
    complexes: NDArray[np.complex128]
    texts: NDArray[np.str_]
    times: NDArray[np.datetime64] | None
    optional: NDArray | None


@typed.packable
class Formats:
    m: Any
    t: Any
    d: Any
    __field_formats__ = {  # noqa: RUF012 - as users write it
        "m": "sparse",
        "t": "arrow_tensor",
        "d": "dataframe",
    }


def test_each_kind_of_field_has_values():
    first, second = typed.testing.make_samples(Every, n=2, seed=1)
    assert (first.text, first.number, first.flag) == ("text_0", 0, True)
    assert (second.text, second.number, second.flag) == ("text_1", 1, False)
    assert 0 <= first.real < 1
    assert len(first.data) == 16
    assert first.plain == ["plain_0_0", "plain_0_1", "plain_0_2"]
    assert second.numbers == [1, 1, 1]
    assert second.pair == (1, "pair_1")
    assert len(first.many) == 3
    assert list(first.table) == ["table_0_0", "table_0_1", "table_0_2"]
    assert all(isinstance(value, float) for value in first.scores.values())
    assert second.either == 1
    assert first.maybe == "maybe_0"
    assert first.kept is None
    assert (first.word, second.word) == ("a", "b")
    assert (first.color, second.color) == (Color.RED, Color.BLUE)
    assert second.inner == Inner(1, "name_1")
    assert second.inners[2].x == 1


def test_made_samples_can_be_written_and_read(tmp_path):
    samples = typed.testing.make_samples(Every, n=5, seed=1)
    ds = typed.testing.make_dataset(tmp_path, samples)
    assert list(ds.ordered()) == samples
    arrays = typed.testing.make_samples(Arrays, n=3, seed=1)
    for found, made in zip(
        typed.testing.make_dataset(tmp_path / "new" / "folder", arrays).ordered(),
        arrays,
        strict=True,
    ):
        for name, value in asdict(made).items():
            np.testing.assert_array_equal(getattr(found, name), value)
            assert getattr(found, name).dtype == value.dtype


def test_arrays_have_the_declared_dtype():
    (sample,) = typed.testing.make_samples(Arrays, n=1, seed=0)
    dtypes = {name: value.dtype for name, value in asdict(sample).items()}
    assert dtypes["bare"] == dtypes["any_float"] == dtypes["optional"] == np.float32
    assert (dtypes["floats"], dtypes["bytes_"]) == (np.float64, np.uint8)
    assert (dtypes["any_int"], dtypes["any_number"]) == (np.int64, np.float32)
    assert (dtypes["flags"], dtypes["complexes"]) == (np.bool_, np.complex128)
    assert dtypes["texts"].kind == "U"
    assert dtypes["times"].kind == "M"
    assert sample.texts[0, 1] == "texts_0_1"
    assert {value.shape for value in asdict(sample).values()} == {(4, 4)}


def test_a_seed_gives_the_same_samples():
    make = typed.testing.make_samples
    assert make(Every, n=3, seed=9) == make(Every, n=3, seed=9)
    assert make(Every, n=1, seed=9) != make(Every, n=1, seed=8)
    assert len(make(Every)) == 10
    assert make(Every, n=0) == []


def test_kinds_of_other_libraries(tmp_path):
    for library in ("scipy", "pyarrow", "pandas"):
        pytest.importorskip(library)
    samples = typed.testing.make_samples(Formats, n=2, seed=1)
    assert samples[0].m.shape == (4, 4)
    assert list(samples[0].d) == list("abcd")
    ds = typed.testing.make_dataset(tmp_path, samples)
    assert (ds[1].m != samples[1].m).nnz == 0
    assert ds[1].d.equals(samples[1].d)


def test_a_dataset_has_the_type_and_name_that_it_is_given(tmp_path):
    @typed.packable
    class Number:
        x: int

    samples = typed.testing.make_samples(Inner, n=3)
    ds = typed.testing.make_dataset(tmp_path, samples, name="mine", sample_type=Number)
    assert ds.sample_type is Number
    assert [sample.x for sample in ds.ordered()] == [0, 1, 2]
    assert (tmp_path / "mine-000000.tar").exists()
    with pytest.raises(ValueError, match="non-empty"):
        typed.testing.make_dataset(tmp_path, [])


def test_other_classes_are_an_error():
    with pytest.raises(TypeError):
        typed.testing.make_samples(int, n=1)
