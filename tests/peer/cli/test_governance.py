"""What `federation show` says of a site's chain, for people."""

from fakes.cli import refused, run, run_json
from fakes.governed import SILENT, GovernedFederation


def test_show_without_an_amendment(founded: GovernedFederation) -> None:
    words = ("--home", founded.home, "federation", "show", "--site", "asia")
    document = run_json(*words)
    assert document["head"] == {"number": 0, "digest": founded.federation.digest}
    assert [member["name"] for member in document["members"]] == ["asia", "europe"]
    shown = run(*words).stdout
    assert "federation.toml: no amendment" in shown
    assert f"{SILENT}:2" in shown


def test_show_takes_a_file_or_a_site(founded: GovernedFederation) -> None:
    file = founded.ca / "federation.toml"
    assert "two things to show" in refused("UsageError", "federation", "show", file, "--site", "asia")
    several = refused("UsageError", "--home", founded.home, "federation", "show")
    assert "several sites live under" in several
