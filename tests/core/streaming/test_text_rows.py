"""Rows of JSON and XSV shards."""

import json
import struct

import pytest

from fastshard import FormatError
from fastshard._core.streaming.text_rows import (
    JsonRows,
    JsonSchema,
    XsvRows,
    XsvSchema,
)
from support.marks import thin


def meta_of(rows, first=0, config=None):
    """Return the meta file of rows, of which the first is at `first`."""
    offsets = [first]
    for row in rows:
        offsets.append(offsets[-1] + len(row))
    head = struct.pack(f"<I{len(offsets)}I", len(rows), *offsets)
    return head + (b"{}" if config is None else config), offsets[-1]


def json_rows(texts, names=("a",), newline="\n"):
    """Return rows of JSON texts, and the texts as they are stored."""
    schema = JsonSchema(names, ["str"] * len(names), newline)
    lines = [text + newline.encode() for text in texts]
    meta, nbytes = meta_of(lines)
    return JsonRows("a.json", schema, "a.json.meta", meta, nbytes, len(texts)), lines


def xsv_rows(texts, columns, newline="\n", separator=",", lenient=False):
    """Return rows of XSV texts, and the texts as they are stored."""
    names, encodings = list(columns), list(columns.values())
    schema = XsvSchema(names, encodings, newline, separator, lenient=lenient)
    header = (separator.join(names) + newline).encode()
    lines = [text + newline.encode() for text in texts]
    meta, nbytes = meta_of(lines, len(header))
    rows = XsvRows("a.csv", schema, "a.csv.meta", meta, nbytes, len(texts), header)
    return rows, lines


def decode_json(text):
    rows, lines = json_rows([text])
    return rows.decode(lines[0], 0)


@pytest.mark.parametrize(
    "text",
    [
        '{"a": NaN, "b": [Infinity, -Infinity]}',
        '{"a": 1234567890123456789012345678901234567890}',
        '{"a": true, "b": null, "c": 1e999, "d": -0.0, "e": 5e-324}',
        ' \t{ "a" :\r[ {"x": [[]]} , "\\u00e9\\ud83d\\ude00\\ud800" ] } ',
        '{"a": "é", "": {"": 1}, "a": 2}',
        "{}",
    ],
)
def test_json_rows_are_read_as_by_json_loads(text):
    assert repr(decode_json(text.encode())) == repr(json.loads(text))


@pytest.mark.parametrize(
    "text",
    [
        *(
            "",
            "{",
            '{"a"',
            '{"a": }',
            '{"a": 1,}',
            '{"a": 01}',
            "{'a': 1}",
            '{"a": 1} x',
        ),
        *('{"a": "\n"}', '{"a": 1}{}', '\ufeff{"a": 1}', '{"a": ' + "[" * 100_000),
        *('{"a": ' + "9" * 5000 + "}", '\xa0{"a": 1}', '{"a": 1}\x0c'),
    ],
)
def test_json_that_json_loads_refuses_is_refused(text):
    with pytest.raises((ValueError, RecursionError)):
        json.loads(text)

    with pytest.raises(FormatError, match="invalid JSON") as caught:
        decode_json(text.encode())

    assert caught.value.path == "a.json"
    assert caught.value.member == "sample 0"
    assert 0 <= caught.value.offset <= len(text.encode()) + 1


@pytest.mark.parametrize("text", ["[1]", "1", '"a"', "null"])
def test_a_json_row_is_an_object(text):
    with pytest.raises(FormatError, match="not a JSON object"):
        decode_json(text.encode())


def test_json_that_is_not_text_is_refused_at_its_byte():
    rows, lines = json_rows([b'{"a": 1}', b'{"a": "\xff"}'])

    with pytest.raises(FormatError, match="invalid UTF-8") as caught:
        rows.decode(lines[1], 1)

    assert caught.value.offset == len(lines[0]) + 7
    assert caught.value.member == "sample 1"


@pytest.mark.parametrize("newline", ["\n", "\r\n", " \n"])
def test_lines_of_json_may_end_in_any_blanks(newline):
    rows, lines = json_rows([b'{"a": 1}', b'{"a": 2}'], newline=newline)

    assert [rows.decode(line, i) for i, line in enumerate(lines)] == [
        {"a": 1},
        {"a": 2},
    ]


