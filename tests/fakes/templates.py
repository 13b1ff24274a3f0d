"""A macro of a template by itself, as a page has it."""

from peer.web_page import environment


def render_macro(template: str, name: str, *arguments: object) -> str:
    """The HTML that a macro of ``peer/templates`` makes of these arguments."""
    return str(getattr(environment().get_template(template).module, name)(*arguments)).strip()
