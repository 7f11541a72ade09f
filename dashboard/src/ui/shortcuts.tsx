// The list of keyboard shortcuts.
import { Dialog } from "./dialog";
import { t } from "../i18n/text";

const SHORTCUTS: [string, string][] = [
  ["Ctrl K", t("Find a page, node, workload, claim or team")],
  ["/", t("Search in the list")],
  ["g o", t("Overview")],
  ["g n", t("Nodes")],
  ["g w", t("Workloads")],
  ["g q", t("Queue")],
  ["g s", t("Scheduling")],
  ["g h", t("Health")],
  ["g u", t("Usage")],
  ["← ↑ → ↓", t("Move over the map")],
  ["↵ w", t("Open the selected GPU, its workload")],
  ["+ − 0", t("Zoom the map; show all of it")],
  ["?", t("This list")],
];

export function Shortcuts(props: { onClose: () => void }) {
  return (
    <Dialog label={t("Keyboard shortcuts")} onClose={props.onClose}>
      <h2>{t("Keyboard shortcuts")}</h2>
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
        {t("Close")}
      </button>
    </Dialog>
  );
}
