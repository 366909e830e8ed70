"""The final answer: what the observations say, put into fixed sentences."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from datetime import date, timedelta
from typing import Any

from agent.offline_rules.clauses import Question
from agent.offline_rules.lexicon import Language, concepts
from agent.offline_rules.planning import Observation
from registry.text import humanise

__all__ = ["LABEL", "answer"]

LABEL = "[offline stand-in, no language model]"

_WARM_FROM_C = 15
_DAY = re.compile(r"\d{4}-\d{2}-\d{2}")
_WINDOW = re.compile(r"(\d+)\s*days?\s+(?:after|from|of)\s+(?:the\s+)?deliver\w*", re.IGNORECASE)
_ASKS_WARM = re.compile(r"\bwarm\b|暖か", re.IGNORECASE)

_TEXTS: dict[str, dict[Language, str]] = {
    "none": {
        "en": "None of the bound tools fits this question, and I am not a language model that "
        "could answer it from knowledge. Give the agent a real chat model for that.",
        "de": "Keins der gebundenen Werkzeuge passt zu dieser Frage, und ich bin kein "
        "Sprachmodell, das sie aus Wissen beantworten könnte. "
        "Dafür braucht der Agent ein echtes Chatmodell.",
        "ja": "この質問に合うツールがありません。私は言語モデルではないので、"
        "知識からは答えられません。"
        "本物のチャットモデルを設定してください。",
    },
    "left_out": {
        "en": "No bound tool could do this step: “{steps}”.",
        "de": "Kein gebundenes Werkzeug konnte diesen Schritt: „{steps}“.",
        "ja": "次の手順に使えるツールがありません: 「{steps}」。",
    },
    "error": {
        "en": "That could not be done: {error}",
        "de": "Das ging nicht: {error}",
        "ja": "実行できませんでした: {error}",
    },
    "first_error": {
        "en": "The first attempt failed ({error}), so I changed it. ",
        "de": "Der erste Versuch schlug fehl ({error}), deshalb habe ich ihn geändert. ",
        "ja": "最初の試みは失敗したので ({error})、変更しました。",
    },
    "number": {
        "en": "The result is {value}.",
        "de": "Das Ergebnis ist {value}.",
        "ja": "結果は{value}です。",
    },
    "steps": {
        "en": "Steps: {steps}.",
        "de": "Schritte: {steps}.",
        "ja": "手順: {steps}。",
    },
    "refund_yes": {
        "en": "Yes: order {order} was delivered on {delivered}, and the refund window of {days} "
        "days ends on {deadline}. Today is {today}, so it can be refunded.",
        "de": "Ja: Bestellung {order} wurde am {delivered} geliefert, und die Frist von {days} "
        "Tagen endet am {deadline}. Heute ist {today}, also kann sie erstattet werden.",
        "ja": "はい。注文{order}は{delivered}に配達され、{days}日間の返金期限は{deadline}です。"
        "今日は{today}なので返金できます。",
    },
    "refund_late": {
        "en": "No: order {order} was delivered on {delivered}, and the refund window of {days} "
        "days ended on {deadline}. Today is {today}.",
        "de": "Nein: Bestellung {order} wurde am {delivered} geliefert, und die Frist von {days} "
        "Tagen endete am {deadline}. Heute ist {today}.",
        "ja": "いいえ。注文{order}は{delivered}に配達され、{days}日間の返金期限は{deadline}でした。"
        "今日は{today}です。",
    },
    "refund_until": {
        "en": "Order {order} was delivered on {delivered}; it can be refunded until {deadline} "
        "({days} days). The question does not say what day today is.",
        "de": "Bestellung {order} wurde am {delivered} geliefert; bis {deadline} ({days} Tage) "
        "kann sie erstattet werden. Die Frage sagt nicht, welcher Tag heute ist.",
        "ja": "注文{order}は{delivered}に配達されました。"
        "{deadline}まで（{days}日間）返金できます。",
    },
    "refund_not_delivered": {
        "en": "Not now: order {order} is {status}, and only delivered orders are refunded.",
        "de": "Jetzt nicht: Bestellung {order} hat den Stand „{status}“, und nur gelieferte "
        "Bestellungen werden erstattet.",
        "ja": "今はできません。注文{order}の状態は{status}で、返金は配達済みの注文だけです。",
    },
    "warm_yes": {
        "en": "Yes, {temperature} °C is warm enough for a walk (rule of thumb: from {limit} °C).",
        "de": "Ja, {temperature} °C sind warm genug für einen Spaziergang (Faustregel: ab "
        "{limit} °C).",
        "ja": "はい、{temperature} °Cなら散歩に十分な暖かさです（目安: {limit} °C以上）。",
    },
    "warm_no": {
        "en": "No, {temperature} °C is rather cold for a walk (rule of thumb: from {limit} °C).",
        "de": "Nein, {temperature} °C sind eher kalt für einen Spaziergang (Faustregel: ab "
        "{limit} °C).",
        "ja": "いいえ、{temperature} °Cは散歩には寒めです（目安: {limit} °C以上）。",
    },
}


def answer(
    question: Question, observations: Sequence[Observation], *, left_out: Sequence[str] = ()
) -> str:
    """Return the labelled answer in the question's language; it names the steps left out."""
    parts = [LABEL, _answer(question, observations)]
    if observations and left_out:
        parts.append(_Sayer(question.language)("left_out", steps=" / ".join(left_out)))
    return " ".join(parts)


