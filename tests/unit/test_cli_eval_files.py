"""Files of an evaluation, and the public set from an installed package."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from agent.cli.bfcl import bfcl_data_folder, load_bfcl
from agent.cli.eval_files import (
    check_writable,
    read_floors,
    read_outcomes,
    read_questions,
    read_tools,
    write_results,
)
from agent.cli.exit_codes import USAGE, CliError
from registry.evaluation import EvaluationQuestion, judged, outcome_of, summarise
from registry.text import legal_name


def written(path: Path, *rows: Any) -> Path:
    lines = [row if isinstance(row, str) else json.dumps(row, ensure_ascii=False) for row in rows]
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


GOOD_TOOL = {"name": "a", "description": "Does a."}
GOOD_QUESTION = {"id": "1", "query": "Rain?", "relevant": ["a"]}


class TestTools:
    def test_every_field(self, tmp_path: Path) -> None:
        schema = {"type": "object", "properties": {"city": {"type": "string"}}}
        full = {
            "name": "Weather/get now",
            "description": "Get the weather.",
            "category": "weather",
            "args_schema": schema,
            "examples": ["Does it rain?"],
            "display_name": "Weather",
            "more": 1,
        }
        bare = {"name": "getUserByID", "description": None, "category": None, "args_schema": None}
        one, two = read_tools(written(tmp_path / "t.jsonl", full, "", bare, full))
        assert one.tool_name == legal_name("Weather/get now")
        assert (one.display_name, one.category) == ("Weather", "weather")
        assert (one.examples, one.args_schema) == (("Does it rain?",), schema)
        # The registry takes no tool without a description.
        assert (two.description, two.category) == ("get User By ID", "general")

    @pytest.mark.parametrize(
        ("row", "reason"),
        [
            ("{", "is no tool: not JSON"),
            ("[1]", "it is not an object"),
            ({"name": "b"}, "it has no 'description'"),
            ({"description": "b"}, "it has no 'name'"),
            ({"name": " ", "description": "b"}, "name is not a text, or empty"),
            ({"name": "b", "description": 5}, "description is not a text"),
            ({"name": "b", "description": "b", "args_schema": []}, None),
            ({"name": "b", "description": "b", "args_schema": [1]}, "args_schema is not an object"),
            ({"name": "b", "description": "b", "examples": "c"}, "examples is not a list"),
            ({"name": "b", "description": "b", "category": 1}, "category is not a text"),
            ({"name": "b", "description": "b\u0000"}, "stores no NUL"),
            ('{"name": "b", "description": "b", "args_schema": {"x": NaN}}', "not JSON"),
            ({"name": "a", "description": "Other."}, "another tool named 'a' is on line 1"),
        ],
    )
    def test_a_bad_line_is_named(self, tmp_path: Path, row: Any, reason: str | None) -> None:
        path = written(tmp_path / "t.jsonl", GOOD_TOOL, row)
        if reason is None:  # an empty schema says as little as none
            assert len(read_tools(path)) == 2
            return
        with pytest.raises(CliError, match=rf"^Line 2 of .*t\.jsonl.*{reason}") as told:
            read_tools(path)
        assert told.value.exit_code == USAGE


class TestQuestions:
    def test_every_field_compressed_or_not(self, tmp_path: Path) -> None:
        rows = [
            {**GOOD_QUESTION, "lang": "de", "split": "easy"},
            {"id": 7, "query": "東京\u2028の天気", "groups": [["a", "b/c"], ["d"], ["d"]]},
            {"query": "Hello?", "relevant": []},
        ]
        text = "\r\n".join(json.dumps(row, ensure_ascii=False) for row in rows)
        plain = tmp_path / "q.jsonl"
        plain.write_bytes(b"\xef\xbb\xbf" + text.encode())
        packed = tmp_path / "q of another name"
        packed.write_bytes(gzip.compress(text.encode()))
        expected = [
            EvaluationQuestion(id="1", text="Rain?", groups=(("a",),), lang="de", split="easy"),
            EvaluationQuestion(
                id="7", text="東京\u2028の天気", groups=(("a", legal_name("b/c")), ("d",))
            ),
            EvaluationQuestion(id="Hello?", text="Hello?", groups=()),
        ]
        assert read_questions(plain) == read_questions(packed) == expected

    @pytest.mark.parametrize(
        ("row", "reason"),
        [
            ("Rain?", "is no question: not JSON"),
            ("[" * 100_000, "recursion"),
            ({"id": "2", "query": "Rain?"}, "it has no 'relevant'"),
            ({"id": "2", "relevant": []}, "it has no 'query'"),
            ({"id": "2", "query": "", "relevant": []}, "query is not a text, or empty"),
            ({"id": "2", "query": "\ud800", "relevant": []}, None),
            ({"id": "2", "query": "Rain?", "relevant": "a"}, "relevant is not a list"),
            ({"id": "2", "query": "Rain?", "relevant": None}, "relevant is not a list"),
            ({"id": "2", "query": "Rain?", "relevant": ["a", 1]}, "something else than names"),
            ({"id": "2", "query": "Rain?", "groups": ["a"]}, "groups is not a list"),
            ({"id": "2", "query": "Rain?", "groups": [[]]}, "groups holds an empty group"),
            ({"id": True, "query": "Rain?", "relevant": []}, "id is neither"),
            ({"id": "2", "query": "Rain?", "relevant": [], "lang": 1}, "lang is not a text"),
            ({**GOOD_QUESTION, "query": "Snow?"}, "the id '1' is taken by line 1"),
        ],
    )
    def test_a_bad_line_is_named(self, tmp_path: Path, row: Any, reason: str | None) -> None:
        path = tmp_path / "q.jsonl"
        if reason is None:  # half a surrogate, as JSON can write it
            row, reason = json.dumps(row), "holds half a character"
        with pytest.raises(CliError, match=rf"^Line 2 of .*q\.jsonl.*{reason}") as told:
            read_questions(written(path, GOOD_QUESTION, row))
        assert told.value.exit_code == USAGE

    def test_files_that_cannot_be_used(self, tmp_path: Path) -> None:
        with pytest.raises(CliError, match="cannot be read: No such file"):
            read_questions(tmp_path / "nowhere")
        with pytest.raises(CliError, match="cannot be read: Is a directory"):
            read_tools(tmp_path)
        with pytest.raises(CliError, match=r"x\.jsonl holds no questions"):
            read_questions(written(tmp_path / "x.jsonl", "", " "))
        with pytest.raises(CliError, match=r"x\.jsonl holds no tools"):
            read_tools(tmp_path / "x.jsonl")
        broken = tmp_path / "broken.gz"
        broken.write_bytes(gzip.compress(json.dumps(GOOD_QUESTION).encode())[:-6])
        with pytest.raises(CliError, match="is a damaged gzip file"):
            read_questions(broken)
        broken.write_bytes(b"\xff\xfe{}")
        with pytest.raises(CliError, match="is not UTF-8 text"):
            read_questions(broken)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{", "is not JSON"),
        ("[]", "must be a JSON object"),
        ("{}", "must be a JSON object"),
        ('{"recall@5": "0.7"}', "the limit of 'recall@5' is no number"),
        ('{"recall@5": true}', "is no number"),
        ('{"recall@5": NaN}', "is no number"),
        ('{"recall@5": 75}', "the limit of 'recall@5' is 75, but it goes from 0 to 1"),
        ('{"rejected_share[lang=de]": -0.1}', "is -0.1, but it goes from 0 to 1"),
        ('{"recall@5": 0.7, "mrr": 0.5, "recall@5": 0.1}', "names 'recall@5' twice"),
    ],
)
def test_floors_that_are_none(tmp_path: Path, text: str, reason: str) -> None:
    with pytest.raises(CliError, match=reason):
        read_floors(written(tmp_path / "floors.json", text))


def test_floors_over_several_lines(tmp_path: Path) -> None:
    path = written(tmp_path / "floors.json", "{", '"recall@5": 0.7,', '"latency_ms_p50": 5}')
    assert read_floors(path) == {"recall@5": 0.7, "latency_ms_p50": 5}


@pytest.mark.parametrize("name", ["run.jsonl", "run.jsonl.gz"])
def test_kept_results_come_back(tmp_path: Path, name: str) -> None:
    questions = [
        EvaluationQuestion(id="é", text="Rain\u2028?", groups=(("a", "b"), ("c",)), lang="de"),
        EvaluationQuestion(id="2", text="Hello?", groups=()),
    ]
    results = [judged(q, (), k=5, threshold=0.6, latency_ms=1) for q in questions]
    path = tmp_path / name
    write_results(path, summarise(results, k=5, threshold=0.6))
    assert read_outcomes(path, k=10) == list(map(outcome_of, results))
    with pytest.raises(CliError, match="looked at 10 hits"):
        read_outcomes(path, k=11)


def test_what_is_no_kept_result(tmp_path: Path) -> None:
    with pytest.raises(CliError, match=r"Line 1 of .* is no kept result: it has no 'groups'"):
        read_outcomes(written(tmp_path / "x.jsonl", GOOD_QUESTION), k=5)
    row = {"id": "1", "query": "?", "groups": [["a"]], "ranks": [], "names": [], "depth": 10}
    for ranks in ([], [0], ["1"]):
        with pytest.raises(CliError, match=r"Line 1 of .* is no kept result"):
            read_outcomes(written(tmp_path / "x.jsonl", {**row, "ranks": ranks}), k=5)
    with pytest.raises(CliError, match="holds no results"):
        read_outcomes(written(tmp_path / "x.jsonl", ""), k=5)


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    check_writable(tmp_path / "new.jsonl")
    assert not (tmp_path / "new.jsonl").exists()
    with pytest.raises(CliError, match="is a folder"):
        check_writable(tmp_path)
    with pytest.raises(CliError, match="there is no folder"):
        check_writable(tmp_path / "nowhere" / "run.jsonl")


def bfcl_entry(id: str, text: str, *functions: Any) -> dict[str, Any]:
    turn = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": text}]
    return {"id": id, "question": [turn], "function": list(functions)}


@pytest.fixture
def bfcl_site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of installed packages that holds a small bfcl-eval."""
    site = tmp_path / "site"
    info, data = site / "bfcl_eval-2026.1.1.dist-info", site / "bfcl_eval" / "data"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: bfcl-eval\nVersion: 2026.1.1\n")
    # Importing the package would fail here, as it does without its dependencies.
    (data / "possible_answer").mkdir(parents=True)
    (site / "bfcl_eval" / "__init__.py").write_text("raise ImportError('a gigabyte is missing')")
    area = {
        "name": "geo.area",
        "description": "Area of a triangle.",
        "parameters": {
            "type": "dict",
            "properties": {
                "base": {"type": "float"},
                "type": {"type": "any", "description": "Kind."},
                "points": {"type": "tuple", "items": {"type": "float"}},
            },
        },
    }
    other = {"name": "spotify.play", "description": "Play songs.", "parameters": {"type": "dict"}}
    entries = {
        "simple_python": [bfcl_entry("simple_python_0", "Area?", area)],
        "multiple": [bfcl_entry("multiple_0", "Which area?", area, other)],
        "parallel_multiple": [bfcl_entry("parallel_multiple_0", "Area, twice, and play", area)],
        "live_simple": [bfcl_entry("l", "?", {**other, "description": "Another of that name."})],
    }
    calls: dict[str, list[dict[str, Any]]] = {
        "simple_python": [{"geo.area": {"base": [1]}}],
        "multiple": [{"geo.area": {}}],
        "parallel_multiple": [{"geo.area": {}}, {"geo.area": {}}, {"spotify.play": {}}],
    }
    empty = ("parallel", "irrelevance", "live_multiple", "live_parallel", "live_relevance")
    for split in (*empty, "live_parallel_multiple", "live_irrelevance"):
        written(data / f"BFCL_v4_{split}.json")
    for split, rows in entries.items():
        written(data / f"BFCL_v4_{split}.json", *rows)
        if split in calls:
            answer = {"id": f"{split}_0", "ground_truth": calls[split]}
            written(data / "possible_answer" / f"BFCL_v4_{split}.json", answer)
    written(data / "BFCL_v3_simple_python.json", "not read: an older version")
    monkeypatch.syspath_prepend(site)
    return site


