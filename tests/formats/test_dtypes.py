"""Arrays of every dtype, through every writer and back into batches of each library.

They are equal, or refused by a text that names field, sample and a way out.
"""

from __future__ import annotations

import io
import sys
import tarfile
import traceback

import numpy as np
import pytest
from numpy.typing import NDArray

import fastshard
from fastshard import typed
from fastshard.columnar import ShardedDatasetWriter
from fastshard.formats.encoders import encode
from fastshard.streaming import MDSWriter


def library(name):
    return pytest.importorskip(name)


NUMBERS = ["?", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f2", "f4", "f8"]
PLAIN = [*NUMBERS, "c8", "c16", ">i4", ">f4", "M8[s]", "m8[ms]", "U5", "S5"]
FOREIGN = ["bfloat16", "float8_e4m3fn", "float8_e5m2", "int4"]
STRUCTURED = [("a", "i4"), ("b", ">f8", 2)]
KINDS = [*PLAIN, "structured", *FOREIGN, "structured foreign", "object", "text"]


def make_array(kind):
    """Return an array of six elements, three and three."""
    numbers = np.arange(6).reshape(2, 3)
    if kind in PLAIN:
        return numbers.astype(kind)
    if kind == "structured":
        return np.zeros((2, 3), STRUCTURED)
    if kind == "object":
        return np.array([["a", 1, None]] * 2, object)
    if kind == "text":
        dtypes = getattr(np.dtypes, "StringDType", None)
        if dtypes is None:
            pytest.skip("NumPy 1 has no StringDType")
        return np.array([["a", "b", "c"]] * 2, dtypes())
    ml_dtypes = library("ml_dtypes")
    if kind == "structured foreign":
        return np.zeros((2, 3), [("a", "i4"), ("b", ml_dtypes.bfloat16)])
    return numbers.astype(getattr(ml_dtypes, kind))


@typed.packable
class Row:
    npy: NDArray


def write_npy(folder, array):
    with fastshard.ShardWriter(folder / "a.tar") as writer:
        for key in "01":
            writer.write({"__key__": f"key{key}", "npy": array})
    return fastshard.open(folder), "npy"


def write_npz(folder, array):
    with fastshard.ShardWriter(folder / "a.tar") as writer:
        for key in "01":
            writer.write({"__key__": f"key{key}", "npz": {"npy": array}})
    return fastshard.open(folder).decode("npz").map(lambda s: s["npz"]), "npy"


def write_mds(folder, array):
    with MDSWriter(columns={"npy": "ndarray"}, out=folder) as writer:
        for _ in range(2):
            writer.write({"npy": array})
    return fastshard.open(folder), "npy"


def write_columnar(folder, array, pack=False):
    with ShardedDatasetWriter(folder, pack=pack) as writer:
        writer.add_field("npy")
        for key in "01":
            writer.add_sample({"npy": array}, f"key{key}")
    return fastshard.open(folder), "npy"


def write_packed_columnar(folder, array):
    return write_columnar(folder, array, pack=True)


def write_shard_handle(folder, array):
    with ShardedDatasetWriter(folder) as writer:
        writer.add_field("npy")
        with writer.open_shard("npy") as shard:
            for key in "01":
                shard.add_sample(f"key{key}", array)
    return fastshard.open(folder), "npy"


def write_typed(folder, array, array_format="npy"):
    samples = (Row(array) for _ in range(2))
    path = folder / "a.tar"
    ds = typed.write_samples(
        samples, path, key=lambda _: "key0", array_format=array_format, maxcount=1
    )
    return ds, "npy"


def write_compact(folder, array):
    return write_typed(folder, array, "compact")


WRITERS = {
    write.__name__.removeprefix("write_"): write
    for write in (
        write_npy,
        write_npz,
        write_mds,
        write_columnar,
        write_packed_columnar,
        write_shard_handle,
        write_typed,
        write_compact,
    )
}
REFUSED = {*FOREIGN, "structured foreign", "object", "text"}
REFUSED_BY_MDS = {*KINDS} - {*NUMBERS[1:], ">i4", ">f4"}
WAYS = ["array.", "array[", "allow_pickle=True"]


def text_of(error):
    """Return an error's message with its notes, as a traceback ends."""
    return "".join(traceback.format_exception_only(error))


def written(folder, writer, kind):
    """Return the dataset and the array, or None if the writer refuses it in words."""
    array = make_array(kind)
    refuses = kind in (REFUSED_BY_MDS if writer == "mds" else REFUSED)
    try:
        ds, field = WRITERS[writer](folder, array)
    except (TypeError, ValueError) as error:
        text = text_of(error)
        assert refuses, text
        assert "npy'" in text  # the field
        assert "key0" in text or "sample 0" in text
        assert any(way in text for way in WAYS)
        return None
    assert not refuses
    if writer == "mds":  # which has no byte orders
        array = array.astype(array.dtype.newbyteorder("<"))
    return ds, field, array


CASES = [(writer, kind) for writer in WRITERS for kind in KINDS]
STORED = [
    (writer, kind)
    for writer, kind in CASES
    if kind not in (REFUSED_BY_MDS if writer == "mds" else REFUSED)
]
stored = pytest.mark.parametrize(("writer", "kind"), STORED)


@pytest.mark.parametrize(("writer", "kind"), CASES)
def test_numpy_batches_have_the_written_dtype(tmp_path, writer, kind):
    found = written(tmp_path / "data", writer, kind)
    if found is None:
        return
    ds, field, array = found
    with ds.loader(2) as loader:
        for batch in (next(iter(ds.batches(2))), next(loader)):
            stack = batch[field]
            assert stack.dtype == array.dtype
            assert stack.tobytes() == 2 * array.tobytes()


NOT_OF_TORCH = {">i4", ">f4", "M8[s]", "m8[ms]", "U5", "S5", "structured"}
NOT_OF_JAX = {">i4", ">f4", "structured"}


def check_refusal(get, kind):
    """Check that `get` raises an error of words for a batch."""
    with pytest.raises(fastshard.FastshardError) as caught:
        get()
    text = text_of(caught.value)
    assert "field 'npy'" in text
    assert "convert it in map(), to " in text
    assert any(way in text for way in WAYS)
    return text


@stored
def test_torch_batches_are_equal_or_refused(tmp_path, writer, kind):
    library("torch")
    from fastshard.adapters import torch as ft

    ds, field, array = written(tmp_path / "data", writer, kind)

    def load():
        with ft.loader(ds, 2) as loader:
            return next(loader)

    for get in (lambda: ft.collate([ds[0], ds[1]]), load):
        if kind in NOT_OF_TORCH and (writer != "mds" or kind[0] != ">"):
            text = check_refusal(get, kind)
            assert writer in ("npz", "typed", "compact", "mds") or "key0" in text
            continue
        tensor = get()[field]
        assert tensor.numpy().dtype == array.dtype
        assert tensor.tolist() == [array.tolist()] * 2


@stored
def test_jax_batches_are_equal_or_refused(tmp_path, writer, kind):
    library("jax")
    from fastshard.adapters import jax as fj

    ds, field, array = written(tmp_path / "data", writer, kind)

    def load():
        with fj.loader(ds, 2) as loader:
            return next(loader)

    if kind in NOT_OF_JAX and (writer != "mds" or kind[0] != ">"):
        check_refusal(load, kind)
        return
    batch = np.asarray(load()[field])
    assert batch.dtype.kind == array.dtype.kind
    assert batch.tolist() == [array.tolist()] * 2  # 64 bits become 32


def test_arrays_of_the_error_are_named_in_npz():
    ml_dtypes = library("ml_dtypes")
    arrays = {"fine": np.zeros(2), "odd": np.zeros(2, ml_dtypes.bfloat16)}
    with pytest.raises(ValueError, match=r"array 'odd': .* array.view\('uint16'\)"):
        encode("npz", arrays)


def test_dtypes_that_come_back_are_stored_by_the_bytes_of_numpy():
    padded = np.dtype({"names": ["a", "b"], "formats": ["u1", "f8"]}, align=True)
    titled = np.dtype([(("title", "a"), "i4")])
    nested = np.dtype([("a", [("b", "U3"), ("c", ">i2", (2, 2))])])
    for dtype in (padded, titled, nested, np.dtype("V3"), np.dtype("M8[25s]")):
        array = np.zeros(2, dtype)
        stream = io.BytesIO()
        np.save(stream, array)
        assert bytes(encode("npy", array)) == stream.getvalue()


def test_fields_out_of_order_are_refused():
    dtype = np.dtype({"names": ["a", "b"], "formats": ["i4", "i4"], "offsets": [4, 0]})
    with pytest.raises(ValueError, match=r"npy has no name .* array\['a'\]"):
        encode("npy", np.zeros(2, dtype))


def test_void_arrays_of_existing_tars_are_read_as_before(tmp_path):
    array = np.arange(6, dtype="u2").view("V2")
    stream = io.BytesIO()
    np.save(stream, array)
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        member = tarfile.TarInfo("a.npy")
        member.size = len(stream.getvalue())
        stream.seek(0)
        tar.addfile(member, stream)
    ds = fastshard.open(tmp_path)
    batch = next(iter(ds.batches(1)))["npy"]
    assert batch.dtype == "V2"
    assert batch.view("u2").tolist() == [[0, 1, 2, 3, 4, 5]]
    if "torch" in sys.modules:
        from fastshard.adapters import torch as ft

        text = check_refusal(lambda: ft.collate([ds[0]]), "V2")
        assert "array.view('uint16')" in text
        assert "sample 'a', position 0" in text


def test_a_ragged_batch_names_the_field_of_a_dtype_that_torch_lacks():
    library("torch")
    from fastshard.adapters import torch as ft

    samples = [{"__key__": "a", "x": np.zeros(2, ">f4")}, {"__key__": "b", "x": 0}]
    samples[1]["x"] = np.zeros(3, ">f4")
    with pytest.raises(fastshard.FastshardError, match="float32") as caught:
        ft.collate(samples, ragged="list")
    assert caught.value.__notes__ == ["field 'x'", "sample 'a'"]


def test_arrays_of_plain_dtypes_keep_the_error_of_torch():
    library("torch")
    from fastshard.adapters import torch as ft

    with pytest.raises(fastshard.FastshardError, match="strides"):
        ft.to_tensor(np.arange(4)[::-1])
