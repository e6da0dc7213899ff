"""Metadata of samples: JSON text in the index."""

from __future__ import annotations

import json
from typing import Any

from fastshard.errors import FormatError

__all__ = ["parse_metadata"]

SCAN: Any = vars(json.JSONDecoder())["scan_once"]  # json.loads without its search
MOST_SHOWN = 80  # characters of bad text in an error


def parse_metadata(text: Any, sample_id: str, path: str) -> Any:
    """Parse what an index has of a sample.

    Parameters
    ----------
    text : object
        The column's value. None and no text are no metadata.
    sample_id, path : str
        The sample and the index, for errors.

    Returns
    -------
    dict
        Whatever else the text says, where it is no object. NaN and Infinity, which
        are no JSON but which others write, come as floats.

    Raises
    ------
    FormatError
        It is no JSON.
    """
    if not text:
        return {}
    try:
        if type(text) is str:
            value, end = SCAN(text, 0)
            if end == len(text):
                return value
        elif not isinstance(text, str):
            raise TypeError(f"{type(text).__name__} instead of text")
        return json.loads(text)
    except (ValueError, TypeError, RecursionError, StopIteration) as error:
        shown = repr(text)[:MOST_SHOWN]
        reason = str(error) or "no value"
        raise FormatError(
            f"metadata of sample {sample_id!r} is no JSON: {reason} in {shown}",
            path,
            0,
        ) from error
