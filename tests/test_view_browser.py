"""The player in a real browser: it mounts, moves, speaks, follows the theme, asks nothing of the network."""

import pytest

from kvviz import CachingAllocator, OutOfMemory
from kvviz.memory.trace import Events, Mark, Trace
from kvviz.view import block_map, bundle, charts, timeline
from kvviz.view.scene import Scene, format_bytes
from tests.player.browser import MAP, READY, at_event, drawn, figures, pixels, rgb, seek
from tests.player.traces import BASE, MIB, SlowMemory, settled, showcase

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def trace():
    return showcase()


def test_mounts_without_a_request_or_an_error(open_page, trace):
    page = open_page(block_map(trace))
    assert page.troubles == []
    assert all(url.startswith(("file:", "data:")) for url in page.requests) and len(page.requests) <= 2
    assert not page.locator("img").is_visible(), "the player stands where the still was"
    assert page.locator("canvas.map").get_attribute("role") == "img"
    at_event(page, trace.peak_event + 1, len(trace))
    assert page.get_by_text(trace.origin).is_visible()
    page.get_by_text("1 warning").click()
    assert page.get_by_text(trace.warnings[0]).is_visible()


@pytest.mark.parametrize("event", [0, 7, 40, 81])
def test_figures_are_those_of_the_trace(open_page, trace, event):
    page = open_page(block_map(trace, start=event))
    state = trace.at(event)
    for name in ("reserved", "allocated", "requested"):
        assert figures(page)[name] == format_bytes(getattr(state, name), fixed=True)
    held = {
        trace.owners[k]: int(state.blocks["size"][state.blocks["owner"] == k].sum()) for k in range(len(trace.owners))
    }
    for name, size in held.items():
        assert page.locator(f".legend li:has-text('{name}') b").first.text_content() == format_bytes(size)


def test_slider_moves_picture_and_words(open_page, trace):
    page = open_page(block_map(trace, start=0))
    before, slider = pixels(page), page.locator("input[type=range]")
    assert before == pixels(page), "a picture at rest stays as it is"
    slider.fill("40")
    at_event(page, 40, len(trace))
    assert pixels(page) != before and "after event 40 of" in slider.get_attribute("aria-valuetext")
    slider.fill("0")
    at_event(page, 0, len(trace))
    assert pixels(page) == before


def test_a_block_has_its_colour_where_it_lies_and_only_while_it_lives(open_page):
    memory = SlowMemory()
    memory.reserve(BASE, 20 * MIB)
    memory.alloc(BASE, 5 * MIB, 5 * MIB, owner=1)
    memory.alloc(BASE + 10 * MIB, 10 * MIB, 5 * MIB, owner=2)
    memory.free(BASE)
    trace = memory.trace(owners=["other", "weights", "KV cache"])
    page = open_page(block_map(trace, start=3))
    colors = rgb(trace.owners)

    def at(share):
        return page.evaluate(
            f"""share => {{ const c = {MAP}, g = c.getContext("2d");
            return [...g.getImageData(Math.floor(share * c.width), Math.floor(c.height * 0.15), 1, 1).data].slice(0, 3) }}""",
            share,
        )

    assert at(0.2) == colors["weights"]
    assert at(0.6) == colors["KV cache"]
    assert at(0.9) not in ([255, 255, 255], colors["KV cache"]), "what was not asked for is a tint"
    assert at(0.4) not in colors.values(), "cached memory has no owner"
    seek(page, 5)
    assert at(0.2) not in colors.values()
    seek(page, 4)
    assert at(0.6) == colors["KV cache"]


def test_a_block_far_below_a_pixel_is_still_seen(open_page):
    memory = SlowMemory()
    memory.reserve(BASE, 40 << 30)
    memory.alloc(BASE + (13 << 30), 512, 512, owner=1)
    trace = memory.trace(owners=["other", "weights"])
    page = open_page(block_map(trace))
    count = f"""() => {{ const c = {MAP}, d = c.getContext("2d").getImageData(0, 0, c.width, c.height).data;
        let n = 0; for (let k = 0; k < d.length; k += 4) n += d[k] === 0 && d[k + 1] === 0x72 && d[k + 2] === 0xb2;
        return n }}"""
    seek(page, 1)
    assert page.evaluate(count) == 0
    seek(page, 2)
    page.evaluate("document.querySelector('.kvviz-player').kvviz.map.drawEvent = () => {}")
    seek(page, 2)
    assert page.evaluate(count) >= 10


