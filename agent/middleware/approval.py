"""Calls that need a person's approval interrupt the run, and run only with it."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NotRequired, cast

from langchain.agents.middleware import (
    AgentMiddleware,
    AgentState,
    ExtendedModelResponse,
    ModelRequest,
    ModelResponse,
    ToolCallRequest,
)
from langchain.agents.middleware.types import OmitFromSchema
from langchain_core.messages import (
    AIMessage,
    BaseMessage,
    RemoveMessage,
    ToolCall,
    ToolMessage,
)
from langchain_core.tools import BaseTool
from langgraph.checkpoint.base import CheckpointTuple
from langgraph.config import get_config
from langgraph.graph.message import REMOVE_ALL_MESSAGES
from langgraph.runtime import ExecutionInfo, Runtime
from langgraph.types import Command, interrupt

from agent.approving import answers, records
from agent.approving.decisions import read_answer
from agent.approving.judging import CallJudge, OwnTool, extra_of
from agent.approving.records import ApprovalRecord
from agent.approving.rules import ApprovalPolicy
from agent.guarding.answers import approval_refusal
from agent.middleware._approval_use import (
    UsedApprovals,
    checkpointer_of,
    graph_of,
    has_moved_on,
    is_replay,
)
from agent.middleware._binding import names_of, offers_of
from agent.middleware._guarded_call import is_control_signal
from agent.middleware._messages import legal_message
from agent.selection import Offer
from registry.errors import ApprovalError, ConfigurationError
from registry.toolset import Toolset

__all__ = ["ApprovalMiddleware", "ApprovalState"]

_PRIVATE = OmitFromSchema(input=True, output=True)

_logger = logging.getLogger(__name__)


class ApprovalState(AgentState[Any]):
    """Adds to a thread's state how the calls of the last reply stand, by call id."""

    approvals: NotRequired[Annotated[dict[str, ApprovalRecord], _PRIVATE]]


