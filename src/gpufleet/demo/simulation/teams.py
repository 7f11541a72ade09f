"""Teams and projects that use a simulated fleet."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Team:
    """A team with a namespace, a cost center and users."""

    name: str
    namespace: str
    cost_center: str
    users: tuple[str, ...]


@dataclass(frozen=True)
class Project:
    """A workload that teams run repeatedly."""

    name: str
    load: str
    """training, serving, batch or idle."""
    image: str
    command: str
    teams: tuple[str, ...] = ()
    """Names of the teams that run it; all teams if empty."""


TEAMS = (
    Team("nlp", "nlp-research", "CC-4101", ("amara", "jonas", "li-wei")),
    Team("vision", "vision", "CC-4102", ("priya", "tomas")),
    Team("speech", "speech", "CC-4103", ("noor", "felix")),
    Team("recsys", "recsys-prod", "CC-5200", ("mei", "oleg", "sara")),
    Team("robotics", "robotics", "CC-4107", ("kenji", "lucia")),
    Team("platform", "ml-platform", "CC-1000", ("dana", "ravi")),
)

_TORCH, _VLLM = "pytorch/pytorch:2.8.0-cuda12.9-cudnn9-runtime", "vllm/vllm-openai:v0.11.0"

PROJECTS = (
    Project("llm-70b-pretrain", "training", _TORCH, "torchrun pretrain.py --model 70b", ("nlp",)),
    Project("llm-8b-finetune", "training", _TORCH, "torchrun finetune.py --model 8b", ("nlp", "platform")),
    Project("vit-huge", "training", _TORCH, "torchrun train_vit.py --size huge", ("vision",)),
    Project("diffusion-xl", "training", _TORCH, "accelerate launch train_diffusion.py", ("vision",)),
    Project("speech-encoder", "training", _TORCH, "torchrun train_asr.py", ("speech",)),
    Project("two-tower", "training", _TORCH, "torchrun train_retrieval.py", ("recsys",)),
    Project("policy-ppo", "training", _TORCH, "python train_policy.py", ("robotics",)),
    Project("eval-suite", "batch", _TORCH, "python evaluate.py --all", ("nlp", "vision", "speech")),
    Project("embed-corpus", "batch", _TORCH, "python embed.py --shard auto", ("recsys", "nlp")),
    Project("sim-rollouts", "batch", _TORCH, "python rollout.py --episodes 5000", ("robotics",)),
    Project("quantize", "batch", _TORCH, "python quantize.py --bits 4", ("platform",)),
    Project("chat-api", "serving", _VLLM, "vllm serve chat-70b", ("platform", "nlp")),
    Project("ranker", "serving", _VLLM, "python serve_ranker.py", ("recsys",)),
    Project("transcribe", "serving", _VLLM, "vllm serve speech-large", ("speech",)),
    Project("image-search", "serving", _VLLM, "python serve_clip.py", ("vision",)),
    Project("notebook", "idle", "quay.io/jupyter/pytorch-notebook:cuda12", "jupyter lab"),
    Project("scratch", "idle", _TORCH, "sleep infinity"),
)


def team_of(project: Project, number: int) -> Team:
    """Return the team that runs a project in a slot."""
    teams = [team for team in TEAMS if not project.teams or team.name in project.teams]
    return teams[number % len(teams)]