def test_keys(open_page, trace):
    page = open_page(block_map(trace, start=40))
    n = len(trace)
    page.keyboard.press("Tab")
    for key, event in (
        ("ArrowRight", 41), ("ArrowLeft", 40), ("Shift+ArrowRight", 41), ("Shift+ArrowLeft", 40), ("Home", 0),
        ("]", 12), ("]", 34), ("[", 12), ("End", n), ("[", 60), ("p", trace.peak_event + 1),
    ):  # fmt: skip
        page.keyboard.press(key)
        at_event(page, event, n)
    page.keyboard.press("Home")
    at_event(page, 0, n)
    page.keyboard.press("ArrowLeft")
    at_event(page, 0, n)
    page.keyboard.press("Space")
    page.wait_for_selector("button[aria-label=Pause]")
    page.keyboard.press("Space")
    page.wait_for_selector("button[aria-label=Play]")


def test_shift_is_a_hundredth_of_a_long_trace(open_page):
    trace = _long_trace()
    page = open_page(block_map(trace, start=500))
    page.keyboard.press("Tab")
    page.keyboard.press("Shift+ArrowRight")
    at_event(page, 500 + round(len(trace) / 100), len(trace))


def test_space_on_a_button_presses_that_button_only(open_page, trace):
    page = open_page(block_map(trace, start=40))
    page.get_by_label("Step forward").focus()
    page.keyboard.press("Space")
    at_event(page, 41, len(trace))
    assert page.get_by_label("Play").is_visible()


def test_buttons(open_page, trace):
    page = open_page(block_map(trace, start=40))
    for name, event in (("Step forward", 41), ("Step back", 40), ("Next mark", 60), ("Previous mark", 34),
                        ("Jump to the peak", trace.peak_event + 1)):  # fmt: skip
        page.get_by_label(name).click()
        at_event(page, event, len(trace))
    assert {b.get_attribute("aria-label") for b in page.locator("button").all()} >= {
        "Play",
        "Step back",
        "Step forward",
    }


def test_plays_to_the_end_and_begins_again(open_page, trace):
    page = open_page(block_map(trace, start=70))
    page.get_by_label("Speed").select_option("8")
    page.get_by_label("Play").click()
    at_event(page, len(trace), len(trace))
    page.get_by_label("Speed").select_option("0.25")  # so that a slow machine does not miss the beginning
    page.get_by_label("Play").click()
    page.wait_for_function("() => document.querySelector('.kvviz-player').kvviz.model.pos < 70")


@pytest.mark.parametrize(("motion", "starts"), [("no-preference", True), ("reduce", False)])
def test_autoplay_asks_for_leave(open_page, trace, motion, starts):
    page = open_page(block_map(trace, start=0, autoplay=True), reduced_motion=motion)
    assert page.get_by_label("Pause" if starts else "Play", exact=True).is_visible()
    if starts:
        page.wait_for_function("() => document.querySelector('.kvviz-player').kvviz.model.pos > 0")


def test_with_less_motion_play_shows_few_pictures(open_page, trace):
    page = open_page(block_map(trace, start=0), reduced_motion="reduce")
    page.evaluate("""() => { const p = document.querySelector('.kvviz-player').kvviz, draw = p.draw.bind(p);
        p.draws = []; p.draw = () => { p.draws.push(performance.now()); draw(); } }""")
    page.get_by_label("Play").click()
    page.wait_for_function("() => document.querySelector('.kvviz-player').kvviz.draws.length >= 3")
    times = page.evaluate("() => document.querySelector('.kvviz-player').kvviz.draws")
    assert all(later - earlier >= 500 for earlier, later in zip(times[1:], times[2:], strict=False))


def test_dragging_the_timeline_scrubs(open_page, trace):
    page = open_page(block_map(trace, start=0))
    box = page.locator("canvas.line").bounding_box()
    page.mouse.move(box["x"] + box["width"] * 0.25, box["y"] + 60)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.5, box["y"] + 60)
    at_event(page, round(len(trace) * 0.5), len(trace))
    page.mouse.up()
    page.mouse.move(box["x"] + box["width"] * 0.75, box["y"] + 60)
    drawn(page)
    assert f"after event {round(len(trace) * 0.75)}" in page.locator(".tip").text_content()
    at_event(page, round(len(trace) * 0.5), len(trace))


