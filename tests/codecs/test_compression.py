"""Compressions of shards: every name, damage, bombs, bytes behind the data."""

import bz2
import gzip
import json
import os
import random
import subprocess
import sys
import tracemalloc

import pytest

from fastshard.codecs import compression as codecs
from fastshard.codecs.compression import COMPRESSIONS, parse_compression
from fastshard.errors import FormatError, MissingLibraryError
from support.inside.streaming import hide_brotli
from support.marks import thin

cramjam = pytest.importorskip("cramjam")
if sys.version_info < (3, 14):
    pytest.importorskip("backports.zstd")

ALGOS = ["br", "bz2", "gz", "snappy", "zstd"]
MULTIPLE = ["bz2", "gz", "zstd"]  # whose streams may follow one another


def make_text(nbytes, seed=1):
    rng = random.Random(seed)
    words = [rng.randbytes(3).hex() for _ in range(500)]
    return " ".join(rng.choices(words, k=nbytes // 7 + 1)).encode()[:nbytes]


TEXT = make_text(5_000)
LONG = make_text(700_000)  # more than two pieces
WAYS = [("brotli", algo) for algo in ALGOS] + [("cramjam", "br")]


@pytest.fixture
def no_brotli(monkeypatch):
    hide_brotli(monkeypatch)


@pytest.fixture(params=WAYS, ids=lambda way: f"{way[1]}-{way[0]}")
def algo(request):
    """Each algorithm, br with both of its libraries."""
    library, name = request.param
    if library == "cramjam":
        request.getfixturevalue("no_brotli")
    return name


def test_names_are_those_of_upstream():
    assert len(COMPRESSIONS) == len(set(COMPRESSIONS)) == 58
    for algo, levels in (
        ("br", range(12)),
        ("bz2", range(1, 10)),
        ("gz", range(10)),
        ("zstd", range(1, 23)),
    ):
        found = [n for n in COMPRESSIONS if n.partition(":")[0] == algo]
        assert found == [algo, *(f"{algo}:{level}" for level in levels)]
    assert "snappy" in COMPRESSIONS


@pytest.mark.parametrize(
    ("name", "level"), [("br", 11), ("bz2", 9), ("gz", 9), ("snappy", 0), ("zstd", 3)]
)
def test_default_levels(name, level):
    found = parse_compression(name)
    assert found == (name, level)
    assert found.extension == name


def test_a_level_is_not_part_of_the_extension():
    found = parse_compression("zstd:22")
    assert (found.algo, found.level, found.extension) == ("zstd", 22, "zstd")


@pytest.mark.parametrize(
    "name", ["", "zip", "zstd:0", "zstd:23", "zstd:03", "snappy:1", "gz:", "br:12"]
)
def test_other_names_are_refused(name):
    with pytest.raises(ValueError, match="not a supported compression"):
        parse_compression(name)


@pytest.mark.parametrize("name", COMPRESSIONS)
def test_round_trip(name):
    one = parse_compression(name)
    assert one.decompress(one.compress(TEXT), len(TEXT), "x") == TEXT


@pytest.mark.parametrize("data", [b"", b"a", LONG, bytes(1_000_000)], ids=len)
def test_round_trip_of_sizes(algo, data):
    one = parse_compression(f"{algo}:5" if algo == "br" else algo)
    found = one.decompress(one.compress(data), len(data))
    assert type(found) is bytes
    assert found == data


def test_any_buffer_is_decompressed(algo):
    one = parse_compression(algo)
    packed = bytearray(b"--" + one.compress(TEXT))
    assert one.decompress(memoryview(packed)[2:], len(TEXT)) == TEXT


@pytest.mark.parametrize("chunk", [1, 7, 1000])
def test_chunks_of_any_size_are_decompressed(algo, chunk):
    one = parse_compression(algo)
    packed = one.compress(TEXT)
    chunks = (packed[i : i + chunk] for i in range(0, len(packed), chunk))
    assert b"".join(one.iter_pieces(chunks, len(TEXT))) == TEXT


def test_pieces_are_bounded():
    one = parse_compression("zstd")
    pieces = list(one.iter_pieces([one.compress(bytes(3_000_000))], 3_000_000))
    assert max(map(len, pieces)) <= codecs.PIECE_BYTES


@pytest.mark.parametrize(
    ("name", "unpack"), [("gz", gzip.decompress), ("bz2", bz2.decompress)]
)
def test_the_standard_library_reads_the_same(name, unpack):
    assert unpack(parse_compression(name).compress(TEXT)) == TEXT


def test_gz_stores_no_time():
    packed = parse_compression("gz").compress(TEXT)
    expected = gzip.compress(TEXT, 9)
    assert packed[4:8] == bytes(4)
    assert packed[:4] + packed[8:] == expected[:4] + expected[8:]


@pytest.mark.parametrize("name", thin(COMPRESSIONS, 5))
@pytest.mark.parametrize("nbytes", [0, 150, 70_000, 6_000_000])
def test_same_bytes_as_upstream(name, nbytes):
    upstream = pytest.importorskip("streaming.base.compression")
    algo, level = parse_compression(name)
    if nbytes > 1e6 and (algo == "br" or (algo == "zstd" and level > 9)):
        nbytes = 700_000
    data = make_text(nbytes)
    packed, expected = (
        bytearray(parse_compression(name).compress(data)),
        bytearray(upstream.compress(name, data)),
    )
    if algo == "gz":
        packed[4:8] = expected[4:8]  # the time
    assert packed == expected


@pytest.mark.parametrize("kind", ["mds", "json", "csv", "tsv"])
@pytest.mark.parametrize("name", ["br", "bz2", "gz", "snappy", "zstd", "zstd7"])
def test_files_of_upstream(streaming_data, kind, name):
    folder = streaming_data[f"{kind}/{name}"].root
    plain = streaming_data[f"{kind}/none"].root
    count = 0
    for shard in json.loads((folder / "index.json").read_bytes())["shards"]:
        one = parse_compression(shard["compression"])
        for raw, packed in (("raw_data", "zip_data"), ("raw_meta", "zip_meta")):
            if packed in shard:
                data = (folder / shard[packed]["basename"]).read_bytes()
                found = one.decompress(data, shard[raw]["bytes"])
                count += 1
                if raw == "raw_data" and kind != "mds":  # whose config differs
                    path = plain / shard[raw]["basename"]
                    assert found == path.read_bytes()
    assert count


# Damage.


def test_every_truncation_is_refused(algo):
    one = parse_compression(algo)
    packed = one.compress(TEXT)
    for n in thin(range(len(packed)), 23):
        with pytest.raises(FormatError) as info:
            one.decompress(packed[:n], len(TEXT), "shard.zip")
        assert info.value.path == "shard.zip"
        assert info.value.offset <= n


def test_a_flipped_byte_is_refused_or_gives_bytes_of_the_size(algo):
    one = parse_compression(algo)
    packed = one.compress(TEXT)
    refused = 0
    for i in thin(range(len(packed)), 7):
        damaged = bytearray(packed)
        damaged[i] ^= 1 << i % 8
        try:
            found = one.decompress(damaged, len(TEXT))
        except FormatError:
            refused += 1
        else:
            assert len(found) == len(TEXT)
    assert refused


def test_noise_is_refused(algo):
    rng = random.Random(3)
    for n in range(60):
        with pytest.raises(FormatError):
            parse_compression(algo).decompress(rng.randbytes(n), 1000)


@pytest.mark.parametrize("rest", [b"x", b"garbage", b"\x01" * 300])
@pytest.mark.parametrize("data", [TEXT, LONG], ids=len)
def test_bytes_behind_the_data_are_refused(algo, data, rest):
    one = parse_compression("br:4" if algo == "br" else algo)
    packed = one.compress(data) + rest
    with pytest.raises(FormatError):
        one.decompress(packed, len(data))
    with pytest.raises(FormatError):  # fed byte by byte
        list(one.iter_pieces([packed[:-1], packed[-1:]], len(data)))


def test_zeros_behind_gz_are_padding():
    packed = parse_compression("gz").compress(TEXT)
    for rest in (b"\0", bytes(600)):
        assert gzip.decompress(packed + rest) == TEXT
        assert parse_compression("gz").decompress(packed + rest, len(TEXT)) == TEXT
        with pytest.raises(FormatError):
            parse_compression("gz").decompress(packed + rest + b"x", len(TEXT))


@pytest.mark.parametrize("name", MULTIPLE)
def test_streams_one_after_the_other_are_joined(name):
    one = parse_compression(name)
    packed = one.compress(TEXT) + one.compress(b"") + one.compress(LONG)
    assert one.decompress(packed, len(TEXT + LONG)) == TEXT + LONG
    with pytest.raises(FormatError):
        one.decompress(packed[:-1], len(TEXT + LONG))
    with pytest.raises(FormatError, match="more than the 5,000 bytes"):
        one.decompress(packed, len(TEXT))


@pytest.mark.parametrize("name", ["br", "snappy"])
def test_br_and_snappy_are_one_stream(name):
    one = parse_compression(name)
    with pytest.raises(FormatError):
        one.decompress(one.compress(TEXT) * 2, 2 * len(TEXT))


def test_another_size_is_refused(algo):
    one = parse_compression(algo)
    packed = one.compress(TEXT)
    for nbytes in (0, 1, len(TEXT) - 1):
        with pytest.raises(FormatError):
            one.decompress(packed, nbytes)
    with pytest.raises(FormatError, match="5,000 bytes; the index states 5,001"):
        one.decompress(packed, len(TEXT) + 1)


@pytest.mark.parametrize("nbytes", [-1, 1 << 48, 1 << 70])
def test_impossible_sizes_are_refused(algo, nbytes):
    one = parse_compression(algo)
    with pytest.raises(FormatError, match="raw size"):
        one.decompress(one.compress(TEXT), nbytes)


def test_a_bomb_is_stopped(algo):
    """200 MB of zeros are a few hundred bytes, and an index that states 1,000."""
    one = parse_compression(f"{algo}:1" if algo in ("br", "gz") else algo)
    nbytes = 20_000_000 if algo in ("bz2", "snappy") else 200_000_000
    packed = one.compress(bytes(nbytes))

    tracemalloc.start()
    try:
        with pytest.raises(FormatError, match=r"more than|write whole buffer"):
            one.decompress(packed, 1000)
        assert tracemalloc.get_traced_memory()[1] < 2_000_000
    finally:
        tracemalloc.stop()


def test_a_snappy_header_allocates_nothing():
    claimed = b"\xff\xff\xff\xff\x0f"  # 4 GiB - 1
    for nbytes in (1000, (1 << 32) - 1):
        with pytest.raises(FormatError):
            parse_compression("snappy").decompress(claimed + b"abc", nbytes)


@pytest.mark.parametrize(
    ("name", "library"), [("br", "cramjam"), ("snappy", "cramjam")]
)
def test_a_missing_library_is_named(name, library, monkeypatch, no_brotli):
    monkeypatch.setitem(sys.modules, library, None)
    one = parse_compression(name)
    for use in (lambda: one.compress(b"a"), lambda: one.decompress(b"a", 1)):
        with pytest.raises(MissingLibraryError, match=r"cramjam.*fastshard\[mds\]"):
            use()


@pytest.mark.skipif(sys.version_info >= (3, 14), reason="part of Python")
def test_missing_zstd_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "backports.zstd", None)
    with pytest.raises(MissingLibraryError, match=r"zstd.*fastshard\[mds\]"):
        parse_compression("zstd").decompress(b"a", 1)


def test_libraries_are_imported_when_met():
    code = (
        "import sys; from fastshard.codecs import compression, hashes;"
        "print([n for n in ('cramjam', 'brotli', 'xxhash', 'bz2', 'backports.zstd')"
        " if n in sys.modules])"
    )
    found = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        check=True,
        text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert found.stdout.strip() == "[]"
