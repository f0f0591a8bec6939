"""The page map in a real browser: it draws, moves, speaks, tells what lies under a pointer, asks nothing of the network."""

import pytest

from kvviz.cache.pagelog import PageLog, PoolInfo
from kvviz.view import page_map, theme
from kvviz.view.pagescene import PageScene
from tests.player.browser import MAP, PLAYER, at_event, drawn, figures, pixels, seek
from tests.player.pagelogs import LogWriter, random_log, served, showcase

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def log():
    return showcase()


def label(page):
    return page.locator("canvas.map").get_attribute("aria-label")


def color_at(page, x, y):
    """Of the map, in CSS px."""
    return page.evaluate(
        f"""([x, y]) => {{ const c = {MAP}, k = c.width / c.clientWidth;
        return "#" + [...c.getContext("2d").getImageData(x * k, y * k, 1, 1).data].slice(0, 3)
          .map((v) => v.toString(16).padStart(2, "0")).join("").toUpperCase() }}""",
        [x, y],
    )


def cell(page, number, pool=0):
    """Corner and size of a page, CSS px."""
    return page.evaluate(
        f"""([p, k]) => {{ const {{ grid: {{ columns, size, gap }}, gridTop }} = {PLAYER}.map.sections[k];
        return [(p % columns) * (size + gap), gridTop + Math.floor(p / columns) * (size + gap), size] }}""",
        [number, pool],
    )


def tip_at(page, x, y):
    page.evaluate(f"{PLAYER}.showTip(null)")
    page.locator("canvas.map").hover(position={"x": x, "y": y})
    drawn(page)
    tip = page.locator(".tip")
    return tip.inner_text() if tip.is_visible() else None


def box(page, letter, index):
    """Middle of the box that stands for a table's entry."""
    return page.evaluate(
        f"""([letter, index]) => {{ const {{ map, model }} = {PLAYER};
        const b = map.boxes.find((b) => model.nameOf(b.row) === letter && (index < 0 ? !b.count
          : b.count && b.index <= index && index < b.index + b.count));
        return [b.x + b.w / 2, b.y + 9] }}""",
        [letter, index],
    )


def test_mounts_without_a_request_or_an_error(open_page, log):
    view = page_map(log)
    page = open_page(view)
    assert page.troubles == []
    assert all(url.startswith(("file:", "data:")) for url in page.requests) and len(page.requests) <= 2
    assert not page.locator("img").is_visible(), "the player stands where the still was"
    assert page.locator("canvas.map").get_attribute("role") == "img"
    assert f"{label(page)}. Numbers from: {log.origin}".lower() == view.words.lower()
    assert page.get_by_text(log.origin).is_visible()
    for name in ("free page", "slots in use", "shared page", "slots that slid out", "null page", "just changed"):
        assert page.locator(f".legend li:has-text('{name}')").is_visible()
    for name in ("free", "fill", "shared", "hatch", "null", "now"):
        ground = page.locator(f".legend i.{name}").evaluate(
            "e => getComputedStyle(e).background + getComputedStyle(e).border"
        )
        assert "rgb" in ground and (name not in ("fill", "shared", "hatch") or "gradient" in ground), name


@pytest.mark.parametrize("event", [0, 40, 200, 332])
def test_figures_and_words_are_those_of_the_log(open_page, log, event):
    page = open_page(page_map(log, start=0))
    seek(page, event)
    scene = PageScene(log)
    assert label(page) == scene.state_words(event)
    assert figures(page) == dict(scene.figures(event))


def test_slider_and_keys_move_picture_and_words(open_page, log):
    page = open_page(page_map(log, start=0))
    before, slider = pixels(page), page.locator("input[type=range]")
    slider.fill("40")
    at_event(page, 40, len(log))
    assert pixels(page) != before and "after event 40 of" in slider.get_attribute("aria-valuetext")
    slider.fill("0")
    at_event(page, 0, len(log))
    assert pixels(page) == before
    page.locator(".box").focus()
    for key, event in (("ArrowRight", 1), ("End", len(log)), ("p", PageScene(log).peak), ("Home", 0), ("]", 2)):
        page.locator(".box").press(key)
        at_event(page, event, len(log))
    assert page.locator(".event").text_content() == "beginB  "


