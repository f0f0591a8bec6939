"""Zooming in time and in addresses with a wheel, fingers, keys and buttons; and what shares a pixel until one zooms in."""

import numpy as np
import pytest

from kvviz.memory.trace import Action, Events, Mark, Trace
from kvviz.view import block_map, page_map, timeline
from kvviz.view.theme import owners
from tests.player.browser import MAP, PLAYER, at_event, opener, seek
from tests.player.pagelogs import showcase as pages
from tests.player.traces import BASE, MIB, settled

pytestmark = pytest.mark.browser

SMALL = 9000  # blocks of 512 B in the first segment
NAMES = ["other", "weights", "KV cache"]
COLOR = {o.name: [int(o.color[k : k + 2], 16) for k in (1, 3, 5)] for o in owners(NAMES)}


@pytest.fixture
def open_page(chromium, tmp_path):
    yield from opener(chromium, tmp_path)


@pytest.fixture(scope="module")
def crowded():
    """Segments of 20, 20, 20 and 400 MiB. First: 9,000 blocks of 512 B, one in three of the cache; one block is alone in
    the second, 12 MiB lie in the third. Two requests found no room."""
    size = [20 * MIB, 20 * MIB, 20 * MIB, 400 * MIB, *[512] * SMALL, 512, 12 * MIB, 0, 0]
    where = [BASE, BASE + 20 * MIB, BASE + 40 * MIB, BASE + 60 * MIB, *(BASE + 512 * k for k in range(SMALL))]
    where += [BASE + 30 * MIB, BASE + 40 * MIB, 0, 0]
    action = [*[Action.SEGMENT_ALLOC] * 4, *[Action.ALLOC] * (SMALL + 2), Action.OOM, Action.OOM]
    owner = [*[0] * 4, *(2 if k % 3 == 0 else 1 for k in range(SMALL)), 2, 1, 0, 0]
    requested = [*size[:-2], 7 * MIB, 9 * MIB]
    n = len(size)
    events = Events.of(n, action=action, address=np.array(where, "u8"), size=size, requested=requested, owner=owner)
    return Trace(events, owners=NAMES, stacks=[], marks=[Mark(100, "early"), Mark(n - 50, "late")])


def player(page, script, argument=None):
    """A JavaScript expression that may name player, map, model, zoom, timeline."""
    names = f"const player = {PLAYER}, {{ map, model, zoom, timeline }} = player;"
    return page.evaluate(f"argument => {{ {names} return {script} }}", argument)


def drawn(page):
    """Wait until what was asked for is on the canvas."""
    page.evaluate("() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(1))))")


def window(page):
    return player(page, "[zoom.from, zoom.to]")


def places(page):
    return player(page, "[zoom.low, zoom.high]")


def shown(page):
    return page.locator(".shown").text_content()


def box_of(page, which):
    return page.locator(f"canvas.{which}").bounding_box()


def spot(page, place):
    """Left and top px of the stretch that begins at a place of the axis."""
    return player(
        page,
        "map.screen.project(argument, argument + 1) && [map.screen.left[0], map.screen.top(map.screen.line[0])]",
        place,
    )


def colors_at(page, x, y):
    """The colours of a column of the map's pixels, from y to y + 16 px."""
    return page.evaluate(
        f"""([x, y]) => {{ const d = {MAP}.getContext("2d").getImageData(x, y, 1, 16).data;
        return Array.from({{ length: 16 }}, (_, k) => [...d.slice(4 * k, 4 * k + 3)]) }}""",
        [x, y],
    )


def touch(page, kind, *points):
    if not hasattr(page, "fingers"):  # one session: it knows which fingers are down
        page.fingers = page.context.new_cdp_session(page)
    places = [{"x": x, "y": y, "id": k} for k, (x, y) in enumerate(points)]
    page.fingers.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": places})


def pinch(page, one, two, spread):
    """Two fingers at one and two go `spread` px apart, each its half."""
    touch(page, "touchStart", one, two)
    for k in range(1, 6):
        step = spread * k / 10
        touch(page, "touchMove", (one[0] - step, one[1]), (two[0] + step, two[1]))
    touch(page, "touchEnd")
    drawn(page)


# -- time ------------------------------------------------------------------------------------------------------------


def test_ctrl_and_wheel_zoom_time_where_the_pointer_is(open_page, crowded):
    page = open_page(block_map(crowded, start=0))
    n, box = len(crowded), box_of(page, "line")
    assert shown(page) == "" and window(page) == [0, n]
    x, y = box["x"] + box["width"] * 0.75, box["y"] + 60
    page.mouse.move(x, y)
    before = player(page, "timeline.eventAt(argument)", box["width"] * 0.75)
    page.keyboard.down("Control")
    for _ in range(4):
        page.mouse.wheel(0, -100)
    page.keyboard.up("Control")
    drawn(page)
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
    page.wait_for_function("() => scrollY > 50")
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
    drawn(page)
    assert (window(page)[0] - low) == pytest.approx((high - low) * 100 / box["width"], rel=0.2)


def test_the_page_maps_timeline_zooms_too(open_page):
    log = pages()
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
    page.keyboard.down("Control")
    for _ in range(4):
        page.mouse.wheel(0, -60)
    page.keyboard.up("Control")
    drawn(page)
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
    assert COLOR["weights"] in colors_at(page, x, middle) or COLOR["weights"] in colors_at(page, x, middle - 32)
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
    trace = settled()
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


# -- what shares a pixel ---------------------------------------------------------------------------------------------


