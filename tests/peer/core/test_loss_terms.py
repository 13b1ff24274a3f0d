"""A loss term has the same words on pages, in `status` and in the glossary."""

import re
from pathlib import Path

from peer.core.loss_terms import NETWORKS, SUPERVISED, TERMS, loss_title

GLOSSARY = Path(__file__).parents[3] / "deploy" / "glossary.md"
ROW = re.compile(r"^\| `([^`]+)` \| ([^|]+) \|", re.MULTILINE)


def test_the_glossary_has_every_term_in_the_words_of_the_pages() -> None:
    table = GLOSSARY.read_text("utf-8").partition("## Losses in words")[2]
    rows = dict(ROW.findall(table))
    for network, words in NETWORKS.items():
        for name, title in rows.items():
            assert loss_title(name.replace("…", network)) == title.replace("…", words), name
    assert {name for name in rows if not name.startswith("kl_dam_from_")} == {
        *TERMS,
        *(f"{loss}_…" for loss in SUPERVISED),
    }


def test_a_term_without_words_keeps_its_own() -> None:
    assert loss_title("ce_other_part") == "ce other part"
    assert loss_title("my_plugin_term") == "my plugin term"
    assert loss_title("ce_head") == "cross-entropy of head"
    assert loss_title("kl_visitor-oslo_from_visitor-rome") == "distance of oslo's model to rome's model"
