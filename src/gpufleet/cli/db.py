"""Look after the database.

  gpufleet db upgrade    bring its tables to what this version needs
  gpufleet db check      say whether they are; exit status 1 if not
  gpufleet db prune      forget what is older than its retention (--dry-run: say what would go)
  gpufleet db backfill   compute the hours --from … --to … again, from the metric source

The server upgrades by itself when it starts. Use these in a deployment that wants the step
on its own, or to see what an upgrade would do. The database is DATABASE_URL, else the
embedded one in --data, also while a server runs on it.
"""

import argparse
import asyncio
from collections.abc import Awaitable, Callable

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
        print(f"there is no database in {store.data} yet; gpufleet db upgrade makes it")
        return 1
    async with open_server(store, share=True) as dsn:
        state = await check(dsn, store)
    for step in state.pending:
        print(f"missing {step.number:04d} {step.name}")
    if state.pending:
        print(f"the database is at step {state.applied}; gpufleet db upgrade applies the rest")
        return 1
    print(f"the database is up to date (step {state.applied})")
    return 0


async def _prune(settings: Settings, arguments: argparse.Namespace) -> int:
    from gpufleet.cli.db_accounting import prune

    return await prune(settings, dry_run=arguments.dry_run)


async def _backfill(settings: Settings, arguments: argparse.Namespace) -> int:
    from gpufleet.cli.db_accounting import backfill

    if not arguments.first or not arguments.last:
        raise SettingsError(
            "backfill needs --from and --to, such as --from 2026-10-01 --to 2026-10-02T05:00Z"
        )
    return await backfill(settings, arguments.first, arguments.last, arguments.cluster)


_Action = Callable[[Settings, argparse.Namespace], Awaitable[int]]
ACTIONS: dict[str, _Action] = {
    "upgrade": _upgrade,
    "check": _check,
    "prune": _prune,
    "backfill": _backfill,
}
"""What can be done, by its word on the command line."""


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the word that says what to do."""
    parser.add_argument("action", choices=list(ACTIONS), metavar="|".join(ACTIONS), help="What to do.")
    parser.add_argument("--dry-run", action="store_true", help="With prune: say what would go, keep it.")
    parser.add_argument("--from", dest="first", metavar="TIME", help="With backfill: the first hour.")
    parser.add_argument("--to", dest="last", metavar="TIME", help="With backfill: the last hour.")
    parser.add_argument("--cluster", default="", help="With backfill: one cluster only.")


def run(settings: Settings, arguments: argparse.Namespace) -> int:
    """Do it."""

    async def act() -> int:
        return await ACTIONS[arguments.action](settings, arguments)

    return asyncio.run(act())
