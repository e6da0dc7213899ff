"""Plans of types: payloads become objects; each row of the rules of evolution."""

import dataclasses
import pickle
import random
import threading
from typing import Any, NamedTuple

import numpy as np
import pytest

from fastshard import FormatError
from fastshard._core.typed.plan import TypePlan
from fastshard.errors import SchemaError

msgspec = pytest.importorskip("msgspec")
pack = msgspec.msgpack.encode


class Plan(NamedTuple):
    """Field of a class, as `fastshard.typed.fields.FieldPlan` describes it."""

    name: str
    kind: str
    aliases: tuple[str, ...] = ()
    dtype: Any = None
    optional: bool = False
    has_default: bool = False
    default: Any = None
    factory: Any = None
    decode: Any = None


def plan_of(*fields, cls=None, **options):
    if cls is None:
        cls = dataclasses.make_dataclass("Sample", [field.name for field in fields])
    return TypePlan(cls, fields, **options)


def compact(array):
    kind = array.dtype.str.encode()
    shape = np.array(array.shape, "<i8").tobytes()
    return bytes([len(kind)]) + kind + bytes([array.ndim]) + shape + array.tobytes()


@dataclasses.dataclass
class Image:
    """A class as users write it."""

    image: Any
    label: str
    score: float
    count: int
    flag: bool
    raw: bytes
    nothing: None
    tags: list[str]

    def __init__(self, *args, **kwargs):
        raise AssertionError("objects are made without __init__")


decode_tags = msgspec.msgpack.Decoder(list[str]).decode
IMAGE = (
    Plan("image", "array", dtype=np.dtype("f4")),
    Plan("label", "str"),
    Plan("score", "float"),
    Plan("count", "int"),
    Plan("flag", "bool"),
    Plan("raw", "bytes"),
    Plan("nothing", "none"),
    Plan("tags", "object", decode=decode_tags),
)
PIXELS = np.arange(6, dtype="<f4").reshape(2, 3)
FIELDS = {
    "image": compact(PIXELS),
    "label": "é" * 40,
    "score": -0.5,
    "count": 2**64 - 1,
    "flag": True,
    "raw": b"\x93NUMPY",
    "nothing": None,
    "tags": ["a", "b"],
}


def check_image(sample):
    assert type(sample) is Image
    assert list(vars(sample)) == list(FIELDS)
    values = dict(vars(sample))
    np.testing.assert_array_equal(values.pop("image"), PIXELS, strict=True)
    assert values == {k: v for k, v in FIELDS.items() if k != "image"}


def test_payloads_become_objects():
    plan = TypePlan(Image, IMAGE)
    payload = pack(FIELDS)

    assert plan.names == tuple(FIELDS)
    for data in (payload, bytearray(payload), memoryview(payload)):
        sample = plan.from_buffer(data)
        check_image(sample)
        assert sample.image.flags.writeable == isinstance(data, bytearray)
        assert np.shares_memory(sample.image, np.frombuffer(data, np.uint8))
    copy = plan.from_buffer(payload, copy=True)
    check_image(copy)
    assert copy.image.flags.writeable
    assert copy.image.flags.owndata


def test_any_order_of_keys_is_read():
    plan = TypePlan(Image, IMAGE)
    rng = random.Random(0)
    for _ in range(30):
        names = list(FIELDS)
        rng.shuffle(names)
        check_image(plan.from_buffer(pack({name: FIELDS[name] for name in names})))


def test_keys_may_be_encoded_at_any_length():
    plan = plan_of(Plan("x", "int"))

    assert plan.from_buffer(b"\x81\xd9\x01x\x05").x == 5
    assert plan.from_buffer(b"\xde\x00\x01\xda\x00\x01x\x06").x == 6
    assert plan.from_buffer(b"\xdf\x00\x00\x00\x01\xdb\x00\x00\x00\x01x\x07").x == 7
    assert plan.from_buffer(b"\x81\xa1x\x08").x == 8


def test_of_equal_keys_the_last_counts():
    plan = plan_of(Plan("x", "int"), Plan("y", "int"))
    for _ in range(3):
        sample = plan.from_buffer(b"\x83\xa1x\x01\xa1y\x02\xa1x\x03")
        assert (sample.x, sample.y) == (3, 2)


