"""Errors of typed samples: their builtins, their facts, their text, pickled too."""

import pickle

import pytest

import fastshard
from fastshard import typed
from fastshard.errors import (
    LensNotFoundError,
    PartialFailureError,
    SampleKeyError,
    SchemaError,
)

ERRORS = [
    (
        SchemaError("int in place of str", "a.tar", 1536, "k.msgpack", "k", "x"),
        (fastshard.FormatError, ValueError, TypeError),
        "int in place of str - at field 'x' of sample 'k' of a.tar, byte 1,536",
    ),
    (
        SchemaError("no map", "a.tar", 1536, "k.msgpack"),
        (fastshard.FormatError, ValueError, TypeError),
        "no map - at member 'k.msgpack' of a.tar, byte 1,536",
    ),
    (SchemaError("no map", "", 3), (TypeError,), "no map - at byte 3"),
    (fastshard.FormatError("no map", "", 3), (ValueError,), "no map - at byte 3"),
    (
        fastshard.FormatError("no map", "", 3, "field 'x'"),
        (ValueError,),
        "no map - at member \"field 'x'\", byte 3",
    ),
    (
        LensNotFoundError("no lens from A to B", "A", "B", ("C", "D")),
        (fastshard.FastshardError, ValueError),
        "no lens from A to B",
    ),
    (
        SampleKeyError("k", "a.tar"),
        (fastshard.SampleNotFoundError, KeyError),
        "no sample 'k' in a.tar",
    ),
    (
        PartialFailureError(["a"], ["b"], {"b": ValueError("7")}, {"a": 1}),
        (fastshard.FastshardError, RuntimeError),
        "1/2 shards failed: b: ValueError: 7 - results of others: .succeeded_shards, "
        ".results; to retry: shards=.failed_shards",
    ),
]


@pytest.mark.parametrize(("error", "bases", "text"), ERRORS)
def test_an_error_is_its_builtin_and_says_where(error, bases, text):
    assert isinstance(error, bases)
    assert str(error) == text


@pytest.mark.parametrize("error", [error for error, _, _ in ERRORS])
def test_an_error_keeps_its_facts_when_it_pickles(error):
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error)
    assert str(again) == str(error)
    assert {name: repr(v) for name, v in vars(again).items()} == {
        name: repr(v) for name, v in vars(error).items()
    }


def test_upstreams_names_of_errors_are_aliases():
    assert typed.AtdataError is fastshard.FastshardError
    assert typed.ShardError is fastshard.FormatError
    assert typed.SchemaError is SchemaError


def test_abstract_index_is_the_index():
    assert typed.AbstractIndex is typed.Index


def test_a_name_that_there_is_not_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'Shema'"):
        _ = typed.Shema
