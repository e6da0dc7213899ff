"""Modules and stubs of schema types, for editors and type checkers."""

from __future__ import annotations

import errno
import hashlib
import os
import re
from pathlib import Path

from fastshard._util.files import replace_file
from fastshard.typed.descriptions.local_schema import nested
from fastshard.typed.descriptions.schema_type import dump
from fastshard.typed.descriptions.structure import Structure
from fastshard.typed.kinds.registry import kind_of_type
from fastshard.typed.kinds.value_type import ValueType

__all__ = ["LOCAL_AUTHORITY", "StubFolder"]

LOCAL_AUTHORITY = "local"
MAX_STEM = 100  # bytes of a file's name without its suffix
DEFAULT_FOLDER = "~/.atdata/stubs"
BUILTINS = ("bool", "bytes", "dict", "float", "int", "list", "str")
FACE = '"""Types of schemas."""\n'
# First lines of generated modules, ours and atdata's.
WRITTEN = re.compile(r'# Schema: \S+@|"""Auto-generated ')


class StubFolder:
    """Folder of Python modules with the types of schemas, one for each.

    A module ``{authority}/{Name}_{version}.py`` has a stub ``.pyi`` beside it, for type
    checkers; importing the module gives the type of `make_type`.
    """

    __slots__ = ("path",)

    def __init__(self, path: str | os.PathLike[str] | None = None) -> None:
        self.path = Path(DEFAULT_FOLDER if path is None else path).expanduser()

    def __repr__(self) -> str:
        return f"StubFolder({str(self.path)!r})"

    def write(self, structure: Structure, ref: str) -> Path:
        """Write the module of a schema and its stub unless they exist."""
        structure.check(ref)
        path = self.path_of(structure, ref)
        for folder in (self.path, path.parent):
            folder.mkdir(parents=True, exist_ok=True)
            if not (folder / "__init__.py").exists():
                write_once(folder / "__init__.py", FACE)
        write_once(path, module_text(structure, ref))
        write_once(path.with_suffix(".pyi"), stub_text(structure, ref))
        return path

    def path_of(self, structure: Structure, ref: str) -> Path:
        """Return the path of a schema's module."""
        stem = as_name(f"{structure.name}_{structure.version or ''}")
        return self.path / authority_of(ref) / f"{stem}.py"

    def import_path(self, structure: Structure, ref: str) -> str:
        """Return the import name of a schema's module.

        Requires the folder in ``sys.path``.
        """
        path = self.path_of(structure, ref)
        return f"{path.parent.name}.{path.stem}"

    def clear(self) -> int:
        """Remove all generated modules and their stubs."""
        removed = 0
        for path in sorted(self.path.glob("*/*.py")):
            if path.name == "__init__.py" or not is_written(path):
                continue
            path.with_suffix(".pyi").unlink(missing_ok=True)
            path.unlink(missing_ok=True)
            removed += 1
        for folder in sorted(self.path.glob("*/")):
            face = folder / "__init__.py"
            if [*folder.iterdir()] == [face] and face.read_text() == FACE:
                face.unlink()
                folder.rmdir()
        return removed


def is_written(path: Path) -> bool:
    """Return whether a file is a generated module, ours or atdata's."""
    with open(path, encoding="utf-8", errors="replace") as file:
        return WRITTEN.match(file.read(1000)) is not None


def write_once(path: Path, text: str) -> None:
    """Write a file unless it has the text; never replace a foreign file."""
    data = text.encode()
    try:
        old = path.read_bytes()
    except FileNotFoundError:
        old = None
    if old == data:
        return
    if old is not None and WRITTEN.match(old[:1000].decode(errors="replace")) is None:
        raise FileExistsError(errno.EEXIST, "not a module of a schema", str(path))
    with replace_file(str(path)) as file:
        file.write(data)


def authority_of(ref: str) -> str:
    """Return the folder of a reference: the owner's, or ``local``."""
    for prefix in ("at://", "@"):
        if ref.startswith(prefix):
            return as_name(ref.removeprefix(prefix).partition("/")[0])
    return LOCAL_AUTHORITY


def as_name(text: str) -> str:
    """Return a text as a name of a module: letters, digits and underscores."""
    found = re.sub(r"\W", "_", text)
    if len(found.encode()) > MAX_STEM:
        digest = hashlib.sha256(text.encode()).hexdigest()[:16]
        found = f"{found.encode()[: MAX_STEM - 17].decode(errors='ignore')}_{digest}"
    return found if not found[:1].isdigit() else f"_{found}"


