"""`toolrag chat`: a conversation with the agent."""

from __future__ import annotations

import sys
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing, redirect_stdout
from typing import TYPE_CHECKING, Annotated, Any
from uuid import uuid4

import typer

from agent.cli import exit_codes
from agent.cli.ask import DEMO_NAMESPACE, ModelOption, check_registered
from agent.cli.options import global_options
from agent.cli.output import Output

if TYPE_CHECKING:
    from agent.approval import PendingApproval
    from agent.cli.chat_input import ChatInput
    from agent.cli.chat_output import ChatOutput
    from agent.cli.model import ChosenModel
    from agent.cli.turns import Turns
    from agent.events import RunEvent
    from agent.result import Agent, RunResult

__all__ = ["chat"]

_HELP = """\
Ask in your own words. Commands:
  /tools   the tools that this thread is offered now
  /decide  ask once more about calls that wait for approval
  /help    this text
  /quit    end the chat; Ctrl-D does too
Ctrl-C cancels the run that goes on, or ends the chat."""


def chat(
    context: typer.Context,
    thread: Annotated[
        str | None,
        typer.Option(metavar="ID", help="Conversation to go on with. Default: a new one."),
    ] = None,
    toolset: Annotated[
        str | None,
        typer.Option(
            metavar="MODULE:ATTR",
            help="The tools that may run; register them before with `toolrag sync`. "
            "Default: the demo's, in the namespace demo.",
        ),
    ] = None,
    model: ModelOption = None,
    k: Annotated[int, typer.Option("--k", "-k", help="Most tools to find at a time.")] = 5,
    threshold: Annotated[
        float | None,
        typer.Option(
            help="Lowest relevance of a tool, 0 to 1. Default: the embedding model's own."
        ),
    ] = None,
    max_steps: Annotated[int, typer.Option(help="Most model calls a question.")] = 10,
    max_tool_calls: Annotated[int, typer.Option(help="Most tool calls a question.")] = 50,
    max_tokens: Annotated[
        int, typer.Option(help="Most tokens a question, of prompts and replies together.")
    ] = 200_000,
    timeout: Annotated[
        float, typer.Option(metavar="SECONDS", help="Most time a question.")
    ] = 300.0,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object a line: what happens, in order.")
    ] = False,
) -> None:
    """Talk with the agent; the conversation is kept in the database.

    Reads questions from the terminal, or one a line from a pipe. Calls that need approval are
    asked about on a terminal, and rejected in a pipe. Ctrl-C cancels a run, Ctrl-D ends the chat.

    Exit code 0 at the end of the input; in a pipe 1 when a question was not answered.
    """
    from agent.cli.chat_input import ChatInput
    from agent.cli.chat_output import ChatOutput
    from agent.cli.context import opened_registry
    from agent.cli.loading import load_toolset
    from agent.cli.model import chosen_model
    from agent.cli.turns import Turns
    from agent.demo import demo_toolset
    from agent.durable.store import checked_thread_id
    from agent.factory import create_tool_rag_agent
    from agent.limits import RunLimits

    output = Output()
    options = global_options(context)
    # Whatever needs no database is checked before one is started.
    thread_id = uuid4().hex if thread is None else checked_thread_id(thread)
    limits = RunLimits(
        max_steps=max_steps,
        max_tool_calls=max_tool_calls,
        max_total_tokens=max_tokens,
        timeout_s=timeout,
    )
    live = demo_toolset() if toolset is None else load_toolset(toolset)
    chosen = chosen_model(model, options.environ)
    if toolset is None:
        options = options.in_namespace(DEMO_NAMESPACE)
    lines, shown = ChatInput(), ChatOutput(as_json=as_json, debug=options.debug)
    with opened_registry(options, output) as registry:
        agent = create_tool_rag_agent(
            chosen.model,
            registry=registry,
            toolset=live,
            k=k,
            threshold=threshold,
            limits=limits,
            durable=True,
        )
        if toolset is None:
            with output.embedding_progress() as on_progress:
                registry.sync(live, on_progress=on_progress)
        else:
            check_registered(registry, live, toolset, output)
        shown.remark(chosen.label, style="dim" if chosen.is_language_model else "bold yellow")
        shown.started(thread_id, is_new=thread is None)
        # What a tool prints must not mix with the answers, also where it was left behind.
        with Turns() as turns, redirect_stdout(sys.stderr):
            talk = _Chat(agent, thread_id, chosen, turns, lines, shown)
            if thread is not None:
                talk.take_up()
            talk.go_on()
    if talk.has_failed and not lines.is_terminal:
        raise typer.Exit(exit_codes.FAILURE)


