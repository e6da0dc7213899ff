"""Types made of schemas: fields, defaults, equality, pickles, datasets."""

import copy
import dataclasses
import enum
import gc
import inspect
import os
import pickle
import subprocess
import sys
import threading
import weakref
from typing import Literal

import numpy as np
import pytest
from numpy.typing import NDArray

from fastshard import typed
from fastshard.errors import DescriptionError, SchemaError
from fastshard.typed.descriptions.json_schema import (
    from_json_schema,
    from_schema,
    to_json_schema,
)
from fastshard.typed.descriptions.local_schema import from_local_json, to_local_json
from fastshard.typed.descriptions.schema_type import make_type
from fastshard.typed.descriptions.structure import (
    Structure,
    StructureField,
    ValueType,
    describe,
)
from support.processes import run_script

REF = "atdata://local/schema/Doc@1.0.0"
INT = ValueType("int")


@typed.packable
class Doc:
    """A document."""

    text: str
    note: str | None
    pages: int
    score: float
    done: bool
    raw: bytes
    tags: list[str]
    grid: list[list[int]]
    more: dict
    anything: list
    x: NDArray
    emb: NDArray[np.float64]
    mask: NDArray[np.uint8] | None


def doc(made, **changes):
    values = {
        "text": "a",
        "note": None,
        "pages": 3,
        "score": 0.5,
        "done": True,
        "raw": b"\x00\x93NUMPY",
        "tags": ["b"],
        "grid": [[1], []],
        "more": {"k": [1, {"l": None}]},
        "anything": [1, "a"],
        "x": np.arange(4, dtype="u1"),
        "emb": np.ones(2),
        "mask": None,
    }
    return made(**values | changes)


def same(a, b):
    for field in dataclasses.fields(a):
        one, other = getattr(a, field.name), getattr(b, field.name)
        is_array = isinstance(one, np.ndarray)
        if not (np.array_equal(one, other) if is_array else one == other):
            return False
    return True


@pytest.fixture(params=["local", "record"])
def stored(request):
    if request.param == "local":
        return from_local_json(to_local_json(describe(Doc), "1.0.0"))
    return from_json_schema(to_json_schema(describe(Doc)), "Doc")


def test_kinds_are_those_of_the_declared_class(stored):
    made = make_type(stored, REF)
    order = {f.name: i for i, f in enumerate(stored.fields)}
    by_name = sorted(typed.schema_of(Doc)), sorted(typed.schema_of(made))
    assert by_name[0] == by_name[1]
    assert [f.name for f in dataclasses.fields(made)] == list(order)
    assert made.__name__ == made.__qualname__ == "Doc"
    assert issubclass(made, typed.PackableSample)
    assert describe(made).equals(describe(Doc))


def test_schema_of_is_equal():
    made = make_type(from_local_json(to_local_json(describe(Doc), "1.0.0")), REF)
    assert typed.schema_of(made) == typed.schema_of(Doc)
    assert typed.fingerprint(made) == typed.fingerprint(Doc)
    assert made.__doc__ == "A document."


def test_payloads_go_both_ways(stored):
    made = make_type(stored, REF)
    assert same(Doc.from_bytes(doc(made).packed), doc(Doc))
    assert same(made.from_bytes(doc(Doc).packed), doc(made))


def test_optional_fields_are_none_by_default():
    made = make_type(describe(Doc))
    given = {f.name: getattr(doc(Doc), f.name) for f in dataclasses.fields(Doc)}
    del given["note"], given["mask"]
    sample = made(**given)
    assert sample.note is None
    assert sample.mask is None
    with pytest.raises(TypeError, match="text"):
        made()


def test_optional_field_before_one_that_is_not():
    made = make_type(
        Structure(
            "Item",
            (
                StructureField("a", INT),
                StructureField("b", INT, True),
                StructureField("c", INT),
                StructureField("d", INT, True),
            ),
        )
    )
    assert str(inspect.signature(made)) == (
        "(a: int, c: int, d: int | None = None, *, b: int | None = None)"
    )
    sample = made(1, 3, 4, b=2)
    assert [f.name for f in dataclasses.fields(made)] == [*"abcd"]
    assert (sample.a, sample.b, sample.c, sample.d) == (1, 2, 3, 4)
    assert made.from_bytes(sample.packed) == sample
    assert made.from_bytes(sample.packed) != made(1, 3, 4, b=3)


def test_a_dtype_is_checked_and_a_claimed_one_is_not():
    field = {"name": "x", "fieldType": {"$type": "local#ndarray", "dtype": "float32"}}
    claimed = make_type(from_local_json({"name": "Vec", "fields": [field]}))
    exact = make_type(
        from_local_json({"name": "Vec", "fields": [field], "exactDtypes": True})
    )
    assert claimed is not exact
    payload = claimed(x=np.arange(3)).packed
    assert claimed.from_bytes(payload).x.dtype == np.int64
    with pytest.raises(SchemaError):
        exact.from_bytes(payload)


