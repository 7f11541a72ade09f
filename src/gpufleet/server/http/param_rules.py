"""Describe in words which values a parameter takes, for the message about a wrong one."""

from typing import Any

Schema = dict[str, Any]

_FORMATS = {
    "date-time": "a date and time such as 2025-11-05T00:00:00Z",
    "date": "a date such as 2025-11-05",
    "uuid": "a UUID",
}
_TYPES = {"integer": "a whole number", "number": "a number", "boolean": "true or false", "string": "text"}


def describe(schema: Schema) -> str:
    """Return a phrase for the values that fit `schema`, such as "a whole number from 1 to 1000"."""
    if "enum" in schema:
        return "one of " + ", ".join(str(choice) for choice in schema["enum"])
    if "anyOf" in schema:
        return " or ".join(describe(choice) for choice in schema["anyOf"] if choice.get("type") != "null")
    if schema.get("type") == "array":
        return "any number of values, each " + describe(schema.get("items", {}))
    if "pattern" in schema and "description" in schema:  # people read prose faster than a regular expression
        return str(schema["description"]).rstrip(".")
    words = _FORMATS.get(schema.get("format", "")) or _TYPES.get(schema.get("type", ""), "another value")
    pattern = f" that matches {schema['pattern']}" if "pattern" in schema else ""
    return words + _range(schema) + _length(schema) + pattern


def _range(schema: Schema) -> str:
    low, high = schema.get("minimum"), schema.get("maximum")
    if low is not None and high is not None:
        return f" from {low} to {high}"
    bounds = (
        ("of at least", low),
        ("of at most", high),
        ("above", schema.get("exclusiveMinimum")),
        ("under", schema.get("exclusiveMaximum")),
    )
    words = [f"{relation} {bound}" for relation, bound in bounds if bound is not None]
    return " " + " and ".join(words) if words else ""


def _length(schema: Schema) -> str:
    low, high = schema.get("minLength"), schema.get("maxLength")
    if low is not None and high is not None:
        return f" of {low} to {high} characters"
    if high is not None:
        return f" of at most {_characters(high)}"
    return f" of at least {_characters(low)}" if low is not None else ""


def _characters(count: int) -> str:
    return f"{count} character" if count == 1 else f"{count} characters"
