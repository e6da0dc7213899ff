"""Run both columns of a migration page, and compare the values that they bind.

The left cells are one program, from the top to the bottom, and so are the right ones.
Each runs in a directory of its own, after the page's Python blocks. After each row the
values of the names that both of its cells bind are compared: numbers, text, bytes,
arrays, tensors, images, and lists, tuples, dicts of them. An order that is random on
either side is not compared: the name ``seen`` holds the same items in any order.
"""

from __future__ import annotations

import ast
import json
import os
import sys
import traceback
import warnings
from collections.abc import Mapping
from typing import Any

OTHER = object()  # a value that is not compared


class SidesError(Exception):
    """The sides of a row differ."""


def plain(value: Any) -> Any:
    """Return a value that compares, or OTHER."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    if isinstance(value, Mapping):
        items = plain(list(value.values()))
        return OTHER if items is OTHER else dict(zip(value, items, strict=True))
    if isinstance(value, list | tuple):
        items = [plain(item) for item in value]
        return OTHER if any(item is OTHER for item in items) else items
    if isinstance(value, set | frozenset):
        return plain(sorted(value))
    if hasattr(value, "tobitmap") and hasattr(value, "convert"):  # an image of Pillow
        return value.size, value.convert("RGB").tobytes()
    if hasattr(value, "tolist") and hasattr(value, "shape"):  # array, tensor, scalar
        return [list(value.shape), value.tolist()] if value.shape else value.tolist()
    return OTHER


def bound_names(code: str) -> set[str]:
    """Return the names that the statements of a cell bind, imports apart."""
    names = set()
    for statement in ast.parse(code).body:
        match statement:
            case ast.Assign(targets=targets):
                parts = [*targets]
            case ast.AnnAssign(target=target) | ast.AugAssign(target=target):
                parts = [target]
            case ast.For(target=target, body=body):
                parts = [target, *body]
            case ast.With(items=items, body=body):
                parts = [*(item.optional_vars for item in items), *body]
            case _:
                parts = []
        for part in parts:
            for node in ast.walk(part) if part is not None else ():
                if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                    names.add(node.id)
    return names


def run_side(page: dict[str, Any], side: str) -> list[dict[str, Any]]:
    """Run a column; return the names bound by each row, as values that compare."""
    os.makedirs(side)
    os.chdir(side)
    names: dict[str, Any] = {"__name__": "__main__"}
    bound: list[dict[str, Any]] = []
    try:
        for line, code in page["setup"]:
            execute(code, page["path"], line, names)
        for row in page["rows"]:
            os.environ.update(row["env"])
            try:
                # One line of the page holds all lines of the cell.
                execute(row[side], f"{page['path']}:{row['line']}", 1, names)
            finally:
                for name in row["env"]:
                    del os.environ[name]
            bound.append({name: plain(names[name]) for name in bound_names(row[side])})
    finally:
        os.chdir("..")
    return bound


def execute(code: str, path: str, line: int, names: dict[str, Any]) -> None:
    text = "\n" * (line - 1) + code
    exec(compile(text, path, "exec", dont_inherit=True), names)


def compare(row: dict[str, Any], left: dict[str, Any], right: dict[str, Any]) -> int:
    """Compare the names bound by a row's sides; return the number of values."""
    if not (row["left"] and row["right"]):
        return 0
    common = left.keys() & right.keys()
    if not common and "import" not in row["left"]:
        raise SidesError("the sides bind no common name")
    compared, lonely = 0, ""
    for name in sorted(common):
        a, b = left[name], right[name]
        if a is OTHER or b is OTHER:
            lonely = lonely or (name if a is not b else "")
            continue
        if name == "seen":
            a, b = sorted(a, key=repr), sorted(b, key=repr)
        if a != b:
            raise SidesError(f"{name} is\n{a!r:.500}\nand\n{b!r:.500}")
        compared += 1
    if lonely and not compared:
        raise SidesError(f"{lonely} compares on one side alone")
    return compared


def main(path: str) -> int:
    with open(path, encoding="utf-8") as file:
        page = json.load(file)
    line = 0
    compared = 0
    try:
        warnings.simplefilter("ignore")  # those of the peers
        left = run_side(page, "left") if page["both"] else []
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", message=".*multi-threaded, use of fork")
        right = run_side(page, "right")
        for row, a, b in zip(page["rows"], left, right, strict=page["both"]):
            line = row["line"]
            compared += compare(row, a, b)
    except SidesError as error:
        print(f"{page['path']}:{line}: {error}", file=sys.stderr)
        return 1
    except Exception:
        traceback.print_exc()
        return 1
    print(compared)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
