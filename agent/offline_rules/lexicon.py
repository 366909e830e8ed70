"""Word lists: what means the same in English, German and Japanese, and names of things."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping
from typing import Literal

__all__ = [
    "CITIES",
    "COMPANIES",
    "COUNTRIES",
    "CURRENCIES",
    "NEUTRAL",
    "STOP_WORDS",
    "UNITS",
    "WRITING",
    "Language",
    "concepts",
    "language_of",
    "normalise",
    "places_in",
    "spans_of",
    "stem",
]

Language = Literal["en", "de", "ja"]

_LATIN_WORD = re.compile(r"[^\W\d_]+")
_JAPANESE = re.compile(r"[\u3040-\u30ff\u4e00-\u9fff]")
_GERMAN = frozenset(
    "ist sind der das und wie wer wo ich mir meine mein für mit von nach viele viel wird wenn "
    "bitte hole wann eine einen heute den dem zeige welche gibt es diese zu zum zur dir im auf am "
    "merke berechne rechne suche".split()
)

STOP_WORDS = frozenset(
    "a an the is are was were be been am do does did will would can could shall should may might i "
    "me my mine you your we our us it its this that these those he she they what which who whom "
    "whose when where why how much many of in on at to for from by with about into than then and "
    "or but if not no so as there here please tell give let any some all just also instead enough "
    "get got find show look up need want know have has had make today tomorrow "
    "ein eine einen einem einer der die das den dem des ist sind war bin wird werden ich mir mich "
    "mein meine meinen meiner du dein wir uns es sie er was wer wie wo wann warum welche welcher "
    "viel viele von nach zu zum zur für mit in im am an auf aus bei und oder aber wenn nicht "
    "bitte gib hole zeige sag finde heute dann mal stattdessen genug".split()
)
NEUTRAL = frozenset(
    "get lookup look up find list search show check fetch tell read make current calculate "
    "compute of and between on to from in the a an by is".split()
) - {"calculate"}
"""Name words that say nothing about a tool's subject."""

WRITING = frozenset(
    "add cancel create delete drop insert pay post publish remove send update write".split()
)
"""Name words of tools that change something: such a tool needs its word in the question."""

_ENGLISH = {
    "multiply": "multiplied times product",
    "divide": "divided quotient over",
    "add": "plus sum",
    "subtract": "minus",
    "calculate": "calculator compute calculation reckon",
    "percent": "percentage",
    "weather": "rain raining rainy sunny cloudy snow",
    "temperature": "warm cold hot degree",
    "stock": "share shares stocks",
    "price": "cost quote expensive",
    "news": "headline headlines new",
    "refund": "refundable reimburse reimbursed",
    "order": "purchase ordered",
    "cancel": "storno",
    "shipment": "parcel package shipping delivery track",
    "average": "mean",
    "distance": "far apart",
    "week": "weekday",
    "paper": "publication research",
    "encyclopedia": "wikipedia",
    "note": "memo reminder remember remind",
    "capital": "",
    "population": "inhabitant people",
    "currency": "money",
    "word": "",
    "time": "clock",
    "loan": "borrow credit mortgage",
    "payment": "pay instalment",
}
# German words are matched by their beginning, Japanese ones anywhere in the text.
_GERMAN_FORMS = {
    "multiply": "multipliz mal malnehm",
    "divide": "teile dividier",
    "add": "addier plus",
    "subtract": "subtrahier minus",
    "calculate": "berechne rechne",
    "percent": "prozent",
    "weather": "wetter regen regnet",
    "temperature": "temperatur warm kalt",
    "stock": "aktie",
    "price": "preis aktienkurs kostet",
    "news": "neuigkeit nachricht",
    "refund": "erstatt rückerstatt zurückerstatt zurück",
    "order": "bestellung auftrag",
    "cancel": "stornier",
    "shipment": "paket sendung lieferung",
    "average": "durchschnitt mittelwert",
    "distance": "weit entfern",
    "note": "notiz notier merke",
    "capital": "hauptstadt",
    "population": "einwohner bevölkerung",
    "currency": "währung",
    "paper": "veröffentlich forschung",
    "week": "wochentag",
    "word": "wort wörter",
    "time": "uhrzeit",
    "loan": "leihe kredit darlehen",
    "payment": "zahle",
    "convert": "umrechn wandle",
}
_JAPANESE_FORMS = {
    "multiply": "掛け かけて 倍",
    "divide": "割って 割り 割る",
    "add": "足し 足す",
    "subtract": "引いて 引く",
    "calculate": "計算",
    "percent": "パーセント %",
    "weather": "天気 天候",
    "temperature": "気温 温度 暖か 寒",
    "stock": "株価 株",
    "price": "株価 価格 値段",
    "news": "ニュース",
    "refund": "返金 払い戻",
    "order": "注文",
    "cancel": "キャンセル 取り消",
    "shipment": "荷物 配送 配達",
    "average": "平均",
    "distance": "距離 離れ",
    "note": "メモ",
    "capital": "首都",
    "population": "人口",
    "currency": "通貨",
    "paper": "論文",
    "week": "曜日",
    "word": "単語",
    "time": "何時",
    "loan": "借り ローン",
    "payment": "払い",
    "encyclopedia": "とは誰 とは何",
}

