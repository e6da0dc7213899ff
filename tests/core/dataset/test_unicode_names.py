"""Names that look the same: Unicode forms NFC and NFD of one text."""

import pickle
import re
from unicodedata import normalize

import pytest

import fastshard
from support.tars import write_tar

NFC, NFD = (normalize(form, "dir/caf\u00e9") for form in ("NFC", "NFD"))


@pytest.fixture
def folder(tmp_path):
    """Four shards; two have a sample whose key has one of the forms."""
    for k in range(4):
        members = {f"{k}-{i:03}.txt": b"x" for i in range(400)}
        members |= {1: {f"{NFC}.txt": b"c"}, 2: {f"{NFD}.txt": b"d"}}.get(k, {})
        write_tar(tmp_path / f"{k}.tar", members)
    return tmp_path


def hints(error, other):
    form = "NFC" if other.startswith(NFC) else "NFD"
    hint = f"did you mean {other!r} in the Unicode form {form}, {other!a}?"
    for each in (error, pickle.loads(pickle.dumps(error))):
        assert hint in str(each)
    assert isinstance(error, KeyError)
    return True


@pytest.mark.parametrize(("shard", "key", "other"), [(1, NFD, NFC), (2, NFC, NFD)])
def test_a_missing_name_of_a_shard_names_the_other_form(folder, shard, key, other):
    with fastshard.open_shard(folder / f"{shard}.tar") as opened:
        with pytest.raises(fastshard.MemberNotFoundError) as caught:
            opened[f"{key}.txt"]
        assert hints(caught.value, f"{other}.txt")
        with pytest.raises(fastshard.SampleNotFoundError) as caught:
            opened.samples[key]
        assert hints(caught.value, other)


@pytest.mark.parametrize("is_indexed", [False, True])
def test_a_missing_key_of_a_dataset_names_the_other_form(folder, is_indexed):
    if is_indexed:
        fastshard.build_index(folder)
    ds = fastshard.open(folder / "{0,2,3}.tar")
    for missing in (lambda: ds[NFC], lambda: (ds[:5] + ds[5:])[NFC]):
        with pytest.raises(fastshard.SampleNotFoundError) as caught:
            missing()
        assert hints(caught.value, NFD)
    with pytest.raises(fastshard.MemberNotFoundError) as caught:
        ds.members[f"{NFC}.txt"]
    assert hints(caught.value, f"{NFD}.txt")
    whole = fastshard.open(folder)
    assert (whole[NFC].text("txt"), whole[NFD].text("txt")) == ("c", "d")


def test_joining_by_keys_names_the_other_form(folder):
    first = fastshard.open(folder / "1.tar")
    second = fastshard.open(folder / "2.tar")
    joined = fastshard.zip_by_key(first[-1:], second[-1:])
    with pytest.raises(fastshard.SampleNotFoundError) as caught:
        joined[0]
    assert hints(caught.value, NFD)


def test_fields_in_a_sample_of_the_other_form_are_explained(tmp_path):
    path = write_tar(tmp_path / "0.tar", {f"{NFC}.jpg": b"", f"{NFD}.txt": b""})
    samples = fastshard.open_shard(path).samples
    assert len(samples) == 2
    twin = f"beside the sample {NFD!a}"
    with pytest.raises(fastshard.FieldNotFoundError, match=re.escape(twin)):
        samples[NFC]["txt"]


def test_a_missing_field_names_the_other_form(tmp_path):
    field = normalize("NFD", "d\u00e9s")
    path = write_tar(tmp_path / "0.tar", {f"a.{field}": b""})
    with pytest.raises(fastshard.FieldNotFoundError, match="Unicode form NFD"):
        fastshard.open_shard(path).samples[0]["d\u00e9s"]


def test_other_names_have_the_usual_hints(folder):
    with (
        fastshard.open_shard(folder / "0.tar") as shard,
        pytest.raises(fastshard.MemberNotFoundError) as caught,
    ):
        shard["0-01\u00e9.txt"]
    assert "Unicode form" not in str(caught.value)
