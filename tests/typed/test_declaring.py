"""Classes of samples, after `packable` and `PackableSample`."""

import abc
import copy
import dataclasses
import gc
import inspect
import pickle
import subprocess
import sys
import threading
import weakref
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import pytest
from numpy.typing import NDArray

from fastshard import typed
from fastshard.typed.fields import encoder_of, plan_of
from support.processes import environment

pytest.importorskip("msgspec")

COMPACT = b"\x03<f4\x01" + (1).to_bytes(8, "little") + b"\x00\x00\x80?"


@typed.packable
class Decorated:
    """An image and its caption."""

    image: NDArray[np.uint8]
    label: str
    bbox: NDArray[np.float32] | None = None
    tags: list[str] = field(default_factory=list)
    made: ClassVar[int] = 3

    def shout(self) -> str:
        return self.label.upper()


class Derived(typed.PackableSample):
    """An image and its caption."""

    image: NDArray[np.uint8]
    label: str
    bbox: NDArray[np.float32] | None = None
    tags: list[str] = field(default_factory=list)
    made: ClassVar[int] = 3

    def shout(self) -> str:
        return self.label.upper()


@dataclass
class Both(typed.PackableSample):
    """An image and its caption."""

    image: NDArray[np.uint8]
    label: str
    bbox: NDArray[np.float32] | None = None
    tags: list[str] = field(default_factory=list)
    made: ClassVar[int] = 3

    def shout(self) -> str:
        return self.label.upper()


@typed.packable
@dataclass
class Twice:
    """An image and its caption."""

    image: NDArray[np.uint8]
    label: str
    bbox: NDArray[np.float32] | None = None
    tags: list[str] = field(default_factory=list)
    made: ClassVar[int] = 3

    def shout(self) -> str:
        return self.label.upper()


class Heir(Derived):
    extra: int = 0


ALL = [Decorated, Derived, Both, Twice]
image = np.arange(4, dtype="u1").reshape(2, 2)


@pytest.mark.parametrize("cls", ALL)
def test_a_declared_class_is_a_dataclass_and_packable(cls):
    sample = cls(image, "a cat")
    names = [each.name for each in dataclasses.fields(cls)]
    assert names == ["image", "label", "bbox", "tags"]
    assert list(inspect.signature(cls).parameters) == names
    assert isinstance(sample, typed.PackableSample)
    assert isinstance(sample, typed.Packable)
    one = np.zeros(1, "u1")  # larger arrays are not compared by all Pythons
    assert cls(one, "a cat") == cls(one, "a cat")
    assert cls(one, "a cat") != cls(one, "a dog")
    assert repr(sample).startswith(f"{cls.__name__}(image=array(")
    assert dataclasses.asdict(sample)["label"] == "a cat"
    assert dataclasses.replace(sample, label="b").label == "b"
    sample.label = "not frozen"
    assert sample.shout() == "NOT FROZEN"


@pytest.mark.parametrize("cls", ALL)
def test_a_declared_class_keeps_its_name_and_members(cls):
    assert cls.__module__ == __name__
    assert getattr(sys.modules[__name__], cls.__qualname__) is cls
    assert cls.__doc__ == "An image and its caption."
    assert cls.made == 3
    assert not cls(image, "a").tags
    assert cls(image, "a").tags is not cls(image, "a").tags


@pytest.mark.parametrize("cls", ALL)
def test_a_payload_gives_the_sample_back(cls):
    sample = cls(image, "a cat", bbox=np.ones(4, "f4"), tags=["x"])
    again = cls.from_bytes(sample.packed)
    assert type(again) is cls
    assert again.label == "a cat"
    assert again.tags == ["x"]
    assert again.image.dtype == np.uint8
    assert np.array_equal(again.image, image)
    assert again.bbox.tolist() == [1, 1, 1, 1]
    assert cls.from_bytes(cls(image, "b").packed).bbox is None


@pytest.mark.parametrize("cls", ALL)
def test_samples_pickle_and_copy(cls):
    sample = cls(image, "a cat")
    for again in (
        *(pickle.loads(pickle.dumps(sample, protocol)) for protocol in range(6)),
        copy.copy(sample),
        copy.deepcopy(sample),
    ):
        assert type(again) is cls
        assert repr(again) == repr(sample)


