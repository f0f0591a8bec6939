"""What zooming and levels of detail compute, without a browser: their unit tests in node."""

from tests.player.node import HERE, run_node


def test_unit_tests_in_node():
    run_node("--test", str(HERE / "zoom.test.mjs"))
