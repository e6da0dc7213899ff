"""Docstrings of public names: complete, true to the signatures, with examples that run.

`support.docstrings` says how the examples begin.
"""

import inspect
import os
import pkgutil
import subprocess
import sys

import pytest

import fastshard
from support import docstrings
from support.docstrings import Thing
from support.marks import not_sanitized
from support.processes import environment
from support.servers.examples import serve_names

MODULES = (
    "fastshard",
    "fastshard.errors",
    "fastshard.formats.decoders",
    "fastshard.formats.encoders",
    "fastshard.formats.folder",
    "fastshard.formats.layout",
    "fastshard.formats",
    "fastshard.dataset.verify",
    "fastshard.dataset.views",
    "fastshard.columnar",
    "fastshard.streaming",
    "fastshard.typed",
    "fastshard.typed.atmosphere",
    "fastshard.typed.testing",
    "fastshard.adapters.torch",
    "fastshard.adapters.ray",
)

# Functions and classes of which every method has an example, and all sections that say
# more than its annotations. The other docstrings are a sentence at least, and true.
FULL = """
    open open_shard collate mix zip_by_key build_index merge_indexes ShardWriter
    convert
    Dataset Mix Zip Concat FieldInfo SampleIterator BatchIterator TarShard Shard Samples
    Sample Loader LoaderStats
    formats.Format formats.find_format formats.formats formats.register
    formats.encoders.encode
    dataset.views.DatasetKeys dataset.views.Members dataset.views.Shards
    RemoteOptions BatchProcessor DiscoveredDataset ShardReader discover_dataset
    discover_dataset_async discover_datasets_batch read_files_batch
    formats.decoders.NpzDecoder formats.decoders.decode_field
    formats.decoders.decoder_for formats.decoders.is_data_error
    columnar.ShardedDatasetReader columnar.ShardedDatasetWriter columnar.compact
    columnar.stat columnar.verify columnar.ArraySequence columnar.ColumnSample
    columnar.ShardHandle.add_sample columnar.ShardHandle.close
    columnar.ShardHandle.discard
    streaming.Reader streaming.MDSReader streaming.reader_from_json
    streaming.MDSWriter streaming.JSONWriter streaming.CSVWriter streaming.TSVWriter
    streaming.XSVWriter streaming.Writer streaming.JointWriter streaming.SplitWriter
    streaming.FileInfo streaming.merge_index streaming.rebuild_index
    streaming.register_encoding
    streaming.install streaming.uninstall streaming.StreamSample
    typed.DictSample typed.Field typed.PackableSample typed.packable
    typed.fingerprint typed.schema_of
    typed.Lens typed.LensNetwork typed.lens typed.load_dataset typed.DatasetDict
    typed.URLSource typed.S3Source typed.verify_checksums typed.configure_logging
    typed.generate_cid typed.verify_cid
    typed.LocalDiskStore typed.S3DataStore typed.ShardWriteResult
    typed.testing.make_samples typed.testing.make_dataset
    typed.AtUri typed.Atmosphere
    typed.get_logger typed.Dataset typed.SampleBatch typed.write_samples
    typed.create_provider typed.IndexProvider typed.LabelRow
    typed.Index typed.DatasetEntry typed.Repository typed.create_repository
    typed.get_default_index typed.set_default_index
    typed.SearchResults typed.SearchResult
    adapters.torch.IterableDataset adapters.torch.TensorCollation
    adapters.torch.collate adapters.torch.to_tensor adapters.ray.decode
    adapters.ray.read
"""
FULL = {f"fastshard.{name}" for name in FULL.split()}

# Examples that run in a process of their own, for Ray starts threads in it.
ALONE = "fastshard.adapters.ray."
RUN_ALONE = """
import sys
from support import docstrings

module, name = sys.argv[1:]
thing = docstrings.public_things((module,))[name]
docstrings.run_example(thing.doc, name, docstrings.begin_example(thing))
"""

THINGS = docstrings.public_things(MODULES)
EXAMPLES = [name for name, thing in THINGS.items() if ">>> " in thing.doc]


def is_full(name):
    return name in FULL or name.rpartition(".")[0] in FULL


def ids(name):
    return name.removeprefix("fastshard.")


@pytest.mark.parametrize("name", THINGS, ids=ids)
def test_a_docstring_says_all_that_its_kind_needs(name):
    found = docstrings.complaints(THINGS[name], full=is_full(name))
    assert not found