def test_a_page_has_its_sequences_colours_as_high_as_it_is_filled(open_page):
    log = PageLog()
    pool = LogWriter(log, PoolInfo("pool", 8, 8))
    one = pool.begin()
    pool.append(one, 12)
    two = pool.begin(parent=one)
    pool.append(two, 1)
    page = open_page(page_map(log, start=len(log) - 1))
    blue, orange = (theme.sequence(k).color for k in (0, 1))

    def at(number, share, right=0.9):
        x, y, w = cell(page, number)
        return color_at(page, x + w * right, y + w * (1 - share))

    assert at(0, 0.4, 0.1) == blue and at(0, 0.55) == orange, "a shared page is split"
    assert at(1, 0.45) == blue and at(1, 0.6) not in (blue, orange), "4 of its 8 slots"
    assert at(2, 0.45) == orange
    assert at(3, 0.5) == theme.LIGHT["free"].upper(), "a free one"
    seek(page, 0)
    assert {at(number, 0.3) for number in range(8)} == {theme.LIGHT["free"].upper()}


def test_what_changed_has_a_frame(open_page, log):
    page = open_page(page_map(log, start=4))
    assert page.locator(".event").text_content() == "writepage 0 · A 16 tokens  "
    x, y, w = cell(page, 0)
    assert color_at(page, x + w / 2, y + 1) == theme.LIGHT["text"].upper()
    seek(page, 5)
    assert color_at(page, x + w / 2, y + 1) == theme.sequence(0).color


def test_what_slid_out_is_hatched(open_page):
    log = PageLog()
    pool = LogWriter(log, PoolInfo("pool", 4, 8, window=4))
    pool.append(pool.begin(), 8)
    page = open_page(page_map(log, start=len(log)))
    seek(page, len(log))
    x, y, w = cell(page, 0)
    row = {color_at(page, x + 4 + k, y + w * 0.9) for k in range(8)}
    blue = theme.sequence(0).color
    assert color_at(page, x + w * 0.9, y + w * 0.3) == blue and len(row) > 1 and blue not in row


# words that begin with their space, as tokenizers have them
WORDS = [" the", " quick", " brown", " fox", "\n", " jumps"]


def test_tips_tell_what_a_page_holds(open_page, log):
    page = open_page(page_map(log, tokens={0: WORDS * 40, 1: ["b"] * 130}))
    state = log.at(PageScene(log).peak)
    shared = next(p for p, count in enumerate(state.references) if count == 2)
    x, y, w = cell(page, shared)
    told = tip_at(page, x + 20, y + 20)
    assert told.startswith(f"page {shared} · shared by 2\nB entry 1, D entry 1\n2 references · 16 of 16 slots in use")
    assert "128 KiB\ntokens 16 … 31:\nb│b│b" in told
    mine = state.tables[0].index(16)
    x, y, w = cell(page, 16)
    told = tip_at(page, x + 20, y + 20)
    assert told.startswith(f"page 16 · A entry {mine}\n1 reference · 16 of 16 slots in use\n128 KiB\n")
    words = [(WORDS * 40)[k] for k in range(mine * 16, mine * 16 + 16)]
    assert f"tokens {mine * 16} … {mine * 16 + 15}:" in told and "│".join(words).replace("\n", "⏎") in told
    x, y, w = cell(page, 60)
    assert tip_at(page, x + 20, y + 20) == "page 60 · free\n128 KiB"
    assert tip_at(page, x + w + 2, y + 20) is None, "between two pages there is nothing"
    index, partly = next((k, p) for k, p in enumerate(state.tables[0]) if p >= 0 and state.low[p] > 0)
    x, y, w = cell(page, partly)
    low, high = state.low[partly], state.high[partly]
    told = tip_at(page, x + 20, y + 20)
    assert f"{high - low} of 16 slots in use: {low} … {high - 1}" in told
    assert (
        f"tokens {index * 16 + low} … {index * 16 + high - 1}:\n{(WORDS * 40)[index * 16 + low]}│".replace(
            ":\n\n", ":\n⏎"
        )
        in told
    )


