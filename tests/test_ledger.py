"""The ledger: verdicts follow from what was measured."""

import pytest

from kvviz import InvalidRequest, Ledger


def test_verdicts():
    ledger = Ledger()
    say = ledger.settle
    assert say(1, "a", True, "1 B", lesson="00").verdict == "holds"
    assert say(2, "b", True, "1 B", lesson="00", only="it rains").verdict == "holds if it rains"
    assert say(3, "c", False, "1 B", lesson="00").verdict == "does not hold"
    assert say(5, "d", None, "1 B", lesson="00", needs="a GPU").verdict == "not decidable on this machine (needs a GPU)"
    assert [entry.number for entry in ledger.entries] == [1, 2, 3, 5] and ledger.missing(6) == [4, 6]
    say(1, "a", False, "2 B", lesson="00")
    assert ledger.entries[0].verdict == "does not hold" and len(ledger.entries) == 4
    assert " 2  b\n    holds if it rains: 1 B (lesson 00)" in ledger.text


def test_a_table_for_notebooks():
    ledger = Ledger()
    ledger.settle(1, "a < b", True, "1 & 2", lesson="00")
    assert "a &lt; b" in (shown := ledger._repr_html_()) and "1 &amp; 2" in shown and "<b>holds</b>" in shown
    assert repr(Ledger()) == "<Ledger: nothing settled yet>"


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"holds": True, "measured": ""}, "claim 7: a verdict needs figures"),
        ({"holds": None, "measured": "1 B"}, "claim 7: say what it needs"),
        ({"holds": False, "measured": "1 B", "only": "it rains"}, "claim 7 does not hold: there is no condition"),
    ],
)
def test_no_verdict_without_a_ground(given, told):
    ledger = Ledger()
    with pytest.raises(InvalidRequest, match=told):
        ledger.settle(7, "c", lesson="00", **given)
    assert ledger.entries == []
