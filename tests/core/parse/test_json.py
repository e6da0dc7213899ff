"""JSON indexes: the members, and the refusals, of an oracle in Python."""

import itertools
import json
import random
import threading
import time

import pytest

from fastshard import FormatError
from fastshard._core.parse.json import parse_index
from fastshard.index.jsonfile import parse_info
from support.index.json_oracle import Maker, parse_by_oracle
from support.marks import SANITIZED, not_sanitized

NAMED = '{"filesize":4096,"files":{"a.jpg":{"offset":512,"length":4}}}'
LISTED = '{"files":[{"path":"a.jpg","offset":512,"size":4}]}'
SMALL = (
    '{"filesize": 9216, "hash": "é", "files": {"b": {"offset": 512, "length": 4},'
    '\n"\\u0061\\udc80": {"size":12,"sha256":"0f","x":[-1.5e2,{}, null],"offset":2048},'
    '"c":{"path":"d/😀","length":18446744073,"offset":0}}}'
)


def read_members(table):
    return [
        (table.name_of(i), *table.extent(i), parse_info(table.info(i)))
        for i in range(len(table))
    ]


def parse(text, nbytes=None):
    table, filesize = parse_index(text, "s.json", nbytes)
    return read_members(table), filesize


def agrees_with_oracle(text, nbytes=None):
    """Compare with the oracle; return whether the text is an index."""
    expected = parse_by_oracle(text, nbytes)
    if expected is None:
        with pytest.raises(FormatError) as caught:
            parse_index(text, "s.json", nbytes)
        assert 0 <= caught.value.offset <= len(text)
        return False
    assert parse(text, nbytes) == tuple(expected)
    return True


def index_of_one(entry):
    return f'{{"files":{{"a":{entry}}}}}'.encode()


def indexes_with(value):
    """Return indexes with a value that is skipped, at the top and in a member."""
    top = f'{{"x":{value},"files":{{}}}}'
    return [top.encode(), index_of_one(f'{{"offset":0,"length":0,"x":{value}}}')]


@pytest.mark.parametrize("seed", range(60 if SANITIZED else 150))
def test_same_answer_as_the_oracle(seed):
    maker = Maker(seed)
    good = 0
    for _ in range(40):
        text = maker.index()
        good += agrees_with_oracle(text)
        agrees_with_oracle(text, 1 << 22)
        agrees_with_oracle(maker.damaged(text))
    assert good > 10


def test_every_truncation_is_refused():
    text = SMALL.encode()
    assert agrees_with_oracle(text)
    for n in range(len(text)):
        with pytest.raises(FormatError) as caught:
            parse_index(text[:n], "s.json")
        assert caught.value.offset <= n


@pytest.mark.parametrize(
    "text", [NAMED, LISTED, SMALL], ids=["named", "listed", "small"]
)
def test_every_changed_byte_gets_the_oracle_s_answer(text):
    values = (
        range(256) if not SANITIZED else b'"\\{}[],:0-. eu\x00\x1f\x7f\x80\xc3\xed\xff'
    )
    good = 0
    for at in range(len(text.encode())):
        changed = bytearray(text.encode())
        for value in values:
            changed[at] = value
            good += agrees_with_oracle(bytes(changed))
    assert good


@pytest.mark.parametrize("size", ["size", "length"])
@pytest.mark.parametrize("name", ["path", "fname", "filename"])
def test_aliases_of_keys_come_in_any_order(size, name):
    pairs = {"offset": "512", size: "4", name: '"n"'}
    for order in itertools.permutations(pairs):
        entry = "{" + ",".join(f'"{key}":{pairs[key]}' for key in order) + "}"
        assert parse(index_of_one(entry)) == ([("n", 512, 4, {})], None)
        assert parse(f'{{"files":[{entry}]}}'.encode())[0] == [("n", 512, 4, {})]


def test_keys_may_be_escaped():
    text = (
        rb'{"\u0066ilesi\u007ae":9,"fil\u0065s":{"a":{"offs\u0065t":1,"\u0073ize":2}}}'
    )

    table, filesize = parse_index(text, "s.json")

    assert (read_members(table), filesize) == ([("a", 1, 2, {})], 9)
    assert table.info(0) == b""