def test_tips_tell_what_a_table_says(open_page, log):
    page = open_page(page_map(log, tokens={0: WORDS * 40}))
    state = log.at(PageScene(log).peak)
    table = state.tables[0]
    nulls = table.count(-1)
    assert nulls > 1
    told = tip_at(page, *box(page, "A", 0))
    assert told == f"A entries 0 … {nulls - 1} → null page\ntokens 0 … {nulls * 16 - 1} slid out"
    told = tip_at(page, *box(page, "A", nulls + 1))
    assert told.startswith(f"A entry {nulls + 1} → page {table[nulls + 1]}\n1 reference · 16 of 16 slots in use")
    assert tip_at(page, *box(page, "D", 1)).split("\n")[:2] == ["D entry 1 → page 6", "shared by 2"]
    assert tip_at(page, *box(page, "D", -1)) == "sequence D, fork of B\n69 tokens visible, 69 seen\n5 pages, 2 shared"
    assert tip_at(page, *box(page, "A", -1)).split("\n")[1] == f"96 tokens visible, {state.lengths[0]} seen"


def test_long_tables_and_many_of_them_are_cut_short(open_page):
    log = PageLog()
    pool = LogWriter(log, PoolInfo("pool", 512, 2))
    for _ in range(60):
        pool.append(pool.begin(), 1)
    pool.append(pool.living[0], 400)
    page = open_page(page_map(log))
    shown = page.evaluate(f"{PLAYER}.map.boxes.map((b) => [b.row, b.count, b.page])")
    rows = {row for row, *_ in shown}
    assert 5 < len(rows) < 40 and max(rows) == len(rows) - 1
    assert any(count > 100 and where == -2 for _, count, where in shown)
    hidden = page.evaluate(f"{PLAYER}.map.boxes.find((b) => b.page === -2)")
    assert "no room to show them" in tip_at(page, hidden["x"] + 20, hidden["y"] + 9)
    bottom = page.evaluate(f"Math.max(...{PLAYER}.map.boxes.map((b) => b.y + 18))")
    assert bottom <= page.locator("canvas.map").bounding_box()["height"]


# Seek here and there; each picture must equal one drawn from nothing.
_FRESH = """(seed) => { const { map, model, mapCanvas, mapPen } = PLAYER, bad = [];
  const data = () => new Uint32Array(mapPen.getImageData(0, 0, mapCanvas.width, mapCanvas.height).data.buffer);
  for (let k = 0; k < 24; k++) {
    seed = (seed * 1103515245 + 12345) % 2147483648;
    const i = k % 3 ? Math.min(model.n, model.pos + 1) : seed % (model.n + 1);
    PLAYER.seek(i);
    const once = data();
    map.drawn = null;
    PLAYER.seek(i);
    if (data().some((pixel, at) => pixel !== once[at])) bad.push(i);
  }
  return bad; }""".replace("PLAYER", PLAYER)


@pytest.mark.parametrize("ratio", [1, 1.25, 2])
@pytest.mark.parametrize("name", ["showcase", "two pools", "small pages", "smallest pages"])
def test_drawing_only_what_changed_gives_the_same_picture(open_page, log, name, ratio):
    shown = {
        "showcase": lambda: log, "two pools": lambda: random_log(5), "small pages": lambda: served(40, 1024, limit=1500),
        "smallest pages": lambda: served(40, 4096, limit=1500),
    }[name]()  # fmt: skip
    page = open_page(page_map(shown), width=700, device_scale_factor=ratio)
    assert page.evaluate(_FRESH, 7 + len(name)) == []


@pytest.mark.parametrize("width", [320, 360, 820, 1400, 3840])
@pytest.mark.parametrize("make", [showcase, lambda: random_log(3), lambda: served(40, 4096, limit=1500)])
def test_fits_any_width(open_page, make, width):
    page = open_page(page_map(make()), width=width)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    bounds = page.locator("canvas.map").bounding_box()
    assert page.evaluate(f"{MAP}.width") == pytest.approx(bounds["width"], abs=1.5)
    right = page.evaluate(
        f"Math.max(...[...{PLAYER}.map.boxes, ...{PLAYER}.map.sections].map((b) => b.x + (b.w ?? b.width)))"
    )
    assert right <= bounds["width"] and page.troubles == []
    heights = page.evaluate("""() => [...document.querySelector('.kvviz-player').shadowRoot.querySelectorAll('dt')]
        .map((e) => e.offsetHeight)""")
    assert len(set(heights)) == 1, "no label is broken"


