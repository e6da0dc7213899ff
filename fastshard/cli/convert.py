"""Command ``convert``: a dataset in another format."""

from __future__ import annotations

import argparse
import json

from fastshard._util.arguments import add_reading, get_reading, parse_positive
from fastshard._util.terminal import UsageError, escape_name, write_line, write_note
from fastshard.cli.common import (
    SOURCE_HELP,
    Commands,
    add_remote,
    get_remote_options,
    parse_size_argument,
)
from fastshard.errors import FastshardError

__all__ = ["add_convert"]

FORMATS = ("tar", "packed", "mds", "json", "csv", "tsv", "xsv", "columnar")


def cmd_convert(args: argparse.Namespace) -> int:
    """Write a dataset in another format."""
    from fastshard.conversion.convert import convert

    try:
        done = convert(
            args.source,
            args.out,
            to=args.to,
            columns=args.columns,
            compression=args.compression,
            hashes=[] if args.hashes is None else args.hashes.split(","),
            max_size=args.maxsize,
            max_count=args.maxcount,
            newline=unescape(args.newline),
            separator=unescape(args.separator),
            workers=args.workers,
            packed=args.packed,
            **get_reading(args),
            **get_remote_options(args),
        )
    except FastshardError:
        raise
    except ValueError as error:
        raise UsageError(str(error)) from error
    if args.json:
        write_line(json.dumps(done._asdict()))
        return 0
    columns = ",".join(
        f"{escape_name(name)}:{encoding}" for name, encoding in done.columns.items()
    )
    write_note(f"{done.path}: {done.samples:,} samples, {columns or 'no columns'}")
    return 0


def unescape(text: str | None) -> str | None:
    """Return a text with ``\\t``, ``\\n`` and ``\\r`` unescaped."""
    if text is None:
        return None
    return text.replace("\\t", "\t").replace("\\n", "\n").replace("\\r", "\r")


def add_convert(commands: Commands) -> None:
    parser = commands.add_parser(
        "convert",
        help="write a dataset in another format",
        usage="fastshard convert [OPTION]... SOURCE OUT --to FORMAT",
        description="Write a dataset in another format: the same samples in the same\n"
        "order. Values are checked first, and OUT is made when all of it is\n"
        "written. Images, text and JSON are copied as they are stored;\n"
        "nothing is unpickled.",
        examples=[
            ("tar shards to MosaicML's", "fastshard convert data mds --to mds"),
            (
                "compressed, with checksums",
                "fastshard convert data mds --to mds --compression gz --hashes sha1",
            ),
            (
                "a column as a table, with the keys",
                "fastshard convert data labels --to csv --columns __key__,cls",
            ),
            (
                "numbers of another type",
                "fastshard convert data labels --to mds --columns cls:uint8",
            ),
            ("larger shards", "fastshard convert data large --to tar --maxsize 2GB"),
        ],
    )
    parser.add_argument("source", metavar="SOURCE", help=SOURCE_HELP)
    parser.add_argument("out", metavar="OUT", help="directory to make")
    parser.add_argument(
        "--to",
        choices=FORMATS,
        required=True,
        help="format to write: tar; packed, tars of msgpack maps; mds, json, csv, tsv, "
        "xsv, of MosaicML Streaming; or columnar",
    )
    parser.add_argument(
        "--columns",
        metavar="NAME:ENCODING,...",
        help="columns to write, and their encodings; a NAME alone keeps its encoding "
        "(default: all columns, and __key__)",
    )
    parser.add_argument(
        "--compression",
        metavar="C",
        help="zstd, br, bz2, gz or snappy, with a level as zstd:7; not of tar and "
        "columnar (default: none)",
    )
    parser.add_argument(
        "--hashes",
        metavar="H,...",
        help="checksums to record, as sha256,xxh64; not of tar and columnar",
    )
    parser.add_argument(
        "--maxsize",
        metavar="SIZE",
        type=parse_size_argument,
        help="bytes of a shard, at most, such as 64MiB; not of columnar",
    )
    parser.add_argument(
        "--maxcount",
        metavar="N",
        type=parse_positive,
        help="samples of a shard, at most (default: a shard for each of the source)",
    )
    parser.add_argument(
        "--newline", metavar="TEXT", help="end of a row of json, csv, tsv, xsv"
    )
    parser.add_argument(
        "--separator", metavar="TEXT", help="text between values of xsv (default: \\t)"
    )
    parser.add_argument(
        "--workers",
        metavar="N",
        type=parse_positive,
        help="processes (default: one for each processor)",
    )
    parser.add_argument(
        "--packed",
        action="store_true",
        help="read the fields of the msgpack maps that the source's members are",
    )
    add_reading(parser)
    add_remote(parser)
    parser.add_output(json="print a JSON object with the columns")
    parser.set_defaults(run=cmd_convert)
