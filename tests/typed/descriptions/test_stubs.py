"""Modules and stubs of schema types: contents, authors, checkers."""

import os
import pickle
import re
import subprocess
import sys

import pytest

from fastshard.errors import DescriptionError
from fastshard.typed.descriptions.schema_type import make_type
from fastshard.typed.descriptions.structure import (
    Structure,
    StructureField,
    ValueType,
)
from fastshard.typed.descriptions.stubs import StubFolder
from support.marks import not_sanitized, slow
from support.processes import environment

pytestmark = not_sanitized  # tests no C code

INT, STR = ValueType("int"), ValueType("str")


def structure(*fields, name="Item", version="1.2.0", description=None):
    found = tuple(StructureField(*each) for each in fields)
    return Structure(name, found, version, description)


ITEM = structure(
    ("text", STR),
    ("note", STR, True),
    ("pages", INT),
    ("grid", ValueType("array", items=ValueType("array", items=INT))),
    ("bare", ValueType("array")),
    ("more", ValueType("object")),
    ("x", ValueType("ndarray")),
    ("y", ValueType("ndarray", "float32"), True),
    ("z", ValueType("ndarray", "float32", is_exact=False)),
    ("raw", ValueType("bytes")),
    ("table", ValueType("dataframe"), True),
    ("rows", ValueType("structured")),
    ("last", ValueType("float"), True),
)
REF = "atdata://local/schema/Item@1.2.0"


@pytest.fixture
def folder(tmp_path):
    return StubFolder(tmp_path / "stubs")


def run(code, path, *arguments):
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env=environment() | {"PYTHONPATH": os.pathsep.join([str(path), *sys.path])},
        capture_output=True,
        text=True,
    )


def test_files_of_a_schema(folder):
    path = folder.write(ITEM, REF)
    assert path == folder.path / "local" / "Item_1_2_0.py"
    names = {str(p.relative_to(folder.path)) for p in folder.path.rglob("*.py*")}
    assert names == {
        *("__init__.py", "local/__init__.py"),
        *("local/Item_1_2_0.py", "local/Item_1_2_0.pyi"),
    }
    assert folder.import_path(ITEM, REF) == "local.Item_1_2_0"
    for text in (path.read_text(), path.with_suffix(".pyi").read_text()):
        assert "class Item(PackableSample):" in text
        assert re.search(r"^ +text: str$", text, re.M)
        assert re.search(r"^ +note: str \| None = None$", text, re.M)


def test_imported_type_is_the_one_that_is_made(folder):
    folder.write(ITEM, REF)
    code = (
        "import pickle, sys\n"
        "from local.Item_1_2_0 import Item\n"
        "from fastshard.typed.descriptions.schema_type import make_type\n"
        "made = pickle.loads(bytes.fromhex(sys.argv[1]))\n"
        "print(Item is made, Item.__schema_ref__)\n"
    )
    made = make_type(ITEM, REF)
    done = run(code, folder.path, pickle.dumps(made).hex())
    assert done.stdout.split() == ["True", REF], done.stderr


def test_a_module_is_written_once(folder):
    path = folder.write(ITEM, REF)
    before = path.stat().st_mtime_ns, path.with_suffix(".pyi").stat().st_mtime_ns
    folder.write(ITEM, REF)
    after = path.stat().st_mtime_ns, path.with_suffix(".pyi").stat().st_mtime_ns
    assert before == after
    folder.write(structure(("a", INT)), REF)  # the schema was written again
    assert "a: int" in path.read_text()


def test_owners_have_folders(folder):
    refs = {
        "at://did:plc:abc/science.alt.dataset.schema/3k": "did_plc_abc",
        "@alice.test/Item@1.2.0": "alice_test",
        "atdata://local/schema/Item@1.2.0": "local",
        "at://../../x/y": "__",
    }
    for ref, name in refs.items():
        path = folder.write(ITEM, ref)
        assert path.parent == folder.path / name
        assert folder.path in path.resolve().parents


@pytest.mark.parametrize("version", ["../../x", "1.0.0-rc.1+b", "", "/etc", "a" * 500])
def test_versions_are_not_paths(folder, version):
    path = folder.write(ITEM._replace(version=version), REF)
    assert path.parent == folder.path / "local"
    assert re.fullmatch(r"Item_\w*\.py", path.name)
    assert len(path.name) < 120


def test_long_names_and_names_of_other_scripts(folder):
    for name in ("A" * 200, "Ж" * 200):
        one = folder.write(ITEM._replace(name=name), REF)
        other = folder.write(ITEM._replace(name=name, version="1.2.1"), REF)
        assert one != other
        assert len(os.fsencode(one.name)) < 120


def test_names_that_are_none_are_not_written(folder):
    for each in (
        ITEM._replace(name="x\nimport os"),
        structure(("a: int = print(1)\n    b", INT)),
        structure(("a", ValueType("ndarray", "x]; print(1)"))),
        structure(),
    ):
        with pytest.raises(DescriptionError) as caught:
            folder.write(each, REF)
        assert REF in caught.value.where
    assert not [*folder.path.rglob("Item*")]


def test_a_field_of_the_name_self(folder):
    found = structure(("self", INT), ("_self", STR, True))
    text = folder.write(found, REF).with_suffix(".pyi").read_text()
    compile(text, "stub", "exec")
    assert make_type(found, REF)(self=1).self == 1


