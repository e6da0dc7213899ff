"""Command ``query`` for packed datasets: samples by a condition."""

from __future__ import annotations

import argparse
import csv
import json
import os
import sys
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from fastshard._util.arguments import FLAGS, add_reading, get_reading
from fastshard._util.paths.globs import is_shard_name
from fastshard._util.paths.urls import is_remote, redact
from fastshard._util.terminal import UsageError, escape_name, write_line
from fastshard.dataset.paths.folders import find_folders
from fastshard.dataset.paths.listing import parse_source
from fastshard.formats.registry import find_local_format

if TYPE_CHECKING:
    from fastshard.typed.dataset import Dataset

__all__ = ["extend_query"]

COLUMNS = ("shard", "key", "offset")
DESCRIPTION = """

Of tar shards of typed samples: print shard, key and byte of the samples
that meet a condition, as  score > 1 and label in ("cat", "dog").  Shards
that a manifest rules out are not read."""


def extend_query(commands: Any) -> None:
    """Extend the command of columnar datasets to sources of tar shards."""
    parser = commands.choices.get("query")
    if parser is None:
        return
    parser.description = f"{parser.description or ''}{DESCRIPTION}"
    add_reading(parser)
    parser.set_defaults(run=partial(cmd_query, parser.get_default("run")))


def cmd_query(
    others: Callable[[argparse.Namespace], int], args: argparse.Namespace
) -> int:
    """Find samples of typed shards by a condition, or those of other datasets."""
    reading = get_reading(args)
    if not has_tars(args.root):
        for name in reading:
            raise UsageError(f"{FLAGS[name]} is an option of tar shards: leave it out")
        return others(args)
    if args.columns != "id,meta_json":
        raise UsageError("--columns are those of columnar datasets")
    _check_url(args.root)
    from fastshard.typed.dataset import Dataset
    from fastshard.typed.manifest.query import locate

    with Dataset(args.root, **reading) as ds:
        if len(ds) and "msgpack" not in ds.raw[0]:
            raise UsageError(
                f"{args.root} is not a columnar dataset, and its shards are not of "
                f"typed samples: {ds.raw[0].key!r} has no member of the field 'msgpack'"
            )
        found = find(ds, args.where)[: args.limit]
        places = locate(ds, found)
    if args.csv:
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerow(COLUMNS)
        writer.writerows(places)
        return 0
    for place in places:
        if args.json:
            write_line(json.dumps(dict(zip(COLUMNS, place, strict=True))))
        else:
            write_line(*(escape_name(str(value)) for value in place))
    return 0


def _check_url(source: str) -> None:
    """Raise UsageError for the URL of a dataset of another format."""
    folders = find_folders(parse_source(source), {}) if is_remote(source) else None
    if folders is not None:
        raise UsageError(
            f"{redact(source)} is a {folders.format.name} dataset: expected the "
            "directory of a columnar dataset, or tar shards of typed samples"
        )


def find(ds: Dataset[Any], where: str | None) -> list[int]:
    """Return the positions of the samples that meet a condition; all without one."""
    if where is None:
        return list(range(len(ds)))
    from fastshard.typed.manifest.query import find_positions
    from fastshard.where.expression import parse_condition

    try:
        return find_positions(ds, parse_condition(where))
    except KeyError as error:
        raise UsageError(str(error.args[0])) from error
    except UnicodeError:
        raise
    except (TypeError, ValueError) as error:
        if type(error) not in (TypeError, ValueError):
            raise
        raise UsageError(str(error)) from error


def has_tars(source: str) -> bool:
    """Return whether a source has tar shards: it is not a folder of another format."""
    if not os.path.isdir(source):
        return source.endswith(".tar") or not os.path.lexists(source)
    if find_local_format(source) is not None:
        return False
    return any(map(is_shard_name, os.listdir(source)))
