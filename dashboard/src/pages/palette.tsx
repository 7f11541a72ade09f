// The command palette: find pages, teams, nodes, workloads and claims, and go there.
import { useEffect, useState } from "preact/hooks";
import type { ClaimPage, NodePage, WorkloadMetadata, WorkloadPage } from "../api/types";
import { kindText, stateText } from "../i18n/states";
import { t } from "../i18n/text";
import { useResource } from "../state/resource";
import { clusterNow, link } from "../state/route";
import { Dialog } from "../ui/dialog";
import { shortModel } from "../ui/format";
import { Icon, type IconName } from "../ui/icons";

export interface Destination {
  key: string;
  icon: IconName;
  name: string;
  note: string;
  href: string;
}

const EACH = 6;

export function Palette(props: { pages: Destination[]; onClose: () => void }) {
  const [text, setText] = useState("");
  const [query, setQuery] = useState("");
  const [chosen, setChosen] = useState(0);
  useEffect(() => {
    const timer = setTimeout(() => setQuery(text.trim()), 150);
    return () => clearTimeout(timer);
  }, [text]);
  const found = useDestinations(query, props.pages);
  const at = Math.min(chosen, Math.max(0, found.length - 1));
  useEffect(() => {
    document.getElementById(`palette-${at}`)?.scrollIntoView({ block: "nearest" });
  }, [at]);
  const go = (destination: Destination | undefined) => {
    if (!destination) return;
    location.hash = destination.href;
    props.onClose();
  };
  const onKey = (event: KeyboardEvent) => {
    if (event.key === "ArrowDown") setChosen(Math.min(found.length - 1, at + 1));
    else if (event.key === "ArrowUp") setChosen(Math.max(0, at - 1));
    else if (event.key === "Enter") go(found[at]);
    else return;
    event.preventDefault();
  };
  return (
    <Dialog label={t("Search")} class="palette" onClose={props.onClose}>
      <label class="search">
        <Icon name="search" />
        <span class="sr">{t("Find a page, node, workload, claim or team")}</span>
        <input
          type="text"
          list={undefined}
          role="combobox"
          aria-expanded="true"
          aria-controls="palette-list"
          aria-activedescendant={found[at] ? `palette-${at}` : undefined}
          placeholder={t("Find a page, node, workload, claim or team")}
          value={text}
          autofocus
          onInput={(event) => {
            setText(event.currentTarget.value);
            setChosen(0);
          }}
          onKeyDown={onKey}
        />
      </label>
      <ul class="palette-list" id="palette-list" role="listbox" aria-label={t("Results")}>
        {found.map((destination, place) => (
          <li
            key={destination.key}
            id={`palette-${place}`}
            role="option"
            aria-selected={place === at}
            onMouseMove={() => setChosen(place)}
            onClick={() => go(destination)}
          >
            <Icon name={destination.icon} />
            <span class="grow">{destination.name}</span>
            <span class="muted small">{destination.note}</span>
          </li>
        ))}
      </ul>
      {!found.length && (
        <p class="muted small palette-none">{t("Nothing has “{query}” in its name.", { query })}</p>
      )}
    </Dialog>
  );
}

function useDestinations(query: string, pages: Destination[]): Destination[] {
  const cluster = clusterNow();
  const named = (path: string) => (query ? path : null);
  const nodes = useResource<NodePage>(
    named("api/nodes"),
    { cluster, name: query, pageSize: EACH },
    { keep: true },
  );
  const workloads = useResource<WorkloadPage>(
    named("api/workloads"),
    { cluster, name: query, pageSize: EACH },
    { keep: true },
  );
  const claims = useResource<ClaimPage>(
    named("api/claims"),
    { cluster, name: query, pageSize: EACH },
    { keep: true },
  );
  const teams =
    useResource<WorkloadMetadata>("api/workloadMetadata", { cluster }).data?.teams ?? [];
  // The English name of a page finds it in every language.
  const matching = pages.filter((page) => includes(`${page.name} ${page.key}`, query));
  if (!query) return matching;
  return [
    ...matching,
    ...teams
      .filter((team) => includes(team, query))
      .slice(0, EACH)
      .map((team) => ({
        key: `team ${team}`,
        icon: "workloads" as const,
        name: team,
        note: t("Team"),
        href: link(["workloads"], { team }),
      })),
    ...(nodes.data?.data ?? []).map((node) => ({
      key: `node ${node.name}`,
      icon: "nodes" as const,
      name: node.name,
      note: shortModel(node.gpuModel),
      href: link(["nodes", node.name]),
    })),
    ...(workloads.data?.data ?? []).map((workload) => ({
      key: `workload ${workload.uid}`,
      icon: "workloads" as const,
      name: workload.name,
      note: `${kindText(workload)} · ${stateText(workload.status)}`,
      href: link(["workloads", workload.uid]),
    })),
    ...(claims.data?.data ?? []).map((claim) => ({
      key: `claim ${claim.namespace}/${claim.name}`,
      icon: "scheduling" as const,
      name: claim.name,
      note: `${kindText({ kind: "GpuClaim", ...claim })} · ${stateText(claim.phase || "Pending")}`,
      href: link(["scheduling"], { claim: `${claim.namespace}/${claim.name}` }),
    })),
  ];
}

function includes(name: string, query: string): boolean {
  return name.toLowerCase().includes(query.toLowerCase());
}
