"""Embedding over HTTP, against a local server as strict as the OpenAI API, and that server."""

from __future__ import annotations

import base64
import itertools
import math
import struct
import threading
from collections.abc import Callable, Iterator
from typing import Any

import openai
import pytest
import tiktoken
from langchain_openai import OpenAIEmbeddings

from registry.embedding import Embedder
from registry.errors import (
    ConfigurationError,
    EmbeddingError,
    InvalidQueryError,
)
from registry.settings import RegistrySettings
from registry.store import ToolRegistry
from registry.store_async import AsyncToolRegistry
from registry.types import ToolSpec
from tests.support.openai_client import post, see_only_localhost
from tests.support.openai_server import (
    EmbeddingFault,
    EmbeddingLimits,
    OpenAIServer,
    ServerFault,
    embed_text,
)

EMBEDDINGS = "/embeddings"


def parsed(vectors: list[str]) -> list[list[float]]:
    """Return vectors in pgvector's text form as numbers."""
    return [[float(value) for value in vector[1:-1].split(",")] for vector in vectors]


@pytest.fixture(autouse=True)
def foreign_hosts(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    asked = see_only_localhost(monkeypatch)

    def no_tokenizer(*_: object) -> None:
        raise AssertionError("a tokenizer file would be downloaded")

    monkeypatch.setattr(tiktoken, "encoding_for_model", no_tokenizer)
    monkeypatch.setattr(tiktoken, "get_encoding", no_tokenizer)
    yield asked
    assert asked == []


def request(value: Any, **more: Any) -> dict[str, Any]:
    return {"model": "small", "input": value, **more}


def client(server: OpenAIServer, **options: Any) -> OpenAIEmbeddings:
    options = {"max_retries": 0, "timeout": 30, "check_embedding_ctx_length": False} | options
    return OpenAIEmbeddings(
        model="small", base_url=server.base_url, api_key=server.api_key, **options
    )


def vectors_of(document: dict[str, Any]) -> list[Any]:
    return [entry["embedding"] for entry in document["data"]]


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "empty text": (request(["a", ""]), "'input[1]' cannot be an empty string"),
    "empty text alone": (request(""), "cannot be an empty string"),
    "no inputs": (request([]), "'input' holds 0 items"),
    "2,049 inputs": (request(["a"] * 2_049), "'input' holds 2049 items"),
    "token ids": (request([[1, 2, 3]]), "is a list of token ids"),
    "one text as token ids": (request([1, 2, 3]), "is a list of token ids"),
    "number": (request(["a", 7]), "'input[1]' is not a string"),
    "object": (request({"text": "a"}), "must be a string or an array"),
    "one text too long": (request(["x" * (8_191 * 4 + 1)]), "maximum context length is 8191"),
    "too many tokens": (request(["x" * 30_000] * 41), "Requested 307500 tokens, max 300000"),
    "unknown encoding": (request("a", encoding_format="int8"), "'int8' is not supported"),
    "no dimensions": (request("a", dimensions=0), "'dimensions' must be a positive integer"),
    "unknown field": (request("a", texts=[]), "Unrecognized request argument supplied: texts"),
    "no input": ({"model": "small"}, "Missing required parameter: 'input'"),
}


