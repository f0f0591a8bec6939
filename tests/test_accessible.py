"""Open to everyone: what axe-core finds, keys alone, what is said aloud, small and large screens, forced colours, touch.

The states are those of the gallery (`make gallery`).
"""

import pytest

import kvviz
from kvviz.cli import main
from tests.player.axe import violations
from tests.player.browser import at_event, drawn
from tests.player.gallery import STATES, out_of_memory
from tests.player.gallery_page import page as gallery_page

pytestmark = pytest.mark.browser

FOCUSED = """() => {
  let at = document.activeElement;
  while (at.shadowRoot?.activeElement) at = at.shadowRoot.activeElement;
  return at;
}"""


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """pages(name) -> the file of a state of the gallery."""
    folder = tmp_path_factory.mktemp("gallery")

    def of(name):
        file = folder / f"{name}.html"
        if not file.exists():
            file.write_text(gallery_page(STATES[name]), encoding="utf-8")
        return file

    return of


@pytest.fixture
def open_state(chromium, pages):
    """open_state(name, width, …) -> its page once its keys were pressed; what goes wrong on it is noted."""
    contexts = []

    def open_state(name, width=1280, query="", **options):
        context = chromium.new_context(viewport={"width": width, "height": 900}, offline=True, **options)
        contexts.append(context)
        page = context.new_page()
        page.troubles = []
        page.on("pageerror", lambda error: page.troubles.append(str(error)))
        page.on("console", lambda said: page.troubles.append(said.text) if said.type == "error" else None)
        page.goto(pages(name).as_uri() + query)
        page.wait_for_selector("body[data-done]")
        return page

    yield open_state
    for context in contexts:
        context.close()


def resize(page, width):
    page.set_viewport_size({"width": width, "height": 900})
    drawn(page)


@pytest.mark.parametrize("name", STATES)
def test_no_violation_and_no_sideways_scrolling(open_state, name):
    page = open_state(name, 3840, reduced_motion="reduce")  # so that no colour is on its way while axe looks
    assert page.evaluate("document.documentElement.scrollWidth") <= 3840
    for theme, width in (("light", 1280), ("dark", 320)):
        page.evaluate("theme => { document.documentElement.dataset.theme = theme; }", theme)
        resize(page, width)
        assert violations(page) == [], (theme, width)
        assert page.evaluate("document.documentElement.scrollWidth") <= width, (theme, width)
    assert page.troubles == []


def _report(file):
    """What `kvviz diagnose --html` writes: a finding, a block map, a timeline."""
    out_of_memory().save(file.with_suffix(".kvviz"))
    assert main(["diagnose", str(file.with_suffix(".kvviz")), "--html", str(file)]) == 1, "a fault is found"


def _beside(file):
    kvviz.side_by_side(kvviz.sample("window_slice"), kvviz.sample("window_clone")).save_html(file)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("write", [_report, _beside])
def test_pages_of_their_own_have_no_violation(chromium, tmp_path, write, scheme):
    file = tmp_path / "page.html"
    write(file)
    for width in (1280, 320):
        context = chromium.new_context(
            viewport={"width": width, "height": 900}, offline=True, color_scheme=scheme, reduced_motion="reduce"
        )
        page = context.new_page()
        page.goto(file.as_uri())
        page.wait_for_function("() => [...document.querySelectorAll('.kvviz-player')].every((e) => e.dataset.ready)")
        drawn(page)
        assert page.locator(".kvviz-player").count() > 0
        assert violations(page) == [], width
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        context.close()


def test_axe_sees_a_fault(open_state):
    page = open_state("one-block")
    page.evaluate("document.querySelector('main').insertAdjacentHTML('beforeend', '<button></button><img src=data:,>')")
    found = " ".join(violations(page))
    assert "button-name" in found and "image-alt" in found


@pytest.mark.parametrize("name", ["everything", "pages", "timeline", "side-by-side", "explore-pages"])
def test_tab_alone_reaches_every_control_and_shows_where_it_is(open_state, name):
    page = open_state(name)
    everything = """() => {
      const inside = (root) => [...root.querySelectorAll("*")].flatMap((e) => [e, ...(e.shadowRoot ? inside(e.shadowRoot) : [])]);
      return inside(document).filter((e) => e.matches("button:not([disabled]), input, select, summary, a[href], [tabindex='0']"))
        .filter((e) => e.checkVisibility());
    }"""
    wanted = page.evaluate(f"({everything})().length")
    seen = 0
    for _ in range(wanted + 5):
        page.keyboard.press("Tab")
        fresh, outline, visible = page.evaluate(
            f"""() => {{
              const at = ({FOCUSED})();
              if (at === document.body) return [false, "", true];
              const fresh = !at.dataset.seen, look = getComputedStyle(at);
              at.dataset.seen = "1";
              return [fresh, look.outlineStyle, at.checkVisibility()];
            }}"""
        )
        seen += fresh
        assert visible
        if fresh:
            assert outline != "none", page.evaluate(f"({FOCUSED})().outerHTML")
    missed = f"({everything})().filter((e) => !e.dataset.seen).map((e) => e.outerHTML.slice(0, 120))"
    assert page.evaluate(missed) == []
    assert seen >= wanted > 5


def test_keys_alone_choose_a_block_read_it_and_close_it(open_state):
    page = open_state("everything")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    card = page.locator(".card")
    assert card.is_visible() and "requested" in card.text_content()
    heard = page.locator("[role=status]")
    first = heard.text_content()
    assert "MiB" in first
    page.keyboard.press("n")
    page.wait_for_function("first => document.querySelector('.kvviz-player').shadowRoot"
                           ".querySelector('[role=status]').textContent !== first", arg=first)  # fmt: skip
    page.keyboard.press("Escape")
    assert not card.is_visible()


