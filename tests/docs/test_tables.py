"""Tables of docs/ name existing options, methods, suffixes, errors."""

import builtins
import dataclasses
import inspect
import re

import pytest

import fastshard
from fastshard import errors
from fastshard.columnar import ShardedDatasetReader, ShardedDatasetWriter
from fastshard.formats.decoders import DECODERS
from support.paths import TREE

DOCS = TREE / "docs"

pytestmark = pytest.mark.skipif(not DOCS.is_dir(), reason="no source tree")


def read_table(page, heading):
    """Return the rows below a line of headings, as lists of cells."""
    lines = (DOCS / page).read_text().splitlines()
    (start,) = [i for i, line in enumerate(lines) if line.startswith(heading)]
    rows = []
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            break
        cells = re.split(r"(?<!\\)\|", line.strip("|"))
        rows.append([cell.strip() for cell in cells])
    assert rows
    return rows


def code_in(cell):
    return re.findall(r"`([^`]+)`", cell)


def show(default):
    """Return a default value as tables print it."""
    if default is None:
        return "no limit"
    if isinstance(default, bool):
        return str(default)
    return f'"{default}"' if isinstance(default, str) else f"{default:,}"


def test_the_remote_page_lists_each_option():
    rows = read_table("remote.md", "| option | default |")
    names = [name for row in rows for name in code_in(row[0])]
    assert sorted(names) == sorted(fastshard.RemoteOptions.__optional_keys__)


@pytest.mark.parametrize("method", ["images", "loader"])
def test_the_loader_page_lists_each_argument(method):
    rows = read_table("loader.md", f"| `ds.{method}(...)` |")
    listed = [name for row in rows for name in code_in(row[0])]
    call = getattr(fastshard.Dataset, method)
    assert sorted(listed) == sorted(set(inspect.signature(call).parameters) - {"self"})


def test_the_loader_page_lists_each_figure():
    rows = read_table("loader.md", "| seconds | |") + read_table(
        "loader.md", "| counts | |"
    )
    listed = [name for row in rows for name in code_in(row[0])]
    fields = dataclasses.fields(fastshard.LoaderStats)
    public = [field.name for field in fields if not field.name.startswith("_")]
    assert sorted(listed) == sorted(public)


@pytest.mark.parametrize("kind", [ShardedDatasetReader, ShardedDatasetWriter])
def test_the_columnar_page_lists_each_option_with_its_default(kind):
    rows = read_table("columnar.md", f"| `{kind.__name__}(root, ...)`")
    listed = {code_in(row[0])[0]: row[1].strip("`") for row in rows}
    parameters = inspect.signature(kind).parameters
    defaults = {name: p.default for name, p in parameters.items() if name != "root"}
    shown = {name: show(default) for name, default in defaults.items()}
    if kind is ShardedDatasetWriter:  # None stands for the defaults of two layouts
        shown["samples_per_shard"] = "1,000"
    assert listed == shown


@pytest.mark.parametrize(
    ("kind", "heading"),
    [
        (ShardedDatasetReader, "| call | returns | samples by |"),
        (ShardedDatasetWriter, "| call | does | on the disk |"),
    ],
)
def test_the_columnar_page_lists_calls_that_exist(kind, heading):
    rows = read_table("columnar.md", heading)
    calls = [call for row in rows for call in code_in(row[0])]
    names = {re.match(r"\w+", call)[0] for call in calls} - {"len"}
    public = {name for name in dir(kind) if not name.startswith("_")}
    aside = {"cache_tars", "closed", "refresh", "close", "close_tars", "root"}
    assert names <= public
    assert public - aside <= names


def test_the_typed_page_lists_calls_that_exist():
    pytest.importorskip("msgspec")
    from fastshard import typed

    rows = read_table("typed.md", "| call | gives |")
    calls = [call for row in rows for call in code_in(row[0])]
    names = {found[1] for call in calls if (found := re.match(r"ds\.(\w+)", call))}
    assert len(names) >= 15
    assert all(hasattr(typed.Dataset, name) for name in names)


def test_the_page_of_decoders_lists_each_suffix():
    rows = read_table("reference/decoders.md", "| suffix | value |")
    suffixes = [suffix for row in rows for suffix in code_in(row[0])]
    assert sorted(suffixes) == sorted(DECODERS)


def kind_of(name):
    return getattr(errors, name, None) or getattr(builtins, name)


def test_the_page_of_errors_lists_each_with_its_builtin():
    rows = read_table("reference/errors.md", "| error | is also |")
    listed = set()
    for names, bases, _ in rows:
        for name in code_in(names):
            for base in code_in(bases):
                assert issubclass(getattr(errors, name), kind_of(base))
            listed.add(name)
    every = {name for name in errors.__all__ if name.endswith("Error")}
    assert every - listed == {"FastshardError"}
