"""Command ``datasets``: the entries of an index."""

from __future__ import annotations

import argparse
import base64
import json
import os
from collections.abc import Iterator
from math import isfinite
from typing import TYPE_CHECKING, Any

from fastshard._util.paths.urls import redact
from fastshard._util.terminal import (
    UsageError,
    escape_name,
    write_line,
    write_lines,
    write_note,
)
from fastshard.catalog.commands.index_options import (
    add_index_options,
    ask_password,
    index_command,
    open_index,
    read_secret,
)
from fastshard.catalog.references import SCHEMA_PREFIXES

if TYPE_CHECKING:
    from fastshard.catalog.index import Index

__all__ = ["add_datasets", "plain", "short_ref"]

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
    entry = find_entry(index, args.name)
    found = entry_json(entry)
    found["labels"] = [
        {"name": name, "version": version or None}
        for name, cid, version in index.list_labels()
        if cid == entry.cid
    ]
    if args.json:
        write_line(json.dumps(found))
        return 0
    write_line(entry.name)
    for name, value in shown(found):
        write_line(f"  {name:9} {value}")
    return 0


def shown(found: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the lines of an entry below its name."""
    for name in ("uri", "cid", "description", "license"):
        if found.get(name):
            yield name, found[name]
    yield "schema", short_ref(found["schema_ref"])
    for label in found["labels"]:
        version = f"@{label['version']}" if label["version"] else ""
        yield "label", escape_name(label["name"] + version)
    for tag in found.get("tags", ()):
        yield "tag", escape_name(tag)
    checksums = checksums_of(found)
    for name, value in (found["metadata"] or {}).items():
        if name != "checksums":
            text = json.dumps(value, ensure_ascii=False)
            yield "metadata", f"{escape_name(name)}: {text}"
    for url in found["data_urls"]:
        yield "url", url
        if url in checksums:
            yield "  sha256", str(checksums[url])


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


def cmd_promote(args: argparse.Namespace) -> int:
    """Publish the record of a dataset, and its schema, in an account's repository."""
    from fastshard.atmosphere.blobs.store import PDSBlobStore
    from fastshard.atmosphere.client import Atmosphere

    index = open_index(args)
    index.get_dataset(args.name)  # raises before the password is requested
    client = Atmosphere.login(args.handle, find_password(args), base_url=args.pds)
    uri = index.with_atmosphere(client).promote_entry(
        args.name,
        name=args.as_name,
        version=args.version,
        description=args.description,
        tags=args.tag,
        license=args.license,
        data_store=PDSBlobStore(client) if args.blobs else None,
        force=args.force,
    )
    write_line(json.dumps({"uri": uri}) if args.json else uri)
    return 0


def find_password(args: argparse.Namespace) -> str:
    """Return the password of the account: of the file, the environment, or typed."""
    if args.password_file is not None:
        return read_secret(args.password_file, "--password-file")
    known = os.environ.get("ATDATA_PASSWORD")
    if known:
        return known
    try:
        return ask_password(args.handle)
    except UsageError as error:
        raise UsageError(f"{error}: give --password-file or ATDATA_PASSWORD") from None


def cmd_rm(args: argparse.Namespace) -> int:
    """Remove the entry of a dataset and its labels, never shards."""
    open_index(args).remove(args.name)
    if args.json:
        write_line(json.dumps({"removed": args.name}))
    else:
        write_note(f"{escape_name(args.name)} removed; its shards stay")
    return 0


def entry_json(entry: Any) -> dict[str, Any]:
    """Return the JSON object of an entry; URLs without queries."""
    found = {
        "name": entry.name,
        "cid": entry.cid,
        "schema_ref": entry.schema_ref,
        "data_urls": [redact(url) for url in entry.data_urls],
        "metadata": plain(entry.metadata),
    }
    if not hasattr(entry, "uri"):
        return found
    more = {name: getattr(entry, name) for name in ("description", "tags", "license")}
    return found | {"uri": entry.uri, "checksums": entry.checksums} | more


def find_entry(index: Index, name: str) -> Any:
    """Return an entry; one of the network names its blobs by ``at://did/blob/cid``."""
    entry: Any = index.get_dataset(name)
    if not hasattr(entry, "uri"):
        return entry
    from fastshard.atmosphere.index import AtmosphereIndexEntry

    found = AtmosphereIndexEntry(entry.uri, entry.record)
    found.cid = entry.cid
    return found


def plain(value: Any) -> Any:
    """Convert metadata to JSON; URLs of shards without queries."""
    if isinstance(value, dict):
        found = {str(key): plain(each) for key, each in value.items()}
        checksums = found.get("checksums")
        if isinstance(checksums, dict):
            found["checksums"] = {redact(url): x for url, x in checksums.items()}
        return found
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    if isinstance(value, bytes):
        return {"$bytes": base64.b64encode(value).decode()}
    if isinstance(value, float) and not isfinite(value):
        return str(value)  # JSON has no NaN
    if value is None or isinstance(value, str | int | float):
        return value
    return str(value)


def checksums_of(found: dict[str, Any]) -> dict[str, Any]:
    """Return the digests by URL that the object of an entry has."""
    metadata = found["metadata"]
    stored = metadata.get("checksums") if isinstance(metadata, dict) else None
    stored = found.get("checksums", stored)
    return stored if isinstance(stored, dict) else {}


def short_ref(ref: str) -> str:
    """Return ``Name@version`` for a schema of the index, other references unchanged."""
    return ref.removeprefix(SCHEMA_PREFIXES[0])


def add_datasets(commands: Any) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "datasets",
        help="list, label, publish or remove the datasets of an index",
        usage="fastshard datasets [--index PATH|DSN|URL] COMMAND ...",
        description="List, label, publish or remove the datasets of an index.",
    )
    add_index_options(parser)
    parts = parser.add_subparsers(metavar="COMMAND")
    add_ls(parts)
    add_show(parts)
    add_label(parts)
    add_promote(parts)
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


