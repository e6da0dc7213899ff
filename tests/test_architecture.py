"""The structure of the package: floors, no circles, sizes, names that occur once."""

import ast
import functools
import re
from collections import Counter, defaultdict
from graphlib import CycleError, TopologicalSorter

import pytest

from support.paths import TESTS, TREE

ROOT = TREE / "fastshard"  # the sources, not the installed files
SOURCES = sorted(p for p in ROOT.rglob("*") if p.suffix in (".py", ".pyx", ".pxd"))
STUBS = sorted(ROOT.rglob("*.pyi"))
COMPILED = sorted(p for p in ROOT.rglob("*") if p.suffix in (".pyx", ".pxd", ".h"))
pytestmark = pytest.mark.skipif(not SOURCES, reason="no source tree")

# From the ground up. A folder may import those of lower floors; the modules at the
# top of the package, and faces (`__init__`), are above all.
FLOORS = [
    {"errors", "_util"},
    {"_core"},
    {"codecs"},
    {"remote"},
    {"index"},
    {"where"},
    {"formats"},
    {"loader"},
    {"dataset"},
    {"columnar", "streaming", "typed", "adapters"},
    {"atmosphere"},
    {"catalog"},
    {"cli", "conversion"},
]
FLOOR_OF = {folder: i for i, folders in enumerate(FLOORS) for folder in folders}
ABOVE_ALL = {"", "__main__"}
# Tables of lazy names, and modules of such names: faces under another name than
# `__init__`. They name modules of any floor.
FACES = {"typed.homes", "typed.atmosphere"}
MOST_FILES = 15  # in a folder, stubs and declarations not counted
MOST_FLOORS = 13  # one for each package that others stand on
FACE_LINES = 60  # without the docstring, which `help` shows
# Without docstrings; above, the module's says why it is one extension module.
FILE_LINES = 1000
LINE_COLUMNS = 88  # of compiled sources; `ruff` checks those of Python files
# Classes with one subclass that are not halves of it.
SINGLE_SUBCLASS = {
    "QueryError": "raised by itself",
    "IdentityError": "raised by itself",
    "ShardNotFoundError": "raised by itself",
    "RemoteNotFoundError": "raised by itself",
    "SampleNotFoundError": "raised by itself",
    "ArrayKind": "arrays of plain dtypes; structured dtypes store their names, too",
    "SampleBase": "compiled look-up; its subclass has the policy of decoding",
    "PackedSamples": "compiled look-up; its subclass is a Sequence",
    "FieldMap": "compiled look-up; its subclass is public",
    "JointWriter": "users' formats of one file derive from it",
    "XSVWriter": "used by itself",
    "RemoteOptions": "used by itself for shards and indexes",
    "ShardWriteResult": "used by itself for files and objects",
    "JointReader": "formats of the user's own derive from it",
    "ReaderBase": "compiled indexing; its subclass has the policy of files",
    **dict.fromkeys(
        ("CSVReader", "JSONReader", "MDSReader", "TSVReader"),
        "used by itself; a subclass reads the cache of mosaicml-streaming",
    ),
}

# Public names of libraries whose calls a package of ours has.
SAME_NAMES = {
    "Dataset": {"dataset.dataset", "typed.dataset"},
    "Field": {"columnar.layout.schema", "typed.fields"},
}

# Private names of other libraries, and of tuples, that tests read.
FOREIGN_PRIVATE = {
    "_asdict": "namedtuple",
    "_projection_map": "Ray, of its data sources",
    "_readers": "mosaicml-streaming, of its module of formats",
    "_replace": "namedtuple",
}


def module_of(path):
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_of(path) for path in SOURCES}


