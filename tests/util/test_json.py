"""JSON of untrusted bytes: one parser, its bounds, and errors at their byte."""

import json
import math
import pickle
import sys

import pytest

from fastshard._util.json import MAX_DEPTH, parse_json, parse_value
from fastshard.errors import FormatError

PARSERS = [parse_json, parse_value]
DOCUMENTS = [
    b"{}",
    b' [1, -2.5e3, true, false, null, ""]\n',
    '{"clé": "\N{GRINNING FACE}", "a": {"b": [[]]}}'.encode(),
    rb'{"a": "\ud83d\ude00", "b": "\\ud83d"}',
    b"9007199254740993",
]


def fault_of(parse, data, **options):
    with pytest.raises(FormatError) as caught:
        parse(data, "a.json", 100, **options)
    assert caught.value.path == "a.json"
    assert pickle.loads(pickle.dumps(caught.value)).reason == caught.value.reason
    return caught.value


@pytest.mark.parametrize("parse", PARSERS)
@pytest.mark.parametrize("data", DOCUMENTS)
def test_same_values_as_json_loads(parse, data):
    for given in (data, bytearray(data), memoryview(data), data.decode()):
        assert parse(given, "a.json") == json.loads(data)


@pytest.mark.parametrize("parse", PARSERS)
def test_a_byte_order_mark_may_precede(parse):
    marked = b'\xef\xbb\xbf{"a": 1}'
    assert parse(marked, "a.json") == parse(marked.decode(), "a.json") == {"a": 1}
    assert fault_of(parse, b"\xef\xbb\xbf{").offset == 104
    assert fault_of(parse, b"\xef\xbb\xbf" * 2 + b"{}").offset == 103


@pytest.mark.parametrize("parse", PARSERS)
@pytest.mark.parametrize(
    ("data", "at"),
    [
        (b"", 0),
        (b"  ", 2),
        (b'{"a": }', 6),
        (b"[1, 2", 5),
        (b"[1] [", 4),
        (b"{'a': 1}", 1),
        (b'"a\nb"', 2),
        ('["é", x]'.encode(), 7),
        (b'"\xff"', 1),
        (b'{"a": 1}\0', 8),
        ("[1]".encode("utf-16"), 0),
    ],
)
def test_an_error_is_at_its_byte(parse, data, at):
    assert fault_of(parse, data).offset == 100 + at


@pytest.mark.parametrize("parse", PARSERS)
def test_every_truncation_is_refused(parse):
    data = json.dumps({"a": [1.5, "é", None], "b": {"c": True}}).encode()
    for n in range(len(data)):
        assert 100 <= fault_of(parse, data[:n]).offset <= 100 + n


@pytest.mark.parametrize("parse", PARSERS)
def test_the_last_of_equal_keys_counts(parse):
    assert parse(b'{"a": 1, "b": 2, "a": 3}', "a.json") == {"a": 3, "b": 2}


@pytest.mark.parametrize("parse", PARSERS)
@pytest.mark.skipif(
    not 0 < sys.get_int_max_str_digits() < 5000, reason="integers of any size"
)
def test_integers_of_too_many_digits_are_refused(parse):
    assert "digits" in fault_of(parse, b"[" + b"9" * 5000 + b"]").reason


@pytest.mark.parametrize("parse", PARSERS)
@pytest.mark.parametrize("opening", [b"[", b'{"a":'])
def test_extreme_depth_is_refused(parse, opening):
    fault_of(parse, opening * 1_000_000)


@pytest.mark.parametrize("text", ["NaN", "Infinity", "-Infinity", "1e999", "-1e999"])
def test_only_values_have_numbers_that_are_not_finite(text):
    document = f'{{"a": [{text}]}}'.encode()
    assert not math.isfinite(parse_value(document, "a.json")["a"][0])
    reason = fault_of(parse_json, document).reason
    assert reason == f"not JSON: {text} is not a finite number"


def test_numbers_at_the_limits_of_floats_are_read():
    assert parse_json(b"[1.7976931348623157e308, 5e-324, 1e-999]", "a.json") == [
        1.7976931348623157e308,
        5e-324,
        0.0,
    ]


@pytest.mark.parametrize("half", [r"\ud800", r"\uDFFF", r"\ude00\ud83d", r"\uDbfF"])
@pytest.mark.parametrize("form", ['"{}"', '[{{"a": "x{}"}}]', '{{"a{}": 1}}'])
def test_halves_of_surrogate_pairs_are_refused_unless_asked_for(half, form):
    document = form.format(half).encode()
    expected = json.loads(document)
    assert parse_value(document, "a.json") == expected
    assert parse_json(document, "a.json", surrogates=True) == expected
    assert "surrogate" in fault_of(parse_json, document).reason
    given = json.dumps(expected, ensure_ascii=False)  # a str can hold them as they are
    assert "surrogate" in fault_of(parse_json, given).reason
    assert parse_json(given, "a.json", surrogates=True) == expected


@pytest.mark.parametrize(("opening", "closing"), [("[", "]"), ('{"a":', "}")])
def test_documents_have_a_depth(opening, closing):
    def nested(depth):
        return f"{opening * depth}1{closing * depth}".replace("[1]", "[]")

    parse_json(nested(MAX_DEPTH), "a.json")
    fault_of(parse_json, nested(MAX_DEPTH + 1))
    parse_value(nested(MAX_DEPTH + 1), "a.json")
    parse_json(nested(MAX_DEPTH + 1), "a.json", depth=None)
    fault_of(parse_json, nested(3), depth=2)
    parse_json(f'"{"[" * 1000}"', "a.json")


@pytest.mark.parametrize("convert", [bytes, memoryview, bytes.decode])
def test_documents_have_a_size(convert):
    data = b'"' + b"a" * 98 + b'"'
    parse_json(convert(data), "a.json", limit=100)
    fault = fault_of(parse_json, convert(data), limit=99)
    assert fault.reason == "100 bytes of JSON; at most 99 are read"
    assert fault.offset == 199


def test_documents_have_a_size_by_default(monkeypatch):
    monkeypatch.setitem(parse_json.__kwdefaults__, "limit", 10)
    fault_of(parse_json, b"[1, 2, 3, 4]")
    assert parse_value(b"[1, 2, 3, 4]", "a.json") == [1, 2, 3, 4]
