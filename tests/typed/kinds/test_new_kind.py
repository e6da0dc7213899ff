"""A new kind of fields is its class and a line in the table: the rest follows."""

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from support.paths import TESTS
from support.processes import environment

for library in ("msgspec", "pandas"):
    pytest.importorskip(library)

REGISTRY = "fastshard.typed.kinds.registry"
CODE = f"""
import json, pickle, sys
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.util import find_spec, module_from_spec
from pathlib import Path

spec = find_spec({REGISTRY!r})
text = Path(spec.origin).read_text()
added = text.replace("MODULES = (", "MODULES = (\\n'support.typed.moment_kind',", 1)
assert added != text
sys.modules[spec.name] = registry = module_from_spec(spec)
exec(compile(added, spec.origin, "exec"), vars(registry))

from fastshard import typed
from fastshard.typed.descriptions.json_schema import from_json_schema, to_json_schema
from fastshard.typed.descriptions.local_schema import from_local_json, to_local_json
from fastshard.typed.descriptions.schema_type import make_type
from fastshard.typed.descriptions.structure import describe
from fastshard.typed.descriptions.stubs import stub_text

class Event(typed.PackableSample):
    text: str
    at: datetime
    until: datetime | None = None

first = datetime(2026, 5, 17, 12, tzinfo=UTC)
second = datetime(2026, 5, 17, 13, tzinfo=UTC)
samples = [Event("a", first, second), Event("b", second)]
found = {{}}

typed.write_samples(samples, "a.tar")
ds = typed.Dataset[Event]("a.tar")
assert list(ds.ordered()) == samples
assert pickle.loads(pickle.dumps(samples[0])) == samples[0]
assert asdict(ds[1]) == {{"text": "b", "at": second, "until": None}}
found["stored"] = typed.Dataset("a.tar")[0].at
try:
    Event("a", "noon").packed
except TypeError as error:
    found["refused"] = str(error)

(batch,) = ds.ordered(batch_size=2)
assert (typed.SampleBatch(samples).at == batch.at).all()
found["batch"] = [str(batch.at.dtype), batch.at.astype(str).tolist(), batch.text]

structure = describe(Event)
schema, local = to_json_schema(structure), to_local_json(structure, "1.0.0")
assert from_json_schema(schema, "Event").equals(structure)
assert from_local_json(local).equals(structure)
Made = make_type(from_json_schema(schema, "Event"))
assert Made.from_bytes(samples[0].packed).at == first
assert Made(text="b", at=second).packed == samples[1].packed
found["schema"] = schema["properties"]["at"]
found["local"] = local["fields"][1]["fieldType"]
found["fields"] = json.loads(typed.schema_of(Event))["fields"][1:]
found["stub"] = stub_text(structure, "local://schemas/Event@1.0.0")

made = typed.testing.make_samples(Event, n=2, seed=1)
assert list(typed.testing.make_dataset("data", made).ordered()) == made
found["made"] = [str(each.at) for each in made]

builder = typed.ManifestBuilder(Event, "a")
for i, sample in enumerate(samples):
    builder.add_sample(key=str(i), offset=0, size=1, sample=sample)
manifest = builder.build()
found["aggregate"] = manifest.aggregates["at"]
found["rows"] = list(manifest.samples["at"])
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """Return the results of fields of a kind that is only in the table."""
    done = subprocess.run(
        [sys.executable, "-c", CODE],
        capture_output=True,
        text=True,
        cwd=tmp_path_factory.mktemp("kind"),
        env={**environment(), "PYTHONPATH": str(TESTS)},
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_the_table_has_a_line_for_each_module_of_kinds():
    folder = Path(find_spec(REGISTRY).origin).parent
    paths = [p for p in folder.rglob("*.py") if "\nKINDS" in p.read_text()]
    names = {
        f"fastshard.typed.kinds.{'.'.join(p.relative_to(folder).with_suffix('').parts)}"
        for p in paths
    }
    text = (folder / "registry.py").read_text()
    table = text[text.index("MODULES = (") :].partition(")")[0]
    assert len(names) > 5
    assert {name for name in names if f'"{name}"' not in table} == {REGISTRY}


def test_samples_are_written_and_read(found):
    assert found["stored"] == 1_779_019_200_000_000
    assert "'at'" in found["refused"]


def test_batches_have_a_column_of_the_kind(found):
    times = ["2026-05-17T12:00:00.000000", "2026-05-17T13:00:00.000000"]
    assert found["batch"] == ["datetime64[us]", times, ["a", "b"]]


def test_schemas_and_stubs_say_the_kind(found):
    assert found["schema"] == {"type": "string", "format": "date-time"}
    assert found["local"] == {"$type": "local#moment"}
    assert found["fields"] == [
        {"kind": "moment", "name": "at", "optional": False},
        {"kind": "moment", "name": "until", "optional": True},
    ]
    assert "import datetime\n" in found["stub"]
    assert "    at: datetime.datetime\n" in found["stub"]
    assert "    until: datetime.datetime | None = None\n" in found["stub"]


def test_samples_for_tests_and_manifests_have_the_kind(found):
    assert found["made"] == ["1970-01-01 00:00:00+00:00", "1970-01-02 00:00:00+00:00"]
    aggregate = found["aggregate"]
    assert (aggregate["type"], aggregate["count"]) == ("numeric", 2)
    assert aggregate["max"] - aggregate["min"] == 3600
    assert found["rows"] == [1_779_019_200.0, 1_779_022_800.0]