def imported_by(path):
    """Names of our modules that a file imports, wherever in it, and however."""
    text = path.read_text()
    if path.suffix in (".pyx", ".pxd"):
        pattern = r"^\s*from fastshard(\S*) c?import (?:\(([^)]*)\)|([^(\n]+))"
        for base, several, one in re.findall(pattern, text, re.M):
            for name in re.findall(r"(\w+)(?: as \w+)?", several or one):
                yield nearest(f"{base}.{name}")
        for names in re.findall(r"^\s*c?import (fastshard\.[^#\n]*)", text, re.M):
            for name in re.findall(r"fastshard([.\w]+)", names):
                yield nearest(name)
        return
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(
            "fastshard"
        ):
            for alias in node.names:
                yield nearest(f"{node.module.removeprefix('fastshard')}.{alias.name}")
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.startswith("fastshard"):
                    yield nearest(alias.name.removeprefix("fastshard"))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            name = node.value.removeprefix("fastshard.")
            if name != node.value and name in MODULES:  # for import_module
                yield name


@pytest.mark.parametrize(
    "line",
    [
        "from fastshard._core.streaming cimport plan as rows",
        "from fastshard._core.streaming.plan cimport (\n    MdsRows, RowPlan,\n)",
        "import fastshard._core.streaming.plan",
        "    import fastshard._core.streaming.plan  # in a function",
        "import fastshard._core.streaming.plan as rows",
    ],
)
def test_imports_of_compiled_sources_are_seen(tmp_path, line):
    before = "from fastshard._core.buffers cimport bytes_of\nimport json\n"
    path = tmp_path / "module.pyx"
    path.write_text(f"{before}{line}\nfrom fastshard.errors import FormatError\n")
    assert set(imported_by(path)) == {
        "_core.buffers",
        "_core.streaming.plan",
        "errors",
    }


def nearest(name):
    """Return the module that a dotted name is, or is in."""
    name = name.lstrip(".")
    while name and name not in MODULES:
        name = name.rpartition(".")[0]
    return name


def is_face(path):
    return path.stem == "__init__"


@functools.cache
def import_graph():
    """Return the modules that each module imports."""
    graph = defaultdict(set)
    for path in [*SOURCES, *STUBS]:
        module = module_of(path)
        if module not in ABOVE_ALL | FACES and not (
            is_face(path) and "." not in module
        ):
            graph[module] |= set(imported_by(path)) - {module}
    return graph


def folder_of(module):
    return module.partition(".")[0]


def test_there_are_few_floors():
    folders = {p.name for p in ROOT.iterdir() if any(p.glob("*.py"))} | {"errors"}
    assert folders == set(FLOOR_OF)
    assert len(FLOORS) <= MOST_FLOORS


def test_imports_point_down():
    imports = [(a, b) for a, others in import_graph().items() for b in others]
    assert len(imports) > len(MODULES)
    faces = [each for each in imports if each[1] in ABOVE_ALL]
    assert not faces, "modules that import the face of the package"
    folders = [(each, *map(folder_of, each)) for each in imports]
    upwards = [
        each
        for each, here, there in folders
        if there != here and FLOOR_OF[there] > FLOOR_OF[here]
    ]
    assert not upwards, "modules that import one above them"


def test_no_circle_among_modules():
    try:
        TopologicalSorter(import_graph()).prepare()
    except CycleError as error:
        pytest.fail("a circle of imports: " + " <- ".join(error.args[1]))


def find_circle(node_of, graph):
    """Return a circle among the nodes of modules, or None; None is not a node."""
    nodes = defaultdict(set)
    for module, others in graph.items():
        here = node_of(module)
        nodes[here] |= {node_of(each) for each in others} - {here, None}
    nodes.pop(None, None)
    nodes["errors"].discard("_util")  # errors escape text, helpers raise errors
    try:
        TopologicalSorter(nodes).prepare()
    except CycleError as error:
        return " <- ".join(error.args[1])
    return None


def test_no_circle_among_folders():
    assert find_circle(folder_of, import_graph()) is None


