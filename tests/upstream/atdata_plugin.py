"""Pytest plugin under which the tests of atdata run, unmodified, on `fastshard.typed`.

`atdata_run.py` loads it with ``-p``. It enters modules under atdata's names when it is
imported, for pytest imports the tests' ``conftest.py`` next. Tests of what
`atdata_names` lists as absent are skipped; those of `DIFFERENT` have to fail.
"""

from __future__ import annotations

import os

import pytest

OURS = os.environ.get("FASTSHARD_UPSTREAM") != "theirs"
if OURS:
    import atdata_names

    atdata_names.enter()


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "network: tests that need other machines")
    config.addinivalue_line("markers", "slow: tests that take long")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if not OURS:
        return
    for item in items:
        for name in names_of(item):
            if reason := atdata_names.ABSENT.get(name):
                item.add_marker(pytest.mark.skip(reason=reason))
            if reason := atdata_names.DIFFERENT.get(name):
                item.add_marker(pytest.mark.xfail(reason=reason, strict=True))


def names_of(item: pytest.Item) -> list[str]:
    """Return the file's, class's and test's names, without and with parameters."""
    file, *rest = item.nodeid.split("::")
    file = file.rpartition("/")[2]
    whole = "::".join([file, *rest])
    names = [file, "::".join([file, *rest[:-1]]), whole.partition("[")[0], whole]
    return list(dict.fromkeys(names))
