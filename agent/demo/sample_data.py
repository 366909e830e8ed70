"""Made-up or rounded figures that stand in for what a live service would answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

__all__ = [
    "CITIES",
    "COUNTRIES",
    "ENCYCLOPEDIA",
    "NEWS",
    "ORDERS",
    "PAPERS",
    "PRODUCTS",
    "STOCKS",
    "USD_RATES",
    "WEB_PAGES",
    "City",
    "Country",
    "Document",
    "Order",
    "Product",
    "Stock",
    "Weather",
    "find_city",
]


@dataclass(frozen=True, slots=True)
class Weather:
    """Today's weather, and the highs of the two days after it, in degrees Celsius."""

    temperature_c: int
    sky: str
    next_highs_c: tuple[int, int]
    air_quality_index: int


@dataclass(frozen=True, slots=True)
class City:
    """A city with position in degrees; `aliases` are other spellings, in any script."""

    name: str
    aliases: tuple[str, ...]
    country: str
    latitude: float
    longitude: float
    time_zone: str
    sun: tuple[str, str]
    weather: Weather


@dataclass(frozen=True, slots=True)
class Country:
    """A country; population in millions, rounded."""

    name: str
    capital: str
    population_millions: float
    currency: str
    languages: tuple[str, ...]
    calling_code: str


@dataclass(frozen=True, slots=True)
class Stock:
    """A listed company: closing prices in US dollars, oldest first."""

    symbol: str
    company: str
    sector: str
    closes_usd: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Order:
    """An order of the sample shop."""

    order_id: str
    item: str
    status: str
    delivered_on: str | None
    amount: int
    carrier: str
    location: str


@dataclass(frozen=True, slots=True)
class Product:
    """A product of the sample shop."""

    name: str
    price: int
    in_stock: int


@dataclass(frozen=True, slots=True)
class Document:
    """A page, headline, article or paper that a search can find."""

    title: str
    text: str
    source: str


_CITIES = (
    City("Tokyo", ("東京", "東京都", "Tokio"), "Japan", 35.68, 139.69, "Asia/Tokyo",
         ("05:43", "17:04"), Weather(18, "cloudy", (19, 17), 42)),
    City("Cairo", ("カイロ", "Kairo", "القاهرة"), "Egypt", 30.04, 31.24, "Africa/Cairo",
         ("06:54", "18:22"), Weather(31, "sunny", (32, 30), 118)),
    City("Berlin", ("ベルリン",), "Germany", 52.52, 13.41, "Europe/Berlin",
         ("07:30", "18:14"), Weather(12, "rainy", (13, 11), 28)),
    City("London", ("ロンドン",), "United Kingdom", 51.51, -0.13, "Europe/London",
         ("07:22", "18:12"), Weather(14, "drizzle", (15, 14), 35)),
    City("Paris", ("パリ",), "France", 48.86, 2.35, "Europe/Paris",
         ("08:05", "19:04"), Weather(16, "partly cloudy", (17, 15), 40)),
    City("New York", ("New York City", "NYC", "ニューヨーク"), "United States", 40.71, -74.01,
         "America/New_York", ("07:06", "18:19"), Weather(20, "clear", (21, 18), 38)),
    City("San Francisco", ("サンフランシスコ",), "United States", 37.77, -122.42,
         "America/Los_Angeles", ("07:17", "18:36"), Weather(17, "foggy", (18, 18), 33)),
    City("Sydney", ("シドニー",), "Australia", -33.87, 151.21, "Australia/Sydney",
         ("06:16", "19:03"), Weather(23, "sunny", (24, 22), 25)),
    City("Delhi", ("New Delhi", "Neu-Delhi", "デリー"), "India", 28.61, 77.21, "Asia/Kolkata",
         ("06:21", "17:53"), Weather(34, "hazy", (34, 33), 187)),
    City("Reykjavik", ("Reykjavík", "レイキャビク"), "Iceland", 64.15, -21.94,
         "Atlantic/Reykjavik", ("08:10", "18:17"), Weather(4, "windy", (5, 3), 12)),
    City("Nairobi", ("ナイロビ",), "Kenya", -1.29, 36.82, "Africa/Nairobi",
         ("06:13", "18:20"), Weather(25, "partly cloudy", (26, 25), 55)),
    City("São Paulo", ("Sao Paulo", "サンパウロ"), "Brazil", -23.55, -46.63,
         "America/Sao_Paulo", ("05:33", "18:05"), Weather(22, "showers", (21, 24), 48)),
    City("Osaka", ("大阪",), "Japan", 34.69, 135.50, "Asia/Tokyo",
         ("05:59", "17:21"), Weather(20, "clear", (21, 20), 44)),
    City("Munich", ("München", "Muenchen", "ミュンヘン"), "Germany", 48.14, 11.58,
         "Europe/Berlin", ("07:28", "18:24"), Weather(9, "snow showers", (8, 10), 22)),
)  # fmt: skip
CITIES: Mapping[str, City] = {city.name: city for city in _CITIES}
_CITY_BY_SPELLING = {
    spelling.casefold(): city for city in _CITIES for spelling in (city.name, *city.aliases)
}