@pytest.mark.parametrize("package", sorted({folder_of(each) for each in MODULES}))
def test_no_circle_among_folders_within_a_folder(package):
    """A module of the package itself is a node as a folder is."""

    def node_of(module):
        inside = folder_of(module) == package
        return ".".join(module.split(".")[:2]) if inside else None

    assert find_circle(node_of, import_graph()) is None


def test_a_circle_is_found():
    graph = {"a.x": {"a.b.y"}, "a.b.y": {"a.c.z"}, "a.c.z": {"a.x"}}
    assert find_circle(lambda module: module, graph) is not None
    assert find_circle(folder_of, graph) is None


@pytest.mark.parametrize(
    "root", [ROOT, TESTS, TREE / "bench"], ids=["fastshard", "tests", "bench"]
)
def test_folders_are_of_a_size_to_read(root):
    kinds = (".py", ".pyx", ".h", ".c", ".sh")
    counts = Counter(p.parent for p in root.rglob("*") if p.suffix in kinds)
    large = {str(folder): n for folder, n in counts.items() if n > MOST_FILES}
    assert not large, f"folders of more than {MOST_FILES} files: {large}"


def classes():
    """Yield the module, the name and the names of the bases of each class."""
    for path in SOURCES:
        if path.suffix == ".pxd":
            continue
        pattern = r"^(?:cdef |@\w+ )?class (\w+)(?:\[[^\]]*\])?(?:\(([^)]*)\))?:"
        for name, bases in re.findall(pattern, path.read_text(), re.M):
            bases = re.sub(r"\[.*\]|metaclass=\w+|\w+\.", "", bases)
            yield module_of(path), name, re.findall(r"\w+", bases)


def test_a_class_name_occurs_once():
    modules = defaultdict(list)
    for module, name, _ in classes():
        modules[name].append(module)
    twice = {name: {*homes} for name, homes in modules.items() if len(homes) > 1}
    assert not {n: m for n, m in twice.items() if m != SAME_NAMES.get(n)}


def test_a_base_class_has_two_subclasses():
    subclasses = defaultdict(list)
    names = set()
    for _, name, bases in classes():
        names.add(name)
        for base in bases:
            subclasses[base].append(name)
    single = {b: s for b, s in subclasses.items() if b in names and len(s) == 1}
    # A library has a base of the same name as a class of ours.
    single = {b: s for b, s in single.items() if s != [b] and b != "Mapping"}
    assert single.keys() == SINGLE_SUBCLASS.keys(), single


def test_long_files_say_why():
    for path in SOURCES:
        text = path.read_text()
        code = re.sub(r'""".*?"""', "", text, flags=re.DOTALL)
        if code.count("\n") > FILE_LINES:
            docstring = text.split('"""')[1]
            assert "extension module" in " ".join(docstring.split()), path


def test_lines_of_compiled_sources_are_of_a_width_to_read():
    assert COMPILED
    wide = [
        f"{path.relative_to(TREE)}:{number}"
        for path in COMPILED
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1)
        if len(line) > LINE_COLUMNS
    ]
    assert not wide, f"lines of more than {LINE_COLUMNS} columns: {wide}"


@pytest.mark.parametrize("path", [p for p in SOURCES if is_face(p)], ids=module_of)
def test_faces_are_short(path):
    text = path.read_text()
    code = text.replace(ast.get_docstring(ast.parse(text), clean=False) or "", "")
    assert len(code.splitlines()) <= FACE_LINES


def test_only_one_extension_uses_the_c_api_of_numpy():
    users = [p.name for p in SOURCES if "cimport numpy" in p.read_text()]
    assert users == ["npy.pyx"]


def test_processes_are_started_in_one_place():
    """There they end with their parent: see `tests/conversion/test_workers.py`."""
    calls = r"subprocess|ProcessPoolExecutor|\.Process\(|\.Pool\(|os\.fork|posix_spawn"
    starters = [
        module_of(path) for path in SOURCES if re.search(calls, path.read_text())
    ]
    assert starters == ["conversion.workers"]


