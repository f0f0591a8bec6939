"""Zooming in time and in addresses with a wheel, fingers, keys and buttons."""

import numpy as np
import pytest

from kvviz.view import block_map, page_map, timeline
from tests.player import pagelogs, traces
from tests.player.browser import MAP, PLAYER, at_event, colors_at, drawn, player, rgb, seek, spot
from tests.player.traces import MIB

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def crowded():
    return traces.crowded()


def window(page):
    return player(page, "[zoom.from, zoom.to]")


def places(page):
    return player(page, "[zoom.low, zoom.high]")


def shown(page):
    return page.locator(".shown").text_content()


def box_of(page, which):
    return page.locator(f"canvas.{which}").bounding_box()


def ctrl_and_wheel(page, by):
    """Four times, each in a frame of its own: the browser puts together what comes within one."""
    page.keyboard.down("Control")
    for _ in range(4):
        page.mouse.wheel(0, by)
        drawn(page)
    page.keyboard.up("Control")


def touch(page, kind, *points):
    if not hasattr(page, "fingers"):  # one session: it knows which fingers are down
        page.fingers = page.context.new_cdp_session(page)
    places = [{"x": x, "y": y, "id": k} for k, (x, y) in enumerate(points)]
    page.fingers.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": places})
    drawn(page)


def pinch(page, one, two, spread):
    """Two fingers at one and two go `spread` px apart, each its half."""
    touch(page, "touchStart", one, two)
    for k in range(1, 6):
        step = spread * k / 10
        touch(page, "touchMove", (one[0] - step, one[1]), (two[0] + step, two[1]))
    touch(page, "touchEnd")


# -- time ------------------------------------------------------------------------------------------------------------


def test_ctrl_and_wheel_zoom_time_where_the_pointer_is(open_page, crowded):
    page = open_page(block_map(crowded, start=0))
    n, box = len(crowded), box_of(page, "line")
    assert shown(page) == "" and window(page) == [0, n]
    x, y = box["x"] + box["width"] * 0.75, box["y"] + 60
    page.mouse.move(x, y)
    before = player(page, "timeline.eventAt(argument)", box["width"] * 0.75)
    ctrl_and_wheel(page, -100)
    low, high = window(page)
    assert high - low < n / 6
    assert abs(player(page, "timeline.eventAt(argument)", box["width"] * 0.75) - before) <= n / box["width"]
    assert shown(page) == f"showing events {low:,} to {high:,} of {n:,}"
    assert f"; {shown(page)}" in page.locator("canvas.map").get_attribute("aria-label")
    page.mouse.dblclick(x, y)
    drawn(page)
    assert window(page) == [0, n] and shown(page) == "" and page.troubles == []


def test_a_plain_wheel_scrolls_the_page_until_the_player_has_the_focus(open_page, crowded):
    page = open_page(block_map(crowded, start=0).html + "<p style='height: 3000px'></p>")
    box = box_of(page, "line")
    player(page, "(zoom.time.set(2000, 4000), zoom.tell())")
    page.mouse.move(box["x"] + 300, box["y"] + 60)
    page.mouse.wheel(0, 100)
    page.wait_for_function("() => scrollY === 100")  # it has come to rest
    assert window(page) == [2000, 4000]
    page.evaluate("scrollTo(0, 0)")
    page.evaluate("document.querySelector('.kvviz-player').shadowRoot.querySelector('.box').focus()")
    page.mouse.wheel(0, -300)
    page.wait_for_function(f"() => {PLAYER}.zoom.to - {PLAYER}.zoom.from < 1600")
    assert page.evaluate("scrollY") == 0
    middle = box_of(page, "map")
    page.mouse.move(middle["x"] + 300, middle["y"] + 60)
    page.mouse.wheel(0, 100)
    page.wait_for_function("() => scrollY > 50")
    assert not player(page, "zoom.placed"), "over the map a plain wheel is the page's"


