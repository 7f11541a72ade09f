"""Test the NVIDIA GPUs of this machine under load.

Each GPU copies over PCIe, fills its whole memory with patterns and reads them back, and multiplies matrices
whose result is known. Neighbouring GPUs copy to each other. Bandwidths are compared with the data sheet of
the model, and the driver must not count errors meanwhile. GPUs with processes are left alone.

  gpufleet diag                          # all GPUs, about 20 seconds each
  gpufleet diag --gpu 3 --seconds 60     # one GPU by index or UUID, longer
  gpufleet diag -o json

Exits with 0 if every GPU passed, else with 1.
"""

import argparse
import json
from collections.abc import Iterable
from dataclasses import asdict

from gpufleet.gpus.load_test.steps import Result
from gpufleet.model.device import Device
from gpufleet.runtime.settings import Settings

GROUPS: tuple[type, ...] = ()


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags; none is a setting."""
    parser.add_argument(
        "--gpu",
        action="append",
        default=[],
        metavar="GPU",
        help="indexes or UUIDs of GPUs, comma-separated; may be given several times (default: all)",
    )
    parser.add_argument(
        "--seconds",
        type=_seconds,
        default=15.0,
        metavar="N",
        help="how long each GPU multiplies matrices (default: 15)",
    )
    parser.add_argument("--in-use", action="store_true", help="also test GPUs that processes use")
    parser.add_argument("-o", "--output", choices=["table", "json"], default="table", help="default: table")


def run(settings: Settings, arguments: argparse.Namespace) -> int:
    """Test and print."""
    from gpufleet.gpus.drivers.nvml import NvmlReader
    from gpufleet.gpus.load_test.cuda import Cuda, load_driver
    from gpufleet.gpus.load_test.expected import TENSOR_SHARE
    from gpufleet.gpus.load_test.run import Plan, run_load_test
    from gpufleet.training.peak_tflops import peak_tflops

    def least_tflops(model: str) -> float | None:
        peak = peak_tflops(model)
        return TENSOR_SHARE * peak if peak is not None else None

    cuda = Cuda(load_driver())
    gpus = [name for text in arguments.gpu for name in text.split(",") if name]
    plan = Plan(gpus, arguments.seconds, arguments.in_use)
    results = run_load_test(NvmlReader(), cuda, plan, least_tflops)
    return print_json(results) if arguments.output == "json" else print_table(results)


def print_table(results: Iterable[tuple[Device, Result]]) -> int:
    """Print each result when it is known, and what failed at the end; return the exit status."""
    failed: dict[str, list[str]] = {}
    tested: dict[str, Device] = {}
    for gpu, result in results:
        if gpu.uuid not in tested:
            print(f"GPU {gpu.index}  {gpu.model or 'unknown model'}  {gpu.uuid}", flush=True)
        tested[gpu.uuid] = gpu
        print("  " + line(result), flush=True)
        if result.passed is False:
            failed.setdefault(gpu.uuid, []).append(result.step)
    for uuid, steps in failed.items():
        print(f"GPU {tested[uuid].index} failed: {', '.join(steps)}")
    if not failed:
        print(f"{len(tested)} of {len(tested)} GPUs passed.")
    return 1 if failed else 0


def print_json(results: Iterable[tuple[Device, Result]]) -> int:
    """Print all results as one document; return the exit status."""
    gpus: dict[str, dict[str, object]] = {}
    steps: dict[str, list[Result]] = {}
    for gpu, result in results:
        gpus.setdefault(gpu.uuid, {"index": gpu.index, "uuid": gpu.uuid, "model": gpu.model})
        steps.setdefault(gpu.uuid, []).append(result)
    passed = {uuid: all(result.passed is not False for result in found) for uuid, found in steps.items()}
    document = [
        {**gpu, "passed": passed[uuid], "steps": [asdict(result) for result in steps[uuid]]}
        for uuid, gpu in gpus.items()
    ]
    print(json.dumps(document, indent=2))
    return 0 if all(passed.values()) else 1


def line(result: Result) -> str:
    """Return a result as one line."""
    word = {True: "passed", False: "FAILED", None: "-"}[result.passed]
    value = f"{result.value:,.4g} {result.unit}" if result.value is not None else ""
    if result.least is not None:
        value += f" (at least {result.least:,.4g})"
    return f"{word:<7} {result.step:<30} {value:<38} {result.detail}".rstrip()


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 1 <= seconds <= 86_400:
        raise argparse.ArgumentTypeError(f"{text!r} is not a duration; give 1 to 86400 seconds")
    return seconds