def test_the_public_set_is_read_without_importing_its_package(bfcl_site: Path) -> None:
    tools, questions = load_bfcl(bfcl_data_folder())
    area, play = legal_name("geo.area"), legal_name("spotify.play")
    assert {tool.tool_name: tool.description for tool in tools} == {
        area: "Area of a triangle.",
        play: "Play songs.",
    }
    assert tools[0].args_schema == {
        "type": "object",
        "properties": {
            "base": {"type": "number"},
            "type": {"description": "Kind."},
            "points": {"type": "array", "items": {"type": "number"}},
        },
    }
    assert [(q.id, q.text, q.groups, q.split) for q in questions] == [
        ("simple_python_0", "Area?", ((area,),), "simple_python"),
        ("multiple_0", "Which area?", ((area,),), "multiple"),
        ("parallel_multiple_0", "Area, twice, and play", ((area,), (play,)), "parallel_multiple"),
    ]


def test_another_form_of_the_public_set_is_said(bfcl_site: Path) -> None:
    folder = bfcl_data_folder()
    written(folder / "BFCL_v4_multiple.json", {"id": "multiple_0"})
    with pytest.raises(CliError, match=r"another form .*KeyError: 'function'"):
        load_bfcl(folder)
    (folder / "BFCL_v4_multiple.json").unlink()
    with pytest.raises(CliError, match=r"has no data/BFCL_v\*_multiple\.json"):
        load_bfcl(folder)


def test_without_the_package_the_command_that_installs_it_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sys.path", [])
    with pytest.raises(CliError, match="pip install --no-deps bfcl-eval"):
        bfcl_data_folder()
