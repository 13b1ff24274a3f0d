"""``mhfl-peer help``: show pages of the operator's manual in a terminal, or the help of a command."""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath

import click
from click.shell_completion import CompletionItem

from peer.cli import COMMANDS, PROGRAM, main, output, shared_options
from peer.documents.commands import HelpPage
from peer.errors import UsageError
from peer.site.config.toml import suggestion

PACKAGE = Path(__file__).parents[1]
TOPICS: Mapping[str, str] = {
    "operate": "README.md",
    "site": "site.md",
    "data": "data.md",
    "model": "model.md",
    "audit": "audit.md",
    "dpo": "dpo.md",
    "frameworks": "frameworks.md",
    "agreement": "agreement.md",
    "relay": "relay.md",
    "members": "members.md",
    "story": "seven-sites.md",
    "upgrade": "upgrade.md",
    "mistakes": "mistakes.md",
    "guarantees": "guarantees.md",
    "glossary": "glossary.md",
    "tables": "tables.md",
    "reference": "reference.md",
    "prometheus": "prometheus/README.md",
    "kubernetes": "kubernetes/README.md",
    "network": "network/README.md",
    "experiments": "examples/experiments/README.md",
    "results": "examples/experiments/RESULTS.md",
    "plugins": "plugins.md",
    "scale": "scale.md",
}
"""Topic -> its page under deploy/, in the order of the list."""
LINK = re.compile(r"\[([^\]]+)\]\(([^)\s]+)\)")
COLUMNS_MAX = 100
"""Maximum width of a page, even in a wider terminal."""


def _complete(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete topics and commands; after the name of a group, its commands."""
    words = context.params.get("words") or ()
    if words:
        try:
            command, inner = _resolve(words)
        except UsageError:
            return []
        names = command.list_commands(inner) if isinstance(command, click.Group) else []
        return [CompletionItem(name) for name in names if name.startswith(incomplete)]
    titles = {topic: _title(_text(topic)) for topic in TOPICS}
    offered = {name: text for name, (_, text) in COMMANDS.items()} | titles
    return [CompletionItem(name, help=text) for name, text in offered.items() if name.startswith(incomplete)]


@click.command("help")
@click.argument("words", metavar="[TOPIC | COMMAND...]", nargs=-1, shell_complete=_complete)
@output.json_option
@shared_options
def show_help(words: tuple[str, ...], as_json: bool) -> None:
    """Show a page of the operator's manual, or the help of a command; without a name, list the
    topics.

    If a topic and a command have the same name, the topic's page is shown.
    `mhfl-peer COMMAND --help` always shows the command's help.

    \b
    mhfl-peer help
    mhfl-peer help audit
    mhfl-peer help data prepare lidc
    """
    if not words:
        output.emit([_page(topic) for topic in TOPICS], as_json=as_json, render=_render_topics)
        return
    is_topic = len(words) == 1 and words[0] in TOPICS
    page = _page(words[0]) if is_topic else _command_help(words)
    if as_json:
        output.emit([page], as_json=True, render=_render_topics)
        return
    if not is_topic:
        click.echo(page["text"])
        return
    console = output.console()
    with console.capture() as captured:
        console.print(_render_page(page), width=min(console.width, COLUMNS_MAX))
    if console.is_terminal:
        os.environ.setdefault("LESS", "FRX")  # as git does: keep colours, and use no pager for a page that fits
        click.echo_via_pager(captured.get(), color=True)
    else:
        click.echo(captured.get(), nl=False)


def _page(topic: str) -> HelpPage:
    text = _text(topic)
    return {"topic": topic, "title": _title(text), "text": text}


def _text(topic: str) -> str:
    return deploy_path(TOPICS[topic]).read_text("utf-8")


def deploy_path(name: str) -> Path:
    """Return the path of what the build copied into the package, or, in a checkout, of the original under deploy/."""
    shipped = PACKAGE / "pages" / name
    return shipped if shipped.exists() else PACKAGE.parent / "deploy" / name


def _title(text: str) -> str:
    return text.partition("\n")[0].removeprefix("# ")


def _command_help(words: Sequence[str]) -> HelpPage:
    command, context = _resolve(words)
    return {"topic": " ".join(words), "title": command.get_short_help_str(200), "text": command.get_help(context)}


def _resolve(words: Sequence[str]) -> tuple[click.Command, click.Context]:
    """Find the command that these words call; raise ``UsageError`` if there is none."""
    command: click.Command = main
    context = click.Context(main, info_name=PROGRAM, **main.context_settings)
    for word in words:
        known = command.list_commands(context) if isinstance(command, click.Group) else []
        inner = command.get_command(context, word) if isinstance(command, click.Group) else None
        if inner is None:
            topics = TOPICS if command is main else ()
            raise UsageError(
                f"no topic or command {' '.join(words)!r}{suggestion(word, {*topics, *known})}",
                f"`{PROGRAM} help` lists the topics, and `{PROGRAM} --help` the commands",
            )
        command, context = inner, click.Context(inner, info_name=word, parent=context)
    return command, context


def _render_topics(document: Sequence[HelpPage]) -> output.RenderableType:
    rows = [(page["topic"], page["title"]) for page in document]
    return output.table(("topic", "page"), rows, title=f"{PROGRAM} help TOPIC shows a page")


def _render_page(page: HelpPage) -> output.RenderableType:
    from rich.console import Group
    from rich.markdown import Markdown
    from rich.text import Text

    topics = {f"deploy/{path}": topic for topic, path in TOPICS.items()}
    own = f"deploy/{TOPICS[page['topic']]}"

    def replace(link: re.Match[str]) -> str:
        """Render a link for a terminal: the topic of a page, or the path of another file."""
        label, target = link.group(1), link.group(2).partition("#")[0]
        if "://" in target:
            return link.group(0)
        path = posixpath.normpath(PurePosixPath(own).parent / target)
        if not target or path == own:
            return label
        page_or_path = f"`{PROGRAM} help {topics[path]}`" if path in topics else f"`{path}`"
        return page_or_path if target.endswith(label) else f"{label} ({page_or_path})"

    parts: list[output.RenderableType] = [Markdown(LINK.sub(replace, page["text"]))]
    if page["topic"] in COMMANDS:
        parts.append(Text(f"\n`{PROGRAM} {page['topic']} --help` explains the command of this name."))
    return Group(*parts)
