"""What a value may be, in words: the second half of every sentence about a wrong parameter."""

from typing import Any

Schema = dict[str, Any]

_FORMATS = {
    "date-time": "a date and time such as 2025-11-05T00:00:00Z",
    "date": "a date such as 2025-11-05",
    "uuid": "a UUID",
}
_WORDS = {"integer": "a whole number", "number": "a number", "boolean": "true or false", "string": "text"}


def takes(schema: Schema) -> str:
    """What fits `schema`, in words."""
    if "enum" in schema:
        return "one of " + ", ".join(str(choice) for choice in schema["enum"])
    if "anyOf" in schema:
        return " or ".join(takes(choice) for choice in schema["anyOf"] if choice.get("type") != "null")
    if schema.get("type") == "array":
        return "any number of values, each " + takes(schema.get("items", {}))
    if "pattern" in schema and "description" in schema:  # who reads this is no regular expression
        return str(schema["description"]).rstrip(".")
    words = _FORMATS.get(schema.get("format", "")) or _WORDS.get(schema.get("type", ""), "another value")
    return words + _range(schema) + _length(schema) + _shape(schema)


def _range(schema: Schema) -> str:
    low, high = schema.get("minimum"), schema.get("maximum")
    above, below = schema.get("exclusiveMinimum"), schema.get("exclusiveMaximum")
    if low is not None and high is not None:
        return f" from {low} to {high}"
    words = [
        f"{relation} {bound}"
        for relation, bound in (
            ("of at least", low),
            ("of at most", high),
            ("above", above),
            ("under", below),
        )
        if bound is not None
    ]
    return " " + " and ".join(words) if words else ""


def _length(schema: Schema) -> str:
    low, high = schema.get("minLength"), schema.get("maxLength")
    if low is not None and high is not None:
        return f" of {low} to {high} characters"
    if high is not None:
        return f" of at most {high} characters"
    return f" of at least {low} characters" if low is not None else ""


def _shape(schema: Schema) -> str:
    return f" that matches {schema['pattern']}" if "pattern" in schema else ""
