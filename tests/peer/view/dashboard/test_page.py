"""The page: whole without anything from elsewhere, and text of other sites stays text."""

import re
from html.parser import HTMLParser
from typing import Any

import pytest

from fakes.snapshots import HEARD, NOW_S, SITES, federation, link, site_snapshot
from peer.site.records.snapshot import room_taken
from peer.view.dashboard.page import write_page, write_problem

EVIL = "<img src=x onerror=alert(1)>\x1b[2J\"'`&"
VOID = {"meta", "img", "br"}


class Outline(HTMLParser):
    """The tags of a page, each closed in its turn, and its text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(page)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += f"{data} "


def busy(**changes: Any) -> str:
    """A page with everything on it, on which another site wrote what it liked."""
    wait = {"site": "america", "kind": "model", "artifact": EVIL, "since_s": 12.0, "deadline_s": 48.0}
    peers = {name: {**HEARD, "software": EVIL, "phase": EVIL} for name in SITES if name != "asia"}
    snapshot = site_snapshot(
        "asia", peers=peers, waiting_for=[wait], failure=EVIL,
        links=[link("america", "asia", state="missing", reason=EVIL)],
        refusals=[{"site": "europe", "round": 3, "reason": EVIL}] * 2,
        stories=[{"round": 3, "state": "open", "sentences": [(NOW_S, f"{EVIL} arrived.")]}], **changes,
    )  # fmt: skip
    return write_page([federation(snapshot)], version="1.2.3")


def test_the_room_is_shown_where_it_is_known() -> None:
    room = room_taken("auc", alone=0.8, pooled=0.9, round=4, value=0.862)
    page = Outline(write_page([federation(site_snapshot("asia", room=room), site_snapshot("europe"))], version="1"))
    assert "The share of the room" in page.text
    assert "0.800 0.862 0.900 62%" in " ".join(page.text.split())
    assert "The share of the room" not in Outline(busy()).text
    room = room_taken("auc", alone=0.8, pooled=0.82, round=4, value=0.4)
    page = Outline(write_page([federation(site_snapshot("asia", room=room))], version="1"))
    assert "0.800 0.400 0.820 below training alone" in " ".join(page.text.split())


def test_what_other_sites_wrote_stays_text() -> None:
    page = Outline(busy())
    assert not [tag for tag, _ in page.tags if tag in ("img", "script")]
    assert page.text.count("<img src=x onerror=alert(1)>") >= 6
    assert "\x1b" not in page.text


def test_the_page_loads_nothing_and_needs_no_inline_style() -> None:
    page = busy()
    for _, attributes in Outline(page).tags:
        assert not {"style", "src", "href", "action"} & attributes.keys()
        assert not [name for name in attributes if name.startswith("on")]
    assert not re.search(r"url\(|@import|https?://", page)


def test_it_says_who_waits_for_whom_what_left_and_what_happened() -> None:
    text = Outline(busy()).text
    for words in ("waits for", "48 s more", "2.0 KiB", "refused", "364 days", "AUC on own test data", "arrived."):
        assert words in text


def test_old_refusals_are_folded_away_and_what_was_lost_is_said() -> None:
    refusals = [
        {"site": "europe", "round": round, "reason": reason} for round, reason in ((2, "was late"), (8, "grew"))
    ]
    lost = {"expected": 12, "refused": 3, "last_refused": 8}
    none = {"expected": 11, "refused": 0, "last_refused": None}
    snapshot = site_snapshot("asia", round=10, refusals=refusals, contributions={"africa": none, "europe": lost})
    page = write_page([federation(snapshot)], version="1")
    assert "asia went on without 3 of 23 contributions, none since round 8: europe 3 of 12." in page
    recent, folded = page.split('<details id="refusals-trial"><summary>1 of earlier rounds</summary>')
    assert "grew" in recent
    assert "was late" not in recent
    assert "was late" in folded.split("</details>")[0]
    assert "Who refuses whom" not in write_page([federation(site_snapshot("asia"))], version="1")


def test_all_sites_of_a_machine_have_a_line_in_each_chart() -> None:
    page = write_page([federation(*map(site_snapshot, SITES))], version="1.2.3")
    assert page.count('class="curve"') == 2 * len(SITES)
    assert "Nothing needs attention." in page
    assert "On this machine: " not in page  # each speaks for itself


def test_only_the_live_page_has_a_script() -> None:
    snapshots = [federation(site_snapshot("asia"))]
    assert "<script" not in write_page(snapshots, version="1")
    assert write_page(snapshots, version="1", live=True).count("<script>") == 1
    assert "it broke" in Outline(write_problem("it broke", version="1")).text


@pytest.mark.parametrize("changes", [{"curves": [], "sent": [], "plan": [], "artifact": None}])
def test_a_site_that_has_done_nothing_yet_has_a_page(changes: dict[str, Any]) -> None:
    snapshot = site_snapshot("asia", daemon="down", phase="new", training={}, last_round=None, left_s=None, **changes)
    text = Outline(write_page([federation(snapshot)], version="1")).text
    assert "Nothing." in text
    assert "no site sends to another" in text
    assert "Round 0" not in text


def figures(*snapshots: Any) -> list[str]:
    page = write_page([federation(*snapshots)], version="1")
    return re.findall(r"<li><span>[^<]*</span><b>(.*?)</b>", page)


def test_the_figures_are_rounds_sites_quality_and_bytes() -> None:
    sites = [site_snapshot(site, committed=number) for number, site in enumerate(SITES, 2)]
    assert figures(*sites) == ["2 of 10", "4 of 4", "0.750", "8.0 KiB"]
    silent = {"europe": {**HEARD, "state": "silent"}}
    assert figures(site_snapshot("asia", curves=[], sent=[], peers=silent)) == ["2 of 10", "1 of 2", "–", "0 B"]


@pytest.mark.parametrize("many", [False, True])
def test_transfers_are_a_matrix_of_sender_and_receiver_unless_there_are_many_sites(many: bool) -> None:
    sites = tuple(f"site{number}" for number in range(9)) if many else SITES
    links = [
        link(sites[0], sites[1], state="arrived", bytes=2048),
        link(sites[2], sites[1], state="missing", reason="was late"),
    ]
    page = write_page([federation(site_snapshot(sites[1], sites=sites, links=links))], version="1")
    assert ('<th scope="col">to america</th>' in page) != many
    assert (f'<td data-label="way">{sites[0]} → {sites[1]}' in page) == many
    assert ">arrived, 2.0 KiB</td>" in page
    assert f">did without: {sites[2]} was late</td>" in page
