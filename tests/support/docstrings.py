"""Docstrings in numpydoc form: what is public, what each lacks, and its examples.

An example of a function or a class prints its imports. One of a method or a property
goes on where the docstring of its package ends: `help(fastshard)`, or
`help(fastshard.columnar)`. All run in a directory with the data written there.
"""

from __future__ import annotations

import ast
import builtins
import doctest
import functools
import importlib
import inspect
import io
import re
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from types import FunctionType
from typing import Any, NamedTuple

from fastshard import errors

FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
SPECIAL = ("__getitem__", "__len__", "__add__")  # methods that a user calls by symbols
SECTION = re.compile(r"^(\w+)\n-{3,}(?:\n|\Z)", re.MULTILINE)


class Thing(NamedTuple):
    """A public module, class, function, method or property.

    Attributes
    ----------
    name : str
        Dotted, as users find it: ``fastshard.Dataset.shuffle``.
    value : object
        The function, or the descriptor in its class.
    owner : type or None
        The class, for methods and properties.
    """

    name: str
    value: Any
    owner: type | None = None

    @property
    def doc(self) -> str:
        """The docstring, for methods also one of a base class."""
        if self.owner is not None:
            attribute = self.name.rpartition(".")[2]
            if not isinstance(self.value, property):
                return inspect.getdoc(getattr(self.owner, attribute)) or ""
        return inspect.getdoc(self.value) or ""

    @property
    def is_method(self) -> bool:
        """True for a method of a class."""
        value = getattr(self.value, "__func__", self.value)
        return self.owner is not None and (
            inspect.isroutine(value) and not inspect.isgetsetdescriptor(value)
        )

    @property
    def face(self) -> str:
        """The package whose docstring begins the example."""
        for face in ("fastshard.columnar", "fastshard.streaming", "fastshard.typed"):
            if self.name.startswith(face):
                return face
        return "fastshard"


def public_things(modules: tuple[str, ...]) -> dict[str, Thing]:
    """Return the public names of modules that can be imported, and their members."""
    things: dict[str, Thing] = {}
    seen: set[int] = set()

    def add(thing: Thing) -> bool:
        if id(thing.value) in seen:
            return False
        seen.add(id(thing.value))
        things[thing.name] = thing
        return True

    for name in modules:
        try:
            module = importlib.import_module(name)
        except ImportError:  # of a library that is not here
            continue
        add(Thing(name, module))
        # What datasets share is documented with `Dataset`.
        names = getattr(module, "__all__", ())
        for each in sorted(names, key=lambda each: each != "Dataset"):
            value = getattr(module, each)
            is_code = isinstance(value, type) or inspect.isroutine(value)
            if not is_code or value.__name__ != each:
                continue  # constants and aliases have no docstring of their own
            if add(Thing(f"{name}.{each}", value)) and isinstance(value, type):
                for member in members_of(f"{name}.{each}", value):
                    add(member)
    return things


def members_of(name: str, owner: type) -> Iterator[Thing]:
    """Yield the public methods and properties of a class, its own and inherited ones.

    Not those that another package defines, nor attributes of instances.
    """
    for attribute in dir(owner):
        if attribute.startswith("_") and attribute not in SPECIAL:
            continue
        home = next(base for base in owner.__mro__ if attribute in vars(base))
        if home.__module__.partition(".")[0] != "fastshard":
            continue
        value = inspect.getattr_static(owner, attribute)
        is_described = isinstance(value, property) or inspect.isgetsetdescriptor(value)
        inner = getattr(value, "__func__", value)
        if not is_described and not inspect.isroutine(inner):
            continue
        if getattr(inner, "__name__", attribute) != attribute:
            continue  # an alias
        if attribute in SPECIAL and not is_documented(value):
            continue
        is_bare = inspect.isgetsetdescriptor(value) and not value.__doc__
        if is_bare and is_listed(owner, attribute):
            continue
        yield Thing(f"{name}.{attribute}", value, owner)


def is_documented(value: Any) -> bool:
    """Return whether a special method has a docstring that is not the interpreter's."""
    usual = getattr(list, value.__name__).__doc__
    return value.__doc__ is not None and value.__doc__ != usual


def is_listed(owner: type, attribute: str) -> bool:
    """Return whether the section Attributes of a class or its base describes one.

    Cython's ``cdef readonly`` attributes can have no docstring.
    """
    sections = (parse(inspect.getdoc(base) or "") for base in owner.__mro__)
    return any(attribute in names_in(s.get("Attributes", "")) for s in sections)


def parse(doc: str) -> dict[str, str]:
    """Return the sections of a docstring by heading; the text before them is ``""``."""
    first, *rest = SECTION.split(doc)
    return {"": first} | dict(zip(rest[::2], rest[1::2], strict=True))


def names_in(section: str) -> list[str]:
    """Return the names that a section Parameters or Raises describes, in order."""
    found: list[str] = []
    for line in section.splitlines():
        if line and not line[0].isspace():
            found += [name.strip() for name in line.partition(" : ")[0].split(",")]
    return found


