// The list of keyboard shortcuts.
import { Dialog } from "./dialog";

const SHORTCUTS: [string, string][] = [
  ["Ctrl K", "Find a page, node, workload or claim"],
  ["/", "Search in the list"],
  ["g o", "Overview"],
  ["g n", "Nodes"],
  ["g w", "Workloads"],
  ["g q", "Queue"],
  ["g s", "Scheduling"],
  ["g h", "Health"],
  ["g u", "Usage"],
  ["← ↑ → ↓", "Move over the map"],
  ["↵ w", "Open the selected GPU, its workload"],
  ["+ − 0", "Zoom the map; show all of it"],
  ["?", "This list"],
];

export function Shortcuts(props: { onClose: () => void }) {
  return (
    <Dialog label="Keyboard shortcuts" onClose={props.onClose}>
      <h2>Keyboard shortcuts</h2>
      <dl class="shortcuts">
        {SHORTCUTS.map(([keys, effect]) => (
          <div key={keys}>
            <dt>
              {keys.split(" ").map((key) => (
                <kbd key={key}>{key}</kbd>
              ))}
            </dt>
            <dd>{effect}</dd>
          </div>
        ))}
      </dl>
      <button class="button" onClick={props.onClose}>
        Close
      </button>
    </Dialog>
  );
}
