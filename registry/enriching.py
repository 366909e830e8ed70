"""Enriching: a chat model writes example questions for tools, those that fit are stored.

One call a tool. What it wrote is stored before the next tools are asked about, as a new version of
the tool by `enrich:<model>`; so whatever ends a run, the next one goes on where it ended.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from langchain_core.runnables import RunnableLambda

from registry.enrichment import (
    AUTHOR_PREFIX,
    DroppedQuestion,
    EnrichmentPlan,
    EnrichmentReport,
    MalformedAnswerError,
    PlannedTool,
    ToolEnrichment,
    answer_schema,
    better_tool,
    check_count,
    enriched_examples,
    enrichment_plan,
    prompt,
    questions_of,
    screened,
)
from registry.errors import (
    ConfigurationError,
    EmbeddingError,
    InvalidToolError,
    ToolNotFoundError,
    ToolRAGError,
    VersionConflictError,
)
from registry.types import ToolRecord

if TYPE_CHECKING:
    from langchain_core.language_models import BaseChatModel
    from langchain_core.messages import BaseMessage
    from langchain_core.runnables import Runnable, RunnableConfig

    from registry.store import ToolRegistry
    from registry.store_async import AsyncToolRegistry

__all__ = [
    "DroppedQuestion",
    "EnrichmentPlan",
    "EnrichmentReport",
    "ToolEnrichment",
    "aenrich",
    "aplan_enrichment",
    "enrich",
    "plan_enrichment",
]

_SCREENED_HITS = 10
_GIVEN_UP_AFTER = 5  # tools in a row: a model is down, or its key is wrong
_CHANGED_MEANWHILE = (InvalidToolError, ToolNotFoundError, VersionConflictError)
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ask:
    """Ask: for each prompt the model's structured answer, or the error it raised."""

    prompts: Sequence[Sequence[BaseMessage]]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Search:
    """Ask: what the registry finds for a question."""

    question: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Store:
    """Ask: give a tool these examples, if nobody changed it meanwhile."""

    record: ToolRecord
    examples: Sequence[str]


_Step = _Ask | _Search | _Store
_Steps = Generator[_Step, Any, EnrichmentReport]
OnTool = Callable[[ToolEnrichment], None]


def plan_enrichment(
    registry: ToolRegistry,
    *,
    tool_names: Sequence[str] | None = None,
    questions: int = 5,
    again: bool = False,
) -> EnrichmentPlan:
    """Return which tools a chat model would be asked about, and about how much it costs.

    Asks no model and embeds nothing.

    Args:
        registry: Whose active tools.
        tool_names: Some tools; all when not given.
        questions: Asked for, a tool, 1 to 20.
        again: Also tools that have questions by a chat model, to replace those.

    Raises:
        ConfigurationError: `questions` is out of range, or a named tool is switched off.
        ToolNotFoundError: A named tool is not registered in this namespace.
        RegistryUnavailableError: The database does not answer.
    """
    check_count(questions)
    if tool_names is None:
        records = registry.list_tools()
    else:
        records = [_active(registry.get(name)) for name in sorted(set(tool_names))]
    enriched = {
        record.spec.tool_name: enriched_examples(registry.history(record.spec.tool_name))
        for record in records
        if _may_be_enriched(record)
    }
    return enrichment_plan(records, enriched, questions=questions, again=again)


async def aplan_enrichment(
    registry: AsyncToolRegistry,
    *,
    tool_names: Sequence[str] | None = None,
    questions: int = 5,
    again: bool = False,
) -> EnrichmentPlan:
    """Like `plan_enrichment`, for async code."""
    check_count(questions)
    if tool_names is None:
        records = await registry.list_tools()
    else:
        records = [_active(await registry.get(name)) for name in sorted(set(tool_names))]
    enriched = {
        record.spec.tool_name: enriched_examples(await registry.history(record.spec.tool_name))
        for record in records
        if _may_be_enriched(record)
    }
    return enrichment_plan(records, enriched, questions=questions, again=again)