class TestServer:
    @pytest.mark.parametrize("name", REFUSED)
    def test_refuses_misuse(self, name: str) -> None:
        body, expected = REFUSED[name]
        with OpenAIServer() as server:
            status, document = post(server, EMBEDDINGS, body)
        assert status == 400
        assert expected in document["error"]["message"]

    def test_wants_the_bearer_token(self) -> None:
        with OpenAIServer() as server:
            assert post(server, EMBEDDINGS, request("a"), authorization="Bearer x")[0] == 401

    def test_takes_everything_up_to_its_limits(self) -> None:
        with OpenAIServer(dimensions=4) as server:
            for value in (["a"] * 2_048, ["x" * 8_191 * 4], ["x" * 30_000] * 40, [" "]):
                status, document = post(server, EMBEDDINGS, request(value))
                assert status == 200
                assert len(vectors_of(document)) == len(value)

    def test_takes_token_ids_when_told(self) -> None:
        with OpenAIServer(limits=EmbeddingLimits(strings_only=False)) as server:
            assert len(vectors_of(post(server, EMBEDDINGS, request([[1, 2], [3]]))[1])) == 2
            assert len(vectors_of(post(server, EMBEDDINGS, request([1, 2]))[1])) == 1

    def test_float_and_base64_say_the_same(self) -> None:
        with OpenAIServer(dimensions=32) as server:
            floats = vectors_of(post(server, EMBEDDINGS, request(["sea", "wind"]))[1])
            encoded = vectors_of(
                post(server, EMBEDDINGS, request(["sea", "wind"], encoding_format="base64"))[1]
            )
        decoded = [struct.unpack("<32f", base64.b64decode(text)) for text in encoded]
        for exact, short in zip(floats, decoded, strict=True):
            assert short == pytest.approx(exact, abs=1e-6)

    def test_refuses_base64_when_told(self) -> None:
        with OpenAIServer(limits=EmbeddingLimits(base64=False)) as server:
            body = request("a", encoding_format="base64")
            assert post(server, EMBEDDINGS, body)[0] == 400
            assert post(server, EMBEDDINGS, request("a"))[0] == 200

    def test_vectors_are_unit_deterministic_and_near_for_common_words(self) -> None:
        def cosine(left: str, right: str) -> float:
            pairs = zip(embed_text(left, 256), embed_text(right, 256), strict=True)
            return sum(a * b for a, b in pairs)

        assert embed_text("Refund an order", 256) == embed_text("refund AN order", 256)
        for text in ("refund an order", "…", "東京"):
            assert math.hypot(*embed_text(text, 256)) == pytest.approx(1)
            assert math.hypot(*embed_text(text, 1)) == pytest.approx(1)
        assert cosine("refund an order", "refund the order") > 0.5
        assert abs(cosine("refund an order", "weather in Tokyo")) < 0.4

    def test_dimensions_of_the_request_win(self) -> None:
        with OpenAIServer(dimensions=8) as server:
            sizes = [
                len(vectors_of(post(server, EMBEDDINGS, body)[1])[0])
                for body in (request("a"), request("a", dimensions=5))
            ]
        assert sizes == [8, 5]

    def test_faults_come_in_turn_and_then_answers_are_right(self) -> None:
        faults = [
            ServerFault(status=500),
            ServerFault(status=429, message="slow down"),
            EmbeddingFault(kind="fewer"),
            EmbeddingFault(kind="none"),
            EmbeddingFault(kind="dimensions"),
            EmbeddingFault(kind="null"),
            EmbeddingFault(kind="nan"),
            EmbeddingFault(kind="huge"),
            EmbeddingFault(kind="zeros"),
            EmbeddingFault(kind="shuffled"),
            None,
        ]
        right = [embed_text("a", 4), embed_text("b", 4)]
        with OpenAIServer(dimensions=4, embedding_faults=faults) as server:
            answers = [post(server, EMBEDDINGS, request(["a", "b"])) for _ in range(12)]
        assert [status for status, _ in answers] == [500, 429, *[200] * 10]
        assert answers[1][1]["error"]["message"] == "slow down"
        fewer, none, longer, null, nan, huge, zeros, shuffled, *good = [
            document["data"] for _, document in answers[2:]
        ]
        assert [entry["index"] for entry in fewer] == [0]
        assert none == []
        assert [len(entry["embedding"]) for entry in longer] == [5, 5]
        assert null[0]["embedding"][0] is None
        assert math.isnan(nan[0]["embedding"][0])
        assert huge[0]["embedding"][0] == 1e300
        assert zeros[0]["embedding"] == [0.0] * 4
        assert zeros[1]["embedding"] == right[1]
        assert [entry["index"] for entry in shuffled] == [1, 0]
        assert [entry["embedding"] for entry in shuffled] == right[::-1]
        assert [[entry["embedding"] for entry in data] for data in good] == [right, right]

    def test_held_answer_comes_when_released(self) -> None:
        hold = threading.Event()
        fault = EmbeddingFault(kind="hold", hold=hold)
        with OpenAIServer(dimensions=4, embedding_faults=[fault]) as server:
            answers: list[list[float]] = []
            embeddings = client(server)
            asking = threading.Thread(target=lambda: answers.append(embeddings.embed_query("a")))
            asking.start()
            assert server.holding.acquire(timeout=30)
            assert answers == []
            hold.set()
            asking.join(timeout=30)
        assert answers == [pytest.approx(embed_text("a", 4), abs=1e-6)]


