// The names of states, severities, periods and quantities that the API has as values. Sentences of the server, such as
// reasons and findings, are shown as they are.
import { t } from "./text";

const STATES: Readonly<Record<string, string>> = {
  Running: t("Running"),
  Pending: t("Pending"),
  Completed: t("Completed"),
  Failed: t("Failed"),
  Unknown: t("Unknown"),
  Deleted: t("Deleted"),
  // Claims and gangs
  Reserved: t("Reserved"),
  Bound: t("Bound"),
  "Partly placed": t("Partly placed"),
  // GPUs and nodes
  Healthy: t("Healthy"),
  Degraded: t("Degraded"),
  Unhealthy: t("Unhealthy"),
  healthy: t("healthy"),
  faulty: t("faulty"),
  cordoned: t("cordoned"),
  draining: t("draining"),
  gone: t("gone"),
  external: t("external"),
  // Findings and events
  Warning: t("Warning"),
  Normal: t("Normal"),
  // Repairs
  Observed: t("Observed"),
  Cordoned: t("Cordoned"),
  Draining: t("Draining"),
  Drained: t("Drained"),
  Repairing: t("Repairing"),
  Proving: t("Proving"),
  Manual: t("Manual"),
};

/** Return the name of a state; one that is not known is shown as the API has it. */
export function stateText(state: string): string {
  return STATES[state] ?? state;
}

/** Return a name for the middle of a sentence: "Model" becomes "model", "NVLink domain" stays. */
export function midSentence(name: string): string {
  return name.replace(/^\p{Lu}(?=\p{Ll})/u, (letter) => letter.toLowerCase());
}

/** Name the kind of an object and its namespace. */
export function kindText(object: { kind: string; namespace: string }): string {
  return object.namespace
    ? t("{kind} in {namespace}", object)
    : t("{kind} without namespace", object);
}

const PERIODS: Readonly<Record<string, string>> = {
  Day: t("Day"),
  Week: t("Week"),
  Month: t("Month"),
  Quarter: t("Quarter"),
  Year: t("Year"),
};

/** Return the name of the period of a budget. */
export function periodText(period: string): string {
  return PERIODS[period] ?? period;
}

const QUANTITIES: Readonly<Record<string, string>> = {
  utilization: t("Utilization"),
  temperature: t("Temperature"),
  power: t("Power"),
  memory: t("Memory"),
  age: t("Age of reading"),
  team: t("Team"),
  workload: t("Workload"),
  health: t("Health"),
  // Titles of graphs
  "GPU Utilization": t("GPU Utilization"),
  "GPU Memory Utilization": t("GPU Memory Utilization"),
  "GPU Power": t("GPU Power"),
  "GPU Temperature": t("GPU Temperature"),
};

/** Return the name of a metric, or of what else the map is coloured by. */
export function quantityText(quantity: string): string {
  return QUANTITIES[quantity] ?? quantity;
}

const GROUPS: Readonly<Record<string, string>> = {
  namespace: t("namespace"),
  workload: t("workload"),
  run: t("run"),
};

/** Return what usage is grouped by, within a sentence; the key of a label or annotation is a name. */
export function groupText(group: string): string {
  return GROUPS[group] ?? group;
}
