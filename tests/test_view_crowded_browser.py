"""What shares a pixel until one zooms in, and what else the block map can be told to draw: faint, other colours, a frame."""

import pytest

from kvviz.view import block_map
from tests.player import traces
from tests.player.browser import MAP, PLAYER, colors_at, drawn, player, rgb, seek, spot
from tests.player.traces import MIB

pytestmark = pytest.mark.browser

COLOR = rgb(["other", "weights", "KV cache"])


@pytest.fixture(scope="module")
def crowded():
    return traces.crowded()


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
    low, high = player(page, "[zoom.low, zoom.high]")
    assert low <= 46 * 2048 <= high, "brought into view"
