import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpufleet.errors import SettingsError
from gpufleet.model.reading import TrainingPoint
from gpufleet.training.log_reader import MAX_LINE_LENGTH, MAX_POINTS_PER_LINE, LogReader
from gpufleet.training.user_patterns import compile_user_patterns

LOGS = Path(__file__).parent / "logs"


def text_of(name: str) -> str:
    """Return a sample log with its carriage returns."""
    return (LOGS / name).read_bytes().decode()


def read(name: str) -> list[dict[str, float]]:
    """Return the numbers of each line of a sample log that contains any."""
    reader, found = LogReader(), []
    for number, line in enumerate(text_of(name).split("\n")):
        points = reader.read(line, float(number))
        assert all(point.time == number for point in points)
        if points:
            found.append({point.metric: point.value for point in points})
    return found


def test_megatron_lines_give_time_in_seconds_and_tflops_of_one_gpu() -> None:
    first, second = read("megatron.log")
    assert first == {
        "step": 5,
        "consumed_samples": 5120,
        "step_time": pytest.approx(5.2104),
        "tflops": 412.7,
        "learning_rate": 1.25e-06,
        "global_batch_size": 1024,
        "loss": 11.04211,
        "loss_scale": 1.0,
        "grad_norm": 18.231,
    }
    assert (second["step"], second["loss"]) == (10, 10.8339)


def test_primus_lines_give_the_numbers_of_the_step_and_not_the_running_means() -> None:
    old, new = read("primus.log")
    assert old["tflops"] == 567.6
    assert old["tokens_per_second_per_gpu"] == 9801.4
    assert old["step_time"] == pytest.approx(13.3728)
    assert (new["tflops"], new["tokens_per_second_per_gpu"]) == (568.2, 9811.0)
    line = text_of("primus.log").split("\n")[1]
    assert {point.rank for point in LogReader().read(line, 0.0)} == {7}


def test_deepspeed_lines() -> None:
    assert read("deepspeed.log") == [
        {"step": 10, "learning_rate": 4.998e-05},
        {"step": 10, "samples_per_second": 25.7042},
        {"step": 20, "samples_per_second": 227.48},
        {"step": 30, "loss": 5.2301, "step_time": 1.234, "samples_per_second": 207.456},
    ]


def test_hugging_face_dictionaries_with_numbers_or_texts() -> None:
    train, evaluation, texts, end = read("huggingface.log")
    assert train == {"loss": 2.5411, "grad_norm": 1.8712, "learning_rate": 4.95e-05, "epoch": 0.01}
    assert evaluation["eval_accuracy"] == 0.4321
    assert texts == {"loss": 2.1, "grad_norm": 1.5, "learning_rate": 4.9e-05, "epoch": 0.6}
    assert end == {
        "train_runtime": 1000.1,
        "samples_per_second": 45.6,
        "steps_per_second": 5.7,
        "epoch": 1.0,
    }


def test_lightning_bars_yield_each_state_once() -> None:
    reader = LogReader()
    bars = reader.read(text_of("lightning.log").split("\n")[0], 1.0)
    assert [point.value for point in bars if point.metric == "loss"] == [0.123, 0.121]
    assert {point.metric for point in bars} == {"epoch", "steps_per_second", "loss", "val_acc"}
    _, rich, nemo = read("lightning.log")
    assert rich == {"epoch": 4, "steps_per_second": 21.3, "loss": 0.25}
    assert nemo == {
        "epoch": 0,
        "loss": 6.13,
        "step": 50,
        "consumed_samples": 76800,
        "step_time": 5.9,
        "val_loss": 6.25,
    }


def test_the_csv_of_lightning() -> None:
    assert read("lightning_metrics.csv") == [
        {"epoch": 0, "step": 49, "loss": 0.691},
        {"epoch": 0, "step": 49, "lr-Adam": 0.001},
        {"epoch": 0, "step": 99, "val_loss": 0.655},
    ]


def test_interleaved_ranks_are_kept_apart() -> None:
    reader = LogReader()
    text = text_of("torchtitan.log")
    points = [point for line in text.splitlines() for point in reader.read(line, 1.0)]
    rates = {point.rank: point.value for point in points if point.metric == "tokens_per_second_per_gpu"}
    assert rates == {0: 57729, 1: 57801}
    assert {round(point.value, 4) for point in points if point.metric == "mfu"} == {0.0796, 0.0797}