class TestOpenAIEmbeddings:
    @pytest.mark.parametrize("encoding", [None, "float"])
    async def test_strings_go_out_and_vectors_come_back_in_order(
        self, encoding: str | None
    ) -> None:
        texts = [f"tool number {n}" for n in range(25)]
        more = {"model_kwargs": {"encoding_format": encoding}} if encoding else {}
        with OpenAIServer(dimensions=48) as server:
            embeddings = client(server, chunk_size=10, **more)
            vectors = embeddings.embed_documents(texts)
            async_vectors = await embeddings.aembed_documents(texts)
        expected = [pytest.approx(embed_text(text, 48), abs=1e-6) for text in texts]
        assert vectors == expected
        assert async_vectors == expected
        assert [len(each.texts) for each in server.embedding_requests] == [10, 10, 5] * 2
        # The client asks for base64 unless told otherwise.
        assert {each.body["encoding_format"] for each in server.embedding_requests} == {
            encoding or "base64"
        }
        assert server.refusals == []

    def test_emb_1_its_default_would_need_a_download(self) -> None:
        with (
            OpenAIServer() as server,
            pytest.raises(AssertionError, match="would be downloaded"),
        ):
            client(server, check_embedding_ctx_length=True).embed_query("a")
        assert server.requests == []

    def test_fault_is_retried_as_often_as_told(self) -> None:
        with OpenAIServer(embedding_faults=itertools.repeat(ServerFault())) as server:
            with pytest.raises(openai.InternalServerError):
                client(server, max_retries=1).embed_query("a")
            assert [each.status for each in server.requests] == [500, 500]
            server.fail_embeddings(ServerFault(status=503))
            assert len(client(server, max_retries=1).embed_query("a")) == server.dimensions


@pytest.fixture
def configure(monkeypatch: pytest.MonkeyPatch) -> Callable[[OpenAIServer], str]:
    """Point the OpenAI settings of the process at a server; returns the embedding model's name."""

    def point(server: OpenAIServer) -> str:
        monkeypatch.setenv("OPENAI_BASE_URL", server.base_url)
        monkeypatch.setenv("OPENAI_API_KEY", server.api_key)
        return "openai:small"

    return point


Configure = Callable[[OpenAIServer], str]
STRICT = EmbeddingLimits(strings_only=True, base64=False)


