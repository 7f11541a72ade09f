"""Alerts to a webhook, to Alertmanager and by mail, on loopback servers."""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from aiohttp import web
from msgspec import structs
from tests.smtp_server import smtp_server
from tests.waiting import wait_until

from gpufleet.kubernetes.crds.gpu_repair import GpuRepair, RepairSpec, RepairStatus
from gpufleet.kubernetes.objects import ObjectMeta
from gpufleet.repair.alerts import Alerts
from gpufleet.runtime.settings import AlertSettings

NOW = datetime(2026, 1, 1, tzinfo=UTC)
BEFORE = RepairStatus()
FAULTY = GpuRepair(
    metadata=ObjectMeta(name="a"),
    spec=RepairSpec(node_name="a"),
    status=RepairStatus(
        phase="Cordoned", episode=1, cause="xid-48", cause_message="XID 48: ECC error", opened=NOW
    ),
)


class Receiver:
    """A server that keeps what it gets."""

    def __init__(self) -> None:
        self.got: list[tuple[str, Any]] = []
        self.url = ""

    async def handle(self, request: web.Request) -> web.Response:
        self.got.append((request.path, await request.json()))
        return web.Response()


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    made = Receiver()
    app = web.Application()
    app.router.add_post("/{path:.*}", made.handle)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    made.url = f"http://127.0.0.1:{port}"
    yield made
    await runner.cleanup()


def alerts(settings: AlertSettings, *repairs: GpuRepair) -> Alerts:
    return Alerts(settings, lambda: repairs, now=lambda: NOW, period=0.01)


async def test_a_webhook_gets_a_sentence_when_a_fault_is_found_and_when_it_is_over(
    receiver: Receiver,
) -> None:
    sender = alerts(AlertSettings(webhook=f"{receiver.url}/hook"))
    await sender.send(FAULTY, BEFORE)
    draining = structs.replace(FAULTY, status=structs.replace(FAULTY.status, phase="Draining"))
    await sender.send(draining, FAULTY.status)
    over = structs.replace(FAULTY, status=RepairStatus(message="all tests passed"))
    await sender.send(over, FAULTY.status)
    assert receiver.got == [
        ("/hook", {"text": "Node a has a GPU fault: XID 48: ECC error"}),
        ("/hook", {"text": "Node a is back: all tests passed (it had: XID 48: ECC error)"}),
    ]


@pytest.mark.parametrize(
    "spec",
    [
        RepairSpec(node_name="a", silenced_until=NOW + timedelta(hours=1)),
        RepairSpec(node_name="a", acknowledged_by="me", acknowledged_episode=1),
    ],
    ids=["silenced", "acknowledged"],
)
async def test_a_silenced_or_acknowledged_repair_sends_nothing(receiver: Receiver, spec: RepairSpec) -> None:
    settings = AlertSettings(webhook=f"{receiver.url}/hook", alertmanager=receiver.url)
    quiet = structs.replace(FAULTY, spec=spec)
    loud = structs.replace(FAULTY, metadata=ObjectMeta(name="b"))
    sender = alerts(settings, quiet, loud)
    await sender.send(quiet, BEFORE)
    running = asyncio.create_task(sender.run())
    await wait_until(lambda: receiver.got)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    path, sent = receiver.got[0]
    assert path == "/api/v2/alerts"
    assert [each["labels"]["node"] for each in sent] == ["b"]
    assert sent[0]["labels"]["alertname"] == "GpuFault"
    assert sent[0]["endsAt"] > sent[0]["startsAt"]


async def test_a_receiver_that_fails_stops_nothing(receiver: Receiver) -> None:
    settings = AlertSettings(
        webhook="http://127.0.0.1:1/hook", smtp="127.0.0.1:1", mail_to=("ops@example.com",)
    )
    await alerts(settings).send(FAULTY, BEFORE)
    assert receiver.got == []


async def test_a_mail_names_the_node_in_its_subject() -> None:
    async with smtp_server() as (address, mails):
        settings = AlertSettings(smtp=address, mail_from="gpufleet@example.com", mail_to=("ops@example.com",))
        await alerts(settings).send(FAULTY, BEFORE)
    assert "Subject: Node a has a GPU fault" in mails[0]


async def test_the_acknowledgement_of_an_earlier_fault_does_not_hide_a_new_one(receiver: Receiver) -> None:
    spec = RepairSpec(node_name="a", acknowledged_by="me", acknowledged_episode=1)
    again = structs.replace(FAULTY, spec=spec, status=structs.replace(FAULTY.status, episode=2))
    await alerts(AlertSettings(webhook=f"{receiver.url}/hook")).send(again, BEFORE)
    assert len(receiver.got) == 1
