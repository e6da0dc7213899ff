"""Tests of mosaicml-streaming pass with what is ours, where its sources are given.

FASTSHARD_MOSAICML_TESTS is the folder of its tests. `run.py` has all; those here are
the quick ones.
"""

import os
import subprocess
import sys

import pytest

from support.paths import TESTS
from support.processes import environment

QUICK = ("names:array,encodings", "installed:local,unsafe_types,mixing")


@pytest.mark.parametrize("suite", QUICK)
def test_upstream(suite):
    pytest.importorskip("streaming.base")
    folder = os.environ.get("FASTSHARD_MOSAICML_TESTS")
    if not folder:
        pytest.skip("FASTSHARD_MOSAICML_TESTS is not set")
    done = subprocess.run(
        [sys.executable, TESTS / "upstream/run.py", folder, suite],
        env=environment(),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