def test_keys_and_buttons_zoom_around_the_cursor(open_page, crowded):
    n = len(crowded)
    page = open_page(block_map(crowded, start=3000))
    page.keyboard.press("Tab")
    for _ in range(3):
        page.keyboard.press("+")
    low, high = window(page)
    assert (high - low) == pytest.approx(n / 8, abs=2) and (3000 - low) / (high - low) == pytest.approx(
        3000 / n, abs=0.01
    )
    page.keyboard.press("-")
    low, high = window(page)
    assert (high - low) == pytest.approx(n / 4, abs=2)
    page.keyboard.press("Alt+ArrowRight")
    moved = window(page)
    assert moved[0] - low == pytest.approx((high - low) / 4, abs=2) and moved[1] - moved[0] == pytest.approx(
        high - low, abs=1
    )
    page.keyboard.press("0")
    assert window(page) == [0, n]
    page.get_by_role("button", name="Zoom in on events").click()
    assert window(page)[1] - window(page)[0] == pytest.approx(n / 2, abs=2)
    everything = page.get_by_role("button", name="Everything")
    assert everything.get_attribute("aria-disabled") == "false"
    everything.click()
    assert window(page) == [0, n] and everything.get_attribute("aria-disabled") == "true"
    for _ in range(30):
        page.keyboard.press("+")
    low, high = window(page)
    assert 16 <= high - low <= 17 and low <= 3000 <= high
    page.keyboard.press("Escape")
    assert window(page) == [0, n] and page.troubles == []


def test_the_window_follows_whoever_moves_the_cursor(open_page, crowded):
    n = len(crowded)
    page = open_page(block_map(crowded, start=4000))
    page.keyboard.press("Tab")
    for _ in range(6):
        page.keyboard.press("+")
    for key, event in (("End", n), ("[", n - 1), ("p", crowded.peak_event + 1), ("Home", 0), ("]", 100), ("o", n - 1),
                       ("o", n), ("o", n - 1)):  # fmt: skip
        page.keyboard.press(key)
        at_event(page, event, n)
        low, high = window(page)
        assert low <= event <= high and high - low < n / 30, key
    drawn(page)
    low, high = window(page)
    assert shown(page) == f"showing events {low:,} to {high:,} of {n:,}"
    page.keyboard.press("Alt+ArrowLeft")
    page.keyboard.press("Alt+ArrowLeft")
    page.keyboard.press("Alt+ArrowLeft")
    page.keyboard.press("Alt+ArrowLeft")
    drawn(page)
    assert window(page)[1] < n - 1, "who looks elsewhere is not called back"


def test_the_strip_tells_and_moves_the_window(open_page, crowded):
    n = len(crowded)
    page = open_page(block_map(crowded, start=0))
    box = box_of(page, "line")
    y = box["y"] + box["height"] - 6
    page.mouse.click(box["x"] + box["width"] / 2, y)
    page.wait_for_function(
        f"n => Math.abs({PLAYER}.model.pos - n / 2) < 10", arg=n
    )  # all is shown: there is no strip yet
    player(page, "(zoom.time.set(0, argument), zoom.tell())", n / 10)
    drawn(page)
    at = player(page, "timeline.grip()")
    assert at["left"] == 0 and at["size"] == pytest.approx(box["width"] / 10, abs=1)
    page.mouse.move(box["x"] + at["size"] / 2, y)
    page.mouse.down()
    page.mouse.move(box["x"] + at["size"] / 2 + box["width"] * 0.45, y, steps=5)
    page.mouse.up()
    drawn(page)
    low, high = window(page)
    assert low == pytest.approx(0.45 * n, abs=0.01 * n) and high - low == pytest.approx(n / 10, abs=2)
    assert abs(player(page, "model.pos") - n / 2) < 10, "the cursor stays"
    page.mouse.click(box["x"] + box["width"] * 0.9, y)
    drawn(page)
    assert sum(window(page)) / 2 == pytest.approx(0.9 * n, abs=0.01 * n)
    page.mouse.click(box["x"] + box["width"] / 2, box["y"] + 60)
    at_event(page, player(page, "timeline.eventAt(argument)", box["width"] / 2), n)


