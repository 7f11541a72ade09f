// Line icons on a 16 px grid.
const PATHS = {
  overview: "M2.5 2.5h4.5v6H2.5zM9 2.5h4.5v3.5H9zM9 8h4.5v5.5H9zM2.5 10.5h4.5v3H2.5z",
  nodes: "M2.5 3h11v4h-11zM2.5 9h11v4h-11zM5 5h.01M5 11h.01",
  workloads: "M8 1.8l5.5 3v6.4L8 14.2l-5.5-3V4.8zM2.5 4.8L8 8l5.5-3.2M8 8v6.2",
  usage: "M2.5 13.5h11M4 13.5V8M8 13.5v-11M12 13.5V6",
  scheduling: "M2.5 4h7M2.5 8h11M2.5 12h5M12 2.5v3M10 10.5v3",
  search: "M7 11.5a4.5 4.5 0 1 0 0-9 4.5 4.5 0 0 0 0 9zM10.5 10.5l3 3",
  down: "M4.5 6.5L8 10l3.5-3.5",
  left: "M10 4L6 8l4 4",
  right: "M6 4l4 4-4 4",
  sun: "M8 11a3 3 0 1 0 0-6 3 3 0 0 0 0 6zM8 1.5v1M8 13.5v1M1.5 8h1M13.5 8h1M3.4 3.4l.7.7M11.9 11.9l.7.7M3.4 12.6l.7-.7M11.9 4.1l.7-.7",
  moon: "M13.2 9.6A5.6 5.6 0 0 1 6.4 2.8a5.6 5.6 0 1 0 6.8 6.8z",
  clock: "M8 14A6 6 0 1 0 8 2a6 6 0 0 0 0 12zM8 5v3.2l2 1.3",
  alert: "M8 2.2l6 10.8H2zM8 6.5v3M8 11.3h.01",
  inbox: "M2.5 9h3l1 2h3l1-2h3M2.5 9l2-6h7l2 6v4h-11z",
  plug: "M6 2v3M10 2v3M4.5 5h7v2.5a3.5 3.5 0 0 1-7 0zM8 11v3",
  key: "M10.5 9a3.5 3.5 0 1 0-3.3-2.3L2.5 11.5v2h2v-1.5H6v-1.5h1.3l1-1",
  flask: "M6.5 2h3M7 2v4l-4 7h10L9 6V2M5 10.5h6",
  reset: "M3 8a5 5 0 1 0 1.6-3.7M3 2.5v3h3",
  print: "M4.5 6V2.5h7V6M4.5 11.5h-2V6h11v5.5h-2M4.5 9.5h7v4h-7z",
  download: "M8 2.5v7.5M5 7l3 3 3-3M2.5 13.5h11",
  bookmark: "M4.5 2.5h7v11L8 10.7l-3.5 2.8z",
  share:
    "M6.5 9.5l3-3M7 4.5l1.6-1.6a2.8 2.8 0 0 1 4 4L11 8.5M9 11.5l-1.6 1.6a2.8 2.8 0 0 1-4-4L5 7.5",
  close: "M4 4l8 8M12 4l-8 8",
  bell: "M8 2a4 4 0 0 0-4 4v3l-1.5 2.5h11L12 9V6a4 4 0 0 0-4-4zM6.5 13.5h3",
  star: "M8 2l1.8 3.8 4.2.6-3 2.9.7 4.2L8 11.5l-3.7 2 .7-4.2-3-2.9 4.2-.6z",
  code: "M5.5 4.5L2 8l3.5 3.5M10.5 4.5L14 8l-3.5 3.5",
  globe:
    "M8 14A6 6 0 1 0 8 2a6 6 0 0 0 0 12zM2 8h12M8 2c1.8 1.7 2.6 3.7 2.6 6S9.8 12.3 8 14c-1.8-1.7-2.6-3.7-2.6-6S6.2 3.7 8 2z",
  out: "M6 3H3v10h3M10 5l3 3-3 3M13 8H6",
} as const;

export type IconName = keyof typeof PATHS;

export function Icon(props: { name: IconName }) {
  return (
    <svg class="icon" viewBox="0 0 16 16" aria-hidden="true" focusable="false">
      <path
        d={PATHS[props.name]}
        fill="none"
        stroke="currentColor"
        stroke-width="1.35"
        stroke-linecap="round"
        stroke-linejoin="round"
      />
    </svg>
  );
}
