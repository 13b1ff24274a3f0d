"""`methods`: every method with its stages and parameters, as the plans have them."""

from collections.abc import Callable

from fakes.cli import refused, run, run_json
from peer.methods.registry import PLANS


def test_every_method_has_a_line_with_what_it_sends() -> None:
    result = run("methods")
    assert result.exit_code == 0
    lines = {line.split()[0]: line for line in result.stdout.splitlines() if line.strip()}
    assert PLANS.keys() <= lines.keys()
    assert "head, to all" in lines["dflmoe"]
    assert "train:local → exchange → " in lines["dflmoe"]
    assert "also private parts: body, mixture" in lines["dflmoe"]
    assert "only what is sent" in lines["fedavg"]
    assert "no: sends nothing" in lines["local"]
    assert "model, to one" in lines["fedskd"]
    assert "nothing" in lines["local"]


def test_the_document_has_what_a_federation_toml_may_say() -> None:
    document = run_json("methods")
    assert [method["name"] for method in document] == list(PLANS)
    feddal = next(method for method in document if method["name"] == "feddal")
    assert feddal["never_leaves"] == ["model", "head"]
    assert feddal["shared_model"] == "beside"
    assert feddal["noised"] == "also private parts: model"
    assert feddal["stages"] == {
        "train": {"unit": "epoch", "count": 5, "learning_rate": 1e-4, "weight_decay": 1e-4, "final_rate": 1.0},
    }
    assert feddal["parameters"]["top"]["minimum"] == 1
    for method in document:
        assert method["parameters"].keys() == PLANS[method["name"]].parameters.keys()


def test_one_method_is_told_in_full() -> None:
    text = run("methods", "mh_pflid").stdout
    for words in ("inject", "distill", "injection", "0 to 1", "attention, addition", "true or false", "ICML 2024"):
        assert words in text
    assert "gamma" in run("methods", "fedskd").stdout
    assert "gamma" not in run("methods", "feddal").stdout


def test_an_unknown_method_is_a_usage_error() -> None:
    assert "no method 'fedsdk' (did you mean 'fedskd'?)" in refused("UsageError", "methods", "fedsdk")


def test_a_method_of_a_package_is_listed_with_what_federation_toml_must_name(distribution: Callable[..., None]) -> None:
    distribution("some-methods", "1.0", "mhfl_peer.methods", listed="peer.methods.fedskd.plan:FEDSKD")
    names = [line.split()[0] for line in run("methods").stdout.splitlines() if line.strip()]
    assert PLANS.keys() < set(names[: names.index("listed")])
    document = run_json("methods", "listed", "fedskd")
    assert [(method["name"], method.get("package")) for method in document] == [
        ("listed", "some-methods==1.0"),
        ("fedskd", None),
    ]