def test_other_fields_are_passed_over():
    plan = plan_of(Plan("b", "int"))
    other = {"a": [1, {"b": 5}], "b": 2, "c": b"x" * 300}

    assert plan.from_buffer(pack(other)).b == 2
    assert plan.from_buffer(pack(other)).b == 2
    assert vars(plan.from_buffer(pack(other))) == {"b": 2}


def test_strict_plans_refuse_other_fields():
    plan = plan_of(Plan("b", "int"), strict=True)

    assert plan.from_buffer(pack({"b": 2})).b == 2
    for _ in range(2):
        with pytest.raises(SchemaError, match="strict and has no field 'a'") as caught:
            plan.from_buffer(pack({"b": 2, "a": 1}))
        assert caught.value.field == "a"
        assert caught.value.offset == 4


def test_missing_fields_have_their_defaults():
    plan = plan_of(
        Plan("a", "int"),
        Plan("b", "str", has_default=True, default="none"),
        Plan("c", "object", factory=list, decode=decode_tags),
        Plan("d", "array", optional=True),
        Plan("e", "int", optional=True, has_default=True, default=3),
    )
    first, second = (plan.from_buffer(pack({"a": 1})) for _ in range(2))

    assert vars(first) == {"a": 1, "b": "none", "c": [], "d": None, "e": 3}
    assert first.c is not second.c


def test_a_missing_field_without_a_default_is_an_error():
    plan = plan_of(Plan("a", "int"), Plan("b", "int"))
    for _ in range(2):
        with pytest.raises(
            SchemaError, match=r"'b' without a default.*'x', 'a'"
        ) as caught:
            plan.from_buffer(pack({"x": 1, "a": 2}))
        assert caught.value.field == "b"
    with pytest.raises(SchemaError, match="only none"):
        plan.from_buffer(b"\x80")


def test_ints_are_read_for_floats():
    plan = plan_of(Plan("x", "float"))
    for value in (0, -1, 2**63, 2**64 - 1):
        found = plan.from_buffer(pack({"x": value})).x
        assert type(found) is float
        assert found == float(value)


VALUES = {
    "int": 5,
    "float": 1.5,
    "bool": True,
    "str": "text",
    "bytes": b"bytes",
    "none": None,
    "list": [1],
    "dict": {"a": 1},
}
STORED = {"none": "None", "array": "bytes"}


@pytest.mark.parametrize("stored", VALUES)
@pytest.mark.parametrize("kind", ["int", "float", "bool", "str", "bytes", "none"])
def test_other_types_are_errors(kind, stored):
    plan = plan_of(Plan("first", "int"), Plan("x", kind))
    payload = pack({"first": 0, "x": VALUES[stored]})
    if kind == stored or (kind, stored) == ("float", "int"):
        assert plan.from_buffer(payload).x == VALUES[stored]
        return
    name = STORED.get(stored, stored)
    with pytest.raises(
        SchemaError, match=f"Sample declares {kind}, the payload has {name}"
    ) as caught:
        plan.from_buffer(payload)

    assert caught.value.field == "x"
    assert caught.value.offset == 10
    assert isinstance(caught.value, TypeError)
    assert "field 'x'" in str(caught.value)


@pytest.mark.parametrize("kind", ["int", "str", "bytes", "array", "object"])
def test_none_is_only_for_optional_fields(kind):
    options = {"decode": decode_tags} if kind == "object" else {}
    payload = pack({"x": None})

    sample = plan_of(Plan("x", kind, optional=True, **options)).from_buffer(payload)
    assert sample.x is None
    with pytest.raises(SchemaError):
        plan_of(Plan("x", kind, **options)).from_buffer(payload)


def test_aliases_are_read_the_name_first():
    plan = plan_of(Plan("text", "str", aliases=("caption", "label")))
    for payload, expected in [
        ({"caption": "a"}, "a"),
        ({"label": "b"}, "b"),
        ({"text": "c", "caption": "a"}, "c"),
        ({"caption": "a", "text": "c"}, "c"),
        ({"label": "b", "caption": "a"}, "a"),
        ({"caption": "a", "label": "b"}, "a"),
        ({"caption": "a"}, "a"),
    ]:
        assert plan.from_buffer(pack(payload)).text == expected