def find_city(text: str) -> City | None:
    """Return the city by any of its spellings, `Tokyo, Japan` included, or None."""
    name = text.partition(",")[0].strip().casefold()
    return _CITY_BY_SPELLING.get(name)


COUNTRIES: Mapping[str, Country] = {
    country.name: country
    for country in (
        Country("Japan", "Tokyo", 124, "JPY", ("Japanese",), "+81"),
        Country("Egypt", "Cairo", 113, "EGP", ("Arabic",), "+20"),
        Country("Germany", "Berlin", 84, "EUR", ("German",), "+49"),
        Country("United Kingdom", "London", 68, "GBP", ("English",), "+44"),
        Country("France", "Paris", 68, "EUR", ("French",), "+33"),
        Country("United States", "Washington, D.C.", 335, "USD", ("English",), "+1"),
        Country("Australia", "Canberra", 27, "AUD", ("English",), "+61"),
        Country("India", "New Delhi", 1430, "INR", ("Hindi", "English"), "+91"),
        Country("Iceland", "Reykjavik", 0.4, "ISK", ("Icelandic",), "+354"),
        Country("Kenya", "Nairobi", 55, "KES", ("Swahili", "English"), "+254"),
        Country("Brazil", "Brasília", 212, "BRL", ("Portuguese",), "+55"),
    )
}

STOCKS: Mapping[str, Stock] = {
    stock.symbol: stock
    for stock in (
        Stock("AAPL", "Apple", "consumer electronics", (226.4, 228.9, 227.5, 230.1, 231.3)),
        Stock("MSFT", "Microsoft", "software", (414.2, 416.0, 418.7, 417.1, 419.5)),
        Stock("NVDA", "Nvidia", "semiconductors", (132.6, 134.8, 138.0, 136.9, 139.2)),
        Stock("AMZN", "Amazon", "retail and cloud", (186.5, 187.0, 189.3, 188.1, 190.4)),
        Stock("GOOG", "Alphabet", "internet services", (163.9, 165.2, 164.8, 166.3, 167.0)),
        Stock("TM", "Toyota", "cars", (174.0, 175.5, 176.1, 175.2, 177.8)),
        Stock("SAP", "SAP", "software", (225.1, 227.3, 229.0, 230.6, 228.4)),
        Stock("SONY", "Sony", "entertainment and electronics", (18.9, 19.1, 19.0, 19.4, 19.6)),
    )
}

USD_RATES: Mapping[str, float] = {
    "USD": 1, "EUR": 0.92, "GBP": 0.77, "JPY": 149.5, "CHF": 0.86, "AUD": 1.49, "CAD": 1.38,
    "INR": 84.0, "EGP": 48.6, "BRL": 5.6, "KRW": 1365.0, "CNY": 7.1,
}  # fmt: skip
"""Units of each currency for one US dollar."""