@pytest.mark.parametrize("name", ["everything", "pages", "timeline"])
def test_a_screen_reader_hears_the_state_when_the_cursor_rests(open_state, name):
    page = open_state(name)
    said = page.locator("[aria-live=polite]")
    assert said.text_content() == "", "an opening picture does not speak"
    page.keyboard.press("Tab")
    page.keyboard.press("Home")
    page.keyboard.press("ArrowRight")
    page.wait_for_function("""() => /after event 1 of/.test(document.querySelector('.kvviz-player').shadowRoot
      .querySelector('[aria-live=polite]').textContent)""")
    slider = page.locator("input[type=range]").first
    assert slider.get_attribute("aria-valuetext").partition(":")[0] in said.text_content()


def test_while_playing_it_speaks_now_and_then(open_state):
    page = open_state("everything")
    page.evaluate("""() => {
      const player = document.querySelector(".kvviz-player"), live = player.shadowRoot.querySelector("[aria-live=polite]");
      window.times = [];
      new MutationObserver(() => window.times.push(performance.now())).observe(live, { childList: true, subtree: true });
    }""")
    page.keyboard.press("Tab")
    page.keyboard.press("Home")
    page.get_by_label("Speed").select_option("0.25")
    page.keyboard.press("Shift+Tab")
    page.keyboard.press("Shift+Tab")
    page.get_by_role("button", name="Play").click()
    page.wait_for_function("() => window.times.length >= 3", timeout=30_000)
    times = page.evaluate("window.times")
    assert all(later - earlier >= 1500 for earlier, later in zip(times[1:], times[2:], strict=False))


@pytest.mark.parametrize("name", ["everything", "pages", "breakdown"])
def test_forced_colours_keep_controls_and_pictures(open_state, name):
    page = open_state(name, forced_colors="active")
    shown = page.evaluate("""() => {
      const root = document.querySelector(".kvviz-player").shadowRoot, style = (e) => getComputedStyle(e);
      return {
        border: style(root.querySelector(".controls button")).borderTopStyle,
        canvas: style(root.querySelector("canvas")).forcedColorAdjust,
        chip: style(root.querySelector(".legend i")).forcedColorAdjust,
      };
    }""")
    assert shown == {"border": "solid", "canvas": "none", "chip": "none"}


@pytest.mark.parametrize("name", ["everything", "pages", "side-by-side", "explore-allocator"])
def test_what_is_touched_is_large_enough(open_state, name):
    page = open_state(name, 360, has_touch=True, is_mobile=True)
    for control in page.locator("button:visible, input[type=range]:visible, select:visible, summary:visible").all():
        box = control.bounding_box()
        assert min(box["width"], box["height"]) >= 24, control.evaluate("e => e.outerHTML")
    page.get_by_role("button", name="Step back").first.tap()
    assert page.troubles == []


@pytest.mark.parametrize("width", [320, 400])
def test_an_explorers_labels_stay_beside_their_sliders(open_state, width):
    page = open_state("explore-allocator", width)
    rows = page.locator(".kvviz-axes label").all()
    assert len(rows) == 5
    for row in rows:
        outer, control = row.bounding_box(), row.locator("input, select").bounding_box()
        middle = control["y"] + control["height"] / 2
        assert middle == pytest.approx(outer["y"] + outer["height"] / 2, abs=2) and control["width"] >= 70
        assert outer["x"] + outer["width"] <= width


def test_an_explorers_charts_follow_the_theme(open_state):
    page = open_state("explore-pages", color_scheme="dark")
    look = "getComputedStyle(document.querySelector('.kvviz-curves')).filter"
    assert page.evaluate(look) == "none", "the page says that it is light"
    page.evaluate("document.documentElement.dataset.theme = 'dark'")
    assert page.evaluate(look).startswith("invert")
    page.emulate_media(media="print")
    assert page.evaluate(look) == "none"


def test_less_motion_moves_nothing_by_itself(open_state):
    page = open_state("everything", reduced_motion="reduce")
    moving = """() => document.getAnimations().length + [...document.querySelectorAll(".kvviz-player")].flatMap((host) =>
      [...host.shadowRoot.querySelectorAll("*")]).filter((e) => parseFloat(getComputedStyle(e).transitionDuration) > 0).length"""
    assert page.evaluate(moving) == 0
    assert page.get_by_role("button", name="Play").first.is_visible()


def test_zoomed_to_twice_the_size_all_is_there(open_state):
    """WCAG 1.4.4 and 1.4.10: a page of 1280 at 400 % is one of 320."""
    page = open_state("everything", 320, device_scale_factor=4)
    page.get_by_role("button", name="Step back").click()
    at_event(page, 58, 81)
    assert page.evaluate("document.documentElement.scrollWidth") <= 320


def test_the_gallery_is_complete(tmp_path, chromium, monkeypatch):
    from tests.player import gallery_page as module

    few = dict(list(STATES.items())[:3])
    monkeypatch.setattr(module, "STATES", few)
    page = chromium.new_page()
    page.goto(module.build(tmp_path).as_uri())
    assert page.locator("section").count() == 3 and page.locator("iframe").count() == 6
    assert violations(page) == []
    page.locator("iframe").nth(1).scroll_into_view_if_needed()
    inside = page.frame_locator("iframe").nth(1)
    inside.locator("body[data-done]").wait_for()
    ground = (
        "getComputedStyle(document.querySelector('.kvviz-player').shadowRoot.querySelector('.box')).backgroundColor"
    )
    frame = next(frame for frame in page.frames if frame.url.endswith("empty.html?dark"))
    assert frame.evaluate(ground) == "rgb(13, 17, 23)"
    page.close()
