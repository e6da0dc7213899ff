"""Tables of HTML for notebooks; all text is escaped."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence

from fastshard._util.terminal import escape_line

__all__ = ["html_table", "html_text"]

CELL = '<td style="text-align: left; vertical-align: top">'


def html_text(text: str) -> str:
    """Escape text: one line, without control characters, markup and quotes."""
    line = escape_line(text).encode("utf-8", "replace").decode()
    return html.escape(line)


def html_table(title: str, rows: Iterable[Sequence[str]]) -> str:
    """Return a table."""
    lines = [
        f"<tr>{''.join(f'{CELL}{cell}</td>' for cell in row)}</tr>" for row in rows
    ]
    return "\n".join(
        [f"<div><b>{html_text(title)}</b>", "<table>", *lines, "</table></div>"]
    )