def test_the_zoomed_curve_is_that_of_the_trace(open_page, crowded):
    page = open_page(timeline(crowded))
    player(page, "(zoom.time.set(500.4, 700.2), zoom.tell())")
    drawn(page)
    values, most = crowded.curves().allocated, int(crowded.curves().reserved.max())
    heights = player(page, "[...timeline.outline(model.series[1].values)]")
    states = 500 + np.floor(np.arange(len(heights)) / len(heights) * 202).astype(int)
    expected = 102 - 82 * values[states] / most
    assert np.abs(np.array(heights) - expected).max() < 0.01
    assert "showing events 500 to 701 of" in page.locator("canvas[role=img]").get_attribute("aria-label")


def test_two_fingers_zoom_time(open_page, crowded):
    n = len(crowded)
    page = open_page(block_map(crowded, start=0), has_touch=True)
    page.locator("canvas.line").scroll_into_view_if_needed()
    box = box_of(page, "line")
    x, y = box["x"] + box["width"] * 0.5, box["y"] + 50
    pinch(page, (x - 50, y), (x + 50, y), 300)
    low, high = window(page)
    assert (high - low) == pytest.approx(n / 4, rel=0.02) and (low + high) / 2 == pytest.approx(n / 2, rel=0.02)
    touch(page, "touchStart", (x - 100, y), (x + 100, y))
    touch(page, "touchMove", (x - 200, y), (x, y))
    touch(page, "touchEnd")
    assert (window(page)[0] - low) == pytest.approx((high - low) * 100 / box["width"], rel=0.2)


def test_the_page_maps_timeline_zooms_too(open_page):
    log = pagelogs.showcase()
    page = open_page(page_map(log, start=len(log)))
    page.keyboard.press("Tab")
    page.keyboard.press("+")
    low, high = window(page)
    assert high == len(log) and 0 < low and high - low < len(log)
    page.keyboard.press("Home")
    at_event(page, 0, len(log))
    assert window(page)[0] == 0 and window(page)[1] < len(log)
    assert page.get_by_role("button", name="Zoom in on addresses").count() == 0
    page.keyboard.press("0")
    assert window(page) == [0, len(log)] and page.troubles == []


# -- addresses -------------------------------------------------------------------------------------------------------


def test_ctrl_and_wheel_zoom_the_map_where_the_pointer_is(open_page, crowded):
    page = open_page(block_map(crowded))
    whole, box = places(page), box_of(page, "map")
    assert whole == [0, 460 * 2048]
    place = 45 * MIB // 512  # in the third segment
    x, y = spot(page, place)
    page.mouse.move(box["x"] + x, box["y"] + y + 10)
    ctrl_and_wheel(page, -60)
    low, high = places(page)
    assert (high - low) < (whole[1]) / 4 and low < place < high
    under = player(page, "map.unitUnder(...argument)", [x, y + 10])
    line = player(page, "map.width / map.flow.scale")
    assert abs(under - place) < 1.2 * line, "about where it was"
    told = page.locator("canvas.map").get_attribute("aria-label")
    assert shown(page).endswith("MiB of 460 MiB") and "; showing " in told
    height = box_of(page, "map")["height"]
    assert height == box["height"], "nothing below it moves"
    page.keyboard.press("Tab")
    page.keyboard.press("0")
    drawn(page)
    assert places(page) == whole and shown(page) == ""