def enrich(
    registry: ToolRegistry,
    model: BaseChatModel,
    plan: EnrichmentPlan,
    *,
    model_name: str = "",
    max_concurrency: int = 4,
    on_tool: OnTool | None = None,
) -> EnrichmentReport:
    """Let a chat model write example questions for the tools of a plan; keep those that fit.

    A question stays if it is text, new, and no other tool clearly fits it better: the registry is
    searched with it before it is stored. Whatever ends this call, what was stored stays, and a new
    plan leaves those tools out. A malformed answer is asked for once more; a tool that fails
    blocks no other.

    Args:
        registry: Where the tools are.
        model: Any chat model that calls tools or gives structured output.
        plan: From `plan_enrichment`.
        model_name: For the history; the model's own name when empty.
        max_concurrency: Calls under way at once, 1 to 64. What they answered is lost, and asked
            again by a later plan, when this call is broken off.
        on_tool: Called with each tool when it is done.

    Raises:
        ConfigurationError: The model gives no structured output, or an option is out of range.
        RegistryUnavailableError: The database went away.
    """
    writer, author = _writer(model, plan.questions), _author(model, model_name)
    options = _options(max_concurrency)

    def answered(step: _Step) -> Any:
        if isinstance(step, _Ask):
            return writer.batch(list(step.prompts), config=options, return_exceptions=True)
        if isinstance(step, _Search):
            return registry.search(step.question, k=_SCREENED_HITS, threshold=0)
        return registry.update_tool(
            step.record.spec.tool_name,
            expected_version=step.record.version,
            changed_by=author,
            examples=step.examples,
        )

    steps = _steps(plan, batch_size=max_concurrency, on_tool=on_tool)
    try:
        step = next(steps)
        while True:
            try:
                answer = answered(step)
            except ToolRAGError as error:
                step = steps.throw(error)
            else:
                step = steps.send(answer)
    except StopIteration as end:
        return end.value


async def aenrich(
    registry: AsyncToolRegistry,
    model: BaseChatModel,
    plan: EnrichmentPlan,
    *,
    model_name: str = "",
    max_concurrency: int = 4,
    on_tool: OnTool | None = None,
) -> EnrichmentReport:
    """Like `enrich`, for async code."""
    writer, author = _writer(model, plan.questions), _author(model, model_name)
    options = _options(max_concurrency)

    async def answered(step: _Step) -> Any:
        if isinstance(step, _Ask):
            return await writer.abatch(list(step.prompts), config=options, return_exceptions=True)
        if isinstance(step, _Search):
            return await registry.search(step.question, k=_SCREENED_HITS, threshold=0)
        return await registry.update_tool(
            step.record.spec.tool_name,
            expected_version=step.record.version,
            changed_by=author,
            examples=step.examples,
        )

    steps = _steps(plan, batch_size=max_concurrency, on_tool=on_tool)
    try:
        step = next(steps)
        while True:
            try:
                answer = await answered(step)
            except ToolRAGError as error:
                step = steps.throw(error)
            else:
                step = steps.send(answer)
    except StopIteration as end:
        return end.value


def _steps(plan: EnrichmentPlan, *, batch_size: int, on_tool: OnTool | None) -> _Steps:
    """Yield what has to be asked, searched and stored; return the report."""
    done: list[ToolEnrichment] = []
    failed_in_a_row, given_up = 0, ""

    def finish(outcome: ToolEnrichment) -> None:
        done.append(outcome)
        if on_tool is not None:
            on_tool(outcome)

    for start in range(0, len(plan.tools), batch_size):
        batch = plan.tools[start : start + batch_size]
        if given_up:
            for tool in batch:
                finish(_failed(tool, f"not asked, {_GIVEN_UP_AFTER} tools in a row had failed."))
            continue
        answers = yield from _answers(batch, plan.questions)
        for tool, answer in zip(batch, answers, strict=True):
            if isinstance(answer, str):
                outcome, is_outage = _failed(tool, answer), True
            elif isinstance(answer, MalformedAnswerError):
                outcome = _failed(tool, f"its answer was malformed twice: {answer}")
                is_outage = False
            else:
                outcome, is_outage = yield from _kept(tool, answer, plan.questions)
            failed_in_a_row = failed_in_a_row + 1 if is_outage else 0
            if failed_in_a_row >= _GIVEN_UP_AFTER:
                given_up = outcome.error
            finish(outcome)
    return EnrichmentReport(tools=tuple(done), skipped=plan.skipped, given_up=given_up)


