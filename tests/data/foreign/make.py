"""Make the tars here again, and the indexes that other tools write of them.

    python make.py DALI_WHEEL

DALI_WHEEL is a wheel of nvidia-dali, whose `wds2idx.py` runs under GNU tar;
megatron-energon and wids must be installed. `made_by.txt` says which versions made
what is here.
"""

import io
import os
import re
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from importlib.metadata import version
from pathlib import Path

HERE = Path(__file__).parent
PLAIN = ["a.jpg", "a.json", "sub/", "sub/b.seg.png", "sub/b.cls", "c.txt"]
NAMES = [
    *PLAIN[:5], "nodot", "sub/nodot", ".hidden", "sub/.hidden", "__meta__/x.json",
    "__x__", "dir.v1/c.jpg", "é.txt", "A.JPG", "a.cls", "empty.txt", "last/",
]  # fmt: skip
MIXED = [
    "./x.jpg", "./x.json", "p/q.a.b.c", "p/q.a.b.d", "k.jpg", "l.jpg", "k.json",
    "l.json", "m.jpg", ".hid", "m.json", "dir/", "m.cls", "__s__.x", "m.txt", "nodot",
    "m.bin", "link", "m.b", "n..x", "日本/語.TXT", "_.y", "z", "/r.abs", "../u.v",
    "w=1,2;'3'\"4\"#*?.x",
]  # fmt: skip
LONG = ["a.txt", *(f"long/{'d' * 120}.{x}" for x in ("txt", "json")), "z.txt"]
PAX, GNU, USTAR = tarfile.PAX_FORMAT, tarfile.GNU_FORMAT, tarfile.USTAR_FORMAT
KINDS = {  # format, time of writing, names, global pax header
    "gnu": (GNU, 1, NAMES, {}),
    "pax": (PAX, 1.5, [*NAMES, *LONG], {}),
    "ustar": (USTAR, 1, [n for n in NAMES if n.isascii()], {}),
    "mixed": (GNU, 1, MIXED, {}),
    "global": (PAX, 1.5, PLAIN, {"comment": "of all"}),
    "plain": (USTAR, 1, PLAIN, {}),
    "long": (GNU, 1, LONG, {}),  # wds2idx's offsets of these are wrong
    "none": (USTAR, 1, [".hidden", "__m__/a.x"], {}),
}


def write_tar(path: Path, form: int, mtime: float, names: list[str], every) -> None:
    with tarfile.open(path, "w", format=form, pax_headers=every) as tar:
        for name in names:
            member = tarfile.TarInfo(name)
            member.mtime = mtime
            data = b"" if name.startswith("empty") else name.encode()[:40] * 3
            if name == "link":
                member.type, member.linkname, data = tarfile.SYMTYPE, "k.jpg", b""
            elif name.endswith("/"):
                member.type, data = tarfile.DIRTYPE, b""
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
        end = tar.offset
    os.truncate(path, end + 1024)


def run_dali(script: Path, path: Path, index: Path, locale: str) -> None:
    subprocess.run(
        [sys.executable, script, path, index],
        check=True,
        stdout=subprocess.DEVNULL,
        env=os.environ | {"LC_ALL": locale},
    )


def run_energon(path: Path) -> None:
    from megatron.energon.epathlib import EPath
    from megatron.energon.flavors.webdataset.prepare import WebdatasetPreparator

    index = path.with_suffix(".tar.idx")
    index.unlink(missing_ok=True)
    numbers = {path.name: 0}
    made = WebdatasetPreparator._preprocess_tar(
        path.name, numbers, EPath(str(path.parent)), 50
    )
    for _ in made:  # the index is written on the way
        pass
    index.chmod(0o644)


def run_wids() -> None:
    subprocess.run(
        [
            *(sys.executable, "-m", "wids.wids_index", "create"),
            *("plain.tar", "global.tar"),
            *("--output", "shardindex.json", "--name", "foreign"),
        ],
        check=True,
        cwd=HERE,
        stdout=subprocess.DEVNULL,
    )


def main(wheel: str) -> None:
    with tempfile.TemporaryDirectory() as folder, zipfile.ZipFile(wheel) as files:
        [name] = [n for n in files.namelist() if n.endswith("wds2idx.py")]
        script = Path(files.extract(name, folder))
        for kind, options in KINDS.items():
            path = HERE / f"{kind}.tar"
            write_tar(path, *options)
            run_energon(path)
            if kind != "none":
                run_dali(script, path, path.with_suffix(".idx"), "C.UTF-8")
        run_dali(script, HERE / "gnu.tar", HERE / "gnu-escaped.idx", "C")
    run_wids()
    tar = subprocess.run(["tar", "--version"], capture_output=True, text=True)
    release = re.match(r"(.+?)-(.+?)-", Path(wheel).name)
    assert release is not None
    (HERE / "made_by.txt").write_text(
        f"wds2idx.py of {release[1].replace('_', '-')} {release[2]}\n"
        f"{tar.stdout.splitlines()[0]}\n"
        f"megatron-energon {version('megatron-energon')}\n"
        f"wids {version('wids')}\n"
        f"Python {sys.version.split()[0]}\n"
    )


if __name__ == "__main__":
    main(sys.argv[1])
