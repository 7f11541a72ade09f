// A table header that sorts the table.
import { setQuery } from "../state/route";
import { sortText, type Sort } from "../state/sort";

interface Props {
  field: string;
  words: string;
  sort: Sort;
  /** The default order. */
  otherwise: string;
  /** Whether the first click sorts in descending order. */
  down?: boolean;
  right?: boolean;
  /** The query parameter of the page number, reset by a new order. */
  page?: string;
}

export function SortHead(props: Props) {
  const on = props.sort.field === props.field;
  const next = { field: props.field, down: on ? !props.sort.down : !!props.down };
  const text = sortText(next);
  const arrow = (
    <span class="arrow" aria-hidden="true">
      {on ? (props.sort.down ? "↓" : "↑") : ""}
    </span>
  );
  return (
    <th
      class={props.right ? "right" : ""}
      {...(on
        ? { "aria-sort": props.sort.down ? ("descending" as const) : ("ascending" as const) }
        : {})}
    >
      <button
        type="button"
        onClick={() =>
          setQuery({
            sort: text === props.otherwise ? undefined : text,
            [props.page ?? "page"]: undefined,
          })
        }
      >
        {props.right && arrow}
        {props.words}
        {!props.right && arrow}
      </button>
      {/* Browsers do not repeat buttons in the table header of each printed page. */}
      <span class="print-only" aria-hidden="true">
        {props.words}
      </span>
    </th>
  );
}
