"""Read query parameters and the Accept header: selectors, pages, options, response form."""

import base64
import binascii
from collections.abc import Mapping

import msgspec

from kubelite.errors import ApiError, bad_request, expired
from kubelite.kinds import Kind
from kubelite.selectors import Predicate, both, parse_fields, parse_labels

_TRUE, _FALSE = ("1", "true", "True", "t"), ("", "0", "false", "False", "f")


def selectors(kind: Kind, query: Mapping[str, str]) -> Predicate | None:
    """Return the label and field selectors as one predicate, or None if there are none."""
    labels = parse_labels(query.get("labelSelector", ""))
    fields = parse_fields(query.get("fieldSelector", ""), kind.fields)
    return both(labels, fields)


def boolean(query: Mapping[str, str], name: str) -> bool:
    """Return a boolean parameter, False if it is absent."""
    value = query.get(name, "")
    if value in _TRUE:
        return True
    if value in _FALSE:
        return False
    raise bad_request(f"{name} takes true or false, not {value!r}")


def integer(query: Mapping[str, str], name: str) -> int:
    """Return an integer parameter, 0 if it is absent."""
    text = query.get(name, "")
    if not text:
        return 0
    try:
        return int(text)
    except ValueError as error:
        raise bad_request(f'strconv.ParseInt: parsing "{text}": invalid syntax') from error


def resource_version(query: Mapping[str, str]) -> int | None:
    """Return the requested resource version, or None if any will do."""
    text = query.get("resourceVersion", "")
    if not text:
        return None
    if not text.isdigit():
        raise bad_request(f'invalid resource version "{text}": use a number returned by the server')
    return int(text)


def require_known_version(version: int | None, current: int) -> None:
    """Raise 504 for a version that does not exist yet. kube-apiserver does so after a wait."""
    if version is not None and version > current:
        cause = {"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}
        message = f"Too large resource version: {version}, current: {current}"
        raise ApiError(504, message, reason="Timeout", details={"causes": [cause], "retryAfterSeconds": 1})


def dry_run(query: Mapping[str, str]) -> bool:
    """Return whether the request is a dry run."""
    value = query.get("dryRun", "")
    if value not in ("", "All"):
        raise ApiError(422, f'dryRun: Unsupported value: "{value}": supported values: "All"')
    return value == "All"


def field_validation(query: Mapping[str, str]) -> str:
    """Return how to treat unknown fields: Ignore, Warn or Strict."""
    value = query.get("fieldValidation") or "Warn"
    if value not in ("Ignore", "Warn", "Strict"):
        raise ApiError(
            422,
            f'fieldValidation: Unsupported value: "{value}": supported values: "Ignore", "Strict", "Warn"',
        )
    return value


def manager(query: Mapping[str, str], agent: str) -> str:
    """Return the field manager: the parameter, or the program name from the User-Agent."""
    named = query.get("fieldManager", "")
    if len(named) > 128:
        raise ApiError(422, "fieldManager: Too long: may not be more than 128 bytes")
    return named or (agent.partition("/")[0][:128] or "unknown")


def encode_continue(listing: str, start: int) -> str:
    """Return a continue token: the name of a kept listing and the position in it."""
    return base64.urlsafe_b64encode(msgspec.json.encode([listing, start])).decode()


def decode_continue(token: str) -> tuple[str, int]:
    """Return the listing name and position in a continue token."""
    try:
        listing, start = msgspec.json.decode(base64.urlsafe_b64decode(token), type=tuple[str, int])
    except (ValueError, binascii.Error, msgspec.DecodeError) as error:
        raise bad_request(f"continue key is not valid: {error}") from error
    if start < 0:
        raise expired("continue key is not valid")
    return listing, start


def accepts(accept: str, form: str) -> bool:
    """Return whether the Accept header prefers a form of the object (`Table`) to plain JSON."""
    for part in accept.split(","):
        fields = [field.strip() for field in part.split(";")]
        if fields[0] not in ("application/json", "*/*", "application/*", ""):
            continue
        params = dict(field.partition("=")[::2] for field in fields[1:])
        if "as" not in params:
            return False
        if params["as"] == form and params.get("v", "v1") in ("v1", "v2"):
            return True
    return False
