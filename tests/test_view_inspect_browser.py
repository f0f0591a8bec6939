"""Understanding a block map in a real browser: choosing, following, filtering, colours, and the panels."""

import re

import pytest

from kvviz.memory.diagnosis.moment import Moment
from kvviz.view import block_map, timeline
from kvviz.view.scene import format_bytes
from tests.player.browser import MAP, PLAYER, at_event, figures, pixels, seek
from tests.player.traces import BASE, KIB, MIB, SlowMemory, settled, showcase

pytestmark = pytest.mark.browser
PANELS = ("Filter", "Lifetimes", "Breakdown", "Pinned")


@pytest.fixture(scope="module")
def trace():
    return showcase()


def place(page, address):
    """A point of the map, in px, on the block that lives at this address now."""
    found = page.evaluate(
        f"""address => {{ const {{ map, model, width }} = {PLAYER};
        for (let y = 6; y < map.flow.height; y += 4) for (let x = 2; x < width; x += 3) {{
          const row = map.rowAt(x, y);
          if (row >= 0 && model.realAddress(model.address[row]) === address) return {{ x, y }};
        }} return null }}""",
        hex(address),
    )
    assert found, f"no block at {address:#x} on the map"
    return found


def choose(page, address):
    page.locator("canvas.map").click(position=place(page, address))


def card(page):
    """What the card says, by label."""
    rows = page.locator(".card dl > div").all()
    return {row.locator("dt").text_content(): row.locator("dd").text_content() for row in rows}


def panel(page, name):
    """Open a panel."""
    page.get_by_role("button", name=name, exact=True).click()
    return page.locator(".panel:not(.card)").first


def table(page, title):
    """The cells of a table's rows."""
    rows = page.locator(f"table:has(caption:text-is('{title}')) tbody tr").all()
    return [row.locator("th > :last-child, td").all_text_contents() for row in rows]


def test_nothing_is_open_until_it_is_asked_for(open_page, trace):
    page = open_page(block_map(trace))
    assert page.locator(".panel, table, .card").count() == 0 and page.locator(".told").text_content() == ""
    buttons = [page.get_by_role("button", name=name, exact=True) for name in PANELS]
    assert all(b.get_attribute("aria-expanded") == "false" for b in buttons)
    before = pixels(page)
    for button in buttons:
        button.click()
        assert button.get_attribute("aria-expanded") == "true"
    assert page.locator(".panel").count() == len(PANELS) and page.locator(".panel canvas").count() == 1
    for button in buttons:
        button.click()
    assert page.locator(".panel, table, .panel canvas").count() == 0 and pixels(page) == before
    assert page.troubles == []


def test_a_chosen_block_says_all_and_stays_while_the_cursor_moves(open_page, trace):
    page = open_page(block_map(trace, start=40))
    start = BASE + 200 * MIB
    choose(page, start + 64 * KIB)
    assert page.locator(".card h3").text_content() == "KV cache · 64 KiB"
    said = card(page)
    assert said["requested"] == said["rounded"] == "64 KiB (65,536 B)"
    assert said["address"] == hex(start + 64 * KIB) and said["stream"] == "0"
    assert said["lies in"] == "small pool, segment of 2 MiB"
    assert said["call site"] == "torch.cat · model.layers.3.self_attn · train.py:12"
    assert said["born"] == "event 15" and said["dies"] == "lives to the last event here" and said["age"] == "25 events"
    seek(page, 30)
    assert card(page)["age"] == "15 events" and page.locator(".card .now").text_content() == ""
    seek(page, 10)
    assert page.locator(".card .now").text_content() == "not born yet: in 5 events"
    assert card(page)["lies in"] == "it does not live now"
    page.keyboard.press("Escape")
    assert page.locator(".card").count() == 0 and page.evaluate(f"{PLAYER}.map.picked") == -1
    assert page.troubles == []


def test_birth_and_death_are_one_click_away(open_page, trace):
    page = open_page(block_map(trace, start=30))
    choose(
        page, BASE + 200 * MIB
    )  # the first of the cache's blocks: it is freed, and its place is taken again at the end
    page.get_by_role("button", name="Go to birth").click()
    at_event(page, 14, len(trace))
    assert page.locator(".event").text_content().startswith("alloc")
    page.get_by_role("button", name="Go to death").click()
    death = int(re.sub(r"\D", "", card(page)["dies"]))
    at_event(page, death, len(trace))
    assert "64 KiB" in page.locator(".event").text_content() and page.locator(".event").text_content().startswith(
        "free"
    )
    assert page.locator(".card .now").text_content() == "gone for 1 event"
    seek(page, 30)
    choose(page, BASE)
    assert page.get_by_role("button", name="Go to death").is_disabled()


