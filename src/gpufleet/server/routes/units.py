"""Amounts in the words that the contract's clients show as they are."""

_STEPS = ("B", "kB", "MB", "GB", "TB")


def bytes_in_words(amount: float) -> str:
    """Bytes in decimal units with up to one decimal, terabytes at the most: `450TB`, `1.5GB`, `0TB` for none."""
    if amount <= 0:
        return "0TB"
    step = 0
    while amount >= 1000 and step < len(_STEPS) - 1:
        amount /= 1000
        step += 1
    return f"{amount:.1f}".removesuffix(".0") + _STEPS[step]


def gigabits_in_words(bytes_per_second: float) -> str:
    """A link rate given in bytes per second, in gigabits: `400Gbps`."""
    return f"{bytes_per_second * 8 / 1e9:.1f}".removesuffix(".0") + "Gbps"
