"""All demo tools as one toolset."""

from __future__ import annotations

from agent.demo.arithmetic import arithmetic_tools, percentage_tools, statistics_tools
from agent.demo.data_tools import data_tools, encoding_tools
from agent.demo.dates import date_tools
from agent.demo.finance import finance_tools
from agent.demo.search import search_tools
from agent.demo.shop import DemoDatabase, note_tools, shop_tools
from agent.demo.text_tools import text_tools
from agent.demo.units import unit_tools
from agent.demo.world import geography_tools, weather_tools
from registry.toolset import Toolset

__all__ = ["demo_toolset"]


def demo_toolset(*, database_path: str = ":memory:") -> Toolset:
    """Return a toolset of tools that work without network, in fresh objects on every call.

    What would need the network serves sample data and says so in its result.

    Args:
        database_path: SQLite file for notes and orders; by default they live in memory and are
            gone with the toolset.
    """
    database = DemoDatabase(database_path)
    return Toolset(
        [
            *arithmetic_tools(),
            *percentage_tools(),
            *statistics_tools(),
            *unit_tools(),
            *date_tools(),
            *text_tools(),
            *data_tools(),
            *encoding_tools(),
            *note_tools(database),
            *shop_tools(database),
            *finance_tools(),
            *weather_tools(),
            *geography_tools(),
            *search_tools(),
        ]
    )