def test_a_followed_block_is_framed_also_before_its_birth(open_page, trace):
    page = open_page(block_map(trace, start=30))
    choose(page, BASE + 200 * MIB)
    seek(page, 8)
    plain = pixels(page)
    page.get_by_role("button", name="Follow").click()
    assert page.get_by_role("button", name="Follow").get_attribute("aria-pressed") == "true"
    assert pixels(page) != plain, "its place is marked"
    page.get_by_role("button", name="Follow").click()
    assert pixels(page) == plain


def test_what_is_chosen_by_key_or_followed_is_brought_into_view(open_page, trace):
    page = open_page(block_map(trace, start=59))
    page.evaluate(f"() => {{ const p = {PLAYER}; p.zoom.place.set(0, 40960); p.zoom.tell(); }}")
    page.wait_for_function(f"() => {PLAYER}.map.flow.parts.every(p => p.start < 50000)")
    page.keyboard.press("Tab")
    page.keyboard.press("b")  # the last one, far outside of what is shown
    inside = f"""() => {{ const {{ map, panels, model }} = {PLAYER}, at = model.address[panels.card.row];
        return map.flow.parts.some(p => at >= p.start && at < p.start + p.units) }}"""
    page.wait_for_function(inside)
    page.get_by_role("button", name="Follow").click()
    page.evaluate(f"() => {{ const p = {PLAYER}; p.zoom.place.set(0, 40960); p.zoom.tell(); }}")
    seek(page, 60)
    page.wait_for_function(inside)
    assert page.troubles == []


def test_keys_alone_reach_every_block(open_page, trace):
    event = 45
    page = open_page(block_map(trace, start=event))
    page.keyboard.press("Tab")
    state = trace.at(event)
    living = [hex(a) for a in state.blocks["address"][state.blocks["state"] != 0].tolist()]
    seen = []
    for _ in living:
        page.keyboard.press("n")
        seen.append(card(page)["address"])
    assert seen == living
    page.keyboard.press("n")
    assert card(page)["address"] == living[0]
    page.keyboard.press("b")
    assert card(page)["address"] == living[-1]
    assert "chosen: " in page.locator(".said").text_content() and living[-1] in page.locator(".said").text_content()
    page.keyboard.press("Home")
    at_event(page, 0, len(trace))
    for _ in range(14):
        page.keyboard.press("ArrowRight")
    at_event(page, 14, len(trace))
    page.keyboard.press("Enter")
    assert card(page)["address"] == hex(BASE + 200 * MIB) and card(page)["born"] == "event 14"
    assert page.troubles == []


def test_a_block_in_the_folded_bar_says_so(open_page):
    page = open_page(block_map(settled(), fold=True))
    page.keyboard.press("Tab")
    page.keyboard.press("n")
    assert page.locator(".card .now").text_content() == "in the folded bar"
    page.keyboard.press("f")
    assert page.locator(".card .now").text_content() == ""


def test_an_empty_place_can_be_chosen(open_page):
    memory = SlowMemory()
    memory.reserve(BASE, 20 * MIB)
    memory.alloc(BASE, 4 * MIB, 4 * MIB, owner=1)
    memory.alloc(BASE + 16 * MIB, 4 * MIB, 4 * MIB, owner=1)
    page = open_page(block_map(memory.trace(owners=["other", "weights"])))
    width = page.locator("canvas.map").bounding_box()["width"]
    page.locator("canvas.map").click(position={"x": width / 2, "y": 10})
    assert page.locator(".card h3").text_content() == "cached, inactive · 12 MiB"
    said = card(page)
    assert said["lies in"] == "large pool, segment of 20 MiB" and said["blocks in it"] == "2"
    page.get_by_role("button", name="What pins this segment").click()
    told = page.locator(".panel .note").first.text_content()
    assert "2 blocks of 8 MiB keep it. 12 MiB are free, the largest piece 12 MiB." in told
    seek(page, 0)
    assert page.locator(".card h3").text_content() == "not reserved at this event"


