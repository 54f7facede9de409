"""MathJax as one file from npm, fetched once: docs/generated/static/tex-svg-3.2.2.js. Nothing of it is committed."""

import base64
import hashlib
import shutil
import subprocess
import tarfile
import tempfile
from pathlib import Path

VERSION = "3.2.2"
NAME = f"tex-svg-{VERSION}.js"
_INTEGRITY = "sha512-Bt+SSVU8eBG27zChVewOicYs7Xsdt40qm4+UpHyX7k0/O9NliPc+x77k1/FEsPsjKPZGJvtRZM1vO+geW0OhGw=="
"""As npm's registry has it, so that what is shown is what was looked at."""


def fetch(folder: Path) -> None:
    """Put the file into a folder, unless it is there."""
    if (folder / NAME).is_file():
        return
    npm = shutil.which("npm")
    if npm is None:
        raise SystemExit(f"make docs needs npm, to fetch mathjax {VERSION} once; install Node.js")
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as temporary:
        subprocess.run(
            [npm, "pack", "--silent", f"mathjax@{VERSION}"], cwd=temporary, check=True, stdout=subprocess.DEVNULL
        )
        archive = Path(temporary) / f"mathjax-{VERSION}.tgz"
        digest = "sha512-" + base64.b64encode(hashlib.sha512(archive.read_bytes()).digest()).decode()
        if digest != _INTEGRITY:
            raise SystemExit(f"npm gave another mathjax {VERSION} than expected: {digest}; check the registry")
        with tarfile.open(archive) as opened:
            member = opened.extractfile("package/es5/tex-svg.js")
            assert member is not None
            (folder / NAME).write_bytes(member.read())