def test_a_member_s_own_path_overrides_its_key():
    assert parse(index_of_one('{"offset":1,"size":2,"path":"b"}'))[0] == [
        ("b", 1, 2, {})
    ]


def test_members_are_sorted_by_offset_and_equal_offsets_keep_their_order():
    rng = random.Random(1)
    offsets = [
        rng.choice([0, 255, 256, 1 << 20, 1 << 40, 2**64 - 1]) for _ in range(999)
    ]
    files = [
        {"path": f"é{i}", "offset": offset, "size": i} | ({"x": i} if i % 3 else {})
        for i, offset in enumerate(offsets)
    ]

    members, _ = parse(json.dumps({"files": files}).encode())

    assert [(m[1], m[2]) for m in members] == sorted(zip(offsets, itertools.count()))
    assert all(m[0] == f"é{m[2]}" for m in members)
    assert all(m[3] == ({"x": m[2]} if m[2] % 3 else {}) for m in members)


def test_members_of_one_name_are_all_kept():
    text = b'{"files":{"a":{"offset":9,"size":1},"a":{"offset":2,"size":2}}}'

    table, _ = parse_index(text, "s.json")

    assert [m[:2] for m in read_members(table)] == [("a", 2), ("a", 9)]
    assert table.duplicates() == [0]


def test_infos_are_slices_of_the_text():
    bare, rich = '{"offset":1,"size":2}', '{ "x": {"offset":[3]} ,"offset":2,"size":2 }'
    text = f'{{"files":{{"a":{bare},"b":{rich},"c":{bare}}}}}'.replace(
        '"c":{"offset":1', '"c":{"offset":7'
    )

    table, _ = parse_index(text.encode(), "s.json")

    assert [table.info(i) for i in range(3)] == [b"", rich.encode(), b""]
    assert parse_info(table.info(1)) == {"x": {"offset": [3]}}
    assert parse_info(b"") == {}


@pytest.mark.parametrize(
    "text", [b"[1]", b"{", b'{"a":NaN}', b"\xff", b"[" * 9999, b"{}\0"]
)
def test_info_other_than_an_object_is_refused(text):
    with pytest.raises(ValueError, match=r"."):
        parse_info(text)


@pytest.mark.parametrize("count", [0, 1, 63, 64, 65, 1023, 1024, 1025, 5000])
def test_indexes_of_any_size_are_parsed(count):
    files = {
        f"{i}": {"offset": i, "size": 1, "x": "é" * (i % 70)} for i in range(count)
    }
    text = json.dumps({"files": files}, ensure_ascii=False).encode()

    table, _ = parse_index(text, "s.json")

    assert read_members(table) == [
        (name, e["offset"], 1, {"x": e["x"]}) for name, e in files.items()
    ]
    bare = '"%d":{"offset":%d,"size":1}'
    text = '{"files":{' + ",".join(bare % (i, i) for i in range(count)) + "}}"
    table, _ = parse_index(text.encode(), "s.json")
    assert len(table) == count
    assert table.nbytes == 24 * count + sum(len(str(i)) for i in range(count))


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_any_bytes_like_object_is_parsed(kind):
    assert parse(kind(NAMED.encode())) == ([("a.jpg", 512, 4, {})], 4096)


def test_wrong_arguments_are_refused():
    with pytest.raises(TypeError):
        parse_index(NAMED, "s.json")
    with pytest.raises(TypeError):
        parse_index(NAMED.encode(), None)
    with pytest.raises(OverflowError):
        parse_index(NAMED.encode(), "s.json", -1)


