"""Arrays on members, compared with np.load and np.frombuffer."""

import io
import pickle
import random
import tarfile

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.lib import format as npy

import fastshard
from fastshard import FormatError
from fastshard._core.dataset.npy import name_member
from fastshard.columnar.write.append_file import new_buffer
from support.tars import write_tar


def saved(array, version=None):
    file = io.BytesIO()
    npy.write_array(file, np.asanyarray(array), version=version, allow_pickle=True)
    return file.getvalue()


@pytest.fixture
def one(make_tar):
    """Return a function that opens a shard with these bytes as ``a.npy``."""

    def open_one(data, **options):
        return fastshard.open_shard(make_tar({"a.npy": data}), **options)

    return open_one


STRUCTURED = np.dtype([("x", "<f4"), ("y", ">i2", (2, 3)), ("größe", "S5")])
ARRAYS = {
    "vector": np.arange(10, dtype="<f4"),
    "matrix": np.arange(12.0).reshape(3, 4),
    "fortran": np.asfortranarray(np.arange(24).reshape(2, 3, 4)),
    "big-endian": np.arange(5, dtype=">i8"),
    "structured": np.zeros(4, STRUCTURED),
    "nothing": np.zeros((0, 3), "f4"),
    "scalar": np.array(3.5),
    "bool": np.array([True, False]),
    "complex": np.array([1 + 2j]),
    "text": np.array(["a", "größe"]),
    "bytes": np.array([b"a", b"bc"]),
    "time": np.array(["2020-01-01", "NaT"], "M8[D]"),
    "half": np.arange(3, dtype="f2"),
    "many dimensions": np.zeros((1,) * 32),
}


@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
@pytest.mark.parametrize("array", ARRAYS.values(), ids=ARRAYS)
@pytest.mark.parametrize("mode", ["mmap", "private", "pread"])
@pytest.mark.filterwarnings("ignore:.*Stored array in format:UserWarning")
def test_same_array_as_np_load(one, array, version, mode):
    if version < (3, 0) and array.dtype == STRUCTURED:
        array = array[["x", "y"]].astype([("x", "<f4"), ("y", ">i2", (2, 3))])
    shard = one(saved(array, version), mode=mode)
    for key in (0, "a.npy", -1):
        found = shard.array(key)
        assert found.dtype == array.dtype
        assert found.shape == array.shape
        assert np.array_equal(found, array, equal_nan=array.dtype.kind in "fcM")
        assert found.flags.f_contiguous == array.flags.f_contiguous
        assert found.flags.c_contiguous == array.flags.c_contiguous
        assert found.flags.writeable == (mode == "private")
        assert not found.flags.owndata
    assert np.array_equal(
        shard.samples["a"].array("npy"), array, equal_nan=array.dtype.kind in "fcM"
    )


def test_an_array_lies_in_the_mapped_file(one):
    shard = one(saved(np.arange(100)))
    array = shard.array(0)
    view = np.frombuffer(shard[0], "u1")
    assert np.shares_memory(array, view)
    assert array.flags.aligned
    assert array.ctypes.data % 64 == 0  # tar's blocks, and the header's padding


@pytest.mark.filterwarnings("ignore:.*Stored array in format:UserWarning")
@settings(deadline=None, max_examples=100)
@given(
    array=hnp.arrays(
        st.one_of(hnp.scalar_dtypes(), hnp.array_dtypes()),
        hnp.array_shapes(min_dims=0, max_dims=5, min_side=0),
    )
)
def test_any_array(tmp_path_factory, array):
    path = tmp_path_factory.mktemp("h") / "s.tar"
    data = saved(array)
    write_tar(path, {"a.npy": data})
    expected = np.load(io.BytesIO(data))
    with fastshard.open_shard(path) as shard:
        found = shard.array(0)
        assert found.dtype == expected.dtype
        assert found.shape == expected.shape
        assert found.tobytes() == expected.tobytes()


def test_neighbours_with_other_headers(make_tar):
    arrays = [
        np.full(i % 5 + 1, i, dtype) for i in range(20) for dtype in ("<f4", ">i2")
    ]
    path = make_tar({f"{i}.npy": saved(array) for i, array in enumerate(arrays)})
    with fastshard.open_shard(path) as shard:
        for order in (range(40), reversed(range(40)), [3, 3, 4, 3]):
            for i in order:
                assert shard.array(i).dtype == arrays[i].dtype
                assert np.array_equal(shard.array(i), arrays[i])


@pytest.mark.parametrize(
    "array", [np.array([None, 1]), np.zeros(2, [("a", "O")]), np.zeros(2, "O,i4")]
)
def test_arrays_of_objects_are_refused(one, array):
    with pytest.raises(FormatError, match="objects"):
        one(saved(array)).array(0)