@pytest.mark.parametrize(
    ("expected", "stored", "accepted"),
    [
        ("f4", ">f4", True),
        ("f4", "<f8", False),
        ("f4", "<i4", False),
        ("U", "<U3", True),
        ("U", "S3", False),
        ("M8", "<M8[ns]", True),
        ("M8[s]", "<M8[ns]", False),
        ("V", "V3", True),
        (None, "<c8", True),
    ],
)
def test_dtypes_agree_in_any_byte_order(expected, stored, accepted):
    dtype = None if expected is None else np.dtype(expected)
    plan = plan_of(Plan("x", "array", dtype=dtype))
    payload = pack({"x": compact(np.zeros(2, stored))})
    for _ in range(2):
        if accepted:
            assert plan.from_buffer(payload).x.dtype == np.dtype(stored)
        else:
            with pytest.raises(SchemaError, match="array of") as caught:
                plan.from_buffer(payload)
            assert str(np.dtype(stored)) in caught.value.reason
            assert str(dtype) in caught.value.reason


def test_abstract_scalar_types_accept_their_subtypes():
    plan = plan_of(Plan("x", "array", dtype=np.floating))

    assert plan.from_buffer(pack({"x": compact(np.zeros(2, "f2"))})).x.dtype == "f2"
    with pytest.raises(SchemaError):
        plan.from_buffer(pack({"x": compact(np.zeros(2, "i2"))}))


def test_dtypes_may_change_from_payload_to_payload():
    plan = plan_of(Plan("x", "array"), Plan("y", "array", dtype=np.dtype("i4")))
    rng = random.Random(3)
    for _ in range(100):
        x = np.zeros((rng.randrange(3),) * rng.randrange(4), rng.choice("fdibhq"))
        y = np.ones(rng.randrange(9), rng.choice([">i4", "<i4"]))
        sample = plan.from_buffer(pack({"x": compact(x), "y": compact(y)}))
        np.testing.assert_array_equal(sample.x, x, strict=True)
        np.testing.assert_array_equal(sample.y, y)


def test_errors_of_arrays_name_the_field_and_the_byte():
    plan = plan_of(Plan("x", "array"))
    broken = compact(np.zeros(2, "f4"))[:-1]
    with pytest.raises(FormatError, match="expected 8 bytes") as caught:
        plan.from_buffer(pack({"x": broken}))

    assert caught.value.member == "field 'x'"
    assert caught.value.offset == 5 + len(broken)
    assert not isinstance(caught.value, SchemaError)
    assert pickle.loads(pickle.dumps(caught.value)).offset == caught.value.offset


def test_errors_of_text_name_the_field_and_the_byte():
    with pytest.raises(FormatError, match="UTF-8") as caught:
        plan_of(Plan("x", "str")).from_buffer(b"\x81\xa1x\xa3ab\xff")

    assert (caught.value.member, caught.value.offset) == ("field 'x'", 6)


def test_errors_of_decoders():
    plan = plan_of(Plan("x", "object", decode=decode_tags))
    with pytest.raises(SchemaError, match="Expected `str`") as caught:
        plan.from_buffer(pack({"x": [1]}))
    assert (caught.value.field, caught.value.offset) == ("x", 3)
    with pytest.raises(FormatError, match="invalid msgpack") as caught:
        plan.from_buffer(b"\x81\xa1x\x91\xa1\xff")
    assert not isinstance(caught.value, SchemaError)
    with pytest.raises(FormatError, match="extension type"):
        plan.from_buffer(b"\x81\xa1x\x91\xd4\x01a")

    def fail(view):
        raise ImportError("install it")

    with pytest.raises(ImportError, match="install it"):
        plan_of(Plan("x", "object", decode=fail)).from_buffer(pack({"x": [1]}))


