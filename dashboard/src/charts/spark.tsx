// A sparkline.

export function sparkPath(values: readonly number[], width: number, height: number): string {
  if (values.length < 2) return "";
  const top = Math.max(...values, 1e-9);
  const step = width / (values.length - 1);
  return values
    .map(
      (value, place) =>
        `${place ? "L" : "M"}${(place * step).toFixed(1)} ${(height - 1.5 - (value / top) * (height - 4)).toFixed(1)}`,
    )
    .join("");
}

export function Spark(props: { values: readonly number[]; label: string }) {
  const path = sparkPath(props.values, 96, 34);
  if (!path) return null;
  return (
    <svg
      class="spark"
      viewBox="0 0 96 34"
      preserveAspectRatio="none"
      role="img"
      aria-label={props.label}
    >
      <path class="fill" d={`${path}L96 34L0 34Z`} />
      <path d={path} />
    </svg>
  );
}