class ApprovalMiddleware(AgentMiddleware[ApprovalState, Any, Any]):
    """Asks a person before a call runs that needs approval, with one interrupt a reply.

    Needs approval: what the registry marks with `requires_approval`, and what the rules say. The
    arguments are checked first; a call that cannot run is answered to the model, and nobody is
    asked. The value of the interrupt is LangChain's `HITLRequest` with the id of each call and
    the reason; the answer is its `HITLResponse`, best with each decision's `call_id`. A decision
    that is missing, repeated, malformed or of another call does nothing, and what is undecided is
    asked again. None of the reply's tools runs before all is decided.

    An approval is of one call of one reply with the arguments shown, and is used once. It is
    looked at again when the call runs, whatever way led there; without one the call is refused. So
    it is in a run without a checkpointer, which could not be resumed.

    Put it behind `ToolRAGMiddleware` and before `ToolGuardMiddleware`.

    Args:
        rules: Tool name to True, or to a function of the live tool and the checked arguments that
            returns True, False, or the reason to ask. One that fails refuses the call. A name is
            the model-facing one, the tool's own, or the origin (`mcp:north`), with `*` for any
            characters. Rules add to the registry's flag and never lift it.
        toolset: The live tools of `ToolRAGMiddleware`.
        tools: The agent's other tools.
        max_rejections: Rejections in a run after which nobody is asked about that tool again, 1
            or more.

    Raises:
        ConfigurationError: A rule's name fits no tool, or its value is neither True nor a function.
    """

    state_schema = ApprovalState

    def __init__(
        self,
        rules: Mapping[str, ApprovalPolicy | Literal[True]] | None = None,
        *,
        toolset: Toolset | None = None,
        tools: Sequence[OwnTool] = (),
        max_rejections: int = 3,
    ) -> None:
        super().__init__()
        if isinstance(max_rejections, bool) or max_rejections < 1:
            raise ConfigurationError(f"max_rejections is {max_rejections!r}; it must be 1 or more")
        self._judge = CallJudge(rules, toolset=toolset, tools=tools, max_rejections=max_rejections)
        self._used = UsedApprovals()

    # --- a new run: what the last one left open is closed

    def before_agent(self, state: ApprovalState, runtime: Runtime[Any]) -> dict[str, Any] | None:
        """Close the calls that waited for approval when the thread goes on without it."""
        kept = records.records_of(state)
        if not kept:
            return None
        messages = state["messages"]
        waiting = [record for record in kept.values() if record["verdict"] == "asked"]
        asked = {record["call_id"] for record in waiting}
        reply_id = next((record["reply_id"] for record in waiting), "")
        closed = answers.closed_history(messages, reply_id, asked) if waiting else None
        if closed is None:
            return {records.STATE_KEY: {}}
        for record in waiting:
            _logger.info("approval_abandoned", extra=extra_of(record))
        # Answers belong behind their reply, and messages can only be appended or all replaced.
        everything = [RemoveMessage(id=REMOVE_ALL_MESSAGES), *closed]
        return {"messages": everything, records.STATE_KEY: {}}

    async def abefore_agent(
        self, state: ApprovalState, runtime: Runtime[Any]
    ) -> dict[str, Any] | None:
        """Close the calls that waited for approval when the thread goes on without it."""
        return self.before_agent(state, runtime)

    # --- every model call: which calls of the reply need approval; decided once, and kept

    def wrap_model_call(
        self,
        request: ModelRequest[Any],
        handler: Callable[[ModelRequest[Any]], ModelResponse[Any]],
    ) -> ModelResponse[Any] | ExtendedModelResponse[Any]:
        """Call the model, and note which calls of its reply need approval."""
        return self._noted(request, handler(request))

    async def awrap_model_call(
        self,
        request: ModelRequest[Any],
        handler: Callable[[ModelRequest[Any]], Awaitable[ModelResponse[Any]]],
    ) -> ModelResponse[Any] | ExtendedModelResponse[Any]:
        """Call the model, and note which calls of its reply need approval."""
        return self._noted(request, await handler(request))

    def _noted(
        self, request: ModelRequest[Any], response: ModelResponse[Any]
    ) -> ModelResponse[Any] | ExtendedModelResponse[Any]:
        place = next(
            (
                place
                for place in range(len(response.result) - 1, -1, -1)
                if isinstance(response.result[place], AIMessage)
            ),
            None,
        )
        reply = None if place is None else cast("AIMessage", response.result[place])
        kept = records.records_of(request.state)
        if reply is None or place is None or not reply.tool_calls:
            if not kept:
                return response
            return ExtendedModelResponse(response, Command(update={records.STATE_KEY: {}}))
        legal = legal_message(
            reply, taken=names_of(request.tools), history=request.state["messages"]
        )
        reply = records.with_id(legal)
        answered = {m.tool_call_id for m in response.result if isinstance(m, ToolMessage)}
        bound = {tool.name: tool for tool in request.tools if isinstance(tool, BaseTool)}
        offers = _offers(request.state)
        new: dict[str, ApprovalRecord] = {}
        refused: list[ToolMessage] = []
        for call in reply.tool_calls:
            tool = bound.get(call["name"])
            if tool is None or call["id"] in answered:
                continue
            offer = offers.get(call["name"])
            judged = self._judge.judged(reply, call, tool, offer, request.state["messages"])
            if isinstance(judged, ToolMessage):
                refused.append(judged)
            elif judged is not None:
                new[judged["call_id"]] = judged
        if not new and not refused and not kept:
            return response
        messages: list[BaseMessage] = [
            *response.result[:place],
            reply,
            *refused,
            *response.result[place + 1 :],
        ]
        return ExtendedModelResponse(
            ModelResponse(messages, structured_response=response.structured_response),
            Command(update={records.STATE_KEY: new}),
        )

    # --- after the model: ask, before any tool of the reply runs

    def after_model(self, state: ApprovalState, runtime: Runtime[Any]) -> dict[str, Any] | None:
        """Interrupt the run until a person has decided on every call that needs it.

        Raises:
            ApprovalError: The calls were decided on before, in another run from the same state.
        """
        if not state.get(records.STATE_KEY) or not (asked := _asked(state)):
            return None
        saver, info = checkpointer_of(get_config()), runtime.execution_info
        if saver is None or info is None:
            return _with(state, _refused_for_good(asked))
        decided = self._decided(state, asked)
        self._check_unsettled(decided, saver.get_tuple(graph_of(info)), info)
        return _with(state, decided)

    async def aafter_model(
        self, state: ApprovalState, runtime: Runtime[Any]
    ) -> dict[str, Any] | None:
        """Interrupt the run until a person has decided on every call that needs it.

        Raises:
            ApprovalError: The calls were decided on before, in another run from the same state.
        """
        if not state.get(records.STATE_KEY) or not (asked := _asked(state)):
            return None
        saver, info = checkpointer_of(get_config()), runtime.execution_info
        if saver is None or info is None:
            return _with(state, _refused_for_good(asked))
        decided = self._decided(state, asked)
        self._check_unsettled(decided, await saver.aget_tuple(graph_of(info)), info)
        return _with(state, decided)

    def _decided(
        self, state: ApprovalState, asked: Sequence[ApprovalRecord]
    ) -> list[ApprovalRecord]:
        """Return the records with their decisions; interrupt the run while some have none."""
        offers = _offers(state)

        def edited(record: ApprovalRecord, arguments: Mapping[str, Any]) -> dict[str, Any] | str:
            return self._judge.edited(record, arguments, offers.get(record["tool"]))

        decided: dict[str, ApprovalRecord] = {}
        waiting = list(asked)
        request = records.new_request(waiting, problems={})
        while waiting:
            # LangGraph runs this node anew for each answer, and gives it the earlier ones first.
            answer = interrupt(request)
            read = read_answer(answer, waiting, edit=edited, settled=decided.keys())
            decided |= read.settled
            waiting = [record for record in asked if record["call_id"] not in decided]
            request = records.new_request(waiting, problems=read.problems, of_all=read.of_all)
        return list(decided.values())

    def _check_unsettled(
        self,
        decided: Sequence[ApprovalRecord],
        newest: CheckpointTuple | None,
        info: ExecutionInfo,
    ) -> None:
        """Pass decisions that are the first on their calls.

        Raises:
            ApprovalError: They are not.
        """
        if has_moved_on(newest, info) or any(record["id"] in self._used for record in decided):
            names = ", ".join(f"{record['tool']!r} ({record['call_id']})" for record in decided)
            raise ApprovalError(
                f"The approval of {names} is settled already, and the first answer stands. Go on "
                "from the thread's newest state."
            )
        for record in decided:
            _logger.info(f"call_{record['verdict']}", extra=extra_of(record))

    # --- every tool call: the approval is looked at where the tool is run

    def wrap_tool_call(
        self,
        request: ToolCallRequest,
        handler: Callable[[ToolCallRequest], ToolMessage | Command[Any]],
    ) -> ToolMessage | Command[Any]:
        """Run a call that needs no approval, or has it; refuse any other."""
        permit = self._permit(request)
        if isinstance(permit, ToolMessage):
            return permit
        if (record := permit.record) is None:
            return handler(request)
        saver, info = checkpointer_of(request.runtime.config), request.runtime.execution_info
        newest = saver.get_tuple(graph_of(info)) if saver and info else None
        if not self._is_first_use(record, request, newest, info):
            return answers.used_up(request.tool_call)
        try:
            return answers.told_of_edit(handler(permit.request), record)
        except BaseException as error:
            self._release(record, error)
            raise

    async def awrap_tool_call(
        self,
        request: ToolCallRequest,
        handler: Callable[[ToolCallRequest], Awaitable[ToolMessage | Command[Any]]],
    ) -> ToolMessage | Command[Any]:
        """Run a call that needs no approval, or has it; refuse any other."""
        permit = self._permit(request)
        if isinstance(permit, ToolMessage):
            return permit
        if (record := permit.record) is None:
            return await handler(request)
        saver, info = checkpointer_of(request.runtime.config), request.runtime.execution_info
        newest = await saver.aget_tuple(graph_of(info)) if saver and info else None
        if not self._is_first_use(record, request, newest, info):
            return answers.used_up(request.tool_call)
        try:
            return answers.told_of_edit(await handler(permit.request), record)
        except BaseException as error:
            self._release(record, error)
            raise

    def _permit(self, request: ToolCallRequest) -> _Permit | ToolMessage:
        call = request.tool_call
        record = records.records_of(request.state).get(call["id"] or "")
        if record is None or record["verdict"] == "free":
            if self._is_free(request, record):
                return _Permit(request=request)
            _logger.warning("unapproved_call_refused", extra=extra_of(call))
            return answers.unapproved(request.state, call) or approval_refusal(call)
        refused = answers.unapproved(request.state, call)
        if refused is not None:
            _logger.warning("unapproved_call_refused", extra=extra_of(call))
            return refused
        approved = cast("ToolCall", {**call, "args": record["arguments"]})
        return _Permit(request=request.override(tool_call=approved), record=record)

    def _is_free(self, request: ToolCallRequest, record: ApprovalRecord | None) -> bool:
        """Return whether a call runs without approval: no rule is for it, or its policy said so."""
        call = request.tool_call
        offer = _offers(request.state).get(call["name"])
        if offer is not None and offer["requires_approval"]:
            return False
        if not self._judge.has_rule(call["name"], request.tool, offer):
            return True
        return record is not None and records.is_of(record, call, request.state["messages"])

    def _is_first_use(
        self,
        record: ApprovalRecord,
        request: ToolCallRequest,
        newest: CheckpointTuple | None,
        info: ExecutionInfo | None,
    ) -> bool:
        if (info is None or not is_replay(newest, info)) and self._used.add(record["id"]):
            return True
        _logger.warning("approval_used_twice", extra=extra_of(request.tool_call))
        return False

    def _release(self, record: ApprovalRecord, error: BaseException) -> None:
        if is_control_signal(error):  # the tool asks for something itself, and runs anew with it
            self._used.discard(record["id"])


