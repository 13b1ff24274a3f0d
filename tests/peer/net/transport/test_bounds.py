"""Each bound holds at its edge, and its error shows the value."""

import pytest

from peer.core.artifacts import TensorSpec
from peer.net.transport import bounds
from peer.net.transport.bounds import WireError


@pytest.mark.parametrize(
    ("check", "reason"),
    [
        (lambda: bounds.at_most("f", 11, 10, "bytes"), "f has 11 bytes, over the limit of 10"),
        (lambda: bounds.number("f", -1), "f = -1 is outside 0 to 9007199254740992"),
        (lambda: bounds.number("f", 4, minimum=1, maximum=3), "f = 4 is outside 1 to 3"),
        (lambda: bounds.finite("f", float("nan"), maximum=1.0), "f = nan is outside 0 to 1"),
        (lambda: bounds.finite("f", float("inf"), maximum=1e300), "f = inf is outside"),
        (lambda: bounds.text("f", ""), "f is empty"),
        (lambda: bounds.text("f", "a\tb"), r"f 'a\\tb' has characters that cannot be printed"),
        (lambda: bounds.text("f", "äää", bytes_max=5), "f has 6 bytes, over the limit of 5"),
        (lambda: bounds.digest("f", "AB" * 32), "f: .* is not a SHA-256 digest"),
        (lambda: bounds.site("f", "-a"), "f: site name '-a'"),
        (lambda: bounds.known("f", {1: "one"}, 2), "f = 2 means nothing"),
        (lambda: bounds.json_object("f", '{"a": 1}', bytes_max=7), "f has 8 bytes, over the limit of 7"),
        (lambda: bounds.json_object("f", '"\ud800"', bytes_max=9), "f is not a JSON object"),
        (lambda: bounds.json_object("f", '{"a":-Infinity}', bytes_max=99), "f has the number -Infinity"),
        (lambda: bounds.specification("f", {"a": [[[[[[1]]]]]]}), "f.a.* is nested deeper than 6 levels"),
        (lambda: bounds.specification("f", {"a": b""}), "f.a is a bytes, which JSON cannot hold"),
    ],
)
def test_what_is_outside_is_refused_by_name(check, reason):
    with pytest.raises(WireError, match=reason):
        check()


def test_what_is_at_the_edge_is_taken():
    bounds.at_most("f", 10, 10, "bytes")
    assert bounds.number("f", 3, maximum=3) == 3
    assert bounds.finite("f", 1.0, maximum=1.0) == 1.0
    assert bounds.text("f", "", empty=True) == ""
    assert bounds.text("f", "äää", bytes_max=6) == "äää"
    assert bounds.json_object("f", '{"a": 1}', bytes_max=8) == {"a": 1}
    bounds.specification("f", {"a": [[[[[1, None, True, "x", 0.5]]]]]})


def test_tensor_bytes_counts_elements_times_their_size():
    assert bounds.tensor_bytes(TensorSpec("w", "BF16", (3, 5))) == 30
    assert bounds.tensor_bytes(TensorSpec("scalar", "F64", ())) == 8
    assert bounds.tensor_bytes(TensorSpec("none", "F32", (4, 0))) == 0
