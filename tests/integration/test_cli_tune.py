"""Tuning on a real database: the replay is the search, and `toolrag tune`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from registry import EvaluationQuestion, RegistrySettings
from registry.embedding import Embedder
from registry.errors import ConfigurationError, InvalidQueryError
from registry.tuning import RankingSettings, TuningReport, ranked_names
from tests.integration.conftest import OpenRegistry
from tests.integration.test_hybrid_search import Unrelated
from tests.support.catalogue import many_specs, spec
from tests.support.command_line import Run
from tests.support.embeddings import HashEmbeddings

QUESTIONS = [
    "Handle alpha case 3",
    "Send beta case 4 and handle gamma alpha case 140",
    "zebra giraffe, then handle omega case 7 and also alpha",
    "case",
]


def labelled(count: int) -> list[EvaluationQuestion]:
    return [
        EvaluationQuestion(id=f"q{n}", text=f"secretword{n} please", groups=((f"tool_{n:05d}",),))
        for n in range(count)
    ]


def with_words(count: int) -> list[Any]:
    """Tools that only a word finds: with `Unrelated` embeddings the vectors say nothing."""
    return [spec(f"tool_{n:05d}", f"Does secretword{n} and others.") for n in range(count)]


@pytest.mark.parametrize("weight", [0, 0.4, 2])
@pytest.mark.parametrize("clauses", [True, False])
async def test_the_replay_finds_what_a_search_with_these_settings_finds(
    open_registry: OpenRegistry, weight: float, clauses: bool
) -> None:
    # Without equal distances, of which an index's walk may see any.
    wide = await open_registry(
        embeddings=Unrelated(), settings=RegistrySettings(auto_calibrate=False)
    )
    await wide.sync([*many_specs(200), spec("zoo", "Zebra and giraffe.", category="animals")])
    await wide.set_category("animals", ["zebra"])
    settings = RegistrySettings(word_weight=weight, clauses=clauses, auto_calibrate=False)
    registry = await open_registry(embeddings=Unrelated(), settings=settings)
    for text in QUESTIONS:
        question = EvaluationQuestion(id="q", text=text, groups=(("zoo",),))
        asked = await wide._asked_question(question, 10)
        replayed = ranked_names(asked, RankingSettings(word_weight=weight, clauses=clauses), k=10)
        hits = await registry.search(text, k=10, threshold=0)
        assert list(replayed) == [hit.tool_name for hit in hits], text


async def test_it_finds_the_weight_whatever_is_set(open_registry: OpenRegistry) -> None:
    for settings in (RegistrySettings(), RegistrySettings(word_weight=0, clauses=False)):
        registry = await open_registry(embeddings=Unrelated(), settings=settings)
        await registry.sync(with_words(60))
        told: list[Any] = []
        report: TuningReport = await registry.tune(
            [*labelled(70), EvaluationQuestion(id="none", text="x", groups=())],
            k=1,
            on_progress=lambda *state, told=told: told.append(state),
        )
        assert (report.questions, report.left_out) == (60, 11)
        assert told == [(n, 60) for n in range(1, 61)]
        without = [t.recall for t in report.trials if t.settings.word_weight == 0]
        assert max(without) < 0.3
        assert report.trials[0].recall == 1
        assert report.recommended.word_weight >= 0.4
        assert registry.settings == settings, "nothing was changed"


async def test_what_cannot_be_tuned(open_registry: OpenRegistry) -> None:
    registry = await open_registry()
    await registry.sync(with_words(60))
    with pytest.raises(ConfigurationError, match="39 of the questions have a right tool"):
        await registry.tune(labelled(39))
    await registry.deactivate("tool_00007")
    with pytest.raises(ConfigurationError, match="39 of the questions have a right tool"):
        await registry.tune(labelled(40))
    with pytest.raises(InvalidQueryError, match="k is 0"):
        await registry.tune(labelled(50), k=0)
    with pytest.raises(InvalidQueryError, match="one id"):
        await registry.tune([*labelled(50), *labelled(1)])


# ---------------------------------------------------------------- the command


@pytest.fixture
def registered(toolrag: Run, monkeypatch: pytest.MonkeyPatch) -> Run:
    """The command over a registry whose vectors say nothing."""

    def hashed(*_: object, **__: object) -> Embedder:
        return Embedder(Unrelated(), name="hash", threshold=0.2)

    monkeypatch.setattr("agent.cli.context.embedder_of", hashed)
    Path("words.py").write_text(
        "from tests.integration.test_cli_tune import with_words\nTOOLS = with_words(60)",
        encoding="utf-8",
    )
    assert toolrag("sync", "words:TOOLS").code == 0
    return toolrag


def questions_file(count: int) -> str:
    rows = [
        {"id": q.id, "query": q.text, "relevant": [g[0] for g in q.groups]} for q in labelled(count)
    ]
    Path("q.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    return "q.jsonl"


def test_the_command_keeps_the_defaults(registered: Run) -> None:
    # All 60 tools are among the first 60, whatever the setting.
    ended = registered("tune", "--queries", questions_file(62), "-k", "60")
    assert ended.code == 0, ended.err
    lines = ended.out.splitlines()
    assert lines[0] == (
        "60 questions (2 left out: no right tool that is registered and active), 24 settings"
    )
    assert "Best on the 30 chosen on:" in lines
    assert lines[-1] == "No setting beats the defaults. Keep them."
    assert any(line.endswith("defaults") for line in lines)
    assert "TOOLRAG_" not in ended.out
    assert "Asking 62 questions" in ended.err


def test_the_command_says_what_to_set(registered: Run) -> None:
    ended = registered("tune", "--queries", questions_file(60), "-k", "1", "--json")
    assert ended.code == 0, ended.err
    document = json.loads(ended.out)
    assert document["defaults"] == {"word_weight": 0.4, "clauses": True}
    assert document["recommended"] == document["chosen"]
    weight = document["recommended"]["word_weight"]
    assert weight > 0.4
    assert document["environment"] == {
        "TOOLRAG_WORD_WEIGHT": f"{weight:g}",
        "TOOLRAG_CLAUSES": "true",
    }
    assert document["recall@1_difference"] > 0.1
    assert document["recall@1_p_value"] < 0.05
    assert document["compared_questions"] == 30
    assert len(document["trials"]) == 24
    shown = registered("tune", "--queries", "q.jsonl", "-k", "1")
    assert "That is more than chance. Set:" in shown.out
    assert f"\n  TOOLRAG_WORD_WEIGHT={weight:g}\n  TOOLRAG_CLAUSES=true\n" in shown.out
    # What was printed can be set.
    found = RegistrySettings.from_env(document["environment"])
    assert (found.word_weight, found.clauses) == (weight, True)


def test_defaults_that_were_left_are_named_again(
    registered: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOOLRAG_WORD_WEIGHT", "0.1")
    ended = registered("tune", "--queries", questions_file(60), "-k", "60")
    assert "No setting beats the defaults. Keep them." in ended.out
    assert "TOOLRAG_WORD_WEIGHT=0.4" in ended.out


def test_the_command_refuses(registered: Run) -> None:
    few = registered("tune", "--queries", questions_file(39))
    assert (few.code, few.out) == (2, "")
    assert few.error.startswith("39 of the questions have a right tool")
    assert registered("tune").code == 2
    missing = registered("tune", "--queries", "nowhere.jsonl")
    assert (missing.code, "cannot be read" in missing.error) == (2, True)
    nobody = registered("--namespace", "theirs", "tune", "--queries", questions_file(60))
    assert nobody.code == 2
    assert nobody.error.startswith("0 of the questions have a right tool")


def test_embeddings_are_asked_once_a_question(database_url: str) -> None:
    from registry import ToolRegistry

    embeddings = HashEmbeddings()
    settings = RegistrySettings(auto_calibrate=False)
    with ToolRegistry(database_url, embeddings=embeddings, settings=settings) as registry:
        registry.sync(with_words(40))
        before = len(embeddings.calls)
        registry.tune(labelled(40))
        assert len(embeddings.calls) - before == 40
