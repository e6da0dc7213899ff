"""The version and the metadata of the package."""

import importlib.metadata
import re
import subprocess
import sys
import tomllib

import pytest

import fastshard
from support.paths import TREE

PYPROJECT = tomllib.loads((TREE / "pyproject.toml").read_text())
CHANGELOG = TREE / "CHANGELOG.md"
CHECK_TAG = TREE / ".ci" / "check-tag"
in_a_source_tree = pytest.mark.skipif(not CHECK_TAG.exists(), reason="no source tree")


def test_the_package_and_its_metadata_state_one_version():
    assert importlib.metadata.version("fastshard") == fastshard.__version__
    assert "version" not in PYPROJECT["project"]


def test_the_command_states_the_version():
    done = subprocess.run(
        [sys.executable, "-m", "fastshard", "--version"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert fastshard.__version__ in done.stdout.split()


def test_a_folder_of_the_package_s_name_does_not_hide_it(tmp_path):
    (tmp_path / "fastshard").mkdir()  # as a clone is, in the directory that holds it
    code = "import fastshard; print(fastshard.open.__name__)"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.stdout == "open\n", done.stderr


def test_every_extra_that_an_extra_takes_exists():
    extras = PYPROJECT["project"]["optional-dependencies"]
    for name, requirements in extras.items():
        for requirement in requirements:
            if found := re.fullmatch(r"fastshard\[([\w,-]+)\]", requirement):
                assert set(found[1].split(",")) <= set(extras), name


def test_classifiers_name_the_pythons_that_wheels_are_built_for():
    classifiers = PYPROJECT["project"]["classifiers"]
    prefix = "Programming Language :: Python :: 3."
    stated = {"3." + c.removeprefix(prefix) for c in classifiers if prefix in c}
    builds = PYPROJECT["tool"]["cibuildwheel"]["build"].split()
    built = {f"3.{found[1]}" for b in builds if (found := re.match(r"cp3(\d+)-", b))}
    assert stated == built
    assert min(built) == PYPROJECT["project"]["requires-python"].removeprefix(">=")


@in_a_source_tree
def test_a_tag_of_another_version_is_refused():
    done = subprocess.run([CHECK_TAG, "v9.9.9"], capture_output=True, text=True)
    assert done.returncode == 1
    assert f"expected v{fastshard.__version__}" in done.stderr


@in_a_source_tree
def test_a_tag_needs_a_dated_heading_in_the_changelog(tmp_path):
    for name in (".ci/check-tag", "fastshard/__init__.py"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text((TREE / name).read_text())
        path.chmod(0o755)
    version, changelog = fastshard.__version__, tmp_path / "CHANGELOG.md"

    def check():
        return subprocess.run([tmp_path / ".ci/check-tag", f"v{version}"]).returncode

    changelog.write_text("# Changelog\n\n## Unreleased\n")
    assert check() == 1
    changelog.write_text(f"# Changelog\n\n## {version} (2027-01-31)\n")
    assert check() == 0


@in_a_source_tree
def test_the_changelog_has_the_version_or_unreleased_changes_on_top():
    headings = re.findall(r"^## (.+)$", CHANGELOG.read_text(), re.MULTILINE)
    version = re.escape(fastshard.__version__)
    assert re.fullmatch(
        rf"Unreleased|{version} \(\d{{4}}-\d\d-\d\d\)|{version} \(unreleased\)",
        headings[0],
    )
