"""The adversarial member knows every call of the protocol: a new one must be tried before its test can pass."""

from pathlib import Path

from adversary import attacks
from adversary.member import MODEL, Member

from fakes.governed import GovernedFederation


def test_the_adversarial_member_breaks_a_rule_of_every_call(tmp_path: Path) -> None:
    folder = GovernedFederation.create(tmp_path, "asia", "europe").folder("asia")
    member = Member(folder.pki, folder.federation_toml, "asia", kind=MODEL, method="fedskd")
    wrong = [call.method for call in attacks.wrong_calls(member, "europe", 1)]
    assert {*wrong} == {*attacks.METHODS}
    assert min(map(wrong.count, attacks.METHODS)) >= 3, "one wrong field is hardly all"
    tried = {call.method for call in attacks.calls(member, "europe", 1)}
    assert tried == {*attacks.METHODS, "Reboot"}
