"""Tools for JSON and CSV text, and for hashing and encoding."""

from __future__ import annotations

import base64
import binascii
import csv
import hashlib
import io
import json
import uuid
import zlib
from typing import Annotated, Any, Literal
from urllib.parse import quote, unquote

from langchain_core.tools import BaseTool

from agent.demo.common import demo_tools, tidy, unknown

__all__ = ["data_tools", "encoding_tools"]

JsonText = Annotated[str, "A JSON document"]
CsvText = Annotated[str, "Comma-separated rows; the first row names the columns"]


def format_json(json_text: JsonText) -> str:
    """Pretty-print a JSON document with indentation and check that it is valid."""
    return json.dumps(_parsed(json_text), indent=2, ensure_ascii=False)


def minify_json(json_text: JsonText) -> str:
    """Write a JSON document as compactly as possible, without spaces and line breaks."""
    return json.dumps(_parsed(json_text), separators=(",", ":"), ensure_ascii=False)


def read_json_value(
    json_text: JsonText, path: Annotated[str, "Keys and list positions, such as items.0.price"]
) -> str:
    """Read the one value at a path out of a JSON document."""
    value = _parsed(json_text)
    for step in path.split("."):
        if isinstance(value, dict):
            if step not in value:
                raise unknown("key", step, map(str, value))
            value = value[step]
        elif isinstance(value, list):
            if not (step.isascii() and step.isdigit() and int(step) < len(value)):
                raise ValueError(f"{step!r} is not a position from 0 to {len(value) - 1}")
            value = value[int(step)]
        else:
            raise ValueError(f"nothing lies below {value!r}; shorten the path before {step!r}")
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def csv_to_json(csv_text: CsvText) -> str:
    """Turn a CSV table into a JSON list of records."""
    return json.dumps(_rows(csv_text), ensure_ascii=False)


def json_to_csv(json_text: JsonText) -> str:
    """Turn a JSON list of records into a CSV table."""
    records = _parsed(json_text)
    if not isinstance(records, list) or not records:
        raise ValueError('the JSON must be a list of records, such as [{"name": "Ada"}]')
    if not all(isinstance(record, dict) for record in records):
        raise ValueError("every item of the JSON list must be a record in braces {}")
    columns = list(dict.fromkeys(key for record in records for key in record))
    out = io.StringIO()
    writer = csv.DictWriter(out, fieldnames=columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(records)
    return out.getvalue().rstrip("\n")


def sum_csv_column(csv_text: CsvText, column: str) -> int | float:
    """Add up all the figures in one column of a CSV table."""
    rows = _rows(csv_text)
    if column not in rows[0]:
        raise unknown("column", column, rows[0])
    total = 0.0
    for number, row in enumerate(rows, start=1):
        try:
            total += float(row[column])
        except (TypeError, ValueError):
            raise ValueError(f"row {number} of column {column!r} is not a number") from None
    return tidy(total)


def hash_text(text: str, algorithm: Literal["md5", "sha1", "sha256", "sha512"] = "sha256") -> str:
    """Compute the hash (digest, fingerprint) of a text with SHA-256, SHA-512, SHA-1 or MD5."""
    return hashlib.new(algorithm, text.encode(), usedforsecurity=False).hexdigest()


def checksum_crc32(text: str) -> str:
    """Compute the short CRC-32 checksum of a text to detect transmission errors."""
    return f"{zlib.crc32(text.encode()):08x}"


def encode_base64(text: str) -> str:
    """Encode a text as Base64."""
    return base64.b64encode(text.encode()).decode()


def decode_base64(encoded: str) -> str:
    """Decode Base64 back into readable text."""
    try:
        return base64.b64decode(encoded.strip(), validate=True).decode()
    except (binascii.Error, ValueError):
        raise ValueError(f"{encoded!r} is not Base64 of UTF-8 text; check its padding") from None


def encode_url(text: str) -> str:
    """Percent-encode a text so that it can stand in a URL or link."""
    return quote(text, safe="")


def decode_url(encoded: str) -> str:
    """Decode a percent-encoded URL part such as caf%C3%A9 back into plain text."""
    try:
        return unquote(encoded, errors="strict")
    except UnicodeDecodeError:
        raise ValueError(f"{encoded!r} is not percent-encoded UTF-8") from None


def make_uuid(name: str) -> str:
    """Make a stable unique identifier (UUID version 5) for a name."""
    return str(uuid.uuid5(uuid.NAMESPACE_URL, name))


def _parsed(json_text: str) -> Any:
    try:
        return json.loads(json_text)
    except json.JSONDecodeError as error:
        raise ValueError(
            f"not valid JSON at line {error.lineno}, column {error.colno}: {error.msg}"
        ) from None
    except RecursionError:
        raise ValueError("the JSON is nested too deeply; flatten it") from None


def _rows(csv_text: str) -> list[dict[str, str]]:
    try:
        reader = csv.DictReader(io.StringIO(csv_text.strip()), strict=True)
        rows = list(reader)
    except csv.Error as error:
        raise ValueError(f"not a CSV table: {error}") from None
    if not rows:
        raise ValueError("the CSV table needs a row of column names and at least one row of data")
    width = len(reader.fieldnames or ())
    for number, row in enumerate(rows, start=1):
        if None in row or None in row.values():
            raise ValueError(f"row {number} does not have {width} fields like the first row")
    return rows


def data_tools() -> list[BaseTool]:
    """Return the tools of category `data`."""
    return demo_tools(
        "data",
        (format_json, minify_json, read_json_value, csv_to_json, json_to_csv, sum_csv_column),
    )


def encoding_tools() -> list[BaseTool]:
    """Return the tools of category `encoding`."""
    return demo_tools(
        "encoding",
        (
            hash_text,
            checksum_crc32,
            encode_base64,
            decode_base64,
            encode_url,
            decode_url,
            make_uuid,
        ),
    )
