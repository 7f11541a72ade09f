"""Settings of earlier versions whose values are built in now.

A settings file, an environment variable or `--set` that names one of them is accepted with a warning, so that an
upgrade does not stop a program that runs well.
"""

REMOVED: dict[str, str] = {}
"""The built-in value by the name of the former setting."""


def removal(key: str) -> str:
    """Return the warning for a removed setting."""
    return f"setting {key} is no longer needed; its value {REMOVED[key]} is built in"
