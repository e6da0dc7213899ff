"""Command ``schemas``: the schemas of an index."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING, Any

from fastshard._util.terminal import escape_name, write_line, write_note
from fastshard.catalog.commands.datasets import short_ref
from fastshard.catalog.commands.index_options import (
    add_index_options,
    index_command,
    open_index,
)
from fastshard.catalog.references import schema_ref

if TYPE_CHECKING:
    from fastshard.catalog.index import Index
    from fastshard.typed.descriptions.structure import Structure

__all__ = ["add_schemas"]

REF_HELP = (
    "Name@version, Name for the latest one, @handle/Name@version, or a whole reference"
)


def cmd_ls(args: argparse.Namespace) -> int:
    """List the schemas of an index."""
    for schema in open_index(args).list_schemas():
        ref = str(schema.get("$ref", ""))
        if args.json:
            write_line(json.dumps(as_json(ref, schema)))
            continue
        names = [str(each.get("name")) for each in fields_of(schema)]
        write_line(escape_name(short_ref(ref)), ", ".join(map(escape_name, names)))
    return 0


def cmd_show(args: argparse.Namespace) -> int:
    """Show the fields of a schema."""
    ref, schema = find_schema(open_index(args), args.ref)
    if args.json:
        write_line(json.dumps(as_json(ref, schema)))
        return 0
    structure = parse(ref, schema)
    write_line(short_ref(ref))
    if structure.description:
        write_line(f"  {structure.description}")
    for field in structure.fields:
        write_line(f"  {escape_name(field.name)}: {field}")
    return 0


def cmd_diff(args: argparse.Namespace) -> int:
    """Show the fields in which two schemas differ."""
    from fastshard.typed.descriptions.diff import diff

    index = open_index(args)
    before, after = (parse(*find_schema(index, ref)) for ref in (args.old, args.new))
    changes = diff(before, after)
    for change in changes:
        if args.json:
            write_line(json.dumps(change._asdict()))
        else:
            note = "" if change.is_compatible else "  (older samples do not fit)"
            write_line(f"{change}{note}")
    if not changes and not args.json:
        write_note("no differences")
    return 0


def find_schema(index: Index, ref: str) -> tuple[str, dict[str, Any]]:
    """Return the reference and the JSON of a schema."""
    if "://" not in ref and not ref.startswith("@"):
        name, _, version = ref.partition("@")
        ref = schema_ref(name, version or latest(index, name))
    return ref, index.get_schema(ref)


def latest(index: Index, name: str) -> str:
    """Return the latest version of a schema."""
    from fastshard.typed.descriptions.versions import latest_version

    refs = (str(schema.get("$ref", "")) for schema in index.list_schemas())
    found = [short_ref(ref).rpartition("@") for ref in refs]
    version = latest_version(each for known, _, each in found if known == name)
    if version is None:
        raise KeyError(f"no schema of the name {name}")
    return version


def parse(ref: str, schema: dict[str, Any]) -> Structure:
    from fastshard.typed.descriptions.json_schema import from_schema

    return from_schema(schema, ref)


def fields_of(schema: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the fields of a possibly damaged schema."""
    fields = schema.get("fields")
    if not isinstance(fields, list):
        return []
    return [each for each in fields if isinstance(each, dict)]


def as_json(ref: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"ref": ref} | {k: v for k, v in schema.items() if k != "$ref"}


def add_schemas(commands: Any) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "schemas",
        help="list, show or compare the schemas of an index",
        usage="fastshard schemas [--index PATH|DSN|URL] COMMAND ...",
        description="List, show or compare the schemas of an index.",
    )
    add_index_options(parser)
    parts = parser.add_subparsers(metavar="COMMAND")
    add_ls(parts)
    add_show(parts)
    add_diff(parts)


def add_ls(parts: Any) -> None:
    parser = parts.add_parser(
        "ls",
        help="list the schemas",
        usage="fastshard schemas ls [OPTION]...",
        description="List the schemas: name, version, and names of fields.",
        examples=[("of a file", "fastshard schemas --index index.db ls")],
    )
    add_index_options(parser, inherited=True)
    parser.add_output(json="print a JSON object for each schema")
    parser.set_defaults(run=index_command(cmd_ls))


def add_show(parts: Any) -> None:
    parser = parts.add_parser(
        "show",
        help="show the fields of a schema",
        usage="fastshard schemas show [OPTION]... REF",
        description="Show the fields of a schema and their types.",
        examples=[("the latest", "fastshard schemas --index index.db show Image")],
    )
    parser.add_argument("ref", metavar="REF", help=REF_HELP)
    add_index_options(parser, inherited=True)
    parser.add_output(json="print a JSON object")
    parser.set_defaults(run=index_command(cmd_show))


def add_diff(parts: Any) -> None:
    parser = parts.add_parser(
        "diff",
        help="show the fields in which two schemas differ",
        usage="fastshard schemas diff [OPTION]... REF REF",
        description="Show the fields in which two schemas differ, and whether samples\n"
        "that were written with the first are read with the second.",
        examples=[
            (
                "two versions",
                "fastshard schemas --index index.db diff Image@1.0.0 Image@1.0.1",
            )
        ],
    )
    parser.add_argument("old", metavar="REF", help=REF_HELP)
    parser.add_argument("new", metavar="REF", help=REF_HELP)
    add_index_options(parser, inherited=True)
    parser.add_output(json="print a JSON object for each field")
    parser.set_defaults(run=index_command(cmd_diff))