def test_tables_go_below_where_it_is_narrow(open_page, log):
    page = open_page(page_map(log), width=1200)
    wide = page.locator("canvas.map").bounding_box()["height"]
    x, y, w = cell(page, 63)
    assert box(page, "A", -1)[1] < y and box(page, "A", -1)[0] > x + w
    page.set_viewport_size({"width": 420, "height": 900})
    page.wait_for_function(f"() => {MAP}.width < 420")
    assert page.locator("canvas.map").bounding_box()["height"] > wide
    assert box(page, "A", -1)[1] > cell(page, 63)[1] + cell(page, 63)[2]


def test_the_picture_does_not_jump(open_page, log):
    page = open_page(page_map(log, start=0), width=420)
    heights = set()
    for event in (0, 30, 100, 200, 300, len(log)):
        seek(page, event)
        heights.add(page.evaluate("document.documentElement.scrollHeight"))
    assert len(heights) == 1


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_follows_the_theme(open_page, log, scheme):
    inks = theme.DARK if scheme == "dark" else theme.LIGHT
    page = open_page(page_map(log), color_scheme=scheme)
    x, y, w = cell(page, 60)
    assert color_at(page, x + w / 2, y + w * 0.75) == inks["free"].upper()
    assert color_at(page, x + w / 2, y + 0.5) == inks["rule"].upper()
    before = pixels(page)
    page.evaluate(f"document.body.dataset.jpThemeLight = '{str(scheme == 'dark').lower()}'")
    page.wait_for_function(f"data => {MAP}.toDataURL() !== data", arg=before)
    other = theme.LIGHT if scheme == "dark" else theme.DARK
    assert color_at(page, x + w / 2, y + w * 0.75) == other["free"].upper()


def test_two_pools_each_have_a_grid(open_page):
    log = random_log(5)
    page = open_page(page_map(log, start=len(log)))
    for k in (0, 1):
        state = log.at(len(log), k)
        for number in (int(state.references.argmin()), int(state.references.argmax())):
            x, y, w = cell(page, number, k)
            told = tip_at(page, x + w / 2, y + w / 2)
            assert told.startswith(f"page {number} · ") and ("free" in told) == (state.references[number] == 0)
            free = color_at(page, x + w / 2, y + w - 4) == theme.LIGHT["free"].upper()
            assert free == (state.references[number] == 0)
    alone = open_page(page_map(log, pools="full"))
    assert alone.evaluate(f"{PLAYER}.map.sections.length") == 1


def test_nothing_at_all(open_page):
    page = open_page(page_map(PageLog()))
    assert label(page) == "state after event 0 of 0: no pool yet"
    drawn = page.evaluate(f"{MAP}.getContext('2d').getImageData(0, 0, 400, 20).data.some((v) => v > 0)")
    assert drawn, "the picture says so, too"
    for name in ("Play", "Step forward", "Next mark", "Jump to the peak"):
        page.get_by_label(name, exact=True).click()
    assert tip_at(page, 20, 10) is None and page.troubles == []


def test_running_out_is_said_and_marked(open_page):
    log = PageLog()
    pool = LogWriter(log, PoolInfo("pool", 2, 4))
    one = pool.begin()
    pool.append(one, 8)
    pool.append(one, 5)
    pool.end(one)
    page = open_page(page_map(log, start=0))
    page.locator(".box").press("]")
    at_event(page, 6, len(log))
    assert page.locator(".event").text_content() == "refuse2 pages missing  "


def test_plays(open_page, log):
    page = open_page(page_map(log, start=300, autoplay=True))
    page.get_by_label("Speed").select_option("8")
    at_event(page, len(log), len(log))
    assert page.troubles == []


def test_plotly_draws_what_it_is_given(open_page, log):
    page = open_page(page_map(log, renderer="plotly"), ready=False)
    page.locator(".main-svg .heatmaplayer image").first.wait_for(state="attached")
    before = page.locator(".heatmaplayer image").get_attribute("href")
    rail = page.locator(".slider-rail-touch-rect")
    rail.click(position={"x": 3, "y": rail.bounding_box()["height"] / 2})
    page.get_by_text("event 0: held 8.00 MiB, in use 0 B").first.wait_for()
    page.wait_for_function(
        "href => document.querySelector('.heatmaplayer image').getAttribute('href') !== href", arg=before
    )
    assert page.troubles == []