@pytest.mark.parametrize("dtype", ["str", "bytes", "datetime64", "bool", "complex64"])
def test_dtypes_without_a_size(dtype):
    made = make_type(
        Structure("V", (StructureField("x", ValueType("ndarray", dtype)),))
    )
    values = np.array([1, 0]).astype(np.dtype(dtype) if dtype[0] != "d" else "M8[s]")
    assert np.array_equal(made.from_bytes(made(x=values).packed).x, values)
    with pytest.raises(SchemaError):
        made.from_bytes(make_any()(x=np.ones(2)).packed)


def make_any():
    return make_type(Structure("V", (StructureField("x", ValueType("ndarray")),)))


@pytest.mark.parametrize(
    "dtype", ["O", "object", "i4,i4", "nope", "V8,V8", "(3,)f4", "f4" * 40, ""]
)
def test_dtypes_that_are_none(dtype):
    found = Structure("V", (StructureField("x", ValueType("ndarray", dtype)),))
    with pytest.raises(DescriptionError, match="V, field 'x'") as caught:
        make_type(found)
    assert len(str(caught.value)) < 200


def test_formats_decode():
    pytest.importorskip("scipy")
    import scipy.sparse

    made = make_type(
        Structure(
            "S",
            (
                StructureField("m", ValueType("sparse")),
                StructureField("t", ValueType("structured", "[('a', '<i4')]"), True),
            ),
        )
    )
    table = np.array([(1,), (2,)], [("a", "<i4")])
    sample = made(m=scipy.sparse.csr_matrix(np.eye(2)), t=table)
    again = made.from_bytes(sample.packed)
    assert np.array_equal(again.m.toarray(), np.eye(2))
    assert np.array_equal(again.t, table)
    assert made.from_bytes(made(m=sample.m).packed).t is None


def test_one_type_for_a_reference_and_a_content():
    found = describe(Doc)
    made = make_type(found, REF)
    assert make_type(describe(Doc), REF) is made
    assert make_type(found, "atdata://local/schema/Doc@1.0.1") is not made
    assert make_type(found._replace(fields=found.fields[:2]), REF) is not made
    assert made.__schema_ref__ == REF