def test_tips_tell_what_lies_there(open_page, trace):
    page = open_page(block_map(trace, start=len(trace)))
    canvas = page.locator("canvas.map")
    canvas.hover(position={"x": 20, "y": 12})
    tip = page.locator(".tip")
    assert tip.is_visible()
    text = tip.text_content()
    requested, life = "requested 9.00 MiB (9,436,884 B)", "born at event 5, lives to the last event here"
    for part in ("weights · 9 MiB", requested, life, hex(BASE)):
        assert part in text
    page.evaluate("document.querySelector('.kvviz-player').kvviz.showTip(null)")
    assert not tip.is_visible()
    canvas.hover(position={"x": 1000, "y": 12})
    assert "cached, inactive · 2 MiB" in tip.text_content() and hex(BASE + 18 * MIB) in tip.text_content()


def test_folds_and_unfolds(open_page):
    trace = settled()
    page = open_page(block_map(trace))
    canvas, told = (
        page.locator("canvas.map"),
        "5 segments that never change (weights 88 MiB, index 7 MiB, inactive 5 MiB)",
    )
    show, fold = (page.get_by_role("button", name=name, exact=True) for name in ("Show all", "Fold"))

    def stands(folded):
        assert fold.get_attribute("aria-pressed") == str(folded).lower()
        assert show.get_attribute("aria-pressed") == str(not folded).lower()
        assert (told in canvas.get_attribute("aria-label")) == folded
        assert ("on another" in page.locator(".sub").text_content()) == folded
        return page.evaluate("document.querySelector('.kvviz-player').kvviz.map.flow.scale"), pixels(page)

    small = stands(True)
    show.click()
    full = stands(False)
    assert small[0] > 2 * full[0] and small[1] != full[1]
    page.keyboard.press("f")
    assert stands(True) == small
    page.keyboard.press("Control+f")
    assert stands(True) == small, "the browser's own key"
    page.keyboard.press("f")
    assert stands(False) == full
    at_event(page, trace.peak_event + 1, len(trace))
    page = open_page(block_map(trace, fold=False))
    assert stands_open(page) and page.troubles == []
    page = open_page(block_map(settled(0)))
    assert page.get_by_role("button", name="Fold", exact=True).count() == 0
    page.keyboard.press("Tab")
    page.keyboard.press("f")
    assert page.troubles == []


def stands_open(page):
    pressed = page.locator("button[aria-pressed=true]").all_text_contents()
    return pressed == ["Show all"] and "folded" not in page.locator("canvas.map").get_attribute("aria-label")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_folded_bar_tells_who_is_in_it(open_page, scheme):
    page = open_page(block_map(settled()), color_scheme=scheme)
    canvas, tip = page.locator("canvas.map"), page.locator(".tip")
    width = canvas.bounding_box()["width"]
    for share, head, others in (
        (0.5, "weights · 88 MiB", ["index · 7 MiB", "cached, inactive · 5 MiB"]),
        (0.91, "index · 7 MiB", ["weights · 88 MiB"]), (0.98, "cached, inactive · 5 MiB", []),
    ):  # fmt: skip
        canvas.hover(position={"x": width * share, "y": 9})
        assert tip.locator("b").text_content() == head
        text = tip.text_content()
        assert "in 5 segments that never change" in text and all(other in text for other in others)
    canvas.hover(position={"x": 60, "y": 23})
    assert not tip.is_visible(), "between the bar and the rows there is nothing"
    canvas.hover(position={"x": 60, "y": 42})
    assert "weights · 15 MiB" in tip.text_content() and hex(BASE + 400 * MIB) in tip.text_content()
    colors = rgb(["other", "weights", "KV cache", "index"])
    for share, name in ((0.7, "weights"), (0.91, "index")):
        pixel = page.evaluate(
            f"share => [...{MAP}.getContext('2d').getImageData(share * {MAP}.width, 5, 1, 1).data].slice(0, 3)", share
        )
        assert pixel == colors[name]


def test_the_timelines_scale_starts_late(open_page):
    trace = settled()
    page = open_page(timeline(trace))
    base = Scene(trace).base
    assert f"the scale starts at {base.text}" in page.locator("canvas[role=img]").get_attribute("aria-label")
    curves = trace.curves()
    for k, name in enumerate(("reserved", "allocated", "requested")):
        heights = page.evaluate(
            """k => { const { timeline, model } = document.querySelector('.kvviz-player').kvviz;
            return [...timeline.outline(model.series[k].values)] }""",
            k,
        )
        span, values = int(curves.reserved.max()) - base.size, getattr(curves, name)
        assert min(heights) == pytest.approx(102 - 82 * (int(values.max()) - base.size) / span, abs=0.01)
        assert max(heights) == pytest.approx(102 - 82 * (int(values.min()) - base.size) / span, abs=0.01)


