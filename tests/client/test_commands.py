"""The commands that talk to a server, as a user runs them, against the demo."""

import csv
import io
import json
import re
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml
from dashboard.tools.demo_process import Demo
from tests.waiting import block_until

from gpufleet.cli import main
from gpufleet.client import Client, types
from gpufleet.terminal.columns import Column, age, index_ranges
from gpufleet.terminal.fit import capacities, fitting, sentence
from gpufleet.terminal.get import Request, watch
from gpufleet.terminal.output import table
from gpufleet.terminal.resources import RESOURCES, resource_of
from gpufleet.terminal.waiting import START, with_estimates

Json = Any
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


def between_equal_reads(
    read: Callable[[], Json], command: Callable[[], tuple[int, str, str]]
) -> tuple[Json, int, str, str]:
    """Run a command until the API returns the same before and after it: the fleet changes all the time."""

    def run() -> tuple[Json, int, str, str] | None:
        before = read()
        done = command()
        return (before, *done) if before == read() else None

    found = block_until(run)
    assert found is not None
    return found


@pytest.mark.parametrize("resource", ["nodes", "gpus", "workloads", "claims", "leases"])
def test_json_has_what_the_api_returns(run: Run, demo: Demo, resource: str) -> None:
    def read() -> Json:
        return demo.get(f"api/{resource}?pageSize=1000")["data"]

    items, status, out, err = between_equal_reads(read, lambda: run("get", resource, "-o", "json"))
    assert (status, err) == (0, "")
    assert json.loads(out) == {"kind": "List", "items": items}


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
    row = demo.first("api/workloads?status=Running&pageSize=1")
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
    def read() -> Json:
        return {row["uid"] for row in demo.get("api/workloads?status=Pending&pageSize=1000")["data"]}

    waiting, status, out, _ = between_equal_reads(read, lambda: run("get", "queue", "-o", "json"))
    assert status == 0
    items = json.loads(out)["items"]
    assert {row["uid"] for row in items} == waiting
    _, text, _ = run("get", "queue")
    assert not items or "STARTS-IN" in text.splitlines()[0]


def test_a_workload_starts_with_the_last_of_its_claims_and_has_no_start_elsewhere(client: Client) -> None:
    row = next(iter(client.workloads()))
    row.namespace, row.claims = "ml", ["first", "last"]

    def unit(claim: str, position: int, start: str | None) -> types.QueuedUnit:
        start_times = {"expected_start": start, "earliest_start": start, "latest_start": start}
        estimate = types.StartEstimate(position=position, waits_for="GPUs", **start_times)
        return types.QueuedUnit(namespace="ml", name=claim, claims=[claim], gpus=1, estimate=estimate)

    units = [unit("first", 1, "2026-11-01T00:00:00Z"), unit("last", 2, "2126-11-01T00:00:00Z")]
    [found] = with_estimates([row], units)
    assert found.estimate == units[1].estimate
    assert re.fullmatch(r"~\d+y.*", START.cell(found))
    [elsewhere] = with_estimates([row], ())
    assert (elsewhere.estimate, START.cell(elsewhere)) == (None, "-")


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


def test_the_last_column_takes_several_lines_in_a_terminal() -> None:
    columns = [Column("NAME", lambda row: row[0]), Column("REASON", lambda row: row[1])]
    rows = [("a", " ".join(["0/28 nodes fit"] * 8)), ("bb", "short")]
    found = table(columns, rows, width=80).splitlines()
    assert max(map(len, found)) <= 80
    assert [line[:6] for line in found] == ["NAME  ", "a     ", "      ", "bb    "]
    assert " ".join(line[6:] for line in found[1:3]) == rows[0][1]
    assert len(table(columns, rows).splitlines()) == len(table(columns, rows, width=20).splitlines()) == 3


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


def test_fit_lists_the_nodes_with_as_many_free_gpus(run: Run, client: Client) -> None:
    status, out, err = run("fit", "1", "-o", "json")
    found = json.loads(out)
    assert err == ""
    assert status == (0 if found["fits"] else 1)
    free: dict[str, int] = {}
    for gpu in client.gpus(state="free"):
        free[gpu.node] = free.get(gpu.node, 0) + 1
    names = run("fit", "1", "-o", "name")[1].split()
    assert {name.removeprefix("node/") for name in names} <= free.keys() | {n["node"] for n in found["nodes"]}
    status, out, err = run("fit", "1000", "--model", "H100")
    assert (status, out) == (1, "")
    assert "No node has 1000 free H100 GPUs" in err or "There are no nodes with H100 GPUs." in err


def test_fit_says_when_a_pod_of_a_namespace_would_start(run: Run) -> None:
    status, out, _ = run("fit", "1", "-n", "nlp", "-o", "json")
    found = json.loads(out)
    assert (status, found["fits"]) in ((0, True), (1, False))
    assert (found["start"] is None) == found["fits"]
    status, out, err = run("fit", "1000", "-n", "nlp")
    assert status == 1
    assert "No node has 1000 free GPUs" in err
    assert "A pod of namespace nlp would wait: 0/" in out
    assert "a node with 1000 GPUs; there is none, not counting GPUs that are faulty" in out