def add_promote(parts: Any) -> None:
    parser = parts.add_parser(
        "promote",
        help="publish a dataset in a repository of the AT Protocol",
        usage="fastshard datasets promote [OPTION]... NAME HANDLE",
        description="Publish the record of a dataset, its schema and a label in the\n"
        "repository of an account. Shards stay where they are, at public URLs,\n"
        "unless they are copied (--blobs). Prints the at:// URI.",
        examples=[
            (
                "with the password of ATDATA_PASSWORD",
                "fastshard datasets --index index.db promote images alice.test --blobs",
            )
        ],
    )
    parser.add_argument("name", metavar="NAME", help="name or repo/name")
    parser.add_argument("handle", metavar="HANDLE", help="handle or DID of the account")
    parser.add_argument(
        "--as",
        dest="as_name",
        metavar="NAME",
        help="name of the record (default: that of the dataset)",
    )
    parser.add_argument(
        "--version", metavar="VERSION", help="of the label, such as 1.0.0"
    )
    parser.add_argument(
        "--blobs",
        action="store_true",
        help="copy the shards to the server of the account: at most 50 MB each, 1 GB "
        "in all",
    )
    parser.add_argument(
        "--force", action="store_true", help="copy larger shards and more, too"
    )
    parser.add_argument("--description", metavar="TEXT", help="text of the record")
    parser.add_argument(
        "--tag", metavar="TAG", action="append", help="tag; may be given several times"
    )
    parser.add_argument("--license", metavar="NAME", help="license of the data")
    account = parser.add_argument_group("account")
    account.add_argument(
        "--pds",
        metavar="URL",
        help="server of the account (default: ATDATA_PDS_URL, or https://bsky.social)",
    )
    account.add_argument(
        "--password-file",
        metavar="FILE",
        help="file with an app password of the account (default: ATDATA_PASSWORD, or "
        "ask for it)",
    )
    add_index_options(parser, inherited=True)
    parser.add_output(json="print a JSON object")
    parser.set_defaults(run=index_command(cmd_promote))


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
