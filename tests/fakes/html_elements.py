"""The elements of a page: whether each is closed, what they name, and what they would load."""

from html.parser import HTMLParser

VOID = ("meta", "img", "br", "rect", "polyline")


class PageParser(HTMLParser):
    """Fails at a script and at an end of what is not open; ``stack`` has the elements that are."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.stack: list[str] = []
        self.links: list[str] = []
        self.ids: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_startendtag(tag, attrs)
        if tag not in VOID:
            self.stack.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag != "script"
        values = dict(attrs)
        self.links += [str(values[key]) for key in ("src", "href", "xlink:href") if key in values]
        self.ids += [str(values["id"])] if "id" in values else []

    def handle_endtag(self, tag: str) -> None:
        assert self.stack.pop() == tag
