"""Pictures of traces: `block_map`, `timeline`, `side_by_side`; of page logs: `page_map`. plotly charts: `kvviz.view.charts`."""

from kvviz.view.beside import side_by_side
from kvviz.view.blocks import block_map
from kvviz.view.html import View
from kvviz.view.pages import page_map
from kvviz.view.timeline import timeline

__all__ = ["View", "block_map", "page_map", "side_by_side", "timeline"]
