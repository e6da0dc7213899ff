"""Options of commands on an index: its location and password."""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit

from fastshard._util.arguments import Parser
from fastshard._util.paths.urls import redact
from fastshard._util.terminal import UsageError, describe_error
from fastshard.errors import FastshardError

if TYPE_CHECKING:
    from fastshard.catalog.index import Index

__all__ = [
    "add_index_options",
    "ask_password",
    "index_command",
    "open_index",
    "read_secret",
]

DEFAULT = "~/.atdata/index.db"
POSTGRES = ("postgres", "postgresql")
REDIS = ("redis", "rediss", "unix")
# The first word of a DSN without a scheme.
KEYWORDS = re.compile(
    r"\s*(?:host|hostaddr|port|dbname|user|password|service|sslmode)\s*="
)
PASSWORD = re.compile(r"(?:^|[\s?&])password\s*=", re.IGNORECASE)
MAX_PASSWORD = 4096  # bytes


def add_index_options(parser: Parser, *, inherited: bool = False) -> None:
    """Add the options that locate the index."""
    unset = argparse.SUPPRESS if inherited else None
    group = parser.add_argument_group("index")
    group.add_argument(
        "--index",
        metavar="PATH|DSN|URL",
        default=unset,
        help="file of SQLite, DSN of Postgres (postgresql://user@host/db) or URL of "
        f"Redis (redis://host:6379) (default: FASTSHARD_INDEX, or {DEFAULT})",
    )
    group.add_argument(
        "--index-password-file",
        metavar="FILE",
        default=unset,
        help="file with the password of the server (default: PGPASSWORD, "
        "REDISCLI_AUTH)",
    )
    group.add_argument(
        "--ask-index-password",
        action="store_true",
        default=argparse.SUPPRESS if inherited else False,
        help="ask for the password of the server",
    )


def open_index(args: argparse.Namespace, atmosphere: Any = None) -> Index:
    """Return the index that a command line names."""
    from fastshard.catalog.index import Index

    given: str | None = args.index
    if given is not None and has_password(given):
        raise UsageError(
            "--index: command lines are seen by other users: give the password by "
            "--index-password-file, --ask-index-password or the environment"
        )
    target = given or os.environ.get("FASTSHARD_INDEX") or DEFAULT
    options = {} if atmosphere is None else {"atmosphere": atmosphere}
    scheme = urlsplit(target).scheme if "://" in target else ""
    password = read_password(args)
    if scheme in POSTGRES or (not scheme and KEYWORDS.match(target)):
        return Index("postgres", dsn=with_password(target, password), **options)
    if scheme in REDIS:
        password = password or os.environ.get("REDISCLI_AUTH")
        return Index("redis", redis=with_password(target, password), **options)
    if scheme not in ("", "sqlite"):
        raise UsageError(
            f"--index: expected a path, postgresql:// or redis://, got {redact(target)}"
        )
    if password is not None:
        raise UsageError("a file of SQLite has no password")
    path = os.path.expanduser(target.removeprefix("sqlite://"))
    if not os.path.exists(path):
        raise FastshardError(f"there is no index at {path}")
    return Index("sqlite", path=path, **options)


def has_password(target: str) -> bool:
    """Return whether a DSN or a URL has a password."""
    if "://" not in target:
        return KEYWORDS.match(target) is not None and bool(PASSWORD.search(target))
    try:
        return urlsplit(target).password is not None or bool(PASSWORD.search(target))
    except ValueError:
        return "@" in target


def with_password(target: str, password: str | None) -> str:
    """Return a DSN or a URL with a password, unless it is None."""
    if password is None:
        return target
    if "://" not in target:
        quoted = password.replace("\\", "\\\\").replace("'", "\\'")
        return f"{target} password='{quoted}'"
    scheme, _, rest = target.partition("://")
    host, path = re.split(r"(?=[/?#])|\Z", rest, maxsplit=1)
    user, at, host = host.rpartition("@")
    user = user.partition(":")[0] if at else ""
    return f"{scheme}://{user}:{quote(password, safe='')}@{host}{path}"


def read_password(args: argparse.Namespace) -> str | None:
    """Return the password of the server, given or prompted for."""
    if args.index_password_file is not None:
        return read_secret(args.index_password_file, "--index-password-file")
    if args.ask_index_password:
        return ask_password("the index")
    return None


def read_secret(path: str, option: str) -> str:
    """Return the first line of a file."""
    try:
        with open(path, encoding="utf-8") as file:
            secret = file.readline(MAX_PASSWORD).rstrip("\r\n")
    except (OSError, ValueError) as error:
        raise UsageError(f"{option} {describe_error(error)}") from None
    if not secret:
        raise UsageError(f"{option} {path}: the first line is empty")
    return secret


def ask_password(owner: str) -> str:
    """Ask for a password on the terminal."""
    if sys.stdin is None or not sys.stdin.isatty():
        raise UsageError(f"the password of {owner} cannot be asked for: no terminal")
    from getpass import getpass

    try:
        secret = getpass(f"Password of {owner}: ")
    except EOFError:
        secret = ""
    if not secret:
        raise UsageError(f"no password of {owner} was given")
    return secret


@contextmanager
def index_errors() -> Iterator[None]:
    """Raise the errors of an index and of its libraries as a `FastshardError`."""
    try:
        yield
    except (FastshardError, OSError, UsageError):
        raise
    except (KeyError, ValueError, TypeError) as error:
        text = error.args[0] if error.args else type(error).__name__
        raise FastshardError(str(text)) from error
    except Exception as error:
        if type(error).__module__.partition(".")[0] not in ("redis", "psycopg"):
            raise
        raise FastshardError(f"{error}") from None


def index_command(
    command: Callable[[argparse.Namespace], int],
) -> Callable[[argparse.Namespace], int]:
    """Return a command that reports the errors of the index."""

    def run(args: argparse.Namespace) -> int:
        with index_errors():
            return command(args)

    run.__doc__ = command.__doc__
    return run