@pytest.mark.parametrize("size", [1, 7, 64, 100_000])
def test_pieces_of_any_size_give_the_same_points(size: int) -> None:
    text = text_of("megatron.log")
    whole = [point for line in text.split("\n") for point in LogReader().read(line, 1.0)]
    reader, found = LogReader(), []
    for first in range(0, len(text), size):
        found += reader.feed(text[first : first + size], 1.0)
    assert found == whole


@given(st.text(max_size=300))
@settings(max_examples=100, deadline=None)
def test_any_text_is_taken_and_gives_finite_numbers(text: str) -> None:
    assert all(abs(point.value) < float("inf") for point in LogReader().read(text, 0.0))


def test_an_endless_line_takes_bounded_memory() -> None:
    reader = LogReader()
    for _ in range(100):
        assert reader.feed("x" * 10_000, 0.0) == []
    assert len(reader._incomplete) <= MAX_LINE_LENGTH
    many = "{" + ", ".join(f"'m{n}': {n}" for n in range(150)) + ", 'epoch': 1}"
    assert len(LogReader().read(many, 0.0)) == MAX_POINTS_PER_LINE


def test_user_patterns_come_first() -> None:
    reader = LogReader(
        compile_user_patterns([r"^update (?P<step>\d+) xent=(?P<loss>[\d.]+) on (?P<rank>\d+)"])
    )
    assert sorted(reader.read("update 7 xent=0.5 on 3", 2.0)) == [
        TrainingPoint("loss", 0.5, 2.0, 3),
        TrainingPoint("step", 7, 2.0, 3),
    ]


@pytest.mark.parametrize(
    ("expression", "why"),
    [
        ("(?P<loss>", "missing"),
        (r"loss [\d.]+", "needs a named group"),
        (r"(?P<loss>\d+)(?=x)", "no lookaround"),
        (r"(?P<loss>\d)\1", "no backreferences"),
        ("(?P<loss>x{1,100}){1,100}", "invalid repetition size"),
        ("(?P<a>" + "x" * 2000 + ")", "longer than"),
    ],
)
def test_an_invalid_pattern_is_refused(expression: str, why: str) -> None:
    with pytest.raises(SettingsError, match=why):
        compile_user_patterns([expression])


@pytest.mark.parametrize(
    ("expression", "line", "loss"),
    [
        (r"^(?:a|aa)+(?P<loss>\d)$", "a" * 2000, "a" * 2000 + "7"),
        (r"(?P<loss>\d+).*.*.*.*.*x", "1" * 2000, "7 x"),
        (r"(?:a{1,16}){1,16}(?P<loss>\d)", "a" * 2000, "aaa7"),
        (r"(?P<loss>(\d+)+)$", "1" * 2000 + "x", "7"),
        (r"^(?P<loss>(?:\d|\d\d?)*)$", "1" * 2000 + "x", "7"),
    ],
)
def test_no_pattern_takes_long_on_any_line(expression: str, line: str, loss: str) -> None:
    reader = LogReader(compile_user_patterns([expression]))
    started = time.process_time()
    for number in range(10):
        reader.read(f"{line} {number}", 1.0)
    assert time.process_time() - started < 1.0
    assert reader.read(loss, 2.0) == [TrainingPoint("loss", 7.0, 2.0)]


def test_a_progress_bar_without_line_end_is_read_while_it_redraws() -> None:
    reader, losses = LogReader(), []
    for step in range(1000):
        drawn = f"\rEpoch 0:  10%|#   | {step}/9000 [01:23<01:41,  5.42it/s, v_num=0, train_loss={step}.5]"
        losses += [point.value for point in reader.feed(drawn, 1.0) if point.metric == "loss"]
    assert losses == [step + 0.5 for step in range(999)]
    whole = LogReader()
    text = "".join(
        f"\rEpoch 0:  10%|# | {n}/90 [01:23<01:41,  5.4it/s, train_loss={n}.5]" for n in range(200)
    )
    assert len({point.value for point in whole.feed(text, 1.0) if point.metric == "loss"}) == 199