def test_views_of_decoders_keep_the_payload():
    plan = plan_of(Plan("x", "object", decode=lambda view: view))
    data = bytearray(pack({"x": [1, 2]}))
    sample = plan.from_buffer(data)

    assert msgspec.msgpack.decode(sample.x) == [1, 2]
    with pytest.raises(BufferError):
        data.append(0)
    del sample
    data.append(0)


def test_post_init_slots_frozen_and_setters():
    @dataclasses.dataclass
    class Derived:
        x: int

        def __post_init__(self):
            self.twice = 2 * self.x

    @dataclasses.dataclass(frozen=True)
    class Frozen:
        x: int

    @dataclasses.dataclass(slots=True)
    class Slotted:
        x: int

    class Checked:
        def __setattr__(self, name, value):
            object.__setattr__(self, name, value + 1)

    payload = pack({"x": 4})
    field = Plan("x", "int")
    assert TypePlan(Derived, [field], post_init=True).from_buffer(payload).twice == 8
    assert TypePlan(Frozen, [field]).from_buffer(payload) == Frozen(4)
    assert TypePlan(Slotted, [field]).from_buffer(payload) == Slotted(4)
    assert TypePlan(Checked, [field]).from_buffer(payload).x == 5


def test_many_fields():
    names = [f"field_{i}" for i in range(300)]
    plan = plan_of(*(Plan(name, "int") for name in names))
    for _ in range(2):
        sample = plan.from_buffer(pack({name: i for i, name in enumerate(names)}))
        assert list(vars(sample).values()) == list(range(300))


def make_plan(cls, strict):
    return TypePlan(cls, IMAGE, strict=strict, make=make_plan)


def test_plans_pickle_by_their_maker():
    plan = pickle.loads(pickle.dumps(make_plan(Image, True)))

    assert (plan.cls, plan.strict) == (Image, True)
    check_image(plan.from_buffer(pack(FIELDS)))
    with pytest.raises(TypeError, match="pickle the class"):
        pickle.dumps(TypePlan(Image, IMAGE))


def test_bad_plans_are_refused():
    with pytest.raises(ValueError, match="unknown kind 'complex' of field 'x'"):
        plan_of(Plan("x", "complex"))
    with pytest.raises(TypeError, match="'x' has no decoder"):
        plan_of(Plan("x", "object"))


PAYLOADS = [b"", b"\x90", b"\x80\x00", b"\x81\x01\x02", b"\xdf\xff\xff\xff\xff"]


@pytest.mark.parametrize("payload", PAYLOADS)
def test_a_non_map_of_fields_is_refused(payload):
    with pytest.raises(FormatError) as caught:
        plan_of(Plan("x", "int", optional=True)).from_buffer(payload)
    assert caught.value.path == "<bytes>"


def test_every_cut_and_flip_is_refused_or_read():
    plan = TypePlan(Image, IMAGE)
    payload = pack(FIELDS)
    for size in range(len(payload)):
        for part in (TypePlan(Image, IMAGE), plan):
            with pytest.raises(FormatError) as caught:
                part.from_buffer(payload[:size])
            assert caught.value.offset <= size
    for i in range(len(payload)):
        for flip in (1, 2, 16, 128, 255):
            broken = bytearray(payload)
            broken[i] ^= flip
            try:
                found = vars(plan.from_buffer(bytes(broken)))
            except FormatError as error:
                assert error.offset <= len(payload)
            else:
                compare_with_msgspec(found, bytes(broken))


def compare_with_msgspec(found, payload):
    """A payload that is read has the values that msgspec finds in it."""
    expected = msgspec.msgpack.decode(payload)
    for name, value in found.items():
        if name == "image":
            assert expected[name].endswith(value.tobytes())
        else:
            assert repr(value) == repr(expected[name]) or value == expected[name]


def test_threads_share_a_plan():
    plan = TypePlan(Image, IMAGE)
    names = list(FIELDS)
    payloads = [
        pack({name: FIELDS[name] for name in names[i:] + names[:i]}) for i in range(8)
    ]
    errors = []

    def read():
        try:
            for i in range(400):
                check_image(plan.from_buffer(payloads[i % 8]))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
