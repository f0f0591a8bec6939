"""Pictures of traces: `block_map` and `timeline`; of page logs: `page_map`. plotly charts of anything: `kvviz.view.charts`."""

from kvviz.view.blocks import block_map
from kvviz.view.html import View
from kvviz.view.pages import page_map
from kvviz.view.timeline import timeline

__all__ = ["View", "block_map", "page_map", "timeline"]
