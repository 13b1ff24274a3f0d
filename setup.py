"""The build copies the operator's pages from ``deploy/`` into the package, where ``mhfl-peer help`` finds them."""

from __future__ import annotations

from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py


class BuildWithPages(build_py):
    """``build_py``, and the pages; an editable install reads them in ``deploy/``."""

    def run(self) -> None:
        """Build the packages, then copy the pages beside the code."""
        super().run()
        if not self.editable_mode:
            pages = sorted(Path("deploy").rglob("*.md"))
            if not pages:
                raise SystemExit("deploy/ is not beside setup.py: build from a checkout or an sdist, which have it")
            for page in pages:
                target = Path(self.build_lib, "peer", "pages", page.relative_to("deploy"))
                self.mkpath(str(target.parent))
                self.copy_file(str(page), str(target))


setup(cmdclass={"build_py": BuildWithPages})