def test_fit_counts_runs_and_islands() -> None:
    found = types.GpuMap(
        quantity="utilization",
        unit="%",
        taken_at=0.0,
        nodes=["a", "b", "c"],
        counts=[4, 4, 2],
        models=["NVIDIA_H100_80GB_HBM3", "NVIDIA_L40S"],
        model_of=[0, 0, 1],
        indexes=[0, 1, 2, 3, 0, 1, 2, 3, 0, 1],
        values=[None] * 10,
        marks="ffhf" + "ffff" + "ff",
        islands="0011" + "0011" + "--",
    )
    nodes = capacities(found, "h100")
    assert [(n.node, n.free, n.contiguous, n.island) for n in nodes] == [("a", 3, 2, 2), ("b", 4, 4, 2)]
    assert [n.node for n in fitting(nodes, 3, "any")] == ["a", "b"]
    assert [n.node for n in fitting(nodes, 3, "contiguous")] == ["b"]
    assert sentence(nodes, 3, "any", "H100") == "2 nodes have 3 or more free H100 GPUs."
    assert sentence(nodes, 3, "island", "H100") == (
        "No node has 3 free H100 GPUs of one island; the most is 2 on a."
    )
    assert sentence([], 1, "any", "V100") == "There are no nodes with V100 GPUs."


def test_a_report_adds_up_and_has_the_formats_of_the_server(run: Run, demo: Demo, tmp_path: Path) -> None:
    status, out, err = run("report", "--group-by", "label:team", "-o", "json")
    assert (status, err) == (0, "")
    report = json.loads(out)
    month = report["period"]
    assert report["group_by"] == "label:team"
    text = run("report", month)[1]
    assert text.splitlines()[0].startswith(f"Cluster demo, {month}, by namespace (")
    usage, _, faults = text.partition("\n\n")
    assert usage.splitlines()[-1].split()[0] == "TOTAL"
    assert faults.startswith("Faults: ")
    assert run("report", month, "-o", "csv")[1].startswith("row,name,namespace")
    assert run("report", month, "-o", "csv", "-f", str(tmp_path / "r.csv"))[:2] == (0, "")
    assert (tmp_path / "r.csv").read_text().startswith("row,name,namespace")
    assert "parameter period" in run("report", "yesterday")[2]


@pytest.mark.parametrize("name", ["html", "pdf"])
def test_a_report_to_print_is_the_usage_page(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["report", "-o", name])
    assert f"there is no format {name}; print the usage page of the dashboard" in capsys.readouterr().err


def test_explain_asks_the_server(run: Run, demo: Demo) -> None:
    claim = next(row for row in demo.get("api/claims?pageSize=1000")["data"] if row["phase"] == "Bound")
    status, out, err = run("explain", "claim", claim["name"], "-n", claim["namespace"])
    assert (status, err) == (0, "")
    assert "allocated: " in out
    pod = claim["allocations"][0]["podName"]
    status, out, _ = run("explain", "pod", pod, "-n", claim["namespace"], "-o", "json")
    assert (status, json.loads(out)["waiting"]) == (0, False)
    assert run("explain", "pod", "none")[2] == "gpufleet explain: there is no pod none in namespace default\n"


def test_a_server_in_a_cluster_is_reached_through_kubectl(
    run: Run, demo: Demo, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    kubectl = tmp_path / "kubectl"
    port = demo.address.rstrip("/").rpartition(":")[2]
    kubectl.write_text(
        f"""#!/bin/sh
echo "$@" >> {tmp_path}/calls
case "$*" in
*port-forward*) echo "Forwarding from 127.0.0.1:{port} -> 8080"; exec sleep 60;;
*) echo '{{"users": [{{"user": {{"token": "secret"}}}}]}}';;
esac
"""
    )
    kubectl.chmod(0o755)
    monkeypatch.delenv("GPUFLEET_SERVER")
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    status, out, err = run("get", "nodes", "--context", "prod", "--service", "fleet/api")
    assert (status, err, len(out.splitlines())) == (0, "", 5)
    forward, token = (tmp_path / "calls").read_text().splitlines()
    assert forward == "--context=prod port-forward --address=127.0.0.1 --namespace=fleet service/api :http"
    assert token.startswith("--context=prod config view --minify --raw")
    kubectl.write_text(
        "#!/bin/sh\necho 'Error from server (NotFound): services \"api\" not found' >&2; exit 1\n"
    )
    status, _, err = run("get", "nodes", "--service", "fleet/api")
    assert status == 1
    assert "kubectl can't reach the service fleet/api: Error from server (NotFound)" in err
    assert "give another with --service NAMESPACE/NAME, or an address with --server" in err


def test_without_a_server_the_commands_say_what_to_give(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("GPUFLEET_SERVER")
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setattr("gpufleet.terminal.connection._listens", lambda address: False)
    assert run("get", "nodes") == (
        2,
        "",
        "gpufleet get: no server: give --server URL or set GPUFLEET_SERVER; start one with `gpufleet demo` to try it\n",
    )


def _blocks(page: str, language: str) -> list[str]:
    text = (Path(__file__).parents[2] / page).read_text()
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def _commands() -> list[str]:
    """Return the commands of the pages that show the data of the demo."""
    lines = [
        line
        for page in ("docs/cli.md", "README.md")
        for text in _blocks(page, "bash")
        for line in text.splitlines()
    ]
    commands = [line.partition("#")[0].strip() for line in lines]
    return [each for each in commands if re.match(r"gpufleet (get|fit|report) ", each)]


@pytest.mark.parametrize("command", dict.fromkeys(_commands()))
def test_the_commands_of_the_pages_work_on_the_demo(run: Run, command: str) -> None:
    status, out, err = run(*shlex.split(command)[1:])
    if command.startswith("gpufleet fit") and status == 1:
        assert err.startswith(("No node has", "There are no nodes")) or '"fits": false' in out
    else:
        assert status == 0, err


def test_the_python_example_works(
    demo: Demo, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    module = ModuleType("pandas")
    module.DataFrame = list  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "pandas", module)
    (code,) = _blocks("docs/cli.md", "python")
    names: dict[str, object] = {}
    exec(code.replace("http://127.0.0.1:8080", demo.address), names)
    assert int(capsys.readouterr().out.split()[0]) > 0
    assert isinstance(names["frame"], list)
