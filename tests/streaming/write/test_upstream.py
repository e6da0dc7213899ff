"""Files are those of the installed mosaicml-streaming, for all kinds of values."""

import importlib
from decimal import Decimal

import numpy as np
import pytest

from fastshard import streaming as ours

# Not "streaming": the folder of these tests has that name.
pytest.importorskip("streaming.base")
upstream = importlib.import_module("streaming")
Image = pytest.importorskip("PIL.Image")

SCALARS = ("uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64")
SCALARS = (*SCALARS, "float16", "float32", "float64")


def write_both(tmp_path, cls, samples, **options):
    """Write samples by both writers; return their files by name."""
    files = []
    for number, package in enumerate((upstream, ours)):
        out = tmp_path / str(number)
        with getattr(package, cls)(out=str(out), **options) as writer:
            for sample in samples:
                writer.write(sample)
        files.append({path.name: path.read_bytes() for path in out.iterdir()})
    return files


def assert_same(tmp_path, cls, samples, **options):
    theirs, mine = write_both(tmp_path, cls, samples, **options)
    assert mine == theirs
    assert len(mine) > 1


def numbers(rng):
    for _ in range(30):
        yield {
            **{name: np.dtype(name).type(rng.integers(0, 100)) for name in SCALARS},
            "a": int(rng.integers(-(2**63), 2**63 - 1)),
            "b": np.float64(rng.standard_normal()),
        }
    for value in (0, 1, 7, 100, 99.0, 3.7, True, "42", np.int64(17), np.float32(2.5)):
        if isinstance(value, str):
            continue
        yield {**dict.fromkeys(SCALARS, value), "a": int(value), "b": value}


def test_numbers(tmp_path):
    rng = np.random.default_rng(1)
    columns = {name: name for name in SCALARS} | {"a": "int", "b": "float32"}
    samples = list(numbers(rng))
    assert_same(tmp_path, "MDSWriter", samples, columns=columns, size_limit=2000)


def pictures(rng):
    for mode in ("RGB", "L", "RGBA", "1", "CMYK", "I", "F", "LA", "P"):
        yield Image.fromarray(rng.integers(0, 255, (9, 7, 3), "u1")).convert(mode)


def test_objects(tmp_path, request):
    rng = np.random.default_rng(2)
    path = tmp_path / "a.jpg"
    Image.fromarray(rng.integers(0, 255, (9, 7, 3), "u1")).save(path)
    opened = Image.open(path)
    request.addfinalizer(opened.close)
    samples = []
    for i, picture in enumerate(pictures(rng)):
        wide = rng.integers(0, 99, (4, 300)).astype(SCALARS[i])
        plain = picture.convert("RGB")
        samples.append(
            {
                "text": "\u00fc\U0001f600" * i,
                "bytes": rng.bytes(i),
                "big": 10 ** (i * 7),
                "float": 0.1 * i,
                "decimal": Decimal(i) / 7,
                "json": {"z": [i, None], "a": float("nan")},
                "array_json": wide[:1, :3],
                "array": (wide, wide.T, wide[::2, ::-3], wide[0])[i % 4],
                "pil": picture,
                "jpeg": (plain, opened)[i % 2],
                "png": plain,
                "pkl": {i},
                "list": [picture] * (i % 3),
                "jpegs": [plain] * (i % 2),
                "pngs": [plain],
                "files": [path.read_bytes()] * i,
            }
        )
    columns = {
        "text": "str",
        "bytes": "bytes",
        "big": "str_int",
        "float": "str_float",
        "decimal": "str_decimal",
        "json": "json",
        "array_json": "json",
        "array": "ndarray",
        "pil": "pil",
        "jpeg": "jpeg",
        "png": "png",
        "pkl": "pkl",
        "list": "list[pil]",
        "jpegs": "list[jpeg]",
        "pngs": "list[png]",
        "files": "jpeg_array",
    }
    assert_same(tmp_path / "out", "MDSWriter", samples, columns=columns)


@pytest.mark.parametrize("shape", [(3,), (2, 5), (1, 1, 300), (70_000, 1)])
def test_arrays(tmp_path, shape):
    rng = np.random.default_rng(3)
    samples, columns = [{}, {}], {}
    for name in SCALARS:
        dims = ",".join(map(str, shape))
        for i, encoding in enumerate(
            ("ndarray", f"ndarray:{name}", f"ndarray:{name}:{dims}")
        ):
            columns[f"{name}{i}"] = encoding
            for sample in samples:
                sample[f"{name}{i}"] = rng.integers(0, 99, shape).astype(name)
    assert_same(tmp_path, "MDSWriter", samples, columns=columns, size_limit=None)


ROWS = [
    {"t": "x" * n, "i": 10**n * (-1) ** n, "f": n / 3, "\u00fc": "\u65e5" * n}
    for n in (0, 1, 500, 2, 3, 700, 701, 1, 0, 9)
]
COLUMNS = {"t": "str", "i": "int", "f": "float", "\u00fc": "str"}


