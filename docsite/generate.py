"""Write the pages of `docs/` that come from the code, or check that they are up to date.

python -m docsite.generate            # write them
python -m docsite.generate --check    # exit with 1 if one is out of date
"""

import argparse
import sys
from pathlib import Path

from gpufleet.gpus.rules import reference as health_rules
from gpufleet.runtime.settings.reference import reference as settings_reference

DOCS = Path(__file__).parents[1] / "docs"


def pages() -> dict[str, str]:
    """Return the text of each generated page by its file name."""
    return {
        "settings.md": settings_reference(),
        "health-rules.md": health_rules(),
    }


def main() -> int:
    """Write or check the pages."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing")
    check = parser.parse_args().check
    stale = []
    for name, text in pages().items():
        path = DOCS / name
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            stale.append(name)
            if not check:
                path.write_text(text, encoding="utf-8")
    if check and stale:
        print(f"out of date, run `make docs`: {', '.join(stale)}", file=sys.stderr)  # noqa: T201
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
