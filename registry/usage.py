"""What is recorded of use: selections, calls, and what of a question may be kept; no I/O."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Literal, get_args
from uuid import UUID

from registry.errors import ConfigurationError

__all__ = [
    "CALL_STATUSES",
    "MAX_ID_CHARS",
    "MAX_QUESTION_CHARS",
    "CallRecord",
    "CallStatus",
    "SelectionRecord",
    "UsageHit",
    "UsageRecord",
    "UsageSettings",
    "admitted",
    "merged_calls",
    "storable",
]

MAX_QUESTION_CHARS = 500
MAX_ID_CHARS = 200

# Best first: of several calls of one tool in one selection, the first of these stands.
CallStatus = Literal["success", "error", "timeout", "cancelled", "refused"]
CALL_STATUSES: tuple[CallStatus, ...] = get_args(CallStatus)

_IDS = ("run_id", "thread_id", "session_id", "conversation_id")

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageHit:
    """A tool that a selection found or offered.

    Attributes:
        rank: 1 for the best hit; None for a tool that was offered without being found: a pinned
            one, or one of an earlier run of the thread.
        relevance: 0 to 1; None where there is no rank.
        was_offered: The model was bound to it. Hits below the threshold are kept as well.
    """

    tool_name: str
    rank: int | None
    relevance: float | None
    was_offered: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectionRecord:
    """One search made for a run.

    Attributes:
        id: Known to the thread's state, so that calls find it, in another process as well.
        strategy: How the tools were selected.
        threshold: Relevance a hit needed to be offered.
        latency_ms: Search with the embedding of the question, milliseconds.
        hits: Found tools, best first, then those offered without being found.
        session_id: Who asked, as learning weighs it: all questions of one session count as one.
        query_text: The question; cut to 500 characters when it is written.
        query_vector: The question's vector in pgvector's text form.
        embedding_model_id: What made the vector.
    """

    id: UUID
    namespace: str
    strategy: str
    threshold: float
    latency_ms: float
    hits: tuple[UsageHit, ...] = ()
    run_id: str | None = None
    thread_id: str | None = None
    session_id: str | None = None
    conversation_id: str | None = None
    query_text: str | None = None
    query_vector: str | None = None
    embedding_model_id: int | None = None
    created_at: datetime = field(default_factory=lambda: datetime.now(UTC))


@dataclass(frozen=True, slots=True, kw_only=True)
class CallRecord:
    """How one tool call of a run ended.

    Attributes:
        status: `error`: the tool failed or its arguments were refused; `timeout`: it raised
            `TimeoutError`; `refused`: nothing was run.
        call_ms: How long the tool ran, milliseconds; None where nothing was run.
        was_offered: False for a name that the model was not given.
    """

    selection_id: UUID
    tool_name: str
    status: CallStatus
    call_ms: float | None = None
    was_offered: bool = True


UsageRecord = SelectionRecord | CallRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageSettings:
    """What is recorded of use, and how.

    Attributes:
        enabled: False records nothing.
        record_question_text: Keep the first 500 characters of a question.
        record_question_vector: Keep a question's vector, which learning needs. It is that of the
            whole question, whatever `redact` does to the text, and tells roughly what was asked.
        redact: Called with each question, off the run's path; what it returns is kept instead.
            When it fails, the text is not kept at all.
        queue_size: Records kept in memory while the database is slow; further ones are dropped.
        batch_size: Records in one transaction.
        flush_interval_s: Longest wait for a batch to fill, seconds.

    Raises:
        ConfigurationError: A value is out of range or of the wrong kind.
    """

    enabled: bool = True
    record_question_text: bool = True
    record_question_vector: bool = True
    redact: Callable[[str], str] | None = None
    queue_size: int = 2_000
    batch_size: int = 100
    flush_interval_s: float = 1.0

    def __post_init__(self) -> None:
        for name in ("enabled", "record_question_text", "record_question_vector"):
            if not isinstance(getattr(self, name), bool):
                raise ConfigurationError(
                    f"{name} is {getattr(self, name)!r}; it must be True or False"
                )
        if self.redact is not None and not callable(self.redact):
            raise ConfigurationError(
                f"redact is {self.redact!r}; it must be a function of a text that returns a text"
            )
        for name, low, high in (
            ("queue_size", 1, 1_000_000),
            ("batch_size", 1, 10_000),
            ("flush_interval_s", 0.001, 3_600),
        ):
            value = getattr(self, name)
            whole = not name.endswith("_s")
            if isinstance(value, bool) or not isinstance(value, int if whole else (int, float)):
                kind = "a whole number" if whole else "a number"
                raise ConfigurationError(f"{name} is {value!r}; it must be {kind}")
            if not low <= value <= high:
                raise ConfigurationError(f"{name} is {value}; it must be from {low} to {high}")


def admitted(record: SelectionRecord, settings: UsageSettings) -> SelectionRecord:
    """Return a selection as it may wait in memory: without what is switched off."""
    text = record.query_text if settings.record_question_text else None
    if text is not None and settings.redact is None:
        text = text[:MAX_QUESTION_CHARS]  # redaction sees the whole, or it would miss what is cut
    has_vector = settings.record_question_vector
    return replace(
        record, query_text=text, query_vector=record.query_vector if has_vector else None
    )


def storable(record: SelectionRecord, settings: UsageSettings) -> SelectionRecord:
    """Return a selection as it is written: question redacted and cut, texts the database takes."""
    text = record.query_text
    if text is not None and settings.redact is not None:
        text = _redacted(text, settings.redact)
    ids = {name: _clean(getattr(record, name), MAX_ID_CHARS) for name in _IDS}
    return replace(
        record,
        query_text=_clean(text, MAX_QUESTION_CHARS),
        threshold=_finite(record.threshold),
        latency_ms=_finite(record.latency_ms),
        **ids,
    )


def merged_calls(calls: Iterable[CallRecord]) -> list[CallRecord]:
    """Return one record a tool and selection, in a fixed order.

    The best status stands; `call_ms` is that of the slowest call, so that a batch which is written
    twice changes nothing.
    """
    merged: dict[tuple[UUID, str], CallRecord] = {}
    for call in calls:
        key = (call.selection_id, call.tool_name)
        before = merged.get(key)
        merged[key] = call if before is None else _merged(before, call)
    return [merged[key] for key in sorted(merged)]


def _merged(one: CallRecord, other: CallRecord) -> CallRecord:
    times = [ms for ms in (one.call_ms, other.call_ms) if ms is not None]
    return replace(
        one,
        status=min(one.status, other.status, key=CALL_STATUSES.index),
        call_ms=max(times, default=None),
        was_offered=one.was_offered or other.was_offered,
    )


def _redacted(text: str, redact: Callable[[str], str]) -> str | None:
    try:
        result = redact(text)
    except Exception as error:  # the user's code; its text may hold the question
        _log.error("usage_redaction_failed", extra={"error_class": type(error).__name__})
        return None
    if not isinstance(result, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        _log.error("usage_redaction_failed", extra={"returned": type(result).__name__})
        return None
    return result


def _clean(text: str | None, max_chars: int) -> str | None:
    if text is None:
        return None
    # Text columns take neither NUL nor half a surrogate.
    return text.replace("\x00", "").encode("utf-8", "replace").decode()[:max_chars]


def _finite(value: float) -> float:
    return value if math.isfinite(value) else 0.0
