"""Brace expansion, compared with the output of bash 5.2 and with braceexpand."""

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from fastshard import FastshardError
from fastshard._util.paths.globs import MAX_WORDS, expand_braces

# Output of `echo PATTERN` in bash 5.2.
BY_BASH = {
    "s-{000..003}": "s-000 s-001 s-002 s-003",
    "{3..1}": "3 2 1",
    "{0..10..3}": "0 3 6 9",
    "{10..0..5}": "10 5 0",
    "{1..5..-2}": "1 3 5",
    "{5..1..2}": "5 3 1",
    "{1..5..0}": "1 2 3 4 5",
    "{7..7}": "7",
    "{-1..1}": "-1 0 1",
    "{0..-3}": "0 -1 -2 -3",
    "{01..3}": "01 02 03",
    "{1..02}": "01 02",
    "{8..010}": "008 009 010",
    "{-01..3}": "-01 000 001 002 003",
    "{a..f}": "a b c d e f",
    "{f..a..2}": "f d b",
    "{Z..a..5}": "Z _",
    "{a,b}{c,d}": "ac ad bc bd",
    "a{,b}": "a ab",
    "{a,{b,c},{1..3}}": "a b c 1 2 3",
    "{1..3,5}": "1..3 5",
    "{a{1..2}b}": "{a1b} {a2b}",
    "{{a},b}": "{a} b",
    "a{b}c": "a{b}c",
    "{}": "{}",
    "x{a,b": "x{a,b",
    "a,b}": "a,b}",
    "{{a,b}": "{a {b",
    "{a,b}}": "a} b}",
    "{a,b}c}": "ac} bc}",
    "{a,b}{c": "a{c b{c",
    "{x,{y}": "{x,{y}",
    "{{1..3}": "{1 {2 {3",
    "}{a,b}": "}a }b",
    "{1..a}": "{1..a}",
    "{a..bb}": "{a..bb}",
    "{1...3}": "{1...3}",
    "{1..2..3..4}": "{1..2..3..4}",
    "{1..}": "{1..}",
    "{9999999999999999999999..9999999999999999999999}": (
        "{9999999999999999999999..9999999999999999999999}"
    ),
}


@pytest.mark.parametrize("pattern", BY_BASH)
def test_as_bash(pattern):
    assert expand_braces(pattern) == BY_BASH[pattern].split()


def test_other_characters_are_literal():
    assert expand_braces("C:\\{a,b}") == ["C:\\a", "C:\\b"]
    assert expand_braces("${a,b}") == ["$a", "$b"]
    assert expand_braces("{a,b} {") == ["a {", "b {"]
    assert expand_braces("{١..٣}") == ["{١..٣}"]
    assert expand_braces("") == [""]


texts = st.text("a1-.,", max_size=3)
ranges = st.builds(
    "{{{}..{}}}".format, *[st.from_regex(r"-?0?1?[0-9]", fullmatch=True)] * 2
)
patterns = st.recursive(
    texts | ranges,
    lambda inner: (
        st.lists(inner, max_size=3).map("".join)
        | st.lists(inner, max_size=3).map(lambda options: f"{{{','.join(options)}}}")
    ),
    max_leaves=6,
)


@given(patterns)
def test_as_braceexpand_where_braces_are_balanced(pattern):
    try:
        from braceexpand import braceexpand
    except ImportError:
        pytest.skip("braceexpand is not installed")
    assume(pattern.count("..") <= 2)  # each range has up to 39 words
    assert expand_braces(pattern) == list(braceexpand(pattern, escape=False))


@given(st.text("{},.01a", max_size=30))
def test_any_text_expands_or_is_refused(pattern):
    try:
        words = expand_braces(pattern)
    except FastshardError:
        return
    assert words
    assert all(isinstance(word, str) for word in words)


@pytest.mark.parametrize(
    "pattern",
    [
        "{0..1000000}",
        "{0..999999999999999999}",
        "{-999999999999999999..999999999999999999}",
        "{0..999}{0..999}{a,b}",
        "{0..9}" * 100_000,
        "{{0..999999},b}",
        "{a,b}" * 20,
    ],
    ids=range(7),
)
def test_too_many_words_are_refused_before_they_are_built(pattern):
    with pytest.raises(FastshardError, match="more than 1,000,000 words") as caught:
        expand_braces(pattern)
    assert len(str(caught.value)) < 200


def test_a_million_words_are_allowed():
    words = expand_braces("{000000..999999}")
    assert len(words) == MAX_WORDS
    assert words[0] == "000000"
    assert words[-1] == "999999"


def test_deep_nesting_is_refused_and_unpaired_braces_do_not_nest():
    assert expand_braces("{" * 64 + "a,b" + "}" * 64)[0] == "{" * 63 + "a" + "}" * 63
    with pytest.raises(FastshardError, match="deeper than 64"):
        expand_braces("{" * 65 + "a,b" + "}" * 65)
    assert expand_braces("{" * 100_000) == ["{" * 100_000]
    assert expand_braces("}" * 100_000) == ["}" * 100_000]
