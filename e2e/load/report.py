"""Format the report of a load run."""

from collections.abc import Iterator

from e2e.load.run import Outcome

MOST_REQUESTS = 8


def table(plain: Outcome, claims: Outcome) -> Iterator[str]:
    """Yield the lines of the report."""
    yield ""
    yield f"{'':<28}{plain.name:>26}{claims.name:>26}"
    yield f"{'pods bound':<28}{plain.bound:>26}{claims.bound:>26}"
    yield f"{'until the last binding, s':<28}{plain.seconds:>26.1f}{claims.seconds:>26.1f}"
    yield f"{'pods/s':<28}{plain.rate:>26.0f}{claims.rate:>26.0f}"
    yield f"{'last status after that, s':<28}{'':>26}{claims.statuses:>26.1f}"
    yield ""
    yield "CPU seconds by process"
    for name in claims.cpu:
        yield f"  {name:<26}{plain.cpu.get(name, 0.0):>26.1f}{claims.cpu[name]:>26.1f}"
    both = [sum(outcome.cpu.values()) for outcome in (plain, claims)]
    yield f"  {'total':<26}{both[0]:>26.1f}{both[1]:>26.1f}"
    each = [
        1000 * spent / max(outcome.bound, 1) for spent, outcome in zip(both, (plain, claims), strict=True)
    ]
    yield f"  {'ms per pod':<26}{each[0]:>26.1f}{each[1]:>26.1f}"
    yield ""
    yield f"{'phases of the extender':<28}{'count':>16}{'seconds':>16}{'ms each':>12}"
    for phase, (number, seconds) in sorted(claims.phases.items(), key=lambda pair: -pair[1][1]):
        yield f"  {phase:<26}{number:>16}{seconds:>16.1f}{1000 * seconds / max(number, 1):>12.1f}"
    for outcome in (plain, claims):
        yield ""
        yield f"{f'API server, {outcome.name}':<52}{'count':>8}{'seconds':>10}{'ms each':>10}"
        for row in outcome.requests[:MOST_REQUESTS]:
            request = f"{row.client}: {row.what}"[:49]
            yield f"  {request:<50}{row.number:>8}{row.seconds:>10.1f}{1000 * row.seconds / row.number:>10.1f}"
    yield ""
