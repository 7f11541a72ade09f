"""The rows that usage is summed from: days in UTC where the span consists of such days, or else hours."""


def usage_rows(grouping: str, first: int, after: int) -> str:
    """Return the relation with the use of each member of a grouping, for a span of hour numbers."""
    if first % 24 == after % 24 == 0:
        return f"(SELECT * FROM usage_day WHERE grouping = '{grouping}')"  # noqa: S608
    return f"""(
        SELECT cluster, hour, {grouping} AS member, allocated, idle, cost::numeric AS cost, energy,
            CASE WHEN utilization IS NULL THEN 0 ELSE allocated END AS measured,
            coalesce(allocated * utilization::numeric, 0) AS used
        FROM {grouping}_hour
    )"""  # noqa: S608
