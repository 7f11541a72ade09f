"""The table of commands. A line here and a module of the same name make a command."""

COMMANDS: dict[str, str] = {
    "demo": "Everything in one process over a simulated fleet, to try gpufleet out",
    "serve": "The server: fleet, accounting, REST API and dashboard",
    "agent": "On each node: GPU inventory, health, metrics and training logs",
    "scheduler": "Hands out GPUs as an extender of kube-scheduler, or by itself",
    "webhook": "Admission: tells pods which GPUs are theirs, checks claims",
    "simulate": "Replay a trace of GPU tasks and compare placement policies",
    "explain": "Say why a pod or claim is pending and what would make it fit",
    "db": "Upgrade, check, prune and backfill the database",
}


def overview() -> str:
    """What `gpufleet --help` prints."""
    rows = "\n".join(f"  {name:<10} {summary}" for name, summary in COMMANDS.items())
    return (
        "gpufleet shows, accounts for and hands out the GPUs of a fleet.\n\n"
        "Usage:\n  gpufleet COMMAND [FLAGS]\n\n"
        f"Commands:\n{rows}\n\n"
        "Flags:\n  -h, --help     Show this, or with a command its own help\n"
        "  -V, --version  Show the version\n\n"
        "Start with:\n  gpufleet demo              # a simulated fleet with dashboard, on 127.0.0.1:8080\n"
        "  gpufleet COMMAND --help    # what a command takes\n"
    )
