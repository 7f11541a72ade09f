"""gpufleet get, as a user runs it, against the demo."""

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from dashboard.tools.demo_process import Demo
from tests.waiting import block_until

from gpufleet.cli import main
from gpufleet.client import Client
from gpufleet.terminal.columns import Column, age, index_ranges
from gpufleet.terminal.get import Request, watch
from gpufleet.terminal.output import table
from gpufleet.terminal.resources import RESOURCES, resource_of

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(
    demo: Demo, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Run:
    """Run a command against the demo; return its exit status, standard output and standard error."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GPUFLEET_SERVER", demo.address)

    def start(*words: str) -> tuple[int, str, str]:
        capsys.readouterr()
        status = main(list(words))
        printed = capsys.readouterr()
        return status, printed.out, printed.err

    return start


@pytest.mark.parametrize("resource", ["nodes", "gpus", "workloads", "claims", "leases"])
def test_json_has_what_the_api_returns(run: Run, demo: Demo, resource: str) -> None:
    path = f"api/{resource}?pageSize=1000"
    for _ in range(5):  # the fleet changes meanwhile
        before = demo.get(path)["data"]
        status, out, err = run("get", resource, "-o", "json")
        if before == demo.get(path)["data"]:
            break
    assert (status, err) == (0, "")
    assert json.loads(out) == {"kind": "List", "items": before}


def test_a_table_has_a_line_for_each_object(run: Run, demo: Demo) -> None:
    status, out, err = run("get", "nodes")
    header, *lines = out.splitlines()
    assert (status, err) == (0, "")
    assert header.split() == ["NAME", "STATUS", "MODEL", "GPUS", "HELD", "FREE", "UTIL"]
    assert [line.split()[0] for line in lines] == [row["name"] for row in demo.get("api/nodes")["data"]]
    assert len(run("get", "no", "--no-headers")[1].splitlines()) == 4
    assert "PROBLEM" in run("get", "node", "-o", "wide")[1]


def test_names_select_objects_and_a_missing_one_fails(run: Run) -> None:
    first, second = run("get", "nodes", "-o", "name")[1].split()[:2]
    name = first.removeprefix("node/")
    status, out, err = run("get", first)
    assert (status, out.splitlines()[1].split()[0], err) == (0, name, "")
    status, out, err = run("get", "nodes", name, "none")
    assert (status, len(out.splitlines())) == (1, 2)
    assert err == 'Error from server (NotFound): nodes "none" not found\n'
    assert second.removeprefix("node/") not in out
    assert len(run("get", "gpus", name, "--no-headers")[1].splitlines()) == 8
    assert run("get", f"gpu/{name}/3", "-o", "name")[1] == f"gpu/{name}/3\n"
    assert yaml.safe_load(run("get", "gpu", f"{name}/3", "-o", "yaml")[1])["index"] == 3


def test_no_objects_are_reported_on_standard_error_with_status_0(run: Run) -> None:
    assert run("get", "claims", "-n", "none") == (0, "", "No resources found in none namespace.\n")
    assert run("get", "nodes", "-l", "none=x") == (0, "", "No resources found\n")
    assert run("get", "nodes", "-l", "none=x", "-o", "json")[1:] == (
        '{\n    "kind": "List",\n    "items": []\n}\n',
        "",
    )


def test_rows_are_selected_by_namespace_label_status_and_model(run: Run, demo: Demo) -> None:
    row = demo.get("api/workloads?status=Running&pageSize=1")["data"][0]
    out = run("get", "workloads", "-n", row["namespace"], "--status", "running", "-o", "json")[1]
    items = json.loads(out)["items"]
    assert {(each["namespace"], each["status"]) for each in items} == {(row["namespace"], "Running")}
    assert "NAMESPACE" not in run("get", "workloads", "-n", row["namespace"])[1]
    assert "NAMESPACE" in run("get", "workloads", "-A", "-n", row["namespace"])[1]
    node = next(each for each in demo.get("api/nodes")["data"] if each["source"] == "k8s")["name"]
    assert run("get", "nodes", "-l", f"kubernetes.io/hostname={node}", "-o", "name")[1] == f"node/{node}\n"
    assert run("get", "gpus", "--model", "none")[2] == "No resources found\n"


def test_tables_are_sorted_and_limited_to_columns(run: Run) -> None:
    out = run("get", "gpus", "--columns", "temp,name", "--sort-by=-temperature", "--no-headers")[1]
    values = [float(line.split()[0]) for line in out.splitlines() if not line.startswith("-")]
    assert values == sorted(values, reverse=True)
    assert len(values) > 10
    rows = list(
        csv.DictReader(io.StringIO(run("get", "nodes", "-o", "csv", "--columns", "name,gpuTotal")[1]))
    )
    assert [row["gpuTotal"] for row in rows] == ["8"] * 4
    assert run("get", "nodes", "-o", "csv")[1].splitlines()[0].count(",") > 8


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("get", "pods"), "no resource 'pods'; there are nodes, gpus, workloads, claims, queue, leases"),
        (("get", "nodes", "-n", "ml"), "nodes can't be selected with -n"),
        (
            ("get", "claims", "--status", "open"),
            "--status open: claims have Bound, Failed, Pending, Reserved",
        ),
        (("get", "nodes", "--columns", "cpu"), "no column CPU; there are NAME"),
        (("get", "nodes", "--sort-by", "cpu"), "--sort-by cpu: no such column or field"),
        (("get", "nodes", "-l", "a=b=c"), "is not a label selector"),
        (("get", "nodes", "--cluster", "none"), "no cluster"),
    ],
)
def test_wrong_requests_say_what_there_is(run: Run, words: tuple[str, ...], message: str) -> None:
    status, out, err = run(*words)
    assert (status, out) == (1, "")
    assert message in err


def test_the_queue_has_the_pending_workloads(run: Run, demo: Demo) -> None:
    status, out, _ = run("get", "queue", "-o", "json")
    assert status == 0
    waiting = {row["uid"] for row in demo.get("api/workloads?status=Pending&pageSize=1000")["data"]}
    assert {row["uid"] for row in json.loads(out)["items"]} == waiting


def test_watch_prints_rows_again_when_they_change(client: Client, demo: Demo) -> None:
    node = next(row for row in demo.get("api/nodes")["data"] if row["source"] == "k8s")["name"]
    out, rounds = io.StringIO(), iter([True, True, True, False])

    def pause(_: float) -> None:
        demo.cordon(node, True)
        block_until(lambda: demo.get(f"api/nodes/{node}")["cordoned"])

    try:
        request = Request(resource_of("nodes"), names=(node,))
        assert watch(client, request, out, 0.1, keep_on=lambda: next(rounds), pause=pause) == 0
    finally:
        demo.cordon(node, False)
    lines = out.getvalue().splitlines()
    assert (lines[0].split()[0], len(lines)) == ("NAME", 3)
    assert ["cordoned" in line for line in lines[1:]] == [False, True]


def test_the_last_column_is_cut_to_the_terminal() -> None:
    columns = [Column("NAME", lambda row: row[0]), Column("REASON", lambda row: row[1])]
    rows = [("a", "x" * 200), ("bb", "short")]
    assert max(map(len, table(columns, rows, width=80).splitlines())) == 80
    assert max(map(len, table(columns, rows).splitlines())) == 206


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (5, "5s"),
        (119, "119s"),
        (300, "5m"),
        (305, "5m5s"),
        (3700, "61m"),
        (18600, "5h10m"),
        (100000, "27h"),
        (300000, "3d11h"),
        (3000000, "34d"),
    ],
)
def test_ages_are_written_as_kubectl_does(seconds: int, text: str) -> None:
    assert age(seconds) == text


def test_gpu_indexes_are_joined_to_ranges() -> None:
    assert index_ranges([0, 1, 2, 3, 6]) == "0-3,6"
    assert index_ranges([]) == "-"


def test_names_and_aliases_are_unique() -> None:
    words = [word for each in RESOURCES for word in (each.name, *each.aliases)]
    assert len(words) == len(set(words))