@pytest.mark.parametrize("limit", [None, 0, 1, 300, "1kb", 1500, 1 << 26])
@pytest.mark.parametrize(
    ("cls", "options"),
    [
        ("MDSWriter", {}),
        ("JSONWriter", {}),
        ("JSONWriter", {"newline": "\r\n"}),
        ("CSVWriter", {}),
        ("TSVWriter", {"newline": "\n\n"}),
        ("XSVWriter", {"separator": "\u2028|"}),
    ],
)
def test_shards_of_every_size(tmp_path, cls, options, limit):
    columns = {"t": "str", "i": "str_int", "f": "float64"} if cls[0] == "M" else COLUMNS
    hashes = ["md5", "sha1", "xxh3_64"]
    options |= {"columns": columns, "hashes": hashes, "size_limit": limit}
    assert_same(tmp_path, cls, ROWS, **options)


@pytest.mark.parametrize("compression", ["zstd", "zstd:19", "bz2:1", "snappy", "br:3"])
@pytest.mark.parametrize("cls", ["MDSWriter", "CSVWriter"])
def test_compressions(tmp_path, cls, compression):
    columns = {"t": "str"}
    rows = [{"t": f"row {i} " * (i % 50)} for i in range(3000)]
    options = {"hashes": ["sha1"], "columns": columns, "compression": compression}
    assert_same(tmp_path, cls, rows, size_limit=200_000, **options)


def test_shards_that_compress_in_blocks(tmp_path):
    rng = np.random.default_rng(5)
    rows = [{"b": rng.bytes(1 << 16) + bytes(1 << 16)} for _ in range(100)]
    assert_same(tmp_path, "MDSWriter", rows, columns={"b": "bytes"}, compression="zstd")


@pytest.mark.parametrize(
    ("cls", "columns", "sample"),
    [
        ("MDSWriter", {"a": "int"}, {"a": "x"}),
        ("MDSWriter", {"a": "int"}, {"a": np.int64(1)}),
        ("MDSWriter", {"a": "int"}, {"a": 2**63}),
        ("MDSWriter", {"a": "int"}, {"b": 1}),
        ("MDSWriter", {"a": "int"}, {"a": b"123"}),
        ("MDSWriter", {"a": "str"}, {"a": 1}),
        ("MDSWriter", {"a": "uint8"}, {"a": 256}),
        ("MDSWriter", {"a": "uint8"}, {"a": -1}),
        ("MDSWriter", {"a": "int32"}, {"a": "x"}),
        ("MDSWriter", {"a": "ndarray"}, {"a": np.zeros(0)}),
        ("MDSWriter", {"a": "ndarray"}, {"a": np.zeros(())}),
        ("MDSWriter", {"a": "ndarray:uint8"}, {"a": np.zeros(3)}),
        ("MDSWriter", {"a": "ndarray:uint8:3"}, {"a": np.zeros(4, "u1")}),
        ("MDSWriter", {"a": "ndarray"}, {"a": np.zeros(4, bool)}),
        ("MDSWriter", {"a": "jpeg_array"}, {"a": 5}),
        ("MDSWriter", {"a": "list[pil]"}, {"a": ()}),
        ("MDSWriter", {"a": "pil"}, {"a": 5}),
        ("MDSWriter", {"a": "json"}, {"a": {1}}),
        ("MDSWriter", {"a": "nothing"}, {}),
        ("JSONWriter", {"a": "int"}, {"a": 1.5}),
        ("JSONWriter", {"a": "int"}, {}),
        ("JSONWriter", {"a": "bytes"}, {}),
        ("CSVWriter", {"a": "str"}, {"a": "x,y"}),
        ("CSVWriter", {"a": "str"}, {"a": "x\ny"}),
        ("CSVWriter", {"a": "float"}, {"a": 1}),
        ("TSVWriter", {"a\t": "str"}, {}),
        ("CSVWriter", {"a": "json"}, {}),
    ],
)
def test_errors(tmp_path, cls, columns, sample):
    kinds = []
    for number, package in enumerate((upstream, ours)):
        with pytest.raises(Exception) as caught:  # noqa: PT011
            getattr(package, cls)(
                columns=columns, out=str(tmp_path / str(number))
            ).write(sample)
        kinds.append(caught.type)
    assert kinds[0] is kinds[1]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.filterwarnings("ignore:unclosed file")  # of upstream
def test_upstream_reads_valid_shards(tmp_path):
    array = np.arange(6, dtype=">u4").reshape(2, 3)
    with ours.MDSWriter(out=str(tmp_path), columns={"a": "ndarray"}) as writer:
        writer.write({"a": array})
    (row,) = upstream.LocalDataset(str(tmp_path))
    assert row["a"].tolist() == array.tolist()
