"""References of datasets, schemas and lenses."""

import pytest

from fastshard.catalog.references import (
    DatasetReference,
    lens_ref,
    parse_dataset_ref,
    parse_lens_ref,
    parse_schema_ref,
    schema_ref,
)

REPOS = {"local", "lab"}
URI = "at://did:plc:abc/science.alt.dataset.entry/3k2"


@pytest.mark.parametrize(
    ("ref", "expected"),
    [
        ("mnist", DatasetReference("local", "mnist")),
        ("local/mnist", DatasetReference("local", "mnist")),
        ("lab/mnist", DatasetReference("lab", "mnist")),
        ("lab/a/b", DatasetReference("lab", "a/b")),
        ("team/mnist", DatasetReference("local", "team/mnist")),
        ("a@b", DatasetReference("local", "a@b")),
        ("@lab/mnist", DatasetReference("lab", "mnist")),
        ("@lab/mnist@1.0.0", DatasetReference("lab", "mnist", "1.0.0")),
        (
            "@alice.test/mnist",
            DatasetReference(None, "mnist", None, "alice.test"),
        ),
        (
            "@did:plc:abc/a/b@2",
            DatasetReference(None, "a/b", "2", "did:plc:abc"),
        ),
        ("atdata://local/dataset/mnist", DatasetReference("local", "mnist")),
        ("atdata://lab/record/mnist", DatasetReference("lab", "mnist")),
        ("atdata://lab/mnist", DatasetReference("lab", "mnist")),
        ("atdata://lab/dataset/a/b", DatasetReference("lab", "a/b")),
        (
            "atdata://alice.test/dataset/mnist",
            DatasetReference(None, "mnist", None, "alice.test"),
        ),
        (URI, DatasetReference(None, URI)),
    ],
)
def test_a_reference_of_a_dataset_is_parsed(ref, expected):
    parsed = parse_dataset_ref(ref, REPOS)
    assert parsed == expected
    assert (parsed.repo is parsed.authority is None) == (ref == URI)


@pytest.mark.parametrize(
    "ref",
    [
        "",
        "lab/",
        "@",
        "@alice.test",
        "@alice.test/",
        "@/mnist",
        "@a/m@",
        "@a/@1",
        "atdata://",
        "atdata://lab",
        "atdata:///dataset/x",
        "atdata://lab/dataset/",
    ],
)
def test_a_reference_with_an_empty_part_is_refused(ref):
    with pytest.raises(ValueError, match=r"Invalid|no name"):
        parse_dataset_ref(ref, REPOS)


@pytest.mark.parametrize("kind", ["schema", "lens"])
def test_references_of_schemas_and_lenses_are_not_of_datasets(kind):
    with pytest.raises(ValueError, match=f"reference of a {kind}"):
        parse_dataset_ref(f"atdata://local/{kind}/Vec@1.0.0", REPOS)


def test_a_schema_reference_is_parsed():
    assert parse_schema_ref(schema_ref("Vec", "1.0.0")) == ("Vec", "1.0.0")
    assert parse_schema_ref("local://schemas/a.b.Vec@0.9.0") == ("Vec", "0.9.0")
    assert parse_schema_ref("local://schemas/Vec@0.9.0") == ("Vec", "0.9.0")


def test_a_lens_reference_is_parsed():
    assert parse_lens_ref(lens_ref("to.vec", "1.0.0")) == ("to.vec", "1.0.0")


@pytest.mark.parametrize("parse", [parse_schema_ref, parse_lens_ref])
def test_other_references_are_refused(parse):
    kind = "schema" if parse is parse_schema_ref else "lens"
    for ref in ("", "Vec@1.0.0", "at://did/x/y", "atdata://local/other/Vec@1.0.0"):
        with pytest.raises(ValueError, match=f"Invalid {kind} reference"):
            parse(ref)
    for ref in ("Vec", "Vec@", "@1.0.0"):
        with pytest.raises(ValueError, match="must include version"):
            parse(f"atdata://local/{kind}/{ref}")


def test_references_are_strings():
    for parse in (parse_schema_ref, parse_lens_ref):
        with pytest.raises(TypeError, match="must be a str, got int"):
            parse(3)
    with pytest.raises(TypeError, match="must be a str, got bytes"):
        parse_dataset_ref(b"mnist", REPOS)


def test_an_error_shows_neither_secrets_nor_a_megabyte():
    with pytest.raises(ValueError, match="Invalid schema") as raised:
        parse_schema_ref("https://user:hunter2@host/x?sig=hunter2" + "x" * 1_000_000)
    assert "hunter2" not in str(raised.value)
    assert len(str(raised.value)) < 1000
