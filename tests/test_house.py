"""The layout of the tests: folders of few files."""

import os

from support.paths import TESTS

MOST = 15  # files a folder
NOT_COUNTED = {"__pycache__", "data"}  # compiled modules; files that tests read


def test_no_folder_of_tests_has_too_many_files():
    crowded = {}
    for folder, folders, files in os.walk(TESTS):
        folders[:] = set(folders) - NOT_COUNTED
        counted = [name for name in files if not name.startswith(".")]
        if len(counted) > MOST:
            crowded[os.path.relpath(folder, TESTS.parent)] = len(counted)
    assert crowded == {}, f"at most {MOST} files a folder"
