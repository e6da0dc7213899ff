"""Addresses of records: valid and invalid."""

import pickle

import pytest

from fastshard.typed import AtUri

GOOD = (
    "at://did:plc:ofakdki7l6loqyhejpnfgouk/science.alt.dataset.entry/3n2uxbndfy22e",
    "at://alice.test/science.alt.dataset.label/self",
    "at://did:web:localhost%3A8000/com.example.record/a.b:c~d_e-f",
    "at://did:plc:abc/blob/bafkreicdff6beodzj23e7triejvyylcfronm2mfwfwthyfw6emy3rnkqva",
    "at://did:plc:abc/com.example.record/" + "k" * 512,
)
BAD = (
    "",
    "at://",
    "at:///science.alt.dataset.entry/k",
    "at://did:plc:abc",
    "at://did:plc:abc/science.alt.dataset.entry",
    "at://did:plc:abc/science.alt.dataset.entry/",
    "at://did:plc:abc//k",
    "at://did:plc:abc/science.alt.dataset.entry/a/b",
    "at://did:plc:abc/science.alt.dataset.entry/Vec@1.0.0",
    "at://did:plc:abc/science.alt.dataset.entry/..",
    "at://did:plc:abc/science.alt.dataset.entry/.",
    "at://did:plc:abc/science.alt.dataset.entry/k?x=1",
    "at://did:plc:abc/science.alt.dataset.entry/k#x",
    "at://did:plc:abc/science.alt.dataset.entry/k\n",
    "at://did:plc:abc/science.alt.dataset.entry/" + "k" * 513,
    "at://did:plc:abc/../k",
    "at://did:plc:/science.alt.dataset.entry/k",
    "at://did:plc:a b/science.alt.dataset.entry/k",
    "at://DID:plc:abc/science.alt.dataset.entry/k",
    "at://user:password@alice.test/science.alt.dataset.entry/k",
    "at://alice.test:80/science.alt.dataset.entry/k",
    "at://localhost/science.alt.dataset.entry/k",
    "at://127.0.0.1/science.alt.dataset.entry/k",
    "at://did:plc:\u00e9/science.alt.dataset.entry/k",
    "at://did:plc:abc/science.alt.dataset.entry/\u0661",
    "AT://did:plc:abc/science.alt.dataset.entry/k",
    " at://did:plc:abc/science.alt.dataset.entry/k",
    "https://did:plc:abc/science.alt.dataset.entry/k",
    "at://did:plc:abc/science.alt.dataset.entry/k\0",
    "at://did:plc:abc/" + "a." * 5000 + "a/k",
)


@pytest.mark.parametrize("text", GOOD)
def test_an_address_is_parsed_and_printed_again(text):
    uri = AtUri.parse(text)
    authority, collection, rkey = text.removeprefix("at://").split("/")
    assert (uri.authority, uri.collection, uri.rkey) == (authority, collection, rkey)
    assert str(uri) == text
    assert uri == AtUri(authority, collection, rkey)
    assert AtUri.parse(uri) is uri
    assert {uri: 1}[pickle.loads(pickle.dumps(uri))] == 1


@pytest.mark.parametrize("text", BAD)
def test_a_non_address_is_refused_with_a_short_error(text):
    with pytest.raises(ValueError, match=r"(at://|URI)") as caught:
        AtUri.parse(text)
    assert len(str(caught.value)) < 700


@pytest.mark.parametrize("value", [None, 7, b"at://a.b/c/d", ["at://a.b/c/d"]])
def test_only_text_is_an_address(value):
    with pytest.raises(TypeError, match="must be a str"):
        AtUri.parse(value)
    with pytest.raises(TypeError, match="rkey must be a str"):
        AtUri("alice.test", "science.alt.dataset.entry", value)


def test_parts_are_checked_as_an_address_is():
    with pytest.raises(ValueError, match="not a DID or a handle"):
        AtUri("alice", "science.alt.dataset.entry", "k")
    with pytest.raises(ValueError, match="not the name of a collection"):
        AtUri("alice.test", "a/b", "k")
    with pytest.raises(ValueError, match="not the key of a record"):
        AtUri("alice.test", "science.alt.dataset.entry", "")


def test_a_long_hostile_text_is_refused_at_once():
    for text in ("at://" + "a." * 4000 + "/c/k", "at://" + "a-" * 4000 + ".b/c/k"):
        with pytest.raises(ValueError, match="not a DID or a handle"):
            AtUri.parse(text)