def test_follows_the_page_theme_while_it_changes(open_page, trace):
    page = open_page(block_map(trace), color_scheme="light")
    light = pixels(page)

    def changes(script, then):
        page.evaluate(script)
        page.wait_for_function(f"data => ({MAP}.toDataURL() === data) === {then}", arg=light)

    changes("document.body.dataset.jpThemeLight = 'false'", "false")
    dark = pixels(page)
    changes("document.body.dataset.jpThemeLight = 'true'", "true")
    changes("delete document.body.dataset.jpThemeLight, document.body.className = 'vscode-dark'", "false")
    changes("document.body.className = 'vscode-high-contrast-light'", "true")
    changes("document.body.className = '', document.documentElement.setAttribute('theme', 'dark')", "false")
    changes("document.documentElement.removeAttribute('theme')", "true")
    page.emulate_media(color_scheme="dark")
    page.wait_for_function(f"data => {MAP}.toDataURL() === data", arg=dark)
    seek(page, 5)
    assert "after event 5 of" in page.locator("canvas.map").get_attribute("aria-label")
    assert page.troubles == []


def test_a_fixed_theme_stays(open_page, trace):
    page = open_page(block_map(trace, theme="dark"), color_scheme="light")
    ground = (
        "getComputedStyle(document.querySelector('.kvviz-player').shadowRoot.querySelector('.box')).backgroundColor"
    )
    assert page.evaluate(ground) == "rgb(13, 17, 23)"


@pytest.mark.parametrize("make", [block_map, timeline])
def test_without_scripts_the_still_picture_shows(open_page, trace, make):
    view = make(trace)
    page = open_page(view, ready=False, java_script_enabled=False)
    still = page.locator("img")
    assert still.is_visible() and still.get_attribute("alt") == view.words and still.bounding_box()["width"] > 800


def test_where_the_player_cannot_run_the_still_stays_and_says_so(open_page, trace):
    html = "<script>delete window.DecompressionStream</script>" + block_map(trace).html
    page = open_page(html, ready=False)
    page.get_by_text("The player could not start here").wait_for()
    assert page.locator("img").is_visible()


def test_a_program_that_cannot_be_read_leaves_the_still(open_page, trace, monkeypatch):
    monkeypatch.setattr(bundle, "player_source", lambda kind, shell="inline": "let;")
    bundle._program.cache_clear()
    try:
        page = open_page(block_map(trace).html, ready=False)
        page.get_by_text("The player could not start here (this browser cannot read its program)").wait_for()
        assert page.locator("img").is_visible()
    finally:
        bundle._program.cache_clear()


def test_an_output_that_is_cleared_while_it_unpacks(open_page, trace):
    """And the program is unpacked once, whatever number of pictures wait for it."""
    clear = "<script type=module>document.querySelector('#a').replaceChildren()</script>"
    html = block_map(trace).html
    page = open_page(f"<div id=a>{html}</div>{clear}<div id=b>{html}</div><div id=c>{block_map(trace, start=3).html}</div>")
    page.wait_for_function(f"() => document.querySelectorAll('{READY}').length === 2")
    assert page.locator("#a .kvviz-player").count() == 0 and page.troubles == []
    assert page.evaluate("Object.keys(globalThis.kvviz).length") == 2, "one program, and the last that began"


@pytest.mark.parametrize("width", [320, 360, 768, 3840])
def test_fits_any_width(open_page, trace, width):
    page = open_page(block_map(trace), width=width)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.wait_for_function(  # a scroll bar may come with the first layout; the next frame takes it in
        f"""() => Math.abs({MAP}.width
          - document.querySelector('.kvviz-player').kvviz.mapCanvas.getBoundingClientRect().width) < 1.5"""
    )
    for button in page.locator("button").all():
        assert button.bounding_box()["height"] >= 24


def test_lays_out_anew_when_the_width_changes(open_page, trace):
    page = open_page(block_map(trace), width=1200)
    height = page.locator("canvas.map").bounding_box()["height"]
    page.set_viewport_size({"width": 420, "height": 900})
    page.wait_for_function(f"() => {MAP}.width < 420")
    assert page.locator("canvas.map").bounding_box()["height"] > height