CITIES: Mapping[str, str] = {
    "Amsterdam": "アムステルダム",
    "Berlin": "ベルリン",
    "Cairo": "Kairo カイロ",
    "Chicago": "シカゴ",
    "Delhi": "Neu-Delhi デリー",
    "Hamburg": "ハンブルク",
    "Kyoto": "京都",
    "Lisbon": "Lissabon リスボン",
    "London": "ロンドン",
    "Los Angeles": "ロサンゼルス",
    "Madrid": "マドリード",
    "Moscow": "Moskau モスクワ",
    "Munich": "München ミュンヘン",
    "Nairobi": "ナイロビ",
    "New York": "ニューヨーク",
    "Osaka": "大阪",
    "Paris": "パリ",
    "Reykjavik": "Reykjavík レイキャビク",
    "Rome": "Rom ローマ",
    "San Francisco": "サンフランシスコ",
    "Seoul": "ソウル",
    "Singapore": "Singapur シンガポール",
    "Sydney": "シドニー",
    "São Paulo": "サンパウロ",
    "Tokyo": "Tokio 東京",
    "Toronto": "トロント",
    "Vienna": "Wien ウィーン",
    "Zurich": "Zürich チューリッヒ",
}
"""English name to other spellings."""

COUNTRIES: Mapping[str, str] = {
    "Australia": "Australien オーストラリア",
    "Austria": "Österreich オーストリア",
    "Brazil": "Brasilien ブラジル",
    "China": "中国",
    "Egypt": "Ägypten エジプト",
    "France": "Frankreich フランス",
    "Germany": "Deutschland ドイツ",
    "Iceland": "Island アイスランド",
    "India": "Indien インド",
    "Italy": "Italien イタリア",
    "Japan": "日本",
    "Kenya": "Kenia ケニア",
    "Spain": "Spanien スペイン",
    "United Kingdom": "Großbritannien イギリス",
    "United States": "USA アメリカ",
}
COMPANIES: Mapping[str, str] = {
    "Alphabet": "GOOG",
    "Amazon": "AMZN",
    "Apple": "AAPL",
    "Google": "GOOG",
    "Microsoft": "MSFT",
    "Nvidia": "NVDA",
    "SAP": "SAP",
    "Sony": "SONY",
    "Toyota": "TM",
}
CURRENCIES: Mapping[str, str] = {
    "USD": "dollar dollars ドル",
    "EUR": "euro euros ユーロ",
    "GBP": "sterling ポンド",
    "JPY": "yen 円",
    "CHF": "franken francs フラン",
    "INR": "rupee rupees rupien ルピー",
    "KRW": "won ウォン",
    "CNY": "yuan 人民元",
}
UNITS: Mapping[str, tuple[str, str]] = {
    "km": ("length", "kilometre kilometres kilometer kilometers キロメートル"),
    "m": ("length", "metre metres meter meters"),
    "cm": ("length", "centimetre centimetres centimeter centimeters zentimeter センチ"),
    "mile": ("length", "miles meile meilen マイル"),
    "foot": ("length", "feet fuß フィート"),
    "inch": ("length", "inches zoll インチ"),
    "kg": ("weight", "kilogram kilograms kilo kilos kilogramm キログラム"),
    "g": ("weight", "gram grams gramm"),
    "pound": ("weight", "pounds lbs pfund"),
    "ounce": ("weight", "ounces unze unzen オンス"),
    "celsius": ("temperature", "°c 摂氏"),
    "fahrenheit": ("temperature", "°f 華氏"),
    "kelvin": ("temperature", "ケルビン"),
    "l": ("volume", "litre litres liter liters リットル"),
    "gallon": ("volume", "gallons gallone gallonen ガロン"),
    "km/h": ("speed", "kmh kph"),
    "mph": ("speed", ""),
    "gb": ("size", "gigabyte gigabytes"),
    "mb": ("size", "megabyte megabytes"),
    "hectare": ("area", "hectares hektar ヘクタール"),
    "acre": ("area", "acres"),
}
"""Unit to (what it measures, other spellings)."""