def test_values_of_json_are_found_in_their_line():
    names = ["a", "b", "é", "q\"'\\"]
    row = {"a": ['x,"}]{', {"b": 1}], "b": -1.5, "é": 'ü\\"', "q\"'\\": None}
    for text in (
        json.dumps(row).encode(),
        json.dumps(row, ensure_ascii=False, indent=2).encode(),
        json.dumps({"b": "first", **row}).replace("{", '{"a": 0, ', 1).encode(),
    ):
        rows, lines = json_rows([text], names)
        found = {
            name: json.loads(lines[0][start : start + size])
            for name, (start, size) in zip(names, rows.fields(0, lines[0]), strict=True)
        }

        assert found == row
        for start, size in rows.fields(0, lines[0]):
            value = lines[0][start : start + size]
            assert value == value.strip()


@pytest.mark.parametrize("text", ["{}", "[]", '{"b": 1}', '{"a', '{"a": "', '{"a" 1}'])
def test_a_missing_value_is_an_error(text):
    rows, lines = json_rows([text.encode()])

    with pytest.raises(FormatError, match="with this column") as caught:
        rows.fields(0, lines[0])

    assert caught.value.member == "sample 0, column 'a'"


def test_columns_of_json_are_selected():
    rows, lines = json_rows([b'{"a": 1, "b": 2, "c": 3}', b"{}"], ["a", "b", "c"])
    mask = rows.schema.mask(["c", "a"])

    assert rows.decode(lines[0], 0, mask) == {"a": 1, "c": 3}
    with pytest.raises(FormatError, match="lacks the column"):
        rows.decode(lines[1], 1, mask)


COLUMNS = {"a": "int", "b": "str", "c": "float"}


def test_values_of_xsv_lie_between_separators():
    texts = [
        b'-7,"x" \r\x00,0.1',
        b"12345678901234567890123,,inf",
        "0,é\u2028,nan".encode(),
    ]
    rows, lines = xsv_rows(texts, COLUMNS)

    found = [rows.decode(line, i) for i, line in enumerate(lines)]

    assert repr(found) == repr(
        [
            {"a": -7, "b": '"x" \r\x00', "c": 0.1},
            {"a": 12345678901234567890123, "b": "", "c": float("inf")},
            {"a": 0, "b": "é\u2028", "c": float("nan")},
        ]
    )
    assert rows.fields(0, lines[0]) == [(0, 2), (3, 6), (10, 3)]


@pytest.mark.parametrize("separator", [",", "\t", "||", "ab", "é", "aab"])
@pytest.mark.parametrize("newline", ["\n", "\r\n", "||\n"])
def test_xsv_is_split_as_by_str_split(separator, newline):
    parts = ["x", "a", "", "|", "aa", "b|"]
    text = separator.join(parts)
    split = text.split(separator)
    columns = {str(k): "str" for k in range(len(split))}
    rows, lines = xsv_rows([text.encode()], columns, newline, separator)

    assert list(rows.decode(lines[0], 0).values()) == split


@pytest.mark.parametrize("text", ["1,x", "1", "", "1,x,2,3", "1,x,2,"])
def test_an_xsv_row_has_as_many_values_as_there_are_columns(text):
    rows, lines = xsv_rows([text.encode()], COLUMNS)

    for read in (rows.decode, lambda line, i: rows.fields(i, line)):
        with pytest.raises(FormatError) as caught:
            read(lines[0], 0)
        assert caught.value.path == "a.csv"
        assert caught.value.member.startswith("sample 0")


def test_a_lenient_reader_drops_values_without_a_column():
    rows, lines = xsv_rows([b"1,x,2,3,4", b"1,x"], COLUMNS, lenient=True)

    assert rows.decode(lines[0], 0) == {"a": 1, "b": "x", "c": 2.0}
    assert rows.fields(0, lines[0]) == [(0, 1), (2, 1), (4, 1)]
    with pytest.raises(FormatError, match="has 2 columns"):
        rows.decode(lines[1], 1)


@pytest.mark.parametrize(
    ("text", "column", "at"),
    [("x,y,1", "a", 0), ("1,\xff,1", "b", 2), ("1,y,1.x", "c", 4), (",y,1", "a", 0)],
)
def test_a_value_of_a_wrong_type_is_refused(text, column, at):
    rows, lines = xsv_rows([b"0,0,0", text.encode("latin-1")], COLUMNS)

    with pytest.raises(FormatError) as caught:
        rows.decode(lines[1], 1)

    assert caught.value.member == f"sample 1, column {column!r}"
    assert caught.value.offset == len("a,b,c\n") + len(lines[0]) + at