def test_small_blocks_share_pixels_until_one_zooms_in(open_page, crowded):
    page = open_page(block_map(crowded, start=len(crowded)))
    player(page, "(map.drawEvent = () => {}, player.draw())")
    column = colors_at(page, 4, 2)
    assert column.count(COLOR["weights"]) == 12, "of each four rows three show who has the largest share"
    assert COLOR["KV cache"] not in column
    alone = spot(page, 30 * MIB // 512)
    assert colors_at(page, alone[0], alone[1] + 2) == [COLOR["KV cache"]] * 16, "alone in its pixel, it is all of it"
    tip = player(page, "map.tipAt(4, 10)")
    assert "small blocks in this pixel" in tip[-1] and tip[0].endswith("512 B")
    player(page, "(zoom.place.set(0, 600), zoom.tell())")
    drawn(page)
    row = player(page, "map.rowAt(4, 10)")
    assert player(page, "model.address[argument]", row) == 0 and player(page, "map.crowdAt(4, 10)") is None
    assert colors_at(page, 2, 2) == [COLOR["KV cache"]] * 16
    width = player(page, "map.flow.scale")
    assert width > 5 and colors_at(page, 2 + round(width), 2) == [COLOR["weights"]] * 16


def test_a_block_is_found_where_it_is_drawn(open_page, crowded):
    page = open_page(block_map(crowded, start=len(crowded)))
    for zoomed in (
        "",
        "zoom.place.set(0, 4000), zoom.tell(), player.draw(), ",
        "zoom.place.set(61000, 62000), zoom.tell(), player.draw(), ",
    ):
        wrong = player(
            page,
            f"""({zoomed} [...model.blocks.rows()].filter((row) => {{
            const from = model.address[row], to = from + model.size[row] / 512;
            if (!map.screen.project(from, to) || map.screen.right[0] - map.screen.left[0] < 3) return false;
            const x = (map.screen.left[0] + map.screen.right[0]) / 2;
            return map.rowAt(x, map.screen.top(map.screen.line[0]) + 4) !== row; }}))""",
        )
        assert wrong == []


def test_however_many_blocks_live_few_strokes_draw_them(open_page, crowded):
    page = open_page(block_map(crowded, start=len(crowded)))
    strokes = page.evaluate(
        f"""() => {{ let count = 0; const player = {PLAYER}, pen = player.mapPen;
        for (const name of ["fillRect", "fillText", "fill", "stroke", "strokeRect", "drawImage", "rect", "roundRect"]) {{
          const real = pen[name].bind(pen); pen[name] = (...all) => (count++, real(...all)); }}
        player.draw(); return count }}"""
    )
    assert strokes < 600


def test_what_is_filtered_out_is_faint_and_hides_nothing(open_page, crowded):
    page = open_page(block_map(crowded, start=len(crowded)))
    player(page, "(map.drawEvent = () => {}, map.veiled = (row) => model.owner[row] !== model.owner[0], player.draw())")
    # the first block is one of the cache's third: its share is smaller, but the rest is filtered out
    assert COLOR["KV cache"] in colors_at(page, 4, 2) and COLOR["weights"] not in colors_at(page, 4, 2)
    big = spot(page, 45 * MIB // 512)
    faint = colors_at(page, big[0], big[1] + 4)
    assert COLOR["weights"] not in faint and all(min(pixel) > 180 for pixel in faint), "its place is still seen"
    player(page, "(map.veiled = null, player.draw())")
    assert COLOR["weights"] in colors_at(page, big[0], big[1] + 4)


def test_colours_may_mean_something_else(open_page, crowded):
    page = open_page(block_map(crowded, start=len(crowded)))
    player(
        page,
        """(map.drawEvent = () => {}, map.paint = { inks: [{ name: "young", letter: "Y", color: "#123456", ink: "#ffffff" },
        { name: "old", letter: "O", color: "#fedcba", ink: "#000000" }],
        of: (row) => (model.born[row] < 4000 ? 1 : 0) }, player.layout())""",
    )
    assert [0xFE, 0xDC, 0xBA] in colors_at(page, 4, 2)
    big = spot(page, 51 * MIB // 512)
    assert [0x12, 0x34, 0x56] in colors_at(page, big[0], big[1] + 2)


@pytest.mark.parametrize("scale", [1, 1.5, 2])
def test_a_picked_block_has_a_frame_while_it_lives(open_page, crowded, scale):
    page = open_page(block_map(crowded, start=len(crowded)), device_scale_factor=scale)
    count = f"""() => {{ const c = {MAP}, d = c.getContext("2d").getImageData(0, 0, c.width, c.height).data;
        let n = 0; for (let k = 0; k < d.length; k += 4) n += d[k] === 9 && d[k + 1] === 105 && d[k + 2] === 218; return n }}"""
    assert page.evaluate(count) == 0
    player(
        page, "(map.picked = [...model.blocks.rows()].find((row) => model.size[row] === 12 * 2 ** 20), player.draw())"
    )
    framed = page.evaluate(count)
    assert framed > 40
    seek(page, 100)
    assert page.evaluate(count) == 0
    player(page, "(map.followed = true, player.draw())")
    assert 20 < page.evaluate(count) < framed, "dashed where it will lie"
    row = player(page, "map.picked")
    player(page, "(map.followed = false, zoom.place.set(0, 5000), map.reveal(argument), player.draw())", row)
    low, high = places(page)
    assert low <= 46 * 2048 <= high, "brought into view"