def with_header(text, version=1, data=b""):
    encoded = text if isinstance(text, bytes) else text.encode()
    size = len(encoded).to_bytes(2 if version == 1 else 4, "little")
    return b"\x93NUMPY" + bytes([version, 0]) + size + encoded + data


def header_of(descr="'<f4'", order="False", shape="(2,)", extra=""):
    return f"{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape}{extra}}}"


def test_a_header_written_by_python_2(one):
    data = with_header(header_of(shape="(2L, 10L)"), data=bytes(80))
    assert one(data).array(0).shape == (2, 10)


@pytest.mark.parametrize(
    ("data", "at"),
    [
        (b"", 0),
        (b"\x93NUMP", 0),
        (b"PK\x03\x04" + bytes(100), 0),
        (b"\x93NUMPY\x01\x00", 8),
        (b"\x93NUMPY\x04\x00" + bytes(100), 6),
        (b"\x93NUMPY\x00\x00" + bytes(100), 6),
        (b"\x93NUMPY\x01\x01" + bytes(100), 6),
        (b"\x93NUMPY\x01\x00\xff\xff" + bytes(100), 8),
        (b"\x93NUMPY\x02\x00\xff\xff\xff\xff" + bytes(100), 8),
        (with_header(""), 10),
        (with_header("nonsense("), 10),
        (with_header("[" * 5000), 10),
        (with_header("-" * 60_000 + "1"), 10),
        (with_header("{}"), 10),
        (with_header("__import__('os').system('true')"), 10),
        (with_header(header_of(extra=", 'more': 1")), 10),
        (with_header(header_of(descr="'nonsense'")), 10),
        (with_header(header_of(descr="'|O'")), 10),
        (with_header(header_of(descr="[('a', '|O')]")), 10),
        (with_header(header_of(descr="[('a', '<f4'), ('a', '<f4')]")), 10),
        (with_header(header_of(descr="5")), 10),
        (with_header(header_of(descr="('<f4', (2,))")), 10),
        (with_header(header_of(order="0")), 10),
        (with_header(header_of(shape="[2]")), 10),
        (with_header(header_of(shape="(-1,)")), 10),
        (with_header(header_of(shape="(2.0,)")), 10),
        (with_header(header_of(shape="(True,)")), 10),
        (with_header(header_of(shape="(99999999999999999999,)")), 10),
        (with_header(header_of(shape="(4294967296, 4294967296)")), 10),
        (with_header(header_of(shape="(9223372036854775807, 2)")), 10),
        (with_header(header_of(shape=str((1,) * 65))), 10),
        (with_header("\xff".encode("latin-1"), 3), 12),
        (saved(np.arange(4))[:-1], 159),
        (saved(np.arange(4)) + b"x", 161),
    ],
)
def test_bad_npy_members_name_the_byte(one, data, at):
    shard = one(data)
    with pytest.raises(FormatError, match="npy") as caught:
        shard.array(0)
    assert caught.value.offset == int(shard.offsets[0]) + at
    assert caught.value.member == "a.npy"
    assert caught.value.path == shard.path


def test_every_byte_of_an_npy_header_damaged(make_tar):
    rng = random.Random(0)
    good = saved(np.arange(8, dtype="<u2").reshape(2, 4))
    damaged = {}
    for at in range(128):
        for value in (0, 0x27, 0xFF, rng.randrange(256)):
            changed = bytearray(good)
            changed[at] = value
            damaged[f"{at}-{value}.npy"] = bytes(changed)
    with fastshard.open_shard(make_tar(damaged)) as shard:
        for i in range(len(shard)):
            try:
                array = shard.array(i)
            except FormatError:
                continue
            assert array.nbytes == 16
            assert array.tobytes() == good[128:]


@pytest.mark.parametrize(
    ("dtype", "shape", "expected"),
    [
        ("u1", None, (24,)),
        ("<f4", None, (6,)),
        (">i2", (3, 4), (3, 4)),
        (np.float64, 3, (3,)),
        (np.dtype("f4"), (2, -1), (2, 3)),
        ("S3", None, (8,)),
        ("V24", (), ()),
        ([("a", "f4"), ("b", "u4")], None, (3,)),
        (int, (-1, 1), (3, 1)),
        ("u1", [4, 6], (4, 6)),
        ("f4", (np.int64(6),), (6,)),
    ],
)
def test_raw_values_of_a_given_dtype(one, dtype, shape, expected):
    data = bytes(range(24))
    array = one(data).array(0, dtype, shape)
    assert array.shape == expected
    assert array.dtype == np.dtype(dtype)
    assert array.tobytes() == data