class TestEmbedderByName:
    """`openai:…` as the registry resolves it, without a database."""

    async def test_emb_1_strings_go_to_a_custom_url_and_nothing_is_downloaded(
        self, configure: Configure
    ) -> None:
        texts = ["Refund an order.", "Wetter in Köln", "東京の天気"]
        with OpenAIServer(limits=STRICT, dimensions=48) as server:
            embedder = Embedder.resolve(configure(server))
            vectors = embedder.embed_documents(texts)
            async_vectors = await embedder.aembed_documents(texts)
            embedder.embed_query(texts[1])
            await embedder.aembed_query(texts[2])
        expected = [pytest.approx(embed_text(text, 48), abs=1e-6) for text in texts]
        assert parsed(vectors) == expected
        assert parsed(async_vectors) == expected
        assert [each.texts for each in server.embedding_requests] == [
            texts,
            texts,
            [texts[1]],
            [texts[2]],
        ]
        assert embedder.identity.dimensions == 48

    @pytest.mark.parametrize(
        ("kind", "said"),
        [
            ("fewer", "answered with 1 vectors for 2 texts"),
            ("none", "answered with 0 vectors for 2 texts"),
            ("dimensions", "vectors of 9 dimensions, 8 expected"),
            ("null", "not finite"),
            ("nan", "not finite"),
            ("huge", "not finite"),
            ("zeros", "all zeros"),
        ],
    )
    async def test_emb_1_an_unusable_answer_is_an_error_that_names_the_model(
        self, configure: Configure, kind: Any, said: str
    ) -> None:
        fault = EmbeddingFault(kind=kind)
        faults = [None, fault, fault]
        with OpenAIServer(dimensions=8, embedding_faults=faults) as server:
            embedder = Embedder.resolve(configure(server))
            embedder.embed_documents(["what", "dimensions"])
            with pytest.raises(EmbeddingError, match=f"openai:small .*{said}"):
                embedder.embed_documents(["a", "b"])
            with pytest.raises(EmbeddingError, match=f"openai:small .*{said}"):
                await embedder.aembed_documents(["a", "b"])
            # The fault passed, and nothing of it stays behind.
            assert len(embedder.embed_documents(["a", "b"])) == 2

    def test_emb_1_fewer_vectors_name_the_setting(self, configure: Configure) -> None:
        fault = EmbeddingFault(kind="fewer")
        with OpenAIServer(embedding_faults=[fault]) as server:
            embedder = Embedder.resolve(configure(server))
            with pytest.raises(EmbeddingError, match="embedding_batch_size"):
                embedder.embed_documents(["a", "b"])

    async def test_emb_3_vectors_are_in_input_order_whatever_order_the_answer_has(
        self, configure: Configure
    ) -> None:
        faults = itertools.repeat(EmbeddingFault(kind="shuffled"))
        texts = ["order refund", "weather today", "stock price"]
        expected = [pytest.approx(embed_text(text, 64), abs=1e-6) for text in texts]
        with OpenAIServer(embedding_faults=faults) as server:
            embedder = Embedder.resolve(configure(server))
            assert parsed(embedder.embed_documents(texts)) == expected
            assert parsed(await embedder.aembed_documents(texts)) == expected

    @pytest.mark.parametrize("question", ["", " ", "\n\t\u3000"])
    async def test_emb_2_a_blank_question_is_refused_before_the_call(
        self, configure: Configure, question: str
    ) -> None:
        with OpenAIServer() as server:
            embedder = Embedder.resolve(configure(server))
            with pytest.raises(InvalidQueryError):
                embedder.embed_query(question)
            with pytest.raises(InvalidQueryError):
                await embedder.aembed_query(question)
        assert server.requests == []

    async def test_emb_3_a_text_longer_than_the_model_takes_is_embedded_whole(
        self, configure: Configure
    ) -> None:
        filler = "lorem ipsum dolor sit amet " * 4_000
        text = f"aardvark {filler} zebra"
        with OpenAIServer(limits=STRICT, dimensions=512) as server:
            embedder = Embedder.resolve(configure(server))
            (vector,) = embedder.embed_documents([text])
            (async_vector,) = await embedder.aembed_documents([text])
        assert server.refusals == []
        assert "".join(server.embedding_requests[0].texts) == text
        assert vector == async_vector
        assert math.hypot(*parsed([vector])[0]) == pytest.approx(1, abs=1e-4)

    async def test_emb_3_a_question_longer_than_the_model_takes_is_answered(
        self, configure: Configure
    ) -> None:
        question = "What is in this mail? " + "lorem ipsum dolor sit amet " * 4_000
        with OpenAIServer(limits=STRICT) as server:
            embedder = Embedder.resolve(configure(server))
            assert embedder.embed_query(question) == await embedder.aembed_query(question)
        assert server.refusals == []

    def test_a_question_is_embedded_once(self, configure: Configure) -> None:
        with OpenAIServer() as server:
            embedder = Embedder.resolve(configure(server))
            assert embedder.embed_query("Cairo?") == embedder.embed_query(" Cairo? ")
        assert len(server.requests) == 1

    def test_a_failing_server_is_an_error_that_says_so(self, configure: Configure) -> None:
        fault = ServerFault(status=401, message="this key is revoked")
        with OpenAIServer(embedding_faults=[fault]) as server:
            embedder = Embedder.resolve(configure(server))
            with pytest.raises(EmbeddingError, match="this key is revoked") as caught:
                embedder.embed_query("Cairo?")
        assert isinstance(caught.value.__cause__, openai.AuthenticationError)
        assert server.api_key not in str(caught.value)

    def test_without_a_key_the_name_is_refused(self) -> None:
        with pytest.raises(ConfigurationError, match="openai:small"):
            Embedder.resolve("openai:small")


def own_words(number: int) -> str:
    """Four words that together are this number's alone."""
    return " ".join(f"{place}{digit}" for place, digit in zip("abcd", f"{number:04}", strict=True))


def long_spec(number: int) -> ToolSpec:
    own = own_words(number)
    return ToolSpec(tool_name=f"tool_{number}", description=f"{own} {'x' * 1_900} {own}")


