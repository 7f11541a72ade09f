"""The table of commands. A line here and a module of the same name make a command."""

from typing import NamedTuple


class CommandInfo(NamedTuple):
    """A line of the table."""

    summary: str
    extra: str
    """The extra of the distribution that the command needs."""


COMMANDS: dict[str, CommandInfo] = {
    "get": CommandInfo("List nodes, GPUs, workloads, claims, the queue or leases", "client"),
    "top": CommandInfo("Watch nodes, GPUs, workloads and the queue on the whole screen", "top"),
    "fit": CommandInfo("Show where a number of GPUs is free together now", "client"),
    "report": CommandInfo("Usage and cost of a month by namespace, label or workload", "client"),
    "login": CommandInfo("Log in to a server with OpenID Connect", "client"),
    "demo": CommandInfo("Everything in one process over a simulated fleet, to try gpufleet", "demo"),
    "serve": CommandInfo("The server: fleet, accounting, REST API and dashboard", "server"),
    "agent": CommandInfo("On each node: GPU inventory, health, metrics and training logs", "agent"),
    "diag": CommandInfo("Test the GPUs of this machine under load", "agent"),
    "scheduler": CommandInfo("Allocate GPUs, as an extender of kube-scheduler or stand-alone", "scheduler"),
    "webhook": CommandInfo("Admission: set the GPU variables of pods, validate claims", "scheduler"),
    "repair": CommandInfo(
        "Take nodes with faulty GPUs out of service, repair, test and return them", "scheduler"
    ),
    "nodes": CommandInfo("List nodes with findings and repairs; acknowledge, silence, resume", "scheduler"),
    "simulate": CommandInfo("Replay a trace of GPU tasks and compare placement policies", "scheduler"),
    "explain": CommandInfo("Show why a pod or claim is pending and what would make it fit", "scheduler"),
    "focus": CommandInfo("Export cost and usage of a month as a FOCUS file (CSV)", "client"),
    "mcp": CommandInfo("Read-only tools over a server for AI assistants (Model Context Protocol)", "mcp"),
    "db": CommandInfo("Upgrade, check, prune and backfill the database", "server"),
    "completion": CommandInfo("Print the completion script of bash, zsh or fish", "client"),
}


def overview() -> str:
    """Return what `gpufleet --help` prints."""
    rows = "\n".join(f"  {name:<10} {command.summary}" for name, command in COMMANDS.items())
    return (
        "gpufleet shows, accounts for and allocates the GPUs of a fleet.\n\n"
        "Usage:\n  gpufleet COMMAND [FLAGS]\n\n"
        f"Commands:\n{rows}\n\n"
        "Flags:\n  -h, --help     Show this help, or with a command its own\n"
        "  -V, --version  Show the version\n\n"
        "Start with:\n  gpufleet demo              # a simulated fleet with dashboard, on 127.0.0.1:8080\n"
        "  gpufleet COMMAND --help    # the flags of a command\n"
    )