def test_the_legend_fades_an_owner_and_what_is_hidden_is_said(open_page, trace):
    page = open_page(block_map(trace, start=59))
    before, entry = pixels(page), page.get_by_role("checkbox", name="weights")
    assert entry.get_attribute("aria-checked") == "true"
    entry.click()
    assert entry.get_attribute("aria-checked") == "false" and pixels(page) != before
    told = "showing 19 of 27 blocks, 84.81 MiB of 156.81 MiB; 8 are faded"
    assert page.locator(".told").text_content() == told
    assert told in page.locator("canvas.map").get_attribute("aria-label")
    assert figures(page)["allocated"] == "156.81 MiB", "the figures are of all"
    entry.click()
    assert pixels(page) == before and page.locator(".told").text_content() == ""


def test_filter_by_size_and_call_site(open_page, trace):
    page = open_page(block_map(trace, start=59))
    before, box = pixels(page), panel(page, "Filter")
    note = box.locator(".note").first
    assert note.text_content() == "showing 27 of 27 blocks, 156.81 MiB of 156.81 MiB"
    box.get_by_label("size from").fill("10 MiB")
    assert note.text_content().startswith("showing 6 of 27 blocks, 84 MiB of 156.81 MiB")
    box.get_by_label("size from").fill("10 Mix")
    assert "is no size" in note.text_content()
    assert box.get_by_label("size from").get_attribute("aria-invalid") == "true"
    box.get_by_label("size from").fill("")
    box.get_by_label("to", exact=True).fill("64k")
    assert note.text_content().startswith("showing 13 of 27 blocks, 832 KiB")
    box.get_by_label("to", exact=True).fill("")
    box.get_by_label("call site").fill("CACHE.py")
    assert note.text_content().startswith("showing 6 of 27 blocks, 84 MiB")
    page.keyboard.press("p")  # a letter in a field is a letter
    at_event(page, 59, len(trace))
    assert box.get_by_label("call site").input_value() == "CACHE.pyp"
    panel(page, "Filter")
    assert page.locator(".told").text_content().startswith("showing 0 of 27 blocks"), (
        "said also where the panel is closed"
    )
    panel(page, "Filter").get_by_role("button", name="Clear").click()
    assert pixels(page) == before and page.troubles == []


@pytest.mark.parametrize("event", [40, 59, 81])
def test_what_pins_agrees_with_diagnose(open_page, trace, event):
    page = open_page(block_map(trace, start=event))
    panel(page, "Pinned")
    moment = Moment(trace, event, 0)
    shown = [(by, free, int(blocks)) for by, free, _, blocks, _ in table(page, "Pinned segments, by who has most of each")]
    assert shown == [(p.by, format_bytes(p.free), p.blocks) for p in moment.pins[:8]]
    text = page.locator(".panel .note").nth(1).text_content()
    assert text.startswith(f"{format_bytes(moment.pinned)} are free, but pinned in")
    assert f"would give back {format_bytes(moment.state.releasable)}." in text
    page.locator("table:has(caption:text-is('Segments, the most pinned memory first')) tbody button").first.click()
    assert page.locator(".card").is_visible() and "keep" in page.locator(".panel:not(.card) .note").first.text_content()
    assert table(page, "Who holds the chosen segment")


def test_the_breakdown_adds_up_to_the_totals(open_page, trace):
    page = open_page(block_map(trace, start=45))
    panel(page, "Breakdown")
    peak, here = Moment(trace, trace.peak_event + 1, 0), Moment(trace, 45, 0)
    for title, peaks, heres in (
        ("By owner", peak.by_owner(), here.by_owner()),
        ("By call site", peak.by_site(), here.by_site()),
    ):
        rows = table(page, title)
        assert {name: size for name, size, *_ in rows if size != "0 B"} == {
            n: format_bytes(s) for n, s in peaks.items()
        }
        assert {row[0]: row[3] for row in rows if row[3] != "0 B"} == {n: format_bytes(s) for n, s in heres.items()}
        assert [row[1] for row in rows] == [format_bytes(peaks[row[0]]) for row in rows]
        sizes = [peaks[row[0]] for row in rows]
        assert sizes == sorted(sizes, reverse=True) and sum(sizes) == peak.state.active
    assert f"{format_bytes(here.state.active)} active" in page.locator(".panel .note").first.text_content()
    seek(page, 20)
    rows = table(page, "By owner")
    assert {row[0]: row[3] for row in rows if row[3] != "0 B"} == {
        n: format_bytes(s) for n, s in Moment(trace, 20, 0).by_owner().items()
    }


