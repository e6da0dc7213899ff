"""Semantic versions: order, the latest, the next."""

import itertools

import pytest

from fastshard.typed.descriptions.versions import (
    latest_version,
    next_patch,
    parse_version,
)

# As semver.org orders them.
ORDERED = [
    "0.0.1",
    "0.9.10",
    "1.0.0-alpha",
    "1.0.0-alpha.1",
    "1.0.0-alpha.beta",
    "1.0.0-beta",
    "1.0.0-beta.2",
    "1.0.0-beta.11",
    "1.0.0-rc.1",
    "1.0.0",
    "1.9.0",
    "1.10.0",
    "2.0.0-1",
    "2.0.0",
    "10.0.0",
]


@pytest.mark.parametrize(("first", "second"), [*itertools.combinations(ORDERED, 2)])
def test_versions_are_ordered_by_their_parts(first, second):
    assert parse_version(first) < parse_version(second)


def test_builds_have_no_order():
    assert parse_version("1.0.0+a") == parse_version("1.0.0+b.7") == (1, 0, 0, True, ())


@pytest.mark.parametrize(
    "text",
    [
        *(
            "",
            "1",
            "1.0",
            "1.0.0.0",
            "v1.0.0",
            "01.0.0",
            "1.00.0",
            "1.0.0-",
            "1.0.0-01",
        ),
        *("1.0.0-a..b", "1.0.0+", "1.0.0 ", " 1.0.0", "1.0.0\n", "1.0.-1", "١.0.0"),
        "1.0.0-" + "9" * 100,
        "1" * 10_000 + ".0.0",
    ],
)
def test_a_non_version_is_refused(text):
    with pytest.raises(
        ValueError, match=r"not a semantic version|begins with 0"
    ) as caught:
        parse_version(text)
    assert len(str(caught.value)) < 200


def test_latest_is_by_version_and_not_by_text():
    assert latest_version(reversed(ORDERED)) == "10.0.0"
    assert latest_version([]) is None
    assert latest_version(["1.0.0", "newest"]) is None


def test_next_version_skips_invalid_versions():
    assert next_patch(["final", ""]) == next_patch([]) == "1.0.0"
    assert next_patch(["1.9.9", "1.10.3", "draft"]) == "1.10.4"
    assert next_patch(["2.0.0-rc.1"]) == "2.0.1"


@pytest.mark.parametrize("value", [None, 1, 1.0, b"1.0.0", ["1.0.0"]])
def test_values_that_are_not_text(value):
    with pytest.raises(TypeError, match="a version must be a str"):
        parse_version(value)
    assert latest_version([value]) is None
    assert next_patch([value, "1.0.0"]) == "1.0.1"