def normalise(text: str) -> str:
    """Return the text in NFKC: full-width digits and signs become plain ones."""
    return unicodedata.normalize("NFKC", text)


def language_of(text: str) -> Language:
    """Return the language a question is answered in; English when in doubt."""
    if _JAPANESE.search(text):
        return "ja"
    words = _LATIN_WORD.findall(text.casefold())
    return "de" if any(word in _GERMAN for word in words) else "en"


def stem(word: str) -> str:
    """Return a crude English stem: `refunded`, `refunds` and `refund` are one."""
    word = word.casefold()
    for ending, replacement in (("ies", "y"), ("ied", "y"), ("ing", ""), ("ed", "")):
        if word.endswith(ending) and len(word) > len(ending) + 2:
            return (word.removesuffix(ending) + replacement).removesuffix("e")
    if word.endswith("s") and not word.endswith(("ss", "us")) and len(word) > 3:
        word = word.removesuffix("s")
    return word.removesuffix("e")


_ENGLISH_STEMS = {
    stem(form): stem(concept) for concept, forms in _ENGLISH.items() for form in forms.split()
}
_GERMAN_STEMS = [
    (form, stem(concept)) for concept, forms in _GERMAN_FORMS.items() for form in forms.split()
]
_JAPANESE_STEMS = [
    (form, stem(concept)) for concept, forms in _JAPANESE_FORMS.items() for form in forms.split()
]


def concepts(text: str, *, language: Language = "en") -> frozenset[str]:
    """Return the stems of what a text is about, German and Japanese words as English ones."""
    folded = normalise(text).casefold()
    found: set[str] = set()
    for word in _LATIN_WORD.findall(folded):
        if language == "de":
            found |= {concept for form, concept in _GERMAN_STEMS if word.startswith(form)}
        if word not in STOP_WORDS:
            found.add(_ENGLISH_STEMS.get(stem(word), stem(word)))
    if language == "ja":
        found |= {concept for form, concept in _JAPANESE_STEMS if form in folded}
    return frozenset(found)


def places_in(text: str, gazetteer: Mapping[str, str]) -> list[tuple[int, str]]:
    """Return (position, English name) of the gazetteer's names in the text, in order."""
    return [(start, name) for start, _, name in _matches(text, gazetteer)]


def spans_of(text: str, gazetteer: Mapping[str, str]) -> list[tuple[int, int]]:
    """Return (start, end) of the gazetteer's names in the text, in order."""
    return [(start, end) for start, end, _ in _matches(text, gazetteer)]


def _matches(text: str, gazetteer: Mapping[str, str]) -> list[tuple[int, int, str]]:
    found: dict[int, tuple[int, str]] = {}
    # Split on blanks only between spellings: a name itself may be two words.
    for name, others in gazetteer.items():
        for spelling in (name, *others.split()):
            pattern = re.escape(spelling)
            if spelling.isascii() or not _JAPANESE.search(spelling):
                pattern = rf"(?<!\w){pattern}(?![^\W\u3040-\u30ff\u4e00-\u9fff])"
            for match in re.finditer(pattern, text, re.IGNORECASE):
                found.setdefault(match.start(), (match.end(), name))
    return sorted((start, end, name) for start, (end, name) in found.items())