def defaults_in(section: str) -> dict[str, str]:
    """Return the defaults that a section Parameters states: ``n : int, default 5``."""
    found: dict[str, str] = {}
    for line in section.splitlines():
        names, _, kind = line.partition(" : ")
        stated = kind.rpartition(", default ")[2]
        if stated != kind and line and not line[0].isspace():
            found |= dict.fromkeys(map(str.strip, names.split(",")), stated)
    return found


class Call(NamedTuple):
    """Signature of a function, as far as docstrings state it.

    Attributes
    ----------
    parameters : list of str
        Their names, with stars.
    returns : bool
        Whether it returns a value.
    defaults : dict
        By parameter, those that are literals.
    """

    parameters: list[str]
    returns: bool
    defaults: dict[str, Any]


def call_of(thing: Thing) -> Call | None:
    """Return the signature of a function or a method, or None."""
    value = getattr(thing.value, "__func__", thing.value)
    value = inspect.unwrap(value) if isinstance(value, FunctionType) else value
    if not isinstance(value, FunctionType):
        return stub_call(thing)
    signature = inspect.signature(value)
    names = names_of(signature)
    if thing.owner is not None and not isinstance(thing.value, staticmethod):
        names = names[1:]
    returns = str(signature.return_annotation) not in ("None", "NoReturn")
    return Call(names, returns, defaults_of(signature))


def names_of(signature: inspect.Signature) -> list[str]:
    """Return the names of parameters, with stars."""
    stars = {"VAR_POSITIONAL": "*", "VAR_KEYWORD": "**"}
    return [
        stars.get(each.kind.name, "") + name
        for name, each in signature.parameters.items()
    ]


def defaults_of(signature: inspect.Signature) -> dict[str, Any]:
    return {name: each.default for name, each in signature.parameters.items()}


def stub_call(thing: Thing) -> Call | None:
    """Return the signature of a compiled function as its stub declares it."""
    if thing.owner is None:
        return None
    attribute = thing.name.rpartition(".")[2]
    home = next(base for base in thing.owner.__mro__ if attribute in vars(base))
    path = sys.modules[home.__module__].__file__
    assert path is not None
    stub = Path(path).parent / f"{home.__module__.rpartition('.')[2]}.pyi"
    if not stub.exists():
        return None
    for node in stub_tree(stub).body:
        if isinstance(node, ast.ClassDef) and node.name == home.__name__:
            for each in node.body:
                if isinstance(each, ast.FunctionDef) and each.name == attribute:
                    taken = each.args
                    given = [*taken.posonlyargs, *taken.args][1:]
                    names = [arg.arg for arg in (*given, *taken.kwonlyargs)]
                    assert each.returns is not None
                    values = [*taken.defaults, *taken.kw_defaults]
                    given = [
                        *given[len(given) - len(taken.defaults) :],
                        *taken.kwonlyargs,
                    ]
                    defaults = {
                        arg.arg: ast.literal_eval(value)
                        for arg, value in zip(given, values, strict=True)
                        if value is not None
                    }
                    return Call(names, ast.unparse(each.returns) != "None", defaults)
    return None


@functools.cache
def stub_tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def body_of(value: object) -> list[ast.stmt]:
    """Return the statements of a Python function, without its docstring."""
    function = getattr(value, "__func__", value)
    if not isinstance(function, FunctionType):
        return []
    tree = ast.parse(textwrap.dedent(inspect.getsource(inspect.unwrap(function))))
    definition = tree.body[0]
    if not isinstance(definition, ast.FunctionDef | ast.AsyncFunctionDef):
        return []  # a lambda
    return definition.body[ast.get_docstring(definition) is not None :]


def is_abstract(value: object) -> bool:
    """Return whether a function is left to subclasses."""
    body = [ast.unparse(each) for each in body_of(value)]
    function = isinstance(getattr(value, "__func__", value), FunctionType)
    return function and body in ([], ["raise NotImplementedError"])


def raises_itself(value: object) -> bool:
    """Return whether a Python function has a ``raise`` of an exception in its body."""
    nodes = [node for each in body_of(value) for node in ast.walk(each)]
    raised = any(isinstance(node, ast.Raise) and node.exc for node in nodes)
    return raised and not is_abstract(value)