@pytest.mark.parametrize("kind", ["str", "array", "ndarray", "object"])
def test_a_stub_imports_the_names_of_its_hints(folder, kind):
    found = structure(("a", ValueType(kind)))
    stub = folder.write(found, REF).with_suffix(".pyi").read_text()
    names = {}
    exec(stub, names)
    hints = names["Item"].__annotations__
    assert ("Any" in names) == ("Any" in str(hints["a"]))


HOSTILE = '"""\nimport os; os.abort()\n\'\'\' \\" \\N{DASH} \x00 \u2028 \ud800 #'


def test_descriptions_and_references_are_not_code(folder):
    found = ITEM._replace(description=HOSTILE)
    path = folder.write(found, REF + HOSTILE)
    code = f"import {folder.import_path(found, REF)} as m; print(ascii(m.Item.__doc__))"
    done = run(code, folder.path)
    assert done.stdout.strip() == ascii(HOSTILE.replace("\ud800", "?")), done.stderr
    stub = path.with_suffix(".pyi").read_text()
    compile(stub, "stub", "exec")
    for text in (path.read_text(), stub):  # 3.13 refuses \ud800 in a docstring
        assert r"\x00 \u2028 ? #'" in text


def test_clear_removes_written_files(folder):
    folder.write(ITEM, REF)
    folder.write(ITEM, "@alice.test/Item@1.2.0")
    folder.write(ITEM._replace(version="2.0.0"), REF)
    own = folder.path / "local" / "own.py"
    own.write_text("# Schema: of mine\n")
    old = folder.path / "local" / "Old_1_0_0.py"
    old.write_text('"""Auto-generated module for a schema of atdata."""\n')
    assert folder.clear() == 4
    names = {str(p.relative_to(folder.path)) for p in folder.path.rglob("*.py*")}
    assert names == {"__init__.py", "local/__init__.py", "local/own.py"}
    assert folder.clear() == 0
    assert StubFolder(folder.path / "nothing").clear() == 0


def test_files_of_others_are_not_replaced(folder):
    path = folder.path_of(ITEM, REF)
    path.parent.mkdir(parents=True)
    (folder.path / "__init__.py").write_text("mine = 1\n")
    path.write_text("mine = 1\n")
    with pytest.raises(FileExistsError, match="not a module of a schema"):
        folder.write(ITEM, REF)
    assert path.read_text() == (folder.path / "__init__.py").read_text() == "mine = 1\n"


def test_folder_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="file"):
        StubFolder(tmp_path / "file" / "stubs").write(ITEM, REF)


def test_default_folder_is_that_of_atdata():
    assert str(StubFolder().path) == os.path.expanduser("~/.atdata/stubs")
    assert str(StubFolder("~/own").path) == os.path.expanduser("~/own")


USER = """\
from typing import assert_type

import numpy as np
from numpy.typing import NDArray

from fastshard import typed
from local.Item_1_2_0 import Item
from local.Shadow_1_0_0 import Shadow

rows = np.zeros(1, [("a", "i4")])
item = Item("a", 1, [[1]], [], {}, np.zeros(2), np.zeros(2), b"", rows, None)
Item("a", 1, [[1]], [], {}, np.zeros(2), np.zeros(2), b"", rows, note="x", last=0.5)
assert_type(item.note, str | None)
assert_type(item.grid, list[list[int]])
assert_type(item.y, NDArray[np.float32] | None)
assert_type(item.packed, bytes)
ds = typed.Dataset[Item]("a.tar")
assert_type(ds[0].pages, int)
shadow = Shadow(str="a", list=[1])
assert_type(shadow.list, list[int])
"""
WRONG = """\
from local.Item_1_2_0 import Item

Item("a", "b", [[1]], [], {}, None, None, b"", None)
Item(text="a")
"""


@slow
@pytest.mark.parametrize("only_modules", [False, True])
def test_stubs_are_checked_by_mypy(folder, tmp_path_factory, only_modules):
    pytest.importorskip("mypy")
    shadow = structure(
        ("str", STR),
        ("list", ValueType("array", items=INT)),
        name="Shadow",
        version="1.0.0",
    )
    folder.write(ITEM, REF)
    folder.write(shadow, "atdata://local/schema/Shadow@1.0.0")
    if only_modules:
        for each in folder.path.glob("*/*.pyi"):
            each.unlink()
    user, wrong = folder.path / "user.py", folder.path / "wrong.py"
    user.write_text(USER if not only_modules else USER.split("item = ")[0])
    wrong.write_text(WRONG)
    cache = tmp_path_factory.getbasetemp() / "mypy_of_stubs"
    done = subprocess.run(
        [
            *(sys.executable, "-m", "mypy", "--strict", "--cache-dir", cache),
            *("--explicit-package-bases", "-m", "user", "-m", "wrong"),
        ],
        cwd=folder.path,
        env=os.environ | {"MYPYPATH": str(folder.path)},
        capture_output=True,
        text=True,
    )
    lines = done.stdout.splitlines()
    found = [re.match(r"(\w+)\.py:(\d+): error", line) for line in lines]
    places = {each.groups() for each in found if each}
    assert places == {("wrong", "3"), ("wrong", "4")}, done.stdout + done.stderr