def test_a_sample_is_unpickled_where_its_class_was_not_used_yet(tmp_path):
    (tmp_path / "declared.py").write_text(
        "from fastshard import typed\n"
        "class First(typed.PackableSample):\n    a: int\n"
        "class Second(First):\n    b: int\n"
    )
    code = (
        "import sys, pickle; sys.path.insert(0, '.')\n"
        "if sys.argv[1] == 'write':\n"
        "    from declared import Second\n"
        "    print(pickle.dumps([Second(1, 2), Second(1, 3)]).hex())\n"
        "else:\n"
        "    one, two = pickle.loads(bytes.fromhex(sys.argv[2]))\n"
        "    print(one, one == two, one == type(one)(1, 2))\n"
    )

    def run(*args):
        command = [sys.executable, "-c", code, *args]
        done = subprocess.run(
            command, capture_output=True, text=True, cwd=tmp_path, env=environment()
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    assert run("read", run("write")) == "Second(a=1, b=2) False True"


def test_a_class_in_a_function_says_why_its_samples_do_not_pickle():
    @typed.packable
    class Local:
        a: int

    with pytest.raises((AttributeError, pickle.PicklingError), match="Local"):
        pickle.dumps(Local(1))


def test_fields_are_inherited():
    assert [each.name for each in dataclasses.fields(Heir)][-1] == "extra"
    heir = Heir(image, "a", extra=5)
    assert repr(heir).endswith("extra=5)")
    assert Heir.from_bytes(heir.packed).extra == 5
    assert Heir.from_bytes(Derived(image, "a").packed).extra == 0


def test_fields_of_an_heir_are_known_before_it_is_used():
    class Base(typed.PackableSample):
        a: int

    class Next(Base):
        b: int

    assert Base(1).a == 1
    assert [each.name for each in dataclasses.fields(Next)] == ["a", "b"]
    assert Next(1, 2) == Next(1, 2)
    assert Next(1, 2) != Next(1, 3)


def test_options_of_dataclass_hold():
    @dataclass(order=True, kw_only=True)
    class Ordered(typed.PackableSample):
        a: int = 1
        b: int

    assert Ordered(b=2) < Ordered(b=3)
    with pytest.raises(TypeError):
        Ordered(1, 2)

    @dataclass(slots=True)
    class Slotted(typed.PackableSample):
        a: int
        x: NDArray

    slotted = Slotted(1, COMPACT)
    assert not hasattr(slotted, "__dict__")
    assert slotted.x.tolist() == [1.0]
    assert Slotted.from_bytes(slotted.packed).a == 1
    assert repr(copy.copy(slotted)) == repr(slotted)

    @dataclass(init=False)
    class Bare(typed.PackableSample):
        a: int

        def __init__(self) -> None:
            self.a = 7

    assert Bare.from_bytes(Bare().packed).a == 7

    class KeywordOnly(typed.PackableSample, kw_only=True):
        a: int = 1
        b: int

    assert KeywordOnly(b=3).b == 3

    @typed.packable
    @dataclass(frozen=True)
    class Frozen:
        a: int
        x: NDArray

    frozen = Frozen(1, COMPACT)
    assert frozen.x.tolist() == [1.0]
    assert Frozen.from_bytes(frozen.packed).a == 1
    with pytest.raises(dataclasses.FrozenInstanceError):
        frozen.a = 2


def test_a_constructor_of_the_class_itself_is_kept():
    class Own(typed.PackableSample):
        a: int

        def __init__(self, twice: int) -> None:
            self.a = 2 * twice

    @typed.packable
    class Same:
        a: int

        def __init__(self, twice: int) -> None:
            self.a = 2 * twice

    for cls in (Own, Same):
        assert cls(4).a == 8
        assert cls.from_bytes(cls(4).packed).a == 8


def test_abstract_and_mixed_bases():
    class Shown(abc.ABC):
        @abc.abstractmethod
        def show(self) -> str: ...

    @typed.packable
    class Sample(Shown):
        a: int

        def show(self) -> str:
            return str(self.a)

    assert Sample.from_bytes(Sample(3).packed).show() == "3"


def test_a_class_without_fields():
    @typed.packable
    class Empty:
        pass

    assert Empty().packed == b"\x80"
    assert Empty.from_bytes(b"\x80") == Empty()


def test_slots_are_not_built_twice():
    with pytest.raises(TypeError, match="Slotted has __slots__"):

        @typed.packable
        class Slotted:
            __slots__ = ("a",)
            a: int


def test_packable_rejects_non_classes():
    with pytest.raises(TypeError, match="decorates a class, got int"):
        typed.packable(3)


def test_a_packable_class_is_returned_itself():
    assert typed.packable(Derived) is Derived
    assert typed.packable(Decorated) is Decorated


# The constructor.


def test_bytes_given_for_an_array_are_decoded():
    for cls in ALL:
        sample = cls.from_data({"image": COMPACT, "label": "a"})
        assert sample.image.tolist() == [1.0]
        sample.image[0] = 2  # as upstream's: an array of its own
        assert cls(COMPACT, "a").image.dtype == np.float32


def test_bytes_that_are_not_an_array_are_refused():
    with pytest.raises(ValueError, match="array"):
        Derived(b"\x03<f4", "a")


def test_bytes_of_other_fields_stay():
    class Blob(typed.PackableSample):
        raw: bytes
        anything: Any

    assert Blob(COMPACT, COMPACT).raw == COMPACT
    assert Blob(COMPACT, COMPACT).anything == COMPACT


@pytest.mark.parametrize("cls", ALL)
def test_the_constructor_is_strict(cls):
    with pytest.raises(TypeError):
        cls(image)
    with pytest.raises(TypeError):
        cls.from_data({"image": image, "label": "a", "colour": "red"})
    with pytest.raises(TypeError):
        cls.from_data(5)


def test_post_init_runs_in_constructor_and_decoding():
    runs = []

    class Derived(typed.PackableSample):
        x: NDArray
        total: float = 0.0

        def __post_init__(self) -> None:
            runs.append(type(self.x))
            self.total = float(self.x.sum())

    @typed.packable
    class Decorated:
        x: NDArray
        total: float = 0.0

        def __post_init__(self) -> None:
            runs.append(type(self.x))
            self.total = float(self.x.sum())

    for cls in (Derived, Decorated):
        sample = cls(COMPACT)
        assert sample.total == 1.0
        sample.x, sample.total = np.arange(3), 0.0
        assert cls.from_bytes(sample.packed).total == 3.0
    assert runs == [np.ndarray] * 4


def test_a_class_without_post_init_runs_no_constructor():
    class Counted(typed.PackableSample):
        a: int

    class Refusing(Counted):
        def __init__(self, a: int) -> None:
            raise AssertionError("constructed")

    assert Refusing.from_bytes(Counted(3).packed).a == 3


# Lifetime and threads.


def test_classes_made_in_a_loop_are_freed():
    references = []
    for i in range(3):

        @typed.packable
        class Loop:
            a: int = i

        class Other(typed.PackableSample):
            a: list[int]

        Loop.from_bytes(Loop().packed)
        Other.from_bytes(Other([1]).packed)
        references += [weakref.ref(Loop), weakref.ref(Other)]
    del Loop, Other
    gc.collect()
    assert [reference() for reference in references] == [None] * 6


def test_a_class_is_used_first_by_many_threads():
    for _ in range(20):

        class Shared(typed.PackableSample):
            a: int
            b: list[int] = field(default_factory=list)

        results, barrier = [], threading.Barrier(4)

        def work(cls=Shared, results=results, barrier=barrier):
            barrier.wait()
            results.append(cls.from_bytes(cls(1).packed))

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert results == [Shared(1)] * 4


def test_two_classes_of_one_name_are_two_types():
    def make(annotation):
        names = {"__annotations__": {"a": annotation}, "__module__": __name__}
        return type("Derived", (typed.PackableSample,), names)

    numbers, texts = make(int), make(str)
    assert numbers.from_bytes(numbers(1).packed).a == 1
    assert texts.from_bytes(texts("1").packed).a == "1"
    assert typed.fingerprint(numbers) != typed.fingerprint(texts)
    with pytest.raises(typed.SchemaError, match="declares int"):
        numbers.from_bytes(texts("1").packed)
    # Only one of them can be found by the name.
    with pytest.raises(pickle.PicklingError, match="Derived"):
        pickle.dumps(numbers(1))


def test_a_class_of_main_pickles_to_a_process_that_has_it():
    code = (
        "import pickle\n"
        "from fastshard import typed\n"
        "class Item(typed.PackableSample):\n    a: int\n"
        "if __name__ == '__main__':\n"
        "    item = Item(3)\n"
        "    print(pickle.loads(pickle.dumps(item)) == item)\n"
        "    print(pickle.loads(pickle.dumps(Item)) is Item)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment()
    )
    assert done.stdout.split() == ["True", "True"], done.stderr


@pytest.mark.parametrize("cls", [int, object, type("Plain", (), {})])
def test_a_class_that_is_not_declared_has_no_plan(cls):
    for call in (plan_of, encoder_of, typed.schema_of):
        with pytest.raises(
            TypeError, match=f"{cls.__name__} is not a dataclass: decorate"
        ):
            call(cls)