class _Chat:
    """One conversation at the command line.

    Attributes:
        has_failed: A question was not answered.
    """

    def __init__(
        self,
        agent: Agent,
        thread_id: str,
        chosen: ChosenModel,
        turns: Turns,
        lines: ChatInput,
        output: ChatOutput,
    ) -> None:
        self._agent = agent
        self._thread_id = thread_id
        self._chosen = chosen
        self._turns = turns
        self._lines = lines
        self._output = output
        self.has_failed = False

    def take_up(self) -> bool:
        """Ask about the calls that the thread waits for; return whether anything was said."""
        from agent.approval import pending_approvals

        state = self._attempt(self._agent.aget_state(self._config))
        if state is None:
            return True
        if state.created_at is None:
            self._output.remark("Nothing was asked in this thread yet.")
            return True
        waiting = pending_approvals(state.interrupts).values()
        calls = [call for calls in waiting for call in calls]
        self._decided(calls)
        return bool(calls)

    def go_on(self) -> None:
        """Answer questions to the end of the input.

        Raises:
            KeyboardInterrupt: Ctrl-C at the prompt.
        """
        from agent.cli.chat_input import command_of

        while True:
            try:
                line = self._lines.line("> ")
            except EOFError:
                self._leave_prompt()
                return
            except KeyboardInterrupt:
                self._leave_prompt()
                raise
            command = command_of(line)
            if command == "/quit":
                return
            if command is not None:
                self._obey(command)
            elif line:
                self._answer(line)

    def _obey(self, command: str) -> None:
        from agent.result import offered_tools

        if command == "/tools":
            state = self._attempt(self._agent.aget_state(self._config))
            if state is not None:
                self._output.tools(offered_tools(state.values.get("offered_tools") or []))
        elif command == "/decide":
            if not self.take_up():
                self._output.remark("Nothing waits for approval.")
        elif command == "/help":
            self._output.remark(_HELP)
        else:
            self._output.remark(f"There is no command {command}; /help names those there are.")

    def _answer(self, question: str) -> None:
        from agent.conversation import astream

        result = self._run(astream(self._agent, question, thread_id=self._thread_id))
        if result is not None:
            result = self._decided(result.pending) if result.pending else result
        if result is None or result.stop_reason.value != "answered":
            self.has_failed = True

    def _decided(self, pending: Sequence[PendingApproval]) -> RunResult | None:
        """Return how a run ended after a person's decisions; None if it did not, or failed."""
        from agent.cli.chat_input import decide
        from agent.conversation import astream_resume

        result = None
        while pending:
            try:
                decisions = decide(pending, self._lines, self._output)
            except (EOFError, KeyboardInterrupt) as end:
                self._leave_prompt()
                self._output.remark(
                    "Not decided. The thread waits: /decide asks again, also in another chat with "
                    f"`--thread {self._thread_id}`; another question closes the call as not "
                    "approved.",
                    style="yellow",
                )
                if isinstance(end, EOFError):
                    raise typer.Exit from end
                return None
            events = astream_resume(self._agent, decisions, thread_id=self._thread_id)
            result = self._run(events)
            pending = () if result is None else result.pending
        return result

    def _run(self, events: AsyncGenerator[RunEvent]) -> RunResult | None:
        """Return how a run ended; None if it was cancelled or failed, which is said."""
        return self._attempt(self._shown(events))

    def _attempt(self, turn: Any) -> Any:
        from agent.cli.model import model_errors
        from agent.cli.turns import TurnCancelledError

        try:
            with model_errors(self._chosen.name):
                return self._turns.run(turn)
        except TurnCancelledError as end:
            self._output.cancelled(is_left_behind=end.is_left_behind)
        except _OutputLostError as error:
            raise error.reason from error
        except Exception as error:  # of one turn, whatever it is: the next one may go well
            self._output.failed(error)
        return None

    async def _shown(self, events: AsyncGenerator[RunEvent]) -> RunResult | None:
        from agent.events import RunEnded

        result = None
        async with aclosing(events):
            async for event in events:
                try:
                    self._output.show(event)
                except OSError as error:
                    raise _OutputLostError(error) from error
                if isinstance(event, RunEnded):
                    result = event.result
        return result

    def _leave_prompt(self) -> None:
        if self._lines.is_terminal:
            self._output.remark("")

    @property
    def _config(self) -> Any:
        return {"configurable": {"thread_id": self._thread_id}}


class _OutputLostError(Exception):
    """Our own output cannot be written; no failure of a model's connection."""

    def __init__(self, reason: OSError) -> None:
        super().__init__(str(reason))
        self.reason = reason
