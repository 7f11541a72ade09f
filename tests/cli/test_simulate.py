import json
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from gpufleet.cli import main

TRACE = Path(__file__).parents[2] / "examples" / "trace"
LISTS = ["--nodes", str(TRACE / "nodes.csv"), "--pods", str(TRACE / "pods.csv")]


def test_the_example_trace_is_replayed_into_a_table_and_a_chart(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    plot = tmp_path / "out.svg"
    assert main(["simulate", *LISTS, "--policy", "default,random", "--plot", str(plot)]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert shown[0].split() == [
        "POLICY", "GPU_ALLOCATION_%", "FRAGMENTED_%", "DROPPED", "DROPPED_CPU_ONLY_%", "DECISIONS/S",
    ]  # fmt: skip
    assert [line.split()[0] for line in shown[1:3]] == ["default", "random"]
    assert any(line.startswith("FAILED") for line in shown)
    drawn = ET.parse(plot).getroot()
    assert len(drawn.findall("{http://www.w3.org/2000/svg}polyline")) == 2


def test_json_has_the_figures_at_the_top_and_every_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", *LISTS, "--seed", "42-43", "--load", "1.3", "-o", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["policy"] == "default"
    assert found["seeds"] == [42, 43]
    first, second = (run["gpu_allocation_percent"] for run in found["runs"])
    assert found["gpu_allocation_percent"] == pytest.approx((first + second) / 2, abs=1e-3)
    assert 80 < found["gpu_allocation_percent"] <= 100
    assert set(found["failures_by_size"]) <= {"cpu", "share", "1 gpu", "2 gpu", "4 gpu", "8 gpu"}
    assert found["decisions_per_second"] > 0
    assert found["fragmentation_percent"] >= 0


def test_the_default_policy_allocates_more_than_random_choice(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", *LISTS, "--policy", "default,random", "--seed", "1-3", "-o", "json"]) == 0
    ours, random = json.loads(capsys.readouterr().out)["policies"]
    assert ours["gpu_allocation_percent"] > random["gpu_allocation_percent"]


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--nodes", "/nowhere.csv", "--pods", "x"], "can't read /nowhere.csv: No such file"),
        (["--nodes", str(TRACE / "README.md"), "--pods", "x"], "a node needs a name in column sn"),
    ],
)
def test_a_list_that_cannot_be_read_is_named(
    words: list[str], why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["simulate", *words]) == 1
    assert why in capsys.readouterr().err


@pytest.mark.parametrize("wrong", [["--policy", "best"], ["--seed", "9-3"], ["--load", "0"]])
def test_wrong_flags_say_what_they_take(wrong: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["simulate", *LISTS, *wrong])
    assert stopped.value.code == 2
    assert wrong[1] in capsys.readouterr().err


def timed_trace(folder: Path) -> Path:
    rows = [
        f"t{at},{1 + at % 4},1000,{'LS' if at % 3 else 'BE'},{at * 60},{at * 60 + 9_000},{at * 60}"
        for at in range(60)
    ]
    file = folder / "timed.csv"
    head = "name,num_gpu,gpu_milli,qos,creation_time,deletion_time,scheduled_time"
    file.write_text("\n".join([head, *rows]))
    return file


GENERATED = ["simulate", "--generate", "2x8", "--since", "2d", "--load", "1.2", "--quiet"]


def test_a_guarantee_is_reclaimed_in_a_simulation(capsys: pytest.CaptureFixture[str]) -> None:
    preemptions = {}
    for words in ([], ["--guarantee", "production=8"]):
        assert main([*GENERATED, "-o", "json", "--weight", "research=2", *words]) == 0
        [scenario] = json.loads(capsys.readouterr().out)["scenarios"]
        preemptions[len(words)] = scenario["preemptions"]
    assert preemptions[2] > preemptions[0], "borrowed units are evicted for the guarantee"


def test_a_guarantee_above_the_limit_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*GENERATED, "--guarantee", "production=8", "--limit", "production=4"]) != 0
    assert "--guarantee production: it must not exceed the limit of 4 GPUs" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--limit", "productoin=8"], "--limit productoin: no such queue; there are production, research"),
        (["--trace", "x.csv"], "give one of --trace, --from-ledger and --generate"),
        (["--pods", "x.csv"], "--pods has no effect with --generate"),
        (["--nodes", "x.csv"], "--nodes has no effect with --generate"),
        (["--plot", "x.svg"], "--plot has no effect with --generate"),
        (["--cluster", "x"], "--cluster has no effect with --generate"),
        (["--repair", "1h"], "--repair has no effect without --node-mtbf"),
        (["--price", "B200=2"], "--price B200: no such model; there are H100"),
        (["--scale-nodes", "1,0.1"], "--scale-nodes 0.1: no node of 2 would be left"),
        (["--html", "/nowhere/x.html"], "--html /nowhere/x.html: there is no directory /nowhere"),
    ],
)
def test_flags_that_would_have_no_effect_are_refused(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*GENERATED, *words]) != 0
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("words", [["--rules", "all"], ["--html", "x.html"], ["--since", "2d"]])
def test_a_replay_without_times_refuses_flags_of_simulations_over_time(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["simulate", *LISTS, *words]) != 0
    assert f"{words[0]} has no effect with --pods" in capsys.readouterr().err