def code_of(path):
    """Return a source without its docstrings."""
    return re.sub(r'""".*?"""', "", path.read_text(), flags=re.DOTALL)


def test_hooks_of_forks_are_registered_in_one_place():
    users = [module_of(p) for p in SOURCES if "register_at_fork" in code_of(p)]
    assert users == ["_util.processes.forks"]


def test_json_is_parsed_in_one_place():
    """There it has bounds, and errors that name the file and the byte."""
    calls = r"\bjson\.loads?\(|JSONDecoder\(|import loads|\borjson\b"
    parsers = [module_of(p) for p in SOURCES if re.search(calls, code_of(p))]
    assert parsers == ["_util.json"]


def test_images_are_opened_in_one_place():
    """There the readers are listed that may see the bytes: see `tests/codecs`."""
    calls = r"(?i)\b(?:image|pil|pillow(?:\(\))?)\.open\("
    openers = [module_of(p) for p in SOURCES if re.search(calls, code_of(p))]
    assert openers == ["codecs.images"]


def private_names():
    """Return the private names that sources give to attributes and functions."""
    given = r"(?m)(?:\bself\.|\bc?p?def (?:[\w.]+ )?|^)(_[a-z]\w*[a-z0-9])\b"
    return {name for path in SOURCES for name in re.findall(given, path.read_text())}


def names_of_others(text):
    """Return the private names that a test reads of others, also in its scripts."""
    patterns = (
        r"(?<!\bself)(?<!\bcls)\.(_[a-z]\w*)",
        r"""attr\([^)]*["'](_[a-z]\w*)["']""",
        r"(?m)from fastshard\S* import .*?\b(_[a-z]\w*)",
    )
    return {name for pattern in patterns for name in re.findall(pattern, text)}


def test_private_names_in_tests_are_seen():
    text = """
    from fastshard.remote import _a, other
    monkeypatch.setattr(
        shard, "_b", None)
    script = "ds._c.close()"
    shards[0]._d, self._e, cls._f, ds.g_h
    monkeypatch.setattr("fastshard.index._i", None)
    """
    assert names_of_others(text) == {"_a", "_b", "_c", "_d", "_i"}


def test_tests_reach_private_names_in_one_place():
    """There a refactoring changes them; `upstream` has those of atdata's modules."""
    private = private_names() - FOREIGN_PRIVATE.keys()
    assert len(private) > 1000
    exempt = {TESTS / "support" / "inside", TESTS / "upstream"}
    reached = {
        f"{path.relative_to(TESTS)}: {name}"
        for path in TESTS.rglob("*.py")
        if exempt.isdisjoint(path.parents) and path.name != "test_architecture.py"
        for name in names_of_others(path.read_text()) & private
    }
    assert not reached, "go by `tests/support/inside`"


def test_only_headers_know_of_operating_systems():
    for path in SOURCES:
        if path.suffix in (".pyx", ".pxd"):
            assert "#if" not in path.read_text(), path
            assert "UNAME_SYSNAME" not in path.read_text(), path


@pytest.mark.skipif(not (TREE / "docs").is_dir(), reason="no source tree")
def test_the_picture_shows_all_floors():
    text = (TREE / "docs" / "floors.svg").read_text()
    names = re.findall(r'<text class="name" x="\d+" y="(\d+)">([^<]*)<', text)
    floors = defaultdict(set)
    for y, folders in names:
        floors[-int(y)] |= set(folders.split(", "))
    shown = [floors[y] for y in sorted(floors)]
    assert shown == [*FLOORS, {"fastshard"}]


@pytest.mark.skipif(not (TREE / "docs").is_dir(), reason="no source tree")
def test_the_map_names_files_that_there_are():
    text = (TREE / "docs" / "architecture.md").read_text()
    paths = re.findall(r"`((?:fastshard|tests|bench)/[\w./]*)`", text)
    assert len(paths) > 10
    assert [path for path in paths if not (TREE / path).exists()] == []
