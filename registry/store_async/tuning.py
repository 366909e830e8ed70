"""Tuning: which ranking settings suit this catalogue."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from registry.errors import InvalidQueryError
from registry.evaluation import EvaluationQuestion
from registry.evaluation.asking import check_question_list
from registry.store_async.searching import AsyncSearching
from registry.strategy import StrategyLimits, choose
from registry.tuning import (
    AskedQuestion,
    TuningReport,
    asked_question,
    check_questions,
    tuned,
    widest,
)

__all__ = ["AsyncTuning"]


class AsyncTuning(AsyncSearching):
    """The part of the registry that compares its settings on questions."""

    async def tune(
        self,
        questions: Sequence[EvaluationQuestion],
        *,
        k: int = 5,
        on_progress: Callable[[int, int], None] | None = None,
    ) -> TuningReport:
        """Find `word_weight` and `clauses` for this catalogue; changes nothing.

        Settings are chosen by recall@k on one half of the questions and compared with the
        defaults on the other half. A reranker is left out. Each question is embedded once.

        Args:
            questions: Ids unique. Those without a right tool that is registered and active are
                left out.
            k: Most tools an agent offers, 1 to 1,000.
            on_progress: Called with the number of questions asked, and how many there are.

        Raises:
            ConfigurationError: Fewer than 40 questions are left, or that is no list of questions.
            InvalidQueryError: k is out of range, or a question cannot be asked.
            EmbeddingError: A question could not be embedded.
            RegistryUnavailableError: The database does not answer.
        """
        self._check_search(k, None)
        check_question_list(questions)
        if len({question.id for question in questions}) < len(questions):
            raise InvalidQueryError("Two questions have one id; give each its own.")
        await self.open()
        names = {name for question in questions for group in question.groups for name in group}
        states = await self.active_states(names)
        usable = [q for q in questions if any(states.get(n) for group in q.groups for n in group)]
        check_questions(len(usable))
        settings = replace(self.settings, **widest(self.settings))
        # Its settings are another registry's, so that this one may be searched meanwhile.
        wide = type(self)(
            self.url,
            embeddings=self._embedder,
            replica_url=self._replica_url
            and self._replica_url.render_as_string(hide_password=False),
            settings=settings,
        )
        asked: list[AskedQuestion] = []
        async with wide:
            for question in usable:
                asked.append(await wide._asked_question(question, k))
                if on_progress is not None:
                    on_progress(len(asked), len(usable))
        return tuned(asked, k=k, left_out=len(questions) - len(usable))

    async def _asked_question(self, question: EvaluationQuestion, k: int) -> AskedQuestion:
        parts = self._parts(question.text)
        rows = (await self._candidates(parts, k)).rows
        routed = self._router[1].route(parts[0])
        plan = choose("hybrid", active_tools=len(rows), routed=routed, limits=StrategyLimits())
        bonus_of = {category: plan.bonus_of(category) for category in plan.categories}
        return asked_question(question, rows, len(parts), bonus_of=bonus_of)