def test_lifetimes_share_the_timelines_scale(open_page, trace):
    page = open_page(block_map(trace, start=59))
    panel(page, "Lifetimes")
    canvas, line = page.locator(".panel canvas"), page.locator("canvas.line")
    box, other = canvas.bounding_box(), line.bounding_box()
    assert box["x"] == other["x"] and box["width"] == other["width"]
    bars = page.evaluate(
        f"""() => {{ const {{ panels, model, timeline }} = {PLAYER};
        return panels.shown.get("lives").view.bars.map(b => ({{ ...b, born: timeline.x(Math.max(0, model.born[b.row])),
          died: timeline.x(model.died[b.row]), address: model.realAddress(model.address[b.row]) }})) }}"""
    )
    assert len(bars) > 10
    for bar in bars:
        assert bar["x"] == pytest.approx(bar["born"], abs=0.01) and bar["x"] + bar["w"] == pytest.approx(
            bar["died"], abs=1
        )
    bar = max(bars, key=lambda b: b["w"])
    canvas.click(position={"x": bar["x"] + bar["w"] / 2, "y": bar["y"] + 5})
    assert card(page)["address"] == bar["address"]
    before = canvas.evaluate("c => c.toDataURL()")
    seek(page, 20)
    assert canvas.evaluate("c => c.toDataURL()") != before, "the cursor moves there, too"
    page.evaluate(f"() => {{ const p = {PLAYER}; p.zoom.time.set(20, 50); p.zoom.tell(); }}")
    page.wait_for_function(
        f"() => {PLAYER}.panels.shown.get('lives').view.told.textContent.includes('events 20 to 50')"
    )
    assert page.troubles == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_colours_mean_what_the_menu_says(open_page, trace, scheme):
    page = open_page(block_map(trace, start=59), color_scheme=scheme)
    menu, at = page.get_by_label("Colour by"), place(page, BASE + 4096 * MIB)

    def ink():
        return page.evaluate(
            f"""at => {{ const c = {MAP}, d = c.width / c.clientWidth, x = at.x * d + 2, y = (at.y + 12) * d;
            return [...c.getContext("2d").getImageData(x, y, 1, 1).data].slice(0, 3) }}""",
            at,
        )

    def entry(name):
        return (
            page.locator(f".legend li:has-text('{name}')")
            .first.locator(".chip")
            .evaluate("i => getComputedStyle(i).backgroundColor.match(/\\d+/g).map(Number)")
        )

    for value, name in (
        ("owner", "KV (preallocated)"), ("stream", "stream 1"), ("pool", "large pool, expandable"), ("site", "torch.empty"),
    ):  # fmt: skip
        menu.select_option(value)
        assert ink() == entry(name), value
        assert f"colour = {'call site' if value == 'site' else value}" in page.locator(".sub").text_content()
    menu.select_option("age")
    blocks = trace.at(59).blocks
    born = int(blocks["born"][blocks["address"] == BASE + 4096 * MIB][0])
    for age, name in ((0, "0 … 1 events"), (5, "2 … 5 events"), (6, "6 … 17 events"), (18, "18 … 41 events")):
        seek(page, born + 1 + age)
        assert ink() == entry(name)
    totals = page.locator(".legend button b, .legend li > b").all_text_contents()
    assert len(totals) == 5 and page.get_by_role("checkbox").count() == 0, "an age is no thing to switch off"
    page.locator(".box").focus()
    page.keyboard.press("c")
    assert menu.input_value() == "stream" and page.troubles == []


def test_call_sites_cannot_be_chosen_where_there_are_none(open_page):
    memory = SlowMemory()
    memory.reserve(BASE, 2 * MIB)
    memory.alloc(BASE, MIB, MIB)
    page = open_page(block_map(memory.trace()))
    assert page.locator("option[value=site]").evaluate("o => o.disabled")
    assert panel(page, "Filter").locator("input").count() == 2


