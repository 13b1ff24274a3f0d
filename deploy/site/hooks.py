"""The hooks of ``make site``: MkDocs reads the pages where they are in the repository, and nothing is copied in git.

``mkdocs.yml`` beside this module has the navigation. MkDocs takes the functions ``on_*``, and the reader of docstrings
(griffe) takes the class.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import griffe
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]
PAGES = ("*.md", "deploy/**/*.md", "peer/*.md", "proto/*.md")
API = {
    "losses": ("Losses", {"losses": ""}),
    "models": ("Networks", {"models": ""}),
    "peer.api": ("The notebook API", {"peer.api": ""}),
    "plugins": (
        "Types of plug-ins",
        {
            "peer.core.plan": "Plan Work Parameter Learning",
            "peer.methods.method": "Method StageContext BuildContext Stage Step Term Batch one_step_stage",
            "peer.methods.supervised": "supervised_stage stage_loss supervised_loss",
            "peer.methods.parameters": "",
            "models.classifier": "Classifier",
            "peer.train.data.prepared_folder": "make_empty write_json",
            "peer.lab.statistics.further_metrics": "FurtherMetric",
        },
    ),
}
"""Page of the API reference -> its title, and its modules with the names to show; no names: all that are public."""
LINK = re.compile(r"\[([^\]]+)\]\(([^)\s#]+)(#[^)\s]*)?\)")
FENCE_OR_INDENT = re.compile(r"^( *)```.*?^ *```|^( +)(?=\S)", re.MULTILINE | re.DOTALL)
DOCSTRINGS = (
    (re.compile(r"^(\.\. math::|>>>) .*(?:\n.+)*", re.MULTILINE), r"```\n\g<0>\n```"),
    (re.compile(r"^\.\. math:: ", re.MULTILINE), ""),
    (re.compile(r":(?:class|func|meth|mod):(?=`)"), ""),
    (re.compile(r"^([A-Z][A-Za-z ]*:) ", re.MULTILINE), r"\n**\1** "),
    (re.compile(r"^Example:$", re.MULTILINE), "Examples:"),
    (re.compile(r"^[A-Z][A-Za-z ]*:$", re.MULTILINE), r"\n\g<0>"),
)
"""What docstrings write in another way than their reader expects: formulas, examples, roles, headings."""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages of the repository, the files that they link to, and the pages of the API reference."""
    for page in sorted({path for pattern in PAGES for path in ROOT.glob(pattern)}):
        for path in [page, *(target for _, target in links(page) if target.is_file() and target.suffix != ".md")]:
            name = path.relative_to(ROOT).as_posix()
            if name not in files.src_uris:
                files.append(File.generated(config, name, abs_src_path=str(path)))
    for name, (title, modules) in API.items():
        text = f"# {title}\n" + "".join(map(api_block, modules, modules.values()))
        files.append(File.generated(config, f"api/{name}.md", content=text))
    return files


def api_block(module: str, names: str) -> str:
    """Return the line that a module's documentation replaces, with its options."""
    members = f"      members: [{', '.join(names.split())}]\n" if names else ""
    return f"\n::: {module}\n    options:\n      show_root_full_path: true\n{members}"


def links(page: Path) -> Iterator[tuple[re.Match[str], Path]]:
    """Yield each link of a page to the repository, with the path of its target."""
    for link in LINK.finditer(page.read_text("utf-8")):
        if "://" not in link[2]:
            yield link, Path(os.path.normpath(page.parent / link[2]))


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Indent what lies in lists as MkDocs needs it, and name a linked folder, of which a site has no listing."""
    markdown = FENCE_OR_INDENT.sub(indent, markdown)
    source = page.file.abs_src_path
    for link, target in links(Path(source)) if source else ():
        if target.is_dir():
            markdown = markdown.replace(link[0], f"{link[1]} (`{target.relative_to(ROOT).as_posix()}`)")
    return markdown


def indent(match: re.Match[str]) -> str:
    """Indent by four columns a level: with two or three, a paragraph or a table would not belong to its item."""
    spaces = match[1] or match[2] or ""
    return re.sub(f"^{spaces}", " " * (len(spaces) // 2 * 4), match[0], flags=re.MULTILINE)


def on_post_build(config: MkDocsConfig) -> None:
    """Write the index of the search as a script, which a page may load that was opened from a folder."""
    folder = Path(config.site_dir, "search")
    index = (folder / "search_index.json").read_text("utf-8")
    (folder / "search_index.js").write_text(f"const search_index = {index};\n", "utf-8")


class Docstrings(griffe.Extension):
    """Changes docstrings to the form that the reader of docstrings expects."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Change the docstring of one object."""
        if obj.docstring:
            for pattern, replacement in DOCSTRINGS:
                obj.docstring.value = pattern.sub(replacement, obj.docstring.value)
