"""Live pictures: a run shown while it goes on. `Live` is the rhythm, `pages` and `blocks` are what it shows."""

from kvviz.view.live.live import Live

__all__ = ["Live"]
