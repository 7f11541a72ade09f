// The head of a column that sorts its list.
import { setQuery } from "../state/route";
import { sortText, type Sort } from "../state/sort";

interface Props {
  field: string;
  words: string;
  sort: Sort;
  /** The order of the list if the address says nothing. */
  otherwise: string;
  /** Whether the first click puts the largest on top. */
  down?: boolean;
  right?: boolean;
  /** The page number in the address, which a new order begins anew. */
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
    </th>
  );
}
