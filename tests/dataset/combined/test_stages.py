"""Methods of samples on sums and mixes: they act on each part."""

import pickle

import pytest

import fastshard
from fastshard import Concat, FieldNotFoundError, Mix

COMBINED = {
    "sum": sum,
    "mix": fastshard.mix,
    "weighted mix": lambda parts: fastshard.mix(parts, [3, 1, 1], 5, stop="all"),
    "shuffled sum": lambda parts: sum(parts).shuffle(3),
    "mix of a sum": lambda parts: fastshard.mix([parts[0], parts[1] + parts[2]]),
}


@pytest.fixture(params=COMBINED)
def combined(request, parts):
    return COMBINED[request.param](parts)


def texts(items):
    return [item["txt"] for item in items]


def test_decode_gives_the_values_of_each_part(combined):
    decoded = combined.decode("txt")
    expected = [sample.text("txt") for sample in combined]
    assert isinstance(decoded, type(combined))
    assert len(decoded) == len(combined)
    assert decoded.state_dict(9) == combined.state_dict(9)
    for items in (
        decoded,
        decoded.get_many(range(len(decoded))),
        pickle.loads(pickle.dumps(decoded)),
        combined.select_fields("txt").decode(),
    ):
        assert texts(items) == expected
    (batch,) = decoded.batches(1000)
    assert batch["txt"] == expected
    with decoded.loader(1000, threads=1) as loader:
        assert next(loader)["txt"] == expected
    assert texts(decoded.resume(combined.state_dict(9))) == expected[9:]


def test_selected_fields_are_those_of_each_part(combined):
    chosen = combined.select_fields("txt")
    assert isinstance(chosen, Concat | Mix)
    assert len(chosen) == len(combined)
    assert chosen.state_dict(9) == combined.state_dict(9)
    assert [s.key for s in chosen] == [s.key for s in combined]
    assert {tuple(sample.keys()) for sample in chosen} == {("txt",)}
    keys = combined.map(lambda sample: sample.key)
    assert [s.key for s in chosen] == list(keys)


def test_samples_that_lack_a_field_are_left_out_of_the_order(tmp_path):
    parts = []
    for name in "ab":
        with fastshard.ShardWriter(tmp_path / f"{name}.tar") as writer:
            for i in range(9):
                extra = {"json": i} if i % (2 if name == "a" else 3) == 0 else {}
                writer.write({"__key__": f"{name}{i}", "cls": i} | extra)
        parts.append(fastshard.open(tmp_path / f"{name}.tar"))
    for make in COMBINED.values():
        whole = make([*parts, parts[0]])
        kept = [sample.key for sample in whole if "json" in sample]
        chosen = whole.select_fields("json", missing="skip")
        assert [sample.key for sample in chosen] == kept
        assert [
            sample.key for sample in whole[5:].select_fields("json", missing="skip")
        ] == [sample.key for sample in whole[5:] if "json" in sample]
        keys = chosen.batches(4)
        assert [key for batch in keys for key in batch["__key__"]] == kept
        with pytest.raises(
            FieldNotFoundError, match=r"'jsn' in the dataset.*mean 'json'"
        ):
            whole.select_fields("jsn", missing="skip")
        with pytest.raises(ValueError, match="missing must be"):
            whole.select_fields("json", missing="drop")
        items = whole.select_fields("json").iter(on_error="skip")
        assert [sample.key for sample in items] == kept


def test_methods_refuse_parts_without_fields_and_mapped_ones(parts):
    pairs = fastshard.zip_by_key(parts[0], parts[0])
    for method in ("decode", "select_fields", "images"):
        with pytest.raises(TypeError, match="the samples of a Zip have no"):
            getattr(parts[0] + pairs, method)("txt")
        with pytest.raises(fastshard.FastshardError, match=f"call {method} before map"):
            getattr((parts[0] + parts[1]).map(len), method)("txt")
    windows = parts[0].tokens("txt", 4, dtype="u1")
    with pytest.raises(TypeError, match="have no fields"):
        fastshard.mix([windows, windows]).decode("txt")
