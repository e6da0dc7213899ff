"""Commands ``query`` and ``compact``, and output lines of ``ls`` and ``stat``."""

from __future__ import annotations

import argparse
import csv
import io
import json
import math
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from fastshard._util.terminal import (
    UsageError,
    escape_line,
    escape_name,
    escape_unencodable,
    write_line,
    write_note,
    write_output,
)
from fastshard.columnar.layout.schema import INDEX_NAME, is_columnar, read_fields
from fastshard.errors import QueryError, QueryTimeoutError

__all__ = [
    "add_compact",
    "add_query",
    "list_lines",
    "stat_lines",
]

ROOT_HELP = "directory of a columnar dataset, which has an index.sqlite"
LEFTOVERS = {
    "replaced": "replaced by compact, kept for open readers",
    "uncommitted": "never committed, removed by the next writer",
}
TIMEOUT = 30.0  # seconds, of a query


def check_root(root: str) -> str:
    """Return `root`; raise UsageError if it is not a columnar dataset."""
    if not is_columnar(root):
        raise UsageError(f"{root} is not a columnar dataset: it has no index.sqlite")
    return root


def stat_lines(figures: Mapping[str, Any]) -> Iterator[str]:
    """Yield the output lines of ``stat``; `figures` is the result of `stats.stat`."""
    schema = figures.get("schema", {"fields": {}, "columns": {}})
    paths = {name: column["path"] for name, column in schema["columns"].items()}
    columns = ", ".join(
        " ".join(map(escape_name, filter(None, (name, kind, paths.get(name)))))
        for name, kind in figures["columns"].items()
    )
    yield figures["dataset"]
    yield f"  bytes    {figures['bytes']:,}, index {figures['index_bytes']:,}"
    yield f"  samples  {figures['samples']:,}"
    yield f"  columns  {columns or 'none'}"
    for name, field in figures["fields"].items():
        nbytes, missing = f"{field['bytes']:,} bytes", field["missing"]
        samples = count_of(field["samples"], "sample")
        shards = count_of(field["shards"], "shard")
        yield f"  {escape_name(name)}: {samples} in {shards} of {nbytes}"
        yield from _schema_lines(schema["fields"].get(name))
        if missing:
            numbers = ", ".join(map(str, missing[:8]))
            yield f"    missing shards: {len(missing):,}, as {numbers}"
        if field["packed"]:
            packs = (
                f" in {count_of(field['packs'], 'pack')}" if "packs" in field else ""
            )
            yield f"    packed: {count_of(field['packed'], 'sample')}{packs}"
        for state, reason in LEFTOVERS.items():
            if field[state]:
                nbytes = f"{field[state + '_bytes']:,} bytes"
                yield f"    {count_of(field[state], 'file')} of {nbytes}: {reason}"
        if "live_bytes" in field:
            members = count_of(field["dead_members"], "member")
            dead = f"{field['dead_bytes']:,} in {members}"
            yield f"    live {field['live_bytes']:,} bytes, dead {dead}"
        for arrays in field.get("arrays", ()):
            dtype, shape = escape_name(arrays["dtype"]), tuple(arrays["shape"])
            yield f"    {arrays['count']:>12,}  {dtype} {shape}"


def _schema_lines(field: Mapping[str, Any] | None) -> Iterator[str]:
    """Yield the line of a field's dtype and shape, if known."""
    if field is None or field.get("dtype", "") is None:
        return
    if "error" in field:
        yield f"    {escape_line(field['error'])}"
        return
    shape = field["shape"]
    if shape == "ragged" and field["max_shape"] is not None:
        shape = f"ragged, up to {tuple(field['max_shape'])}"
    elif shape != "ragged":
        shape = tuple(shape)
    packed = ", packed" if field["packed"] else ""
    yield f"    {escape_name(field['dtype'])} {shape}{packed}"


def count_of(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'s' * (count != 1)}"


def list_lines(root: str, long: bool, as_json: bool) -> Iterator[str]:
    """Yield a line of ``ls`` for each sample."""
    from fastshard.columnar.layout.connection import (
        INDEX_ERRORS,
        open_reader,
        translate_error,
    )

    conn = open_reader(os.path.join(root, INDEX_NAME))
    try:
        names = [field.name for field in read_fields(conn, conn.path)]
        conn.text_factory = lambda data: data.decode("utf-8", "surrogateescape")
        columns = "".join(f", {name}_shard" for name in names)
        for sample_id, *at in conn.execute(
            f"SELECT id{columns} FROM samples ORDER BY rowid"
        ):
            shards = zip(names, at, strict=True)
            stored = {name: shard for name, shard in shards if shard is not None}
            if as_json:
                line = {"id": to_json(sample_id), "shards": row_to_json(stored)}
                yield json.dumps(line)
            else:
                fields = f"  {' '.join(map(escape_name, stored))}" if long else ""
                yield escape_name(str(sample_id)) + fields
    except INDEX_ERRORS as error:
        raise translate_error(error, conn.path) from error
    finally:
        conn.close()


def cmd_compact(args: argparse.Namespace) -> int:
    """Rewrite the shards of a columnar dataset without unreferenced members."""
    from fastshard.columnar.compaction import compact

    result = compact(check_root(args.root), pack=args.pack)
    if args.json:
        write_line(json.dumps(result._asdict()))
        return 0
    freed = result.bytes_before - result.bytes_after
    shards = f"shards: {result.shards_before:,}, now {result.shards_after:,}"
    write_note(f"{freed:,} bytes freed of {result.bytes_before:,}; {shards}")
    return 0