def test_no_docstring_describes_a_parameter_that_does_not_exist():
    names = [m.name for m in pkgutil.walk_packages(fastshard.__path__, "fastshard.")]
    modules = tuple(name for name in names if not name.endswith("__main__"))
    things = docstrings.public_things(modules)  # with internal ones
    assert len(things) > 2 * len(THINGS)
    unknown = {
        name: docstrings.unknown_parameters(thing) for name, thing in things.items()
    }
    assert not {name: found for name, found in unknown.items() if found}


def test_listed_names_exist():
    missing = tuple(name for name in MODULES if name not in THINGS)  # their libraries
    assert [name for name in FULL - set(THINGS) if not name.startswith(missing)] == []


def run_alone(name):
    done = subprocess.run(
        [sys.executable, "-c", RUN_ALONE, ALONE.rstrip("."), name],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@not_sanitized
@pytest.mark.skipif(os.name == "nt", reason="examples print paths of POSIX")
@pytest.mark.parametrize("name", EXAMPLES, ids=ids)
def test_an_example_prints_its_output(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    thing = THINGS[name]
    if name.startswith(ALONE):
        run_alone(name)
        return
    try:
        names = {}
        if name != thing.face:
            names = docstrings.begin_example(thing)
        with serve_names(thing.doc) as objects:
            docstrings.run_example(thing.doc, name, names | objects)
    except ImportError as error:
        library = docstrings.missing_library(error)
        pytest.skip(f"{library} is not installed")


class Counter:
    """Count."""

    def add(self, n: int, *others: int, scale: float = 1, **rest: int) -> int:
        """Add numbers to the count.

        Parameters
        ----------
        n, *others : int
        scale : float, default 1
            Factor.
        **rest
            More.

        Returns
        -------
        int
            The count.

        Raises
        ------
        ValueError, FormatError
            A number is negative.

        Examples
        --------
        >>> 1 + 1
        2
        """
        if n < 0:
            raise ValueError(n)
        return 0


def changed(old, new):
    """Return `Counter.add` with another docstring."""
    doc = inspect.getdoc(Counter.add)
    assert old in doc

    def add(self, n: int, *others: int, scale: float = 1, **rest: int) -> int:
        if n < 0:
            raise ValueError(n)
        return 0

    add.__doc__ = doc.replace(old, new)
    kind = type("Counter", (), {"add": add, "__module__": "fastshard.counter"})
    return Thing("fastshard.Counter.add", add, kind)


def test_a_good_docstring_passes():
    assert docstrings.complaints(changed("Add", "Add"), full=True) == []


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ("to the count.", "to the count", "not a sentence"),
        ("Add numbers", "add numbers", "not a sentence"),
        ("count.\n", "count.\nAnd more.\n", "followed by an empty one"),
        ("n, *others : int", "n : int", "parameters"),
        ("scale : float, default 1", "factor : float", "parameters"),
        ("default 1", "default 2", "the default of scale is not 2"),
        ("**rest", "rest", "parameters"),
        ("Parameters\n----------", "Parameter", "parameters"),
        ("int\n    The count.", "int", "the section Returns only names types"),
        ("Raises\n------", "Errors\n------", "no section Raises"),
        ("FormatError", "FormError", "'FormError'"),
        (">>> 1 + 1\n2", "", "no example"),
    ],
)
def test_a_wrong_docstring_is_found(old, new, complaint):
    (found,) = docstrings.complaints(changed(old, new), full=True)
    assert complaint in found


def test_a_parameter_that_does_not_exist_is_found():
    thing = changed("scale : float,", "factor : float,")
    assert docstrings.unknown_parameters(thing) == ["factor"]


@pytest.mark.parametrize(
    "example",
    [">>> 1 + 1\n3", ">>> 1 / 0", ">>> undefined", ">>> import numpy as np\n>>> np.x"],
)
def test_a_wrong_example_is_found(example):
    with pytest.raises(docstrings.ExampleError):
        docstrings.run_example(example, "example", {})


def test_a_missing_library_is_told_from_a_wrong_example():
    with pytest.raises(ImportError) as caught:
        docstrings.run_example(">>> import no_such_library.part", "example", {})
    assert docstrings.missing_library(caught.value) == "no_such_library"


def test_compiled_methods_count():
    thing = THINGS["fastshard.Shard.read_into"]
    assert docstrings.call_of(thing).parameters == ["positions", "out", "threads"]
    assert "Copy many members into one buffer" in thing.doc


def test_the_parts_are_found():
    names = (
        "fastshard.Dataset.shuffle fastshard.Dataset.__getitem__ "
        "fastshard.Shard.read_into fastshard.TarShard.end fastshard.Sample.key"
    )
    assert set(names.split()) <= set(THINGS)