def head(structure: Structure, ref: str) -> str:
    """Return the comment at the top of a module, each line without line breaks."""
    lines = [
        f"Schema: {structure.name}@{structure.version}",
        f"Reference: {ref}",
        "Written by fastshard for editors and type checkers.",
    ]
    return "\n".join(f"# {ascii_line(line)}" for line in lines)


def ascii_line(text: str) -> str:
    """Return a text as one line of printable characters."""
    return ascii(text)[1:-1]


def stub_text(structure: Structure, ref: str) -> str:
    """Return the text of a schema's stub."""
    return "\n".join(
        [
            head(structure, ref),
            "",
            *imports(structure, ref),
            "from fastshard.typed import PackableSample",
            "",
            *class_lines(structure, ref, ""),
            "    def __init__(",
            f"        {first_parameter(structure)},",
            *(f"        {line}," for line in parameters(structure, ref)),
            "    ) -> None: ...",
            "",
            f"__all__ = [{structure.name!r}]",
            "",
        ]
    )


def module_text(structure: Structure, ref: str) -> str:
    """Return the text of a schema's module."""
    content = dump(structure)
    pieces = [content[i : i + 70] for i in range(0, len(content), 70)]
    return "\n".join(
        [
            head(structure, ref),
            "",
            "from __future__ import annotations",
            "",
            "from typing import TYPE_CHECKING",
            "",
            "if TYPE_CHECKING:",
            *(f"    {line}".rstrip() for line in imports(structure, ref)),
            "    from fastshard.typed import PackableSample",
            "",
            *class_lines(structure, ref, "    "),
            "else:",
            "    from fastshard.typed.descriptions.schema_type import load_type",
            "",
            f"    {structure.name} = load_type(",
            *(f"        {piece!a}" for piece in pieces),
            f"        , {ref!a}",
            "    )",
            "",
            f"__all__ = [{structure.name!r}]",
            "",
        ]
    )


def imports(structure: Structure, ref: str) -> list[str]:
    """Return the import lines that the annotations need."""
    hints = " ".join(hints_of(structure, ref).values())
    found = []
    if "builtins." in hints:
        found.append("import builtins")
    if "Any" in re.findall(r"\w+", hints):
        found.append("from typing import Any")
    if "np." in hints:
        found.append("import numpy as np")
    if "NDArray[" in hints:
        found.append("from numpy.typing import NDArray")
    types = [inner for each in structure.fields for inner in nested(each.type)]
    found += sorted({kind_of_type(each).stub_import for each in types} - {""})
    return [*found, ""] if found else found


def class_lines(structure: Structure, ref: str, indent: str) -> list[str]:
    """Return the statement of a class with its annotated fields."""
    text = structure.description or f"Sample of the schema {ref}."
    text = text.encode(errors="replace").decode()  # 3.13 refuses lone surrogates
    hints = hints_of(structure, ref)
    return [
        f"{indent}class {structure.name}(PackableSample):",
        f"{indent}    {text!a}",
        "",
        *(
            f"{indent}    {each.name}: {hints[each.name]}"
            + (" = None" if each.optional else "")
            for each in sorted(structure.fields, key=lambda each: each.optional)
        ),
        "",
    ]


def first_parameter(structure: Structure) -> str:
    """Return a name for the constructor's first parameter that no field has."""
    name = "self"
    while any(each.name == name for each in structure.fields):
        name = f"_{name}"
    return name


def parameters(structure: Structure, ref: str) -> list[str]:
    """Return the parameters of the type's constructor, as `make_type` makes it."""
    fields = structure.fields
    hints = hints_of(structure, ref)
    last = max((i for i, each in enumerate(fields) if not each.optional), default=0)
    positional, defaulted, keywords = [], [], []
    for i, each in enumerate(fields):
        text = f"{each.name}: {hints[each.name]}"
        if not each.optional:
            positional.append(text)
        elif i < last:
            keywords.append(f"{text} = None")
        else:
            defaulted.append(f"{text} = None")
    return [*positional, *defaulted, *(["*"] if keywords else []), *keywords]


def hints_of(structure: Structure, ref: str) -> dict[str, str]:
    """Return the annotation of each field as source text."""
    names = {each.name for each in structure.fields}
    prefix = "builtins." if names.intersection(BUILTINS) else ""
    found = {}
    for each in structure.fields:
        hint = hint_of(each.type, prefix, f"{ref}, field {each.name}")
        found[each.name] = f"{hint} | None" if each.optional else hint
    return found


def hint_of(value: ValueType, prefix: str, where: str) -> str:
    return kind_of_type(value).stub(value, where, prefix, hint_of)