def add_compact(commands: Any) -> None:
    parser = commands.add_parser(
        "compact",
        help="free the space of replaced samples in a columnar dataset",
        usage="fastshard compact [OPTION]... ROOT",
        description="Rewrite the shards of a columnar dataset without the members\n"
        "that no sample refers to any more. Open readers go on reading.",
        examples=[
            ("free the space", "fastshard compact columns"),
            ("store small arrays as rows of packs", "fastshard compact --pack columns"),
        ],
    )
    parser.add_argument("root", metavar="ROOT", help=ROOT_HELP)
    parser.add_argument(
        "--pack",
        action=argparse.BooleanOptionalAction,
        help="store small arrays as rows of packs, or each as a member of its own "
        "(default: as they are)",
    )
    parser.add_output(
        json="print a JSON object with bytes and shards, before and after"
    )
    parser.set_defaults(run=cmd_compact)


def cmd_query(args: argparse.Namespace) -> int:
    """Find samples of a columnar dataset by an SQL expression over their metadata."""
    from fastshard.columnar.layout.connection import open_reader
    from fastshard.columnar.read.query import query, split

    root = check_root(args.root)
    conn = open_reader(os.path.join(root, INDEX_NAME))
    try:
        rows = query(
            conn,
            args.where,
            columns=split(args.columns),
            limit=args.limit,
            timeout=args.timeout,
        )
    except QueryTimeoutError:
        raise
    except QueryError as error:
        raise UsageError(str(error)) from error
    finally:
        conn.close()
    print_rows(rows, split(args.columns), args)
    return 0


def print_rows(
    rows: list[dict[str, Any]], columns: list[str], args: argparse.Namespace
) -> None:
    """Print rows as CSV, as a JSON object a line, or as columns."""
    if args.csv:
        header = list(dict.fromkeys(columns))  # a row holds a repeated column once
        write_csv([header, *(row_to_json(row).values() for row in rows)])
        return
    for row in rows:
        values = row_to_json(row)
        if args.json:
            write_line(json.dumps(values))
        else:
            texts = ("" if value is None else str(value) for value in values.values())
            write_line(*map(escape_name, texts))


def write_csv(rows: Iterable[Iterable[Any]]) -> None:
    """Write CSV to stdout, with control characters escaped on a terminal."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\r\n")  # so that it quotes \r and \n
    is_terminal = sys.stdout is not None and sys.stdout.isatty()
    for row in rows:
        if is_terminal:
            row = [escape_line(v) if isinstance(v, str) else v for v in row]
        writer.writerow(row)
        line = text.getvalue().removesuffix("\r\n") + "\n"
        write_output(escape_unencodable(line, getattr(sys.stdout, "encoding", None)))
        text.seek(0)
        text.truncate()


def row_to_json(values: dict[str, Any]) -> dict[str, Any]:
    return {name: to_json(value) for name, value in values.items()}


def to_json(value: Any) -> Any:
    """Return an SQL value as JSON and CSV can represent it: bytes as hex digits."""
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


def parse_count(text: str) -> int:
    """Parse an int of at least 0."""
    try:
        count = int(text)
    except ValueError:
        count = -1
    if count < 0:
        raise argparse.ArgumentTypeError(f"must be an int of at least 0, got {text!r}")
    return count


def parse_seconds(text: str) -> float:
    """Parse a number of seconds, of at least 0."""
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not seconds >= 0:
        raise argparse.ArgumentTypeError(
            f"must be a number of seconds of at least 0, got {text!r}"
        )
    return seconds


def add_query(commands: Any) -> None:
    parser = commands.add_parser(
        "query",
        help="find samples of a columnar dataset by their metadata, with SQL",
        usage="fastshard query [OPTION]... ROOT [SQL]",
        description="Print the samples of a columnar dataset for which an SQL\n"
        "expression over their metadata is true. The query can only read,\n"
        "and only this index.",
        examples=[
            (
                "ids and metadata of samples",
                "fastshard query columns \"json_extract(meta_json, '$.label') = 1\"",
            ),
            (
                "a CSV file",
                "fastshard query columns --csv "
                "--columns \"id, json_extract(meta_json, '$.label')\" > labels.csv",
            ),
        ],
    )
    parser.add_argument("root", metavar="ROOT", help=ROOT_HELP)
    parser.add_argument(
        "where",
        nargs="?",
        metavar="SQL",
        help="an SQLite expression over the columns id, meta_json and the dataset's "
        "own (default: all samples)",
    )
    parser.add_argument(
        "--columns",
        default="id,meta_json",
        metavar="A,B",
        help="columns or SQL expressions to print (default: id,meta_json)",
    )
    parser.add_argument(
        "--limit",
        type=parse_count,
        metavar="N",
        help="print at most N samples (default: all)",
    )
    parser.add_argument(
        "--timeout",
        type=parse_seconds,
        default=TIMEOUT,
        metavar="S",
        help="stop a query that takes longer than S seconds (default: 30)",
    )
    form = parser.add_mutually_exclusive_group()
    form.add_argument(
        "--json", action="store_true", help="print a JSON object for each sample"
    )
    form.add_argument(
        "--csv", action="store_true", help="print CSV, the first line with the names"
    )
    parser.add_output()
    parser.set_defaults(run=cmd_query)
