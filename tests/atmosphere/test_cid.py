"""CIDs of values and of blobs, and DAG-CBOR.

The entries' and records' CIDs were written by atdata and by a PDS; the encodings are
those of libipld.
"""

import hashlib
import math

import pytest

from fastshard import typed
from fastshard.atmosphere.cid import (
    DAG_CBOR,
    RAW,
    cid_of_blob,
    encode,
    generate_cid_from_bytes,
    parse_cid,
)

ENTRIES = {
    "bafyreifp6go5jdqbhr3yvvmzrfag5jzrn5qjkr5xpprtttf4h2xo5x6y34": (
        "atdata://local/schema/Vec@1.0.0",
        ["shards/vec-{000000..000001}.tar"],
    ),
    "bafyreieaojgax6sg6amjokidhakegurggrlrbl3ervjrbghcjvtj56b2qe": (
        "atdata://local/schema/Vec@1.0.0",
        ["shards/vec-000000.tar"],
    ),
    "bafyreigkltd5ppydti3majta2uixl5e7g4skzpo3vnh5opecerzjocqnzm": (
        "atdata://local/schema/Vec@1.0.1",
        ["https://data.example/vec-000000.tar"],
    ),
    "bafyreibmxcngmesxq2vvgeyrfyq4dxsj32zoroi33cl32rhy7f3l4pzliu": (
        "local://schemas/fixture_old.Old@0.9.0",
        ["s3://bucket-name/a.tar", "s3://bucket-name/b.tar"],
    ),
}
RECORD = {
    "name": "unknown",
    "$type": "science.alt.dataset.entry",
    "storage": {"$type": "science.alt.dataset.storageTape", "reels": 2},
    "createdAt": "2026-11-22T06:08:44.000Z",
    "schemaRef": "at://did:plc:ofakdki7l6loqyhejpnfgouk/science.alt.dataset.schema/"
    "3n2uxbnbzzs2e",
}
LINK = "bafyreiaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"


@pytest.mark.parametrize("cid", ENTRIES)
def test_cids_of_entries(cid):
    schema_ref, data_urls = ENTRIES[cid]
    assert typed.generate_cid({"data_urls": data_urls, "schema_ref": schema_ref}) == cid
    assert typed.verify_cid(cid, {"schema_ref": schema_ref, "data_urls": data_urls})
    assert not typed.verify_cid(cid, {"schema_ref": schema_ref, "data_urls": []})


def test_cid_of_a_record():
    cid = "bafyreicf56tqhbudsszdmrgamds7evqfnfvkuznxgbdatwozckvujpmgga"
    assert generate_cid_from_bytes(encode(RECORD, record=True)) == cid


def test_cid_of_a_blob_is_the_sha256_of_its_bytes():
    digest = hashlib.sha256(b"").digest()
    cid = "bafkreihdwdcefgh4dqkjv67uzcmw7ojee6xedzdetojuzjevtenxquvyku"
    assert cid_of_blob(digest) == cid
    assert parse_cid(cid) == (RAW, digest)
    with pytest.raises(ValueError, match="32 bytes, got 4"):
        cid_of_blob(b"four")


@pytest.mark.parametrize(
    ("value", "encoded"),
    [
        (0, "00"),
        (23, "17"),
        (24, "1818"),
        (255, "18ff"),
        (256, "190100"),
        (65_536, "1a00010000"),
        (2**32, "1b0000000100000000"),
        (2**64 - 1, "1bffffffffffffffff"),
        (-1, "20"),
        (-25, "3818"),
        (-(2**64), "3bffffffffffffffff"),
        (1.0, "fb3ff0000000000000"),
        (-0.0, "fb0000000000000000"),
        (None, "f6"),
        ([True, False], "82f5f4"),
        (b"\0\1", "420001"),
        ("é", "62c3a9"),
        (["é", ("x" * 300)], "8262c3a979012c" + "78" * 300),
        ({"bb": 1, "a": 2, "c": 3}, "a361610261630362626201"),
        ({"é": 1, "zz": 2}, "a2627a7a0262c3a901"),
        ({}, "a0"),
        ({"$link": "x"}, "a165246c696e6b6178"),
    ],
)
def test_encodings(value, encoded):
    assert encode(value).hex() == encoded


def test_links_and_bytes_of_a_record():
    link = "d82a58250001711220" + "00" * 32
    assert encode({"a": {"$link": LINK}}, record=True).hex() == "a16161" + link
    for text in ("AP8", "AP8="):
        assert encode([{"$bytes": text}], record=True).hex() == "814200ff"
    beside = {"$link": LINK, "b": 1}  # has another key: a map
    assert encode(beside, record=True) == encode(beside)


@pytest.mark.parametrize(
    ("value", "fault"),
    [
        ({"a": [0, math.nan]}, r"nan is not a finite number - at \$\.a\[1\]"),
        (math.inf, r"inf is not a finite number - at \$$"),
        ([["x", 2**64]], r"65 bits, at most 64 - at \$\[0\]\[1\]"),
        (-(2**64) - 1, "65 bits"),
        ({"f": print}, r"builtin_function_or_method - at \$\.f"),
        ({"a": {1: 2}}, r"keys are str, got int - at \$\.a"),
        ({"\ud800": 1}, "half a surrogate"),
        (["\ud800"], r"half a surrogate pair - at \$\[0\]"),
    ],
)
def test_values_that_dag_cbor_cannot_hold(value, fault):
    with pytest.raises(ValueError, match=fault):
        typed.generate_cid(value)


@pytest.mark.parametrize(
    "value",
    [
        {"$link": 3},
        {"$link": "bafy"},
        {"$link": LINK.upper()},
        {"$bytes": None},
        {"$bytes": "a"},
        {"$bytes": "a*bc"},
        {"$bytes": "é"},
    ],
)
def test_links_and_bytes_that_are_none(value):
    with pytest.raises(ValueError, match=r"\$(link|bytes).* - at \$\.x"):
        encode({"x": value}, record=True)


def test_depth_is_bounded():
    value = []
    for _ in range(127):
        value = [value]
    assert encode(value) == b"\x81" * 127 + b"\x80"
    with pytest.raises(ValueError, match="more than 128"):
        encode([value])
    value.append(value)
    with pytest.raises(ValueError, match="more than 128"):
        encode(value)


def test_every_letter_of_a_cid_counts():
    cid = typed.generate_cid({"a": 1})
    codec, digest = parse_cid(cid)
    assert codec == DAG_CBOR
    assert digest == hashlib.sha256(encode({"a": 1})).digest()
    for i in range(len(cid)):
        other = cid[:i] + ("a" if cid[i] != "a" else "c") + cid[i + 1 :]
        try:
            assert parse_cid(other) not in ((codec, digest), None)
        except ValueError:
            continue


@pytest.mark.parametrize(
    "text",
    [
        "",
        "bafy",
        LINK[:-1],
        LINK + "a",
        LINK + "\n",
        LINK.upper(),
        LINK[:-1] + "b",  # a bit behind the end
        "QmYwAPJzv5CZsnA625s3Xf2nemtYgPpHdWEz79ojWKPVMj",
        "bagyreiaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
        "bafy" + "1" * 55,
        None,
        b"bafy",
    ],
)
def test_texts_that_are_not_a_cid(text):
    with pytest.raises(ValueError, match=r"a CID|of a CID"):
        parse_cid(text)
