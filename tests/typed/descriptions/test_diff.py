"""Differences of structures, and which of them old samples survive."""

import numpy as np
import pytest
from numpy.typing import NDArray

from fastshard import SchemaError, typed
from fastshard.typed.descriptions.diff import diff
from fastshard.typed.descriptions.structure import describe


def made(**annotations):
    return type("Made", (typed.PackableSample,), {"__annotations__": annotations})


def changes(before, after):
    found = diff(describe(made(**before)), describe(made(**after)))
    return [(str(each), each.is_compatible) for each in found]


def test_fields_are_named_in_order():
    before = {"a": int, "b": str, "c": str}
    after = {"z": bytes | None, "c": str, "a": int | None, "y": int}
    assert changes(before, after) == [
        ("~ a: int -> int | None", True),
        ("- b: str", True),
        ("+ z: bytes | None", True),
        ("+ y: int", False),
    ]
    assert changes(before, before) == []


SAMPLES = {
    int: 1,
    float: 0.5,
    str: "a",
    bytes: b"a",
    dict: {},
    list: ["a"],
    list[int]: [1],
    list[float]: [0.5],
    list[str]: ["a"],
    NDArray: np.zeros(2, "u1"),
    NDArray[np.float32]: np.zeros(2, "f4"),
    NDArray[np.float64]: np.zeros(2, "f8"),
    int | None: None,
    float | None: None,
    NDArray[np.float32] | None: None,
}


@pytest.mark.parametrize("before", SAMPLES, ids=str)
def test_compatible_types_are_read(before):
    payload = made(x=before)(x=SAMPLES[before]).packed
    for after in SAMPLES:
        found = diff(describe(made(x=before)), describe(made(x=after)))
        if all(each.is_compatible for each in found):
            made(x=after).from_bytes(payload)
        else:
            assert before != after


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (float, int),
        (str, bytes),
        (int | None, int),
        (NDArray[np.float32], NDArray[np.float64]),
    ],
    ids=str,
)
def test_incompatible_types_are_refused(before, after):
    payload = made(x=before)(x=SAMPLES[before]).packed
    ((_, is_compatible),) = changes({"x": before}, {"x": after})
    assert not is_compatible
    with pytest.raises(SchemaError):
        made(x=after).from_bytes(payload)
