"""Format durations like kubectl, with at most two units: `5m10s`, `3d4h`."""

from datetime import datetime


def age_of(stamp: str, now: datetime) -> str:
    """Return the time since an RFC 3339 timestamp, or `<unknown>` if it is empty."""
    if not stamp:
        return "<unknown>"
    try:
        moment = datetime.fromisoformat(stamp)
    except ValueError:
        return "<invalid>"
    return span((now - moment).total_seconds())


def span(seconds: float) -> str:
    """Format a number of seconds."""
    whole = int(seconds)
    if whole < -1:
        return "<invalid>"
    if whole < 120:
        return f"{max(whole, 0)}s"
    minutes, hours, days = whole // 60, whole // 3600, whole // 86400
    if minutes < 10:
        return _two(minutes, "m", whole % 60, "s")
    if minutes < 180:
        return f"{minutes}m"
    if hours < 8:
        return _two(hours, "h", minutes % 60, "m")
    if hours < 48:
        return f"{hours}h"
    if hours < 192:
        return _two(days, "d", hours % 24, "h")
    if days < 365 * 2:
        return f"{days}d"
    years = days // 365
    return _two(years, "y", days % 365, "d") if years < 8 else f"{years}y"


def _two(first: int, unit: str, second: int, smaller: str) -> str:
    return f"{first}{unit}{second}{smaller}" if second else f"{first}{unit}"