def test_a_double_click_fills_the_map_with_a_segment_and_back(open_page, crowded):
    page = open_page(block_map(crowded, start=len(crowded)))
    box = box_of(page, "map")
    third = spot(page, 50 * MIB // 512)
    page.mouse.dblclick(box["x"] + third[0], box["y"] + third[1] + 10)
    drawn(page)
    low, high = places(page)
    assert low == pytest.approx(40 * 2048, abs=2048) and high == pytest.approx(60 * 2048, abs=2048)
    assert shown(page) == "showing 21.60 MiB of 460 MiB"
    middle = box["height"] / 2 - 12
    x = box["width"] / 3
    weights = rgb(crowded.owners)["weights"]
    assert weights in colors_at(page, x, middle) or weights in colors_at(page, x, middle - 32)
    page.mouse.dblclick(box["x"] + 400, box["y"] + 40)
    drawn(page)
    assert not player(page, "zoom.placed")


def test_the_map_moves_with_alt_and_a_mouse_a_finger_or_keys(open_page, crowded):
    page = open_page(block_map(crowded), has_touch=True)
    box = box_of(page, "map")
    player(page, "(zoom.place.set(2e5, 4e5), zoom.tell())")
    drawn(page)
    page.evaluate(f"{MAP}.addEventListener('click', () => window.clicks = (window.clicks || 0) + 1)")
    scale = player(page, "map.flow.scale")
    page.keyboard.down("Alt")
    page.mouse.move(box["x"] + 300, box["y"] + 40)
    page.mouse.down()
    page.mouse.move(box["x"] + 200, box["y"] + 40, steps=4)
    page.mouse.up()
    page.keyboard.up("Alt")
    assert places(page)[0] == pytest.approx(2e5 + 100 / scale, rel=1e-3)
    assert page.evaluate("window.clicks") is None, "a drag is no click"
    page.mouse.click(box["x"] + 300, box["y"] + 40)
    assert page.evaluate("window.clicks") == 1
    low = places(page)[0]
    page.mouse.move(box["x"] + 300, box["y"] + 40)
    page.mouse.down()
    page.mouse.move(box["x"] + 200, box["y"] + 40)
    page.mouse.up()
    assert places(page)[0] == low, "a mouse alone does not move it"
    y = box["y"] + 40
    touch(page, "touchStart", (box["x"] + 400, y))
    touch(page, "touchMove", (box["x"] + 430, y))
    touch(page, "touchMove", (box["x"] + 460, y))
    touch(page, "touchEnd")
    assert places(page)[0] == pytest.approx(low - 60 / scale, rel=0.02)
    low = places(page)[0]
    page.keyboard.press("Alt+ArrowDown")
    assert places(page)[0] == pytest.approx(low + player(page, "map.width") / scale, rel=1e-3)
    page.keyboard.press("Alt+ArrowUp")
    assert places(page)[0] == pytest.approx(low, rel=1e-6)


def test_two_fingers_zoom_the_map(open_page, crowded):
    page = open_page(block_map(crowded), has_touch=True)
    box = box_of(page, "map")
    x, y = box["x"] + box["width"] / 2, box["y"] + 40
    pinch(page, (x - 40, y), (x + 40, y), 240)
    low, high = places(page)
    assert high - low == pytest.approx(460 * 2048 / 4, rel=0.02)


def test_z_zooms_to_what_happened_and_folding_shows_all(open_page):
    trace = traces.settled()
    page = open_page(block_map(trace))
    page.keyboard.press("Tab")
    page.keyboard.press("z")
    drawn(page)
    address = player(page, "model.happened()[0].address")
    assert player(page, "map.screen.project(argument, argument + 1)", address) == 1
    total = player(page, "map.pieces.total")
    low, high = places(page)
    assert high - low == pytest.approx(total / 4, rel=1e-6)
    page.keyboard.press("Shift+Z")
    drawn(page)
    assert not player(page, "zoom.placed")
    page.keyboard.press("z")
    page.keyboard.press("f")
    drawn(page)
    assert not player(page, "zoom.placed") and player(page, "map.pieces.total") > total
    assert page.troubles == []


def test_what_happens_beyond_the_edges_is_said(open_page, crowded):
    page = open_page(block_map(crowded, start=20))  # the last event is in the first segment
    label, told = page.locator("canvas.map"), "the last event lies outside what is shown"
    assert told not in label.get_attribute("aria-label")
    for low, high, side in ((2e5, 4e5, -1), (0, 8, 1), (0, 2e5, 0)):
        player(page, "(zoom.place.set(...argument), zoom.tell())", [low, high])
        drawn(page)
        if side == 1:
            seek(page, len(crowded) - 3)  # now in the second
        assert player(page, "map.elsewhere()") == side
        assert (told in label.get_attribute("aria-label")) == (side != 0)
    ink = [0x1F, 0x23, 0x28]
    seek(page, 20)
    player(page, "(zoom.place.set(2e5, 4e5), player.draw())")
    assert colors_at(page, 3, 6).count(ink) > 10, "a note in the corner"
