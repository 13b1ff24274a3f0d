"""``site configure``: what it asks, shows, tries and writes."""

import difflib
import json
import stat
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.shell_completion import ShellComplete

from fakes.cli import refused, run, run_json
from fakes.drafts import draft, task
from fakes.image_files import picture
from peer.cli import main
from peer.cli.configure import Interview, take_layers
from peer.errors import ModelError
from peer.lab.demo.local_federation import free_ports
from peer.site.config.toml_edit import edit

CALL = ("site", "configure")
QUICK = (*CALL, "--no-try", "--yes")


@pytest.fixture(autouse=True)
def site_toml(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of `site init`, and beside the working folder a datalist of six pictures."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MHFL_HOME", str(tmp_path / "home"))
    listen, metrics = free_ports(2)
    site = {"name": "asia", "address": f"127.0.0.1:{listen}"}
    Path("draft.toml").write_text(draft("trial", method="local", task=task(2), site=[site]))
    run_json("federation", "create", "draft.toml", "--out", "ca")
    run_json("site", "init", "--federation", "ca/federation.toml", "--site", "asia")
    Path("scans").mkdir()
    for index in range(6):
        picture(Path(f"scans/{index}.png"), (np.arange(40 * 48).reshape(40, 48) + index) % 251)
    items = [{"image": f"{index}.png", "label": index % 2, "subject": str(index)} for index in range(6)]
    Path("scans/list.json").write_text(json.dumps({"training": items[:4], "test": items[4:]}))
    path = tmp_path / "home/trial/asia/site.toml"
    path.write_text(edit(path.read_text(), {"metrics.listen": f"127.0.0.1:{metrics}"}))
    return path


def answers(*words: str) -> str:
    return "".join(f"{word}\n" for word in words)


def changes(before: str, path: Path) -> list[str]:
    lines = difflib.ndiff(before.splitlines(keepends=True), path.read_text().splitlines(keepends=True))
    return [line.rstrip("\n") for line in lines if line[0] in "+-"]


def test_a_person_answers_questions(site_toml: Path, tmp_path: Path) -> None:
    before = site_toml.read_text()
    site_toml.chmod(0o640)
    words = ("missing.json", "scans/list.json", "48x48x1", "", "max", "unit", "1", "0.25", "resnet1", "resnet18",
             "", "", "y")  # fmt: skip
    result = run(*CALL, "--no-try", answer=answers(*words))
    assert result.exit_code == 0, result.output
    assert "missing.json cannot be read" in result.output
    assert "(the files: 40x48 (6))" in result.output
    assert "[data] input_size [48x48]" in result.output
    assert "3 sides, and [task] spatial_dims is 2; write 64x64" in result.output
    assert "[data] normalise [zscore]" in result.output
    assert "take zscore, unit or none" in result.output
    assert "[data] validation_share [0.2]" in result.output
    assert "write a share such as 0.2" in result.output
    assert "did you mean 'resnet" in result.output
    assert changes(before, site_toml) == [
        '- datalist = "datalist.json"', f'+ datalist = "{tmp_path}/scans/list.json"',
        "- input_size = [224, 224]", "+ input_size = [48, 48]",
        "- #validation_share = 0.0", "+ validation_share = 0.25", '- normalise = "zscore"', '+ normalise = "unit"',
        '- name = "resnet10"', '+ name = "resnet18"',
    ]  # fmt: skip
    assert '+name = "resnet18"' in result.output
    assert stat.S_IMODE(site_toml.stat().st_mode) == 0o640