def test_a_short_name_stands_for_the_model_of_the_fleet(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    nodes, trace = tmp_path / "nodes.csv", tmp_path / "trace.csv"
    nodes.write_text("sn,gpu,model\na,1,NVIDIA_H100_80GB_HBM3\n")
    tasks = "".join(f"t{at},1,1000,NVIDIA_H100_80GB_HBM3,0,3600,0\n" for at in range(2))
    head = "name,num_gpu,gpu_milli,gpu_spec,creation_time,deletion_time,scheduled_time\n"
    trace.write_text(head + tasks)
    words = ["simulate", "--nodes", str(nodes), "--trace", str(trace), "--quiet"]
    assert main([*words, "-o", "json", "--price", "H100=2", "--add-nodes", "1:1:H100"]) == 0
    [scenario] = json.loads(capsys.readouterr().out)["scenarios"]
    assert scenario["wait_seconds"]["mean"] == 0
    assert scenario["cost"] == pytest.approx(4.0, rel=0.01)
    assert main([*words, "--add-nodes", "1:1:L40S"]) != 0
    assert "no unit takes such GPUs; name one of NVIDIA_H100_80GB_HBM3" in capsys.readouterr().err


def test_scenarios_side_by_side_show_how_far_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "--generate", "2x8", "--since", "1d", "--seed", "1-2"]) == 0
    shown = capsys.readouterr().err.splitlines()
    assert shown[-1] == "2 of 2 scenarios done"


def test_a_ledger_that_does_not_exist_is_not_created(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DATABASE_URL", raising=False)
    folder = tmp_path / "none"
    assert main(["simulate", "--from-ledger", "--data", str(folder)]) != 0
    assert "no server has recorded anything there" in capsys.readouterr().err
    assert not folder.exists()


def test_a_trace_with_times_compares_rules_and_fleets_side_by_side(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    drawn = tmp_path / "out.html"
    words = ["--nodes", str(TRACE / "nodes.csv"), "--trace", str(timed_trace(tmp_path))]
    more = ["--scale-nodes", "0.1,0.5", "--price", "=2", "--reservations", "off", "--html", str(drawn)]
    assert main(["simulate", *words, *more, "-o", "json", "--quiet"]) == 0
    small, large = json.loads(capsys.readouterr().out)["scenarios"]
    assert (small["scenario"], large["scenario"]) == ("0.1x nodes", "0.5x nodes")
    assert small["nodes"] == 4
    assert small["wait_seconds"]["mean"] > large["wait_seconds"]["mean"]
    assert set(small["wait_by_queue"]) == {"BE", "LS"}
    assert small["cost"] == pytest.approx(2 * small["allocated_gpu_hours"], rel=1e-3)
    assert drawn.read_text().startswith("<!doctype html>")


def test_a_generated_load_shows_its_waits_as_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "--generate", "4x8", "--since", "1d", "--node-mtbf", "2d", "--quiet"]) == 0
    shown = capsys.readouterr().out
    assert shown.split()[0] == "SCENARIO"
    assert "BY QUEUE" in shown


def test_every_seed_generates_a_load_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--generate", "2x8", "--since", "1d", "--seed", "1-2", "-o", "json", "--quiet"]
    assert main(["simulate", *words]) == 0
    first, second = json.loads(capsys.readouterr().out)["scenarios"]
    assert (first["scenario"], second["scenario"]) == ("seed 1", "seed 2")
    assert first["gpu_hours_by_queue"] != second["gpu_hours_by_queue"]


@pytest.mark.parametrize("wrong", [["--trace", "x.csv"], []])
def test_missing_input_is_named(wrong: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", *wrong]) == 2
    assert "--nodes" in capsys.readouterr().err


@pytest.mark.parametrize(
    "wrong", [["--since", "x"], ["--since", "0d"], ["--weight", "a=0"], ["--generate", "8"], ["--rules", "a"]]
)
def test_wrong_flags_of_simulations_over_time_say_what_they_take(
    wrong: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["simulate", *wrong])
    assert stopped.value.code == 2
    assert wrong[1] in capsys.readouterr().err
