"""Logging: the logger of the package, and the start and end of operations."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol, runtime_checkable

__all__ = ["LoggerProtocol", "configure_logging", "get_logger", "log_operation"]

METHODS = ("debug", "info", "warning", "error")


@runtime_checkable
class LoggerProtocol(Protocol):
    """Protocol of loggers: a `logging.Logger`, or one of structlog.

    Examples
    --------
    >>> import logging
    >>> from fastshard import typed
    >>> isinstance(logging.getLogger("mine"), typed.LoggerProtocol)
    True
    """

    def debug(self, msg: str, *args: Any, **kwargs: Any) -> object:
        """Log details."""

    def info(self, msg: str, *args: Any, **kwargs: Any) -> object:
        """Log an operation."""

    def warning(self, msg: str, *args: Any, **kwargs: Any) -> object:
        """Log a possible problem."""

    def error(self, msg: str, *args: Any, **kwargs: Any) -> object:
        """Log a failure."""


class _Chosen:
    """The logger in use."""

    logger: LoggerProtocol = logging.getLogger("fastshard")


def configure_logging(logger: LoggerProtocol | None = None) -> None:
    """Set the logger of `fastshard.typed`.

    Parameters
    ----------
    logger : LoggerProtocol, optional
        An object with ``debug``, ``info``, ``warning`` and ``error``. By default the
        logger ``fastshard`` of `logging`, as it is without a call.

    Raises
    ------
    TypeError
        The object lacks one of these methods.

    Examples
    --------
    >>> import logging
    >>> from fastshard import typed
    >>> typed.configure_logging(logging.getLogger("training"))
    >>> typed.get_logger().name
    'training'
    >>> typed.configure_logging()
    >>> typed.get_logger().name
    'fastshard'
    """
    if logger is None:
        logger = logging.getLogger("fastshard")
    missing = [name for name in METHODS if not callable(getattr(logger, name, None))]
    if missing:
        raise TypeError(
            f"a logger has the methods {', '.join(METHODS)}; "
            f"{type(logger).__name__} lacks {', '.join(missing)}"
        )
    _Chosen.logger = logger


def get_logger() -> LoggerProtocol:
    """Return the logger of `fastshard.typed`.

    Returns
    -------
    LoggerProtocol
        The last one given to `configure_logging`, else the logger ``fastshard``.

    Examples
    --------
    >>> from fastshard import typed
    >>> typed.get_logger().info("%d shards", 4)
    """
    return _Chosen.logger


@contextmanager
def log_operation(op_name: str, **context: Any) -> Iterator[None]:
    """Log the start and the end of an operation, with its seconds.

    Parameters
    ----------
    op_name : str
    **context
        Facts of the operation, which both messages show.

    Examples
    --------
    >>> import logging, sys
    >>> from fastshard import typed
    >>> logger = logging.getLogger("example")
    >>> logger.addHandler(logging.StreamHandler(sys.stdout))
    >>> logger.setLevel("INFO")
    >>> typed.configure_logging(logger)
    >>> with typed.log_operation("copy", shards=4):
    ...     pass
    copy: started (shards=4)
    copy: completed in 0.00s (shards=4)
    >>> typed.configure_logging()
    """
    log = get_logger()
    facts = ", ".join(f"{name}={value}" for name, value in context.items())
    facts = f" ({facts})" if facts else ""
    log.info("%s: started%s", op_name, facts)
    begun = time.monotonic()
    try:
        yield
    except BaseException:
        seconds = time.monotonic() - begun
        log.error("%s: failed after %.2fs%s", op_name, seconds, facts)
        raise
    log.info("%s: completed in %.2fs%s", op_name, time.monotonic() - begun, facts)