def complaints(thing: Thing, *, full: bool) -> list[str]:
    """Return the faults of a docstring.

    Parameters
    ----------
    thing : Thing
    full : bool
        Require the sections and an example, too.
    """
    doc = thing.doc
    if not doc:
        return ["no docstring"]
    found = []
    first = doc.splitlines()[0]
    if not re.match(r"[A-Z0-9`\"*]", first) or not re.search(r"[.:?]\)?$", first):
        found.append(f"the first line is not a sentence: {first!r}")
    if (rest := doc.splitlines()[1:]) and rest[0].strip():
        found.append("the first line must be followed by an empty one")
    sections = parse(doc)
    is_called = thing.is_method or inspect.isroutine(thing.value)
    called = described_call(thing, sections)
    is_deprecated = "deprecated" in first
    full = full and not is_deprecated and not inspect.ismodule(thing.value)
    if called is not None:
        described = names_in(sections.get("Parameters", ""))
        needs_names = full and len(called.parameters) > 2
        if (needs_names or described) and described != called.parameters:
            found.append(f"parameters {called.parameters}, described: {described}")
        for name, stated in defaults_in(sections.get("Parameters", "")).items():
            if ast.literal_eval(stated) != called.defaults.get(name):
                found.append(f"the default of {name} is not {stated}")
        if not called.returns and "Returns" in sections:
            found.append("a section Returns, and returns nothing")
        if full and raises_itself(thing.value) and "Raises" not in sections:
            found.append("no section Raises")
    for name in ("Parameters", "Returns", "Yields"):
        if only_names_types(name, sections.get(name, "")):
            found.append(f"the section {name} only names types")
    for name in names_in(sections.get("Raises", "")):
        if not is_exception(name):
            found.append(f"no exception is named {name!r}")
    needs_example = is_called and not is_abstract(thing.value)
    needs_example = needs_example or isinstance(thing.value, type)
    if full and needs_example and ">>> " not in doc:
        found.append("no example")
    return found


def described_call(thing: Thing, sections: dict[str, str]) -> Call | None:
    """Return the signature that a docstring is about, that of a class's constructor."""
    if isinstance(thing.value, type):
        return constructor_call(thing.value) if "Parameters" in sections else None
    if thing.is_method or inspect.isroutine(thing.value):
        return call_of(thing)
    return None


def unknown_parameters(thing: Thing) -> list[str]:
    """Return the parameters that a docstring describes, and that do not exist."""
    sections = parse(thing.doc)
    called = described_call(thing, sections)
    described = names_in(sections.get("Parameters", ""))
    return [] if called is None else sorted({*described} - {*called.parameters})


def constructor_call(kind: type) -> Call | None:
    init = vars(kind).get("__init__")
    if init is None:
        return None
    signature = inspect.signature(inspect.unwrap(init))
    return Call(names_of(signature)[1:], False, defaults_of(signature))


def only_names_types(heading: str, section: str) -> bool:
    """Return whether a section repeats annotations, at most those of two parameters."""
    if heading == "Returns" and " : " in section:
        return False  # it names the items of a tuple
    lines = [line for line in section.splitlines() if line]
    return 0 < len(names_in(section)) <= 2 and not any(map(says_more, lines))


def says_more(line: str) -> bool:
    """Return whether a line describes, or has a shape, choices or several types."""
    return line[0].isspace() or re.search(r"[\[\"{;]|, or ", line) is not None


def is_exception(name: str) -> bool:
    found = getattr(errors, name, None) or getattr(builtins, name, None)
    return isinstance(found, type) and issubclass(found, BaseException)


class ExampleError(Exception):
    """An example gave something else than its docstring prints."""


def run_example(doc: str, name: str, names: dict[str, Any]) -> None:
    """Run the ``>>>`` lines of a docstring with a namespace, which they may change.

    Raises
    ------
    ExampleError
        A line gives something else, or raises.
    ImportError
        A library that a line needs is not installed.
    """
    test = doctest.DocTestParser().get_doctest(doc, names, name, None, None)
    report = io.StringIO()
    runner = Runner(optionflags=FLAGS, verbose=False)
    result = runner.run(test, out=report.write, clear_globs=False)
    names.update(test.globs)
    if runner.missing is not None:
        raise runner.missing
    if result.failed:
        raise ExampleError(report.getvalue())


class Runner(doctest.DocTestRunner):
    """Runner of examples that remembers which library was missing."""

    missing: ImportError | None = None

    def report_unexpected_exception(
        self, out: Any, test: Any, example: Any, exc_info: Any
    ) -> None:
        error = exc_info[1]
        if isinstance(error, ImportError) and missing_library(error):
            self.missing = self.missing or error
        super().report_unexpected_exception(out, test, example, exc_info)


def missing_library(error: BaseException | None) -> str | None:
    """Return the library whose absence an error tells, None for another error."""
    while error is not None:
        name = getattr(error, "name", None)
        if isinstance(error, ModuleNotFoundError) and name is not None:
            return str(name).partition(".")[0]
        error = error.__cause__ or error.__context__
    return None


def begin_example(thing: Thing) -> dict[str, Any]:
    """Write the data of a package's docstring here; return the names to begin with."""
    names: dict[str, Any] = {}
    faces = [thing.face]
    if thing.face == "fastshard.typed":  # with the tars of the other
        faces.insert(0, "fastshard")
    for face in faces:
        module = importlib.import_module(face)
        run_example(inspect.getdoc(module) or "", face, names)
    # Samples need a type: examples of `fastshard.typed` take those of its docstring.
    return names if thing.owner is not None or len(faces) > 1 else {}
