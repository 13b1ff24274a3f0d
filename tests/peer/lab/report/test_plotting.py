"""Style, colours and SVG."""

import re

from peer.lab.report import plotting


def draw_example() -> plotting.ReportFigure:
    with plotting.plot_style():
        figure, ((axes,),) = plotting.new_figure(3, 2)
        axes.plot([0, 1], [0, 1], "o-", color="#d55e00")
        axes.set_xlabel("round")
        return plotting.render(figure, name="curve", title="T", caption="C")


def test_the_same_figure_gives_the_same_bytes() -> None:
    assert draw_example().drawing == draw_example().drawing


def test_on_the_page_it_has_the_pages_colours_and_in_a_file_its_own() -> None:
    picture = draw_example()
    assert plotting.INK in picture.drawing
    for text in (picture.inline, picture.file):
        assert plotting.INK not in text
        assert plotting.RULE not in text
    assert "currentColor" in picture.inline
    assert "currentColor" not in picture.file
    assert 'fill="#ffffff"' in picture.file


def test_a_pdf_has_true_type_fonts_and_the_colours_of_a_file() -> None:
    content = draw_example().pdf()
    assert content == draw_example().pdf()
    assert b"/FontFile2" in content
    operands = re.findall(rb"([\d.]+) ([\d.]+) ([\d.]+) +(?:rg|RG)", content)
    colours = {"#" + bytes(round(255 * float(part)) for part in parts).hex() for parts in operands}
    assert {*plotting.PAPER.values(), "#d55e00"} <= colours
    assert not colours & plotting.PAPER.keys()


def test_identifiers_are_the_pictures_own_and_all_resolve() -> None:
    text = draw_example().inline
    known = set(re.findall(r'\bid="([^"]+)"', text))
    used = set(re.findall(r'href="#([^"]+)"|url\(#([^)]+)\)', text))
    assert known
    assert all(name.startswith("curve-") for name in known)
    assert {element_id or reference for element_id, reference in used} <= known


def test_every_label_has_a_colour_of_its_own_and_a_known_method_its_usual_one() -> None:
    labels = {"FedSKD": "fedskd", "FedSKD B": "fedskd", "mine": "fedavg", "Local": "local"}
    styles = plotting.assign_styles(labels)
    assert styles["FedSKD"].colour == plotting.METHOD_COLOURS["fedskd"]
    assert len({style.colour for style in styles.values()}) == len(labels)
    assert len({style.marker for style in styles.values()}) == len(labels)


def test_logarithmic_ticks_are_plain_numbers() -> None:
    with plotting.plot_style():
        _, ((axes,),) = plotting.new_figure(3, 2)
        plotting.set_log_axis(axes, [0.3, 40.0])
    assert [label.get_text() for label in axes.get_xticklabels()] == ["0.5", "1", "2", "5", "10", "20", "50"]


def test_the_style_ends_with_its_block() -> None:
    import matplotlib

    before = dict(matplotlib.rcParams)
    draw_example()
    assert dict(matplotlib.rcParams) == before
