"""Command ``datasets``: the entries of an index."""

from __future__ import annotations

import argparse
import base64
import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from fastshard._util.terminal import (
    escape_name,
    write_line,
    write_lines,
    write_note,
)
from fastshard.remote.urls import redact
from fastshard.typed.commands.index_options import (
    add_index_options,
    index_command,
    open_index,
)

if TYPE_CHECKING:
    from fastshard.typed.index.index import IndexEntry

__all__ = ["add_datasets", "plain", "short_ref"]

SCHEMAS = "atdata://local/schema/"
NAME_HELP = "name, repo/name, @handle/name, @handle/name@version or at:// URI"


def cmd_ls(args: argparse.Namespace) -> int:
    """List the datasets of an index."""
    write_lines(entry_lines(args))
    return 0


def entry_lines(args: argparse.Namespace) -> Iterator[str]:
    """Yield a line for each entry."""
    for entry in open_index(args).datasets:
        if args.json:
            yield json.dumps(entry_json(entry))
            continue
        count = len(entry.data_urls)
        shards = f"{count:,} URL{'' if count == 1 else 's'}"
        yield "\t".join(
            map(escape_name, (entry.name, short_ref(entry.schema_ref), shards))
        )


def cmd_show(args: argparse.Namespace) -> int:
    """Show an entry: its CID, schema, labels, metadata and URLs."""
    index = open_index(args)
    entry = index.get_dataset(args.name)
    cid = entry.cid
    labels: list[dict[str, Any]] = [
        {"name": name, "version": version or None}
        for name, found, version in index.list_labels()
        if found == cid
    ]
    found = entry_json(entry)
    if args.json:
        write_line(json.dumps({**found, "labels": labels}))
        return 0
    checksums = checksums_of(found["metadata"])
    metadata = {k: v for k, v in (found["metadata"] or {}).items() if k != "checksums"}
    write_line(entry.name)
    write_line(f"  cid       {cid}")
    write_line(f"  schema    {short_ref(entry.schema_ref)}")
    for label in labels:
        version = f"@{label['version']}" if label["version"] else ""
        write_line(f"  label     {escape_name(label['name'] + version)}")
    for name, value in metadata.items():
        write_line(f"  metadata  {escape_name(name)}: {json.dumps(value)}")
    for url in found["data_urls"]:
        digest = checksums.get(url)
        write_line(f"  url       {url}")
        if digest is not None:
            write_line(f"    sha256  {digest}")
    return 0


def cmd_label(args: argparse.Namespace) -> int:
    """Name the entry of a dataset by a label with a version."""
    index = open_index(args)
    entry = index.get_dataset(args.name)
    label = args.label or args.name
    record = getattr(entry, "uri", None)  # of the network
    index.label(
        label, record or entry.cid, version=args.version, description=args.description
    )
    if args.json:
        found = {"name": label, "version": args.version, "cid": entry.cid}
        write_line(json.dumps(found))
    else:
        write_note(f"{escape_name(label)}@{args.version}  {entry.cid}")
    return 0


def cmd_rm(args: argparse.Namespace) -> int:
    """Remove the entry of a dataset and its labels, never shards."""
    open_index(args).remove(args.name)
    if args.json:
        write_line(json.dumps({"removed": args.name}))
    else:
        write_note(f"{escape_name(args.name)} removed; its shards stay")
    return 0


def entry_json(entry: IndexEntry) -> dict[str, Any]:
    """Return the JSON object of an entry; URLs without queries."""
    return {
        "name": entry.name,
        "cid": entry.cid,
        "schema_ref": entry.schema_ref,
        "data_urls": [redact(url) for url in entry.data_urls],
        "metadata": plain(entry.metadata),
    }


def plain(value: Any) -> Any:
    """Return a value of metadata as JSON can hold it; URLs without queries."""
    if isinstance(value, dict):
        return {redact(str(key)): plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    if isinstance(value, bytes):
        return {"$bytes": base64.b64encode(value).decode()}
    if value is None or isinstance(value, str | int | float):
        return value
    return str(value)


def checksums_of(metadata: Any) -> dict[str, str]:
    found = metadata.get("checksums") if isinstance(metadata, dict) else None
    return found if isinstance(found, dict) else {}


def short_ref(ref: str) -> str:
    """Return ``Name@version`` for a schema of the index, other references as is."""
    return ref.removeprefix(SCHEMAS)


def add_datasets(commands: Any) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "datasets",
        help="list, show, label or remove the datasets of an index",
        usage="fastshard datasets [--index PATH|DSN|URL] COMMAND ...",
        description="List, show, label or remove the datasets of an index.",
    )
    add_index_options(parser)
    parts = parser.add_subparsers(metavar="COMMAND")
    add_ls(parts)
    add_show(parts)
    add_label(parts)
    add_rm(parts)


def add_ls(parts: Any) -> None:
    parser = parts.add_parser(
        "ls",
        help="list the datasets",
        usage="fastshard datasets ls [OPTION]...",
        description="List the datasets: name, schema, and number of URLs.",
        examples=[("of a file", "fastshard datasets --index index.db ls")],
    )
    add_index_options(parser, inherited=True)
    parser.add_output(json="print a JSON object for each dataset")
    parser.set_defaults(run=index_command(cmd_ls))


def add_show(parts: Any) -> None:
    parser = parts.add_parser(
        "show",
        help="show a dataset: schema, labels, metadata, URLs and checksums",
        usage="fastshard datasets show [OPTION]... NAME",
        description="Show the CID, schema, labels, metadata, URLs and checksums of a\n"
        "dataset.",
        examples=[("of a file", "fastshard datasets --index index.db show images")],
    )
    parser.add_argument("name", metavar="NAME", help=NAME_HELP)
    add_index_options(parser, inherited=True)
    parser.add_output(json="print a JSON object")
    parser.set_defaults(run=index_command(cmd_show))


def add_label(parts: Any) -> None:
    parser = parts.add_parser(
        "label",
        help="give a dataset a version",
        usage="fastshard datasets label [OPTION]... NAME VERSION",
        description="Write a label: a name and a version for the entry that NAME has\n"
        "now.",
        examples=[
            ("a version", "fastshard datasets --index index.db label images 1.0.0"),
            (
                "another name",
                "fastshard datasets --index index.db label images 1.0.0 --label best",
            ),
        ],
    )
    parser.add_argument("name", metavar="NAME", help="name or repo/name")
    parser.add_argument("version", metavar="VERSION", help="such as 1.0.0")
    parser.add_argument(
        "--label", metavar="LABEL", help="name of the label (default: NAME)"
    )
    parser.add_argument("--description", metavar="TEXT", help="text of the label")
    add_index_options(parser, inherited=True)
    parser.add_output(json="print a JSON object")
    parser.set_defaults(run=index_command(cmd_label))


def add_rm(parts: Any) -> None:
    parser = parts.add_parser(
        "rm",
        help="remove a dataset from the index; its shards stay",
        usage="fastshard datasets rm [OPTION]... NAME",
        description="Remove the entry of a dataset and its labels. Shards stay.",
        examples=[("of a file", "fastshard datasets --index index.db rm images")],
    )
    parser.add_argument("name", metavar="NAME", help="name or repo/name")
    add_index_options(parser, inherited=True)
    parser.add_output(json="print a JSON object")
    parser.set_defaults(run=index_command(cmd_rm))