@pytest.mark.parametrize(
    ("text", "at", "reason"),
    [
        ("", 0, "ends inside"),
        ("\ufeff{}", 0, "expected an object"),
        ("[]", 0, "expected an object"),
        (" {}", 1, "no key 'files'"),
        ('{"files":{}} x', 13, "text after"),
        ('{"files":{}', 11, "ends inside"),
        ('{"files":7}', 9, "must be an object or an array"),
        ('{"files":{},"files":{}}', 20, "duplicate key"),
        ('{"a":1,"\\u0061":1}', 16, "duplicate key"),
        ('{"files":{"a":[]}}', 14, "expected an object"),
        ('{"files":{"a":{"offset":1,}}}', 26, "expected a key"),
        ('{"files" {}}', 9, "expected a colon"),
        ('{"files":[{"size":1,"offset":1}]}', 10, "has no name"),
        ('{"files":{"a":{"size":1}}}', 14, "has no offset"),
        ('{"files":{"a":{"offset":1}}}', 14, "has no length or size"),
        ('{"files":{"a":{"offset":1,"size":2,"length":2}}}', 44, "duplicate"),
        ('{"files":{"a":{"offset":1,"offset":1}}}', 35, "duplicate"),
        ('{"files":{"a":{"path":"b","fname":"b"}}}', 34, "duplicate"),
        ('{"files":{"a":{"offset":-1}}}', 24, "unsigned"),
        ('{"files":{"a":{"offset":10.0}}}', 24, "unsigned"),
        ('{"files":{"a":{"offset":1e3}}}', 24, "unsigned"),
        ('{"files":{"a":{"offset":"1"}}}', 24, "unsigned"),
        ('{"files":{"a":{"offset":18446744073709551616}}}', 24, "64 bits"),
        ('{"files":{"a":{"offset":00}}}', 25, "malformed number"),
        ('{"filesize":null}', 12, "unsigned"),
        ('{"files":{"a":{"path":1}}}', 22, "expected a string"),
        ('{"files":{"a\\u0000":{"offset":1,"size":1}}}', 20, "NUL"),
        ('{"a":"x\ny"}', 7, "control character"),
        ('{"a":"x\\x"}', 7, "malformed escape"),
        ('{"a":"x\\u12g4"}', 7, "malformed escape"),
        ('{"a":"xy\\ud800\\u0061"}', 8, "surrogate"),
        ('{"a":nul}', 5, "expected a JSON value"),
        ('{"a":-x}', 6, "malformed number"),
        ('{"a":[1 2]}', 8, "expected a comma"),
        ('{"a":[1}]', 7, "expected a comma"),
    ],
)
def test_errors_have_the_byte_and_the_reason(text, at, reason):
    assert parse_by_oracle(text.encode()) is None
    with pytest.raises(FormatError, match=reason) as caught:
        parse_index(text.encode(), "s.json")
    assert (caught.value.path, caught.value.offset) == ("s.json", at)


def test_the_error_of_an_extent_outside_the_shard_names_the_member():
    text = (
        b'{"files":{"a":{"offset":512,"size":8}, "\\udc80b":{"offset":1000,"size":25}}}'
    )
    parse_index(text, "s.json", 1025)

    with pytest.raises(FormatError, match="beyond the shard's 1,024 bytes") as caught:
        parse_index(text, "s.json", 1024)

    assert caught.value.member == "\udc80b"
    assert caught.value.offset == text.index(b'{"offset":1000')
    huge = index_of_one('{"offset":1,"size":18446744073709551615}')
    with pytest.raises(FormatError, match="beyond"):
        parse_index(huge, "s.json", 4096)


GOOD = r"""[] {} 0 -0 1e5 1E-05 0.0 "\/\udc80\udcff" "\ud83d\ude00" "\uD800\uDC00"
    [[],{},[{}]] {"a":1,"a":2}"""

BAD = r"""01 - -01 1. .1 1e 1e+ +1 0x1 1_0 NaN Infinity -Infinity True 'a' [1,] [,1] [,]
    {"a":1,} {1:2} {"a"} "\ud800" "\ud800x" "\udbff\udbff" "\udc00" "\udc7f" "\udd00"
    "\udfff" "\U0041" "\u_041" "\ [} {] /**/1"""