ORDERS = (
    Order("A100", "espresso machine", "delivered", "2026-10-01", 250_000, "ParcelFox", "delivered"),
    Order("A101", "desk lamp", "shipping", None, 48_000, "ParcelFox", "sorting centre north"),
    Order("A102", "office chair", "delivered", "2026-08-20", 320_000, "BlueVan", "delivered"),
    Order("A103", "notebook", "processing", None, 9_500, "BlueVan", "warehouse"),
)
PRODUCTS = (
    Product("desk lamp", 48_000, 12),
    Product("espresso machine", 250_000, 3),
    Product("notebook", 9_500, 240),
    Product("office chair", 320_000, 0),
)

WEB_PAGES = (
    Document("How vector search works", "Texts become vectors; near vectors mean near meaning.",
             "example.org/vector-search"),
    Document("PostgreSQL indexing guide", "When to use B-tree, GIN and HNSW indexes.",
             "example.org/postgres-indexes"),
    Document("Sourdough bread for beginners", "Flour, water, salt and patience: a bread recipe.",
             "example.org/sourdough"),
    Document("Ten walks around Tokyo", "Parks, temples and river paths for a day on foot.",
             "example.org/tokyo-walks"),
    Document("How to repair a bicycle tyre", "Find the puncture, roughen, glue, patch, pump.",
             "example.org/bicycle-tyre"),
    Document("Choosing a laptop for programming", "Memory first, then keyboard, then screen.",
             "example.org/laptop"),
)  # fmt: skip
NEWS = (
    Document("Central bank keeps interest rates unchanged", "Inflation is near its target.",
             "Sample Times, 2026-10-12"),
    Document("New solar power park opens in Egypt", "It feeds 500 megawatts into the grid.",
             "Sample Times, 2026-10-11"),
    Document("Chip makers report record demand", "Semiconductors for AI servers are sold out.",
             "Sample Times, 2026-10-10"),
    Document("Rail strike ends after three days", "Trains run to schedule from Monday.",
             "Sample Times, 2026-10-09"),
    Document("Football: cup final decided on penalties", "The underdogs lift the trophy.",
             "Sample Times, 2026-10-08"),
)  # fmt: skip
ENCYCLOPEDIA = (
    Document("Photosynthesis", "Plants turn light, water and carbon dioxide into sugar and oxygen.",
             "sample encyclopedia"),
    Document("Ada Lovelace", "English mathematician (1815-1852), author of the first published "
             "computer program.", "sample encyclopedia"),
    Document("Black hole", "A region of space whose gravity lets nothing escape, not even light.",
             "sample encyclopedia"),
    Document("Mount Fuji", "The highest mountain of Japan, 3,776 metres, a volcano.",
             "sample encyclopedia"),
    Document("Albert Einstein", "Physicist (1879-1955) who developed the theory of relativity.",
             "sample encyclopedia"),
    Document("Nile", "A river of Africa, about 6,650 kilometres long, that ends in Egypt.",
             "sample encyclopedia"),
)  # fmt: skip
PAPERS = (
    Document("Attention Is All You Need", "Introduces the Transformer architecture.",
             "Vaswani et al., 2017"),
    Document("Retrieval-Augmented Generation for Knowledge-Intensive NLP Tasks",
             "Combines a retriever with a generator of text.", "Lewis et al., 2020"),
    Document("ReAct: Synergizing Reasoning and Acting in Language Models",
             "Interleaves thoughts, actions and observations in agents.", "Yao et al., 2022"),
    Document("Efficient and robust approximate nearest neighbor search using HNSW graphs",
             "Hierarchical navigable small world graphs for vector search.",
             "Malkov and Yashunin, 2016"),
    Document("Reciprocal Rank Fusion outperforms Condorcet",
             "Merges the rankings of several search systems.", "Cormack et al., 2009"),
)  # fmt: skip
