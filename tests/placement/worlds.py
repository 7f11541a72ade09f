"""Random small clusters and requests for property tests."""

from hypothesis import strategies as st

from gpufleet.placement import (
    CandidateGpu,
    CandidateMigInstance,
    CandidateNode,
    Exclusivity,
    Policy,
    Request,
    Topology,
)

MODELS = ("A100", "H100")


@st.composite
def gpus(draw: st.DrawFn, gpu_id: int) -> CandidateGpu:
    profiles = draw(st.sampled_from([(), (), (), (), ("1g.10gb",), ("1g.10gb", "1g.10gb", "2g.20gb")]))
    return CandidateGpu(
        gpu_id,
        health=draw(st.sampled_from(["Healthy"] * 8 + ["Unhealthy", "Unknown"])),
        island=draw(st.sampled_from(["left", "left", "right", None])),
        bandwidth_gbps=draw(st.sampled_from([64, 600, 600])),
        model=draw(st.sampled_from(MODELS)),
        cordoned=draw(st.sampled_from([False] * 9 + [True])),
        taken=draw(st.sampled_from([False] * 9 + [True])),
        mig=tuple(CandidateMigInstance(f"{gpu_id}-{at}", profile) for at, profile in enumerate(profiles)),
    )


@st.composite
def nodes(draw: st.DrawFn, name: str = "node-a", most: int = 9) -> CandidateNode:
    ids = draw(st.lists(st.integers(0, most), max_size=most, unique=True))
    return CandidateNode(
        name,
        tuple(draw(gpus(gpu_id)) for gpu_id in ids),
        labels=draw(st.sampled_from([{}, {"zone": "x"}, {"zone": "y"}])),
        cordoned=draw(st.sampled_from([False] * 9 + [True])),
        cpu_milli=draw(st.sampled_from([None, 4000, 16000])),
        memory_mib=draw(st.sampled_from([None, 8192, 65536])),
    )


@st.composite
def requests(draw: st.DrawFn, exclusivities: tuple[Exclusivity, ...] = tuple(Exclusivity)) -> Request:
    exclusivity = draw(st.sampled_from(exclusivities))
    return Request(
        count=draw(st.integers(1, 5)),
        policy=draw(st.sampled_from(list(Policy))),
        prefer_ids=tuple(draw(st.lists(st.integers(0, 9), max_size=4, unique=True))),
        exclusivity=exclusivity,
        share_milli=draw(st.sampled_from([10, 100, 300, 500, 1000])),
        mig_profile="1g.10gb" if exclusivity is Exclusivity.MIG else "",
        topology=draw(st.sampled_from(list(Topology))),
        min_bandwidth_gbps=draw(st.sampled_from([0, 64, 600])),
        models=draw(st.sampled_from([frozenset(), frozenset(), frozenset({"A100"})])),
        match_labels=draw(st.sampled_from([frozenset(), frozenset(), frozenset({("zone", "x")})])),
        cpu_milli=draw(st.sampled_from([0, 1000, 6000])),
        memory_mib=draw(st.sampled_from([0, 1024, 9000])),
    )


@st.composite
def clusters(draw: st.DrawFn) -> list[CandidateNode]:
    return [draw(nodes(f"node-{letter}", most=5)) for letter in draw(st.permutations("abcd"))]