def test_threads_make_one_type():
    found = from_local_json(to_local_json(describe(Doc), "7.0.0"))
    barrier, made = threading.Barrier(8), []

    def make():
        barrier.wait()
        made.append(make_type(found, REF))

    threads = [threading.Thread(target=make) for _ in range(8)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert len(set(made)) == 1


def test_types_that_are_not_used_are_freed():
    made = weakref.ref(make_type(Structure("Lone", (StructureField("a", INT),))))
    gc.collect()
    assert made() is None


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_pickles(stored, protocol):
    made = make_type(stored, REF)
    sample = doc(made)
    assert pickle.loads(pickle.dumps(made, protocol)) is made
    again = pickle.loads(pickle.dumps(sample, protocol))
    assert type(again) is made
    assert same(again, sample)
    assert copy.deepcopy(made) is copy.copy(made) is made
    assert same(copy.deepcopy(sample), sample)


def test_pickles_of_another_process():
    found = from_local_json(to_local_json(describe(Doc), "1.0.0"))
    made = make_type(found, REF)
    data = pickle.dumps([made, doc(made)])
    code = (
        "import pickle, sys\n"
        "made, sample = pickle.loads(bytes.fromhex(sys.argv[1]))\n"
        "print(made.__name__, made.__schema_ref__, made.__schema_version__)\n"
        "print(type(sample) is made, sample.x.tolist(), sample.tags, sample.note)\n"
        "print(pickle.dumps([made, sample]).hex())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, data.hex()], capture_output=True, text=True
    )
    first, second, back = done.stdout.splitlines()
    assert first == f"Doc {REF} 1.0.0"
    assert second == "True [0, 1, 2, 3] ['b'] None"
    again, sample = pickle.loads(bytes.fromhex(back))
    assert again is made
    assert same(sample, doc(made))


Base = make_type(Structure("Base", (StructureField("a", INT),)), REF)


class Heir(Base):
    b: int = 0


def test_a_class_that_derives_from_one_pickles_by_name():
    assert pickle.loads(pickle.dumps(Heir)) is Heir
    assert pickle.loads(pickle.dumps(Heir(a=1, b=2))) == Heir(a=1, b=2)
    assert [f.name for f in describe(Heir).fields] == ["a", "b"]


def test_dataset_of_a_made_type(tmp_path):
    made = make_type(describe(Doc), REF)
    written = [doc(Doc, pages=i) for i in range(5)]
    typed.write_samples(written, tmp_path / "a.tar")
    ds = typed.Dataset(str(tmp_path / "a.tar"), made)
    assert [s.pages for s in ds.ordered()] == [*range(5)]
    assert same(ds.as_type(Doc)[3], written[3])
    (batch,) = ds.ordered(batch_size=5)
    assert batch.x.shape == (5, 4)
    assert type(pickle.loads(pickle.dumps(ds))[2]) is made
    back = typed.Dataset(str(tmp_path / "a.tar"), Doc).as_type(made)
    assert type(back[1]) is made
    assert back[1].pages == 1


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Exact(typed.PackableSample):
    color: Color
    word: Literal["a", "b"]
    pair: tuple[int, str]
    several: tuple[int, ...] | None
    counts: dict[str, int]
    x: NDArray[np.float32]


def exact(i):
    x = np.full(3, i, "f4")
    return Exact(Color.BLUE, "b", (i, "c"), (1, 2), {"a": i}, x)


def test_a_made_type_becomes_the_declared_one(tmp_path):
    typed.write_samples([exact(i) for i in range(4)], tmp_path / "a.tar")
    made = make_type(describe(Exact), REF)
    ds = typed.Dataset(str(tmp_path / "a.tar"), made)
    assert (ds[1].color, ds[1].pair) == ("blue", [1, "c"])
    for each in (ds, ds.filter(lambda s: True)):
        found = [*each.as_type(Exact).ordered()]
        assert len(found) == 4
        assert all(same(found[i], exact(i)) for i in range(4))
    assert same(pickle.loads(pickle.dumps(ds.filter(bool).as_type(Exact)))[2], exact(2))


def record(properties=None, **changes):
    schema = {
        "type": "object",
        "properties": properties or {"a": {"type": "string"}},
        "required": ["a"],
    }
    return {
        "name": "Item",
        "version": "1.0.0",
        "schemaType": "jsonSchema",
        "schema": schema,
        **changes,
    }


def test_schemas_of_both_kinds_are_told_apart():
    found = from_schema(record(description="x"))
    assert (found.name, found.version, found.description) == ("Item", "1.0.0", "x")
    local = to_local_json(found, "1.0.0")
    assert from_schema(local).equals(found)


@pytest.mark.parametrize(
    ("name", "match"),
    [
        ("class", "class name"),
        ("a b", "class name"),
        ("", "'name' field"),
        ("A" * 201, "class name"),
        ("x\n    import os", "class name"),
    ],
)
def test_names_that_are_none(name, match):
    field = {"name": "a", "fieldType": {"$type": "#primitive", "primitive": "int"}}
    with pytest.raises(DescriptionError, match=match):
        make_type(from_local_json({"name": name, "fields": [field]}))


@pytest.mark.parametrize(
    "name",
    ["def", "a b", "a" * 201, "packed", "from_bytes", "__init__", "__class__", "1a"],
)
def test_field_names_that_are_none(name):
    field = {"name": name, "fieldType": {"$type": "#primitive", "primitive": "int"}}
    with pytest.raises(DescriptionError, match="Invalid field name"):
        make_type(from_local_json({"name": "Item", "fields": [field]}))


def test_no_field_and_a_field_twice():
    field = {"name": "a", "fieldType": {"$type": "#primitive", "primitive": "int"}}
    with pytest.raises(DescriptionError, match="must have at least one field"):
        make_type(from_local_json({"name": "Item", "fields": []}))
    with pytest.raises(DescriptionError, match="the field 'a' twice"):
        make_type(from_local_json({"name": "Item", "fields": [field, field]}))


FORK = """
import os, signal, threading
from fastshard import typed
from fastshard.typed import sample_type
from fastshard.typed.descriptions import schema_type
from fastshard.typed.descriptions.structure import describe
from support.inside.typed import lock_of_default_index

held, end = threading.Event(), threading.Event()

def hold():
    with schema_type.LOCK.lock, sample_type.LOCK.lock, lock_of_default_index():
        held.set()
        end.wait()

thread = threading.Thread(target=hold)
thread.start()
held.wait()
child = os.fork()
if child == 0:
    signal.alarm(20)  # ends one that waits for ever
    class Item(typed.PackableSample):
        text: str

    made = schema_type.make_type(describe(Item))
    typed.set_default_index(None)
    os._exit(0 if made(text="a").text == "a" else 1)
code = os.waitpid(child, 0)[1]
end.set()
thread.join()
assert code == 0
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_forked_child_makes_types_while_a_thread_of_the_parent_does(tmp_path):
    run_script(tmp_path, FORK, timeout=60)