def _answers(
    batch: Sequence[PlannedTool], questions: int
) -> Generator[_Step, Any, list[list[str] | MalformedAnswerError | str]]:
    """Ask about a batch, and once more where the answer was malformed.

    Returns:
        For each tool its questions, what was wrong with the answer, or why the call failed.
    """
    found: list[list[str] | MalformedAnswerError | str] = []
    for answer in (yield _Ask(prompts=[prompt(tool, questions=questions) for tool in batch])):
        found.append(_read(answer))
    malformed = [
        (place, said) for place, said in enumerate(found) if isinstance(said, MalformedAnswerError)
    ]
    if malformed:
        prompts = [
            prompt(batch[place], questions=questions, problem=str(said))
            for place, said in malformed
        ]
        again = yield _Ask(prompts=prompts)
        for (place, _), answer in zip(malformed, again, strict=True):
            found[place] = _read(answer)
    return found


def _read(answer: object) -> list[str] | MalformedAnswerError | str:
    # LangChain's parsers and pydantic raise a ValueError over what a model said; anything else is
    # a call that failed.
    if isinstance(answer, Exception) and not isinstance(answer, ValueError):
        said = " ".join(str(answer).split())[:300]
        return f"the chat model failed ({type(answer).__name__}): {said}"
    try:
        return questions_of(answer)
    except MalformedAnswerError as error:
        return error


def _kept(
    tool: PlannedTool, answer: list[str], questions: int
) -> Generator[_Step, Any, tuple[ToolEnrichment, bool]]:
    """Search with each question, and store those that fit.

    Returns:
        What became of the tool, and whether it was the embedding model that failed.
    """
    name = tool.record.spec.tool_name
    usable, dropped = screened(answer, known=tool.examples, limit=questions)
    added: list[str] = []
    try:
        for question in usable:
            better = better_tool(name, (yield _Search(question=question)))
            if better:
                dropped.append(
                    DroppedQuestion(
                        question=question, reason="fits another tool better", better_tool=better
                    )
                )
            else:
                added.append(question)
        if added:  # what was there is replaced only by something
            yield _Store(record=tool.record, examples=[*tool.examples, *added])
    except EmbeddingError as error:
        return _failed(tool, str(error)), True
    except _CHANGED_MEANWHILE as error:
        return _failed(tool, str(error)), False
    return ToolEnrichment(tool_name=name, added=tuple(added), dropped=tuple(dropped)), False


def _failed(tool: PlannedTool, error: str) -> ToolEnrichment:
    return ToolEnrichment(tool_name=tool.record.spec.tool_name, error=error)


def _writer(model: BaseChatModel, questions: int) -> Runnable[Any, Any]:
    try:
        writer = model.with_structured_output(answer_schema(questions), include_raw=True)
    except NotImplementedError as error:
        raise ConfigurationError(
            f"{type(model).__name__} gives no structured output; use a chat model that calls tools."
        ) from error
    # Asked for exceptions, a sequence's own batch() returns KeyboardInterrupt as one of them, and
    # Ctrl-C would be an answer; that of a lambda does not.
    return RunnableLambda(writer.invoke, afunc=writer.ainvoke)


def _author(model: BaseChatModel, given: str) -> str:
    own = getattr(model, "model_name", None) or getattr(model, "model", None)
    name = given.strip() or (own if isinstance(own, str) else "") or type(model).__name__
    return f"{AUTHOR_PREFIX}{name}"


def _options(max_concurrency: int) -> RunnableConfig:
    if not 1 <= max_concurrency <= 64:
        raise ConfigurationError(f"max_concurrency is {max_concurrency!r}; use 1 to 64.")
    return {"max_concurrency": max_concurrency}


def _active(record: ToolRecord) -> ToolRecord:
    if not record.is_active:
        raise ConfigurationError(
            f"{record.spec.tool_name} is switched off, so no search finds it; activate it first."
        )
    return record


def _may_be_enriched(record: ToolRecord) -> bool:
    # Saves reading the history of tools that were never changed.
    return record.version > 1 and bool(record.spec.examples)