def _answer(question: Question, observations: Sequence[Observation]) -> str:
    say = _Sayer(question.language)
    good = [observation for observation in observations if not observation.is_error]
    if not observations:
        return say("none")
    refund = _refund(question, good, say)
    if refund:
        return refund
    if observations[-1].is_error:
        done = [_step(observation) for observation in good]
        steps = f" {say('steps', steps='; '.join(done))}" if done else ""
        return say("error", error=_line(observations[-1].content)) + steps
    parts: list[str] = []
    failed = next((observation for observation in observations if observation.is_error), None)
    if failed:
        parts.append(say("first_error", error=_line(failed.content)).strip())
    last = _parsed(good[-1].content)
    if isinstance(last, int | float):
        parts.append(say("number", value=last))
        if len(good) > 1:
            parts.append(say("steps", steps="; ".join(_step(o) for o in good)))
    else:
        parts += [_readable(observation.content) for observation in good]
    warm = _warmth(question, good, say)
    return " ".join([*parts, *([warm] if warm else [])])


class _Sayer:
    def __init__(self, language: Language) -> None:
        self._language: Language = language

    def __call__(self, key: str, **values: object) -> str:
        return _TEXTS[key][self._language].format(**values)


def _refund(question: Question, good: Sequence[Observation], say: _Sayer) -> str:
    """Compare delivery date plus refund window with the day the question calls today."""
    if not concepts("refund") <= concepts(question.text, language=question.language):
        return ""
    window = next((m for o in good if (m := _WINDOW.search(o.content))), None)
    orders = [_parsed(o.content) for o in good]
    order = next((o for o in orders if isinstance(o, dict) and "status" in o), None)
    if window is None or order is None:
        return ""
    delivered = _day(str(order.get("delivered_on", "")))
    name = order.get("order_id", "")
    if delivered is None or order["status"] != "delivered":
        return say("refund_not_delivered", order=name, status=order["status"])
    days = int(window.group(1))
    deadline = delivered + timedelta(days=days)
    today = next((d for c in question.of_kind("statement") if (d := _day(c.text))), None)
    key = "refund_until" if today is None else "refund_yes" if today <= deadline else "refund_late"
    return say(key, order=name, delivered=delivered, days=days, deadline=deadline, today=today)


def _warmth(question: Question, good: Sequence[Observation], say: _Sayer) -> str:
    if not _ASKS_WARM.search(question.text):
        return ""
    for record in (_parsed(observation.content) for observation in good):
        temperature = record.get("temperature_c") if isinstance(record, dict) else None
        if isinstance(temperature, int | float):
            key = "warm_yes" if temperature >= _WARM_FROM_C else "warm_no"
            return say(key, temperature=temperature, limit=_WARM_FROM_C)
    return ""


def _day(text: str) -> date | None:
    match = _DAY.search(text)
    try:
        return date.fromisoformat(match.group()) if match else None
    except ValueError:
        return None


def _step(observation: Observation) -> str:
    values = ", ".join(str(value) for value in observation.arguments.values())
    result = _readable(observation.content).rstrip(".")
    return f"{observation.tool_name}({values}) → {result}"


def _readable(content: str) -> str:
    """Return a record as `key: value` pairs, anything else as it is."""
    value = _parsed(content)
    if isinstance(value, dict):
        return ", ".join(f"{humanise(str(key))}: {item}" for key, item in value.items()) + "."
    return content.strip()


def _parsed(content: str) -> Any:
    try:
        return json.loads(content)
    except ValueError:
        return None


def _line(text: str) -> str:
    return " ".join(text.split()).rstrip(".")