@dataclass(frozen=True, slots=True, kw_only=True)
class _Permit:
    """A call that may run, with the record that says so."""

    request: ToolCallRequest
    record: ApprovalRecord | None = None


def _asked(state: ApprovalState) -> list[ApprovalRecord]:
    # Calls beyond a limit of the run are refused by it; nobody need decide on them.
    room = cast("Mapping[str, Any]", state).get("calls_room")
    return records.asked_records(state, state["messages"], room=room)


def _offers(state: Any) -> dict[str, Offer]:
    """Return the offers of a thread by name, those included that the next model call adds."""
    late = cast("Mapping[str, list[Offer]]", state).get("late_offers") or []
    return {offer["name"]: offer for offer in (*offers_of(state), *late)}


def _with(state: ApprovalState, changed: Sequence[ApprovalRecord]) -> dict[str, Any]:
    by_id = {record["call_id"]: record for record in changed}
    return {records.STATE_KEY: {**records.records_of(state), **by_id}}


def _refused_for_good(asked: Sequence[ApprovalRecord]) -> list[ApprovalRecord]:
    names = sorted({record["tool"] for record in asked})
    _logger.error("approval_needs_checkpointer", extra={"tool_names": names})
    return [
        {
            **record,
            "verdict": "refused",
            "message": answers.CANNOT_ASK.format(tool=record["tool"]),
        }
        for record in asked
    ]
