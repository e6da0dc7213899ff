"""Hooks of mkdocs."""

import re
from typing import Any

# Types of parameters that griffe takes for differences.
LIKE = re.compile(r"\b(path|dtype|array) - like\b")


def on_page_content(html: str, **_: Any) -> str:
    """Write types as their docstrings do."""
    return LIKE.sub(r"\1-like", html)
