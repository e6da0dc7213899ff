"""Commands on columnar datasets, and their lines of ``ls`` and ``stat``."""

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
)
from fastshard.columnar.schema import INDEX_NAME, is_columnar, read_fields
from fastshard.errors import QueryError, QueryTimeoutError

__all__ = [
    "add_compact",
    "add_query",
    "list_lines",
    "stat_lines",
]

ROOT_HELP = "the directory of a columnar dataset"
LEFT = {
    "replaced": "were replaced by compact, and go when no reader has them",
    "uncommitted": "were never committed, and go with the next writer",
}
TIMEOUT = 30.0  # seconds of a query


def needed_root(root: str) -> str:
    if not is_columnar(root):
        raise UsageError(f"{root} is no columnar dataset: it has no index.sqlite")
    return root


def stat_lines(figures: Mapping[str, Any]) -> Iterator[str]:
    """Describe what `stat` counted."""
    columns = ", ".join(
        f"{escape_name(name)} {escape_name(kind)}".strip()
        for name, kind in figures["columns"].items()
    )
    yield figures["dataset"]
    yield f"  bytes    {figures['bytes']:,}, index {figures['index_bytes']:,}"
    yield f"  samples  {figures['samples']:,}"
    yield f"  columns  {columns or 'none'}"
    for name, of in figures["fields"].items():
        shards, samples = f"{of['shards']:,} shards", f"{of['samples']:,} samples"
        yield f"  {escape_name(name)}: {samples} in {shards} of {of['bytes']:,} bytes"
        if of["missing"]:
            numbers = ", ".join(map(str, of["missing"][:8]))
            yield f"    {len(of['missing']):,} shards are not there: {numbers}"
        for what, why in LEFT.items():
            if of[what]:
                nbytes = f"{of[what + '_bytes']:,} bytes"
                yield f"    {of[what]:,} files of {nbytes} {why}"
        if "live_bytes" in of:
            dead = f"{of['dead_bytes']:,} in {of['dead_members']:,} members"
            yield f"    live {of['live_bytes']:,} bytes, dead {dead}"
        for kind in of.get("arrays", ()):
            shape = tuple(kind["shape"])
            yield f"    {kind['count']:>12,}  {escape_name(kind['dtype'])} {shape}"


def list_lines(root: str, long: bool, as_json: bool) -> Iterator[str]:
    """Describe each sample on a line."""
    from fastshard.columnar.connection import INDEX_ERRORS, open_reader, translate_error

    conn = open_reader(os.path.join(root, INDEX_NAME))
    try:
        names = [field.name for field in read_fields(conn, conn.path)]
        conn.text_factory = lambda data: data.decode("utf-8", "surrogateescape")
        columns = "".join(f", {name}_shard" for name in names)
        for sample_id, *at in conn.execute(
            f"SELECT id{columns} FROM samples ORDER BY rowid"
        ):
            shards = zip(names, at, strict=True)
            there = {name: shard for name, shard in shards if shard is not None}
            if as_json:
                line = {"id": plain(sample_id), "shards": each_plain(there)}
                yield json.dumps(line)
            else:
                fields = f"  {' '.join(map(escape_name, there))}" if long else ""
                yield escape_name(str(sample_id)) + fields
    except INDEX_ERRORS as error:
        raise translate_error(error, conn.path) from error
    finally:
        conn.close()


def cmd_compact(args: argparse.Namespace) -> int:
    """Rewrite the shards of a columnar dataset without what nothing refers to."""
    from fastshard.columnar.compaction import compact

    done = compact(needed_root(args.root))._asdict()
    if args.json:
        write_line(json.dumps(done))
        return 0
    freed = done["bytes_before"] - done["bytes_after"]
    shards = f"{done['shards_before']:,} shards, now {done['shards_after']:,}"
    write_line(f"{freed:,} bytes freed of {done['bytes_before']:,}; {shards}")
    return 0


def add_compact(commands: Any) -> None:
    parser = commands.add_parser("compact", help=cmd_compact.__doc__)
    parser.add_argument("root", metavar="ROOT", help=ROOT_HELP)
    parser.add_argument("--json", action="store_true", help="one JSON object")
    parser.set_defaults(run=cmd_compact)


def cmd_query(args: argparse.Namespace) -> int:
    """Find samples of a columnar dataset by an SQL expression over their metadata."""
    from fastshard.columnar.connection import open_reader
    from fastshard.columnar.read.query import query, split

    root = needed_root(args.root)
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
    if args.csv:
        write_csv([columns, *(each_plain(row).values() for row in rows)])
        return
    for row in rows:
        values = each_plain(row)
        if args.json:
            write_line(json.dumps(values))
        else:
            texts = ("" if value is None else str(value) for value in values.values())
            write_line(*map(escape_name, texts))


def write_csv(rows: Iterable[Iterable[Any]]) -> None:
    """Write CSV: escaped on a terminal, as it is into a file or a pipe."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\r\n")  # so that both get quotes
    is_seen = sys.stdout.isatty()
    for row in rows:
        if is_seen:
            row = [escape_line(v) if isinstance(v, str) else v for v in row]
        writer.writerow(row)
        line = text.getvalue().removesuffix("\r\n") + "\n"
        sys.stdout.write(escape_unencodable(line, sys.stdout.encoding))
        text.seek(0)
        text.truncate()


def each_plain(values: dict[str, Any]) -> dict[str, Any]:
    return {name: plain(value) for name, value in values.items()}


def plain(value: Any) -> Any:
    """Return a value of SQL as JSON and CSV can say it; bytes as hex digits."""
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


def number(text: str) -> int:
    count = int(text)
    if count < 0:
        raise ValueError
    return count


def seconds(text: str) -> float:
    count = float(text)
    if not count >= 0:
        raise ValueError
    return count


def add_query(commands: Any) -> None:
    parser = commands.add_parser("query", help=cmd_query.__doc__)
    parser.add_argument("root", metavar="ROOT", help=ROOT_HELP)
    parser.add_argument(
        "where", nargs="?", metavar="SQL", help="an expression; all without it"
    )
    parser.add_argument(
        "--columns",
        default="id,meta_json",
        metavar="A,B",
        help="columns, or SQL expressions; id,meta_json without it",
    )
    parser.add_argument("--limit", type=number, metavar="N", help="N samples at most")
    parser.add_argument(
        "--timeout", type=seconds, default=TIMEOUT, metavar="S", help="seconds; 30"
    )
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="one JSON object a line")
    form.add_argument("--csv", action="store_true", help="with a line of names")
    parser.set_defaults(run=cmd_query)