def test_a_script_gives_settings(site_toml: Path, tmp_path: Path) -> None:
    settings = ("data.datalist=scans/list.json", "training.batch_size=2", "model.parameters.width=8")
    words = [word for setting in settings for word in ("--set", setting)]
    result = run(*QUICK, *words, "--json")
    document = json.loads(result.stdout)
    assert document["written"] is True
    assert document["tried"] is False
    assert document["diff"] in result.stderr
    assert {row["key"]: row["after"] for row in document["changes"]} == {
        "data.datalist": f"{tmp_path}/scans/list.json", "data.input_size": [48, 48], "training.batch_size": 2,
        "model.parameters.width": 8, "data.validation_share": 0.2,
    }  # fmt: skip
    again = json.loads(run(*QUICK, "--json").stdout)
    assert (again["changes"], again["diff"], again["written"]) == ([], "", False)


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("scans/list.json", "", "", "", "", "", "", "n"), 0, "unchanged"),
        (("scans/list.json",), 2, "standard input ended"),
    ],
)
def test_who_declines_or_does_not_answer_changes_nothing(
    site_toml: Path, words: tuple[str, ...], code: int, said: str
) -> None:
    before = site_toml.read_bytes()
    result = run(*CALL, "--no-try", answer=answers(*words))
    assert (result.exit_code, site_toml.read_bytes()) == (code, before)
    assert said in result.output


def test_a_change_that_fails_is_not_written_unless_a_person_keeps_it(site_toml: Path) -> None:
    before = site_toml.read_bytes()
    Path("scans/5.png").unlink()
    words = ("--set", "data.datalist=scans/list.json")
    result = run(*CALL, *words, "--yes")
    assert result.exit_code == 16
    assert "scans/5.png" in result.stderr
    assert "The trial failed; " in result.stdout
    assert site_toml.read_bytes() == before
    kept = run(*CALL, *words, answer=answers("", "", "", "", "", "", "y", "y"))
    assert kept.exit_code == 0, kept.output
    assert "scans/list.json" in site_toml.read_text()


@pytest.mark.parametrize(
    ("setting", "reason"),
    [
        ("data.datlist=x", "[data] has no key 'datlist' (did you mean 'datalist'?)"),
        ("modle.name=x", "site.toml has no key 'modle' (did you mean 'model'?)"),
        ("model.name", "write KEY=VALUE"),
        ("data.datalist=scans", "mhfl-peer data import"),
        ("data.datalist=labels.csv", "mhfl-peer data import"),
        ("model.name=unet", "unet is for segmentation"),
        ("data.normalise=minmax", "take zscore, unit or none"),
        ("data.validation_share=1", "write a share such as 0.2"),
        ("data.input_size=64", "1 sides, and [task] spatial_dims is 2"),
        ("listen=7443", "'7443' is not host:port"),
    ],
)
def test_a_wrong_setting_is_refused_with_its_key(site_toml: Path, setting: str, reason: str) -> None:
    before = site_toml.read_bytes()
    words = () if setting.startswith("data.data") else ("--set", "data.datalist=scans/list.json")
    message = refused("UsageError", *QUICK, *words, "--set", setting, "--json")
    assert reason in message
    assert setting.partition("=")[0] in message
    assert site_toml.read_bytes() == before


def test_a_value_that_the_schema_refuses_is_not_written(site_toml: Path) -> None:
    before = site_toml.read_bytes()
    words = ("--set", "data.datalist=scans/list.json", "--set", "training.batch_size=0", "--json")
    assert "training.batch_size" in refused("ConfigError", *QUICK, *words)
    assert site_toml.read_bytes() == before


def test_ports_of_neighbours_are_avoided(site_toml: Path, tmp_path: Path) -> None:
    other = tmp_path / "home/other/europe"
    other.mkdir(parents=True)
    (other / "federation.toml").touch()
    own = tomllib.loads(site_toml.read_text())["listen"]
    (other / "site.toml").write_text(f'listen = "{own}"\n[data]\ninput_size = [8]\n')
    run(*QUICK, "--site", "asia", "--set", "data.datalist=scans/list.json")
    assert tomllib.loads(site_toml.read_text())["listen"] != own