@pytest.mark.parametrize(
    ("dtype", "shape"),
    [
        ("f8", (4,)),
        ("V7", None),
        ("u1", (5, -1)),
        ("u1", (-1, -1)),
        ("u1", (-2, -12)),
        ("u1", (0, -1)),
        ("u1", 25),
        ("u1", (2**40, 2**40)),
        ("u1", (2**63 - 1, 2)),
        ("O", None),
        ("V0", None),
        ("S0", None),
        ("u1", (1,) * 65),
        ("(2,3)f4", None),
        (None, (24,)),
    ],
)
def test_a_bad_fit_is_a_value_error(one, dtype, shape):
    with pytest.raises(ValueError, match=r"shape|array|read as") as caught:
        one(bytes(24)).array(0, dtype, shape)
    assert not isinstance(caught.value, FormatError)
    assert "a.npy" in str(caught.value)


def test_a_shape_that_shrinks_while_it_is_read(one):
    class Shrinking:
        def __index__(self):
            shape.clear()
            return 4

    shape = [Shrinking(), 6]
    assert one(bytes(24)).array(0, "u1", shape).shape == (4, 6)


def test_other_types_and_shapes_are_errors(one):
    shard = one(bytes(24))
    with pytest.raises(TypeError):
        shard.array(0, "no such type")
    with pytest.raises(TypeError):
        shard.array(0, "u1", "24")
    for shape in (24.0, (24.0,), (4, None), [[24]]):
        with pytest.raises(TypeError):
            shard.array(0, "u1", shape)
    with pytest.raises(OverflowError):
        shard.array(0, "u1", 2**70)


def test_an_array_on_unaligned_data_has_the_flag(make_tar):
    text = header_of("'<f8'", shape="(3,)")  # 10 + 57 bytes: not padded
    data = with_header(text, data=np.arange(3.0).tobytes())
    assert len(data) % 8 != 0
    with fastshard.open_shard(make_tar({"a.npy": data})) as shard:
        array = shard.array(0)
        assert not array.flags.aligned
        assert array.tolist() == [0, 1, 2]
        assert (array * 2).tolist() == [0, 2, 4]


def test_an_empty_member_is_an_empty_array(one):
    assert one(b"").array(0, "f4").shape == (0,)


def test_an_array_pickles_as_a_copy(one):
    array = one(saved(np.arange(5))).array(0)
    again = pickle.loads(pickle.dumps(array))
    assert again.flags.owndata or again.base is not array
    assert np.array_equal(again, array)


def test_fields_whose_headers_differ_are_read_in_turns(tmp_path):
    arrays = {
        f"{i}.{field}.npy": np.full(shape, i, dtype)
        for i in range(6)
        for field, shape, dtype in (
            ("a", 3, "f4"),
            ("b", (2, 2), "i8"),
            ("c", (), "u1"),
            ("d", 5, "f4"),
            ("e", (1, 4), "c8"),
        )
    }
    data = {}
    for name, array in arrays.items():
        file = io.BytesIO()
        np.save(file, array)
        data[name] = file.getvalue()
    path = write_tar(tmp_path / "turns.tar", data)
    for _ in range(2):
        with fastshard.open_shard(path) as shard:
            for name, array in arrays.items():
                found = shard.array(name)
                assert found.dtype == array.dtype
                assert found.shape == array.shape
                assert (found == array).all()


MATRIX = np.arange(12, dtype="<i4").reshape(3, 4)


@pytest.mark.parametrize(
    "other",
    [
        MATRIX + 1,
        MATRIX[::-1],
        np.asfortranarray(MATRIX),
        MATRIX.reshape(4, 3),
        MATRIX.ravel(),
        MATRIX[:2],
        MATRIX[0, 0],
        MATRIX.astype(">i4"),
        MATRIX.astype("<f4"),
        MATRIX.astype("M8[h]"),
        MATRIX.reshape((1,) * 30 + (3, 4)),
        MATRIX.view(np.recarray),
        MATRIX.tolist(),
    ],
    ids=lambda other: f"{type(other).__name__}-{getattr(other, 'dtype', '')}"[:20],
)
def test_members_in_turns_are_as_np_save_writes_them(other):
    buffer = new_buffer(allow_pickle=False)
    buffer.begin(0)
    arrays = [MATRIX, MATRIX * 2, other, other, MATRIX * 3, MATRIX * 4, other]
    for i, array in enumerate(arrays):
        buffer.append(b"%d.npy" % i, array)
    with tarfile.open(fileobj=io.BytesIO(bytes(buffer) + bytes(1024))) as tar:
        for i, array in enumerate(arrays):
            assert tar.extractfile(f"{i}.npy").read() == saved(np.asarray(array))


@pytest.mark.parametrize("text", ["a", "sample_000000000001", "a/b", "x" * 100])
def test_short_ids_name_members(text):
    assert name_member(text) == text.encode() + b".npy"


@pytest.mark.parametrize(
    "text", ["", "\0", "a\0", "x" * 101, "\xe9", "\u4e2d", b"a", 1]
)
def test_other_ids_are_left_to_the_caller(text):
    assert name_member(text) is None