def test_only_the_columns_of_a_mask_are_read():
    rows, lines = xsv_rows([b"x,y,z"], {"a": "int", "b": "str", "c": "no such"})

    assert rows.decode(lines[0], 0, rows.schema.mask("b")) == {"b": "y"}
    with pytest.raises(ValueError, match="Unsupported encoding: no such") as caught:
        rows.decode(lines[0], 0, rows.schema.mask("c"))
    assert not isinstance(caught.value, FormatError)


def test_a_row_ends_with_the_newline():
    rows, lines = xsv_rows([b"1,x,2"], COLUMNS, newline="\r\n")

    for line in (lines[0][:-1], lines[0][:-2], b"\n", b""):
        with pytest.raises(FormatError, match="newline"):
            rows.decode(line, 0)


@pytest.mark.parametrize(("newline", "separator"), [("", ","), ("\n", "")])
def test_newline_and_separator_are_not_empty(newline, separator):
    with pytest.raises(ValueError, match="must not be empty"):
        XsvSchema(["a"], ["str"], newline, separator)


def test_the_header_is_that_of_the_columns():
    schema = XsvSchema(["a", "b"], ["str", "str"], "\n", ",")
    meta, nbytes = meta_of([b"1,2\n"], 4)

    assert XsvRows("a", schema, "a.meta", meta, nbytes, 1, b"a,b\n1,2\n").count == 1
    for head in (b"a,c\n", b"a,b", b""):
        with pytest.raises(FormatError, match="header disagrees"):
            XsvRows("a", schema, "a.meta", meta, nbytes, 1, head)
    with pytest.raises(FormatError, match="first sample is at 5, not 4"):
        XsvRows("a", schema, "a.meta", *meta_of([b"1,2\n"], 5), 1)


@pytest.mark.parametrize(
    "config", [{"columns": {"b": "str"}}, {"newline": "\r\n"}, {"columns": None}]
)
def test_a_meta_file_that_disagrees_with_the_index_is_refused(config):
    schema = JsonSchema(["a"], ["str"], "\n")
    meta, nbytes = meta_of([b"{}\n"], 0, json.dumps(config).encode())

    with pytest.raises(FormatError, match="disagree with those of index") as caught:
        JsonRows("a.json", schema, "a.json.meta", meta, nbytes, 1)

    assert caught.value.path == "a.json.meta"


def test_every_damage_of_a_meta_file_is_refused_or_harmless():
    schema = JsonSchema(["a"], ["str"], "\n")
    lines = [b'{"a": 1}\n', b'{"a": "two"}\n', b'{"a": []}\n']
    config = json.dumps({"columns": {"a": "str"}, "newline": "\n"}).encode()
    meta, nbytes = meta_of(lines, 0, config)
    for n in range(len(meta)):
        if n == len(meta) - len(config):  # a meta file may lack it
            continue
        with pytest.raises(FormatError):
            JsonRows("a.json", schema, "m", meta[:n], nbytes, 3)
    for at in thin(range(len(meta)), 1):
        for bit in range(8):
            damaged = bytearray(meta)
            damaged[at] ^= 1 << bit
            try:
                rows = JsonRows("a.json", schema, "m", bytes(damaged), nbytes, 3)
            except FormatError as error:
                assert 0 <= error.offset <= len(meta)
                continue
            extents = [rows.row(i) for i in range(3)]
            assert all(offset + size <= nbytes for offset, size in extents)


def test_every_damage_of_a_row_is_refused_or_read():
    row = b'{"a": [1, {"x": "\\u00e9\\""}], "b": "t\xc3\xa9xt", "c": -1.5e3}'
    for n in range(len(row)):
        check_json(row[:n])
    for at in range(len(row)):
        for byte in thin(range(256), 11):
            check_json(row[:at] + bytes([byte]) + row[at + 1 :])


def check_json(text):
    """Read a damaged row as `json.loads` does, and find its values in bounds."""
    rows, lines = json_rows([text], ["a", "b", "c"])
    try:
        expected = repr(json.loads(text.decode())) if text.strip()[:1] == b"{" else None
    except ValueError:
        expected = None
    try:
        found = repr(rows.decode(lines[0], 0))
    except FormatError:
        found = None
    assert found == expected
    try:
        extents = rows.fields(0, lines[0])
    except FormatError:
        return
    assert all(start + size <= len(lines[0]) for start, size in extents)