def test_every_key_is_in_the_list(open_page):
    page = open_page(block_map(settled()))
    page.keyboard.press("Tab")
    page.keyboard.press("?")
    listed = set(page.locator(".keylist kbd").all_text_contents())
    words = {"Enter": "enter", "Escape": "esc", "-": "−", "=": "+"}
    keys = page.evaluate(f"Object.keys({PLAYER}.controls.more)")
    assert {words.get(k, k) for k in keys} | {"space", "home", "end", "p", "[", "]", "esc"} <= listed
    page.keyboard.press("?")
    assert page.locator(".keylist").count() == 0
    page = open_page(timeline(settled()))
    page.get_by_role("button", name="? keys").click()
    assert page.locator(".keylist li").count() >= 7 and page.troubles == []


@pytest.mark.parametrize("width", [320, 480, 3840])
def test_all_open_fits_any_width(open_page, trace, width):
    page = open_page(block_map(trace, start=59), width=width)
    page.locator(".box").focus()
    for key in ("n", "/", "l", "d", "i", "?"):
        page.locator(".box").focus()
        page.keyboard.press(key)
    assert page.locator(".panel").count() == 6
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    for button in page.locator("button").all():
        box = button.bounding_box()
        assert box["height"] >= 24 and box["width"] >= 24


def test_the_state_is_said_once_the_cursor_rests(open_page, trace):
    page = open_page(block_map(trace, start=40))
    said = page.locator(".said")
    assert said.text_content() == "" and said.get_attribute("aria-live") == "polite"
    page.keyboard.press("Tab")
    page.keyboard.press("ArrowRight")
    page.wait_for_function(f"() => {PLAYER}.voice.element.textContent.includes('after event 41 of')")


def test_a_run_that_goes_on_keeps_what_is_open(open_page):
    longer = block_map(settled(cache=8)).data
    page = open_page(block_map(settled(cache=4)))
    page.evaluate(f"{PLAYER}.seek({PLAYER}.model.n)")
    page.keyboard.press("Tab")
    page.keyboard.press("n")
    panel(page, "Breakdown")
    entry = page.get_by_role("checkbox", name="weights")
    entry.click()
    address = card(page)["address"]
    renew = f"bytes => {{ {PLAYER}.renew(Uint8Array.from(bytes).buffer); return {PLAYER}.model.n }}"
    events = page.evaluate(renew, list(longer))
    at_event(page, events, events)
    assert events > len(settled(cache=4)) and page.locator("input[type=range]").get_attribute("max") == str(events)
    assert card(page)["address"] == address and page.locator(".panel").count() == 2
    assert entry.get_attribute("aria-checked") == "false" and "are faded" in page.locator(".told").text_content()
    assert entry.evaluate("e => e.matches(':focus')"), "a reader's place is not lost"
    seek(page, 10)
    page.evaluate(renew, list(longer))
    at_event(page, 10, events)
    assert page.troubles == []


@pytest.mark.parametrize("width", [320, 400])
def test_tables_fit_a_narrow_page(open_page, trace, width):
    page = open_page(block_map(trace, start=59), width=width)
    page.locator(".box").focus()
    page.keyboard.press("n")
    for name in ("Breakdown", "Pinned"):
        panel(page, name)
    found = page.locator(".scroll").evaluate_all("all => all.map((e) => [e.ariaLabel, e.scrollWidth - e.clientWidth])")
    assert len(found) == 5 and all(beyond <= 0 for _, beyond in found), found


def test_what_was_said_of_a_block_is_not_kept_for_another_state(open_page, trace):
    page = open_page(block_map(trace, start=45))
    said = page.locator(".said")
    page.locator(".box").focus()
    page.keyboard.press("n")
    assert "age 40 events" in said.text_content()
    page.get_by_role("button", name="Follow").click()
    page.locator(".box").focus()
    page.keyboard.press("Home")
    at_event(page, 0, len(trace))
    assert "chosen: weights · 9 MiB, not born yet: in 5 events" in page.locator("canvas.map").get_attribute("aria-label")
    assert "40 events" not in said.text_content()
    page.keyboard.press("p")
    page.wait_for_function(f"() => {PLAYER}.voice.element.textContent.includes('after event 59 of')")
    assert said.text_content().endswith("; chosen: weights · 9 MiB, age 54 events")