def test_a_detached_player_keeps_its_width(open_page, trace):
    page = open_page(block_map(trace), width=1000)
    width = page.evaluate(f"{MAP}.width")
    page.evaluate("""() => { window.host = document.querySelector('.kvviz-player'); window.home = host.parentNode;
        host.remove(); document.body.dataset.jpThemeLight = 'false'; }""")
    drawn(page)
    assert page.evaluate("() => host.shadowRoot.querySelector('canvas.map').width") == width
    page.evaluate("() => home.append(host)")
    page.wait_for_function(f"width => {MAP}.width === width", arg=width)
    seek(page, 3)
    at_event(page, 3, len(trace))
    assert page.troubles == []


def test_the_same_picture_twice_and_drawn_again(open_page, trace):
    html = block_map(trace).html
    page = open_page(f"<div id=a>{html}</div><div id=b>{html}</div>")
    page.wait_for_function(f"() => document.querySelectorAll('{READY}').length === 2")
    page.evaluate("document.querySelectorAll('.kvviz-player')[1].kvviz.seek(5)")
    assert "after event 5 " in page.locator("#b canvas.map").get_attribute("aria-label")
    assert "after event 5 " not in page.locator("#a canvas.map").get_attribute("aria-label")
    # a notebook draws an output anew by putting in the markup and running its scripts
    page.evaluate(
        """html => { const home = document.querySelector('#a'); home.innerHTML = html;
        const old = home.querySelector('script'), script = document.createElement('script');
        script.type = old.type; script.textContent = old.textContent; old.replaceWith(script); }""",
        html,
    )
    page.wait_for_selector(f"#a {READY}")
    assert "after event 5 " in page.locator("#b canvas.map").get_attribute("aria-label"), "the other one is left alone"
    assert page.troubles == []


def test_nothing_at_all(open_page):
    page = open_page(block_map(Trace(Events.of(0))))
    at_event(page, 0, 0)
    for name in ("Play", "Step forward", "Next mark", "Jump to the peak"):
        page.get_by_label(name, exact=True).click()
    assert figures(page)["inactive"] == "–" and page.troubles == []


def test_the_timeline_alone(open_page, trace):
    page = open_page(timeline(trace, start=20))
    canvas = page.locator("canvas[role=img]")
    assert "after event 20 of" in canvas.get_attribute("aria-label") and page.locator("canvas.map").count() == 0
    before = canvas.evaluate("c => c.toDataURL()")
    page.locator("input[type=range]").fill("60")
    at_event(page, 60, len(trace))
    assert canvas.evaluate("c => c.toDataURL()") != before
    assert page.locator(".event").text_content().startswith("free")
    assert page.troubles == []


def test_plotly_draws_what_it_is_given(open_page, trace):
    page = open_page(block_map(trace, renderer="plotly"), ready=False)
    page.locator(".main-svg .point path").first.wait_for(state="attached")
    drawn = page.locator(".main-svg .point path").count()
    rail = page.locator(".slider-rail-touch-rect")
    rail.click(position={"x": 3, "y": rail.bounding_box()["height"] / 2})
    page.get_by_text("event 0: reserved 0 B, allocated 0 B").first.wait_for()
    page.wait_for_function("n => document.querySelectorAll('.main-svg .point path').length < n", arg=drawn)
    for view in (charts.lines([1, 2], {"a": [1, 2]}, "T", "x", "y"), charts.bars(["a"], {"b": [3]}, "T", "x", "y")):
        page = open_page(view, ready=False)
        page.locator(".main-svg").first.wait_for()
        assert page.troubles == []


def _long_trace():
    memory = SlowMemory()
    memory.reserve(BASE, 2 * MIB)
    for _ in range(300):
        memory.alloc(BASE, 512, 512)
        memory.free(BASE)
    return memory.trace(marks=[Mark(400, "middle")])


def test_an_out_of_memory_is_said_and_marked(open_page):
    allocator = CachingAllocator(700 * MIB)
    allocator.free(allocator.malloc(530 * MIB))
    allocator.malloc(270 * MIB)
    with pytest.raises(OutOfMemory):
        allocator.malloc(270 * MIB)
    page = open_page(block_map(allocator.trace, start=0))
    page.locator("canvas.map").click(position={"x": 5, "y": 5})
    page.keyboard.press("]")  # the next mark
    at_event(page, len(allocator.trace), len(allocator.trace))
    assert page.get_by_text("270 MiB asked for").is_visible()
    assert page.get_by_text("out of memory").first.is_visible()