@pytest.mark.parametrize(
    "value", [*GOOD.split(), '"\x7f"', "9" * 9999, "0." + "0" * 9999]
)
def test_valid_values_are_skipped(value):
    for text in indexes_with(value):
        assert parse_by_oracle(text) is not None
        assert parse_index(text, "s.json")


@pytest.mark.parametrize("value", [*BAD.split(), "", "1 1", "\x0b1", "\u00a01", '"\t"'])
def test_invalid_values_are_refused(value):
    for text in indexes_with(value):
        assert parse_by_oracle(text) is None
        with pytest.raises(FormatError):
            parse_index(text, "s.json")


@pytest.mark.parametrize("kind", ["name", "value"])
def test_utf8_is_validated(kind):
    """All sequences of one and two bytes, and the limits of longer ones."""
    bad = [bytes(b) for b in itertools.product(range(0x80, 256), repeat=1)]
    bad += [
        bytes(b) for b in itertools.product(range(0x80, 256, 3), range(0x7F, 256, 3))
    ]
    bad += [
        bytes(b) + b"\x80"
        for b in itertools.product(
            range(0xE0, 0xF8), (0x7F, 0x80, 0x8F, 0x90, 0x9F, 0xA0, 0xBF, 0xC0)
        )
    ]
    bad += [b + b"\x80" for b in bad[-192:]] + [
        b"\xf4\x8f\xbf\xbf",
        b"\xed\x9f\xbf",
        b"\xe2\x82",
    ]
    template = index_of_one(
        '{"offset":0,"size":0,"x":"?"}'
        if kind == "value"
        else '{"offset":0,"size":0,"path":"?"}'
    )
    for padding in (b"", b"x" * 15):
        for part in bad:
            agrees_with_oracle(template.replace(b"?", padding + part))


def nested_texts(levels):
    inside = levels - 1
    yield '{"files":{},"x":' + "[" * inside + "]" * inside + "}"
    yield '{"files":{},"x":' + '{"a":' * inside + "1" + "}" * inside + "}"
    inside = levels - 3
    deep = '[{"a":' * (inside // 2) + "[" * (inside % 2)
    yield (
        '{"files":{"a":{"offset":0,"size":0,"x":'
        + deep
        + ("]" * (inside % 2) if inside % 2 else "1")
        + "}]" * (inside // 2)
        + "}}}"
    )


def test_depth_is_bounded():
    for levels in (4, 5, 63, 64):
        assert all(agrees_with_oracle(text.encode()) for text in nested_texts(levels))
    for levels in (65, 66, 129, 130, 100_001):
        for text in nested_texts(levels):
            with pytest.raises(FormatError, match="more than 64"):
                parse_index(text.encode(), "s.json")


def test_the_number_of_top_level_keys_is_bounded():
    keys = ",".join(f'"{i}":0' for i in range(255))
    assert parse_index(f'{{{keys},"files":{{}}}}'.encode(), "s.json")
    with pytest.raises(FormatError, match="more than 256 keys"):
        parse_index(f'{{{keys},"y":1,"files":{{}}}}'.encode(), "s.json")


@not_sanitized
def test_sorting_takes_little_time_in_any_order():
    orders = {"random": random.Random(0).shuffle, "reversed": list.reverse}
    for order in orders.values():
        files = [{"path": f"{i}", "offset": i * 512, "size": 9} for i in range(100_000)]
        order(files)
        text = json.dumps({"files": files}).encode()
        started = time.perf_counter()
        table, _ = parse_index(text, "s.json")
        assert time.perf_counter() - started < 30  # 5 ms; quadratic: minutes
        assert table.name_of(77) == "77"


def test_other_threads_run_during_a_parse():
    text = f'{{"files":[],"x":[{"1," * 20_000_000}1]}}'.encode()
    ticks = []
    done = threading.Event()

    def tick():
        while not done.wait(0.001):
            ticks.append(None)

    worker = threading.Thread(target=tick)
    worker.start()
    before = len(ticks)
    parse_index(text, "s.json")
    gained = len(ticks) - before
    done.set()
    worker.join()
    assert gained >= 3  # in some hundred milliseconds
