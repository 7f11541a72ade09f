"""What a request asks for besides its body: selectors, pages, options, form of the answer."""

import base64
import binascii
from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from kubelite.errors import ApiError, bad_request, expired
from kubelite.kinds import Kind
from kubelite.selectors import Predicate, both, parse_fields, parse_labels

_TRUE, _FALSE = ("1", "true", "True", "t"), ("", "0", "false", "False", "f")


@dataclass(frozen=True)
class Selection:
    """Which objects a list, watch or deletecollection is about."""

    wanted: Predicate | None
    selective: bool


def selection(kind: Kind, query: Mapping[str, str]) -> Selection:
    """The selectors of a request as one predicate."""
    labels = parse_labels(query.get("labelSelector", ""))
    fields = parse_fields(query.get("fieldSelector", ""), kind.fields)
    wanted = both(labels, fields)
    return Selection(wanted, wanted is not None)


def flag(query: Mapping[str, str], name: str) -> bool:
    """A yes or no of the query."""
    value = query.get(name, "")
    if value in _TRUE:
        return True
    if value in _FALSE:
        return False
    raise bad_request(f"{name} takes true or false, not {value!r}")


def number(query: Mapping[str, str], name: str) -> int:
    """A whole number of the query, 0 where there is none."""
    text = query.get(name, "")
    if not text:
        return 0
    try:
        return int(text)
    except ValueError as error:
        raise bad_request(f'strconv.ParseInt: parsing "{text}": invalid syntax') from error


def version_of(query: Mapping[str, str]) -> int | None:
    """The resource version asked for; None if the newest will do."""
    text = query.get("resourceVersion", "")
    if not text:
        return None
    if not text.isdigit():
        raise bad_request(f'invalid resource version "{text}": it is a number that the server gave out')
    return int(text)


def require_reached(version: int | None, current: int) -> None:
    """504 for a version of the future, as a real server answers after a wait."""
    if version is not None and version > current:
        cause = {"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}
        message = f"Too large resource version: {version}, current: {current}"
        raise ApiError(504, message, reason="Timeout", details={"causes": [cause], "retryAfterSeconds": 1})


def dry_run(query: Mapping[str, str]) -> bool:
    """Whether nothing is to be stored."""
    value = query.get("dryRun", "")
    if value not in ("", "All"):
        raise ApiError(422, f'dryRun: Unsupported value: "{value}": supported values: "All"')
    return value == "All"


def field_validation(query: Mapping[str, str]) -> str:
    """What to do about unknown fields."""
    value = query.get("fieldValidation") or "Warn"
    if value not in ("Ignore", "Warn", "Strict"):
        raise ApiError(
            422,
            f'fieldValidation: Unsupported value: "{value}": supported values: "Ignore", "Strict", "Warn"',
        )
    return value


def manager(query: Mapping[str, str], agent: str) -> str:
    """The field manager: named, or the program that speaks."""
    named = query.get("fieldManager", "")
    if len(named) > 128:
        raise ApiError(422, "fieldManager: Too long: may not be more than 128 bytes")
    return named or (agent.partition("/")[0][:128] or "unknown")


def page_token(listing: str, start: int) -> str:
    """A continue token: which kept listing, and where in it."""
    return base64.urlsafe_b64encode(msgspec.json.encode([listing, start])).decode()


def read_token(token: str) -> tuple[str, int]:
    """What a continue token says."""
    try:
        listing, start = msgspec.json.decode(base64.urlsafe_b64decode(token), type=tuple[str, int])
    except (ValueError, binascii.Error, msgspec.DecodeError) as error:
        raise bad_request(f"continue key is not valid: {error}") from error
    if start < 0:
        raise expired("continue key is not valid")
    return listing, start


def wants(accept: str, form: str) -> bool:
    """Whether the Accept header asks for a form of the object (`Table`) before plain JSON."""
    for part in accept.split(","):
        words = [word.strip() for word in part.split(";")]
        if words[0] not in ("application/json", "*/*", "application/*", ""):
            continue
        asked = dict(word.partition("=")[::2] for word in words[1:])
        if "as" not in asked:
            return False
        if asked["as"] == form and asked.get("v", "v1") in ("v1", "v2"):
            return True
    return False
