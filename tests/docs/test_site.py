"""The site that the workflow ``docs`` builds, and the links in it."""

import os
import re
import shlex
import subprocess
import sys
from collections import defaultdict
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

import fastshard
from support.marks import not_sanitized
from support.paths import TREE

fcntl = pytest.importorskip("fcntl")

WORKFLOW = TREE / ".github" / "workflows" / "docs.yml"
SITE = "https://fastshard.github.io/fastshard/"

pytestmark = [
    not_sanitized,
    pytest.mark.skipif(not WORKFLOW.exists(), reason="no source tree"),
]


class Links(HTMLParser):
    """The ids and the links of an HTML page."""

    def __init__(self, text):
        super().__init__()
        self.ids = set()
        self.targets = set()
        self.images_without_text = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        for name in ("id", "name"):
            if attrs.get(name) is not None:
                self.ids.add(attrs[name])
        for name in ("href", "src"):
            if attrs.get(name) is not None:
                self.targets.add(attrs[name])
        if tag == "img" and not attrs.get("alt"):
            self.images_without_text.append(attrs.get("src"))


@pytest.fixture(scope="session")
def site(tmp_path_factory):
    """The folder of the built site, and its pages by their paths in it."""
    pytest.importorskip("mkdocs")
    base = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        base = base.parent  # of all processes of this run, which build one site
    folder = base / "site"
    with open(base / "site.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            build(base / "site.new")
            os.rename(base / "site.new", folder)
    pages = {
        path.relative_to(folder).as_posix(): Links(path.read_text())
        for path in folder.rglob("*.html")
    }
    return folder, pages


def build(folder):
    """Build the site as the workflow does."""
    (line,) = re.findall(r"- run: (mkdocs build .*)", WORKFLOW.read_text())
    done = subprocess.run(
        [sys.executable, "-m", *shlex.split(line), "-d", folder],
        capture_output=True,
        text=True,
        cwd=TREE,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
    )
    assert done.returncode == 0, done.stderr


def is_elsewhere(target):
    """Say whether a link leaves the site; raise ValueError for a broken URL."""
    parts = urlsplit(target)
    if parts.scheme in ("mailto", "data"):
        return True
    if not parts.scheme and not parts.netloc:
        return False
    if parts.scheme not in ("http", "https") or "." not in (parts.hostname or ""):
        raise ValueError(f"{target} is not an address")
    return True


def resolve(folder, page, target):
    """Return the path in the site that a link of a page leads to, and the id."""
    parts = urlsplit(target)
    path = unquote(parts.path)
    place = folder / page if not path else (folder / page).parent / path
    if path.startswith("/"):
        place = folder / path.removeprefix("/fastshard/")
    if place.is_dir():
        place /= "index.html"
    return os.path.relpath(place, folder), unquote(parts.fragment)


def test_every_link_of_the_site_leads_to_a_file_and_an_id(site):
    folder, pages = site
    broken = defaultdict(set)
    for page, links in pages.items():
        for target in links.targets:
            if is_elsewhere(target):
                if not target.startswith(SITE):
                    continue
                target = "/fastshard/" + target.removeprefix(SITE)
            path, fragment = resolve(folder, page, target)
            has_id = path not in pages or not fragment or fragment in pages[path].ids
            if not (has_id and (folder / path).is_file()):
                broken[page].add(target)
    assert not broken


def test_every_image_of_the_site_has_a_text(site):
    _, pages = site
    assert [page for page, links in pages.items() if links.images_without_text] == []


def test_the_site_loads_nothing_from_elsewhere(site):
    folder, _ = site
    for path in folder.rglob("*.html"):
        text = path.read_text()
        loaded = re.findall("<(?:script|img|link rel=.stylesheet)[^>]*", text)
        assert not [tag for tag in loaded if re.search("(src|href)=.?https?:", tag)]


def test_a_broken_link_is_found(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "index.html").write_text("<p id=one>")
    assert resolve(tmp_path, "a/index.html", "../b/") == ("b", "")
    assert resolve(tmp_path, "b.html", "a/#two") == (str(Path("a/index.html")), "two")
    assert "two" not in Links((tmp_path / "a" / "index.html").read_text()).ids
    with pytest.raises(ValueError, match="not an address"):
        is_elsewhere("https://nowhere")


REPOSITORY = "https://github.com/fastshard/fastshard/blob/main/"
RAW = "https://raw.githubusercontent.com/fastshard/fastshard/main/"
README = TREE / "README.md"


def markdown_targets(text):
    """Links and images of Markdown, outside of code."""
    text = re.sub(r"```.*?```|`[^`\n]*`", "", text, flags=re.DOTALL)
    inline = re.findall(r"\]\(([^()\s]+)\)", text)
    return {*inline, *re.findall(r"^\[[^\]]+\]: (\S+)", text, re.MULTILINE)}


def test_every_link_of_the_readme_leads_to_a_page_of_the_site_or_a_file(site):
    folder, pages = site
    targets = markdown_targets(README.read_text())
    assert len(targets) > 10
    for target in targets:
        # PyPI shows the README: it has no files beside it.
        assert is_elsewhere(target), target
        if target.startswith(SITE):
            path, fragment = resolve(
                folder, "index.html", "/fastshard/" + target.removeprefix(SITE)
            )
            assert path in pages, target
            assert not fragment or fragment in pages[path].ids, target
        elif target.startswith((REPOSITORY, RAW)):
            path = target.removeprefix(REPOSITORY).removeprefix(RAW)
            assert (TREE / path).is_file(), target


def test_links_to_files_of_the_repository_lead_to_files(site):
    _, pages = site
    targets = {target for links in pages.values() for target in links.targets}
    found = [t.partition("#")[0] for t in targets if t.startswith(REPOSITORY)]
    assert len(found) > 10
    assert [t for t in found if not (TREE / t.removeprefix(REPOSITORY)).exists()] == []


def test_the_readme_is_short_and_keeps_its_two_commands():
    lines = README.read_text().splitlines()
    assert len(lines) <= 200
    commands = [line for line in lines if line.startswith("    ")]
    for end in ("fastshard demo", "pytest -n auto"):
        assert any(command.endswith(end) for command in commands)


def test_every_public_name_is_in_the_reference(site):
    _, pages = site
    shown = set()
    for path, links in pages.items():
        if path.startswith("reference/"):
            shown |= links.ids
    names = [f"fastshard.{name}" for name in fastshard.__all__]
    missing = [n for n in names if not {n, n.replace(".", ".errors.")} & shown]
    assert missing == []


def test_docstrings_leave_no_other_markup_on_the_site(site):
    """An example without its heading becomes a quotation, a table of reST a line."""
    folder, _ = site
    for path in (folder / "reference").rglob("*.html"):
        text = path.read_text()
        assert "<blockquote>\n<blockquote>" not in text, path
        assert not re.search(r"<p>[^<]*={5,} ={5,}", text), path
