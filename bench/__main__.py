"""Run benchmarks, print a table and write JSON files.

    make bench                      # all
    make bench ARGS="placement"     # some
    python -m bench --help          # list them

A benchmark is a module of this package with `measure() -> Iterable[Result]`; figures are
printed immediately. The exit status is 1 if a budget is missed.
"""

import argparse
import ast
import dataclasses
import importlib
import json
import os
import pkgutil
import platform
import sys
import time
from pathlib import Path

import bench
from bench.result import Result

_NOT_BENCHMARKS = {"__main__", "result", "fake_kube_api", "fake_large_cluster", "estimate_judges"}


def main() -> int:
    known = sorted(m.name for m in pkgutil.iter_modules(bench.__path__) if m.name not in _NOT_BENCHMARKS)
    parser = argparse.ArgumentParser(
        prog="python -m bench",
        description=__doc__,
        epilog="benchmarks:\n" + "\n".join(f"  {name:<18}{_summary(name)}" for name in known),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="benchmarks to run (default: all)")
    parser.add_argument("--out", type=Path, default=Path("bench/results"), help="folder for the JSON files")
    arguments = parser.parse_args()
    unknown = sorted(set(arguments.names) - set(known))
    if unknown:
        parser.error(f"unknown benchmark {', '.join(unknown)}; choose from {', '.join(known)}")
    missed = 0
    print(f"{'figure':<58} {'value':>12} {'unit':<12} {'budget':>10}")
    for name in arguments.names or known:
        started = time.perf_counter()
        results = []
        for result in importlib.import_module(f"bench.{name}").measure():
            _show(name, result)
            results.append(result)
        missed += sum(not result.met for result in results)
        _write(arguments.out, name, results, time.perf_counter() - started)
    return 1 if missed else 0


def _summary(name: str) -> str:
    """Return the first line of the module's docstring without importing the module."""
    source = Path(bench.__path__[0], f"{name}.py").read_text()
    return (ast.get_docstring(ast.parse(source)) or "").partition("\n")[0]


def _show(name: str, result: Result) -> None:
    verdict = "" if result.met else "  MISSED"
    note = f"  {result.note}" if result.note else ""
    print(
        f"{name + ': ' + result.name:<58} {result.value:>12,.4g} {result.unit:<12} {result.budget:>10}{verdict}{note}",
        flush=True,
    )


def _write(folder: Path, name: str, results: list[Result], seconds: float) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    report = {
        "benchmark": name,
        "seconds": round(seconds, 2),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "results": [{**dataclasses.asdict(result), "met": result.met} for result in results],
    }
    (folder / f"{name}.json").write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    sys.exit(main())
