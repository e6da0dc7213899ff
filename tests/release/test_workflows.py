"""Workflows refer to existing files, by pinned actions and with few permissions."""

import os
import re
import subprocess
import tomllib

import pytest

from support.marks import needs
from support.paths import TREE

yaml = pytest.importorskip("yaml")

FOLDER = TREE / ".github" / "workflows"
WORKFLOWS = sorted(FOLDER.glob("*.yml"))
pytestmark = pytest.mark.skipif(not WORKFLOWS, reason="no source tree")
each_workflow = pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
WRITES = {  # write permissions of jobs, by workflow
    "bench": {"keep": {"contents"}},
    "docs": {"deploy": {"pages", "id-token"}},
    "wheels": {"publish": {"id-token"}},
}


def jobs(path):
    return yaml.safe_load(path.read_text())["jobs"]


def commands(path):
    """All shell commands of a workflow, as one text."""
    steps = [step for job in jobs(path).values() for step in job["steps"]]
    return "\n".join(step.get("run", "") for step in steps)


@each_workflow
def test_actions_are_pinned_by_commit_and_name_the_version(path):
    used = re.findall(r"uses: (.+)", path.read_text())
    assert used
    for line in used:
        assert re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", line), line


def test_an_action_has_one_version():
    text = "".join(path.read_text() for path in WORKFLOWS)
    pins = set(re.findall(r"uses: ([\w/-]+)@(\S+)", text))
    assert len(pins) == len({action for action, _ in pins})


@each_workflow
def test_extras_that_are_installed_exist(path):
    project = tomllib.loads((TREE / "pyproject.toml").read_text())["project"]
    named = re.findall(r"\.\[([\w,-]+)\]", commands(path))
    for extra in ",".join(named).split(",") if named else []:
        assert extra in project["optional-dependencies"]


@each_workflow
def test_scripts_and_modules_that_are_run_exist(path):
    text = commands(path)
    scripts = re.findall(r"(?<![\w/])((?:\.ci|tests|bench)/[\w./-]+)", text)
    for script in scripts:
        assert (TREE / script).exists(), script
    for module in re.findall(r"-m (bench[\w.]*)", text):
        file = TREE / module.replace(".", "/")
        assert file.with_suffix(".py").exists() or (file / "__main__.py").exists()


@each_workflow
def test_jobs_write_listed_files_only(path):
    workflow = yaml.safe_load(path.read_text())
    assert workflow["permissions"] == {"contents": "read"}
    for name, job in workflow["jobs"].items():
        written = {k for k, v in job.get("permissions", {}).items() if v == "write"}
        assert written == WRITES.get(path.stem, {}).get(name, set())
        assert "timeout-minutes" in job


def test_only_a_tag_publishes_after_all_wheels_and_the_sdist():
    publish = jobs(FOLDER / "wheels.yml")["publish"]
    assert "startsWith(github.ref, 'refs/tags/v')" in publish["if"]
    assert set(publish["needs"]) == {"wheels", "sdist"}
    assert publish["environment"] == "pypi"


@pytest.mark.parametrize(
    ("tag", "code"), [("v0.1.0", 0), ("v0.1", 1), ("v0.1.1", 1), ("v0.1.0rc1", 1)]
)
def test_files_of_another_version_are_not_published(tmp_path, tag, code):
    steps = jobs(FOLDER / "wheels.yml")["publish"]["steps"]
    (script,) = [step["run"] for step in steps if "run" in step]
    (tmp_path / "dist").mkdir()
    for name in ("fastshard-0.1.0.tar.gz", "fastshard-0.1.0-cp313-cp313-any.whl"):
        (tmp_path / "dist" / name).touch()
    done = subprocess.run(
        [needs("bash"), "-e", "-c", script],
        cwd=tmp_path,
        env=os.environ | {"GITHUB_REF_NAME": tag},
    )
    assert done.returncode == code


@pytest.mark.parametrize("name", ["test", "wheels"])
def test_runners_are_those_of_every_platform(name):
    job = jobs(FOLDER / f"{name}.yml")[name]
    assert set(job["strategy"]["matrix"]["os"]) == {
        "ubuntu-24.04",
        "ubuntu-24.04-arm",
        "macos-15-intel",
        "macos-26",
        "windows-2025",
    }
