"""Say why a Slurm job is pending, and what to do about it.

Slurm has a word for it, such as `Resources` or `QOSMaxGRESPerUser`. The sentence ends with that word, so that it can be
searched in Slurm's manual. The start that Slurm's backfill scheduler expects is added where Slurm reports one.
"""

from datetime import UTC, datetime

from gpufleet.model.workload import Status
from gpufleet.sources.slurm.jobs import SlurmJob

_SENTENCES = {
    "Resources": "waits for free resources in partition {partition}",
    "Priority": "jobs of higher priority are ahead of it in partition {partition}",
    "Dependency": "waits for the jobs that it depends on",
    "DependencyNeverSatisfied": "a job that it depends on failed: cancel it, or change its dependency",
    "BeginTime": "its begin time has not come",
    "Reservation": "waits for its reservation to begin",
    "Licenses": "waits for a license",
    "JobHeldUser": "its owner holds it: scontrol release {id}",
    "JobHeldAdmin": "an administrator holds it",
    "JobArrayTaskLimit": "its array runs as many tasks at once as it allows",
    "ReqNodeNotAvail": "a node that it requires is down, drained or reserved",
    "BadConstraints": "no node meets its constraints: change them, or cancel it",
    "PartitionDown": "partition {partition} is down",
    "PartitionInactive": "partition {partition} is inactive",
    "PartitionNodeLimit": "it requests more nodes than partition {partition} allows",
    "PartitionTimeLimit": "its time limit is longer than partition {partition} allows",
}
_LIMITS = (("QOS", "a limit of its QOS is reached"), ("Assoc", "a limit of its account or user is reached"))
"""By the beginning of the reason: there is one for each resource and scope."""

_ROUND_S = 300
"""Expected starts are rounded up to this, because they move with every round of the backfill scheduler."""


def waiting_reason(job: SlurmJob) -> str:
    """Return why a pending job waits; empty for other jobs, and if Slurm gives no reason."""
    if job.status is not Status.PENDING or job.reason in ("", "None"):
        return ""
    word = job.reason.partition(",")[0]  # ReqNodeNotAvail, UnavailableNodes:gpu-[1-4]
    limits = (sentence for start, sentence in _LIMITS if word.startswith(start))
    sentence = _SENTENCES.get(word) or next(limits, "")
    if not sentence:
        text = f"Slurm's reason is {job.reason}"
    else:
        text = f"{sentence.format(partition=job.partition, id=job.id)} (Slurm: {job.reason})"
    expected = expected_start(job)
    if not expected:
        return text
    return f"{text}; Slurm expects it to start by {datetime.fromtimestamp(expected, UTC):%Y-%m-%d %H:%M} UTC"


def expected_start(job: SlurmJob) -> float:
    """Return when Slurm expects a pending job to start, rounded up; 0 if it does not say."""
    return -(-job.expected_start // _ROUND_S) * _ROUND_S if job.status is Status.PENDING else 0.0
