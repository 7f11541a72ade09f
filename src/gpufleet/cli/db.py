"""Maintain the database.

  gpufleet db upgrade    create or change tables as this version needs them
  gpufleet db check      report whether that is done; exit status 1 if not
  gpufleet db prune      show what is older than its retention; --confirm deletes it
  gpufleet db backfill   compute the hours --from … --to … again, from the metric source
  gpufleet db suspicious-owners
                         list workloads whose stored rows are in several namespaces: earlier versions counted
                         pods with forged owners for them; exit status 1 if there are any

The server upgrades the database when it starts. These commands are for deployments that want it as a separate
step. The database is DATABASE_URL, else the embedded one in --data, even while a server uses it.
"""

import argparse
import asyncio
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime

from gpufleet.errors import SettingsError
from gpufleet.runtime.settings import AccountingSettings, MetricsSettings, Settings, StoreSettings
from gpufleet.store.postgres.migrate import check, upgrade
from gpufleet.store.store import open_server

GROUPS: tuple[type, ...] = (StoreSettings, MetricsSettings, AccountingSettings)


async def _upgrade(settings: Settings, _arguments: argparse.Namespace) -> int:
    store = settings[StoreSettings]
    async with open_server(store, share=True) as dsn:
        done = await upgrade(dsn, store)
    for step in done:
        print(f"applied {step.number:04d} {step.name}")
    print("the database is up to date" if not done else f"the database is up to date ({len(done)} applied)")
    return 0


async def _check(settings: Settings, _arguments: argparse.Namespace) -> int:
    store = settings[StoreSettings]
    if not store.url and not (store.data / "postgres").exists():
        print(f"there is no database in {store.data} yet; create it with gpufleet db upgrade")
        return 1
    async with open_server(store, share=True) as dsn:
        state = await check(dsn, store)
    for step in state.pending:
        print(f"missing {step.number:04d} {step.name}")
    if state.pending:
        print(f"the database is at step {state.applied}; apply the rest with gpufleet db upgrade")
        return 1
    print(f"the database is up to date (step {state.applied})")
    return 0


async def _prune(settings: Settings, arguments: argparse.Namespace) -> int:
    from gpufleet.server.wiring.maintenance import prune
    from gpufleet.store.prune_runs import utc

    if arguments.confirm and arguments.dry_run:
        raise SettingsError("--confirm deletes and --dry-run does not; give one of them")
    expired, time, runs = await prune(settings, confirmed=arguments.confirm)
    verb = "deleted" if arguments.confirm else "would be deleted"
    newest = "none" if time.newest is None else utc(time.newest)
    print(f"time of the database: {utc(time.now)}; newest data: {newest}")
    if time.held:
        print(f"the server prunes nothing until --confirm: {time.held}")
    for run in runs:
        of = f", cluster {run.cluster}" if run.cluster else ""
        print(f"deleted at {run.at:%Y-%m-%dT%H:%MZ} by {run.holder}: {run.rows:,} rows of {run.origin}{of}")
    for old in expired:
        times = f"from {utc(old.oldest)} to {utc(old.newest)}"
        if old.partition and not old.cluster:
            print(f"{old.partition} (about {old.rows:,} rows, {times}) {verb}")
        else:
            print(
                f"{old.rows:,} rows of {old.partition or old.table}, cluster {old.cluster}, {times}, {verb}"
            )
    if not expired:
        print("nothing is older than its retention")
    elif not arguments.confirm:
        print("nothing was deleted; gpufleet db prune --confirm deletes all of it")
    return 0


async def _backfill(settings: Settings, arguments: argparse.Namespace) -> int:
    from gpufleet.server.wiring.maintenance import backfill

    hours = _hours(arguments.first, arguments.last)
    clusters = [arguments.cluster] if arguments.cluster else list(settings.clusters)
    if unknown := [name for name in clusters if name not in settings.clusters]:
        raise SettingsError(f"--cluster: no cluster {unknown[0]!r}; known: {', '.join(settings.clusters)}")
    async for cluster, hour, result in backfill(settings, clusters, hours):
        if result.kept:
            text = f"kept, {result.kept}"
        else:
            text = f"{len(result.hour.workloads)} workloads" if result.hour else "no data, no rows"
        print(f"{cluster} {datetime.fromtimestamp(hour * 3600, UTC):%Y-%m-%dT%H:%MZ}: {text}")
    return 0


async def _suspicious_owners(settings: Settings, _arguments: argparse.Namespace) -> int:
    from gpufleet.server.wiring.maintenance import suspicious_owners

    found = await suspicious_owners(settings)
    for owner in found:
        print(f"{owner.cluster} {owner.uid} {owner.kind} {owner.name}: in {', '.join(owner.namespaces)}")
    print(
        "harmless for owners without a namespace; else compare the pods with the namespace of the owner"
        if found
        else "no workload has rows in several namespaces"
    )
    return 1 if found else 0


_Action = Callable[[Settings, argparse.Namespace], Awaitable[int]]
ACTIONS: dict[str, _Action] = {
    "upgrade": _upgrade,
    "check": _check,
    "prune": _prune,
    "backfill": _backfill,
    "suspicious-owners": _suspicious_owners,
}
"""Actions by their name on the command line."""


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the action and its flags."""
    parser.add_argument("action", choices=list(ACTIONS), metavar="|".join(ACTIONS), help="What to do.")
    parser.add_argument(
        "--dry-run", action="store_true", help="With prune: show what would be deleted (the default)."
    )
    parser.add_argument(
        "--confirm", action="store_true", help="With prune: delete it, also after a gap of more than a day."
    )
    parser.add_argument("--from", dest="first", metavar="TIME", help="With backfill: the first hour.")
    parser.add_argument("--to", dest="last", metavar="TIME", help="With backfill: the last hour.")
    parser.add_argument("--cluster", default="", help="With backfill: only this cluster.")


def run(settings: Settings, arguments: argparse.Namespace) -> int:
    """Run the action."""

    async def act() -> int:
        return await ACTIONS[arguments.action](settings, arguments)

    return asyncio.run(act())


def _hours(first: str | None, last: str | None) -> range:
    if not first or not last:
        raise SettingsError(
            "backfill needs --from and --to, such as --from 2026-10-01 --to 2026-10-02T05:00Z"
        )
    start, end = _hour(first, "--from"), _hour(last, "--to")
    if start > end:
        raise SettingsError("--from must not be after --to")
    return range(start, end + 1)


def _hour(text: str, flag: str) -> int:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise SettingsError(
            f"{flag}: {text!r} is wrong; it takes a date or a time such as 2026-10-01 or 2026-10-01T15:00Z"
        ) from None
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    hour = int(moment.timestamp() // 3600)
    if (hour + 1) * 3600 > time.time():
        raise SettingsError(f"{flag}: the hour {text} is not over yet")
    return hour