def test_a_site_that_has_begun_is_offered_the_preparation_that_it_trains_with(site_toml: Path) -> None:
    text = site_toml.read_text().replace('\nnormalise = "zscore"', '\n#normalise = "none"')
    site_toml.write_text(text)
    (site_toml.parent / "gen-0001").mkdir()
    run(*QUICK, "--set", "data.datalist=scans/list.json")
    data = tomllib.loads(site_toml.read_text())["data"]
    assert (data["normalise"], data["validation_share"]) == ("none", 0.0)


def test_only_a_person_or_an_option_permits_evaluation(site_toml: Path) -> None:
    def permitted() -> bool | None:
        return tomllib.loads(site_toml.read_text())["egress"].get("evaluate")

    federation = site_toml.parent / "federation.toml"
    federation.write_text(edit(federation.read_text(), {"global_test": True, "method.name": "fedvisit"}))
    data = ("--set", "data.datalist=scans/list.json")
    assert "--set egress.evaluate=true" in run(*QUICK, *data).output
    assert permitted() is None
    assert "write true or false" in refused("UsageError", *QUICK, "--set", "egress.evaluate=1", "--json")
    result = run(*CALL, "--no-try", answer=answers("", "", "", "", "", "", "", "", "y"))
    assert "[egress] evaluate [true]" in result.output
    assert permitted() is True
    run(*QUICK, "--set", "egress.evaluate=false")
    assert permitted() is False
    run(*QUICK)
    assert permitted() is False


def test_a_link_stays_and_its_file_changes(site_toml: Path, tmp_path: Path) -> None:
    target = tmp_path / "managed.toml"
    site_toml.rename(target)
    site_toml.symlink_to(target)
    run(*QUICK, "--set", "data.datalist=scans/list.json")
    assert site_toml.is_symlink()
    assert "scans/list.json" in target.read_text()


LAYERS = {
    "name": "monai.networks.nets.SEResNet50", "features": ["layer1"], "head": "last", "problem": None,
    "hyper": {"dropout_prob": 0.1, "act": None}, "weights": "bundle", "weights_sha256": "0" * 64,
}  # fmt: skip


def test_a_bundle_answers_everything_about_its_network() -> None:
    given = {"model.head": "own"}
    interview = Interview({}, given, takes_proposals=True, to_stderr=True, answers=dict(given))
    take_layers(interview, LAYERS, Path("/srv/bundle"))
    assert interview.answers == {
        "model.name": "monai.networks.nets.SEResNet50", "model.features": ["layer1"], "model.head": "own",
        "model.parameters.dropout_prob": 0.1, "model.weights": "/srv/bundle", "model.weights_sha256": "0" * 64,
    }  # fmt: skip


def test_a_network_without_a_head_is_refused_with_the_key() -> None:
    interview = Interview({}, {}, takes_proposals=True, to_stderr=True, answers={})
    with pytest.raises(ModelError, match=r"\[model\] head: .* something happens after; give --set model\.head=LAYER"):
        take_layers(interview, {**LAYERS, "head": None, "problem": "something happens after"}, None)


def test_a_shell_completes_keys() -> None:
    completion = ShellComplete(main, {}, "mhfl-peer", "_MHFL_PEER_COMPLETE")
    offered = completion.get_completions(["site", "configure", "--set"], "data.in")
    assert [item.value for item in offered] == ["data.input_size=", "data.intensity="]


@pytest.mark.nightly
def test_a_network_from_elsewhere_is_tried(site_toml: Path) -> None:
    settings = ("data.datalist=scans/list.json", "model.name=monai.networks.nets.SEResNet50", "training.batch_size=2")
    words = [word for setting in settings for word in ("--set", setting)]
    document: Any = json.loads(run(*CALL, *words, "--yes", "--json").stdout)
    assert document["written"] is True, document["findings"]
    assert [finding["subject"] for finding in document["findings"]][:3] == ["data", "worker", "rehearsal"]
    model = tomllib.loads(site_toml.read_text())["model"]
    assert (model["features"][-1], model["head"]) == ("layer4", "last_linear")
    run(*QUICK, "--set", "model.name=resnet10")
    assert "features" not in tomllib.loads(site_toml.read_text())["model"]
