"""Equality of samples: fields by value, arrays by dtype, shape and items."""

import copy
import pickle
import subprocess
import sys
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fastshard import typed
from fastshard.typed import DictSample, PackableSample, packable


class Image(PackableSample):
    image: NDArray[Any]
    label: str = "cat"


@packable
class Decorated:
    image: NDArray[Any]
    label: str = "cat"


@dataclass
class Declared(PackableSample):
    image: NDArray[Any]
    label: str = "cat"


@dataclass(slots=True)
class Slotted(PackableSample):
    image: NDArray[Any]
    label: str = "cat"


CLASSES = [Image, Decorated, Declared, Slotted]


def array(dtype="u1"):
    return np.arange(6, dtype=dtype).reshape(2, 3)


@pytest.mark.parametrize("cls", CLASSES)
def test_samples_with_equal_arrays_are_equal(cls):
    sample = cls(image=array())
    assert sample == cls(image=array())
    assert sample in [cls(image=array())]
    assert cls.from_bytes(sample.packed) == sample
    assert copy.deepcopy(sample) == sample
    assert pickle.loads(pickle.dumps(sample)) == sample
    assert (sample != cls(image=array())) is False


@pytest.mark.parametrize("cls", CLASSES)
@pytest.mark.parametrize(
    "other",
    [
        array() + 1,
        array()[:1],
        array().ravel(),
        array("i4"),
        array("u1").astype(">u2"),
        None,
        5,
    ],
)
def test_samples_with_other_arrays_are_not_equal(cls, other):
    sample = cls(image=array())
    assert sample != cls(image=other)
    assert cls(image=other) != sample


@pytest.mark.parametrize("cls", CLASSES)
def test_other_fields_and_types_differ(cls):
    sample = cls(image=array())
    assert sample != cls(image=array(), label="dog")
    assert sample != "cat"
    assert sample != None  # noqa: E711
    assert all(sample != one(image=array()) for one in CLASSES if one is not cls)
    assert sample.__eq__(object()) is NotImplemented


def test_arrays_inside_lists_and_dicts():
    class Nested(PackableSample):
        items: list[Any]
        table: dict[str, Any]

    def nested(last):
        arrays = [array(), (array("f4"),)]
        return Nested(items=arrays, table={"a": array(), "b": [last]})

    assert nested(array()) == nested(array())
    assert nested(array()) != nested(array("i8"))
    assert Nested(items=[1], table={}) != Nested(items=(1,), table={})


def test_samples_inside_samples():
    class Pair(PackableSample):
        left: Image
        right: Image | None = None

    assert Pair(left=Image(image=array())) == Pair(left=Image(image=array()))
    assert Pair(left=Image(image=array())) != Pair(left=Image(image=array("i2")))


@pytest.mark.parametrize("value", [np.nan, np.array([1.0, np.nan], "f4")])
def test_nan_equals_nothing(value):
    class Number(PackableSample):
        x: Any

    sample = Number(x=value)
    assert sample != sample
    assert sample != Number(x=copy.copy(value))
    assert DictSample(x=value) != DictSample(x=value)


def test_fields_without_comparison_are_left_out():
    @dataclass
    class Partly(PackableSample):
        x: int
        cached: NDArray[Any] = field(default_factory=array, compare=False)

    assert Partly(1, array()) == Partly(1, array("f8"))
    assert Partly(1) != Partly(2)


def test_an_equality_of_the_user_holds():
    class Own(PackableSample):
        image: NDArray[Any]

        def __eq__(self, other):
            return "own"

    @packable
    class Wrapped:
        image: NDArray[Any]

        def __eq__(self, other):
            return "wrapped"

        def __hash__(self):
            return 7

    assert (Own(image=array()) == 1) == "own"
    assert (Wrapped(image=array()) == 1) == "wrapped"
    assert hash(Wrapped(image=array())) == 7


def test_classes_without_equality_compare_by_identity():
    @dataclass(eq=False)
    class Plain(PackableSample):
        image: NDArray[Any]

    @dataclass(eq=False, slots=True)
    class PlainSlots(PackableSample):
        image: NDArray[Any]

    @packable
    @dataclass(eq=False)
    class PlainPacked:
        image: NDArray[Any]

    class Lazy(PackableSample, eq=False):
        image: NDArray[Any]

    for cls in (Plain, PlainSlots, PlainPacked, Lazy):
        sample = cls(image=array())
        assert sample == sample
        assert sample != cls(image=array())
        assert len({sample, sample}) == 1


def test_a_class_without_equality_has_that_of_its_base():
    @dataclass(eq=False)
    class Child(Image):
        extra: int = 0

    assert Child(image=array(), extra=1) == Child(image=array(), extra=2)
    assert Child(image=array()) != Child(image=array("i4"))


def test_hashes_are_those_of_dataclasses():
    @dataclass(frozen=True)
    class Frozen(PackableSample):
        x: int

    @dataclass(frozen=True, slots=True)
    class FrozenSlots(PackableSample):
        x: int

    for cls in CLASSES:
        with pytest.raises(TypeError, match="unhashable"):
            hash(cls(image=array()))
    for cls in (Frozen, FrozenSlots):
        assert hash(cls(1)) == hash((1,))
        assert {cls(1): "a"}[cls(1)] == "a"


def test_dict_samples_compare_arrays():
    assert DictSample(x=array()) == DictSample(x=array())
    assert DictSample(x=array()) != DictSample(x=array("i4"))
    assert DictSample(x=array()) != DictSample(x=array().ravel())
    assert DictSample(x=(1, 2)) == DictSample.from_bytes(DictSample(x=(1, 2)).packed)
    assert DictSample(x=1) != DictSample(x=1, y=2)


def sparse(value):
    scipy = pytest.importorskip("scipy.sparse")
    return scipy.csr_matrix(np.eye(3) * value)


def frame(value):
    return pytest.importorskip("pandas").DataFrame({"a": [1, value]})


def tensor(value):
    return pytest.importorskip("torch").full((2, 2), value)


def arrow(value):
    return pytest.importorskip("pyarrow").Tensor.from_numpy(np.full((2, 2), value))


def structured(value):
    return np.array([(1, value)], dtype=[("a", "i4"), ("b", "f4")])


def objects(value):
    held = np.empty(2, object)
    held[:] = [array(), value]
    return held


@pytest.mark.parametrize("make", [sparse, frame, tensor, arrow, structured, objects])
def test_values_of_other_libraries(make):
    class Holder(PackableSample):
        x: Any

    assert Holder(x=make(2)) == Holder(x=make(2))
    assert Holder(x=make(2)) != Holder(x=make(3))
    assert Holder(x=make(2)) != Holder(x=None)
    assert Holder(x=1) != Holder(x=make(2))
    assert DictSample(x=make(2)) == DictSample(x=make(2))


def test_samples_of_a_dataset_are_equal_to_those_written(tmp_path):
    samples = [Image(image=array() + i) for i in range(5)]
    typed.write_samples(samples, tmp_path / "a.tar")
    found = list(typed.Dataset[Image](tmp_path / "a.tar").ordered())
    assert found == samples
    assert found[::-1] != samples


def test_the_equality_of_samples_imports_no_other_library():
    code = """
import sys
import numpy as np
from fastshard.typed import DictSample
assert DictSample(x=np.arange(3)) == DictSample(x=np.arange(3))
print(sorted({"pandas", "pyarrow", "scipy", "torch"} & {*sys.modules}))
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
