"""Pure: what learning from use may do, and whether its result is good enough to serve.

    v(tool) = unit(d + g * (mean of its questions - neutral * traffic))
    g = WEIGHT * n / (n + SHRINK)
    traffic = sum of all questions / (votes + TRAFFIC_SHRINK)

d is the vector of the tool's text. A session has one vote a tool, split over its calls; n is the
number of sessions that called the tool with success. Traffic is what is common to questions as
such: without taking it off, a tool with past questions would be nearer to every question, and hide
the tools that have none yet. The sums themselves are made in SQL (`registry.statements.lessons`).

Source: Rocchio, "Relevance feedback in information retrieval", 1971; the rest was measured on
MetaTool (`docs/learning.md`).
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from statistics import fmean, pstdev
from typing import Literal

from registry.errors import ConfigurationError

__all__ = [
    "LEARNING_TIMEOUT_S",
    "SHRINK",
    "TRAFFIC_SHRINK",
    "WEIGHT",
    "GateVerdict",
    "LearnedQuestion",
    "LearningExplanation",
    "LearningReport",
    "LearningSettings",
    "Replayed",
    "ToolMove",
    "gate",
    "neutral_share",
    "refusal",
    "replays",
]

WEIGHT = 3.0
SHRINK = 3.0
TRAFFIC_SHRINK = 20.0
LEARNING_TIMEOUT_S = 900.0  # of one statement; a search's limit would be too short
_HABIT_FROM, _HABIT_FULL = 4.0, 50.0  # unused tools a used one
_WORST_Z = -1.64  # one in twenty, if nothing had changed
_MOST_REPLAYS, _LEAST_REPLAYS, _MOST_DISTANCES = 2_000, 200, 20_000_000
_HURT_NAMED = 5
_SESSIONS_AT_LEAST = 100  # whose calls the window has room for

State = Literal["descriptions", "previous"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LearningSettings:
    """What `learn` may be told; the defaults suit.

    Attributes:
        min_sessions: Distinct sessions from which on a tool moves, 2 to 1,000.
        neutral: How much of what all questions share is taken off, -1 to 1; None: from how many
            tools are used (`neutral_share`).
        max_calls: Newest calls that count, 1 to 10,000,000.
        max_session_calls: Of a session, its newest calls that count, 1 to 1,000,000; never more
            than a hundredth of `max_calls` (`calls_per_session`).

    Raises:
        ConfigurationError: A value is out of range.
    """

    min_sessions: int = 2
    neutral: float | None = None
    max_calls: int = 200_000
    max_session_calls: int = 500

    def __post_init__(self) -> None:
        for name, low, high in (
            ("min_sessions", 2, 1_000),
            ("max_calls", 1, 10_000_000),
            ("max_session_calls", 1, 1_000_000),
        ):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
                raise ConfigurationError(
                    f"{name} is {value!r}; it must be a whole number from {low} to {high}"
                )
        if self.neutral is not None and not -1 <= self.neutral <= 1:
            raise ConfigurationError(f"neutral is {self.neutral!r}; it must be from -1 to 1")

    @property
    def calls_per_session(self) -> int:
        """Newest calls of a session that count, so that none fills what all share."""
        return min(self.max_session_calls, max(1, self.max_calls // _SESSIONS_AT_LEAST))


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """A held-back question, and at which rank the tool that was called for it is found.

    Attributes:
        before: Rank in the state compared against, from 1.
        after: Rank in the candidate, from 1.
    """

    session: str
    tool_name: str
    before: int
    after: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GateVerdict:
    """What a replay of held-back questions says of a candidate.

    Attributes:
        against: The vectors of the texts alone, or what was learnt before.
        passed: It is not worse, beyond chance.
        questions: Replayed.
        sessions: That asked them; each is one sample.
        mrr_before: Mean reciprocal rank in the state compared against; 0 without questions.
        mrr_after: Mean reciprocal rank in the candidate.
        z: Mean change of a session in standard errors; negative is worse.
        hurt: Names of up to five tools whose questions lost most, the worst first.
    """

    against: State
    passed: bool
    questions: int
    sessions: int
    mrr_before: float
    mrr_after: float
    z: float
    hurt: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolMove:
    """How far a tool's searched vector is moved.

    Attributes:
        sessions: That called it with success; 0 for a tool that goes back to its text.
        cosine_with_description: With the vector of its text; 1 means it does not move.
        cosine_with_previous: With the vector searched so far.
    """

    tool_name: str
    sessions: int
    cosine_with_description: float
    cosine_with_previous: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LearningReport:
    """What `learn` did, or would do.

    Attributes:
        promoted: The new vectors are searched, from the next search of every process on.
        dry_run: Nothing was to be changed.
        reason: Why nothing was promoted; empty where it was, or would have been.
        version: Of what is searched now; 0 where nothing was ever learnt.
        embedding_model: Whose questions count, empty where none serves.
        calls: That ended with success and count.
        sessions: That made them.
        anonymous_calls: Of those, calls without any session, conversation, thread or run id;
            all of them count as one session.
        left_out: Older calls beyond what a session may have, or beyond `max_calls`.
        over_session: Of those, calls beyond what a session may have.
        used_tools: Active tools with at least one call that counts.
        active_tools: All that are active.
        neutral: How much of what all questions share was taken off.
        moves: The tools whose vectors are moved, the farthest from its text first.
        gate: The verdicts, against the texts alone and against what was learnt before.
    """

    promoted: bool = False
    dry_run: bool = False
    reason: str = ""
    version: int = 0
    embedding_model: str = ""
    calls: int = 0
    sessions: int = 0
    anonymous_calls: int = 0
    left_out: int = 0
    over_session: int = 0
    used_tools: int = 0
    active_tools: int = 0
    neutral: float = 1.0
    moves: tuple[ToolMove, ...] = ()
    gate: tuple[GateVerdict, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnedQuestion:
    """A question that counts for a tool.

    Attributes:
        text: Its beginning; None where texts are not recorded.
        session: That asked it; empty for one without any id.
        asked_at: When.
        vote: What it counts: a session's vote is split over its calls of the tool.
        cosine_before: With the vector of the tool's text.
        cosine_after: With the vector that is searched now.
    """

    text: str | None
    session: str
    asked_at: datetime
    vote: float
    cosine_before: float
    cosine_after: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LearningExplanation:
    """Why a tool's searched vector is what it is.

    Attributes:
        moved: It differs from that of the tool's text.
        sessions: That moved it.
        cosine_with_description: Of the searched vector with that of the text; 1 if not moved.
        learned_at: When the registry last learnt; None if never, or undone.
        calls: Recorded for the tool, with success, that count or will count.
        waiting: Of those, calls since the registry last learnt.
        questions: Of those calls, what moved nearest first.
    """

    tool_name: str
    moved: bool
    sessions: int
    cosine_with_description: float
    learned_at: datetime | None
    calls: int
    waiting: int
    questions: tuple[LearnedQuestion, ...]


def neutral_share(used: int, unused: int) -> float:
    """Return how much of the traffic's mean is taken off: 1 to -1.

    Up to four unused tools a used one: the unused are new, and their questions must stay theirs
    (1). Fifty and more: to have been used at all is evidence (-1). Log-linear between.

    Args:
        used: Active tools with a call that counts.
        unused: Other active tools.
    """
    if used <= 0 or unused <= _HABIT_FROM * used:
        return 1.0
    share = math.log(unused / used / _HABIT_FROM) / math.log(_HABIT_FULL / _HABIT_FROM)
    return max(-1.0, 1.0 - 2.0 * share)


def replays(active_tools: int) -> int:
    """Return how many held-back calls are replayed at most: each is measured against all tools."""
    fitting = _MOST_DISTANCES // max(active_tools, 1)
    return max(_LEAST_REPLAYS, min(_MOST_REPLAYS, fitting))


def gate(calls: Sequence[Replayed], *, against: State) -> GateVerdict:
    """Compare two states on held-back calls: paired, by reciprocal rank, one session one sample.

    Not by recall@k: a recorded call's tool was among the k offered, so the state that made the
    records has recall@k 1 on them, and no candidate could ever be better. Without calls there is
    nothing to say against the candidate.
    """
    if not calls:
        return GateVerdict(
            against=against,
            passed=True,
            questions=0,
            sessions=0,
            mrr_before=0.0,
            mrr_after=0.0,
            z=0.0,
        )
    changes: defaultdict[str, list[float]] = defaultdict(list)
    lost: Counter[str] = Counter()
    for call in calls:
        change = 1 / call.after - 1 / call.before
        changes[call.session].append(change)
        lost[call.tool_name] -= change  # pyright: ignore[reportArgumentType]
    samples = [fmean(of_session) for of_session in changes.values()]
    mean, error = fmean(samples), pstdev(samples) / math.sqrt(len(samples))
    z = mean / max(error, 1e-9)
    return GateVerdict(
        against=against,
        passed=z > _WORST_Z,
        questions=len(calls),
        sessions=len(samples),
        mrr_before=fmean(1 / call.before for call in calls),
        mrr_after=fmean(1 / call.after for call in calls),
        z=z,
        hurt=tuple(
            name
            for name, loss in sorted(lost.items(), key=lambda item: (-item[1], item[0]))
            if loss > 0
        )[:_HURT_NAMED],
    )


def refusal(verdicts: Sequence[GateVerdict]) -> str:
    """Return why a candidate is not promoted; empty when every verdict is good."""
    for verdict in verdicts:
        if not verdict.passed:
            state = "the texts alone" if verdict.against == "descriptions" else "what serves now"
            return (
                f"{verdict.questions} held-back questions of {verdict.sessions} sessions would "
                f"find their tools worse than with {state}: mean reciprocal rank "
                f"{verdict.mrr_before:.3f} to {verdict.mrr_after:.3f} (z {verdict.z:.1f}). "
                f"Most lost: {', '.join(verdict.hurt)}. What is searched stays as it was; look at "
                "those tools' neighbours with explain_learning, or remove the records that mislead"
            )
    return ""
