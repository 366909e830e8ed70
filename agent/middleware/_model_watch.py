"""What goes on inside a model call: what it was sent, and a stop for a stream nobody reads."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Any
from uuid import UUID

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.callbacks.base import BaseCallbackManager
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.messages.utils import count_tokens_approximately
from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import var_child_runnable_config
from langgraph.config import get_config

from agent.middleware._deadline import CallTimeoutError
from agent.spending import TokenCount

__all__ = ["ModelWatch"]


class ModelWatch(BaseCallbackHandler):
    """Sees the requests of one model call, retries and fallbacks of other middleware included.

    It counts nothing until it is asked, so a model that reports its tokens costs nothing here.
    """

    raise_error = True  # or a stream would go on
    run_inline = True  # in the async world too: nothing here waits

    def __init__(self) -> None:
        self._requests: list[tuple[Sequence[BaseMessage], list[Any]]] = []
        self._given_up_after_s: float | None = None

    @contextmanager
    def watching(self) -> Generator[None]:
        """Watch the model calls that are made within, in this thread or task."""
        config = get_config()
        token = var_child_runnable_config.set(self._first_in(config))
        try:
            yield
        finally:
            var_child_runnable_config.reset(token)

    @property
    def saw_request(self) -> bool:
        """Whether a model was called at all."""
        return bool(self._requests)

    def give_up(self, after_s: float) -> None:
        """Have a stream fail at its next token: the run went on without it."""
        self._given_up_after_s = after_s

    def estimated(self, replies: Sequence[AIMessage]) -> TokenCount:
        """Return about how many tokens the requests and these replies took."""
        tokens_in = sum(
            count_tokens_approximately(messages, tools=tools or None)
            for messages, tools in self._requests
        )
        tokens_out = count_tokens_approximately(replies) if replies else 0
        return TokenCount(
            input_tokens=tokens_in,
            output_tokens=tokens_out,
            total_tokens=tokens_in + tokens_out,
            is_estimated=True,
        )

    def on_chat_model_start(
        self,
        serialized: dict[str, Any],
        messages: list[list[BaseMessage]],
        *,
        run_id: UUID,
        parent_run_id: UUID | None = None,
        tags: list[str] | None = None,
        metadata: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Note what the model is sent."""
        parameters: dict[str, Any] = kwargs.get("invocation_params") or {}
        tools: list[Any] = list(parameters.get("tools") or ())
        self._requests.extend((batch, tools) for batch in messages)

    def on_llm_new_token(self, token: str | list[str | dict[str, Any]], **kwargs: Any) -> None:
        """Stop a stream that was given up.

        Raises:
            CallTimeoutError: It was.
        """
        if self._given_up_after_s is not None:
            raise CallTimeoutError(self._given_up_after_s)

    def _first_in(self, config: RunnableConfig) -> RunnableConfig:
        # First, so that what reads the tokens for the caller never sees one that came too late.
        callbacks = config.get("callbacks")
        if isinstance(callbacks, BaseCallbackManager):
            manager = callbacks.copy()
            manager.handlers.insert(0, self)
            manager.inheritable_handlers.insert(0, self)
            return {**config, "callbacks": manager}
        return {**config, "callbacks": [self, *(callbacks or ())]}
