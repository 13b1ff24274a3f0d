"""Commands about one site of this machine."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from peer.cli import Settings, complete_site, output, pass_settings, shared_options
from peer.site.config import site_folder
from peer.site.config.site_folder import SiteFolder

Body = Callable[..., None]


@dataclass(frozen=True)
class SiteCall:
    """The shared arguments of a command about a site.

    Attributes:
        settings: the shared options.
        site_name: ``--site``; ``None`` if not given.
        as_json: ``--json``.
    """

    settings: Settings
    site_name: str | None
    as_json: bool

    @functools.cached_property
    def home(self) -> Path:
        """The folder of all sites of this machine."""
        return site_folder.home_folder(self.settings.home)

    @functools.cached_property
    def folder(self) -> SiteFolder:
        """The site's folder. Raises ``UsageError`` if this machine lacks it, or has several and none is named."""
        return site_folder.find_site(self.home, self.site_name)

    def emit(self, document: output.Document, render: Callable[[Any], output.RenderableType]) -> None:
        """Print the document as JSON, or as rendered by ``render``."""
        output.emit(document, as_json=self.as_json, render=render)


def site_command(
    name: str | None = None,
    *,
    group: click.Group | None = None,
    command: type[click.Command] = click.Command,
    **attributes: Any,
) -> Callable[[Body], Any]:
    """Make a function a command with ``--site``, ``--json`` and the shared options; its first argument is a `SiteCall`.

    ``--site`` may also stand before a subcommand's name.

    Args:
        name: the command's name; by default the function's.
        group: the group that the command belongs to.
        command: its class, such as ``click.Group``.
        attributes: further attributes of the click command, such as ``short_help``.
    """

    def decorate(body: Body) -> Any:
        own = list(getattr(body, "__click_params__", ()))

        @shared_options
        @pass_settings
        def called(settings: Settings, /, site_name: str | None, as_json: bool, **arguments: Any) -> None:
            parent = click.get_current_context().parent
            before = parent.params.get("site_name") if parent is not None else None
            body(SiteCall(settings, site_name or before, as_json), **arguments)

        called = output.json_option(called)
        called.__click_params__ += own  # type: ignore[attr-defined]  # click keeps options here, the last one first
        called.__doc__ = body.__doc__
        called = click.option(
            "--site",
            "site_name",
            metavar="NAME",
            shell_complete=complete_site,
            help="The site, or federation/site; needed only where this machine has several.",
        )(called)
        return (group or click).command(name or body.__name__.replace("_", "-"), cls=command, **attributes)(called)

    return decorate