class TestRegistry:
    """`openai:…` by name, through a whole registry."""

    def test_emb_3_2500_long_descriptions_in_requests_within_the_limits(
        self, configure: Configure, database_url: str
    ) -> None:
        specs = [long_spec(number) for number in range(2_500)]
        settings = RegistrySettings(embedding_batch_size=2_048)
        with OpenAIServer(limits=STRICT, dimensions=512) as server:
            with ToolRegistry(
                database_url, embeddings=configure(server), settings=settings
            ) as registry:
                report = registry.sync(specs)
                for number in (0, 1, 1_249, 2_498, 2_499):
                    (hit,) = registry.search(own_words(number), k=1, threshold=0)
                    assert hit.tool_name == f"tool_{number}"
        assert report.added == [spec.tool_name for spec in specs]
        assert (report.embedded, report.failed) == (2_500, {})
        assert server.refusals == []
        # 1.2 million tokens: more requests than one, far fewer than one a tool.
        assert 5 <= len(server.embedding_requests) - 5 <= 40

    def test_emb_2_blank_text_is_never_sent(self, configure: Configure, database_url: str) -> None:
        good = [ToolSpec(tool_name=f"tool_{n}", description=f"Does {n}.") for n in range(48)]
        blank = [ToolSpec(tool_name=f"bad_{n}", description=" " * n) for n in range(2)]
        with (
            OpenAIServer() as server,
            ToolRegistry(database_url, embeddings=configure(server)) as registry,
        ):
            report = registry.sync([*good, *blank])
            assert list(report.added) == [spec.tool_name for spec in good]
            assert set(report.failed) == {"bad_0", "bad_1"}
            with pytest.raises(InvalidQueryError):
                registry.search("  ")
        assert all(text.strip() for each in server.embedding_requests for text in each.texts)

    def test_emb_3_one_refused_text_fails_alone(
        self, configure: Configure, database_url: str
    ) -> None:
        # This server takes less than the registry cuts texts to.
        limits = EmbeddingLimits(max_text_tokens=1_000)
        specs = [ToolSpec(tool_name=f"tool_{n}", description=f"Does {n}.") for n in range(20)]
        specs.insert(7, ToolSpec(tool_name="too_long", description="word " * 1_000))
        with (
            OpenAIServer(limits=limits) as server,
            ToolRegistry(database_url, embeddings=configure(server)) as registry,
        ):
            report = registry.sync(specs)
            assert len(registry.list_tools()) == 20
        assert report.failed.keys() == {"too_long"}
        assert "maximum context length" in report.failed["too_long"]
        assert len(report.added) == 20

    def test_emb_3_finished_batches_stay_when_the_server_goes_down(
        self, configure: Configure, database_url: str
    ) -> None:
        specs = [ToolSpec(tool_name=f"tool_{n}", description=f"Does {n}.") for n in range(30)]
        settings = RegistrySettings(embedding_batch_size=10)
        # Not retried by the client, so that the test need not wait for it.
        down = ServerFault(status=400, message="down")
        with (
            OpenAIServer() as server,
            ToolRegistry(database_url, embeddings=configure(server), settings=settings) as registry,
        ):
            server.fail_embeddings(None, *[down] * 100)
            first = registry.sync(specs)
            assert first.added == [spec.tool_name for spec in specs[:10]]
            assert first.failed.keys() == {spec.tool_name for spec in specs[10:]}
            # A server that is down is not asked for every tool.
            assert len(server.embedding_requests) < 15
            server.fail_embeddings()
            second = registry.sync(specs)
        assert second.unchanged == first.added
        assert (len(second.added), second.embedded) == (20, 20)

    async def test_emb_1_async_registry_sends_strings(
        self, configure: Configure, database_url: str
    ) -> None:
        specs = [
            ToolSpec(tool_name="refund", description="Refund an order."),
            ToolSpec(tool_name="weather", description="Weather of a city."),
        ]
        with OpenAIServer(limits=STRICT) as server:
            async with AsyncToolRegistry(database_url, embeddings=configure(server)) as registry:
                await registry.sync(specs)
                (hit,) = await registry.search("weather of Cairo", k=1)
        assert hit.tool_name == "weather"
        assert server.refusals == []
        assert server.embedding_requests[-1].texts == ["weather of Cairo"]
