"""Questions for the demo and for measuring retrieval, with the tools that answer them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["DEMO_QUESTIONS", "RETRIEVAL_QUESTIONS", "DemoQuestion"]

Language = Literal["en", "de", "ja"]


@dataclass(frozen=True, slots=True)
class DemoQuestion:
    """A question and the demo tools a good answer needs.

    Attributes:
        relevant: Names of every needed tool; recall@k counts how many are among the first k.
    """

    text: str
    lang: Language
    relevant: tuple[str, ...]


DEMO_QUESTIONS: tuple[DemoQuestion, ...] = (
    DemoQuestion(
        "Will my order A100 be refunded? Today is 2026-10-13.",
        "en",
        ("lookup_order", "refund_policy"),
    ),
    DemoQuestion(
        "What is the weather in Tokyo, is it warm enough for a walk?", "en", ("get_weather",)
    ),
    DemoQuestion(
        "Get the temperature in Cairo and multiply it by 3", "en", ("get_weather", "multiply")
    ),
    DemoQuestion(
        "What is 10 / 0? If that is impossible, divide by 4 instead.", "en", ("calculator",)
    ),
    DemoQuestion("What is the stock price of AAPL?", "en", ("get_stock_price",)),
)
"""The five questions that `toolrag demo` asks, in order."""

# One row a question: the tools, then the same question in English, German and Japanese. The
# wording is how people ask, not the wording of the descriptions: it is never tuned to them.
_PARALLEL: tuple[tuple[tuple[str, ...], str, str, str], ...] = (
    (
        ("lookup_order", "refund_policy"),
        DEMO_QUESTIONS[0].text,
        "Bekomme ich das Geld für meine Bestellung A100 zurück? Heute ist der 2026-10-13.",
        "注文A100は返金されますか？今日は2026-10-13です。",
    ),
    (
        ("get_weather",),
        DEMO_QUESTIONS[1].text,
        "Wie ist das Wetter in Tokio, ist es warm genug für einen Spaziergang?",
        "東京の天気はどうですか。散歩できるくらい暖かいですか。",
    ),
    (
        ("get_weather", "multiply"),
        DEMO_QUESTIONS[2].text,
        "Hole die Temperatur in Kairo und multipliziere sie mit 3",
        "カイロの気温を調べて、それに3を掛けてください",
    ),
    (
        ("calculator",),
        DEMO_QUESTIONS[3].text,
        "Was ist 10 / 0? Wenn das unmöglich ist, teile stattdessen durch 4.",
        "10 / 0 はいくつですか？できない場合は、代わりに4で割ってください。",
    ),
    (
        ("get_stock_price",),
        DEMO_QUESTIONS[4].text,
        "Wie steht der Aktienkurs von AAPL?",
        "AAPLの株価はいくらですか？",
    ),
    (
        ("convert_currency",),
        "How many yen do I get for 200 dollars?",
        "Wie viele Yen bekomme ich für 200 Dollar?",
        "200ドルは何円になりますか？",
    ),
    (
        ("track_shipment",),
        "Where is my parcel for A101?",
        "Wo steckt mein Paket zu A101?",
        "A101の荷物は今どこにありますか？",
    ),
    (
        ("cancel_order",),
        "I changed my mind, please don't send A103 any more.",
        "Ich habe es mir anders überlegt, bitte storniere A103.",
        "気が変わったので、A103をキャンセルしてください。",
    ),
    (
        ("convert_length",),
        "How many kilometres are 26 miles?",
        "Wie viele Kilometer sind 26 Meilen?",
        "26マイルは何キロメートルですか？",
    ),
    (
        ("convert_temperature",),
        "What is 98 °F in Celsius?",
        "Was sind 98 °F in Celsius?",
        "華氏98度は摂氏何度ですか？",
    ),
    (
        ("days_between",),
        "How long is it from 2026-10-13 until 2026-12-24?",
        "Wie viele Tage sind es vom 2026-10-13 bis 2026-12-24?",
        "2026-10-13から2026-12-24まで何日ありますか？",
    ),
    (
        ("day_of_week",),
        "Is 2027-01-01 a Friday?",
        "Ist der 2027-01-01 ein Freitag?",
        "2027-01-01は何曜日ですか？",
    ),
    (
        ("convert_time_zone",),
        "When it is 2026-10-13 09:00 in Berlin, how late is it in Tokyo?",
        "Wenn es in Berlin 2026-10-13 09:00 ist, wie spät ist es dann in Tokio?",
        "ベルリンが2026-10-13 09:00のとき、東京は何時ですか？",
    ),
    (
        ("percentage_of",),
        "How much is 15 % of 80?",
        "Wie viel sind 15 % von 80?",
        "80の15%はいくつですか？",
    ),
    (
        ("average",),
        "My marks are 3, 4 and 8: what is that on average?",
        "Meine Noten sind 3, 4 und 8: was ist der Durchschnitt?",
        "点数は3、4、8です。平均はいくつですか？",
    ),
    (
        ("add_note",),
        'Remember for me: "buy milk on Friday"',
        "Merke dir: „am Freitag Milch kaufen“",
        "「金曜日に牛乳を買う」とメモしておいて",
    ),
    (
        ("news_search",),
        "Anything new about interest rates this week?",
        "Gibt es diese Woche Neuigkeiten zu den Zinsen?",
        "金利について最近のニュースはありますか？",
    ),
    (
        ("paper_search",),
        "Which publications introduced the Transformer architecture?",
        "Welche Veröffentlichungen haben die Transformer-Architektur eingeführt?",
        "Transformerアーキテクチャを提案した論文はどれですか？",
    ),
    (
        ("encyclopedia_search",),
        "Who was Ada Lovelace?",
        "Wer war Ada Lovelace?",
        "エイダ・ラブレスとは誰ですか？",
    ),
    (
        ("distance_between_cities",),
        "How far is it from Paris to New York?",
        "Wie weit ist es von Paris nach New York?",
        "パリからニューヨークまでどのくらい離れていますか？",
    ),
    (
        ("capital_city",),
        "What is Australia's capital?",
        "Wie heißt die Hauptstadt von Australien?",
        "オーストラリアの首都はどこですか？",
    ),
    (
        ("hash_text",),
        'I need the SHA-256 of "hello"',
        "Ich brauche den SHA-256 von „hello“",
        "「hello」のSHA-256を教えてください",
    ),
    (
        ("count_words",),
        'How many words does "the quick brown fox" have?',
        "Wie viele Wörter hat „the quick brown fox“?",
        "「the quick brown fox」は何語ありますか？",
    ),
    (
        ("loan_payment",),
        "I borrow 200000 at 4 % for 240 months: what do I pay each month?",
        "Ich leihe mir 200000 zu 4 % auf 240 Monate: wie hoch ist meine Rate im Monat?",
        "200000を金利4%で240か月借りると、毎月いくら払いますか？",
    ),
)

RETRIEVAL_QUESTIONS: tuple[DemoQuestion, ...] = tuple(
    DemoQuestion(text, lang, relevant)
    for relevant, *texts in _PARALLEL
    for lang, text in zip(("en", "de", "ja"), texts, strict=True)
)
"""The same questions in English, German and Japanese: the five of the demo and 19 more."""
