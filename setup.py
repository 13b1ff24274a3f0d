"""The build copies files from ``deploy/`` into the package.

They are the operator's pages, for ``mhfl-peer help``, and the example of a plug-in, for ``mhfl-peer
plugin new``.
"""

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
            plugin = [
                path for path in sorted(Path("deploy/examples/plugin").rglob("*")) if path.suffix in (".py", ".toml")
            ]
            for page in [*pages, *plugin]:
                target = Path(self.build_lib, "peer", "pages", page.relative_to("deploy"))
                self.mkpath(str(target.parent))
                self.copy_file(str(page), str(target))


setup(cmdclass={"build_py": BuildWithPages})
